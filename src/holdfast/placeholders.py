"""Results of other jobs as arguments: `add.bind(a.result, 3)`, where the job of `a` has yet to run.

Bound by tasks, put in place by the runner just before the handler is called. In the store a placeholder is the object
{"$result": "job id"} among the arguments, and the call's options say that there are some; so arguments that look like
one are never mistaken for it. Pure, except for `results_for`, which reads from the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from .dependencies import Relative
from .errors import ConfigurationError, InvalidArguments
from .lifecycle import State

if TYPE_CHECKING:
    from .backends.contract import Backend

KEY = "$result"
MARK = b'"$result":'  # in JSON, where quotes inside of strings are escaped
PAGE = 1000  # parents that are read at once


class Placeholder:
    """Stands for the result of a job in the arguments of another one. Type checkers see the result's own type."""

    __slots__ = ("job_id",)

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id

    def __repr__(self) -> str:
        return f"<result of job {self.job_id}>"

    def _unknown(self, *_: object) -> NoReturn:
        raise ConfigurationError(
            f"the result of job {self.job_id} is not known yet. Pass it on as an argument, as it is, and use it in the "
            "task that gets it."
        )

    __str__ = __bool__ = __format__ = __iter__ = __len__ = __getitem__ = __int__ = __float__ = _unknown


class AwaitsResults(InvalidArguments):
    """The arguments contain a placeholder; raised when they are encoded, and caught when a call is bound."""

    def __init__(self, placeholder: Placeholder) -> None:
        super().__init__("", f"{placeholder!r} is an argument of task.bind(…) and enqueue(…) only")


def places_of(value: Any) -> list[str]:
    """The ids of the jobs whose results decoded arguments refer to."""
    if isinstance(value, dict):
        if value.keys() == {KEY}:
            return [value[KEY]]
        return [id for one in value.values() for id in places_of(one)]
    return [id for one in value for id in places_of(one)] if isinstance(value, list) else []


def filled(args: bytes, results: Mapping[str, bytes]) -> bytes:
    """Stored arguments with the results in place, as JSON."""

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {KEY}:
                return msgspec.Raw(results[value[KEY]])
            return {name: fill(one) for name, one in value.items()}
        return [fill(one) for one in value] if isinstance(value, list) else value

    return msgspec.json.encode(fill(msgspec.json.decode(args)))


async def results_for(job_id: str, args: bytes, backend: Backend) -> dict[str, bytes]:
    """The results that a job's arguments name, as JSON. ResultUnusable says which one is unavailable, and why."""
    wanted = {id: name for name, value in msgspec.json.decode(args).items() for id in places_of(value)}
    found: dict[str, Relative] = {}
    beyond = ""
    while len(found) < len(wanted):
        page = (await backend.relatives(job_id, limit=PAGE, values=True, beyond=beyond)).parents
        found.update((one.id, one) for one in page if one.id in wanted)
        if len(page) < PAGE:
            break
        beyond = page[-1].id
    for id, name in wanted.items():
        parent = found.get(id)
        if parent is None:
            there = await backend.get(id) is not None
            raise ResultUnusable(name, id, "that is not one of its parents" if there else "that is gone")
        if parent.state is not State.SUCCEEDED:
            raise ResultUnusable(name, id, f"that is {parent.state.value} and has none")
    return {id: parent.value or b"null" for id, parent in found.items()}


class ResultUnusable(Exception):
    """The result of another job cannot be an argument; the job is buried with this text."""

    def __init__(self, parameter: str, job_id: str, why: str) -> None:
        super().__init__(
            f"parameter {parameter!r} is the result of job {job_id}, and {why}. Edit the arguments, or revive both."
        )
