"""Sentry: one event for each attempt that fails, with task, queue, job id and attempt as tags, without arguments.

`instrument(app)` is the public face. Needs the extra `sentry`; your program calls `sentry_sdk.init` itself. Built on
`app.around`, `app.on` and `app.on_shutdown`, like any code of your own. `Retry`, `Snooze`, `Bury` and a cancelled
attempt are no errors. Frames are sent without their variables: those have the job's arguments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from .context import Context, Resources
from .errors import ConfigurationError
from .events import Failed, JobEvent, Stalled

try:
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
except ImportError as error:
    raise ConfigurationError(
        f"this needs {error.name}, which is not installed. Install it: pip install 'holdfast[sentry]'."
    ) from None

if TYPE_CHECKING:
    from .app import Holdfast

__all__ = ["instrument"]

FLUSH_SECONDS = 2.0
_UNSEEN = ("timeout", "undecodable")  # failures that no handler raised
_instrumented: WeakSet[Holdfast] = WeakSet()


def instrument(app: Holdfast, *, local_variables: bool = False) -> None:
    """Report failed attempts, timeouts and stalls of this app. Call it once, where the app is made.

    With `local_variables`, frames keep their variables, as set by `sentry_sdk.init`; these include the jobs' arguments.
    """
    if app in _instrumented:
        raise ConfigurationError("this app is instrumented already. Call holdfast.sentry.instrument() once.")
    _instrumented.add(app)
    ignore_logger("holdfast.jobs")  # the worker logs failures, too: one event is enough

    @contextmanager
    def attempt(ctx: Context) -> Iterator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tags(_tags(ctx.task, ctx.queue, ctx.id, ctx.attempt))
            scope.set_tag("holdfast.last_attempt", ctx.last_attempt)
            scope.set_transaction_name(ctx.task, source="task")
            if not local_variables:
                scope.add_event_processor(_without_variables)
            try:
                yield
            except Exception as error:  # verdicts and cancellation are no Exception
                sentry_sdk.capture_exception(error)
                raise

    def call(ctx: Context, call_next: Callable[[], Any]) -> Any:
        with attempt(ctx):
            return call_next()

    async def acall(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        with attempt(ctx):
            return await call_next()

    app.around(call, acall)
    app.on("failed")(_failed)
    app.on("stalled")(_stalled)
    app.on_shutdown(_flush)


def _failed(event: Failed) -> None:
    """A failure that the middleware cannot see."""
    if event.error is not None and event.error.reason in _UNSEEN:
        _report(event, f"{event.task}: {event.error.reason}")


def _stalled(event: Stalled) -> None:
    _report(event, f"{event.task} stalled: its process died, or its worker fell silent")


def _report(event: JobEvent, text: str) -> None:
    with sentry_sdk.isolation_scope() as scope:
        scope.set_tags(_tags(event.task, event.queue, event.job_id, event.attempt))
        sentry_sdk.capture_message(text, level="error")


def _tags(task: str, queue: str, job_id: str, attempt: int) -> dict[str, str | int]:
    return {
        "holdfast.task": task,
        "holdfast.queue": queue,
        "holdfast.job_id": job_id,
        "holdfast.attempt": attempt,
    }


def _without_variables(event: Any, hint: Any) -> Any:
    """The event without the variables of its frames."""
    for error in (event.get("exception") or {}).get("values") or ():
        for frame in (error.get("stacktrace") or {}).get("frames") or ():
            frame.pop("vars", None)
    return event


def _flush(resources: Resources) -> None:
    """Runners end without Python's own clean-up, so what is still to be sent is sent here."""
    sentry_sdk.flush(timeout=FLUSH_SECONDS)
