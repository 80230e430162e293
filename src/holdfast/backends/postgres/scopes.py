"""What a pause or an operator's word is about, as its row is found: by kind, queue and name.

Called by backend.py. Pure.
"""

from __future__ import annotations

from typing import Any

from ...errors import ConfigurationError
from ...records import Pause
from ...rules import Override

Scope = dict[str, Any]  # kind, queue, name: parameters of a statement


def scope(said: Pause | Override, what: str) -> Scope:
    """kind, queue and name (of the group or task). Exactly one of queue, queue + group, task must be named."""
    if said.task is not None and said.queue is None and said.group is None:
        return {"kind": "task", "queue": "", "name": said.task}
    if said.task is None and said.queue is not None:
        if said.group is None:
            return {"kind": "queue", "queue": said.queue, "name": ""}
        return {"kind": "group", "queue": said.queue, "name": said.group}
    raise ConfigurationError(f"{what} is of a queue, of a group (queue and group) or of a task. Name one of them.")


def named(place: Scope) -> str:
    """That scope in words."""
    return f"{place['kind']} {place['name'] or place['queue']!r}"
