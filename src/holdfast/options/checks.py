"""Validation shared by several option objects, and the bounds for numbers.

Called by the options, the operator's half of the app, cron and the command line. Pure: a bad value raises a
ConfigurationError that names the option, a good one is returned in the form it is kept in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec import UNSET, UnsetType

from ..clock import to_seconds
from ..errors import ConfigurationError
from ..names import plain, shown
from ..rates import NO_RATE, UNLIMITED, Rate, parse_rate

Duration = float | timedelta
COUNT_MAX: Final = UNLIMITED  # for limits: more than any store holds, less than any store's integers
LIFTED: Final = "none"  # how users write that a limit or a rate is lifted


def whole(value: object, what: str, least: int, most: int | None = None) -> int:
    """`value` if it is an int in the range, else ConfigurationError naming `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        span = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise ConfigurationError(f"{what} must be an int {span}, not {shown(value)}.")
    return value


def one_of(value: object, what: str, choices: Sequence[str]) -> str:
    """`value` if it is one of the choices, else ConfigurationError listing them."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigurationError(f"{what} must be one of {', '.join(map(repr, choices))}, not {shown(value)}.")
    return plain(value)


def optional_seconds(what: str, least: float) -> Callable[[Any], float | None]:
    return lambda value: None if value is None else to_seconds(value, what, least=least)


def optional_whole(what: str, least: int, most: int | None = None) -> Callable[[Any], int | None]:
    return lambda value: None if value is None else whole(value, what, least, most)


def optional_rate(value: object, what: str = "rate=") -> Rate | None:
    """A declared rate, or None for no rate."""
    return None if value is None else parse_rate(value, what)


def said_limit(value: object, what: str) -> int | UnsetType | None:
    """An operator's limit: a number, "none" to lift the declared one, None to reset to it, UNSET to leave it."""
    if value is None or value is UNSET:
        return value
    if value == LIFTED:
        return UNLIMITED
    if isinstance(value, str):
        raise ConfigurationError(f'{what} must be an int of at least 1, "none" or None, not {shown(value)}.')
    return whole(value, what, 1, COUNT_MAX)


def said_rate(value: object, what: str) -> Rate | UnsetType | None:
    """An operator's rate, like `said_limit`."""
    if value is None or value is UNSET:
        return value
    return NO_RATE if value == LIFTED else parse_rate(value, what)
