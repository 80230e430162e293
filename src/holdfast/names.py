"""The rules for valid names: of queues, groups, keys, tasks and user-supplied ids.

Called by options, task, app and job before anything is stored. Pure. A bad name raises a ConfigurationError that
says what is wrong with it; a good one is returned unchanged, never trimmed or case-folded.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from pathlib import PurePath
from types import FunctionType
from typing import Any

from .errors import ConfigurationError

NAME_LENGTH_MAX = 200
TEXT_LENGTH_MAX = 2000


def plain(text: str) -> str:
    """A plain str from a subclass (markupsafe.Markup, Django's SafeString): drivers and encoders reject subclasses."""
    return text if type(text) is str else str.__str__(text)


def shown(value: object, most: int = 60) -> str:
    """A value as an error message shows it: truncated if long; never raises."""
    try:
        text = repr(value)
    except Exception:  # an int of more than 4,300 digits, or whatever a user's class raises
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= most else f"{text[:most]}…"


# Characters that control a terminal or make one name look like another: controls, bidi and zero-width marks, line ends.
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Zl", "Zp", "Cs")


def visible(text: str, kept: str = "\n\t") -> str:
    """The text with such characters escaped: no name or handler text may control a terminal or deceive its reader."""
    if text.isprintable():
        return text
    return "".join(c if c in kept or unicodedata.category(c) not in _HIDDEN_CATEGORIES else _spelt(c) for c in text)


def _spelt(character: str) -> str:
    point = ord(character)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def visible_json(document: str) -> str:
    """JSON with such characters escaped as JSON does it: the same value, and nothing in it controls a terminal."""
    if document.isprintable():
        return document
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in _HIDDEN_CATEGORIES else _json_escape(c) for c in document
    )


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


def check_name(value: object, what: str) -> str:
    """`value` if it is a valid name for a `what` (group, key, task, id …), else ConfigurationError."""
    if type(value) is str and 0 < len(value) <= NAME_LENGTH_MAX and value.isascii() and value.isprintable():
        return value  # the common case, decided at C speed
    if not isinstance(value, str):
        raise ConfigurationError(f"the {what} must be a str, not {type(value).__name__}. Give it as text.")
    if not value:
        raise ConfigurationError(f"the {what} is empty. Give at least one character, or leave it out.")
    if len(value) > NAME_LENGTH_MAX:
        raise ConfigurationError(
            f"the {what} has {len(value)} characters; at most {NAME_LENGTH_MAX} are allowed. "
            "Shorten it, for instance by a hash of its long part."
        )
    for place, character in enumerate(value):
        point = ord(character)
        if point < 0x20 or 0x7F <= point <= 0x9F or point in (0x2028, 0x2029):
            raise ConfigurationError(
                f"the {what} has a control character (U+{point:04X}) at position {place}. Remove it."
            )
        if 0xD800 <= point <= 0xDFFF:
            raise ConfigurationError(
                f"the {what} has a lone surrogate (U+{point:04X}) at position {place}, which is not text. "
                "Decode it properly (errors='replace') first."
            )
    return plain(value)


def check_text(value: object, what: str) -> str:
    """Free text to be stored, such as a reason: a str that can be encoded, of bounded length; may be empty."""
    if not isinstance(value, str):
        raise ConfigurationError(f"the {what} must be a str, not {type(value).__name__}. Give it as text.")
    if len(value) > TEXT_LENGTH_MAX:
        raise ConfigurationError(
            f"the {what} has {len(value)} characters; at most {TEXT_LENGTH_MAX} are kept. Shorten it."
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"the {what} has a lone surrogate, which is not text. Decode it properly.") from None
    return plain(value)


def check_list(value: object, what: str) -> tuple[Any, ...]:
    """An iterable as a tuple; a single str counts as one item."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise ConfigurationError(f"{what} takes a list, not {type(value).__name__}. Put it in brackets.")
    return tuple(value)


def check_queue(value: object) -> str:
    """A queue name: like any name, but without braces (reserved by a store) and commas (they separate queues)."""
    name = check_name(value, "queue name")
    for character in "{},":
        if character in name:
            raise ConfigurationError(
                f"the queue name {name!r} contains {character!r}, which is not allowed there. "
                "Use letters, digits, dots, dashes or underscores."
            )
    return name


def default_task_name(fn: FunctionType) -> str:
    """module.qualname, with `__main__` replaced by the file's stem, so that a worker importing the file agrees."""
    if "<locals>" in fn.__qualname__ or fn.__name__ == "<lambda>":
        raise ConfigurationError(
            f"{fn.__qualname__} is a local function: its name is not stable. Move it to its module, or give name=."
        )
    module = fn.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        if spec is not None and not spec.name.endswith("__main__"):
            module = spec.name  # python -m package.module
        elif (getattr(main, "__file__", None) or "<").startswith("<"):
            pass  # typed at a prompt: no file, so no worker could agree
        else:
            module = PurePath(str(main.__file__)).stem
    return check_name(f"{module}.{fn.__qualname__}", "task name")
