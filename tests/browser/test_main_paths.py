"""What people do most, in a real browser, on every kind of store: with the keyboard, live, and without a script."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.dashboard import create
from tests.browser.chromium import Tab, chromium, served, tab
from tests.browser.shop import HOSTILE, LONG, Shop
from tests.servers import postgres, valkey

pytestmark = pytest.mark.timeout(600)  # a busy machine is no defect


def url_of(store: str, folder: Path) -> str:
    if store == "postgres":
        server = postgres.shared_server()
        postgres.empty("browser")
        return server.url("browser")
    if store == "redis":
        cache = valkey.shared_server()
        valkey.empty(cache, "browser")
        return cache.url("browser")
    return f"sqlite:///{folder / 'jobs.db'}"


@contextlib.asynccontextmanager
async def shop_in_a_tab(url: str) -> AsyncIterator[tuple[Shop, Tab]]:
    async with Shop(url).filled() as shop, served(create(shop.app)) as base, tab(base) as page:
        yield shop, page


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_a_dead_job_is_found_and_revived_with_the_keyboard(tmp_path: Path, store: str) -> None:
    async def walk() -> None:
        async with shop_in_a_tab(url_of(store, tmp_path)) as (shop, one):
            keys = one.page.keyboard
            await one.open("/")
            await one.sees("mail")
            await keys.press("g")
            await keys.press("j")
            await one.page.wait_for_url("**/jobs")
            await keys.press("/")
            await keys.type(f"state:dead id:{shop.ids['dead']}")
            await keys.press("Enter")
            await one.page.wait_for_url("**/jobs?q=*")
            assert await one.page.locator("tbody tr").count() == 1
            await keys.press("j")
            await keys.press("x")
            await keys.press("r")
            await one.page.locator(".toast").wait_for()
            assert "1 job " in await one.text(".toast"), await one.text(".toast")
            assert (await shop.app.ajob(shop.ids["dead"])).state != "dead"

    chromium().run(walk())


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_a_change_is_seen_on_an_open_page(tmp_path: Path, store: str) -> None:
    async def walk() -> None:
        async with shop_in_a_tab(url_of(store, tmp_path)) as (shop, one):
            await one.open(f"/job?id={shop.ids['ready']}")
            await one.sees("ready", ".head .badge")
            await shop.app.acancel(shop.ids["ready"])
            await one.sees("cancelled", ".head .badge")
            await one.open("/jobs?q=queue:reports")
            await one.sees("No job matches")
            await shop.app.tasks["reports.nightly"].aenqueue()
            await one.sees("reports.nightly", "tbody")

    chromium().run(walk())


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_jobs_are_found_explained_and_changed_together(tmp_path: Path, store: str) -> None:
    async def walk() -> None:
        async with shop_in_a_tab(url_of(store, tmp_path)) as (shop, one):
            send = shop.app.tasks["mail.send"]
            await shop.app.aenqueue_many(send.options(delay=600).bind(f"n{i}@example.com") for i in range(60))
            await one.open("/jobs?q=state:scheduled%20args.to:n*")
            await one.sees("60 jobs match")
            await one.page.locator("thead input").check()
            await one.sees("50 selected", ".selbar")
            await one.page.locator(".selbar [name=matching]").check()
            await one.page.click(".selbar >> text=Cancel")
            await one.sees("Cancel 60 jobs?")
            await one.page.click("main >> text=Cancel 60 jobs >> nth=-1")
            await one.sees("60 jobs cancelled", ".toast")
            assert (await shop.app.acount("cancelled args.to:n*")).total == 60
            await one.open(f"/job?id={shop.ids['waiting']}")
            await one.sees("It is behind job", ".explain")
            await one.sees("Its group has no room", ".gates")
            await one.sees("Enqueued in queue billing", ".events")
            await one.open(f"/job?id={shop.ids['dead']}")
            await one.sees("no retry is left", ".explain")
            await one.sees("gateway said no", ".events")

    chromium().run(walk())


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_a_queue_is_paused_and_a_dead_letter_revived(tmp_path: Path, store: str) -> None:
    async def walk() -> None:
        async with shop_in_a_tab(url_of(store, tmp_path)) as (shop, one):
            await one.open("/queue?name=billing")
            await one.page.fill("[name=reason]", "the gateway is down")
            await one.page.click("main >> text=Pause")
            await one.sees("the gateway is down", ".head")
            assert [queue.name for queue in await shop.app.queues.alist() if queue.pause] == ["billing"]
            await one.page.click("main >> text=Resume")
            await one.page.locator("main [name=reason]").wait_for()
            assert not [queue.name for queue in await shop.app.queues.alist() if queue.pause]
            await one.open(f"/dead?q=id:{shop.ids['dead']}")
            await one.page.locator("tbody input").check()
            await one.page.click(".selbar >> text=Revive")
            await one.page.locator(".toast").wait_for()
            assert (await shop.app.ajob(shop.ids["dead"])).state != "dead"
            assert (await shop.app.ahistory(shop.ids["dead"]))[-1].kind == "revive"

    chromium().run(walk())


def test_selected_jobs_are_moved_and_ranked_in_the_dialog(tmp_path: Path) -> None:
    async def walk() -> None:
        async with shop_in_a_tab(url_of("sqlite", tmp_path)) as (shop, one):
            await one.open(f"/jobs?q=id:{shop.ids['scheduled']}")
            await one.page.keyboard.press("j")
            await one.page.keyboard.press("x")
            await one.page.click(".selbar >> text=Change…")
            await one.page.locator("#change").wait_for()
            found = await one.axe("light") + await one.axe("dark")
            await one.page.fill("#change [name=queue]", "slow")
            await one.page.fill("#change [name=priority]", "9")
            await one.page.click("#change >> text=Move or reprioritize")
            await one.sees("1 job changed", ".toast")
            job = await shop.app.ajob(shop.ids["scheduled"])
            assert (job.queue, job.priority) == ("slow", 9)
            assert not found, found

    chromium().run(walk())


def test_a_queue_is_obliterated_only_if_its_name_is_typed(tmp_path: Path) -> None:
    async def walk() -> None:
        async with shop_in_a_tab(url_of("sqlite", tmp_path)) as (shop, one):
            await one.open("/queue?name=mail")
            await one.page.click("text=Obliterate…")
            await one.page.click("button >> text=Obliterate")  # the field is required: nothing is sent
            found = await one.axe("light") + await one.axe("dark")
            await one.page.fill("[name=confirm]", "mail")
            await one.page.keyboard.press("Enter")
            await one.sees("deleted", ".toast")
            assert "mail" not in await shop.app.acounts()
            assert not found, found

    chromium().run(walk())


def test_the_list_does_not_change_during_a_selection(tmp_path: Path) -> None:
    async def walk() -> None:
        async with shop_in_a_tab(url_of("sqlite", tmp_path)) as (shop, one):
            await one.open("/jobs?q=queue:billing")
            before = await one.page.locator("tbody tr").count()
            await one.page.locator("tbody input").nth(0).check()
            await one.page.locator("tbody input").nth(2).click(modifiers=["Shift"])
            assert await one.page.locator("tbody :checked").count() == 3
            await one.sees("3 selected", ".selbar")
            await shop.app.tasks["billing.charge"].aenqueue(9)
            await one.sees("while you select", ".top")
            assert await one.page.locator("tbody tr").count() == before
            await one.page.keyboard.press("Escape")
            await one.page.locator("tbody tr").nth(before).wait_for()

    chromium().run(walk())


def test_a_hidden_tab_asks_for_nothing_until_it_is_seen_again(tmp_path: Path) -> None:
    async def walk() -> None:
        async with shop_in_a_tab(url_of("sqlite", tmp_path)) as (shop, one):
            await one.open(f"/job?id={shop.ids['ready']}")
            await one.sees("Live", ".top")
            show = "hidden => {Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
            show += "document.dispatchEvent(new Event('visibilitychange'))}"
            await one.page.evaluate(show, True)
            await one.sees("Paused", ".top")
            await shop.app.acancel(shop.ids["ready"])
            await one.page.evaluate(show, False)
            await one.sees("cancelled", ".head .badge")

    chromium().run(walk())


def test_everything_works_without_a_script(tmp_path: Path) -> None:
    async def walk() -> None:
        async with (
            Shop(url_of("sqlite", tmp_path)).filled() as shop,
            served(create(shop.app)) as base,
            tab(base, java_script_enabled=False) as one,
        ):
            await one.open("/")
            await one.page.click("nav >> text=Jobs")
            await one.page.fill("[name=q]", f"id:{shop.ids['ready']}")
            await one.page.click("text=Search")
            await one.page.click("tbody a >> nth=0")
            await one.page.click(".head >> text=Cancel")
            await one.sees("cancelled", ".toast")
            await one.page.click(".seg >> text=Dark")
            assert await one.page.get_attribute("html", "data-theme") == "dark"
            assert (await shop.app.ajob(shop.ids["ready"])).state == "cancelled"

    chromium().run(walk())


def test_hostile_strings_are_text(tmp_path: Path) -> None:
    async def walk() -> None:
        async with shop_in_a_tab(url_of("sqlite", tmp_path)) as (shop, one):
            group = HOSTILE.partition("\x1b")[0]  # names have no control characters; U+202E is none
            named = await shop.app.tasks["mail.send"].options(group=group, key=group, delay=60).aenqueue(HOSTILE, "x")
            huge = await shop.app.tasks["mail.send"].options(delay=60).aenqueue("ann", LONG)
            await shop.app.apause(queue="billing", reason=HOSTILE, by=HOSTILE)
            paths = [*shop.lists(), f"/job?id={named.id}", f"/job?id={huge.id}", f"/job?id={shop.ids['hostile']}"]
            for path in paths:
                await one.page.goto(one.base + path, wait_until="load")
                assert await one.page.locator("img, main script").count() == 0, path
                assert "Holdfast" in await one.page.title(), path
                assert not await one.page.evaluate("/[\\u001b\\u202e]/.test(document.body.innerText)"), path
            await one.open(f"/job?id={named.id}")
            assert "<img src=x onerror=" in await one.text("aside")
            await one.open(f"/job?id={huge.id}")
            assert len(await one.page.content()) < 80_000
            assert "more characters" in await one.text("aside")
            one.wrong = [message for message in one.wrong if "400 (Bad Request)" not in message]

    chromium().run(walk())
