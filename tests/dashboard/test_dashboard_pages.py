"""What the pages show, on every store."""

from __future__ import annotations

import asyncio
import html
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Holdfast
from holdfast.backends import scan_pages
from holdfast.backends.contract import Backend
from holdfast.backends.reader import Reader
from holdfast.dashboard import Access, formats, pages
from holdfast.dashboard.app import LIVE_LOOK_MAX, pause_after
from holdfast.dashboard.cron_strip import TICKS_SHOWN, strip
from holdfast.dashboard.pages import ENTRY_NEXT_SHOWN, PAGES, is_long
from holdfast.dashboard.store import KEPT_SECONDS, Reads
from holdfast.inspection.pace import Usual
from holdfast.records import ClaimRequest, CronEntry, JobQuery, JobRecord, WorkerRecord
from holdfast.worker_status import draw
from tests.dashboard.shop import HIDDEN, HOSTILE, Browser, dashboard, fill, shop

PAGE_BYTES_MAX = 80_000


def paths(jobs: dict[str, str]) -> list[str]:
    """Every page, and a job in every state."""
    named = {"job": f"job?id={jobs['dead']}", "queue": "queue?name=billing"}
    named["task"] = "task?name=billing.charge"
    named |= {"group": "group?queue=billing&name=customer:3", "entry": "entry?name=nightly"}
    return [f"/{named.get(name, name)}" for name in PAGES] + [f"/job?id={id}" for id in jobs.values()]


class Tags(HTMLParser):
    """Every tag, and what must hold for each."""

    void = frozenset({"meta", "link", "input", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in self.void:
            self.open.append(tag)
        self.wrong += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        if tag == "script" and "src" not in given:
            self.wrong.append("an inline script")
        if given.get("id"):
            self.ids.append(str(given["id"]))
        self.links += [str(given[name]) for name in ("href", "src", "action", "formaction") if given.get(name)]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.void:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_every_page_is_whole_and_small(tmp_path: Path, store: str) -> None:
    app = shop("memory://" if store == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}")

    async def walk() -> None:
        jobs = await fill(app)
        visitor = Browser(dashboard(app))
        for path in paths(jobs):
            page = await visitor.page(path)
            assert len(page.encode()) < PAGE_BYTES_MAX, path
            tags = Tags()
            tags.feed(page)
            assert not tags.wrong, (path, tags.wrong)
            assert not tags.open, (path, tags.open)
            assert len(set(tags.ids)) == len(tags.ids), path
            assert all(link.startswith(("/", "#")) for link in tags.links), (path, tags.links)
        await app.aclose()

    asyncio.run(walk())


def test_no_page_looks_through_the_whole_store_for_a_task(
    app: Holdfast, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every store has an index of tasks: `find` goes on until it has enough, a page is bounded."""
    everything = scan_pages.everything

    async def watched(reader: Reader, query: JobQuery) -> list[JobRecord]:
        assert query.task is None
        return await everything(reader, query)

    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for path in paths(jobs):
            await visitor.page(path)

    monkeypatch.setattr(scan_pages, "everything", watched)
    asyncio.run(walk())


def test_all_links_stay_below_the_prefix(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(Starlette(routes=[Mount("/ops/jobs", dashboard(app))]))
        for path in paths(jobs):
            page = await visitor.page(f"/ops/jobs{path}")
            tags = Tags()
            tags.feed(page)
            assert all(link.startswith(("/ops/jobs/", "#")) for link in tags.links), (path, tags.links)
        answer = await visitor.post_under("/ops/jobs", "/do/cancel", id=jobs["ready"])
        assert answer.headers["location"] == "/ops/jobs/jobs"

    asyncio.run(walk())
    assert app.job(jobs["ready"]).state == "cancelled"


def test_what_the_store_holds_is_text_on_every_page(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        charge = app.tasks["billing.charge"]
        await charge.options(group=None, key=None).aenqueue(4, HOSTILE)
        await app.apause(queue="billing", reason=HOSTILE, by=HOSTILE)
        visitor = Browser(dashboard(app))
        for path in paths(jobs):
            page = await visitor.page(path)
            assert "<img src=x" not in page, path
        assert html.escape("<img src=x onerror=") in await visitor.page("/queue?name=billing")
        query = await visitor.get("/jobs", params={"q": f"task:{HOSTILE}"})
        assert "<img src=x" not in query.text

    asyncio.run(walk())


def test_secrets_are_hidden_by_their_key(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        page = await visitor.page(f"/job?id={jobs['succeeded']}")
        assert HIDDEN not in page + await visitor.page("/jobs")
        assert "hidden by key" in page

        def hook(task: str, key: str, value: Any) -> Any:
            return "customer hidden" if key == "customer" else value

        own = Browser(dashboard(app, redact=hook))
        assert "customer hidden" in await own.page(f"/job?id={jobs['succeeded']}")

    asyncio.run(walk())


def test_a_job_s_page_shows_its_headers_to_those_who_may_see_arguments(app: Holdfast) -> None:
    async def walk() -> None:
        headers = {"request_id": "r4711", "auth_token": "t4712", "odd": HOSTILE}
        job = await app.named("billing.charge", headers=headers).aenqueue()
        page = await Browser(dashboard(app)).page(f"/job?id={job.id}")
        assert "r4711" in page and "t4712" not in page and "<img src=x" not in page
        viewer = Browser(dashboard(app, access=lambda connection: Access(name="ann")))
        assert "r4711" not in await viewer.page(f"/job?id={job.id}")

    asyncio.run(walk())


def test_a_job_s_page_says_why_it_is_where_it_is(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for id in jobs.values():
            summary = (await app.aexplain(id)).summary.replace("`", "")
            plain = html.unescape(re.sub(r"<[^>]*>", "", await visitor.page(f"/job?id={id}")))
            assert re.split(r"\d{4}-|[0-9a-f]{8}-|\(", summary)[0] in plain, id
        dead = await visitor.page(f"/job?id={jobs['dead']}")
        assert "RuntimeError" in dead
        assert "Traceback" in dead
        assert "holdfast retry" in dead

    asyncio.run(walk())


def test_the_list_of_jobs_filters_and_pages(app: Holdfast) -> None:
    async def walk() -> None:
        send = app.tasks["mail.send"]
        await app.aenqueue_many(send.bind(f"user-{number:03d}") for number in range(120))
        visitor = Browser(dashboard(app))
        seen: list[str] = []
        path = "/jobs?q=queue:mail"
        while path:
            page = await visitor.page(path)
            seen += dict.fromkeys(re.findall(r"user-\d{3}", page))
            older = re.search(r'rel="next" href="([^"]+)"', page)
            path = html.unescape(older[1]) if older else ""
        assert seen == [f"user-{number:03d}" for number in reversed(range(120))]
        assert "No job matches" in await visitor.page("/jobs?q=state:dead")
        wrong = await visitor.get("/jobs", params={"q": "state:nonsense"})
        assert wrong.status_code == 400
        assert "there is no state" in wrong.text

    asyncio.run(walk())


@pytest.mark.parametrize("group", ["two words", "it's", 'say "hi"', "a:b state:dead", "ends with \\"])
def test_a_link_finds_the_jobs_of_any_group(app: Holdfast, group: str) -> None:
    async def walk() -> None:
        job = await app.tasks["mail.send"].options(group=group).aenqueue("ann")
        other = await app.tasks["mail.send"].aenqueue("bob")
        visitor = Browser(dashboard(app))
        page = await visitor.get("/group", params={"queue": "mail", "name": group})
        found = re.search(r'<a class="btn" href="([^"]+)">See its jobs', page.text)
        assert found is not None
        listed = await visitor.page(html.unescape(found[1]))
        assert job.id in listed
        assert other.id not in listed
        tab = re.search(r'href="([^"]+)"><span class="st ready">', listed)
        assert tab is not None
        assert job.id in await visitor.page(html.unescape(tab[1]))

    asyncio.run(walk())


def test_a_long_group_s_page_says_that_it_shows_the_newest(app: Holdfast) -> None:
    async def walk() -> None:
        charge = app.tasks["billing.charge"]
        await app.aenqueue_many(charge.bind(1) for _ in range(40))
        visitor = Browser(dashboard(app))
        assert "are shown" not in await visitor.page("/group?queue=billing&name=customer:1")
        await app.aenqueue_many(charge.bind(1) for _ in range(20))
        assert "the newest 50 are shown" in await visitor.page("/group?queue=billing&name=customer:1")

    asyncio.run(walk())


@pytest.mark.parametrize("before", ["9" * 30, "9" * 5000, "-1", "x", "\u0663"])
def test_a_position_that_no_store_has_is_no_error(app: Holdfast, jobs: dict[str, str], before: str) -> None:
    async def walk() -> None:
        answer = await Browser(dashboard(app)).get("/jobs", params={"before": before})
        assert answer.status_code == 200

    asyncio.run(walk())


def test_what_is_not_there_is_said_so(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for path in ("/job?id=unknown", "/job", "/queue?name=unknown", "/nowhere", "/live?at=/nowhere"):
            answer = await visitor.get(path)
            assert answer.status_code == 404, path
            assert "Overview" in answer.text

    asyncio.run(walk())


def test_an_empty_store_shows_how_to_begin(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path / 'jobs.db'}")

    async def walk() -> None:
        assert "holdfast work shop:app" in await Browser(dashboard(app)).page("/")

    asyncio.run(walk())


def test_failures_are_grouped_by_task_exception_and_frame(app: Holdfast) -> None:
    async def walk() -> None:
        for number in range(5):
            await app.tasks["billing.charge"].aenqueue(number, "fails")
        await app.awork(drain=True)
        page = await Browser(dashboard(app)).page("/failures")
        assert "<b>1 kind</b>" in page
        assert "<b>5</b> dead letters" in page
        assert "dashboard/shop.py" in page

    asyncio.run(walk())


def test_a_change_is_sent_to_an_open_page(app: Holdfast, jobs: dict[str, str]) -> None:
    """Server-sent events: the page first, then again when something has changed."""

    async def walk() -> None:
        served = dashboard(app)
        events: asyncio.Queue[str] = asyncio.Queue()
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body", b"").startswith(b"data:"):
                events.put_nowait(message["body"].decode())

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/live",
            "root_path": "",
            "scheme": "http",
            "query_string": f"at=/job?id={jobs['ready']}".encode().replace(b"?id=", b"%3Fid%3D"),
            "headers": [(b"host", b"localhost:8642")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8642),
        }
        serving = asyncio.create_task(served(scope, receive, send))
        async with asyncio.timeout(60):
            assert "ready" in await events.get()
            await app.acancel(jobs["ready"])
            while "cancelled" not in await events.get():
                pass
        gone.set()
        await serving

    asyncio.run(walk())


def test_looks_of_an_open_page_are_so_close_that_a_change_is_sent_within_a_second() -> None:
    for look in (0.0, 0.01, 0.1, 0.2, 0.25, LIVE_LOOK_MAX):
        missed = KEPT_SECONDS + look + pause_after(look) + look  # the change comes right after it was read, for another
        assert missed < 1.0, look
    for look in (0.31, 1.0, 10.0):  # the store is slow: at most a third of its time goes to this page
        assert pause_after(look) >= 2 * look


def test_what_costs_little_is_read_again_soon(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    now, cost, count = [100.0], [0.0], [0]
    monkeypatch.setattr("holdfast.dashboard.store.time", SimpleNamespace(monotonic=lambda: now[0]))

    async def read() -> int:
        now[0] += cost[0]
        count[0] += 1
        return count[0]

    async def walk() -> None:
        reads = Reads(app, {})
        for name, seconds, kept in (("cheap", 0.001, KEPT_SECONDS), ("dear", 0.1, 2.0), ("dearest", 9.0, 3.0)):
            cost[0] = seconds
            first = await reads._keep(name, 3.0, read, by_cost=True)
            now[0] += kept - 0.01
            assert await reads._keep(name, 3.0, read, by_cost=True) == first, name
            now[0] += 0.02
            assert await reads._keep(name, 3.0, read, by_cost=True) == first + 1, name

    asyncio.run(walk())


def test_the_page_of_a_store_that_is_away_is_a_sentence(tmp_path: Path) -> None:
    app = Holdfast("redis://127.0.0.1:1/0")

    async def walk() -> None:
        answer: httpx.Response = await Browser(dashboard(app)).get("/jobs")
        assert answer.status_code == 503
        assert "The store does not answer" in answer.text

    asyncio.run(walk())


def test_the_gates_of_a_job_name_what_stops_it(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for state, stops in (("scheduled", "It is not due yet"), ("waiting", "Its group has no room")):
            page = await visitor.page(f"/job?id={jobs[state]}")
            assert re.search(rf'<li class="warn stop">.*?<b>{stops}</b>', page), state
        assert "<b>No worker serves it</b>" in await visitor.page(f"/job?id={jobs['ready']}")
        await app.apause(queue="billing", reason="migration", by="ann")
        visitor = Browser(dashboard(app))
        assert re.search(
            r"<b>Its queue is paused</b>.*?by ann: migration", await visitor.page(f"/job?id={jobs['ready']}")
        )
        assert 'class="gates"' not in await visitor.page(f"/job?id={jobs['dead']}")

    asyncio.run(walk())


def test_times_and_ids_in_sentences_are_for_people(app: Holdfast, jobs: dict[str, str]) -> None:
    made = formats.prose("Held by 01a1e8ea-f5b2-75e2-8d29-1226415b27f2 since 2026-11-17T09:51:15Z, `a<b`.", "/ops", 0.0)
    assert '<a class="id" href="/ops/job?id=01a1e8ea-f5b2-75e2-8d29-1226415b27f2"' in made
    assert ">415b27f2</a>" in made
    assert 'title="17 Nov 2026, 09:51:15 UTC"' in made
    assert "<code>a&lt;b</code>." in made
    assert "<b>" not in formats.prose("<b>\u202e", "", 0.0)


def test_the_list_of_jobs_sorts_counts_and_suggests(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        page = await visitor.page("/jobs?q=task:billing.*&by=state")
        assert '<b class="num">4</b> jobs match' in page
        assert re.search(r'href="[^"]*state%3Adead[^"]*">dead</a>', page)
        assert "holdfast jobs" in page
        assert "--group-by state" in page
        assert "due first" in await visitor.page("/jobs?q=live&sort=due")
        assert 'data-word="task:mail.send"' in page
        wrong = await visitor.get("/jobs", params={"q": "stat:dead"})
        assert wrong.status_code == 400
        assert "Did you mean" in wrong.text
        assert (await visitor.get("/jobs", params={"sort": "nonsense"})).status_code == 400

    asyncio.run(walk())


def test_a_cron_entry_shows_its_latest_and_next_runs() -> None:
    entry = CronEntry(name="minutely", cron="* * * * *", tz="UTC", call=b"", created_at=0.0)
    now = 100_000.0
    ticks = strip(entry, {}, now)
    assert len(ticks.past) == TICKS_SHOWN
    assert (ticks.past[-1].at, ticks.coming[0]) == (99_960.0, 100_020.0)
    assert ticks.past[-1].state is None
    assert strip(entry, {}, now).past[-1].id == ticks.past[-1].id


def test_a_cron_entry_has_a_page_with_its_next_runs(app: Holdfast) -> None:
    async def walk() -> None:
        async with app:
            await app.cron.alist()
            await app.awork(drain=True)
            visitor = Browser(dashboard(app))
            page = await visitor.page("/entry?name=nightly")
            coming = page.partition('class="coming"')[2].partition("</ol>")[0]
            assert coming.count("<li>") == ENTRY_NEXT_SHOWN
            assert "03:00:00" in coming
            assert "holdfast cron backfill nightly" in page
            assert "/entry?name=nightly" in await visitor.page("/cron")
            assert (await visitor.get("/entry?name=nobody")).status_code == 404

    asyncio.run(walk())


def test_dead_letters_are_found_by_the_query_language(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for query in ("task:billing.* error:RuntimeError", "args.customer:2", "reason:failed finished:<1d"):
            assert jobs["dead"][-8:] in await visitor.page(f"/dead?q={query}"), query
        assert "No dead letters match" in await visitor.page("/dead?q=error:Timeout")
        assert jobs["dead"][-8:] in await visitor.page("/dead?task=billing.charge")
        wrong = await visitor.get("/dead?q=tsak:x")
        assert wrong.status_code == 400
        assert "Did you mean task:" in wrong.text
        found = re.search(r'data-href="(/dead[^"]*)"', await visitor.page("/failures"))
        assert found is not None
        assert jobs["dead"][-8:] in await visitor.page(html.unescape(found[1]))

    asyncio.run(walk())


def test_the_list_of_dead_letters_grows_on_request(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LETTERS_SHOWN", 2)

    async def walk() -> None:
        visitor = Browser(dashboard(app))
        for number in range(5):
            await app.abury(await app.tasks["mail.send"].aenqueue(f"user-{number}"))
        first = await visitor.page("/dead")
        assert first.count("<tr data-href") == 2
        assert "all 5 that match" in first
        assert (await visitor.page("/dead?show=2")).count("<tr data-href") == 4
        assert "Show more" not in await visitor.page("/dead?show=3")

    asyncio.run(walk())


def test_a_job_s_page_leads_to_jobs_of_its_key_or_group(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        page = await visitor.page(f"/job?id={jobs['waiting']}")
        assert "same group" in page
        assert jobs["ready"] in page
        assert "Related" not in await visitor.page(f"/job?id={jobs['scheduled']}")

    asyncio.run(walk())


def test_a_job_s_page_leads_to_its_parents_and_children(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        child = await app.tasks["mail.send"].options(after=[jobs["ready"]]).aenqueue("later")
        page = await visitor.page(f"/job?id={child.id}")
        assert "it waits for them" in page
        assert jobs["ready"] in page
        page = await visitor.page(f"/job?id={jobs['ready']}")
        assert "they wait for it" in page
        assert child.id in page
        assert "Children" not in await visitor.page(f"/job?id={jobs['scheduled']}")

    asyncio.run(walk())


def test_the_system_page_tells_versions_size_and_schema(app: Holdfast, jobs: dict[str, str]) -> None:
    async def walk() -> None:
        visitor = Browser(dashboard(app))
        page = await visitor.page("/system")
        for text in ("SQLite 3.", "version 13", "starlette", "Python", "Audit now"):
            assert text in page, text
        system = (await visitor.get("/api/system")).json()
        assert (system["schema"], system["size_bytes"] > 1000) == (13, True)

    asyncio.run(walk())


def test_workers_show_what_runs_longer_than_usual_or_has_not_begun(app: Holdfast) -> None:
    usual = Usual(runs=100, p50=1.0, p99=2.0)
    assert is_long(usual, 61.0)
    assert not is_long(usual, 59.0)
    assert is_long(None, 601.0)
    assert not is_long(Usual(runs=3, p50=0.01, p99=0.02), 61.0)  # three runs are no custom

    async def walk() -> None:
        job = await app.tasks["mail.send"].aenqueue("ann")
        portrait = draw([], unbegun=[job.id])

        async def claim(backend: Backend) -> None:
            worker = WorkerRecord(id="w" * 16, host="vm", lease_seconds=60.0, queues=("mail",), slots=2)
            await backend.register(worker)
            request = ClaimRequest(worker=worker.id, call=1, queues=("mail",), most=1)
            await backend.exchange((), (), request)
            await backend.renew(worker.id, (), seen_call=0, portrait=portrait)

        await app._ado(claim)
        page = await Browser(dashboard(app)).page("/workers")
        assert 'class="begun-not"' in page
        assert "1 not begun" in page

    asyncio.run(walk())


def test_a_job_s_page_lists_its_steps(app: Holdfast) -> None:
    async def walk() -> None:
        job = await app.tasks["mail.send"].aenqueue("ann")
        assert '<h2 id="sp">Steps</h2>' not in await Browser(dashboard(app)).page(f"/job?id={job.id}")
        await app.asignal(job, "<paid>", "secret", by="bob")
        page = await Browser(dashboard(app)).page(f"/job?id={job.id}")
        assert "Signal <b>&lt;paid&gt;</b>" in page
        assert "Signal: &lt;paid&gt; by" in page
        assert "secret" not in page

    asyncio.run(walk())
