"""How much one call asks for: less after each time-out, more again while calls are fast.

Used by everything that repeats a call or makes a bounded pass: claims, settlements, reports, sweeps, the mover. Plain
arithmetic; it knows no clock and calls nobody. Whatever the store can do within a call timeout, be it one job, is
reached after a few time-outs, so every pass makes progress.
"""

from __future__ import annotations

FAST_SHARE = 0.25  # a call that took less of its timeout than this may ask for twice as much next time

REARRANGE_LIMIT = 500  # jobs or groups that one piece of a rearrangement looks at


class AdaptiveLimit:
    """A bound between `least` and `most`."""

    __slots__ = ("_least", "_most", "value")

    def __init__(self, most: int, least: int = 1) -> None:
        self._least, self._most = least, most
        self.value = most

    @property
    def shrunk(self) -> bool:
        return self.value < self._most

    def timed_out(self) -> None:
        """The call that asked for `value` was not answered in time."""
        self.value = max(self._least, self.value // 2)

    def answered(self, timeout_share: float) -> None:
        """It was answered, within this share of its timeout. Doubled it would still be far from timing out."""
        if timeout_share < FAST_SHARE:
            self.value = min(self._most, 2 * self.value)
