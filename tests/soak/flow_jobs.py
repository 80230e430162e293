"""The tasks of a kill run of flows and batches, and its worker: `python -m tests.soak.flow_jobs URL`."""

from __future__ import annotations

import sys
import time

from holdfast import Bury, Context, Holdfast, chain, group_of
from holdfast.dependencies import ON_PARENT_FAILURE

PARTS = 10  # of a fan-in
LOADS = 4  # jobs of a batch, of which each adds one
LEASE_SECONDS = 2.0

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


UNIT = {  # jobs of one unit by task and final state
    ("part", "succeeded"): PARTS,
    ("total", "succeeded"): 1,
    ("last", "succeeded"): 1,
    ("load", "succeeded"): 2 * LOADS,
    ("holdfast.batch", "succeeded"): 1,
    ("holdfast.batch.open", "cancelled"): 1,
    ("callback", "succeeded"): 2,
    ("doomed", "dead"): 1,
    ("orphan", "dead"): 1,
    ("orphan", "cancelled"): 1,
    ("orphan", "succeeded"): 1,
}
UNIT_JOBS = sum(UNIT.values())


def enqueue_unit() -> None:
    """A fan-in, an open batch that grows from within, and a parent that dies with a child of each policy."""
    app.enqueue_flow(chain(group_of(*(part.bind(n) for n in range(PARTS)), then=total.bind()), last.bind()))
    calls = [callback.bind(which) for which in ("success", "failure", "finish")]
    with app.batch(on_success=calls[0], on_failure=calls[1], on_finish=calls[2]) as batch:
        batch.enqueue_many(load.bind(True) for _ in range(LOADS))
    death = doomed.bind()
    children = [orphan.options(after=[death], on_parent_failure=policy).bind() for policy in ON_PARENT_FAILURE]
    app.enqueue_many([death, *children])


def work(url: str) -> None:
    app.configure(url=url)
    app.work(lease=LEASE_SECONDS, slots=8)


if __name__ == "__main__":
    work(sys.argv[1])
