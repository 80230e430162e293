"""What an operator can change about a single job, checked before it reaches the store: edit, reschedule, revive with
edits, signals.

Called by `Operator` and `Dead`. New arguments are checked against the task's signature if the app has the task; else
the worker that has it checks them, as for `app.named`. Decides nothing about the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from .clock import to_seconds
from .codec import Refused, encode_json, encode_unseen
from .errors import ConfigurationError, InvalidArguments, JobNotFound
from .names import check_name, check_options
from .options import Duration, queue_name, whole
from .options.checks import PRIORITY_MAX
from .options.tasks import order_number
from .records import Edit, JobRecord
from .task import check_at

if TYPE_CHECKING:
    from .app import Holdfast
    from .backends.contract import Backend


def signal_value(name: str, value: Any, bytes_max: int) -> bytes:
    """The value of a signal as it is stored, after checking both."""
    check_name(name, "name of a signal")
    try:
        raw = encode_json(value)
    except Refused as refusal:
        raise InvalidArguments(f"signal {name}", str(refusal)) from None
    if len(raw) > bytes_max:
        raise InvalidArguments(f"signal {name}", f"the value takes {len(raw)} bytes, at most {bytes_max} are kept")
    return raw


class EditSettings(TypedDict, total=False):
    """What `app.edit` can change. What is not given stays."""

    args: Mapping[str, Any]  # all arguments, by name
    queue: Any
    group: str | None
    priority: int
    order: int | datetime | None
    delay: Duration | None
    at: datetime | None


def make_edit(settings: EditSettings, *, revive: bool = False) -> Edit:
    """A validated edit; its arguments are still to be encoded."""
    check_options("app.edit()", settings, EditSettings.__annotations__)
    delay, at = settings.get("delay"), settings.get("at")
    if delay is not None and at is not None:
        raise ConfigurationError("delay= and at= exclude each other. Give one of them.")
    group = settings.get("group")
    edit = Edit(
        queue=queue_name(settings["queue"]) if "queue" in settings else UNSET,
        group=UNSET if "group" not in settings else None if group is None else check_name(group, "group"),
        priority=_priority(settings),
        order=_order(settings),
        due_at=UNSET if at is None else check_at(at),
        delay=UNSET if delay is None else to_seconds(delay, "delay="),
        revive=revive,
    )
    if not revive and not edit.text and "args" not in settings:
        raise ConfigurationError("say what to change: args=, queue=, group=, priority=, order=, delay= or at=.")
    return edit


def _priority(settings: EditSettings) -> int | UnsetType:
    return whole(settings["priority"], "priority=", -PRIORITY_MAX, PRIORITY_MAX) if "priority" in settings else UNSET


def _order(settings: EditSettings) -> int | UnsetType | None:
    order = settings.get("order", UNSET)
    return order if order is UNSET or order is None else order_number(order)


def make_reschedule(delay: Duration | None, at: datetime | None) -> Edit:
    """A validated new due time."""
    if (delay is None) == (at is None):
        raise ConfigurationError("say when: delay= or at=.")
    return make_edit({"delay": delay, "at": at})


async def edit(
    app: Holdfast, id: str, args: Mapping[str, Any] | UnsetType, edit: Edit, by: str, backend: Backend
) -> JobRecord:
    """Edit one job. A job never changes its task, so the one that is read here is the one whose signature counts."""
    if args is not UNSET:
        found = await backend.get(id)
        if found is None:
            raise JobNotFound(id)
        edit = replace(edit, args=encoded(app, found.task, args))
    return await backend.edit(id, edit, by=by)


def encoded(app: Holdfast, name: str, args: Mapping[str, Any]) -> bytes:
    """New arguments of a job of this task, checked by its signature if the app has it."""
    if not isinstance(args, Mapping) or not all(isinstance(one, str) for one in args):
        raise ConfigurationError("args= takes all arguments by name, such as {'to': 'ann@example.com'}.")
    raw = encode_unseen(name, (), args, app.args_bytes_max)
    task = app.find_task(name)
    if task is not None:
        task._codec.bind((), args)
        task._decode(raw)
    return raw
