"""Jobs that a handler enqueues with its own end: `ctx.enqueue(call)`, and the same for a leased job.

Called by Context and LeasedJob; collects the calls, and hands them over with the settlement of a success. Never talks
to the store: what is collected is stored by the step that settles the attempt, or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from .context import Ended
from .errors import ConfigurationError
from .job import BoundCall, Job, fresh_record
from .lifecycle import Ending, Settlement, State
from .records import Enqueued, NewJob, SettlementWithJobs

if TYPE_CHECKING:
    from .app import Holdfast

R = TypeVar("R")
E = TypeVar("E", bound=Ended)

CHILDREN_MAX = 1000  # jobs that one attempt may store with its end: they are one step of the store
CHILDREN_BYTES_MAX = 8 << 20  # of their arguments


class Children:
    """The jobs that one attempt has enqueued so far."""

    __slots__ = ("_bytes", "jobs")

    def __init__(self) -> None:
        self.jobs: dict[str, NewJob] = {}  # by id: the same call twice is one job
        self._bytes = 0

    def add(self, app: Holdfast, call: BoundCall[R]) -> Job[R]:
        """Collect a call; returns its job as it will be stored."""
        if not isinstance(call, BoundCall):
            raise ConfigurationError(
                f"ctx.enqueue takes a bound call, made by task.bind(…), not {type(call).__name__}."
            )
        if call.connection is not None:
            raise ConfigurationError(
                "ctx.enqueue stores the job with the end of this attempt: leave out connection=, or use task.enqueue()."
            )
        if call.new.on_conflict == "raise":
            raise ConfigurationError(
                "ctx.enqueue cannot use on_conflict='raise': the job is stored when this handler has returned, and "
                "nobody is left to catch the error. Use 'keep', 'replace' or 'debounce', or task.enqueue()."
            )
        call = app._headed(call)
        new = call.new
        if new.id not in self.jobs:
            if len(self.jobs) == CHILDREN_MAX or self._bytes + len(new.args) > CHILDREN_BYTES_MAX:
                raise ConfigurationError(
                    f"one attempt stores at most {CHILDREN_MAX} jobs and {CHILDREN_BYTES_MAX >> 20} MiB of arguments "
                    "with its end. Enqueue a job that enqueues the rest, or use app.enqueue_many()."
                )
            self._bytes += len(new.args)
        self.jobs[new.id] = new
        record = fresh_record(new, Enqueued(new.id, created=True), app._clock.wall(), State.SCHEDULED)
        return Job(app, record, created=True)

    def stored_with(self, end: E) -> E | SettlementWithJobs:
        """The end of the attempt, with these jobs if it succeeded."""
        if not self.jobs or not isinstance(end, Settlement) or end.ending is not Ending.SUCCEEDED:
            return end
        facts: dict[str, Any] = {name: getattr(end, name) for name in end.__struct_fields__}
        return SettlementWithJobs(**facts, jobs=tuple(self.jobs.values()))
