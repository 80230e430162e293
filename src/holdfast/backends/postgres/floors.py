"""Lower bounds for index scans of claims while an old snapshot keeps dead index entries: see statements/floors.sql.

Used by backend.py. The server computes and applies the floors; this module only remembers them between calls and drops
them when the snapshot is gone. Never decides what may be claimed.
"""

from __future__ import annotations

from typing import Any

FULL_EVERY_SECONDS = 1.0
FULL_SHARE = 20.0  # full scans take at most 1/20 of the time


class Floors:
    """The floors one backend remembers. Times are monotonic."""

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
        """The floors to send with a claim, `full` if it is to ignore them; None: not in use."""
        if self._told is None:
            return None
        return {**self._told, "full": full or now >= self._full_at}

    def answered(self, said: dict[str, Any], floors: dict[str, Any] | None, began: float, now: float) -> None:
        """Remember the floors the server returned; after a full scan, schedule the next one."""
        if floors is None or self._told is None:
            return
        self._told = floors
        if said["full"]:
            self._full_at = now + max(FULL_EVERY_SECONDS, FULL_SHARE * (now - began))
