"""The demo's own program: an app with three tasks, as a user would write it.

Imported by the demo's two worker processes and by the stage that enqueues. The store is the one HOLDFAST_URL names;
each handler writes to the journal beside it, so that the verdict can be checked against what really ran.
"""

from __future__ import annotations

import asyncio
import os

from holdfast import Context, Holdfast, RetryPolicy

from .journal import Journal

JOURNAL_VARIABLE = "HOLDFAST_DEMO_JOURNAL"

app = Holdfast()
app.queue("harbour", group_limit=1, group_order="strict")


def _journal() -> Journal:
    return Journal(os.environ[JOURNAL_VARIABLE])


@app.task(name="handle", queue="harbour", group=lambda ship: ship)
async def handle(ctx: Context, ship: str, step: str, seconds: float) -> str:
    """One step of handling one ship; the ship is the group, so its steps keep their order."""
    journal = _journal()
    journal.write("start", job=ctx.id, ship=ship, step=step, fence=ctx.fence, attempt=ctx.attempt)
    await asyncio.sleep(seconds)
    journal.write("end", job=ctx.id, ship=ship, step=step, fence=ctx.fence, attempt=ctx.attempt)
    return f"{ship}: {step} done"


@app.task(name="roll_call", queue="harbour")
async def roll_call(ctx: Context) -> str:
    """Enqueued several times by the same bound call; must run once."""
    journal = _journal()
    journal.write("start", job=ctx.id, step="roll call", fence=ctx.fence, attempt=ctx.attempt)
    journal.write("end", job=ctx.id, step="roll call", fence=ctx.fence, attempt=ctx.attempt)
    return "all aboard"


@app.task(name="read_chart", queue="harbour", retry=RetryPolicy.fixed(0.4, limit=2))
async def read_chart(ctx: Context, chart: str) -> str:
    """The poison: fails however often it is tried."""
    journal = _journal()
    journal.write("start", job=ctx.id, step="chart", fence=ctx.fence, attempt=ctx.attempt)
    await asyncio.sleep(0.2)
    journal.write("end", job=ctx.id, step="chart", fence=ctx.fence, attempt=ctx.attempt)
    raise ValueError(f"{chart} is soaked and cannot be read")
