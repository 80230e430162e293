"""A real browser for the tests: Debian's chromium, driven by playwright, and dashboards served to it.

One browser and one event loop per test process, in a thread of their own, so that tests stay ordinary functions. Every
page collects what a user would call broken: messages of the console, uncaught errors, refusals of the content policy.
Nothing is downloaded: the browser is the machine's own, and axe comes with its package.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from importlib import resources
from typing import Any, Literal, TypeVar

import pytest
import uvicorn
from playwright.async_api import Browser, ConsoleMessage, Page, Playwright, async_playwright

T = TypeVar("T")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOOKS_MAX = 3
WAIT_MS = int(os.environ.get("HOLDFAST_TEST_BROWSER_MS", "60000"))  # for what must come: a bound, never a measure
NAMES = ("chromium", "chromium-browser", "google-chrome")
Theme = Literal["light", "dark"]
WIDE, PHONE = (1440, 900), (390, 844)


def program() -> str:
    """The browser's program. Skips where there is none, and fails instead where the run is to be complete."""
    found = os.environ.get("HOLDFAST_TEST_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        if os.environ.get("CI") or os.environ.get("HOLDFAST_TEST_STRICT"):
            raise RuntimeError("these tests need a browser: apt-get install chromium, or set HOLDFAST_TEST_BROWSER")
        pytest.skip("no chromium: apt-get install chromium")
    return found


@functools.cache
def axe_script() -> str:
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


COUNTED = """async () => {
  const text = await (await fetch(location.href)).text();
  const fresh = new DOMParser().parseFromString(text, "text/html");
  return [document, fresh].map((one) => [...one.querySelectorAll("#main *")].map((node) => node.nodeName).join(" "));
}"""


class Chromium:
    """The process's one browser, with the loop it lives on."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="browser", daemon=True)
        self._thread.start()
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def browser(self) -> Browser:
        if self._browser is None:
            self._playwright = await async_playwright().start()
            self._browser = await self._playwright.chromium.launch(executable_path=program(), args=FLAGS)
        return self._browser

    def close(self) -> None:
        async def end() -> None:
            if self._browser is not None:
                await self._browser.close()
            if self._playwright is not None:
                await self._playwright.stop()

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@functools.cache
def chromium() -> Chromium:
    program()
    made = Chromium()
    atexit.register(made.close)
    return made


@contextlib.asynccontextmanager
async def served(dashboard: Any) -> AsyncIterator[str]:
    """An ASGI app on a port of its own: its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(dashboard, log_level="warning", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()


class Tab:
    """One page and what went wrong on it."""

    def __init__(self, page: Page, base: str) -> None:
        self.page, self.base = page, base
        self.wrong: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.wrong.append(f"uncaught: {error}"))
        page.set_default_timeout(WAIT_MS)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type} at {self.page.url}: {message.text}")

    async def open(self, path: str) -> None:
        answer = await self.page.goto(self.base + path, wait_until="load")
        assert answer is not None and answer.status == 200, (path, answer and answer.status)

    async def text(self, selector: str = "main") -> str:
        return await self.page.inner_text(selector)

    async def sees(self, text: str, selector: str = "main") -> None:
        """Wait until the page says it."""
        await self.page.locator(selector).get_by_text(text).first.wait_for()

    async def updated(self, times: int) -> None:
        """Wait until the page was updated live so often. By a selector: the page's policy lets nobody evaluate text."""
        fewer = "".join(f":not([data-updates='{number}'])" for number in range(1, times))
        await self.page.locator(f"body[data-updates]{fewer}").wait_for(state="attached")

    async def differs(self) -> list[str]:
        """Whether the page, updated live, has become another than the one the server makes."""
        for update in range(1, LOOKS_MAX + 1):  # what changes between the two looks arrives with the next update
            await self.updated(update)
            counted = await self.page.evaluate(COUNTED)
            if counted[0] == counted[1]:
                return []
        return [f"{self.page.url}: {counted}"]

    async def axe(self, theme: Theme) -> list[str]:
        """What the accessibility checker finds in one theme."""
        await self.page.emulate_media(color_scheme=theme)
        if not await self.page.evaluate("typeof axe !== 'undefined'"):
            await self.page.evaluate(axe_script())
        found = await self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{theme} {self.page.url}: {one['id']}: {node['html'][:200]} ({node['failureSummary'][:300]})"
            for one in found["violations"]
            for node in one["nodes"]
        ]


@contextlib.asynccontextmanager
async def tab(base: str, *, size: tuple[int, int] = WIDE, **options: Any) -> AsyncIterator[Tab]:
    """A new page in a context of its own. On leaving, nothing may have gone wrong on it."""
    browser = await chromium().browser()
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce", **options
    )
    try:
        made = Tab(await context.new_page(), base)
        yield made
        assert not made.wrong, made.wrong
    finally:
        await context.close()
