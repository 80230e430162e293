"""From the keeper's thread to the handlers' loop: one thread-safe call per batch.

Called by the keeper's parts. It never waits for that loop, which may be blocked by a handler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import events, logs
from ..records import Lease, Recovered
from .runner import Runner, Stop, about


class Link:
    """The runner, seen from the keeper."""

    def __init__(self, runner: Runner, hub: events.Hub) -> None:
        self.runner, self.hub = runner, hub
        self.worker = ""
        self.broken = False  # the handlers' loop was closed

    def wanted(self, *names: str) -> bool:
        return any(self.hub.wanted(name) for name in names)

    def post(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            self.runner.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            if not self.broken:
                self.broken = True
                logs.loop_gone(self.worker)

    def start(self, leases: Sequence[Lease]) -> None:
        self.post(self.runner.start, leases)

    def stop(self, leases: Sequence[Lease], reason: Stop) -> None:
        if leases:
            marked = [(lease.id, lease.token) for lease in leases]
            self.runner.warn(marked, reason)  # at once, although the loop may be blocked
            self.post(self.runner.stop, marked, reason)

    def stop_all(self, reason: Stop) -> None:
        self.runner.warn_all()
        self.post(self.runner.stop_all, reason)

    def allow_starts(self) -> None:
        """The fence is lifted."""
        self.runner.barred = False

    def tell(self, *seen: events.Event) -> None:
        """Deliver events on the handlers' loop."""
        wanted = [event for event in seen if self.hub.wanted(event.name)]
        if wanted:
            self.post(self.runner.deliver, wanted)

    def lost(self, leases: Sequence[Lease]) -> None:
        """Say that leases are no longer ours."""
        for lease in leases:
            logs.lease_lost(lease.id, lease.task)
        if self.hub.wanted("lease_lost"):
            self.tell(*(events.LeaseLost(**about(lease, self.worker)) for lease in leases))

    def recovered(self, ends: Sequence[Recovered]) -> None:
        """Say which stalled leases this worker found and ended."""
        seen: list[events.Event] = []
        for end in ends:
            if not end.counted:
                continue
            state = end.state.value
            logs.job_stalled(end.id, end.task, end.worker, end.stalls, state)
            facts: dict[str, Any] = {
                "job_id": end.id,
                "task": end.task,
                "queue": end.queue,
                "group": end.group,
                "worker": self.worker,
            }
            seen.append(events.Stalled(**facts, holder=end.worker, stalls=end.stalls, state=state))
            if state == "dead":
                seen.append(events.Dead(**facts, reason="stalled"))
            elif state == "cancelled":
                seen.append(events.Cancelled(**facts))
        self.tell(*seen)
