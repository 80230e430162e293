"""Retry policies: how long to wait before the next attempt, and whether there is one.

Called by the worker after a failure, and wherever a task's options are read. Does no I/O; the only randomness is the
jitter. A policy is frozen and safe to share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .clock import SECONDS_MAX, to_seconds
from .context import Verdict
from .errors import ConfigurationError
from .frozen import Frozen, put
from .lazy import import_lazily
from .names import check_list, known_options, shown

if TYPE_CHECKING:
    import random
else:
    import_lazily(globals(), "random")

Backoff = Callable[[int, BaseException | None], float | timedelta | None]
ErrorClasses = type[BaseException] | Iterable[type[BaseException]]

RETRIES_DEFAULT = 3
logger = logging.getLogger("holdfast")
_ABSENT: Any = object()  # distinguishes "limit not given" from "limit=None", which means unlimited


class RetryPolicy(Frozen):
    """When a failed job is retried.

    `limit` counts the retries after the first failure: 0 never, None unlimited. The n-th retry waits
    `min(cap, base * factor ** (n - 1))` seconds, or `delays[n - 1]` (the last one repeats), or what
    `backoff(n, error)` returns (None: no more), varied by `jitter` as a fraction. Only errors that are
    instances of `on` and not of `never` are retried.
    """

    __slots__ = ("backoff", "base", "cap", "delays", "factor", "jitter", "limit", "never", "on", "step")
    limit: int | None
    base: float
    factor: float
    cap: float
    jitter: float
    on: tuple[type[BaseException], ...]
    never: tuple[type[BaseException], ...]
    delays: tuple[float, ...]
    step: float
    backoff: Backoff | None

    @known_options("RetryPolicy()")
    def __init__(
        self,
        limit: int | None = _ABSENT,
        base: float | timedelta = 1.0,
        factor: float = 2.0,
        cap: float | timedelta = 600.0,
        jitter: float = 0.2,
        on: ErrorClasses = (Exception,),
        never: ErrorClasses = (),
        *,
        delays: Sequence[float | timedelta] = (),
        step: float | timedelta = 0.0,
        backoff: Backoff | None = None,
    ) -> None:
        waits = tuple(
            to_seconds(delay, "RetryPolicy(delays=…)") for delay in check_list(delays, "RetryPolicy(delays=…)")
        )
        if limit is _ABSENT:
            limit = len(waits) or RETRIES_DEFAULT
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ConfigurationError(f"RetryPolicy(limit=…) must be an int of at least 0, or None, not {shown(limit)}.")
        if backoff is not None and not callable(backoff):
            raise ConfigurationError("RetryPolicy(backoff=…) must be callable: (failures, error) -> seconds or None.")
        put(self, "limit", None if limit is None else int(limit))  # an int of a subclass could not be stored
        put(self, "base", to_seconds(base, "RetryPolicy(base=…)"))
        put(self, "factor", _number(factor, "factor", 1.0, 1e6))
        put(self, "cap", to_seconds(cap, "RetryPolicy(cap=…)"))
        put(self, "jitter", _number(jitter, "jitter", 0.0, 1.0))
        put(self, "on", _classes(on, "on"))
        put(self, "never", _classes(never, "never"))
        put(self, "delays", waits)
        put(self, "step", to_seconds(step, "RetryPolicy(step=…)"))
        put(self, "backoff", backoff)

    @classmethod
    def fixed(cls, seconds: float | timedelta, limit: int | None = RETRIES_DEFAULT, **rest: Any) -> RetryPolicy:
        """The same wait before every retry. No jitter unless `jitter=` is given."""
        rest.setdefault("jitter", 0.0)
        rest.setdefault("cap", SECONDS_MAX)
        return cls(limit, base=seconds, factor=1.0, **rest)

    @classmethod
    def linear(
        cls,
        base: float | timedelta = 1.0,
        step: float | timedelta | None = None,
        limit: int | None = RETRIES_DEFAULT,
        **rest: Any,
    ) -> RetryPolicy:
        """base, base + step, base + 2 * step, … up to `cap`; `step` defaults to `base`."""
        return cls(limit, base=base, factor=1.0, step=base if step is None else step, **rest)

    @classmethod
    def custom(cls, backoff: Backoff, limit: int | None = None, **rest: Any) -> RetryPolicy:
        """A custom wait: `backoff(failures, error)` returns seconds, a timedelta, or None for no more retries."""
        rest.setdefault("jitter", 0.0)
        return cls(limit, backoff=backoff, **rest)

    def delay(self, failures: int, error: BaseException | None = None) -> float | None:
        """Seconds until the next attempt after the `failures`-th failure, or None if there is none."""
        if self.limit is not None and failures > self.limit:
            return None
        if not self._retries(error):
            return None
        wait = self._wait(max(1, failures), error)
        if wait is None or not self.jitter:
            return wait
        spread = wait * (1.0 + random.uniform(-self.jitter, self.jitter))
        return min(spread, SECONDS_MAX) if self.delays or self.backoff else min(spread, self.cap)

    def _retries(self, error: BaseException | None) -> bool:
        if error is None or isinstance(error, Verdict):  # a handler that raised Retry asked for it explicitly
            return True
        return isinstance(error, self.on) and not isinstance(error, self.never)

    def _wait(self, failures: int, error: BaseException | None) -> float | None:
        if self.backoff is not None:
            try:
                answer = self.backoff(failures, error)
                return None if answer is None else to_seconds(answer, "the answer of RetryPolicy(backoff=…)")
            except Exception as fault:  # a bug in the user's back-off must not decide the job's fate: wait as usual
                logger.warning("a retry policy's backoff failed (%s); the usual one is used", type(fault).__name__)
        if self.delays:
            return self.delays[min(failures, len(self.delays)) - 1]
        try:
            return min(self.cap, self.base * self.factor ** (failures - 1) + self.step * (failures - 1))
        except OverflowError:
            return self.cap


def as_policy(value: RetryPolicy | int | Backoff | None) -> RetryPolicy:
    """Convert what `retry=` accepts: a policy, a number of retries, a callable, or None for no retries."""
    if isinstance(value, RetryPolicy):
        return value
    if value is None:
        return RetryPolicy(limit=0)
    if isinstance(value, int) and not isinstance(value, bool):
        return RetryPolicy(limit=value)
    if callable(value):
        return RetryPolicy.custom(value)
    kind = type(value).__name__
    raise ConfigurationError(f"retry= takes a RetryPolicy, a number of retries or a callable, not {kind}.")


def _number(value: float, what: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigurationError(
            f"RetryPolicy({what}=…) must be a number from {least:g} to {most:g}, not {shown(value)}."
        )
    return float(value)


def _classes(value: ErrorClasses, what: str) -> tuple[type[BaseException], ...]:
    classes = (value,) if isinstance(value, type) else check_list(value, f"RetryPolicy({what}=…)")
    for entry in classes:
        if not (isinstance(entry, type) and issubclass(entry, BaseException)):
            raise ConfigurationError(f"RetryPolicy({what}=…) takes exception classes, not {entry!r}.")
    return classes
