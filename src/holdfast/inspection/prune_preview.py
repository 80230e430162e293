"""What prune would remove now: the contract's rules applied to a dump, for a dry run.

Called by `app.prune(dry_run=True)` and `holdfast prune --dry-run`. Computed from one dump; never changes anything.
A sharded store divides a task's counts among its shards, so there the result may be off by a few.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..backends.contract import Backend
from ..backends.formulas import window_end
from ..lifecycle import State
from ..records import REMEMBER_SECONDS_MIN, TaskRule
from .snapshot import JobRow, Picture, picture_of


async def prunable(backend: Backend, older_than: float | None = None) -> int:
    """How many jobs `prune` would remove now if it ran to completion."""
    now, rules = await backend.clock(), [task.rule for task in await backend.tasks()]
    picture = picture_of(await backend.dump())
    gone = {job.id for job in picture.jobs if _is_past(job, older_than, now)}
    for rule in sorted(rules, key=lambda rule: rule.name):
        gone.update(_let_go(picture, rule, gone, now))
    return len(gone)


def _is_past(job: JobRow, older_than: float | None, now: float) -> bool:
    """Whether its retention has expired. A dead job that has its letter has none."""
    if job.prune_at is None:
        return False
    if older_than is None:
        return job.prune_at <= now
    before = now - max(older_than, REMEMBER_SECONDS_MIN)
    return (job.finished_at or 0.0) <= before and _window_passed(job, now)


def _let_go(picture: Picture, rule: TaskRule, gone: set[str], now: float) -> set[str]:
    """Which of the rest the task's rule lets prune remove: by count, then dead ones by age, then by count."""
    let_go: set[str] = set()
    if rule.retain_count is not None:
        ended = [
            job
            for job in picture.jobs
            if job.task == rule.name and job.state in (State.SUCCEEDED, State.CANCELLED) and job.id not in gone
        ]
        ended.sort(key=lambda job: (job.finished_at or 0.0, job.seq))
        let_go |= _allowed(ended[: max(0, len(ended) - rule.retain_count)], now)
    return let_go | _dead_let_go(picture, rule, now)


def _dead_let_go(picture: Picture, rule: TaskRule, now: float) -> set[str]:
    if rule.retain_dead is None and rule.retain_dead_count is None:
        return set()
    jobs, let_go = picture.by_id, set[str]()
    of_task = (letter for letter in picture.letters if letter.task == rule.name and letter.id in jobs)
    letters = [(letter.failed_at, jobs[letter.id]) for letter in of_task]
    letters.sort(key=lambda death: (death[0], death[1].seq))
    if rule.retain_dead is not None:
        before = now - rule.retain_dead
        let_go |= _allowed([job for failed_at, job in letters if failed_at <= before and job.state is State.DEAD], now)
    if rule.retain_dead_count is not None:
        left = [job for _, job in letters if job.id not in let_go]
        beyond = left[: max(0, len(left) - rule.retain_dead_count)]
        let_go |= _allowed([job for job in beyond if job.state is State.DEAD], now)
    return let_go


def _allowed(jobs: Iterable[JobRow], now: float) -> set[str]:
    """Those that may be removed: ids are remembered for a while, and a key's window must have passed."""
    remembered = now - REMEMBER_SECONDS_MIN
    return {job.id for job in jobs if (job.finished_at or 0.0) <= remembered and _window_passed(job, now)}


def _window_passed(job: JobRow, now: float) -> bool:
    ends = window_end(job.key, job.created_at, job.key_window)
    return ends is None or ends <= now
