"""Unique keys: how long a job holds its key, and what happens to a call that conflicts with it.

Called by the task options, which must not contradict themselves, and by calls, which put the result into the job. Pure.
Users choose among six values of `on_conflict`; stores implement four, and two points until which a key is held.
The others are built from these here and nowhere else.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from ..errors import ConfigurationError
from ..names import NAME_LENGTH_MAX
from ..records import SERIAL_PREFIX, Conflict, KeyScope, KeyUntil

if TYPE_CHECKING:
    from .tasks import TaskOptions

OnConflict = Literal["keep", "replace", "raise", "debounce", "throttle", "keep_last"]

# Reset when on_conflict changes, or when a call has no key.
FRESH_BY_CONFLICT: dict[str, Any] = {"key_until": None, "window": None, "wait": None, "wait_max": None}
FRESH_BY_KEY: dict[str, Any] = {**FRESH_BY_CONFLICT, "on_conflict": "keep", "key_scope": "queue"}
_STORED: dict[OnConflict, Conflict] = {"throttle": "keep", "keep_last": "replace"}
_STARTED = ("debounce", "keep_last")  # the key is free for the next call once the job has started
_HASH_CHARS = 32


class Holding(Struct, frozen=True):
    """How one job holds its key, in the contract's terms."""

    on_conflict: Conflict = "keep"
    key_scope: KeyScope = "queue"
    key_until: KeyUntil = "finished"
    key_window: float | None = None
    delay: float | None = None  # debounce: how long each call delays it
    wait_max: float | None = None
    group: str | None = None  # keep_last: keeps the waiting job from running beside the running one


def how_held(options: TaskOptions, task: str, key: str | None) -> Holding:
    """How a job of this task holds this key."""
    if key is None:
        return Holding()
    word = options.on_conflict
    return Holding(
        on_conflict=_STORED.get(word) or word,  # type: ignore[arg-type]
        key_scope=options.key_scope,
        key_until="started" if word in _STARTED else options.key_until or "finished",
        key_window=options.window,
        delay=options.wait,
        wait_max=options.wait_max,
        group=serial_group(f"{task}/{key}") if word == "keep_last" else None,
    )


def serial_group(name: str) -> str:
    """A group that runs one job at a time in every queue; a long name is truncated and ends in its hash."""
    text = SERIAL_PREFIX + name
    if len(text) <= NAME_LENGTH_MAX:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]
    return f"{text[: NAME_LENGTH_MAX - _HASH_CHARS - 1]}~{digest}"


def check_holding(options: TaskOptions) -> None:
    """Reject options that contradict each other or would be ignored."""
    if options.key is None:
        _check_keyless(options)
        return
    word = options.on_conflict
    if options.window is not None and options.key_until is not None:
        raise ConfigurationError(
            "window= and key_until= exclude each other: a key is held for so many seconds, or until the job started or "
            "finished. Give one of them."
        )
    if word == "throttle" and options.window is None:
        raise ConfigurationError('on_conflict="throttle" needs window=: the seconds within which one job is made.')
    if word == "debounce" and options.wait is None:
        raise ConfigurationError('on_conflict="debounce" needs wait=: the seconds of calm after which the job is due.')
    if word != "debounce" and (options.wait is not None or options.wait_max is not None):
        raise ConfigurationError(f'wait= and wait_max= belong to on_conflict="debounce", not to {word!r}.')
    if options.wait is not None and options.wait_max is not None and options.wait_max < options.wait:
        raise ConfigurationError(
            f"wait_max={options.wait_max:g} s is shorter than wait={options.wait:g} s. Raise wait_max or leave it out."
        )
    if word in _STARTED and options.window is not None:
        raise ConfigurationError(f"on_conflict={word!r} frees the key when the job starts. Leave out window=.")
    if word in _STARTED and options.key_until == "finished":
        raise ConfigurationError(f"on_conflict={word!r} frees the key when the job starts. Leave out key_until=.")
    if word == "throttle" and options.key_until is not None:
        raise ConfigurationError('on_conflict="throttle" holds the key for its window=. Leave out key_until=.')
    if word == "keep_last":
        _check_keep_last(options)


def _check_keyless(options: TaskOptions) -> None:
    given = [name for name, unset in FRESH_BY_KEY.items() if getattr(options, name) != unset]
    if given:
        raise ConfigurationError(f"{given[0]}= says what holds for jobs of one key. Give key= too.")


def _check_keep_last(options: TaskOptions) -> None:
    if options.group is not None:
        raise ConfigurationError(
            'on_conflict="keep_last" runs the jobs of a key one at a time in a group of its own. Leave out group=.'
        )
    if options.key_scope == "global":
        raise ConfigurationError(
            'on_conflict="keep_last" runs the jobs of a key one at a time, and only within one queue. '
            'Leave out key_scope="global".'
        )
