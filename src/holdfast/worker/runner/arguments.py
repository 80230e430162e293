"""The arguments of an attempt, with results of other jobs in their places where the call takes some.

Called by the attempt, first without and then with the store: what cannot be read there is a failure like any other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...context import Bury, Context
from ...errors import InvalidArguments
from ...headers import takes_results
from ...placeholders import ResultUnusable, filled, results_for

if TYPE_CHECKING:
    from ...task import Task


def decoded(task: Task[..., Any], context: Context) -> dict[str, Any] | None:
    """The arguments, rebuilt from annotations; None if they need results of other jobs first."""
    lease = context._lease
    return None if takes_results(lease.options) else task._decode(lease.args)


async def prepared(task: Task[..., Any], context: Context, arguments: dict[str, Any] | None) -> dict[str, Any]:
    """The arguments of an async handler. The results of its parents are read for it, too, if it takes a Context."""
    if task._wants_context and context._asks_parents() is not None:
        await context._load_parents()
    return await _with_results(task, context) if arguments is None else arguments


async def _with_results(task: Task[..., Any], context: Context) -> dict[str, Any]:
    try:
        found = await task.app._store.acall(partial(results_for, context.id, context._lease.args))
    except ResultUnusable as error:
        raise Bury(str(error)) from None
    return _put(task, context, found)


def with_results_here(task: Task[..., Any], context: Context) -> dict[str, Any]:
    """The arguments of a call that takes results of other jobs, in the thread of a sync handler."""
    try:
        found = task.app._store.call(partial(results_for, context.id, context._lease.args))
    except ResultUnusable as error:
        raise Bury(str(error)) from None
    return _put(task, context, found)


def _put(task: Task[..., Any], context: Context, found: dict[str, bytes]) -> dict[str, Any]:
    try:
        return task._decode(filled(context._lease.args, found))
    except InvalidArguments as error:
        ids = ", ".join(found)
        raise Bury(f"{error.why}. It takes results of other jobs ({ids}), and they do not fit.") from None
