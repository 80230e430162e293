"""Messages in flight: calls to a store that are carried out later than the next is sent, replies lost, late or doubled.

Called by the walk in in_flight.py, which decides what becomes of each message. A `Wire` is a connection: what is asked
through it becomes a message of the `Air`. The time of a call is when it is carried out, not when it was sent.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.backends.contract import Backend
from holdfast.errors import BackendUnavailable, HoldfastError, OutcomeUnknown


@dataclass(eq=False)
class Message:
    """One call. `reply` is what its caller waits for; it is done once the caller has an answer or gave up."""

    store: Backend
    place: str
    verb: str
    arguments: dict[str, Any]
    reply: asyncio.Future[Any]
    carried_out: int = 0
    answer: Any = None
    error: HoldfastError | None = None

    @property
    def awaited(self) -> bool:
        return not self.reply.done()


@dataclass
class Air:
    """All messages under way. While it is `calm`, every call is carried out and answered at once."""

    now: float
    watch: Callable[[Message], None]  # told of everything that is carried out, heard by its caller or not
    calm: bool = True
    messages: list[Message] = field(default_factory=list)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # `watch` is told of one call before the next is made

    async def send(self, store: Backend, place: str, verb: str, arguments: dict[str, Any]) -> Any:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        message = Message(store, place, verb, arguments, reply)
        if self.calm:
            await self.carry_out(message)
            self.answer(message)
        else:
            self.messages.append(message)
        return await reply

    async def carry_out(self, message: Message) -> None:
        """The store gets it; for the second time, perhaps: then nobody hears that answer."""
        async with self.turn:
            arguments = message.arguments
            if "now" in arguments:
                arguments = {**arguments, "now": self.now}
            try:
                answer = await getattr(message.store, message.verb)(**arguments)
                message.answer, message.error = answer, None
            except HoldfastError as error:
                message.error = error
            message.carried_out += 1
            if message.error is None:
                self.watch(message)

    def answer(self, message: Message) -> None:
        if message.awaited and message.error is not None:
            message.reply.set_exception(message.error)
        elif message.awaited:
            message.reply.set_result(message.answer)

    def give_up(self, message: Message) -> None:
        """Its caller hears nothing. It stays in the air: it may still be carried out, however late."""
        if message.awaited:
            message.reply.set_exception(OutcomeUnknown(message.verb))

    def refuse(self, message: Message) -> None:
        """It never gets there, and its caller knows."""
        self.messages.remove(message)
        if message.awaited:
            message.reply.set_exception(BackendUnavailable(f"{message.verb}: cut off. Nothing to do."))

    def of(self, want: Callable[[Message], bool]) -> list[Message]:
        """Some of the messages, in an order that does not depend on the run."""
        return sorted((one for one in self.messages if want(one)), key=lambda one: (one.place, one.verb))


@functools.cache
def _signature(verb: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(verb)


class Wire:
    """One connection to a store: all it is asked becomes messages."""

    def __init__(self, air: Air, store: Backend, place: str = "") -> None:
        self.air, self.store, self.place = air, store, place

    async def open(self) -> None:
        """It is open already."""

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self.store, verb)
        if not inspect.iscoroutinefunction(real):
            return real
        signature = _signature(real.__func__)

        async def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(self.store, *args, **kwargs)
            bound.apply_defaults()
            named = dict(bound.arguments)
            del named["self"]
            return await self.air.send(self.store, self.place, verb, named)

        return call
