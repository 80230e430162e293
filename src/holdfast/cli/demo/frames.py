"""What the demo shows at one moment, read from the store: plain values between the stage and the screen.

Made by the stage ten times a second, drawn by the screen. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...lifecycle import State

STEPS = ("moor", "unload", "inspect", "refuel", "load", "sail")
SHIPS = ("Aurora", "Bounty", "Calypso", "Dauntless", "Endeavour", "Fram")


class StepView(Struct, frozen=True, kw_only=True):
    """One step of one ship."""

    name: str
    state: State
    worker: str = ""  # letter of the worker that runs it
    orphaned: bool = False  # its worker was killed and its lease has not expired yet
    again: bool = False  # it stalled before and is running again


class WorkerView(Struct, frozen=True, kw_only=True):
    """One worker process."""

    letter: str
    pid: int
    busy: int = 0
    slots: int = 0
    killed_ago: float | None = None
    stopped: bool = False


class Happening(Struct, frozen=True, kw_only=True):
    """An event worth printing."""

    at: float  # seconds since the start
    text: str
    kind: str = "note"  # note, good, bad


class Frame(Struct, frozen=True, kw_only=True):
    """Everything on the screen."""

    elapsed: float
    lease: float
    ships: Mapping[str, Sequence[StepView]]
    workers: Sequence[WorkerView]
    poison: str  # one line about the job that cannot succeed
    happenings: Sequence[Happening]
    done: int = 0
    total: int = 0
