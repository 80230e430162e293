"""Decoders of what the SQL stores keep as JSON, built at their first use: a producer reads few of these types.

Used by the stores' codecs. Not part of lazy.py, which the command line loads without msgspec.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def decoder(kind: type[T], *, strict: bool = True) -> Callable[[Any], T]:
    """What decodes JSON as this type."""
    made = cache(lambda: msgspec.json.Decoder(kind, strict=strict).decode)
    return lambda value: made()(value)
