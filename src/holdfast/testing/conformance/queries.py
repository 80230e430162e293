"""Conformance of scan, page, tally: the query language finds the same jobs on every store, page by page, within bounds.

Called by run_case. What a query means is defined once, in holdfast.queries; a store may only be wrong by leaving out a
job, by not coming to an end, or by looking at more than it may.
"""

from __future__ import annotations

from typing import Any

from ...headers import with_headers
from ...lifecycle import Ending, Failure, State
from ...queries import continued, grouped_under, matches, parse_query
from ...queries.pages import GROUPINGS, Grouping, JobPage, Look
from ...records import SORTS, JobQuery, JobRecord, Sort
from .compare import same
from .registry import case, case_for_each
from .world import FOREVER, HOUR, MINUTE, World

# Each query, and the jobs it must find in the scene below.
FOUND: dict[str, set[str]] = {
    "": {"mail", "render", "late", "slow", "dead", "done", "gone"},
    "state:dead": {"dead"},
    "live": {"mail", "render", "late", "slow"},
    "-live": {"dead", "done", "gone"},
    "state:ready,running -queue:post": {"slow"},
    "dead succeeded": set(),
    "queue:post": {"mail", "render"},
    "queue:post,other": {"mail", "render", "dead"},
    "-queue:post": {"late", "slow", "dead", "done", "gone"},
    "queue:p*": {"mail", "render"},
    "task:mail.*": {"mail", "render", "dead"},
    "task:*.send": {"mail", "dead"},
    "task:MAIL.*": set(),
    "-task:*.*": {"late", "slow", "done", "gone"},
    "task:mail.send task:mail.render": set(),
    "group:g1": {"mail"},
    "group:*": {"mail"},
    "-group:* queue:post": {"render"},
    "key:'k 1'": {"mail"},
    "worker:w-slow": {"slow"},
    "worker:w-*": {"slow"},
    "reason:failed": {"dead"},
    "id:gone": {"gone"},
    "id:a-ma": {"mail"},
    "id:ail,late": {"mail", "late"},
    "-id:ail state:ready": {"render"},
    "error:timeout": {"dead"},
    "error:'timed out'": {"dead"},
    "-error:timeout finished": {"done", "gone"},
    "args.user.id:42": {"mail"},
    "args.user.id:>6": {"mail", "render"},
    "args.user.id:42.0": {"mail"},
    "args.tags:vip": {"mail"},
    "args.tags.0:vip": {"mail"},
    "args.tags.7:vip": set(),
    "args.user.name:ann*": {"mail"},
    "args.urgent:true": {"mail"},
    "args.nothing:null": {"mail"},
    "args.user:42": set(),
    "args:ann@": {"mail"},
    "header.tenant:acme": {"mail", "dead"},
    "header.tenant:acme -dead": {"mail"},
    "header.tenant:a*": {"mail", "dead"},
    "header.'request.id':7": {"mail"},
    "header.request.id:7,8": {"mail", "dead"},
    "-header.tenant:* queue:post": {"render"},
    "header.tenant:ACME": set(),
    '"ANN@example"': {"mail"},
    '"timed out"': {"dead"},
    "tag:vip": {"mail"},
    "tag:v*,eu": {"mail", "late"},
    "tag:vi": set(),
    "-tag:vip queue:post": {"render"},
    "-tag:*": {"render", "slow", "dead", "done", "gone"},
    "header.tenant:a*,8": {"mail", "dead", "late"},
    "header.tags:vip,new": set(),
    "header.none:x": set(),
    "priority:>=5": {"mail"},
    "priority:5,0 queue:post": {"mail", "render"},
    "-priority:>=5 queue:post": {"render"},
    "priority:<0": {"late"},
    "attempts:>0 -succeeded": {"dead", "gone"},
    "failures:1": {"dead"},
    "stalls:>0": set(),
    "age:>90m": {"mail", "late", "slow", "dead", "done", "gone"},
    "age:<1h": {"render"},
    "running:>10m": {"slow"},
    "running:<10m": set(),
    "-running:>10m live": {"mail", "render", "late"},
    "wait:>1h": {"mail"},
    "due:<1d": {"late"},
    "due:<1h": set(),
    "finished:>1h": {"dead", "done", "gone"},
    "finished:<1h": set(),
    "state:dead error:Timeout task:mail.* age:>1h attempts:>0": {"dead"},
}
_VIP = with_headers(b'{"timeout":5}', {"tags": "vip,new", "tenant": "acme", "request.id": "7"})
_EU = with_headers(None, {"tags": "eu", "tenant": "8"})
_ARGS = b'{"user":{"id":42,"name":"ann@example.com"},"tags":["vip","new"],"urgent":true,"nothing":null}'


def _headed(request: str) -> bytes | None:
    return with_headers(None, {"tenant": "acme", "request.id": request})


async def _scene(world: World) -> set[str]:
    """One job of every kind, two hours ago, but for `render`."""
    timeout = Failure(reason="failed", type="builtins.TimeoutError", text="the connection timed out")
    await world.enqueue(id="a-done", task="sum")
    await world.end(await world.claim_one("a-done", "w-old"))
    await world.enqueue(id="a-dead", task="mail.send", queue="other", options=_headed("8"))
    dying = await world.claim_one("a-dead", "w-old", queues=("other",))
    await world.end(dying, Ending.BURIED, failure=timeout)
    await world.enqueue(id="a-gone", task="sum")
    await world.end(await world.claim_one("a-gone", "w-old"), Ending.CANCELLED)
    await world.enqueue(id="a-slow", task="sum")
    await world.claim_one("a-slow", "w-slow", lease=FOREVER)
    await world.enqueue(id="a-late", task="sum", delay=6 * HOUR, priority=-3, options=_EU)
    mail: dict[str, Any] = {"group": "g1", "key": "k 1", "args": _ARGS, "priority": 5, "options": _VIP}
    await world.enqueue(id="a-mail", task="mail.send", queue="post", **mail)
    world.advance(2 * HOUR)
    await world.enqueue(id="a-render", task="mail.render", queue="post", args=b'{"user":{"id":7}}')
    world.advance(MINUTE)
    return {"a-done", "a-dead", "a-gone", "a-slow", "a-late", "a-mail", "a-render"}


async def _pages(world: World, query: JobQuery) -> list[JobRecord]:
    """All pages; none may be endless."""
    found: list[JobRecord] = []
    after: str | None = None
    for _ in range(100):
        page: JobPage = await world.backend.page(continued(query, after), now=world.now)
        assert len(page.jobs) <= query.limit, "a page has at most as many as asked for"
        found += page.jobs
        if page.after is None:
            return found
        assert page.after != after, "a page makes progress"
        after = page.after
    raise AssertionError("the pages do not come to an end")


@case
async def a_query_finds_what_it_says(world: World) -> None:
    await _scene(world)
    for text, names in FOUND.items():
        found = await _pages(world, parse_query(text))
        same({job.id.removeprefix("a-") for job in found}, names, f"query {text!r}")
        same([job.seq for job in found], sorted((job.seq for job in found), reverse=True), f"order of {text!r}")


@case
async def a_query_finds_the_same_in_pages_of_any_size(world: World) -> None:
    await _scene(world)
    for rows, limit in ((1, 1), (2, 3), (100, 2)):
        world.backend.scan_rows_max = rows
        for text, names in FOUND.items():
            found = await _pages(world, JobQuery(limit=limit, **_fields(text)))
            same({job.id.removeprefix("a-") for job in found}, names, f"query {text!r}, {rows} rows, limit {limit}")
            same(len(found), len(names), f"each job once in {text!r}")


def _fields(text: str) -> dict[str, Any]:
    query = parse_query(text)
    return {name: getattr(query, name) for name in JobQuery.__struct_fields__ if name != "limit"}


@case
async def a_scan_looks_at_no_more_than_it_may_and_leaves_out_nothing(world: World) -> None:
    ids = await world.enqueue_many(30, args=b'{"x":1}')
    other = await world.enqueue_many(10, queue="other", delay=HOUR)
    soon = JobQuery(states=(State.SCHEDULED,), sort="due")
    for query in (
        JobQuery(),
        JobQuery(queue="default"),
        JobQuery(states=(State.SCHEDULED,)),
        soon,
        JobQuery(task="none"),
    ):
        wanted = [job.id for job in await _pages(world, query) if matches(query, job, world.now)]
        seen: list[str] = []
        fields = {name: getattr(query, name) for name in JobQuery.__struct_fields__} | {"limit": 4}
        for _ in range(100):
            part = await world.backend.scan(JobQuery(**fields), Look(rows_max=3, now=world.now))
            assert part.rows <= 3 or world.backend.sharded, f"{part.rows} rows where 3 were allowed"
            seen += [job.id for job in part.jobs if matches(query, job, world.now)]
            if part.before is None:
                break
            place = query.order(part.before, part.beyond or 0.0)
            before = fields["before"]
            assert before is None or query.order(before, fields["beyond"] or 0.0) < place, "a scan makes progress"
            fields |= {"before": part.before, "beyond": part.beyond}
        same(sorted(seen), sorted(wanted), f"scan after scan of {query}")
    same(len(ids) + len(other), 40, "jobs")


@case
async def a_page_is_bounded_in_bytes(world: World) -> None:
    await world.enqueue_many(6, args=b'{"x":"' + b"y" * 1000 + b'"}')
    part = await world.backend.scan(JobQuery(limit=50), Look(bytes_max=2500))
    assert 1 <= len(part.jobs) <= 3 or world.backend.sharded, f"{len(part.jobs)} jobs of 1,008 bytes within 2,500"
    part = await world.backend.scan(JobQuery(limit=50), Look(bytes_max=1))
    assert part.jobs, "a single job always fits"
    light = await world.backend.scan(JobQuery(limit=50), Look(bytes_max=1_000_000, light=True))
    same({job.args for job in light.jobs}, {b"{}"}, "a light scan leaves out arguments")
    same(len(light.jobs), 6, "and no job")


@case_for_each(GROUPINGS)
async def a_tally_counts_what_the_pages_show(world: World, by: Grouping) -> None:
    await _scene(world)
    for text in (
        "",
        "live",
        "queue:post",
        "task:mail.*",
        "age:>1h",
        "args.user.id:>6",
        "header.tenant:acme",
        "state:dead",
    ):
        query = parse_query(text)
        jobs = await _pages(world, query)
        tally = await world.backend.tally(query, by, now=world.now)
        expected: dict[str, int] = {}
        for job in jobs:
            expected[grouped_under(by, job)] = expected.get(grouped_under(by, job), 0) + 1
        same((dict(tally.groups), tally.total), (expected, len(jobs)), f"tally of {text!r} by {by}")
        assert tally.complete, "few jobs are counted completely"


@case
async def a_tally_says_that_it_is_not_complete(world: World) -> None:
    await world.enqueue_many(20)
    world.backend.scan_rows_max = 5
    tally = await world.backend.tally(parse_query("priority:0"), None, now=world.now)
    assert not tally.complete and 0 < tally.total <= 5, f"a tally of 5 rows among 20: {tally}"


@case_for_each(SORTS)
async def a_sorted_list_is_in_order_page_by_page(world: World, sort: Sort) -> None:
    await _scene(world)
    await world.enqueue_many(3, queue="post", delay=HOUR, priority=2)
    await world.enqueue_many(2, queue="post", delay=2 * HOUR, priority=7)
    keys = {
        "created": lambda job: -job.seq,
        "due": lambda job: (job.due_at, job.seq),
        "finished": lambda job: (-(job.finished_at or 0.0), -job.seq),
        "priority": lambda job: (-job.priority, job.seq),
    }
    for text in ("", "queue:post", "scheduled", "finished"):
        every = sorted(await _pages(world, parse_query(text)), key=keys[sort])
        for limit in (2, 50):
            fields = _fields(text) | {"sort": sort, "limit": limit}
            found = await _pages(world, JobQuery(**fields))
            same([job.id for job in found], [job.id for job in every], f"{text!r} by {sort}, {limit} at once")
