"""Names: which are valid for queues, groups, keys, tasks, ids and options, how they are displayed, and new job ids.

Called by options, task, app and job before anything is stored. A bad name raises a ConfigurationError that says what is
wrong with it; a good one is returned unchanged, never trimmed or case-folded. Everything but `new_id` is pure.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .errors import ConfigurationError
from .lazy import import_lazily

if TYPE_CHECKING:
    import difflib
    import platform

    import msgspec
else:
    import_lazily(globals(), "difflib", "msgspec", "platform")

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


def check_queue(value: object, what: str = "queue name") -> str:
    """A queue name: like any name, but without braces (reserved by a store) and commas (they separate queues)."""
    name = check_name(value, what)
    for character in "{},":
        if character in name:
            raise ConfigurationError(
                f"the {what} {name!r} contains {character!r}, which is not allowed there. "
                "Use letters, digits, dots, dashes or underscores."
            )
    return name


def check_dead_queue(value: object, name: str) -> None:
    """Refuse what is no queue's name, and the queue itself; None is none."""
    if value is None:
        return
    check_queue(value, "dead_queue")
    if value == name:
        raise ConfigurationError(
            f"queue {name!r}: dead_queue= names the queue itself, so its dead jobs would run there again. Name another "
            "queue, or use retry= for more attempts."
        )


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


# ----------------------------------------------------------------------------------------------------------------------
# Option names: a typo raises a ConfigurationError that suggests the intended option, instead of Python's TypeError.
# Used wherever users pass options: the app, its queues, workers and cron entries, RetryPolicy, Revival. Signatures stay
# as they are, so type checkers find the same typos before anything runs.


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
        code = fn.__code__  # inspect.signature would cost every producer more
        known = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]
        extra: Mapping[str, Any] = {} if more is None else more.__annotations__
        known += extra

        @functools.wraps(fn)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            check_options(call, kwargs, known)
            return fn(*args, **kwargs)

        return checked

    return decorate


def renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn about an old spelling, which is kept for one release."""
    text = f"{old} is now {new}; the old spelling will be removed in version 0.2."
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


def once_public(owner: str, names: str) -> Callable[[object, str], Any]:
    """A `__getattr__` for internals that once had no underscore: the old spelling still works for one release."""
    internal = frozenset(names.split())

    def find(self: object, name: str) -> Any:
        if name not in internal:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        renamed(f"{owner}.{name}", f"internal, {owner}._{name}")
        return getattr(self, f"_{name}")

    return find


# ----------------------------------------------------------------------------------------------------------------------
# Job ids: UUID version 7 as canonical 36-character text, increasing within a process. The only I/O is reading system
# randomness. We generate them ourselves on every Python version because they must increase across the threads of a
# process and restart after a fork, which the standard library's `uuid7` (3.14) does not guarantee.


_COUNTER_BITS = 42  # below the millisecond: increases within it, so ids of one process sort in creation order
_COUNTER_LIMIT = 1 << _COUNTER_BITS
_COUNTER_SEED_LIMIT = 1 << (_COUNTER_BITS - 1)  # seeded in the lower half: leaves room for 2**41 ids per millisecond
_TAIL_DIGITS = 8  # random, in every id
_SEED_DIGITS = 12  # random, for the first id of each millisecond
_RANDOM_BYTES = 1024  # read at once: a read costs more than the rest of making an id


class _Source:
    """The last millisecond and counter used, plus unused random digits; guarded for threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._guard = threading.Lock()
        self._millisecond = 0
        self._counter = 0
        self._digits = ""
        self._used = 0

    def take(self) -> str:
        millisecond = time.time_ns() // 1_000_000
        with self._guard:
            if millisecond > self._millisecond:
                self._begin(millisecond)
            else:  # the same millisecond, or the wall clock went back: continue counting
                self._counter += 1
                if self._counter >= _COUNTER_LIMIT:
                    self._begin(self._millisecond + 1)
                elif not self._counter & 0xFFFF:
                    self._carry()
            return f"{self._opening}{self._counter & 0xFFFF:04x}{self._random(_TAIL_DIGITS)}"

    def _random(self, count: int) -> str:
        """Unused random digits."""
        used, self._used = self._used, self._used + count
        if self._used > len(self._digits):
            self._digits, used, self._used = os.urandom(_RANDOM_BYTES).hex(), 0, count
        return self._digits[used : self._used]

    def _begin(self, millisecond: int) -> None:
        self._millisecond = millisecond
        self._counter = int(self._random(_SEED_DIGITS), 16) % _COUNTER_SEED_LIMIT
        self._carry()

    def _carry(self) -> None:
        """Make the part that ids share until the last 16 bits of the counter overflow."""
        text, high = f"{self._millisecond & 0xFFFFFFFFFFFF:012x}", self._counter >> 16
        self._opening = f"{text[:8]}-{text[8:]}-7{high >> 14:03x}-{0x8000 | high & 0x3FFF:04x}-"


_source = _Source()
if hasattr(os, "register_at_fork"):
    # A child must not continue its parent's counter; the lock may have been held by a thread that no longer exists.
    os.register_at_fork(after_in_child=_source.forget)


def new_id() -> str:
    """A new id: sorts by creation time, unique across processes and machines."""
    return _source.take()


PROCESS_CHARS_MAX = 80


@functools.cache
def this_process() -> str:
    """This process as a job's timeline names who enqueued it: host:pid program."""
    path = PurePath(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c") else "python")
    program = path.parent.name if path.name == "__main__.py" else path.name
    return visible(f"{platform.node()}:{os.getpid()} {program}", "")[:PROCESS_CHARS_MAX].strip()


@functools.cache
def process_signature() -> bytes:
    """`this_process` as the stored options of a job that has no others."""
    return msgspec.json.encode({"by": this_process()})


def forget_process() -> None:
    """Forget cached facts about the process after a fork: this is a child."""
    this_process.cache_clear()
    process_signature.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_process)
