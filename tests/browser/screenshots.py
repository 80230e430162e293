"""Pictures of every screen: `python -m tests.browser.screenshots FOLDER [PATH …]`, in both themes, wide and on a phone.

For people who change the dashboard, and for the docs. The pictures are never committed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from holdfast.backends.contract import Backend
from holdfast.dashboard import create
from holdfast.rollups import BUCKETS, Recording, Rollup, bucket_of
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
        await send.options(delay=random.choice([30, 600, 4000])).aenqueue(f"{random.choice(NAMES)}{number}@example.com")
    for _ in range(9):
        job = await charge.aenqueue(random.choice([3, 3, 4821]))
        shop.ids[job.state.value] = job.id  # those of before have ended


async def hour_before(shop: Shop) -> None:
    """An hour of numbers: a busy shop with a bad quarter of an hour, in the store's own roll-ups."""
    now = (await shop.app.anow()).timestamp()
    tasks = {"billing.charge": ("billing", 40, 0.4), "mail.send": ("mail", 90, 0.05), "pdf.render": ("pdf", 6, 9.0)}
    for minute in range(60, 0, -1):
        bad = 18 > minute > 4
        rollups = []
        for task, (queue, per_minute, seconds) in tasks.items():
            count = int(per_minute * random.uniform(0.8, 1.2) * (0.6 if bad else 1))
            waits, runs = [0] * BUCKETS, [0] * BUCKETS
            for _ in range(count):
                waits[bucket_of(random.lognormvariate(-3 + (3 if bad else 0), 0.8))] += 1
                runs[bucket_of(seconds * random.lognormvariate(0, 0.6))] += 1
            done = Rollup(outcome="succeeded", count=count, queue=queue, task=task)
            rollups.append(replace(done, waits=tuple(waits), runs=tuple(runs)))
            failed = random.randint(4, 14) if bad and queue == "billing" else random.randint(0, 2)
            if failed:
                rollups.append(Rollup(outcome="failed", count=failed, queue=queue, task=task))
            if bad and queue == "billing":
                rollups.append(Rollup(outcome="dead", count=random.randint(1, 5), queue=queue, task=task))
        recording = Recording(rollups=tuple(rollups))
        await shop.app._ado(partial(_record, recording, now - 60 * minute))


async def _record(recording: Recording, now: float, backend: Backend) -> None:
    await backend.record(recording, now=now)


def name_of(path: str) -> str:
    return path.strip("/").partition("?")[0] or "overview"


async def draw(folder: Path, wanted: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        shop = Shop(f"sqlite:///{place}/shop.db")
        async with shop.filled(), served(create(shop.app)) as base:
            await hour_before(shop)
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
