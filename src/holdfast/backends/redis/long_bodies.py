"""Long arguments of the jobs that a claim leases: read beside the script, on the same connection, inside the same call.

Used by backend.py and connection.py. The server hashes and copies every string that a script touches, so a claim names
jobs with long bodies (BODY_OR_NAME in lua/fragments.lua) instead of returning those. The leases are made by then: if
the bodies cannot be read, the call has no reply, and a repeat returns the same leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LEASES = 3  # their place in the reply of an exchange


def ids_of(reply: Sequence[Any]) -> list[bytes]:
    """The ids of the jobs whose bodies are not in an exchange's reply."""
    return [piece[0] for piece in reply[LEASES][1::2] if isinstance(piece, list)]


def joined(reply: Sequence[Any], bodies: Sequence[bytes | None]) -> list[Any]:
    """The reply with those bodies. One that is gone by now belonged to a job that is, too: its lease is void."""
    rest = iter(bodies)
    pieces = [next(rest) if isinstance(piece, list) else piece for piece in reply[LEASES]]
    return [*reply[:LEASES], pieces, *reply[LEASES + 1 :]]
