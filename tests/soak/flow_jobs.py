"""The tasks of a kill run of flows and batches, and its worker: `python -m tests.soak.flow_jobs URL`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast import Bury, Context, Holdfast, RetryPolicy, chain, group_of
from holdfast.dependencies import ON_PARENT_FAILURE

PARTS = 10  # of a fan-in
LOADS = 4  # jobs of a batch, of which each adds one
LEASE_SECONDS = 2.0
STEPS = ("reserve", "charge", "ship")
JOURNAL = "HOLDFAST_FLOW_JOURNAL"  # the environment's name for the file in which steps note that they were called

app = Holdfast()
app.queue("default", shards=3)  # on a cluster; other stores ignore it


@app.task(name="part", max_stalls=1000)
def part(n: int) -> int:
    time.sleep(0.02)
    return n


@app.task(name="total", max_stalls=1000)
def total(ctx: Context) -> int:
    return sum(ctx.parents.values())


@app.task(name="last", max_stalls=1000)
async def last(ctx: Context) -> int:
    return sum(ctx.parents.values())


@app.task(name="load", max_stalls=1000)
def load(ctx: Context, adds: bool) -> None:
    time.sleep(0.01)
    if adds:
        assert ctx.batch is not None
        ctx.enqueue(ctx.batch.add(load.bind(False)))


@app.task(name="doomed", max_stalls=1000, retry=0)
def doomed() -> None:
    raise Bury("as planned")


@app.task(name="orphan", max_stalls=1000)
def orphan() -> None: ...


@app.task(name="callback", max_stalls=1000)
def callback(ctx: Context, which: str) -> int:
    assert ctx.batch is not None
    return ctx.batch.status().total


@app.task(name="order", max_stalls=1000, retry=RetryPolicy.fixed(0.1, limit=1000))
def order(ctx: Context) -> list[str]:
    return [ctx.step(name, _noted, ctx.id, name) for name in STEPS]


def _noted(job: str, name: str) -> str:
    """The effect of a step: a line in the journal, whole or not at all."""
    file = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{job} {name}\n".encode())
    finally:
        os.close(file)
    return name


def journal() -> dict[str, list[str]]:
    """The steps of each job, in the order in which they were called."""
    found: dict[str, list[str]] = {}
    for line in Path(os.environ[JOURNAL]).read_text(encoding="utf-8").splitlines():
        job, name = line.split()
        found.setdefault(job, []).append(name)
    return found


def is_in_order(called: Sequence[str]) -> bool:
    """Whether every step was called, and none again once a later one was: its result was stored by then."""
    places = [STEPS.index(name) for name in called]
    return places == sorted(places) and set(called) == set(STEPS)


UNIT = {  # jobs of one unit by task and final state
    ("part", "succeeded"): PARTS,
    ("total", "succeeded"): 1,
    ("last", "succeeded"): 1,
    ("load", "succeeded"): 2 * LOADS,
    ("holdfast.batch", "succeeded"): 1,
    ("holdfast.batch.open", "cancelled"): 1,
    ("callback", "succeeded"): 2,
    ("order", "succeeded"): 1,
    ("doomed", "dead"): 1,
    ("orphan", "dead"): 1,
    ("orphan", "cancelled"): 1,
    ("orphan", "succeeded"): 1,
}
UNIT_JOBS = sum(UNIT.values())


def enqueue_unit() -> None:
    """A fan-in, an open batch that grows from within, a job of several steps, and a parent that dies with a child of
    each policy."""
    app.enqueue_flow(chain(group_of(*(part.bind(n) for n in range(PARTS)), then=total.bind()), last.bind()))
    calls = [callback.bind(which) for which in ("success", "failure", "finish")]
    with app.batch(on_success=calls[0], on_failure=calls[1], on_finish=calls[2]) as batch:
        batch.enqueue_many(load.bind(True) for _ in range(LOADS))
    death = doomed.bind()
    children = [orphan.options(after=[death], on_parent_failure=policy).bind() for policy in ON_PARENT_FAILURE]
    app.enqueue_many([order.bind(), death, *children])


def work(url: str) -> None:
    app.configure(url=url)
    app.work(lease=LEASE_SECONDS, slots=8)


if __name__ == "__main__":
    work(sys.argv[1])
