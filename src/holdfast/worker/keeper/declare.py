"""What a worker's code declares and the store must know: queue rules, task rules and cron entries.

Built by the embedded worker from its app, and by the keeper of `holdfast work` from its runner's hello. Sent to the
store when a worker starts and when reloaded code declares something else: the latest declaration wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ...backends.contract import Backend
from ...records import CronEntry, QueueRule, TaskRule

if TYPE_CHECKING:
    from ...options import WorkerOptions


class Declaring(Protocol):
    """An app, as far as its declarations go."""

    def queue_rules(self) -> Sequence[QueueRule]: ...

    def task_rules(self) -> Sequence[TaskRule]: ...

    def cron_entries(self) -> Sequence[CronEntry]: ...


class Declared(Struct, frozen=True):
    """The declarations of one version of the code."""

    queues: tuple[QueueRule, ...] = ()
    tasks: tuple[TaskRule, ...] = ()  # every task: an empty rule removes what an older version declared
    entries: tuple[CronEntry, ...] = ()  # stored by the cron ticker, if they differ from the stored ones

    def serving(self, options: WorkerOptions) -> Declared:
        """The same, with a dedicated lane for each task that this worker caps."""
        capped = options.task_slots
        if not capped:
            return self
        tasks = {rule.name: rule for rule in self.tasks}
        tasks |= {name: replace(tasks.get(name) or TaskRule(name=name), apart=True) for name in capped}
        return replace(self, tasks=tuple(tasks.values()))

    async def tell(self, backend: Backend) -> None:
        """Store the rules."""
        if self.queues or self.tasks:
            await backend.declare(self.queues, self.tasks)


def declared_by(app: Declaring) -> Declared:
    return Declared(tuple(app.queue_rules()), tuple(app.task_rules()), tuple(app.cron_entries()))
