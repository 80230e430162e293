"""Several workers on one SQLite file: what they fire together."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import Holdfast, State

WORKERS = 4
TICKS = 12


def make_app(url: str, enough: asyncio.Event) -> Holdfast:
    app = Holdfast(url)
    seen: list[str] = []

    @app.cron(every=0.1, catch_up="all")
    @app.task(name="often")
    def often() -> None:
        seen.append("")

    @app.on("enqueued")
    def count(event: object) -> None:
        seen.append("")
        if len(seen) >= TICKS:
            enough.set()

    return app


def test_workers_of_one_store_fire_each_tick_once(tmp_path: Path) -> None:
    async def main() -> None:
        enough = asyncio.Event()
        apps = [make_app(f"sqlite:///{tmp_path}/jobs.db", enough) for _ in range(WORKERS)]
        workers = [app.worker(lease=3) for app in apps]
        for worker in workers:
            await worker.__aenter__()
        await asyncio.wait_for(enough.wait(), 60)
        for worker in workers:
            await worker.__aexit__(None, None, None)
        app = apps[0]
        entry = await app.cron.aget("often")
        jobs = [job async for job in app.jobs()]
        due = sorted(round((job.due_at - entry.created_at).total_seconds(), 3) for job in jobs)
        assert due == [round(0.1 * count, 3) for count in range(1, len(jobs) + 1)]
        assert (entry.fired, entry.skipped) == (len(jobs), 0)
        assert {job.state for job in jobs} <= {State.SUCCEEDED, State.READY}
        assert (await app.aaudit()).violations == []
        for one in apps:
            await one.aclose()

    asyncio.run(main())
