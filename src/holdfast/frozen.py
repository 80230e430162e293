"""Immutable values with a constructor of their own, such as RetryPolicy, and what a value may show of itself.

Used where `msgspec.Struct` does not fit: a Struct takes exactly its fields. A dataclass would compile its methods from
text at every import, half a millisecond each, in every producer and every runner. Knows no other module.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from msgspec import Struct


class Frozen:
    """Values of a class are equal if all their slots are. The constructor sets them with `put`."""

    __slots__: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"cannot assign to field {name!r}: a {type(self).__name__} does not change")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete field {name!r}: a {type(self).__name__} does not change")

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            put(self, name, value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return Frozen.__getstate__(self) == Frozen.__getstate__(other)

    def __hash__(self) -> int:
        return hash(Frozen.__getstate__(self))

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in type(self).__annotations__)
        return f"{type(self).__qualname__}({', '.join(shown)})"


put = object.__setattr__  # for constructors


class Discreet(Struct, frozen=True):
    """A Struct that shows what its `__repr__` says, and no fields, in rich's tracebacks, too."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("shown", repr(self))]
