"""Calls many shards at once, and separates shards that are silent from those that refuse.

Called by the router's modules. A silent shard (unreachable, or no reply) is collected, so that the results of the
others are not lost with it; each verb decides what a silence means. A refusal is a reply and is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from ...errors import BackendError, HoldfastError, OutcomeUnknown, StoreSealed
from .places import shares

T = TypeVar("T")

SILENCE = (BackendError, OutcomeUnknown)
REFUSED = (StoreSealed,)  # replies, although they are BackendErrors


class Answers(dict[str, T], Generic[T]):
    """The result of each shard; `silent` holds the errors of those that did not reply."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: dict[str, HoldfastError] = {}

    def of_all(self) -> Answers[T]:
        """Return these results if every shard replied; else raise."""
        for error in self.silent.values():
            raise error
        return self

    def of_some(self) -> Answers[T]:
        """Return these results if at least one shard replied, or none was called; else raise."""
        return self if self else self.of_all()


async def at_once(calls: Mapping[str, Awaitable[T]]) -> Answers[T]:
    """Make all calls concurrently and wait for all of them."""
    answers: Answers[T] = Answers()
    if len(calls) == 1:  # the common case needs no task
        for name, call in calls.items():
            try:
                answers[name] = await call
            except REFUSED:
                raise
            except SILENCE as error:
                answers.silent[name] = error
        return answers
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    refusal: BaseException | None = None
    for name, result in zip(calls, results, strict=True):
        if isinstance(result, SILENCE) and not isinstance(result, REFUSED):
            answers.silent[name] = result
        elif isinstance(result, BaseException):
            refusal = refusal or result
        else:
            answers[name] = result
    if refusal is not None:
        raise refusal
    return answers


async def spread(
    total: int, names: Sequence[str], ask: Callable[[str, int], Awaitable[T]], size: Callable[[T], int]
) -> list[T]:
    """Divide `total` among shards, call them at once, and give what some could not use to those that used up theirs.

    Every shard is called, unless `total` is used up before. Raises only if no shard replied.
    """
    found: list[T] = []
    asked: set[str] = set()
    willing = list(names)
    error: HoldfastError | None = None
    while total > 0 and willing:
        portions = shares(total, willing)
        answers = await at_once({name: ask(name, portion) for name, portion in portions.items()})
        error = error or next(iter(answers.silent.values()), None)
        found += answers.values()
        total -= sum(map(size, answers.values()))
        asked.update(portions)
        used_up = {name for name, answer in answers.items() if size(answer) >= portions[name]}
        willing = [name for name in willing if name not in portions or name in used_up]
        willing.sort(key=lambda name: name in asked)  # shards not called yet go first
    if error is not None and not found:
        raise error
    return found
