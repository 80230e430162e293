"""Audit: do the invariants hold in this store right now?

Called by `app.audit()`, `holdfast audit`, the demo and tests. Computed from ONE dump and the flaws the store lists.
Never changes anything and never reads a clock: a condition that depends on time (an expired lease that has not been
recovered yet) is no violation. The rules are one small function each.

A large store may be read in pages while jobs run (`Dump.moving`). Rows read at two instants may contradict each other
although the store is sound, so nothing is reported about a job, group or key with a row that changed meanwhile; an
audit of a quiet store misses nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from ..backends import formulas
from ..backends.contract import Backend
from ..dependencies import DUE_AFTER_PARENTS
from ..lifecycle import FINISHED, SHARED_STALLS_MAX, State
from ..rates import RATE_SECONDS_MAX
from ..records import READY_PER_GROUP_MAX, Dump, Flaw
from .snapshot import GroupState, JobRow, Picture, picture_of

# ----------------------------------------------------------------------------------------------------------------------
# Violations: what the audit reports about a broken invariant. Frozen values; decides nothing.


class Violation(Struct, frozen=True, kw_only=True):
    """One broken invariant."""

    rule: str
    text: str
    job_id: str | None = None
    group: str | None = None


def named(flaw: Flaw) -> str:
    """A flaw as a sentence: its place, row and field, and what is wrong."""
    row = "" if flaw.id is None else f" {flaw.id}"
    field = "" if flaw.field is None else f", field {flaw.field}"
    return f"{flaw.place}{row}{field}: {flaw.text}"


Rule = Callable[[Picture], Iterator[Violation]]


def about(rule: str, job: JobRow, text: str) -> Violation:
    """A violation found in one job."""
    return Violation(rule=rule, job_id=job.id, group=job.group, text=f"job {job.id} ({job.state}) {text}")


# ----------------------------------------------------------------------------------------------------------------------
# The audit


class Audit(Struct, frozen=True, kw_only=True):
    """Result of an audit: what was checked, and every violation found."""

    violations: list[Violation]
    checked: Mapping[str, int]  # jobs, groups, letters, workers, rules; and rows in motion, if there were any

    @property
    def holds(self) -> bool:
        return not self.violations


async def audit(backend: Backend) -> Audit:
    """Check everything in the store at one instant and list what violates the invariants.

    Data the store cannot read, or that contradicts its indexes, comes first.
    """
    return judge(await backend.dump(), await backend.flaws())


def judge(dump: Dump, flaws: Iterable[Flaw] = ()) -> Audit:
    """Audit a dump and a store's flaws: pure."""
    picture = picture_of(dump)
    found = [Violation(rule="readable", job_id=flaw.id, text=named(flaw)) for flaw in flaws]
    found += _settled((violation for rule in RULES for violation in rule(picture)), picture, dump.moving)
    checked = {
        "jobs": len(picture.jobs),
        "groups": len(picture.groups),
        "letters": len(picture.letters),
        "workers": len(picture.workers),
        "rules": len(RULES),
    }
    if dump.moving:
        checked["rows in motion"] = len(dump.moving)
    return Audit(violations=found, checked=checked)


def _settled(
    violations: Iterable[Violation], picture: Picture, moving: Sequence[Mapping[str, Any]]
) -> Iterator[Violation]:
    """Leave out the violations about a job, a group or a key of which a row changed while the store was read."""
    ids, groups, keys = ({row.get(name) for row in moving} - {None} for name in ("id", "group", "key"))
    jobs = picture.by_id if moving else {}
    for violation in violations:
        job = jobs.get(violation.job_id or "")
        key = None if job is None else job.key
        if violation.job_id not in ids and violation.group not in groups and key not in keys:
            yield violation


# ----------------------------------------------------------------------------------------------------------------------
# The audit's rules: one small generator each, named after what it requires. Each takes the snapshot of one dump and
# yields a violation for everything that contradicts it. A rule stays silent rather than raise a false alarm where the
# store keeps too little to be sure (limits that were changed since, leases whose times are no longer known).
#
# Which jobs may start: lanes, groups, keys, limits, rates, cron entries. The number of running jobs of a queue or task
# is not checked against its limit: it may have been lowered while they ran, and the store keeps no history of limits.

FAR_SECONDS = 2 * RATE_SECONDS_MAX  # no clock set back and no earlier rate can put a GCRA state further ahead than this


def ready_jobs_are_in_their_lane(picture: Picture) -> Iterator[Violation]:
    """claim can find every ready job: lane 2 while its task is paused, 3 if dedicated, else 0 or 1 by group.

    Its rank is its priority, or 0 if its queue uses aging; that setting may have changed since. While a changed rule is
    being applied, jobs may still be in the old rule's lane: claim moves them instead of leasing them.
    """
    rule = "ready_jobs_are_in_their_lane"
    for job in picture.jobs:
        if job.state is not State.READY:
            continue
        parked, apart = job.task in picture.paused_tasks, job.task in picture.tasks_apart
        lane = formulas.lane(parked=parked, apart=apart, grouped=job.group is not None)
        if job.lane is not None and job.lane != lane and not picture.rearranging:
            yield about(rule, job, f"is in lane {job.lane} instead of {lane}")
        if job.rank is not None and job.rank not in (0, job.priority):
            yield about(rule, job, f"has rank {job.rank}, priority {job.priority}")


def groups_stay_within_their_limit(picture: Picture) -> Iterator[Violation]:
    """Jobs in play never exceed the limit; a paused group has none ready, and no group more than READY_PER_GROUP_MAX.

    Lowering a limit or pausing withdraws ready jobs but lets running ones finish, so a relaxed group's running jobs are
    checked against the wider of the override and the queue's own limit.
    """
    rule = "groups_stay_within_their_limit"
    for group in picture.groups:
        ready = sum(job.state is State.READY for job in group.jobs)
        running = sum(job.state is State.RUNNING for job in group.jobs)
        in_play = sum(job.in_play for job in group.jobs)
        if group.paused and ready:
            yield Violation(rule=rule, group=group.name, text=f"{group} is paused and has {ready} ready")
        elif ready and in_play > group.limit and not picture.rearranging:
            yield Violation(rule=rule, group=group.name, text=f"{group} has {in_play} in play, limit {group.limit}")
        if ready > READY_PER_GROUP_MAX:
            text = f"{group} has {ready} ready, {READY_PER_GROUP_MAX} at most"
            yield Violation(rule=rule, group=group.name, text=text)
        if running > group.most:
            yield Violation(rule=rule, group=group.name, text=f"{group} has {running} running, limit {group.most}")


def no_group_is_wedged(picture: Picture) -> Iterator[Violation]:
    """No group has both room and waiting jobs, unless it waits for its rate: it would never move again.

    When it waits for its rate, one of its jobs is ready, and starting it brings up the next, or its refill time is set.
    """
    for group in picture.groups:
        waiting = sum(job.state is State.WAITING for job in group.jobs)
        ready = sum(job.state is State.READY for job in group.jobs)
        in_play = sum(job.in_play for job in group.jobs)
        full = in_play >= group.limit or ready >= READY_PER_GROUP_MAX
        if waiting and not group.paused and not full and not (group.rated and (ready or group.wakes)):
            text = f"{group} is wedged: {waiting} waiting, {in_play} in play, limit {group.limit}"
            yield Violation(rule="no_group_is_wedged", group=group.name, text=text)


def keys_are_held_once(picture: Picture) -> Iterator[Violation]:
    """At most one job holds a key, per queue or across all queues according to its scope; with shards, per shard.

    An expired window has no effect, but its holder's flag is cleared only when another job takes the key, so two flags
    are one too many at any time. A job that must hold its key until it finishes does so, unless an operator freed it.
    """
    rule = "keys_are_held_once"
    holders: dict[tuple[str | None, str, str, str | None], list[JobRow]] = defaultdict(list)
    for job in picture.jobs:
        if job.key is None:
            if job.holds_key:
                yield about(rule, job, "is marked as holding a key but has none")
            continue
        kept = job.key_until == "finished" and job.key_window is None
        if job.holds_key:
            queue = None if job.key_scope == "global" and not picture.sharded else job.queue
            holders[queue, job.task, job.key, picture.split_by(job)].append(job)
        if kept and job.holds_key != job.state.live and (job.holds_key or job.id not in picture.freed):
            yield about(rule, job, f"{'holds' if job.holds_key else 'does not hold'} key {job.key!r}")
    for (queue, task, key, _), jobs in holders.items():
        if len(jobs) > 1:
            where = "all queues" if queue is None else f"queue {queue!r}"
            text = f"key {key!r} of {task} in {where} is held {len(jobs)} times"
            yield Violation(rule=rule, job_id=jobs[-1].id, text=text)


def windows_keep_their_job_from_prune(picture: Picture) -> Iterator[Violation]:
    """A job whose key window may still apply is not up for pruning before the window has passed."""
    for job in picture.jobs:
        if job.holds_key and job.key_window is not None and job.state in FINISHED and job.prune_at is not None:
            ends_at = job.created_at + job.key_window
            if job.prune_at < ends_at:
                text = f"is up for pruning {ends_at - job.prune_at:g} s before its key's window ends"
                yield about("windows_keep_their_job_from_prune", job, text)


def limits_can_be_kept(picture: Picture) -> Iterator[Violation]:
    """Every limit, declared or overridden, lets at least one job run; stopping is what pausing is for."""
    for what, limit in picture.limits():
        if limit < 1:
            yield Violation(rule="limits_can_be_kept", text=f"{what} has limit {limit}")


def words_and_buckets_are_one_each(picture: Picture) -> Iterator[Violation]:
    """At most one override and one GCRA state per queue, group or task; an override sets something.

    In a sharded store, each shard keeps its own.
    """
    rule = "words_and_buckets_are_one_each"
    for what, rows in (("override", picture.overrides), ("bucket", picture.flows)):
        for row, times in Counter(str(row) for row in rows).items():
            if times > 1 and not picture.sharded:
                yield Violation(rule=rule, text=f"{row} has its {what} {times} times")
    for said in picture.overrides:
        if said.limit is None and said.rate is None and said.weight is None and not said.apart:
            yield Violation(rule=rule, group=said.group, text=f"the override of {said} sets nothing")


def buckets_are_not_far_ahead(picture: Picture) -> Iterator[Violation]:
    """No GCRA state is years ahead of everything the store knows: it would never open. Only groups have refill times.

    How far a rate can push its state is known, but a different rate may have been in force when it was last charged.
    """
    rule = "buckets_are_not_far_ahead"
    for flow in picture.flows:
        rate = picture.rate_of(flow)
        reach = FAR_SECONDS + (0.0 if rate is None else rate.slack + rate.every)
        if picture.newest is not None and flow.spent_until > picture.newest + reach:
            ahead = flow.spent_until - picture.newest
            yield Violation(rule=rule, group=flow.group, text=f"the bucket of {flow} is {ahead:g} s ahead")
        if flow.wakes_at is not None and flow.group is None:
            yield Violation(rule=rule, text=f"the bucket of {flow} has a refill time, which only groups have")


def entries_are_written_in_order(picture: Picture) -> Iterator[Violation]:
    """A cron entry is stored once, and has been written at least once according to its version."""
    rule = "entries_are_written_in_order"
    for name, times in Counter(entry.name for entry in picture.entries).items():
        if times > 1:
            yield Violation(rule=rule, text=f"cron entry {name!r} is stored {times} times")
    for entry in picture.entries:
        if entry.version < 1 or min(entry.fired, entry.skipped) < 0:
            text = (
                f"cron entry {entry.name!r} has version {entry.version}, fired {entry.fired}, skipped {entry.skipped}"
            )
            yield Violation(rule=rule, text=text)


FLOW_RULES: tuple[Rule, ...] = (
    ready_jobs_are_in_their_lane,
    groups_stay_within_their_limit,
    no_group_is_wedged,
    keys_are_held_once,
    windows_keep_their_job_from_prune,
    limits_can_be_kept,
    words_and_buckets_are_one_each,
    buckets_are_not_far_ahead,
    entries_are_written_in_order,
)


# ----------------------------------------------------------------------------------------------------------------------
# Jobs, leases and dead letters.


FOREVER = float("inf")
LETTERLESS = frozenset({"superseded", "discarded"})  # reasons of dead jobs that have no letter


class LeaseSpan(Struct, frozen=True):
    """A lease with both ends known; a running one has no end yet."""

    job: JobRow
    start: float
    end: float
    fence: int


def ids_and_seqs_are_unique(picture: Picture) -> Iterator[Violation]:
    """A job is in exactly one state: no id and no seq is stored twice."""
    for what, values in (("id", (job.id for job in picture.jobs)), ("seq", (str(job.seq) for job in picture.jobs))):
        for value, times in Counter(values).items():
            if times > 1:
                yield Violation(rule="ids_and_seqs_are_unique", text=f"{what} {value} is stored {times} times")


def running_jobs_hold_a_lease(picture: Picture) -> Iterator[Violation]:
    """A running job has a token, a fence, a start time, and a worker whose row exists."""
    for job in picture.jobs:
        if job.state is not State.RUNNING:
            continue
        if not job.token or job.fence <= 0 or job.started_at is None:
            yield about("running_jobs_hold_a_lease", job, "has no complete lease (token, fence, start)")
        if job.worker is None:
            yield about("running_jobs_hold_a_lease", job, "names no worker")
        elif job.worker not in picture.workers:
            yield about("running_jobs_hold_a_lease", job, f"is leased to worker {job.worker}, which is not registered")


def others_hold_no_lease(picture: Picture) -> Iterator[Violation]:
    """A job that is not running has no token and no worker, so no old lease can write to it."""
    for job in picture.jobs:
        if job.state is not State.RUNNING and (job.token or job.worker is not None):
            yield about("others_hold_no_lease", job, "still carries a token or a worker")


def finished_at_fits_the_state(picture: Picture) -> Iterator[Violation]:
    """finished_at is set exactly when the job is finished."""
    for job in picture.jobs:
        if (job.state in FINISHED) != (job.finished_at is not None):
            word = "has no finished_at" if job.finished_at is None else "has a finished_at"
            yield about("finished_at_fits_the_state", job, word)


def only_grouped_jobs_wait(picture: Picture) -> Iterator[Violation]:
    """waiting means behind others of its group: without a group there is nothing to wait for."""
    for job in picture.jobs:
        if job.state is State.WAITING and job.group is None:
            yield about("only_grouped_jobs_wait", job, "waits, but has no group")


def counters_are_sane(picture: Picture) -> Iterator[Violation]:
    """Every failure and every counted stall is an attempt, stalls stop at their cap, and suspects have stalled."""
    for job in picture.jobs:
        parts = (job.failures, job.stalls, job.shared_stalls)
        if min(parts) < 0 or sum(parts) > job.attempts:
            text = f"counts {job.attempts} attempts, {parts[0]} failures, {parts[1]} stalls, {parts[2]} shared stalls"
            yield about("counters_are_sane", job, text)
        if job.shared_stalls > SHARED_STALLS_MAX + 1 or (job.state.live and job.shared_stalls > SHARED_STALLS_MAX):
            text = f"stalled {job.shared_stalls} times among others, cap {SHARED_STALLS_MAX}"
            yield about("counters_are_sane", job, text)
        if job.suspect and job.stalls + job.shared_stalls == 0:
            yield about("counters_are_sane", job, "is a suspect, but never stalled")
        if job.stalls > job.max_stalls + 1 and not job.maybe_replaced:
            yield about("counters_are_sane", job, f"stalled {job.stalls} times, cap {job.max_stalls}")
        if job.state is State.SUCCEEDED and job.attempts < 1:
            yield about("counters_are_sane", job, "succeeded without an attempt")


def dead_jobs_have_their_letter(picture: Picture) -> Iterator[Violation]:
    """A dead job's logical letter points at it, unless the job was superseded or discarded."""
    holders = {letter.id for letter in picture.letters}
    for job in picture.jobs:
        if job.state is State.DEAD and job.reason not in LETTERLESS and job.id not in holders:
            yield about("dead_jobs_have_their_letter", job, f"(reason {job.reason}) has no dead letter")


def letters_are_one_per_logical_job(picture: Picture) -> Iterator[Violation]:
    """One dead letter per logical job, however often it died; in a queue of several shards, per shard."""
    letters = Counter((letter.logical, picture.split_by(letter)) for letter in picture.letters)
    for (logical, _), times in letters.items():
        if times > 1:
            queue, task, name = logical
            text = f"{task} in queue {queue!r}, {name}: {times} dead letters"
            yield Violation(rule="letters_are_one_per_logical_job", text=text)


def letters_point_at_dead_or_revived_jobs(picture: Picture) -> Iterator[Violation]:
    """A letter's job exists, and is dead, or live because the letter was revived."""
    jobs = picture.by_id
    for letter in picture.letters:
        job = jobs.get(letter.id)
        if job is None:
            text = f"dead letter {letter.id} points at no job"
        elif letter.revived_at is None and job.state is not State.DEAD:
            text = f"dead letter {letter.id} was not revived, yet its job is {job.state}"
        elif letter.revived_at is not None and not job.state.live:
            text = f"dead letter {letter.id} is marked revived, yet its job is {job.state}"
        else:
            continue
        yield Violation(rule="letters_point_at_dead_or_revived_jobs", job_id=letter.id, text=text)


def letters_count_their_deaths(picture: Picture) -> Iterator[Violation]:
    """A letter counts at least one death, the first not after the latest."""
    for letter in picture.letters:
        if letter.failure_count < 1 or letter.first_failed_at > letter.failed_at:
            text = f"dead letter {letter.id} counts {letter.failure_count} deaths, first after latest or none"
            yield Violation(rule="letters_count_their_deaths", job_id=letter.id, text=text)


def letters_keep_their_job_from_prune(picture: Picture) -> Iterator[Violation]:
    """Neither a dead job that has its letter nor a live job is up for pruning."""
    holders = {letter.id for letter in picture.letters}
    for job in picture.jobs:
        kept = job.state.live or (job.state is State.DEAD and job.id in holders)
        if kept and job.prune_at is not None:
            yield about("letters_keep_their_job_from_prune", job, "is up for pruning")


def fences_are_distinct(picture: Picture) -> Iterator[Violation]:
    """No two leases share a fence; where each shard counts for itself, no two of one group."""
    owners: dict[tuple[int, str, str], str] = {}
    for job in picture.jobs:
        if picture.sharded and job.group is None:
            continue
        place = (job.queue, job.group or "") if picture.sharded else ("", "")
        for fence in {job.fence, *(error.fence for error in job.errors)} - {0}:
            other = owners.setdefault((fence, *place), job.id)
            if other != job.id:
                yield about("fences_are_distinct", job, f"shares fence {fence} with job {other}")


def leases_end_once(picture: Picture) -> Iterator[Violation]:
    """One lease, one outcome: no lease left two errors, or an error and a success."""
    for job in picture.jobs:
        ends = [error.fence for error in job.errors if error.fence and error.started_at is not None]
        if job.state is State.SUCCEEDED:
            ends.append(job.fence)
        if len(set(ends)) < len(ends):
            yield about("leases_end_once", job, "has two outcomes of one lease")


def strict_groups_keep_their_order(picture: Picture) -> Iterator[Violation]:
    """Finished jobs of a strict group ran in the order they were enqueued.

    Only compares jobs of equal priority that were due when enqueued. A delay, a revival, an operator's retry or a
    replacement moves the due time; such jobs correctly run later than their seq suggests.
    """
    for group in picture.strict_groups():
        latest: dict[int, JobRow] = {}
        for job in group.jobs:
            if job.state not in FINISHED or job.fence == 0 or job.due_at > job.created_at or _was_revived(job):
                continue
            before = latest.get(job.priority)
            if before is not None and before.fence > job.fence:
                text = f"ran before job {before.id}, which was enqueued earlier"
                yield about("strict_groups_keep_their_order", job, text)
            else:
                latest[job.priority] = job


def _was_revived(job: JobRow) -> bool:
    """It has more errors than its counters account for: revive and retry clear the counters and keep the errors."""
    uncounted = 0 if job.state is State.SUCCEEDED else 1  # the error that ended it: bury, expiry, cancel
    return len(job.errors) > job.failures + job.stalls + job.shared_stalls + uncounted


def runs_of_one_job_never_overlap(picture: Picture) -> Iterator[Violation]:
    """A job's leases never overlap."""
    for job in picture.jobs:
        spans = sorted(_known_leases(job), key=lambda span: (span.start, span.end))
        for earlier, later in pairwise(spans):
            if later.start < earlier.end:
                yield about("runs_of_one_job_never_overlap", job, "was leased again before its earlier lease ended")
                break


def runs_of_one_group_never_exceed_its_limit(picture: Picture) -> Iterator[Violation]:
    """At no time did a group have more live leases than its limit; a strict group never has two, except those that
    one claim granted together as a chain."""
    for group in picture.groups:
        crowd = _crowd(group)
        if crowd is not None:
            names = ", ".join(span.job.id for span in crowd)
            text = f"{group} had {len(crowd)} leases at one instant, limit {group.most}: {names}"
            yield Violation(rule="runs_of_one_group_never_exceed_its_limit", group=group.name, text=text)


def _crowd(group: GroupState) -> list[LeaseSpan] | None:
    """The leases alive at the first moment when there were more than the group's limit."""
    alive: list[LeaseSpan] = []
    for span in sorted(
        (span for job in group.jobs for span in _leases_in_group(job)), key=lambda s: (s.start, s.fence)
    ):
        alive = [other for other in alive if other.end > span.start]
        alive.append(span)
        if len(alive) > group.most and not (group.order == "strict" and _is_chain(alive)):
            return alive
    return None


def _is_chain(alive: Sequence[LeaseSpan]) -> bool:
    """Whether one claim may have granted these leases together: at one instant, and to one worker where it is known."""
    workers = {span.job.worker for span in alive if span.job.state is State.RUNNING}
    return len({span.start for span in alive}) == 1 and len(workers) < 2


def _leases_in_group(job: JobRow) -> Iterator[LeaseSpan]:
    """Its leases under its current group: if that may have changed, only those since it was last due."""
    return (span for span in _known_leases(job) if not job.maybe_replaced or span.start >= job.due_at)


def _known_leases(job: JobRow) -> Iterable[LeaseSpan]:
    """The leases whose times the store still knows: those that ended in an error, and the latest if it shows its end.

    A cancelled job may have been cancelled long after its latest lease ended, so only its errors count.
    """
    spans = {
        error.fence: LeaseSpan(job, error.started_at, error.at, error.fence)
        for error in job.errors
        if error.started_at is not None and error.fence
    }
    if job.started_at is not None and job.fence not in spans:
        if job.state is State.RUNNING:
            spans[job.fence] = LeaseSpan(job, job.started_at, FOREVER, job.fence)
        elif job.state is State.SUCCEEDED and job.finished_at is not None:
            spans[job.fence] = LeaseSpan(job, job.started_at, job.finished_at, job.fence)
    return spans.values()


def edges_lead_from_job_to_job(picture: Picture) -> Iterator[Violation]:
    """Both ends of a dependency exist, and it agrees with its parent's state, or soon will."""
    for edge in picture.edges:
        parent, child = picture.by_id.get(edge.parent), picture.by_id.get(edge.child)
        if parent is None or child is None:
            gone = edge.parent if parent is None else edge.child
            text = f"job {edge.child} waits for job {edge.parent}, but there is no job {gone}"
            yield Violation(rule="edges_lead_from_job_to_job", job_id=edge.child, text=text)
            continue
        told = formulas.edge_status(edge.status, parent.state, edge.on_parent_failure)
        if told != edge.status and edge.parent not in picture.propagating:
            text = f"has a parent {edge.parent} that is {parent.state}, but the dependency is {edge.status}"
            yield about("edges_lead_from_job_to_job", child, text)


def steps_belong_to_jobs(picture: Picture) -> Iterator[Violation]:
    """Steps belong to a job that exists."""
    for job_id in sorted(picture.with_steps - picture.by_id.keys()):
        text = f"there are steps of job {job_id}, but there is no such job"
        yield Violation(rule="steps_belong_to_jobs", job_id=job_id, text=text)


def waiting_jobs_have_parents_to_wait_for(picture: Picture) -> Iterator[Violation]:
    """A job's stored counts match its dependencies, and a job waits only for dependencies it has."""
    pending, failed = Counter[str](), Counter[str]()
    for edge in picture.edges:
        pending[edge.child] += edge.status != "met"
        failed[edge.child] += edge.status == "failed"
    rule = "waiting_jobs_have_parents_to_wait_for"
    for child in sorted({*pending, *picture.edge_counts}):
        there = (pending[child], failed[child])
        if picture.edge_counts.get(child) != there:
            text = f"job {child} has {there[0]} parents that have not succeeded, {there[1]} of them failed; counted are"
            yield Violation(rule=rule, job_id=child, text=f"{text} {picture.edge_counts.get(child)}")
    for job in picture.jobs:
        waits = job.state is State.SCHEDULED and job.due_at == DUE_AFTER_PARENTS
        if waits and (not pending[job.id] or failed[job.id]):
            yield about(rule, job, f"waits for {pending[job.id]} parents, of which {failed[job.id]} failed")


RULES: tuple[Rule, ...] = (
    ids_and_seqs_are_unique,
    running_jobs_hold_a_lease,
    others_hold_no_lease,
    finished_at_fits_the_state,
    only_grouped_jobs_wait,
    counters_are_sane,
    *FLOW_RULES,
    dead_jobs_have_their_letter,
    letters_are_one_per_logical_job,
    letters_point_at_dead_or_revived_jobs,
    letters_count_their_deaths,
    letters_keep_their_job_from_prune,
    fences_are_distinct,
    leases_end_once,
    strict_groups_keep_their_order,
    runs_of_one_job_never_overlap,
    runs_of_one_group_never_exceed_its_limit,
    edges_lead_from_job_to_job,
    steps_belong_to_jobs,
    waiting_jobs_have_parents_to_wait_for,
)
