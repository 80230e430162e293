"""The audit's rules about which jobs may start: lanes, groups, keys, limits, buckets, cron entries.

Called by audit, through rules. As there: one small generator each, no clock, silence where the store keeps too little.
How many of a queue or a task run is not held against their limit: it may have been lowered while they ran, and nobody
remembers what it was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ..lifecycle import FINISHED, State
from ..rates import RATE_SECONDS_MAX
from ..rules import READY_PER_GROUP_MAX
from .picture import JobRow, Picture
from .violations import Rule, Violation, about

FAR_SECONDS = 2 * RATE_SECONDS_MAX  # further ahead no clock set back and no rate of former days can have put a bucket


def ready_jobs_are_in_their_lane(picture: Picture) -> Iterator[Violation]:
    """A ready job can be found by claim: lane 2 while its task is paused, 3 if that is apart, else 0 or 1 by group.

    Its rank is its priority, or 0 where its queue ages its jobs; the queue may have begun or ceased to since. While a
    changed rule is carried out, jobs may still be in the lane of the old one: claim moves them instead of leasing them.
    """
    rule = "ready_jobs_are_in_their_lane"
    for job in picture.jobs:
        if job.state is not State.READY:
            continue
        grouped = int(job.group is not None)
        lane = 2 if job.task in picture.paused_tasks else 3 if job.task in picture.tasks_apart else grouped
        if job.lane is not None and job.lane != lane and not picture.rearranging:
            yield about(rule, job, f"is in lane {job.lane} instead of {lane}")
        if job.rank is not None and job.rank not in (0, job.priority):
            yield about(rule, job, f"has rank {job.rank}, priority {job.priority}")


def groups_stay_within_their_limit(picture: Picture) -> Iterator[Violation]:
    """In play never exceeds the limit; a paused group has nothing ready, and none more than READY_PER_GROUP_MAX.

    Lowering a limit or pausing withdraws ready jobs but lets running ones end, so for a relaxed group the running ones
    are held against the wider of the override and the queue's own limit.
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
    """A group with room and waiting jobs would never move again, unless its rate is what it waits for.

    Then a job of it is ready, whose start brings the next, or its bucket says when it is woken.
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
    """At most one job holds a key, of a queue or over all as its scope says; where there are shards, per shard.

    A window that has passed counts for nothing, but its holder's flag falls only when another takes the key: so two
    flags are one too many whatever the time is. A job that is to hold its key until it finished does so.
    """
    rule = "keys_are_held_once"
    holders: dict[tuple[str | None, str, str, str | None], list[JobRow]] = defaultdict(list)
    for job in picture.jobs:
        if job.key is None:
            if job.holds_key:
                yield about(rule, job, "holds a key and has none")
            continue
        kept = job.key_until == "finished" and job.key_window is None
        if job.holds_key:
            queue = None if job.key_scope == "global" and not picture.sharded else job.queue
            holders[queue, job.task, job.key, picture.split_by(job)].append(job)
        if kept and job.holds_key != job.state.live:
            yield about(rule, job, f"{'holds' if job.holds_key else 'does not hold'} key {job.key!r}")
    for (queue, task, key, _), jobs in holders.items():
        if len(jobs) > 1:
            where = "all queues" if queue is None else f"queue {queue!r}"
            text = f"key {key!r} of {task} in {where} is held {len(jobs)} times"
            yield Violation(rule=rule, job_id=jobs[-1].id, text=text)


def windows_keep_their_job_from_prune(picture: Picture) -> Iterator[Violation]:
    """A job whose key's window may still count is not up for pruning before it has passed."""
    for job in picture.jobs:
        if job.holds_key and job.key_window is not None and job.state in FINISHED and job.prune_at is not None:
            ends_at = job.created_at + job.key_window
            if job.prune_at < ends_at:
                text = f"is up for pruning {ends_at - job.prune_at:g} s before its key's window ends"
                yield about("windows_keep_their_job_from_prune", job, text)


def limits_can_be_kept(picture: Picture) -> Iterator[Violation]:
    """Every limit that is declared or said lets at least one job run; to stop, one pauses."""
    for what, limit in picture.limits():
        if limit < 1:
            yield Violation(rule="limits_can_be_kept", text=f"{what} has limit {limit}")


def words_and_buckets_are_one_each(picture: Picture) -> Iterator[Violation]:
    """One override and one bucket of a queue, a group or a task; an override says something.

    Where a store is made of several, each keeps its own.
    """
    rule = "words_and_buckets_are_one_each"
    for what, rows in (("override", picture.overrides), ("bucket", picture.flows)):
        for row, times in Counter(str(row) for row in rows).items():
            if times > 1 and not picture.sharded:
                yield Violation(rule=rule, text=f"{row} has its {what} {times} times")
    for said in picture.overrides:
        if said.limit is None and said.rate is None:
            yield Violation(rule=rule, group=said.group, text=f"the override of {said} says nothing")


def buckets_are_not_far_ahead(picture: Picture) -> Iterator[Violation]:
    """No bucket is years ahead of everything the store knows of: it would be as good as shut. Only groups are woken.

    How far a rate can bring its bucket is known, but the rate may have been another one when it was charged last.
    """
    rule = "buckets_are_not_far_ahead"
    for flow in picture.flows:
        rate = picture.rate_of(flow)
        reach = FAR_SECONDS + (0.0 if rate is None else rate.slack + rate.every)
        if picture.newest is not None and flow.spent_until > picture.newest + reach:
            ahead = flow.spent_until - picture.newest
            yield Violation(rule=rule, group=flow.group, text=f"the bucket of {flow} is {ahead:g} s ahead")
        if flow.wakes_at is not None and flow.group is None:
            yield Violation(rule=rule, text=f"the bucket of {flow} is to be woken, and only groups are")


def entries_are_written_in_order(picture: Picture) -> Iterator[Violation]:
    """A cron entry is there once, and was written at least once, as its version says."""
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
