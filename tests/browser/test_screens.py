"""Every screen in a real browser: no error, no finding of axe in either theme, and it fits a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.dashboard import create
from tests.browser.chromium import PHONE, Tab, chromium, served, tab
from tests.browser.shop import PHRASE, Shop
from tests.turns import TURNS

pytestmark = pytest.mark.timeout(600)  # a busy machine is no defect
REFUSED = "400 (Bad Request)"  # a query that the page refuses


async def too_wide(phone: Tab, path: str) -> list[str]:
    """Whether a screen must be scrolled sideways on a phone."""
    await phone.page.goto(phone.base + path, wait_until="load")
    over = await phone.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return [f"{path} is {over} px too wide for a phone"] * (over > 0)


def test_lists_of_jobs_show_all_of_a_row_on_a_phone(tmp_path: Path) -> None:
    over = "[...document.querySelectorAll('.table-wrap')].map((one) => one.scrollWidth - one.clientWidth)"

    async def walk() -> None:
        async with (
            Shop(f"sqlite:///{tmp_path / 'jobs.db'}").filled() as shop,
            served(create(shop.app)) as base,
            tab(base, size=PHONE) as phone,
        ):
            await shop.app.tasks["mail.send"].options(delay=60).aenqueue("somebody.with.a.long.name@example.com")
            for path in ("/jobs", "/jobs?q=state:dead", "/dead", "/failures"):
                await phone.open(path)
                assert await phone.page.evaluate(over) == [0], path

    chromium().run(walk())


@pytest.mark.parametrize("part", range(TURNS))
def test_every_screen_is_clean_in_both_themes_and_fits_a_phone(tmp_path: Path, part: int) -> None:
    async def walk() -> None:
        found: list[str] = []
        async with (
            Shop(f"sqlite:///{tmp_path / 'jobs.db'}").filled() as shop,
            served(create(shop.app)) as base,
            tab(base) as wide,
            tab(base, size=PHONE) as phone,
        ):
            for path in shop.screens()[part::TURNS]:
                await wide.page.goto(base + path, wait_until="load")
                found += await wide.axe("light") + await wide.axe("dark") + await wide.differs()
                found += await too_wide(phone, path)
            found += await phone.axe("dark")
            for one in (wide, phone):
                one.wrong = [message for message in one.wrong if REFUSED not in message]
        assert not found, "\n".join(found)

    chromium().run(walk())


def test_what_opens_over_a_page_is_clean_too(tmp_path: Path) -> None:
    async def walk() -> None:
        found: list[str] = []
        async with (
            Shop(f"sqlite:///{tmp_path / 'jobs.db'}").filled() as shop,
            served(create(shop.app)) as base,
            tab(base) as wide,
        ):
            await wide.open("/jobs")
            await wide.page.keyboard.press("/")
            await wide.page.locator(".query .pop").wait_for()
            found += await wide.axe("light")
            await wide.page.keyboard.press("Escape")
            await wide.page.keyboard.press("j")
            await wide.page.keyboard.press("x")
            await wide.page.locator(".selbar").wait_for()
            found += await wide.axe("dark")
            await wide.page.keyboard.press("Escape")
            await wide.page.keyboard.press("?")
            await wide.page.locator("#keys").wait_for()
            found += await wide.axe("light")
        assert not found, "\n".join(found)

    chromium().run(walk())


def test_the_pages_of_an_empty_store_the_login_and_an_error_are_clean(tmp_path: Path) -> None:
    async def walk() -> None:
        app = Holdfast(f"sqlite:///{tmp_path / 'jobs.db'}")
        found: list[str] = []
        async with served(create(app)) as base, tab(base) as wide, tab(base, size=PHONE) as phone:
            for path in ("/", "/jobs", "/failures", "/dead", "/queues", "/groups", "/tasks", "/cron", "/workers"):
                await wide.open(path)
                found += await wide.axe("light") + await wide.axe("dark")
                found += await too_wide(phone, path)
            await wide.page.goto(f"{base}/nowhere")
            found += await wide.axe("dark")
            wide.wrong = [one for one in wide.wrong if "404 (Not Found)" not in one]
        async with served(create(app, password=PHRASE)) as base, tab(base) as wide:
            await wide.open("/login")
            found += await wide.axe("light") + await wide.axe("dark")
            await wide.page.fill("[name=password]", PHRASE)
            await wide.page.keyboard.press("Enter")
            await wide.sees("Nothing here yet")
        await app.aclose()
        assert not found, "\n".join(found)

    chromium().run(walk())
