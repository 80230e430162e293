"""Tasks with limits, rates, keys and cron entries, and the processes that run, push and schedule them.

python flow_app.py URL FOLDER: each line of the input asks for one process, as JSON: {"run": NAME, …its options}. It is
forked, so that nothing has to be imported again and a kill costs little; the line of output is its pid. All of them are
killed when the input ends. What they have to say goes into FOLDER/journal, one line of JSON at a time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import BackendUnavailable, BoundCall, Context, Holdfast, OutcomeUnknown, RetryPolicy
from holdfast.backends.contract import Backend
from holdfast.records import Tick, Ticked
from holdfast.worker.embedded import EmbeddedWorker

RATE_COUNT, GROUP_RATE_COUNT, RATE_SECONDS = 40, 20, 2.0
LIMIT = 3
THROTTLE_SECONDS, WAIT_SECONDS, WAIT_MAX_SECONDS = 0.4, 0.3, 0.8
KEYED: dict[str, Any] = {"retry": RetryPolicy.fixed(0.05, limit=5), "max_stalls": 100}

url, folder = sys.argv[1:3]


def clock_of_tests() -> float:
    since, base, pace, end = json.loads(Path(f"{folder}/clock").read_text())
    return float(min(base + pace * (time.monotonic() - since), end))


class Timed:
    """A backend whose clock, as cron sees it, is the one in FOLDER/clock; and whose caller may die at one of its ticks.

    That clock lies in the past, so that whatever is due by it is due by the store's own.
    """

    def __init__(self, backend: Backend, die_at: int, die: str) -> None:
        self._backend, self._die_at, self._die, self._ticks = backend, die_at, die, 0

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._backend, verb)

    async def clock(self) -> float:
        return clock_of_tests()

    async def tick(self, tick: Tick) -> Ticked:
        self._ticks += bool(tick.jobs)
        dying = bool(tick.jobs) and self._ticks == self._die_at
        if dying and self._die == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await self._backend.tick(tick, now=clock_of_tests())
        if dying:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


class FlowApp(Holdfast):
    """The app; with `timed` set, its workers see the clock of the tests."""

    timed: tuple[int, str] | None = None

    def _open_backend(self) -> Any:
        return super()._open_backend() if self.timed is None else Timed(super()._open_backend(), *self.timed)


app = FlowApp(url)
app.queue("rated", rate=f"{RATE_COUNT}/{RATE_SECONDS:g}s")
app.queue("rated_groups", group_limit=8, group_order="relaxed", group_rate=f"{GROUP_RATE_COUNT}/{RATE_SECONDS:g}s")
app.queue("narrow", limit=LIMIT)


def note(what: str, **facts: object) -> None:
    line = json.dumps({"what": what, "at": time.monotonic(), "pid": os.getpid(), **facts}) + "\n"
    fd = os.open(f"{folder}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


# ---------------------------------------------------------------------- tasks


def hold(ctx: Context, label: str, n: int, seconds: float, until: str | None) -> int:
    """Run for this long and then, if there is an `until`, until the file of that name appears in the folder."""
    facts = {"job": ctx.id, "label": label, "n": n, "fence": ctx.fence}
    note("start", **facts)
    end = time.monotonic() + seconds
    while time.monotonic() < end or (until is not None and not os.path.exists(f"{folder}/{until}")):
        note("going on", **facts)
        time.sleep(0.01)
    note("end", **facts)
    return n


@app.task(name="plain", max_stalls=100)
def plain(ctx: Context, label: str, n: int, seconds: float = 0.02, until: str | None = None) -> int:
    return hold(ctx, label, n, seconds, until)


@app.task(name="rated_task", max_stalls=100, rate=f"{RATE_COUNT}/{RATE_SECONDS:g}s")
def rated_task(ctx: Context, label: str, n: int, seconds: float = 0.02, until: str | None = None) -> int:
    return hold(ctx, label, n, seconds, until)


@app.task(name="scarce", max_stalls=100, limit=LIMIT)
def scarce(ctx: Context, label: str, n: int, seconds: float = 0.02, until: str | None = None) -> int:
    return hold(ctx, label, n, seconds, until)


@app.task(name="ticked", max_stalls=100)
async def ticked(by: str) -> str:
    return by


def answer(ctx: Context, label: str, by: str, n: int) -> None:
    """A keyed job: it takes a moment, the first of all until its process is killed. Every seventh fails at first."""
    facts = {"job": ctx.id, "label": label, "by": by, "n": n, "fence": ctx.fence}
    note("start", **facts)
    time.sleep(0.03)
    while by == "the first" and not os.path.exists(f"{folder}/killed"):
        time.sleep(0.01)
    note("end", **facts)
    if n % 7 == 0 and ctx.failures == 0:
        raise RuntimeError("once")


def whose(label: str) -> str:
    return label


@app.task(name="throttle", queue="keyed", key=whose, on_conflict="throttle", window=THROTTLE_SECONDS, **KEYED)
def throttle(ctx: Context, label: str, by: str, n: int) -> None:
    answer(ctx, label, by, n)


@app.task(
    name="debounce",
    queue="keyed",
    key=whose,
    on_conflict="debounce",
    wait=WAIT_SECONDS,
    wait_max=WAIT_MAX_SECONDS,
    **KEYED,
)
def debounce(ctx: Context, label: str, by: str, n: int) -> None:
    answer(ctx, label, by, n)


@app.task(name="keep_last", queue="keyed", key=whose, on_conflict="keep_last", **KEYED)
def keep_last(ctx: Context, label: str, by: str, n: int) -> None:
    answer(ctx, label, by, n)


# ---------------------------------------------------------------------- processes


def work(**options: Any) -> None:
    app.work(**{"lease": 6.0, "slots": 4, "poll_every": 0.2, **options})


def push(call: BoundCall[Any], **facts: object) -> None:
    """Enqueue and note what came of it, with the moments between which the store must have done it."""
    begun = {"began": time.monotonic(), "began_wall": time.time()}
    while True:
        try:
            job = app.enqueue(call)
            break
        except (OutcomeUnknown, BackendUnavailable):
            continue
    ended = {"ended": time.monotonic(), "ended_wall": time.time()}
    told = {"job": job.id, "call": call.id, "created": job.created, "replaced": job.replaced}
    note("push", **facts, **begun, **ended, **told)


def produce(by: str, seconds: float, lull: float, seed: int) -> None:
    """Push every task under two keys: one all the time, one with lulls that all producers have together."""
    chance = random.Random(seed)
    app.open()
    note("open", by=by)
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.01)
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        n += 1
        busy = int(time.monotonic() / lull) % 2 == 0
        label = "steady" if not busy or chance.random() < 0.5 else "in bursts"
        task = chance.choice((throttle, debounce, keep_last))
        push(task.bind(label, by, n), task=task.name, label=label, by=by, n=n)
        time.sleep(chance.uniform(0.0, 0.02))
    note("produced", by=by)


def push_each(by: str) -> None:
    """One push of every task under every key, when nobody else pushes."""
    for task in (throttle, debounce, keep_last):
        for label in ("steady", "in bursts"):
            push(task.bind(label, by, 1), task=task.name, label=label, by=by, n=1)
    note("produced", by=by)


def schedule(entries: list[dict[str, Any]], by: str, die_at: int = 0, die: str = "", **options: Any) -> None:
    """A worker that declares cron entries and fires what is due by the clock of the tests."""
    app.timed = (die_at, die)
    for entry in entries:
        settings = dict(entry)
        cron = settings.pop("cron", None)
        app.cron(cron, args={"by": by}, **settings)(ticked)
    app.work(["default"], **{"lease": 10.0, "slots": 4, "poll_every": 0.5, **options})


RUNS: dict[str, Callable[..., None]] = {"work": work, "produce": produce, "push_each": push_each, "schedule": schedule}


def run_in_child(run: str, options: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.close(0)
    os.dup2(2, 1)
    code = 1
    try:
        RUNS[run](**options)
        code = 0
    except BaseException:
        note("crashed", trace=traceback.format_exc())
        traceback.print_exc()
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to wait for them
    # All that the forked ones need is imported, nothing is opened.
    assert EmbeddedWorker.__module__ and app._open_backend()
    started: list[int] = []
    for line in sys.stdin:
        asked = json.loads(line)
        started.append(run_in_child(asked.pop("run"), asked))
        print(started[-1], flush=True)
    for pid in started:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
