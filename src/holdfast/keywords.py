"""Option names: a typo raises a ConfigurationError that suggests the intended option, instead of Python's TypeError.

Used wherever users pass options: the app, its queues, workers and cron entries, RetryPolicy, Revival. Pure. Signatures
stay as they are, so type checkers find the same typos before anything runs.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from .errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


def nearest(word: str, known: Iterable[str]) -> str:
    """ " Did you mean …?" with a leading space, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def check_options(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Reject options that the call does not have."""
    options = sorted(known)
    for name in given:
        if name not in options:
            raise ConfigurationError(
                f"{call} has no option {name[:60]!r}.{nearest(name[:60], options)} It takes {', '.join(options)}."
            )


def known_options(call: str, more: type[Any] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function whose keywords are options; `more` is the TypedDict of what it takes as `**settings`."""

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        keywords = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(fn).parameters.values()
        known = [one.name for one in parameters if one.kind in keywords and one.name != "self"]
        extra: Mapping[str, Any] = {} if more is None else more.__annotations__
        known += extra

        @functools.wraps(fn)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            check_options(call, kwargs, known)
            return fn(*args, **kwargs)

        return checked

    return decorate
