"""Is work done at its usual pace: handlers that run far longer than they used to, and backlogs that grow?

Called by the doctor, the dashboard and explain. `look_at_pace` reads through the contract, bounded, and changes
nothing; `judge_pace` is pure. What is usual comes from the roll-ups that workers record; without them it finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..backends.contract import Reader
from ..lifecycle import State
from ..queries import parse_query
from ..records import JobQuery, JobRecord, WorkerRecord
from ..rollups import Rollup, RollupQuery, added, percentile
from .machine import Finding, fine, note, wrong

USUAL_SECONDS = 86400.0  # what is usual comes from the last day
USUAL_RUNS_MIN = 20  # with fewer, nothing is usual
LONG_TIMES = 5.0  # longer than this many times the usual is unusual
LONG_SECONDS_MIN = 60.0  # shorter runs are never reported
RUNNING_LOOKED_AT_MAX = 500
RECENT_SECONDS = 600.0  # arrivals and ends are compared over this time
BACKLOG_MIN = 100  # jobs; fewer are not a backlog
QUEUES_MAX = 20  # backlogs that are checked, the longest first
NAMES_SHOWN = 5


class Usual(Struct, frozen=True, kw_only=True):
    """How long attempts of a task took recently, in seconds."""

    runs: int
    p50: float
    p99: float

    def is_long(self, seconds: float) -> bool:
        """Whether a handler that runs for this long is far beyond what is usual."""
        return self.runs >= USUAL_RUNS_MIN and seconds > max(LONG_SECONDS_MIN, LONG_TIMES * self.p99)


class Backlog(Struct, frozen=True, kw_only=True):
    """What waits in a queue, and what arrived and ended within RECENT_SECONDS."""

    queue: str
    waiting: int  # ready, or waiting in a group
    oldest_seconds: float  # since the oldest ready one was due
    came: int  # of those that wait, how many arrived recently
    capped: bool  # there were more than were counted
    ended: int


class Pace(Struct, frozen=True, kw_only=True):
    """The store's work as observed at one time."""

    now: float
    running: Sequence[JobRecord] = ()
    usual: Mapping[str, Usual] = {}  # by task
    backlogs: Sequence[Backlog] = ()
    workers: Sequence[WorkerRecord] = ()


async def look_at_pace(reader: Reader) -> Pace:
    """Read what is usual, what runs and what waits."""
    now = await reader.clock()
    running = await reader.find(JobQuery(states=(State.RUNNING,), limit=RUNNING_LOOKED_AT_MAX))
    return Pace(
        now=now,
        running=running,
        usual=await usual_runs(reader, now) if running else {},
        backlogs=await _backlogs(reader, now),
        workers=await reader.workers(),
    )


async def usual_runs(reader: Reader, now: float, task: str | None = None) -> dict[str, Usual]:
    """How long attempts took in the last day, by task."""
    query = RollupQuery(span="hour", since=now - USUAL_SECONDS, until=now + 3600.0, task=task)
    runs: dict[str, tuple[int, ...]] = {}
    for one in await reader.rollups(query):
        if one.outcome == "succeeded":
            runs[one.task] = added(runs.get(one.task, ()), one.runs)
    return {name: usual for name, counts in runs.items() if (usual := _usual(counts)) is not None}


def _usual(counts: tuple[int, ...]) -> Usual | None:
    p50, p99 = percentile(counts, 0.5), percentile(counts, 0.99)
    return None if p50 is None or p99 is None else Usual(runs=sum(counts), p50=p50, p99=p99)


async def _backlogs(reader: Reader, now: float) -> list[Backlog]:
    waiting = {
        queue.name: (queue.counts.get(State.READY, 0) + queue.counts.get(State.WAITING, 0), queue.oldest_due_at)
        for queue in await reader.queues()
        if queue.pause is None
    }
    longest = sorted(waiting, key=lambda name: -waiting[name][0])[:QUEUES_MAX]
    found: list[Backlog] = []
    for name in longest:
        number, oldest = waiting[name]
        if number >= BACKLOG_MIN:
            found.append(await backlog(reader, now, name, number, oldest))
    return found


async def backlog(reader: Reader, now: float, queue: str, waiting: int, oldest_due_at: float | None) -> Backlog:
    """What arrived in a queue and ended there recently; the caller already knows how many jobs wait."""
    recent = parse_query(f"state:ready,waiting age:<{RECENT_SECONDS:g}s")
    came = await reader.tally(JobQuery(states=recent.states, queue=queue, more=recent.more))
    ended = await reader.rollups(RollupQuery(span="minute", since=now - RECENT_SECONDS, until=now + 60.0, queue=queue))
    return Backlog(
        queue=queue,
        waiting=waiting,
        oldest_seconds=0.0 if oldest_due_at is None else max(0.0, now - oldest_due_at),
        came=came.total,
        capped=not came.complete,
        ended=_ends(ended),
    )


async def look_at_slots(reader: Reader, now: float, workers: Sequence[WorkerRecord]) -> list[Finding]:
    """Whether handlers that run far longer than usual hold slots of these workers."""
    names = {worker.id for worker in workers}
    running = await reader.find(JobQuery(states=(State.RUNNING,), limit=RUNNING_LOOKED_AT_MAX))
    theirs = [job for job in running if job.worker in names]
    usual = await usual_runs(reader, now) if theirs else {}
    return _long_runs(Pace(now=now, running=theirs, usual=usual, workers=workers))


def _ends(found: Sequence[Rollup]) -> int:
    return sum(one.count for one in found if one.outcome not in ("snoozed", "failed", "stalled", "lost"))


# ----------------------------------------------------------------------------------------------------------------------
# Judging


def judge_pace(pace: Pace) -> list[Finding]:
    """Findings about long runs and growing backlogs."""
    return [*_long_runs(pace), *_growing(pace)]


def _long_runs(pace: Pace) -> list[Finding]:
    """Handlers far beyond what is usual for their task, and how many slots they hold."""
    held: dict[str, list[JobRecord]] = {}
    for job in pace.running:
        usual = pace.usual.get(job.task)
        if usual is not None and job.started_at is not None and usual.is_long(pace.now - job.started_at):
            held.setdefault(job.task, []).append(job)
    number = sum(map(len, held.values()))
    if not number:
        return []
    slots = sum(worker.slots for worker in pace.workers if not worker.expired)
    shown = [_long_run_of_task(pace, task, jobs) for task, jobs in sorted(held.items(), key=lambda pair: -len(pair[1]))]
    more = f"; and {len(shown) - NAMES_SHOWN} more tasks" if len(shown) > NAMES_SHOWN else ""
    text = f"{number} of {slots} slots are held by handlers that run far longer than usual: "
    text += "; ".join(shown[:NAMES_SHOWN]) + more + "."
    facts = {"jobs": [job.id for jobs in held.values() for job in jobs][:100], "held": number, "slots": slots}
    step = "`holdfast job ID` shows one, `holdfast cancel ID` stops it; give such tasks a timeout=."
    return [(wrong if slots and 2 * number >= slots else note)("pace", text, step, **facts)]


def _long_run_of_task(pace: Pace, task: str, jobs: Sequence[JobRecord]) -> str:
    longest = max(pace.now - (job.started_at or pace.now) for job in jobs)
    usual = pace.usual[task]
    return f"{task} ({len(jobs)}, the longest for {duration(longest)}; usually {duration(usual.p50)})"


def _growing(pace: Pace) -> list[Finding]:
    """Queues that fill faster than they drain, and when the others will be empty."""
    growing = [one for one in pace.backlogs if _grows(one)]
    if growing:
        shown = [
            f"{one.queue} ({one.waiting:,} wait, the oldest for {duration(one.oldest_seconds)}; in the last "
            f"{duration(RECENT_SECONDS)} {one.came:,}{'+' if one.capped else ''} arrived and {one.ended:,} ended: "
            f"{grown(one)})"
            for one in growing[:NAMES_SHOWN]
        ]
        step = "Start more workers or give them more slots; `holdfast queues` shows limits and rates that hold it back."
        facts = {"queues": {one.queue: {"waiting": one.waiting, "ended": one.ended} for one in growing}}
        return [note("backlog", f"queues that fill faster than they drain: {'; '.join(shown)}.", step, **facts)]
    draining = {one.queue: seconds for one in pace.backlogs if (seconds := drained_in(one)) is not None}
    if not draining:
        return []
    shown = [f"{queue} in about {duration(seconds)}" for queue, seconds in draining.items()]
    return [
        fine(
            "backlog",
            f"at the current pace these queues will be empty: {', '.join(shown[:NAMES_SHOWN])}.",
            queues=draining,
        )
    ]


def _grows(one: Backlog) -> bool:
    # If the oldest has waited longer than that, the jobs that ended meanwhile arrived before it, too.
    return one.oldest_seconds > RECENT_SECONDS / 2 and one.came > one.ended


def drained_in(one: Backlog) -> float | None:
    """Seconds until the queue is empty at the current pace; None if it does not shrink."""
    pace = (one.ended - one.came) / RECENT_SECONDS
    return one.waiting / pace if pace > 0 and not one.capped else None


def grown(one: Backlog) -> str:
    """How fast a backlog grows, and how long it takes to become twice as long."""
    pace = (one.came - one.ended) / RECENT_SECONDS
    least = "at least " if one.capped else ""
    return f"it grows by {least}{pace * 60:.0f} a minute and doubles in about {duration(one.waiting / pace)}"


def turn(one: Backlog) -> str:
    """A sentence about when a backlog will be worked off, as far as that can be predicted."""
    seen = (
        f"in the last {duration(RECENT_SECONDS)} {one.came:,}{'+' if one.capped else ''} arrived, {one.ended:,} ended"
    )
    seconds = drained_in(one)
    if seconds is not None:
        return f"At its current pace queue {one.queue!r} will be empty in about {duration(seconds)}: {seen}."
    if one.came > one.ended:
        return f"Queue {one.queue!r} fills faster than it drains: {seen}; {grown(one)}."
    return ""


def duration(seconds: float) -> str:
    """A readable duration: 320 ms, 12 s, 3 min, 5 h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
