"""One request, as pages and API see it: the visitor, the parameters, and what the visitor may see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ..redact import Redact
from . import formats
from .access import Access
from .store import Reads

Values = dict[str, Any]  # of a template


class NotFound(Exception):
    """There is no such job, group, queue or entry."""


@dataclass(frozen=True)
class Visit:
    """One request."""

    reads: Reads
    access: Access
    params: Mapping[str, str]
    root: str  # the prefix the dashboard is mounted under
    now: float  # the store's time
    redact: Redact
    read_only: bool

    def may(self, role: Any) -> bool:
        """Whether to offer an action; `store.Changes` is what enforces it."""
        return (role in ("view", "payload") or not self.read_only) and self.access.may(role)

    def link(self, page: str, /, **params: Any) -> str:
        """A link to another page."""
        given = {name: value for name, value in params.items() if value not in (None, "")}
        return f"{self.root}/{page}" + (f"?{urlencode(given)}" if given else "")

    def jobs(self, **conditions: str) -> str:
        """A link to the jobs that match."""
        return self.link("jobs", q=asked(conditions))

    def letters(self, **conditions: str) -> str:
        """A link to the dead letters that match."""
        return self.link("dead", q=asked(conditions))

    def args(self, task: str, args: Any) -> Any:
        """Arguments as this visitor may see them; None if not at all."""
        return self.redact(task, formats.plain(args)) if self.access.payload else None


def asked(conditions: Mapping[str, str]) -> str:
    """A query for these values, which are quoted: a group may contain spaces and quotes."""
    return " ".join(f"{name}:{formats.quoted(value)}" for name, value in conditions.items() if value)
