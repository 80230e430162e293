"""Two values with one meaning each, for limits and rates: UNLIMITED, none at all; RESET, what the code declares."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Special(Enum):
    """A value that is not a number."""

    UNLIMITED = "unlimited"
    RESET = "reset"

    def __repr__(self) -> str:
        return self.name


UNLIMITED: Final = Special.UNLIMITED
RESET: Final = Special.RESET
