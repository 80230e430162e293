"""Where claims begin to look while an old snapshot keeps the entries of jobs that are gone: see statements/floors.sql.

Used by backend.py. The server works the floors out and reads them; here they are remembered between two calls, and
forgotten when the snapshot is gone. Never decides what may be claimed.
"""

from __future__ import annotations

from typing import Any

FULL_EVERY_SECONDS = 1.0
FULL_SHARE = 20.0  # a full look takes no more than one part in so many of the time


class Floors:
    """What one backend remembers. Times are of a steady clock."""

    def __init__(self) -> None:
        self._told: dict[str, Any] | None = None  # None: not in use
        self._full_at = 0.0

    @property
    def told(self) -> dict[str, Any] | None:
        return self._told

    def use(self, on: bool) -> None:
        if not on:
            self._told = None
        elif self._told is None:
            self._told, self._full_at = {}, 0.0

    def asked(self, now: float, *, full: bool) -> dict[str, Any] | None:
        """What a claim is to say; None: nothing."""
        if self._told is None:
            return None
        return {**self._told, "full": full or now >= self._full_at}

    def answered(self, said: dict[str, Any], floors: dict[str, Any] | None, began: float, now: float) -> None:
        """What the server answered to what was said."""
        if floors is None or self._told is None:
            return
        self._told = floors
        if said["full"]:
            self._full_at = now + max(FULL_EVERY_SECONDS, FULL_SHARE * (now - began))
