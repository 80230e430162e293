"""A backend of Django Tasks (Django 6): `TASKS = {"default": {"BACKEND": "holdfast.django.TasksBackend"}}`.

Every function decorated with `django.tasks.task` becomes a task of the project's app under its dotted path, so workers,
the command line, the dashboard and the admin treat it like any other. OPTIONS are options of `@app.task`: retry,
timeout, retain, …; a retried job is a further attempt of the same TaskResult.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ClassVar

from asgiref.sync import sync_to_async
from django.utils import timezone
from django.utils.module_loading import import_string

from .. import records
from ..context import Bury, CancelRequested, Context, Snooze, unwrapped
from ..errors import ConfigurationError, TaskAlreadyRegistered
from ..events import Event
from ..job import BoundCall, Job, plain_args
from ..lifecycle import Failure, State
from ..options import TaskOptions
from ..task import Task, UsingSettings

try:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:
    raise ConfigurationError(
        "holdfast.django.TasksBackend needs Django 6 or newer. Without it, use @app.task of holdfast.django.app."
    ) from None

if TYPE_CHECKING:
    from .application import DjangoHoldfast

BACKEND, ENQUEUED_AT, RUN_AFTER = "django-backend", "django-enqueued-at", "django-run-after"  # headers
UNKNOWN_WORKER = "unknown"  # of an attempt whose worker is no longer stored
_STATUS = {
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
_RAISED = frozenset({"failed", "memory", "file", "bury"})  # deaths by an exception: the handler sent task_finished
_NOT_RAISED = {"timeout": "builtins.TimeoutError"}
_PER_CALL = ("queue", "priority", "id", "delay", "at", "connection", "headers", "name", "aliases")  # not for OPTIONS


class TasksBackend(BaseTaskBackend):
    """Django Tasks in the store of `holdfast.django.app`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    default_options: ClassVar[Mapping[str, Any]] = {}  # for subclasses: under OPTIONS

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._settings = {**self.default_options, **self.options}
        self._check_options()
        self._for_one_call = {
            name: value for name, value in self._settings.items() if name in UsingSettings.__annotations__
        }
        self.app.serve_also(self.queues)
        _listen(self.app)

    def _check_options(self) -> None:
        wrong = [name for name in _PER_CALL if name in self._settings]
        try:
            if wrong:
                raise ConfigurationError(f"{wrong[0]} is not an option of a backend.")
            TaskOptions.make(**self._settings)
        except ConfigurationError as error:
            raise InvalidTaskBackend(f"TASKS[{self.alias!r}]['OPTIONS']: {error}") from error

    @property
    def app(self) -> DjangoHoldfast:
        """The project's app."""
        from .application import the_app

        return the_app()

    # ------------------------------------------------------------------ tasks

    def validate_task(self, task: Any) -> None:
        """Also called by `@task` itself, which is how a function becomes a task of the app."""
        super().validate_task(task)
        self._registered(task)

    def _registered(self, task: Any) -> Task[..., Any]:
        known = self.app.find_task(task.module_path)
        if known is not None and known.fn.__module__ != __name__:
            raise InvalidTask(f"{task.module_path} is a task of Holdfast already. Decorate it once.")
        if known is None:
            changes = {**self._settings, "name": task.module_path, "queue": task.queue_name, "priority": task.priority}
            options = TaskOptions.make(**changes)
            handler = _async_handler(task) if iscoroutinefunction(task.func) else _handler(task)
            known = self._register(Task(handler, options, self.app))
        return known

    def _register(self, made: Task[..., Any]) -> Task[..., Any]:
        try:
            self.app._register(made)
        except TaskAlreadyRegistered:  # by another thread
            found = self.app.find_task(made.name)
            if found is not None:
                return found
            raise
        return made

    # ------------------------------------------------------------------ enqueue

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store the task. Inside `atomic()` it joins the transaction, or waits for its commit."""
        result, call = self._call(task, args, kwargs)
        self.app.enqueue(call)
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Async version of `enqueue`."""
        result, call = self._call(task, args, kwargs)
        await self.app.aenqueue(call)
        await task_enqueued.asend_robust(type(self), task_result=result)
        return result

    def _call(self, task: Any, args: Any, kwargs: Any) -> tuple[Any, BoundCall[Any]]:
        self.validate_task(task)
        now = timezone.now()
        headers = {BACKEND: self.alias, ENQUEUED_AT: now.isoformat()}
        settings: dict[str, Any] = {"queue": task.queue_name, "priority": task.priority, **self._for_one_call}
        if task.run_after is not None:
            headers[RUN_AFTER] = task.run_after.isoformat()
            aware = timezone.is_aware(task.run_after)
            settings["at"] = task.run_after if aware else timezone.make_aware(task.run_after)
        # The result normalises the arguments, and rejects what is not JSON, as Django's own backends do.
        result = self._result(task, "", enqueued_at=now, args=args, kwargs=kwargs)
        registered = self._registered(task)
        call = registered.options(**settings, headers=headers).bind(args=result.args, kwargs=result.kwargs)
        object.__setattr__(result, "id", call.id)
        return result, call

    def _result(self, task: Any, id: str, *, args: Any, kwargs: Any, **facts: Any) -> Any:
        nothing = {"enqueued_at": None, "started_at": None, "last_attempted_at": None, "finished_at": None}
        empty = {"status": TaskResultStatus.READY, "errors": [], "worker_ids": []}
        return TaskResult(
            task=task, id=id, args=args, kwargs=kwargs, backend=self.alias, **{**nothing, **empty, **facts}
        )

    # ------------------------------------------------------------------ results

    def get_result(self, result_id: str) -> Any:
        """The task's result as it is stored. Blocks, also on a running event loop, as every sync call of Django."""
        return self._read(self.app._store.call(lambda backend: backend.get(str(result_id))), result_id)

    async def aget_result(self, result_id: str) -> Any:
        """Async version of `get_result`."""
        return self._read(await self.app._store.acall(lambda backend: backend.get(str(result_id))), result_id)

    def _read(self, record: records.JobRecord | None, result_id: str) -> Any:
        job = None if record is None else Job[Any](self.app, record)
        if job is None or BACKEND not in job.headers:
            raise TaskResultDoesNotExist(result_id)
        result = self._result(
            self._task_of(job),
            job.id,
            status=_STATUS.get(job.state, TaskResultStatus.READY),
            enqueued_at=_time(job.headers.get(ENQUEUED_AT)) or job.created_at,
            started_at=_first_start(job),
            last_attempted_at=job.started_at,
            finished_at=job.finished_at,
            errors=[task_error(failure) for failure in job.errors],
            worker_ids=_worker_ids(job),
            **_arguments(job),
        )
        object.__setattr__(result, "_return_value", job.value)
        return result

    def _task_of(self, job: Job[Any]) -> Any:
        try:
            found = import_string(job.task)
            func = found.func
        except (ImportError, AttributeError) as error:
            raise TaskResultDoesNotExist(f"{job.id}: there is no task {job.task} in this code any more") from error
        return type(found)(
            func=func,
            priority=job.priority,
            backend=job.headers[BACKEND],
            queue_name=job.queue,
            run_after=_time(job.headers.get(RUN_AFTER)),
            takes_context=found.takes_context,
        )


def _arguments(job: Job[Any]) -> dict[str, Any]:
    stored = plain_args(job._record.args)
    return {"args": stored.get("args", []), "kwargs": stored.get("kwargs", {})}


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _first_start(job: Job[Any]) -> datetime | None:
    from ..clock import moment

    first = [failure.started_at for failure in job.errors if failure.started_at is not None]
    return moment(first[0]) if first else job.started_at


def _worker_ids(job: Job[Any]) -> list[str]:
    """One entry per attempt. The store knows the workers of failed attempts and of a running one."""
    running = job.state is State.RUNNING
    found = [UNKNOWN_WORKER] * (job.attempts + running)
    for failure in job.errors:
        if 1 <= failure.attempt <= len(found) and failure.worker is not None:
            found[failure.attempt - 1] = failure.worker
    if running and job.worker is not None:
        found[-1] = job.worker
    return found


def task_error(failure: Failure) -> Any:
    """A stored failure as Django shows it."""
    path = failure.type if "." in failure.type else f"builtins.{failure.type}" if failure.type else ""
    path = path or _NOT_RAISED.get(failure.reason, "holdfast.errors.JobDied")
    text = f"{failure.type or failure.reason}: {failure.text}\n"
    return TaskError(exception_class_path=path, traceback=failure.traceback or text)


# ----------------------------------------------------------------------------------------------------------------------
# In the worker: the handlers, and the signals


def _handler(task: Any) -> Any:
    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        attempt = _Attempt(task, ctx, args, kwargs)
        task_started.send_robust(attempt.sender, task_result=attempt.result)
        try:
            value = attempt.stored(task.func(*attempt.arguments, **kwargs))
        except BaseException as error:
            if attempt.failed(error):
                task_finished.send_robust(attempt.sender, task_result=attempt.result)
            raise
        attempt.succeeded(value)
        task_finished.send_robust(attempt.sender, task_result=attempt.result)
        return value

    return run


def _async_handler(task: Any) -> Any:
    async def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        attempt = _Attempt(task, ctx, args, kwargs)
        await task_started.asend_robust(attempt.sender, task_result=attempt.result)
        try:
            value = attempt.stored(await task.func(*attempt.arguments, **kwargs))
        except BaseException as error:
            if attempt.failed(error):
                await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
            raise
        attempt.succeeded(value)
        await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
        return value

    return run


class _Attempt:
    """One attempt of a Django task, and the TaskResult its signals and its context carry."""

    def __init__(self, task: Any, ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> None:
        from django.tasks import task_backends

        from ..clock import moment

        backend = task_backends[ctx.headers.get(BACKEND, task.backend)]
        lease = ctx._lease
        self._ctx = ctx
        self.sender = type(backend)
        self.result = backend._result(
            task.using(queue_name=lease.queue, priority=lease.priority, backend=backend.alias),
            ctx.id,
            args=args,
            kwargs=kwargs,
            status=TaskResultStatus.RUNNING,
            enqueued_at=_time(ctx.headers.get(ENQUEUED_AT)) or moment(lease.created_at),
            started_at=moment(lease.started_at),
            last_attempted_at=moment(lease.started_at),
            worker_ids=[UNKNOWN_WORKER] * ctx.attempt,
        )
        self.arguments = [TaskContext(task_result=self.result), *args] if task.takes_context else args
        self._registered = backend._registered(task)

    def stored(self, value: Any) -> Any:
        """The value as JSON holds it; raises here, where the failure is seen, if it cannot be stored."""
        from django.utils.json import normalize_json

        plain = normalize_json(value)
        self._registered._encode(plain)
        return plain

    def succeeded(self, value: Any) -> None:
        self._set(status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)

    def failed(self, error: BaseException) -> bool:
        """Note the failure if it ends the task; False if another attempt follows, or the attempt was stopped."""
        from ..context import failure_of

        verdict = unwrapped(error)
        if isinstance(verdict, Snooze | CancelRequested | asyncio.CancelledError):
            return False
        options = self._ctx._options
        if not isinstance(verdict, Bury) and options is not None:
            decide: Any = options.retry.delay
            if decide(self._ctx.failures + 1, verdict) is not None:
                return False
        self.result.errors.append(task_error(failure_of(error)))
        self._set(status=TaskResultStatus.FAILED, finished_at=timezone.now())
        return True

    def _set(self, **facts: Any) -> None:
        for name, value in facts.items():
            object.__setattr__(self.result, name, value)


def _listen(app: DjangoHoldfast) -> None:
    """Send task_finished for tasks that ended without an exception of theirs: killed, timed out, expired, cancelled."""
    if not app.listens_for_tasks:
        app.listens_for_tasks = True
        for name in ("dead", "cancelled"):
            app.on(name)(_on_end)


async def _on_end(event: Event) -> None:
    reason = getattr(event, "reason", "")
    if reason not in _RAISED:
        await sync_to_async(_send_finished, thread_sensitive=False)(getattr(event, "job_id", ""))


def _send_finished(job_id: str) -> None:
    from django.db import close_old_connections
    from django.tasks import task_backends

    from .application import the_app

    record = the_app()._store.call(lambda backend: backend.get(job_id))
    alias = None if record is None else Job[Any](the_app(), record).headers.get(BACKEND)
    if alias is None or alias not in task_backends.settings:
        return
    backend = task_backends[alias]
    try:
        task_finished.send_robust(type(backend), task_result=backend.get_result(job_id))
    finally:
        close_old_connections()
