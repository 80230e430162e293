"""Fan-out: one event becomes one job for each task that subscribed to its topic.

Called by `app.publish`. Which tasks subscribe is declared in code, `@app.task(subscribes="order.paid")`, so a publisher
must have imported them; nothing about it is stored. Decides nothing about the store: the jobs are enqueued like any
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .errors import ConfigurationError, InvalidArguments
from .names import check_name, nearest

if TYPE_CHECKING:
    from .app import Holdfast
    from .job import BoundCall
    from .task import Task, UsingSettings


def calls(
    app: Holdfast, topic: str, payload: Mapping[str, Any] | None, settings: UsingSettings
) -> list[BoundCall[Any]]:
    """A call for each subscriber, with those values of the payload that it has parameters for.

    With `id`, each call gets an id derived from it, so that a repeated event creates no second job.
    """
    check_name(topic, "topic")
    payload = {} if payload is None else payload
    if not isinstance(payload, Mapping) or not all(isinstance(name, str) for name in payload):
        raise ConfigurationError("an event's payload is its values by name, such as {'order': 7}.")
    found = [task for task in app.tasks.values() if topic in task.defaults.subscribes]
    if not found:
        known = sorted({name for task in app.tasks.values() for name in task.defaults.subscribes})
        raise ConfigurationError(
            f"no task here subscribes to {topic!r}.{nearest(topic, known)} Import the modules of its subscribers "
            f'first, or declare one: @app.task(subscribes="{topic}").'
        )
    return [_call(task, topic, payload, settings) for task in found]


def _call(task: Task[..., Any], topic: str, payload: Mapping[str, Any], settings: UsingSettings) -> BoundCall[Any]:
    own: UsingSettings = settings.copy()
    if "id" in settings:
        own["id"] = f"{settings['id']}:{task.name}"
    try:
        return task.options(**own).bind(**{name: payload[name] for name in task._codec.names if name in payload})
    except InvalidArguments as error:
        raise InvalidArguments(
            task.name, f"it subscribes to {topic!r}, whose payload does not fit it: {error.why}"
        ) from None
