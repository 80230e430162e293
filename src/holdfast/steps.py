"""What a job keeps between its attempts, as it crosses the backend contract: steps, sleeps, signals, its state.

Called by backends, the engine and the public API, like records.py. Holds no behaviour and never does I/O.
step_replay.py compares these with what a handler does.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

# A version and the state have no place in the handler's order; a signal comes from outside.
StepKind = Literal["signal", "sleep", "state", "step", "version", "wait"]

STEP_KINDS: tuple[StepKind, ...] = ("signal", "sleep", "state", "step", "version", "wait")

STEPS_MAX = 1_000  # per job: steps, sleeps and waits together
VERSIONS_MAX = 100  # per job
SIGNALS_MAX = 100  # per job


class NewStep(Struct, frozen=True, kw_only=True):
    """A step as a handler stores it."""

    kind: StepKind
    name: str
    number: int = 0  # its place among the handler's calls, from 1; 0 for a version and the state
    value: bytes | None = None  # JSON
    delay: float | None = None  # of a sleep or a wait: seconds from now until it is over


class Step(Struct, frozen=True, kw_only=True):
    """A stored step. A job has one of each kind and name."""

    job_id: str
    kind: StepKind
    name: str
    number: int = 0
    value: bytes | None = None
    until: float | None = None  # of a sleep or a wait: when it is over
    at: float = 0.0  # when it was stored
    fence: int = 0  # of the lease that stored it; for a signal, of the latest lease then


class Steps(Struct, frozen=True, kw_only=True):
    """All stored steps of a job, by kind and name, and the store's clock when they were read."""

    now: float
    steps: tuple[Step, ...] = ()


def place_of_step(step: Step) -> str:
    """The place of a step in a move: all are carried by job, kind and name."""
    return msgspec.json.encode([step.job_id, step.kind, step.name]).decode()


def step_place(after: str) -> tuple[str, str, str]:
    """The job, kind and name of a position; "" is before all of them."""
    return msgspec.json.decode(after, type=tuple[str, str, str]) if after else ("", "", "")


def open_wait(steps: tuple[Step, ...], fence: int) -> Step | None:
    """The sleep or the wait in which the lease with this fence ended; None if it ended otherwise."""
    waits = [step for step in steps if step.until is not None and step.fence == fence]
    return max(waits, key=lambda step: step.number, default=None)
