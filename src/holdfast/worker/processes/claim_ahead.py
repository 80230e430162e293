"""How many jobs are claimed ahead: they wait in a runner for the slots of short jobs.

Asked by the pool. A job that waits cannot be begun by another worker meanwhile, so it must begin soon; a slot without a
job ahead is idle until the next exchange has brought one. Plain arithmetic: no clock.
"""

from __future__ import annotations

from .runner_process import AHEAD_MAX

AHEAD_SECONDS = 0.02  # jobs claimed ahead should begin within this time
AHEAD_SECONDS_MAX = 0.1  # … where exchanges are slow, one per slot may take longer, but no longer than this
AHEAD_EXCHANGES = 10  # a slot that waits for an exchange loses a tenth of the time of jobs that run for as long as this


def ahead_by_time(slots: int, run_seconds: float | None, exchange_seconds: float) -> int:
    """How many jobs may wait in a runner with so many slots, by the latest run times (None: not known) and exchanges:
    as many as begin within AHEAD_SECONDS, and one for each slot if jobs are that short, or short beside an exchange."""
    if run_seconds is None:
        return 0
    short = max(AHEAD_SECONDS, min(AHEAD_SECONDS_MAX, AHEAD_EXCHANGES * exchange_seconds))
    least = slots if run_seconds <= short else 0
    return min(AHEAD_MAX, max(least, int(slots * AHEAD_SECONDS / max(run_seconds, 1e-6))))
