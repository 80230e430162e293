"""Validation that every store shares, with the same error messages: impossible limits.

Called by the stores before they write. It never reads a store.
"""

from __future__ import annotations

from ..errors import ConfigurationError


def check_limit(limit: object, what: str) -> None:
    """Refuse a limit below 1; None and UNSET are not checked."""
    if isinstance(limit, int) and limit < 1:
        raise ConfigurationError(f"{what} must be at least 1, not {limit}. To stop it, pause it.")


def strict_limit(queue: str, limit: int) -> ConfigurationError:
    return ConfigurationError(
        f"queue {queue!r} is strict: its groups run one job at a time, so {limit} cannot hold. "
        'Declare the queue with group_order="relaxed" first.'
    )
