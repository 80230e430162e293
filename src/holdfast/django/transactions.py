"""Enqueue and Django's transactions: inside `atomic()` a job joins the transaction, or waits for its commit.

Called by the app's enqueue methods, on the caller's thread. A job joins if the store lives in the database of that
connection, PostgreSQL (psycopg 3) or the same SQLite file: then it exists if and only if the transaction commits. With
any other store it is enqueued by `transaction.on_commit`, after the commit: if the process dies in between, it is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist, ConnectionProxy

from .. import records
from ..errors import ConfigurationError, StateConflict
from ..job import BoundCall, Job, fresh_record
from ..lifecycle import State
from ..options import Duration
from ..records import JobRecord
from ..store_thread import StoreHandle

if TYPE_CHECKING:
    from ..app import Holdfast

R = TypeVar("R")

_JOINABLE = {"postgresql": "postgresql", "sqlite": "sqlite"}  # Django's vendor → the store's scheme
_MOVES_JOBS = ("replace", "debounce")  # these may change a job that already runs, which no transaction of others can

_same: WeakKeyDictionary[StoreHandle, dict[tuple[str, str], bool]] = WeakKeyDictionary()


def django_connection(given: Any, default: str) -> Any:
    """The Django connection that connection= means: nothing is the default alias. None: it is another driver's."""
    if given is None:
        given = default
    if isinstance(given, ConnectionProxy):
        given = given.alias
    if isinstance(given, str):
        try:
            return connections[given]
        except ConnectionDoesNotExist:
            known = ", ".join(sorted(connections.settings))
            raise ConfigurationError(
                f"connection={given!r}: the setting DATABASES has no such alias. It has: {known}."
            ) from None
    return given if isinstance(given, BaseDatabaseWrapper) else None


def is_begun(wrapper: Any) -> bool:
    """Whether a transaction is open: by atomic(), or because autocommit is off."""
    return bool(wrapper.in_atomic_block or (wrapper.connection is not None and not wrapper.autocommit))


def joins(wrapper: Any, store: StoreHandle, calls: list[BoundCall[Any]]) -> bool:
    """Whether these calls can be stored by the transaction that is open on this connection."""
    if wrapper.connection is None or any(call.new.on_conflict in _MOVES_JOBS for call in calls):
        return False
    backend = store.unopened
    if _JOINABLE.get(wrapper.vendor) != backend.scheme:
        return False
    known = _same.setdefault(store, {})
    place = wrapper.alias, str(wrapper.settings_dict["NAME"])
    if place not in known:
        if backend.scheme != "sqlite":  # SQLite's would wait for the transaction that is open here
            store.open()
        wrapper.validate_no_broken_transaction()
        known[place] = backend.shares_database(wrapper.connection)
    return known[place]


class WakeAtCommit:
    """Registered with on_commit: wakes workers on PostgreSQL. Otherwise they find the jobs by polling."""

    def __init__(self, store: StoreHandle) -> None:
        self._store = store
        self.queues: set[str] = set()

    def __call__(self) -> None:
        queues = frozenset(self.queues)
        self._store.begin(lambda backend: backend.wake(queues))

    @classmethod
    def register(cls, wrapper: Any, store: StoreHandle, queues: set[str]) -> None:
        """Once per run of enqueues. Not inside a test's own transaction, which counts the hooks of its code."""
        if not wrapper.in_atomic_block or any(getattr(one, "_from_testcase", False) for one in wrapper.atomic_blocks):
            return
        last = wrapper.run_on_commit[-1][1] if wrapper.run_on_commit else None
        if not isinstance(last, cls):
            last = cls(store)
            wrapper.on_commit(last, robust=True)
        last.queues |= queues


def followed_in_sandbox(wrapper: Any, calls: list[BoundCall[Any]]) -> Any:
    """The connection if a sandbox must follow it: a block of the code under test is open. Else None: store it now."""
    from ..testing.django_follower import own_blocks

    moves = any(call.new.on_conflict in _MOVES_JOBS for call in calls)  # no transaction can carry these
    return wrapper if own_blocks(wrapper) and not moves else None


class DeferredJob(Job[R]):
    """A job that is enqueued when the transaction commits. `pending` is True until then, and for ever if it does not.

    Its id is known at once. If `on_conflict` keeps another job at the commit, the id becomes that job's.
    """

    __slots__ = ("_pending",)

    def __init__(self, app: Holdfast, record: JobRecord) -> None:
        super().__init__(app, record)
        self._pending = True

    @property
    def pending(self) -> bool:
        """Whether it still waits for the commit. A job of a transaction that was rolled back stays so."""
        return self._pending

    def stored(self, job: Job[R]) -> None:
        """Called after the commit with the job as it was enqueued."""
        self._record, self._created, self._replaced = job._record, job._created, job._replaced
        self._pending = False

    def _need_commit(self, verb: str) -> None:
        if self._pending:
            raise StateConflict(
                self.id,
                verb,
                "not enqueued yet",
                "It waits for the transaction to commit, because its store is not in the transaction's database. Leave "
                "atomic() first.",
            )

    def result(self, timeout: Duration | None = None) -> R:
        self._need_commit("wait for")
        return super().result(timeout)

    async def aresult(self, timeout: Duration | None = None) -> R:
        self._need_commit("wait for")
        return await super().aresult(timeout)

    def refresh(self) -> Job[R]:
        self._need_commit("refresh")
        return super().refresh()

    async def arefresh(self) -> Job[R]:
        self._need_commit("refresh")
        return await super().arefresh()

    def cancel(self, *, reason: str = "") -> Job[R]:
        self._need_commit("cancel")
        return super().cancel(reason=reason)

    async def acancel(self, *, reason: str = "") -> Job[R]:
        self._need_commit("cancel")
        return await super().acancel(reason=reason)

    def __repr__(self) -> str:
        return f"<Job {self.task} {self.id} waits for the commit>" if self._pending else super().__repr__()


def defer(wrapper: Any, app: Holdfast, call: BoundCall[R], enqueue: Callable[[], Job[R]]) -> DeferredJob[R]:
    """Enqueue the call when the transaction commits; its job, with its id, at once."""
    record = fresh_record(call.new, records.Enqueued(call.id, True), app._clock.wall(), State.SCHEDULED)
    job: DeferredJob[R] = DeferredJob(app, record)
    wrapper.on_commit(lambda: job.stored(enqueue()))
    return job
