"""Task options that `.using` gives to one job alone and that are read when it runs, as they are stored with it.

Called by the task options and by calls. Pure. What another version wrote and this one cannot read is passed over: the
task's own options hold then.
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
    """The numbers of a retry policy given for one call; which errors are retried stays with the task."""

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
    """Task options given for one call alone, as stored with the job."""

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
    """Those of retry, timeout and retain that were given for one call, as JSON; None when none was."""
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
