"""Parsing and formatting of limits and rates.

Called by the commands that change them. Separate from parse.py, which --version and --help load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigurationError
from ..options.checks import LIFTED
from ..options.special import Special
from ..rates import UNLIMITED, parse_rate

RESET = "reset"  # how users write that an override is removed

if TYPE_CHECKING:  # generic for type checkers, a plain class in older supported versions of click
    WordType = click.ParamType[Any]
else:
    WordType = click.ParamType


class LimitWord(WordType):
    """5, none (lifts what the code declares) or reset (back to what the code declares)."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).strip().lower()
        if text in (RESET, LIFTED):
            return text
        if not (text.isascii() and text.isdigit() and 0 < int(text) <= UNLIMITED):
            self.fail(
                f"{value!r} is not a limit. Give 5, none to lift it, or reset for the code's own.",
                param,
                ctx,
            )
        return int(text)


class RateWord(WordType):
    """100/m, none or reset."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).strip().lower()
        if text in (RESET, LIFTED):
            return text
        try:
            parse_rate(text, "a rate")
        except ConfigurationError as error:
            self.fail(f"{error} Give none to lift it, or reset for the code's own.", param, ctx)
        return text


def reset_or(word: Any) -> Any:
    """The value to pass to the app for a limit or rate given here."""
    return {RESET: Special.RESET, LIFTED: Special.UNLIMITED}.get(word, word)


def limit_word(limit: int | None) -> str:
    """A limit for display; empty if there is none."""
    return "" if limit is None else LIFTED if limit >= UNLIMITED else str(limit)
