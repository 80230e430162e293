"""From the keeper to the runners: what every form of them must be able to do, and what is said about leases.

Called by the keeper's parts. Two forms: in_process.py (this process, another loop) and pool.py (processes under a
guard). Nothing here ever waits for a runner, which may be blocked by a handler.
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
    """The runners, seen from the keeper."""

    isolates: ClassVar[bool] = False  # suspects are run alone in a process
    apart: ClassVar[bool] = False  # handlers have processes of their own, and the keeper its interpreter to itself

    def __init__(self) -> None:
        self.worker = ""
        self.unknown: tuple[str, ...] = ()  # tasks it was given jobs of and does not know
        self.broken = False  # nothing can be run any more
        self.on_room: Callable[[], None] = lambda: None  # jobs may begin again where they could not
        self.on_news: Callable[[], None] = lambda: None  # the portrait has changed: show it soon
        self.post: Callable[[list[Ended]], None] = lambda batch: None  # handlers have stopped; any thread

    # ------------------------------------------------------------------ what each form does its own way

    @abstractmethod
    def name(self, worker: str) -> None:
        """The worker goes by this id from now on."""

    @abstractmethod
    def wanted(self, *names: str) -> bool:
        """Whether anybody listens to one of these events."""

    @abstractmethod
    def room(self, free: int) -> int:
        """How many of `free` slots could begin a job now."""

    def most_by_task(self) -> Mapping[str, int]:
        """How many jobs of a task the next claim may bring, for tasks that have few places; others are not named."""
        return {}

    def left_some(self, most_by_task: Mapping[str, int], leases: Sequence[Lease]) -> bool:
        """Whether a claim so capped, that brought these, may have left jobs which another one brings at once."""
        return False

    @abstractmethod
    def start(self, leases: Sequence[Lease]) -> None: ...

    @abstractmethod
    def stop(self, leases: Sequence[Lease], reason: Stop) -> None: ...

    @abstractmethod
    def stop_all(self, reason: Stop) -> None:
        """Tell every handler to stop; nothing begins until `allow_starts`."""

    @abstractmethod
    def allow_starts(self) -> None:
        """The fence is lifted."""

    @abstractmethod
    def running(self) -> tuple[str, ...]:
        """Ids of the jobs whose handlers have not stopped."""

    @abstractmethod
    def deliver(self, seen: list[events.Event]) -> None:
        """Bring events to whoever listens."""

    @abstractmethod
    async def watch_forever(self) -> None:
        """See that the runners respond, and say so when they do not."""

    async def end_rest(self) -> bool:
        """End by force what did not stop; whether that is possible."""
        return False

    @abstractmethod
    def renewed(self, fence_at: float, margin: float) -> None:
        """The worker's deadline moved: its handlers must be still by `fence_at` (steady), or soon after."""

    @abstractmethod
    def knows(self, task: str) -> bool:
        """Whether the code here, the newest of it, has this task."""

    def portrait(self) -> bytes | None:
        """The runners as people see them, for the worker's row; None: there is nothing to show."""
        return draw((), unknown=self.unknown) if self.unknown else None

    # ------------------------------------------------------------------ what is said

    def tell(self, *seen: events.Event) -> None:
        wanted = [event for event in seen if self.wanted(event.name)]
        if wanted:
            self.deliver(wanted)

    def lost(self, leases: Sequence[Lease]) -> None:
        """Say that leases are no longer ours."""
        for lease in leases:
            logs.lease_lost(lease.id, lease.task)
        if self.wanted("lease_lost"):
            self.tell(*(events.LeaseLost(**about(lease, self.worker)) for lease in leases))

    def recovered(self, ends: Sequence[Recovered]) -> None:
        """Say which stalled leases this worker found and ended."""
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
