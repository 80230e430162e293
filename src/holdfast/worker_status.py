"""A worker's status: its runner processes as displayed to people, small enough to send with each renewal; and commands
to a worker.

Encoded by the process worker (worker/processes/pool.py), stored as is, decoded by the command line and by callers of
`app.workers()`. Never contains arguments or results: only pids, numbers, job ids, and names of tasks the worker does
not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Literal

import msgspec
from msgspec import Struct

PORTRAIT_BYTES_MAX = 16 << 10
JOBS_SHOWN_MAX = 20  # per runner
TASKS_SHOWN_MAX = 20
QUEUES_SHOWN_MAX = 20  # of those with a group_prefetch
TASK_CHARS_MAX = 120
TASK_LIST_BYTES_MAX = 6 << 10  # of the names of the tasks that a worker has; a longer list is not published
MEMORY_STEP_BYTES = 1 << 20  # memory is rounded to this, so an idle runner's status does not change


# Where a worker's number of slots comes from: --slots, or the default for tasks that need threads, or for async ones.
SlotsFrom = Literal["option", "threads", "async"]
DEFAULT_SLOTS: Mapping[str, str] = {"threads": "default for threads", "async": "default for async tasks"}


class RunnerView(Struct, frozen=True, kw_only=True):
    """One runner process."""

    pid: int
    state: str  # starting, ready, leaving, gone
    alone: bool  # it runs one job at a time, with no others in its process
    slots: int
    running: int
    done: int  # jobs completed since it started
    memory_bytes: int
    responds: bool  # False: a handler blocks its loop or holds the GIL
    jobs: tuple[str, ...] = ()  # ids, oldest first; possibly truncated
    ahead: int = 0  # jobs that wait there for a slot, besides those that run


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """All runners of a worker, or as many as fit."""

    runners: tuple[RunnerView, ...] = ()
    left_out: int = 0
    unbegun: tuple[str, ...] = ()  # ids of jobs it holds whose handlers no runner has begun for a while
    unknown: tuple[str, ...] = ()  # tasks it was given jobs of but does not know
    paused: bool = False  # an operator paused it: it claims nothing
    tasks: tuple[str, ...] | None = None  # the tasks it has, and their aliases; None: not published
    group_prefetch: dict[str, int] = {}  # by queue, where it leases several jobs of a group together
    batches: dict[str, int] = {}  # by task with batch=, how many jobs a batch takes
    name: str = ""  # what people call it (`--name`)
    catch_all: bool = False  # it takes jobs of tasks that it does not have, too
    priority: tuple[int, int] | None = None  # the lowest and highest priority of the jobs it takes; None: all
    slots_from: str = ""  # a SlotsFrom; empty: an embedded worker

    def knows(self, task: str) -> bool | None:
        """Whether it has the task; None if it does not say."""
        if self.catch_all:
            return True
        if task[:TASK_CHARS_MAX] in self.unknown:
            return False
        return None if self.tasks is None else task in self.tasks

    def takes(self, priority: int) -> bool:
        """Whether it takes jobs of this priority."""
        return self.priority is None or self.priority[0] <= priority <= self.priority[1]

    @property
    def priorities(self) -> str:
        """Which priorities it takes, such as 0..10; empty: all."""
        return "" if self.priority is None else "..".join(map(str, self.priority))


def draw(
    runners: Sequence[RunnerView],
    unbegun: Sequence[str] = (),
    unknown: Sequence[str] = (),
    *,
    paused: bool = False,
    tasks: Iterable[str] | None = None,
    group_prefetch: Mapping[str, int] = {},
    batches: Mapping[str, int] = {},
    name: str = "",
    catch_all: bool = False,
    priority: tuple[int, int] | None = None,
    slots_from: str = "",
) -> bytes:
    """Encode the status as JSON, at most PORTRAIT_BYTES_MAX: drops jobs, then tasks, then runners to make it fit."""
    whole = WorkerStatus(
        unbegun=tuple(unbegun[:JOBS_SHOWN_MAX]),
        unknown=tuple(name[:TASK_CHARS_MAX] for name in unknown[:TASKS_SHOWN_MAX]),
        paused=paused,
        tasks=_listed(tasks),
        group_prefetch=dict(islice(sorted(group_prefetch.items()), QUEUES_SHOWN_MAX)),
        batches={task[:TASK_CHARS_MAX]: most for task, most in islice(sorted(batches.items()), TASKS_SHOWN_MAX)},
        name=name[:TASK_CHARS_MAX],
        catch_all=catch_all,
        priority=priority,
        slots_from=slots_from,
    )
    for most in (JOBS_SHOWN_MAX, 5, 1, 0, 0):
        shown = tuple(msgspec.structs.replace(one, jobs=one.jobs[:most]) for one in runners)
        drawn = msgspec.json.encode(msgspec.structs.replace(whole, runners=shown))
        if len(drawn) <= PORTRAIT_BYTES_MAX:
            return drawn
        if not most:
            whole = msgspec.structs.replace(whole, tasks=None)
    while len(drawn) > PORTRAIT_BYTES_MAX:
        shown = shown[: len(shown) * 3 // 4]
        left_out = len(runners) - len(shown)
        drawn = msgspec.json.encode(msgspec.structs.replace(whole, runners=shown, left_out=left_out))
    return drawn


def _listed(tasks: Iterable[str] | None) -> tuple[str, ...] | None:
    if tasks is None:
        return None
    names = tuple(sorted(tasks))
    return names if len(msgspec.json.encode(names)) <= TASK_LIST_BYTES_MAX else None


def read(portrait: bytes | None) -> WorkerStatus | None:
    """Decode a worker's status; None if there is none or this version cannot read it."""
    if portrait is None:
        return None
    try:
        return msgspec.json.decode(portrait, type=WorkerStatus)
    except (msgspec.DecodeError, RecursionError):
        return None


def may_not_know(portrait: bytes | None, task: str) -> bool:
    """Whether a worker with this status may lack the task. True if its list is full or unreadable."""
    view = read(portrait)
    if view is None:
        return portrait is not None
    return task[:TASK_CHARS_MAX] in view.unknown or len(view.unknown) >= TASKS_SHOWN_MAX


def bounded(portrait: bytes | None) -> bytes | None:
    """The status as stores accept it: one that is too long becomes None."""
    return None if portrait is None or len(portrait) > PORTRAIT_BYTES_MAX else portrait


# ----------------------------------------------------------------------------------------------------------------------
# Commands to one worker, stored beside its row.


Ask = Literal["pause", "resume", "slots", "stacks", "stop"]
COMMANDS_KEPT_MAX = 20  # per worker: the newest
COMMAND_RESULT_CHARS_MAX = 60_000


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command to one worker. The worker gets it with its next renewal and stores the result."""

    id: str
    ask: Ask
    value: int | None = None  # slots: how many
    by: str = ""
    at: float = 0.0  # set by the store
    done_at: float | None = None  # set by the store
    result: str = ""  # the worker's answer, at most COMMAND_RESULT_CHARS_MAX
    refused: bool = False
