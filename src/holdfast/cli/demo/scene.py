"""The demo's own program: three tasks and an app, as a user would write them.

Imported by the demo's two worker processes and by the stage that enqueues. HOLDFAST_URL names the store; each handler
writes to the journal beside it, so that the verdict can be checked against what really ran.
"""

from __future__ import annotations

import asyncio
import os

from holdfast import Context, Holdfast, RetryPolicy, TaskRouter

from .journal import Journal

JOURNAL_VARIABLE = "HOLDFAST_DEMO_JOURNAL"
QUEUE = "harbour"

tasks = TaskRouter()


def _journal() -> Journal:
    return Journal(os.environ[JOURNAL_VARIABLE])


@tasks.task(name="handle", queue=QUEUE, group=lambda ship: ship)
async def handle(ctx: Context, ship: str, step: str, seconds: float) -> str:
    """One step of handling one ship; the ship is the group, so its steps keep their order."""
    journal = _journal()
    journal.write("start", job=ctx.id, ship=ship, step=step, fence=ctx.fence, attempt=ctx.attempt)
    await asyncio.sleep(seconds)
    journal.write("end", job=ctx.id, ship=ship, step=step, fence=ctx.fence, attempt=ctx.attempt)
    return f"{ship}: {step} done"


@tasks.task(name="roll_call", queue=QUEUE)
async def roll_call(ctx: Context) -> str:
    """Enqueued several times by the same bound call; must run once."""
    journal = _journal()
    journal.write("start", job=ctx.id, step="roll call", fence=ctx.fence, attempt=ctx.attempt)
    journal.write("end", job=ctx.id, step="roll call", fence=ctx.fence, attempt=ctx.attempt)
    return "all aboard"


@tasks.task(name="read_chart", queue=QUEUE, retry=RetryPolicy.fixed(0.6, limit=2))
async def read_chart(ctx: Context, chart: str) -> str:
    """The poison job: fails however often it is tried."""
    journal = _journal()
    journal.write("start", job=ctx.id, step="chart", fence=ctx.fence, attempt=ctx.attempt)
    await asyncio.sleep(0.3)
    journal.write("end", job=ctx.id, step="chart", fence=ctx.fence, attempt=ctx.attempt)
    raise ValueError(f"{chart} is soaked and cannot be read")


def harbour(url: str | None = None) -> Holdfast:
    """An app with these tasks."""
    made = Holdfast(url)
    made.queue(QUEUE, group_order="strict")
    made.include(tasks)
    return made


app = harbour()
