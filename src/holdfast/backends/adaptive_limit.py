"""How much one call requests: less after each timeout, more again while calls are fast.

Used by everything that repeats a call or makes a bounded pass: claims, settlements, reports, sweeps, the mover. Plain
arithmetic; it reads no clock and calls nothing. After a few timeouts the limit is down to what the store can do within
a call timeout, even if that is one job, so every pass makes progress.
"""

from __future__ import annotations

FAST_SHARE = 0.25  # a call that took less than this share of its timeout may request twice as much next time

REARRANGE_LIMIT = 500  # jobs or groups per step of a rearrangement


class AdaptiveLimit:
    """A limit between `least` and `most`."""

    __slots__ = ("_least", "_most", "value")

    def __init__(self, most: int, least: int = 1) -> None:
        self._least, self._most = least, most
        self.value = most

    @property
    def shrunk(self) -> bool:
        return self.value < self._most

    def timed_out(self) -> None:
        """The call with this limit timed out."""
        self.value = max(self._least, self.value // 2)

    def answered(self, timeout_share: float) -> None:
        """The call returned within this share of its timeout. If it was fast, double: still far from timing out."""
        if timeout_share < FAST_SHARE:
            self.value = min(self._most, 2 * self.value)
