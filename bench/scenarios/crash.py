"""kill -9 during a long job: how long until its handler starts again.

Three cases: a runner is killed; the whole worker is killed while another one is idle (which must wait for the lease,
LEASE_SECONDS here, 30 by default); the whole worker is killed and a new one is started at once. Peers have their
default settings and, as that takes minutes, are measured only if named.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial

from .. import processes
from ..driving import LOOK_SECONDS, Contender, Failed, Turn, ours, turn
from ..scenario import Case, Scenario, Setting

LEASE_SECONDS = 10
WAIT_SECONDS_MAX = 45.0
PEER_SECONDS_MAX = 90.0


def _starts(one: Turn) -> list[tuple[float, int]]:
    path = one.folder / "events"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(float(at), int(pid)) for what, at, pid in lines if what == "start"]


def _started(one: Turn, times: int, seconds_max: float) -> tuple[float, int]:
    deadline = time.monotonic() + seconds_max
    while len(found := _starts(one)) < times:
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds_max:.0f} s")
        time.sleep(LOOK_SECONDS)
    return found[times - 1]


def _working(one: Turn, workers: int) -> None:
    """Wait until this many of our workers are ready: a later one would recover the killed one's jobs."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while one.said().count(" started: ") < workers:
        if time.monotonic() > deadline:
            raise Failed(f"no {workers} workers within {WAIT_SECONDS_MAX:.0f} s")
        time.sleep(LOOK_SECONDS)


def _killed(process: subprocess.Popen[bytes], runner: int, how: str) -> float:
    time.sleep(1.0)
    at = time.monotonic()
    if how == "runner":
        os.kill(runner, signal.SIGKILL)
    else:
        processes.kill(process)
    return at


def measured(setting: Setting, contender: Contender, how: str) -> dict[str, float]:
    with setting.place.area() as area, turn(contender, area) as one:
        first = one.start()
        one.call("crash")
        _, runner = _started(one, 1, WAIT_SECONDS_MAX)
        if how == "beside":
            one.start()
            _working(one, 2)
        at = _killed(first, runner, how)
        if how == "anew":
            one.start()
        seconds_max = PEER_SECONDS_MAX if contender.kind == "peer" else WAIT_SECONDS_MAX
        try:
            again, _ = _started(one, 2, seconds_max)
        finally:
            one.kill()  # the rest of the job does not matter
        return {"seconds": again - at}


@contextlib.contextmanager
def cases(setting: Setting) -> Iterator[list[Case]]:
    contender = ours(HOLDFAST_LEASE=str(LEASE_SECONDS), BENCH_SLOTS="10")
    kinds = {
        "a runner killed": "runner",
        "the whole worker killed, a new one started": "anew",
        f"the whole worker killed, another beside it, lease {LEASE_SECONDS} s": "beside",
    }
    found = [
        Case(f"holdfast, {name}", "ours", partial(measured, setting, contender, how)) for name, how in kinds.items()
    ]
    for one in setting.peers() if setting.against != "best" else ():
        measure = partial(measured, setting, one, "anew")
        found.append(Case(f"{one.name}, the whole worker killed, a new one started", "peer", measure, rounds_max=1))
    yield found


SCENARIO = Scenario(
    "crash", "Running again after kill -9", "seconds", "s", cases, ("sqlite", "postgres", "redis"),
    more_is_better=False, weight=75.0,
)  # fmt: skip
