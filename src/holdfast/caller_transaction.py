"""A handler's end in the caller's own transaction: `ctx.succeed(result, connection=…)`.

Called by Context, on the handler's thread or loop. It checks sync against async, and hands the settlement to the
backend, which executes one statement through the connection given. It never commits or rolls back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .backends.caller_connections import Caller, recognise, refuse_autocommit, refuse_parents
from .context import CancelRequested, Context, Outcome, OutcomeKind, settlement_for
from .errors import BackendUnavailable, ConfigurationError, LeaseLost
from .lifecycle import Settlement
from .records import Answer, NewJob

if TYPE_CHECKING:
    from .options import TaskOptions
    from .task import Task


def settle(context: Context, task: Task[..., Any], options: TaskOptions, connection: Any, result: Any) -> None:
    """Settle as succeeded through a sync connection."""
    caller = recognise(connection)
    if caller.is_async:
        raise ConfigurationError(
            f"ctx.succeed() cannot use the {caller.name} given as connection=: it is for async code. "
            "Use `await ctx.asucceed(…)` in an async handler."
        )
    jobs, settlement = _jobs(context), _announced(context, task, options, result)
    backend, driver = task.app._store.unopened, _driver_connection(connection, caller)
    answer = backend.settle_on(driver, settlement)
    if jobs and answer is Answer.OK:  # after the end, as in settle_with (R86): one of them may take the job's key
        backend.enqueue_on(driver, jobs)
    _accept(context, answer)


async def asettle(context: Context, task: Task[..., Any], options: TaskOptions, connection: Any, result: Any) -> None:
    """Like `settle`, through an async connection."""
    caller = recognise(connection)
    if caller.is_async is False:
        raise ConfigurationError(
            f"ctx.asucceed() cannot use the {caller.name} given as connection=: it is for sync code. "
            "Use ctx.succeed(…) on the thread that owns the connection."
        )
    jobs, settlement = _jobs(context), _announced(context, task, options, result)
    backend = task.app._store.unopened
    answer = await backend.asettle_on(connection, settlement)
    if jobs and answer is Answer.OK:
        await backend.aenqueue_on(connection, jobs)
    _accept(context, answer)


def _announced(context: Context, task: Task[..., Any], options: TaskOptions, result: Any) -> Settlement:
    """The settlement. The keeper is notified first: it must not mistake the end of this lease for a loss."""
    outcome = Outcome(kind=OutcomeKind.RETURNED, value=task._encode(result))
    lease = context._lease
    if context._reports is not None:
        context._reports.settles_itself(lease)
    # A job to be removed is the proof of the commit until the keeper has read it; then the keeper removes it.
    return settlement_for(lease.id, lease.token, outcome, retain=0.0 if options.remove else options.retain)


def _jobs(context: Context) -> list[NewJob]:
    """The jobs that go with the end; those that cannot are refused before it."""
    jobs = [] if context._children is None else list(context._children.jobs.values())
    refuse_parents(jobs)
    return jobs


def _driver_connection(connection: Any, caller: Caller) -> Any:
    """The driver's connection behind one of Django's; any other as it is."""
    if caller.library != "django":
        return connection
    from .django.transactions import django_connection, is_begun

    wrapper = django_connection(connection, "default")
    if not is_begun(wrapper):
        refuse_autocommit()
    wrapper.validate_no_broken_transaction()
    return wrapper.connection


def _accept(context: Context, answer: Answer) -> None:
    if answer is Answer.OK:
        context._settled = True
    elif answer is Answer.CANCELLED:
        context._cancelled = True
        raise CancelRequested
    elif answer is Answer.LOST:
        raise LeaseLost(context.id)
    else:
        raise BackendUnavailable(
            "another transaction holds this job at the moment. Nothing was settled; your transaction can continue."
        )
