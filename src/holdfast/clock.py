"""Clocks: the wall clock, and a steady clock that never jumps and keeps running while the machine is suspended.

Called by the stores (lease deadlines, due times), the worker and tests. Decides nothing and never sleeps: waiting is
up to the caller. Lease deadlines are stored as steady-clock readings together with `boot_id`, because a steady
reading is meaningless after a reboot.
"""

from __future__ import annotations

import functools
import math
import re
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol, runtime_checkable

from .errors import ConfigurationError
from .names import shown

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d|w)")
SECONDS_MAX = 3_200_000_000.0  # about a century: keeps every due time within datetime's range


def to_seconds(value: float | timedelta, what: str, *, least: float = 0.0) -> float:
    """A duration as float seconds; ConfigurationError naming `what` if it is no duration, negative, infinite or NaN."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = type(value).__name__
        raise ConfigurationError(f"{what} must be seconds (a number) or a timedelta, not {kind}.")
    if not least <= value <= SECONDS_MAX:  # NaN fails both comparisons
        raise ConfigurationError(f"{what} must be between {least:g} and {SECONDS_MAX:g} seconds, not {shown(value)}.")
    return float(value)


def duration_seconds(text: str) -> float | None:
    """Seconds in a duration like 1h30m; None if it is not one."""
    text = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        return None
    return float(sum(float(amount) * _UNITS[unit] for amount, unit in parts))


def moment(value: float) -> datetime:
    """A store's wall-clock seconds as an aware datetime, for display."""
    return datetime.fromtimestamp(value, UTC)


@runtime_checkable
class Clock(Protocol):
    """The clock readings a store needs."""

    def wall(self) -> float:
        """Seconds since the epoch; jumps when the system clock is set."""
        ...

    def steady(self) -> float:
        """Seconds on a clock that only moves forward, at a constant rate, and keeps running during suspend."""
        ...


def read_steady() -> float:
    """Read the machine's steady clock."""
    # CLOCK_MONOTONIC stops during suspend on Linux; on macOS the clock of that name keeps running, while
    # time.monotonic() does not. Both choices keep a lease from outliving its deadline on a laptop that slept.
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    if sys.platform == "win32":
        return time.monotonic()
    return time.clock_gettime(_STEADY_CLOCK)


_STEADY_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 1))


class SystemClock:
    """The machine's own clocks."""

    def wall(self) -> float:
        return time.time()

    steady = staticmethod(read_steady)  # read several times for each exchange


class ManualClock:
    """A clock that moves only when advanced; both readings move together. For tests; thread-safe."""

    def __init__(self, start: float | None = None) -> None:
        self._guard = threading.Lock()
        self._wall = time.time() if start is None else float(start)
        self._steady = 1000.0

    def wall(self) -> float:
        with self._guard:
            return self._wall

    def steady(self) -> float:
        with self._guard:
            return self._steady

    def advance(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> float:
        """Move forward and return the new wall time."""
        step = seconds + 60.0 * minutes + 3600.0 * hours + 86400.0 * days
        if not 0.0 <= step < float("inf"):
            raise ConfigurationError(f"a clock advances by a finite time of at least 0 s, not {step!r}.")
        with self._guard:
            self._wall += step
            self._steady += step
            return self._wall

    def __repr__(self) -> str:
        return f"ManualClock({self.wall()!r})"


@functools.cache
def boot_id() -> str:
    """An id shared by all processes of one boot of this machine, new after a reboot; "" if unknown."""
    if sys.platform == "linux":
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return ""
    if sys.platform == "darwin":
        return _boot_id_darwin()
    if sys.platform == "win32":
        return _boot_id_windows()
    return ""


def _boot_id_darwin() -> str:
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        size = ctypes.c_size_t(64)
        text = ctypes.create_string_buffer(size.value)
        failed = libc.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, ctypes.c_size_t(0))
    except (OSError, AttributeError):
        return ""
    return "" if failed else text.value.decode("ascii", "replace")


def _boot_id_windows() -> str:
    if sys.platform != "win32":
        return ""
    import winreg

    path = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
            return str(winreg.QueryValueEx(key, "BootId")[0])
    except OSError:
        return ""


# ----------------------------------------------------------------------------------------------------------------------
# Periodic checks of an idle worker. Each wake-up of a process costs more than most checks, so they share them.


TICK_SECONDS = 0.5
_PHASE = time.monotonic() % TICK_SECONDS  # of this process: workers of one host must not all wake at the same instant


def until_tick(seconds: float, now: float | None = None) -> float:
    """How long to sleep instead of `seconds`: until the last tick within them, shared by all checks of this process.

    Not longer by more than half a millisecond, and shorter by less than a tick. `now` is on the clock of event loops;
    pauses below a tick stay.
    """
    if seconds < TICK_SECONDS:
        return seconds
    now = time.monotonic() if now is None else now
    ticks = (now - _PHASE + seconds) / TICK_SECONDS + 1e-3  # a timer may fire a little early
    return math.floor(ticks) * TICK_SECONDS + _PHASE - now
