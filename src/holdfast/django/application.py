"""The app of a Django project: `Holdfast` made from the settings, whose enqueue follows Django's transactions.

Made once, by `the_app`. If the jobs live in one of Django's databases, the store follows its name: the test runner
renames databases after the app was made.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.db import connections as django_connections
from msgspec.structs import replace

import django

from ..app import Holdfast
from ..backends import Address, make_backend, parse_url
from ..clock import ManualClock, SystemClock
from ..errors import BackendError, ConfigurationError, SchemaMismatch
from ..job import BoundCall, Job
from ..producer import checked, shared_connection, store
from ..store_thread import StoreHandle
from . import conf, connections, transactions

if TYPE_CHECKING:
    from ..worker.embedded import EmbeddedWorker

R = TypeVar("R")
T = TypeVar("T")


class DjangoHoldfast(Holdfast):
    """`from holdfast.django import app`."""

    _handle: StoreHandle
    _parsed: Address

    def __init__(self, configuration: conf.Configuration) -> None:
        self.configuration = configuration
        self._followed: StoreHandle | None = None  # the handle of the store in Django's database
        self._database_name: Any = None
        self._queues_beside: set[str] = set()
        self.listens_for_tasks = False  # Django Tasks' signals
        super().__init__(_url(configuration), **configuration.options)
        self._follow(configuration)
        self.around(connections.around, connections.aaround)

    # ------------------------------------------------------------------ a store in Django's own database

    def _follow(self, configuration: conf.Configuration) -> None:
        self._database_name = settings.DATABASES[configuration.database]["NAME"] if configuration.in_database else None
        self._followed = self._handle if configuration.in_database else None

    def _track(self) -> None:
        """Follow the database if it was renamed, unless another store was chosen since (--url, the sandbox)."""
        if self._followed is None or self._handle is not self._followed:
            return
        alias = self.configuration.database
        if settings.DATABASES[alias]["NAME"] != self._database_name:
            self._point_at(conf.database_url(alias))
            self._follow(self.configuration)

    def _point_at(self, url: str) -> None:
        before = self._handle
        self._parsed = parse_url(url)
        self._handle = StoreHandle(partial(make_backend, self._parsed), SystemClock())
        self._handle.rules.update(before.rules)
        before.close()

    @property
    def _store(self) -> StoreHandle:
        self._track()
        return self._handle

    @_store.setter
    def _store(self, handle: StoreHandle) -> None:
        self._handle = handle

    @property
    def _address(self) -> Address:
        self._track()
        return self._parsed

    @_address.setter
    def _address(self, address: Address) -> None:
        self._parsed = address

    @property
    def in_sandbox(self) -> bool:
        """Whether `holdfast.testing.sandbox` has taken the store's place."""
        return isinstance(self._clock, ManualClock)

    def reread(self) -> None:
        """Follow a changed setting HOLDFAST, as tests change it."""
        configuration = conf.read()
        if self.in_sandbox:
            raise ConfigurationError("the setting HOLDFAST was changed inside a sandbox. Change it around the sandbox.")
        self.configuration, self._followed = configuration, None
        self._point_at(parse_url(_url(configuration) or Holdfast().url).url)
        self._follow(configuration)

    # ------------------------------------------------------------------ working

    def serve_also(self, queues: Iterable[str]) -> None:
        """Queues that tasks may be enqueued to without being their own: QUEUES of Django Tasks."""
        self._queues_beside |= set(queues)

    def served_queues(self) -> list[str] | None:
        """The queues a worker serves by default; None: those of its tasks, as everywhere."""
        own = {task.defaults.queue for task in self.tasks.values()}
        return sorted(own | self._queues_beside) if self._queues_beside - own else None

    def worker(self, queues: Any = None, **settings: Any) -> EmbeddedWorker:
        """A worker in this process, as `Holdfast.worker`."""
        return super().worker(self.served_queues() if queues is None else queues, **settings)

    # ------------------------------------------------------------------ enqueue

    def enqueue(self, call: BoundCall[R], *, connection: Any = None) -> Job[R]:
        """Store a bound call. Inside `atomic()` it joins the transaction, or waits for its commit (`DeferredJob`).

        connection= takes `django.db.connection` or another Django connection, an alias, or what it takes elsewhere.
        """
        given = checked(call).connection if connection is None else connection
        wrapper = transactions.django_connection(given, self.configuration.database)
        if wrapper is None or self._eager is not None:
            return super().enqueue(call, connection=given)
        plain = replace(call, connection=None)
        if self.in_sandbox:
            return super().enqueue(plain, connection=transactions.followed_in_sandbox(wrapper, [call]))
        if not transactions.is_begun(wrapper):
            return super().enqueue(plain)
        if transactions.joins(wrapper, self._store, [call]):
            job = _joined(wrapper, partial(super().enqueue, plain, connection=wrapper.connection))
            transactions.WakeAtCommit.register(wrapper, self._store, {call.queue})
            return job
        if not wrapper.in_atomic_block:  # autocommit is off: Django has no on_commit there
            return super().enqueue(plain)
        headed = self._chunk([plain])[0]  # headers are those of the call, not of the commit
        return transactions.defer(wrapper, self, headed, partial(self._enqueue_now, headed))

    def _enqueue_now(self, call: BoundCall[R]) -> Job[R]:
        return self._stored(call, *self._store.call(partial(store, call.new, self._store.clock)))

    async def aenqueue(self, call: BoundCall[R], *, connection: Any = None) -> Job[R]:
        """Async version of `enqueue`. Async code is never inside `atomic()`, so it looks for none unless asked to.

        A Django connection or an alias given here means that of the thread of `sync_to_async`.
        """
        given = checked(call).connection if connection is None else connection
        if given is None or transactions.django_connection(given, self.configuration.database) is None:
            return await super().aenqueue(call, connection=given)
        alias = given if isinstance(given, str) else given.alias
        job: Job[R] = await sync_to_async(self.enqueue)(call, connection=alias)
        return job

    def _begin_chunk(self, chunk: list[BoundCall[Any]]) -> Callable[[], int]:
        wrapper = transactions.django_connection(shared_connection(chunk), self.configuration.database)
        if wrapper is None or self._eager is not None:
            return super()._begin_chunk(chunk)
        plain = [replace(call, connection=None) for call in chunk]
        if self.in_sandbox:
            followed = transactions.followed_in_sandbox(wrapper, chunk)
            return super()._begin_chunk([replace(call, connection=followed) for call in plain])
        if not transactions.is_begun(wrapper):
            return super()._begin_chunk(plain)
        if transactions.joins(wrapper, self._store, chunk):
            joined = [replace(call, connection=wrapper.connection) for call in chunk]
            stored = _joined(wrapper, partial(super()._begin_chunk, joined))
            transactions.WakeAtCommit.register(wrapper, self._store, {call.queue for call in chunk})
            return stored
        if not wrapper.in_atomic_block:
            return super()._begin_chunk(plain)
        begin = super()._begin_chunk
        wrapper.on_commit(lambda: begin(plain)())
        return lambda: len(plain)

    async def _astore_chunk(self, chunk: list[BoundCall[Any]]) -> int:
        given = shared_connection(chunk)
        if given is None or transactions.django_connection(given, self.configuration.database) is None:
            return await super()._astore_chunk(chunk)
        alias = given if isinstance(given, str) else given.alias
        calls = [replace(call, connection=alias) for call in chunk]
        made: int = await sync_to_async(lambda: self._begin_chunk(calls)())()
        return made


def _joined(wrapper: Any, enqueue: Callable[[], T]) -> T:
    """Enqueue through Django's own connection. A failed statement has ended its transaction: Django must know."""
    wrapper.validate_thread_sharing()
    wrapper.validate_no_broken_transaction()
    try:
        return enqueue()
    except BackendError:
        if wrapper.in_atomic_block and wrapper.vendor == "postgresql" and not _is_alive(wrapper.connection):
            wrapper.needs_rollback = True
        raise


def _is_alive(connection: Any) -> bool:
    """Whether a psycopg connection's transaction is still usable."""
    return not connection.closed and connection.info.transaction_status.name not in ("INERROR", "UNKNOWN")


def _url(configuration: conf.Configuration) -> str | None:
    return conf.database_url(configuration.database) if configuration.in_database else configuration.url


# ----------------------------------------------------------------------------------------------------------------------
# The one app of this process


_made: list[DjangoHoldfast] = []
_guard = threading.RLock()


def the_app() -> DjangoHoldfast:
    """The project's app. Sets Django up first if that was not done: in a worker's processes, in a script."""
    if not apps.ready and not apps.loading:
        _set_up_django()
    if apps.ready and not apps.is_installed("holdfast.django"):
        raise ConfigurationError('holdfast.django is not installed: add "holdfast.django" to INSTALLED_APPS.')
    with _guard:
        if not _made:
            _made.append(DjangoHoldfast(conf.read()))
        return _made[0]


def _set_up_django() -> None:
    conf.read()  # a clear error if there are no settings
    django.setup()


def set_up_store(using: str, **kwargs: Any) -> None:
    """After `manage.py migrate`: create Holdfast's tables, if the jobs live in the database that was migrated."""
    app = the_app()
    migrated = "plan" in kwargs  # the command flush sends the signal, too
    if migrated and app.configuration.in_database and using == app.configuration.database and not app.in_sandbox:
        try:
            if app.url != "memory://":
                app.open()
        except SchemaMismatch as error:  # `migrate` upgrades it, and may be what runs next: do not fail
            out: Any = kwargs.get("stdout") or sys.stderr
            out.write(f"Holdfast: {error} Here: `manage.py holdfast migrate`.\n")
        app.close()  # the test runner copies the database next: no connection may be open
        _close_before_it_is_destroyed(app, django_connections[using].creation)


def _close_before_it_is_destroyed(app: DjangoHoldfast, creation: Any) -> None:
    """Close the store before the test runner drops its test database: Django has no signal for that."""
    if getattr(creation, "holdfast_closes", False):
        return
    destroy = creation.destroy_test_db

    def destroy_test_db(*args: Any, **kwargs: Any) -> Any:
        app.close()
        return destroy(*args, **kwargs)

    creation.destroy_test_db, creation.holdfast_closes = destroy_test_db, True


def on_setting_changed(setting: str, **kwargs: Any) -> None:
    """`override_settings(HOLDFAST=…)` in tests."""
    if setting == "HOLDFAST" and _made:
        _made[0].reread()
