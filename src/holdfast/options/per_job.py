"""Task options that `.using` sets for one job and that apply when it runs, as stored with the job.

Called by the task options and by calls. Pure. Options written by another version that this one cannot read are
ignored: the task's own options apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from ..errors import ConfigurationError
from ..retry import RetryPolicy

if TYPE_CHECKING:
    from .tasks import TaskOptions

CALL_OPTIONS: Final = frozenset({"retry", "timeout", "retain"})


class StoredRetry(Struct, frozen=True, omit_defaults=True):
    """The numbers of a retry policy given for one call; which errors are retried is up to the task."""

    limit: int | None = None
    base: float = 1.0
    factor: float = 2.0
    cap: float = 600.0
    jitter: float = 0.2
    delays: tuple[float, ...] = ()
    step: float = 0.0

    def policy(self, own: RetryPolicy) -> RetryPolicy:
        return RetryPolicy(
            self.limit,
            self.base,
            self.factor,
            self.cap,
            self.jitter,
            own.on,
            own.never,
            delays=self.delays,
            step=self.step,
        )


class CallOptions(Struct, frozen=True, omit_defaults=True):
    """Task options given for one call only, as stored with the job."""

    retry: StoredRetry | None = None
    timeout: float | msgspec.UnsetType | None = msgspec.UNSET
    retain: float | None = None

    def changes(self, own: RetryPolicy) -> dict[str, Any]:
        """The options that differ from the task's own."""
        found: dict[str, Any] = {}
        if self.retry is not None:
            found["retry"] = self.retry.policy(own)
        if self.timeout is not msgspec.UNSET:
            found["timeout"] = self.timeout
        if self.retain is not None:
            found["retain"] = self.retain
        return found


def encode_call_options(options: TaskOptions, given: Iterable[str]) -> bytes | None:
    """Whichever of retry, timeout and retain were given for one call, as JSON; None if none were."""
    names = set(given) & CALL_OPTIONS
    if not names:
        return None
    retry = None
    if "retry" in names:
        policy = options.retry
        if policy.backoff is not None or policy.on != (Exception,) or policy.never:
            raise ConfigurationError(
                "retry= for one call is stored with the job, so it takes numbers only. "
                "Set callables and exception classes where the task is defined."
            )
        numbers = {field: getattr(policy, field) for field in StoredRetry.__struct_fields__}
        retry = StoredRetry(**numbers)
    said = CallOptions(
        retry=retry,
        timeout=options.timeout if "timeout" in names else msgspec.UNSET,
        retain=options.retain if "retain" in names else None,
    )
    return msgspec.json.encode(said)
