"""Replaces the placeholders in a call's arguments by the results of the jobs they name.

Called by the attempt. Results that do not exist or do not fit bury the job; a store that cannot be read is an ordinary
failure.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...context import Bury, Context
from ...errors import InvalidArguments
from ...headers import TAKES_RESULTS as TAKES_RESULTS
from ...headers import first_id
from ...placeholders import ResultUnusable, filled, results_for

if TYPE_CHECKING:
    from ...task import Task


async def with_results(task: Task[..., Any], context: Context) -> dict[str, Any]:
    """The arguments of an async handler."""
    try:
        found = await task.app._store.acall(partial(results_for, *_asked(context)))
    except ResultUnusable as error:
        raise Bury(str(error)) from None
    return _put(task, context, found)


def with_results_here(task: Task[..., Any], context: Context) -> dict[str, Any]:
    """The arguments of a sync handler; called in its thread."""
    try:
        found = task.app._store.call(partial(results_for, *_asked(context)))
    except ResultUnusable as error:
        raise Bury(str(error)) from None
    return _put(task, context, found)


def _asked(context: Context) -> tuple[str, bytes]:
    """The job whose parents have the results, and the arguments that name them. A copy of a dead job has no parents."""
    return first_id(context._lease.options, context.id), context._lease.args


def _put(task: Task[..., Any], context: Context, found: dict[str, bytes]) -> dict[str, Any]:
    try:
        return task._decode(filled(context._lease.args, found))
    except InvalidArguments as error:
        ids = ", ".join(found)
        raise Bury(f"{error.why}. It takes results of other jobs ({ids}), and they do not fit.") from None
