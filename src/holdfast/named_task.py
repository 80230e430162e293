"""A task that a program enqueues without having its code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from .codec import STAR, encode_awaiting, encode_unseen
from .errors import ConfigurationError
from .job import BoundCall, Job
from .names import renamed
from .options import TaskOptions
from .placeholders import AwaitsResults
from .task import Placement, UsingSettings, make_job, refine

if TYPE_CHECKING:
    from .app import Holdfast


class NamedTask:
    """A task known only by name, for producers without its code: the worker that has it validates the arguments."""

    def __init__(self, app: Holdfast, name: str, options: TaskOptions, placement: Placement) -> None:
        for what in ("group", "order", "key"):
            if callable(getattr(options, what)):
                raise ConfigurationError(
                    f"a task known by name takes a fixed {what}=, as its parameters are not known."
                )
        self.name = name
        self._app = app
        self._options = options
        self._placement = placement

    def options(self, **settings: Unpack[UsingSettings]) -> NamedTask:
        """A copy with more options."""
        return NamedTask(self._app, self.name, *refine(self._options, self._placement, settings))

    def using(self, **settings: Unpack[UsingSettings]) -> NamedTask:
        """The former name of `options`."""
        renamed(".using(…)", ".options(…)")
        return self.options(**settings)

    def bind(self, /, *args: Any, **kwargs: Any) -> BoundCall[Any]:
        options, placement = self._options, self._placement
        try:
            raw = encode_unseen(self.name, args, kwargs, self._app.args_bytes_max)
        except AwaitsResults:
            given: dict[str, Any] = {STAR: args, **kwargs} if args else kwargs
            raw, parents = encode_awaiting(self.name, given, self._app.args_bytes_max)
            placement = placement.awaiting(parents)
        group = options.group if isinstance(options.group, str) else None
        key = options.key if isinstance(options.key, str) else None
        order = options.order if isinstance(options.order, int) else None
        new = make_job(self.name, raw, options, placement, group=group, order=order, key=key)
        return BoundCall(new, placement.connection)

    def enqueue(self, /, *args: Any, **kwargs: Any) -> Job[Any]:
        return self._app.enqueue(self.bind(*args, **kwargs))

    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> Job[Any]:
        return await self._app.aenqueue(self.bind(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<NamedTask {self.name}>"
