"""The keeper's interface to the runners, and the log lines and events about leases that both implementations share.

Called by the keeper's modules. Two implementations: runner/in_process.py (this process, another loop) and
processes/pool.py (processes under a guard). Nothing here ever waits for a runner, which a handler may be blocking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ... import events, logs
from ...records import Lease, Recovered
from ...worker_status import draw
from ..runner.attempt import Ended, Stop, about


class Runners(ABC):
    """The runners as the keeper sees them."""

    isolates: ClassVar[bool] = False  # can run suspect jobs alone in a process
    apart: ClassVar[bool] = False  # handlers run in other processes, so the keeper does not share its GIL with them

    def __init__(self) -> None:
        self.worker = ""
        self.unknown: tuple[str, ...] = ()  # unknown tasks this worker was given jobs of
        self.broken = False  # no job can be run any more
        self.on_room: Callable[[], None] = lambda: None  # jobs may start again after there was no room
        self.on_news: Callable[[], None] = lambda: None  # the worker status has changed: publish it soon
        self.post: Callable[[list[Ended]], None] = lambda batch: None  # hands over ended attempts; thread-safe

    # ------------------------------------------------------------------ specific to each implementation

    @abstractmethod
    def name(self, worker: str) -> None:
        """Use this worker id from now on."""

    @abstractmethod
    def wanted(self, *names: str) -> bool:
        """Whether any of these events has a listener."""

    @abstractmethod
    def room(self, free: int) -> int:
        """How many of the `free` slots could start a job now."""

    def most_by_task(self) -> Mapping[str, int]:
        """Per-task maximum for the next claim. Contains only tasks with a limited number of slots."""
        return {}

    def left_some(self, most_by_task: Mapping[str, int], leases: Sequence[Lease]) -> bool:
        """Whether a claim with these caps that brought these leases may have left jobs for an immediate next one."""
        return False

    @abstractmethod
    def start(self, leases: Sequence[Lease]) -> None: ...

    @abstractmethod
    def stop(self, leases: Sequence[Lease], reason: Stop) -> None: ...

    @abstractmethod
    def stop_all(self, reason: Stop) -> None:
        """Tell every handler to stop; start nothing until `allow_starts`."""

    @abstractmethod
    def allow_starts(self) -> None:
        """Allow starts again: the fence has been lifted."""

    @abstractmethod
    def running(self) -> tuple[str, ...]:
        """Ids of the jobs whose handlers have not stopped."""

    @abstractmethod
    def deliver(self, seen: list[events.Event]) -> None:
        """Deliver events to their listeners."""

    @abstractmethod
    async def watch_forever(self) -> None:
        """Check that the runners respond, and report when they do not."""

    async def end_rest(self) -> bool:
        """Kill handlers that did not stop. Return whether that is possible."""
        return False

    @abstractmethod
    def renewed(self, fence_at: float, margin: float) -> None:
        """The worker's deadline moved: its handlers must have stopped at `fence_at` (steady), or soon after."""

    @abstractmethod
    def knows(self, task: str) -> bool:
        """Whether the newest code loaded here has this task."""

    def portrait(self) -> bytes | None:
        """The encoded worker status for the worker's row; None if there is nothing to show."""
        return draw((), unknown=self.unknown) if self.unknown else None

    # ------------------------------------------------------------------ logs and events

    def tell(self, *seen: events.Event) -> None:
        wanted = [event for event in seen if self.wanted(event.name)]
        if wanted:
            self.deliver(wanted)

    def lost(self, leases: Sequence[Lease]) -> None:
        """Log lost leases and emit an event for each."""
        for lease in leases:
            logs.lease_lost(lease.id, lease.task)
        if self.wanted("lease_lost"):
            self.tell(*(events.LeaseLost(**about(lease, self.worker)) for lease in leases))

    def recovered(self, ends: Sequence[Recovered]) -> None:
        """Log the stalled leases that this worker recovered and emit their events."""
        seen: list[events.Event] = []
        for end in ends:
            if not end.counted:
                continue
            state = end.state.value
            logs.job_stalled(end.id, end.task, end.worker, end.stalls, end.shared_stalls, state)
            facts: dict[str, Any] = {
                "job_id": end.id,
                "task": end.task,
                "queue": end.queue,
                "group": end.group,
                "worker": self.worker,
            }
            seen.append(
                events.Stalled(
                    **facts, holder=end.worker, stalls=end.stalls, shared_stalls=end.shared_stalls, state=state
                )
            )
            if state == "dead":
                seen.append(events.Dead(**facts, reason="stalled"))
            elif state == "cancelled":
                seen.append(events.Cancelled(**facts))
        self.tell(*seen)
