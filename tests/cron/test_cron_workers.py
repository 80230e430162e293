"""Workers that fire: several on one file, one that is far behind, one that drains."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import Holdfast, State
from holdfast.cron.entry import placed
from holdfast.records import Tick

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


def test_a_worker_that_has_much_to_catch_up_with_runs_jobs_meanwhile_and_stops_when_asked() -> None:
    async def main() -> None:
        app, ran = Holdfast("memory://"), asyncio.Event()

        @app.task(name="often")
        def often() -> None: ...

        @app.task(name="other")
        async def other() -> None:
            ran.set()

        app.cron(every=1, catch_up="all")(often)
        [wanted] = app._cron_entries()
        await app.aopen()
        behind = placed(wanted, None, await app._backend.clock() - 80_000)  # 800 writes of 100 ticks each
        await app._backend.tick(Tick(name="often", version=0, entry=behind))
        await other.using(priority=1).aenqueue()
        async with asyncio.timeout(60):
            async with app.worker():
                await ran.wait()
        entry = await app.cron.aget("often")
        assert entry.fired < 80_000
        await app.aclose()

    asyncio.run(main())


def test_a_drain_runs_all_that_was_due_when_it_began(tmp_path: Path) -> None:
    async def main() -> None:
        app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")

        @app.task(name="often")
        async def often() -> None: ...

        app.cron(every=1000, catch_up="all", window=1e6)(often)
        [wanted] = app._cron_entries()
        await app.aopen()
        behind = placed(wanted, None, await app._backend.clock() - 250_500)
        await app._backend.tick(Tick(name="often", version=0, entry=behind))
        assert (await app.awork(drain=True)).succeeded == 250
        await app.aclose()

    asyncio.run(main())
