"""The soak's app: handlers that prove by locks of the kernel that nobody runs beside them, and journal what they did.

Imported by real workers and by the soak's producer; HOLDFAST_URL names the store, SOAK_FOLDER where locks and journals
lie. A lock of `flock` ends with its process, however that ends, so a lock that is taken means that its holder lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast import Call, Context, Holdfast, RetryPolicy

FOLDER = Path(os.environ.get("SOAK_FOLDER", "."))
PAIR_LIMIT = 2

app = Holdfast()
app.queue("strict", group_limit=1, group_order="strict")
app.queue("pairs", group_limit=PAIR_LIMIT, group_order="relaxed")
app.queue("chain", group_limit=1, group_order="strict", group_prefetch=16)
AGAIN = RetryPolicy.fixed(0.2, limit=None)


def note(**facts: object) -> None:
    """One line in this process's journal; a single write, so that a kill cuts it off whole or not at all."""
    line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), **facts}) + "\n"
    journal = os.open(FOLDER / "journals" / str(os.getpid()), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(journal, line.encode())
    finally:
        os.close(journal)


def _lock(stack: contextlib.ExitStack, names: list[str]) -> bool:
    """Take the first of these locks that is free and keep it until the stack ends.

    A holder that has been killed runs no more code, but on a busy machine the kernel may take seconds to end it and to
    free its lock: such a lock counts as free.
    """
    for name in names:
        held = os.open(FOLDER / "locks" / name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(held, 20, 0)
            os.close(held)
            if is_dying(holder.decode()):
                return True
        else:
            os.pwrite(held, f"{os.getpid():<20}".encode(), 0)
            stack.callback(os.close, held)
            return True
    return False


def is_dying(pid: str) -> bool:
    """Whether a process is gone, or will be before it runs another instruction: SIGKILL is pending."""
    try:
        status = Path(f"/proc/{int(pid)}/status").read_text()
    except (OSError, ValueError):
        return bool(pid.strip())
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    pending = int(facts["SigPnd"], 16) | int(facts["ShdPnd"], 16)
    return facts["State"][0] in "ZX" or bool(pending & 1 << signal.SIGKILL - 1)


@contextlib.contextmanager
def alone(ctx: Context, kind: str, number: int) -> Iterator[None]:
    """Journal the run; report if this job also runs elsewhere, or more of its group than its limit allows."""
    with contextlib.ExitStack() as stack:
        if not _lock(stack, [f"job-{ctx.id}"]):
            note(what="overlap", kind=kind, job=ctx.id, fence=ctx.fence)
        if ctx.group is not None:
            places = PAIR_LIMIT if kind == "pairs" else 1
            if not _lock(stack, [f"group-{kind}-{ctx.group}-{place}" for place in range(places)]):
                note(what="overlap", kind=kind, job=ctx.id, fence=ctx.fence, group=ctx.group)
        note(what="start", kind=kind, job=ctx.id, fence=ctx.fence, group=ctx.group, number=number)
        yield
        note(what="end", kind=kind, job=ctx.id, fence=ctx.fence)


@app.task(name="plain", retry=AGAIN, max_stalls=1000)
async def plain(ctx: Context, number: int, padding: str = "") -> int:
    with alone(ctx, "plain", number):
        await asyncio.sleep(random.uniform(0.0, 0.3))
    return number


@app.task(name="thread", retry=AGAIN, max_stalls=1000)
def thread(ctx: Context, number: int, padding: str = "") -> int:
    with alone(ctx, "thread", number):
        time.sleep(random.uniform(0.0, 0.3))
        if random.random() < 0.05:
            raise RuntimeError("one of the failures that a real handler has")
    return number


@app.task(name="strict", queue="strict", retry=AGAIN, max_stalls=1000)
async def strict(ctx: Context, number: int, padding: str = "") -> None:
    with alone(ctx, "strict", number):
        await asyncio.sleep(random.uniform(0.0, 0.2))


@app.task(name="pairs", queue="pairs", retry=AGAIN, max_stalls=1000)
def pairs(ctx: Context, number: int, padding: str = "") -> None:
    with alone(ctx, "pairs", number):
        time.sleep(random.uniform(0.0, 0.3))


@app.task(name="once", retry=0, max_stalls=0)
async def once(ctx: Context, number: int, padding: str = "") -> None:
    """Must start at most once, whatever happens."""
    with alone(ctx, "once", number):
        await asyncio.sleep(random.uniform(0.0, 1.0))


# Short jobs, which come in bursts: claimed ahead, in chains, in two halves, or as batches.


def _falters() -> None:
    if random.random() < 0.03:
        raise RuntimeError("one of the failures that a real handler has")


@app.task(name="short", retry=AGAIN, max_stalls=1000)
async def short(ctx: Context, number: int, padding: str = "") -> None:
    with alone(ctx, "short", number):
        _falters()


@app.task(name="brief", retry=AGAIN, max_stalls=1000)
def brief(ctx: Context, number: int, padding: str = "") -> None:
    with alone(ctx, "brief", number):
        time.sleep(random.choice([0.0, 0.0, 0.002, 0.01]))


@app.task(name="chain", queue="chain", retry=AGAIN, max_stalls=1000)
def chain(ctx: Context, number: int, padding: str = "") -> None:
    with alone(ctx, "chain", number):
        _falters()
        time.sleep(random.choice([0.0, 0.0, 0.002, 0.05]))


@app.task(name="link", queue="chain", retry=AGAIN, max_stalls=1000)
async def link(ctx: Context, number: int, padding: str = "") -> None:
    with alone(ctx, "chain", number):
        _falters()


@app.task(name="gathered", batch=10, batch_within=0.1, retry=AGAIN, max_stalls=1000)
def gathered(calls: list[Call[dict[str, object]]]) -> None:
    with contextlib.ExitStack() as stack:
        for call in calls:
            stack.enter_context(alone(call, "gathered", 0))
        _falters()


TASKS = {"plain": plain, "thread": thread, "strict": strict, "pairs": pairs, "once": once}
BURSTS = {"short": short, "brief": brief, "chain": chain, "link": link, "gathered": gathered}
BURST_MAX = 60
