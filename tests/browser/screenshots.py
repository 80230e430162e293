"""Pictures of every screen: `python -m tests.browser.screenshots FOLDER [PATH …]`, in both themes, wide and on a phone.

For the eyes of whoever changes the dashboard, and for the docs. The pictures are made, never committed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from pathlib import Path

from holdfast.dashboard import create
from tests.browser.chromium import PHONE, WIDE, Theme, chromium, served, tab
from tests.browser.shop import Shop

THEMES: tuple[Theme, ...] = ("light", "dark")
NAMES = ("ann", "bob", "cem", "dora", "eva", "finn")


async def busy(shop: Shop) -> None:
    """More jobs, so that lists look like lists."""
    random.seed(7)
    charge, send = shop.app.tasks["billing.charge"], shop.app.tasks["mail.send"]
    for number in range(14):
        await charge.aenqueue(40 + number, random.choice(["card declined", "timeout after 30 s", "", ""]))
    await shop.app.awork(queues="billing", drain=True)
    for number in range(30):
        await send.using(delay=random.choice([30, 600, 4000])).aenqueue(f"{random.choice(NAMES)}{number}@example.com")
    for _ in range(9):
        await charge.aenqueue(random.choice([3, 3, 4821]))


def name_of(path: str) -> str:
    return path.strip("/").partition("?")[0] or "overview"


async def draw(folder: Path, wanted: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        shop = Shop(f"sqlite:///{place}/shop.db")
        async with shop.filled(), served(create(shop.app)) as base:
            await busy(shop)
            paths = {name_of(path): path for path in reversed(shop.lists()) if "nonsense" not in path}
            paths |= {"counted": "/jobs?q=task:billing.*&by=error"}
            paths |= {f"job-{state}": f"/job?id={id}" for state, id in shop.ids.items()}
            for size in (WIDE, PHONE):
                async with tab(base, size=size) as one:
                    for name, path in paths.items():
                        if wanted and name not in wanted:
                            continue
                        await one.open(path)
                        for theme in THEMES:
                            await one.page.emulate_media(color_scheme=theme)
                            await one.page.screenshot(path=folder / f"{name}-{size[0]}-{theme}.png", full_page=True)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    chromium().run(draw(folder, sys.argv[2:]))
    asyncio.set_event_loop(None)


if __name__ == "__main__":
    main()
