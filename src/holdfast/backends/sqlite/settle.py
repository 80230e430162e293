"""How leases end: settle, release and stall; and dead letters. Every way out of `running` is in this file.

Called by claim.py, renew.py and recover.py, and by operate.py for jobs without a lease, inside a transaction. A lease
is matched by (id, token) and ended in the same step; if nothing matches, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ...dead_copies import Death, copy_id, died_in, with_death
from ...lifecycle import Ending, Failure, Settlement, StallVerdict, State, stall_text, stall_verdict
from ...records import (
    HISTORY_KEPT_MAX,
    REMEMBER_SECONDS_MIN,
    Answer,
    Lease,
    Mark,
    NewJob,
    PastDeath,
    Recovered,
    Release,
    with_conflicts_kept,
)
from ..formulas import noted, prune_at, rank
from . import codec, enqueue
from .codec import SQL, deaths_of, encoded, failure_of, logical_name, revival_of, with_failure
from .connection import Transaction

LEASE_FIELDS = [
    "seq",
    "id",
    "task",
    "queue",
    "grp",
    "key",
    "attempts",
    "failures",
    "stalls",
    "max_stalls",
    "started_at",
    "fence",
    "worker",
    "begun",
    "cancel_requested",
    "errors",
    "revival",
    "shared_stalls",
    "suspect",
    "priority",
]

# If all values together are larger than this, copying them through JSON costs more than it saves.
VALUES_BYTES_MAX = 262_144

LEASED_MAX = 20_000  # leases whose groups are remembered
_UNKNOWN: Final = ()

# From this many successes on, one statement for all costs less than one for each.
TOGETHER_MIN = 3

Success = tuple[int, str, str, float, bytes | None]  # seq, id, token, seconds to retain, value
_SEQ: Final = 0
_ID: Final = 1
_TOKEN: Final = 2
_VALUE: Final = 4

_ALL_SUCCEEDED = SQL["settle.all_succeeded"]
_SUCCEEDED = SQL["settle.succeeded"]
_GROUPS_OF = SQL["settle.groups_of"]
_LEASE = SQL["settle.lease"]
_SCHEDULED = SQL["settle.scheduled"]
_FINISHED = SQL["settle.finished"]
_HELD = SQL["begin.held"]
_END_KEYS = SQL["settle.end_keys"]
_IS_BEHIND = SQL["recover.is_behind"]
_IS_SIGNALLED = SQL["signal.known"]


def as_lease(row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(LEASE_FIELDS, row, strict=True))


def settle(tx: Transaction, settlements: Sequence[Settlement]) -> list[Answer]:
    """End leases with outcomes. Successes go in one statement; if one is refused, they go one by one."""
    if len({settlement.token for settlement in settlements}) < len(settlements):
        # The same lease twice in one batch: the first one counts, so they must be applied in order.
        return [answer for settlement in settlements for answer in settle(tx, [settlement])]
    answers = [Answer.OK] * len(settlements)
    places: list[int] = []
    successes: list[Success] = []
    removed: list[int] = []
    for place, one in enumerate(settlements):
        if one.ending is Ending.SUCCEEDED:
            retain = one.retain if one.retain > REMEMBER_SECONDS_MIN else REMEMBER_SECONDS_MIN
            successes.append((seq_of(one.token), one.id, one.token, retain, one.value))
            places.append(place)
            if one.retain < 0:
                removed.append(seq_of(one.token))
        else:
            answers[place] = _settle_otherwise(tx, one)
    if successes:
        if len(successes) < TOGETHER_MIN or not _all_succeeded(tx, successes):
            kept = [_succeeded(tx, success) for success in successes]
            for place, success, done in zip(places, successes, kept, strict=True):
                if not done:
                    answers[place] = refusal(tx, success[_ID], success[_TOKEN])
            successes = [success for success, done in zip(successes, kept, strict=True) if done]
        _after_success(tx, successes)
        if removed:
            _remove(tx, {success[_SEQ] for success in successes}.intersection(removed))
    return answers


def _remove(tx: Transaction, seqs: Iterable[int]) -> None:
    """Remove jobs that have just succeeded, except those that others refer to or whose key has a window (R108)."""
    from .prune import remove  # a circular import otherwise

    remove(tx, tx.cursor.execute(SQL["settle.removable"], (encoded(sorted(seqs)).decode(),)).fetchall())


def settle_with(tx: Transaction, settlement: Settlement, jobs: Sequence[NewJob]) -> Answer:
    """End a lease as succeeded and store the jobs its handler enqueued; jobs that wait for it are notified last."""
    tx.settling = True
    [answer] = settle(tx, [settlement])
    if answer is Answer.OK and jobs:
        enqueue.enqueue(tx, [with_conflicts_kept(job) for job in jobs])
    tx.settling = False
    tx.close()
    return answer


class CallerCursor:
    """The part of a cursor that the verbs use, on the caller's connection, which may be SQLAlchemy's."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute

    def execute(self, statement: str, values: Any = ()) -> Any:
        if isinstance(values, list):
            values = tuple(values)
        return self._execute(statement, values) if values else self._execute(statement)

    def executemany(self, statement: str, rows: Iterable[Any]) -> None:
        for row in rows:
            self._execute(statement, row)


def settle_in(tx: Transaction, settlement: Settlement) -> Answer:
    """End one lease in the caller's transaction, and refill its group there: SQLite has one writer at a time."""
    answer = settle(tx, [settlement])[0]
    tx.close()
    return answer


def remove_settled(tx: Transaction, job_ids: Sequence[str]) -> None:
    """Remove those of these jobs that have succeeded, if R108 allows it."""
    tx.refuse_sealed()
    _remove(tx, [row[0] for row in tx.cursor.execute(SQL["settle.done"], (encoded(list(job_ids)).decode(),))])
    tx.close()


def _all_succeeded(tx: Transaction, successes: list[Success]) -> bool:
    """All in one statement, which runs without the GIL; False, and nothing done, if one of them is refused."""
    if sum([len(success[_VALUE] or b"") for success in successes]) > VALUES_BYTES_MAX:
        return False
    rows = [
        (seq, job_id, token, retain, None if value is None else value.decode())
        for seq, job_id, token, retain, value in successes
    ]
    cursor = tx.cursor
    cursor.execute("SAVEPOINT settle")
    done = cursor.execute(_ALL_SUCCEEDED, {"now": tx.now, "leases": encoded(rows).decode()}).rowcount == len(rows)
    if not done:
        cursor.execute("ROLLBACK TO settle")
    cursor.execute("RELEASE settle")
    return done


def _succeeded(tx: Transaction, success: Success) -> bool:
    seq, job_id, token, retain, value = success
    return tx.cursor.execute(_SUCCEEDED, (tx.now, tx.now + retain, value, seq, job_id, token)).rowcount > 0


def _after_success(tx: Transaction, successes: list[Success]) -> None:
    """Free the groups' slots and the keys, and close the dead letters of jobs that succeeded. A group is read only if
    another process leased the job: it does not change while the job runs."""
    seqs = [success[_SEQ] for success in successes]
    chosen = (encoded(seqs).decode(),)
    tx.ended(seqs)
    if tx.rules.any_key:
        tx.cursor.execute(_END_KEYS, chosen)
    places = dict.fromkeys([tx.leased.pop(success[_TOKEN], _UNKNOWN) for success in successes])
    for place in tx.cursor.execute(_GROUPS_OF, chosen) if _UNKNOWN in places else places:
        if place:
            tx.touch(*place)
    if tx.rules.any_letter:
        rows = tx.cursor.execute(SQL["settle.logicals_of"], chosen).fetchall()
        close_letters(tx, [logical_name(*row) for row in rows])


def remember(tx: Transaction, leases: Iterable[Lease]) -> None:
    """Note the groups of new leases. Those that were lost or released are never taken out one by one."""
    if len(tx.leased) > LEASED_MAX:
        tx.leased.clear()
    for lease in leases:
        tx.leased[lease.token] = None if lease.group is None else (lease.queue, lease.group)


def seq_of(token: str) -> int:
    """The seq in a token; a foreign token matches no row."""
    try:
        return int(token.partition(".")[0], 16)
    except ValueError:
        return -1


def refusal(tx: Transaction, job_id: str, token: str) -> Answer:
    """Why a fenced write matched no row: the lease is lost, or cancellation was requested."""
    row = tx.cursor.execute(_HELD, (job_id, token)).fetchone()
    return Answer.CANCELLED if row is not None and row[0] else Answer.LOST


def _settle_otherwise(tx: Transaction, settlement: Settlement) -> Answer:
    row = tx.cursor.execute(_LEASE, (settlement.id, settlement.token)).fetchone()
    if row is None:
        return Answer.LOST
    job = as_lease(row)
    if settlement.ending is Ending.STALLED:
        crash = settlement.failure or Failure(reason="crash")
        stall(tx, job, crash, alone=settlement.alone, begun=True, retain=settlement.retain)
        return Answer.OK
    if job["cancel_requested"] and settlement.ending is not Ending.CANCELLED:
        return Answer.CANCELLED
    failure = settlement.failure
    if failure is not None:
        failure = _stamped(tx, job, failure)
        job["errors"] = with_failure(job["errors"], failure)
    if settlement.ending is Ending.CANCELLED:
        finish(tx, job, State.CANCELLED, attempts=1, retain=settlement.retain)
    elif settlement.ending is Ending.BURIED:
        reason = settlement.reason or "failed"
        finish(tx, job, State.DEAD, attempts=1, failures=int(settlement.failed), reason=reason)
        bury(tx, job, reason, failure)
    else:
        delay = 0.0 if _is_awaited(tx, settlement) else settlement.delay
        _schedule(tx, job, delay, attempts=1, failures=int(settlement.failed))
        if settlement.ending is Ending.SNOOZED:
            _mark_lease(tx, job, "snooze")
    return Answer.OK


def _is_awaited(tx: Transaction, settlement: Settlement) -> bool:
    """Whether the signal that a snooze waits for came while its handler was running (R93)."""
    if settlement.ending is not Ending.SNOOZED or not settlement.reason:
        return False
    return bool(tx.cursor.execute(_IS_SIGNALLED, (settlement.id, settlement.reason)).fetchone()[0])


def mark(tx: Transaction, seq: int, kind: str, **facts: Any) -> None:
    """Append to a job's timeline, in the step that makes the transition (R65): the fields of `Mark`."""
    tx.cursor.execute(SQL["settle.mark"], (encoded(Mark(kind=kind, at=tx.now, **facts)).decode(), seq))


def note(tx: Transaction, seq: int, kind: str, **facts: Any) -> None:
    """Like `mark`, for marks that a lease may repeat: only the first and the newest are kept."""
    [stored] = tx.cursor.execute(SQL["settle.noted"], (seq,)).fetchone()
    marks = noted(codec.read_or((), codec.marks_of, stored), Mark(kind=kind, at=tx.now, **facts))
    tx.cursor.execute(SQL["settle.note"], (encoded(marks).decode(), seq))


def _mark_lease(tx: Transaction, job: dict[str, Any], kind: str) -> None:
    """Mark how a lease ended."""
    mark(tx, job["seq"], kind, worker=job["worker"], fence=job["fence"], started_at=job["started_at"])


def release(tx: Transaction, releases: Sequence[Release]) -> list[Answer]:
    """Give leases back; no counter changes."""
    answers: list[Answer] = []
    for item in releases:
        row = tx.cursor.execute(_LEASE, (item.id, item.token)).fetchone()
        if row is None:
            answers.append(Answer.LOST)
            continue
        give_back(tx, as_lease(row), delay=item.delay)
        answers.append(Answer.OK)
    return answers


def give_back(tx: Transaction, job: dict[str, Any], *, delay: float = 0.0) -> State:
    """End a lease unfinished, without cost."""
    _mark_lease(tx, job, "release")
    if job["cancel_requested"]:
        finish(tx, job, State.CANCELLED)
        return State.CANCELLED
    if delay > 0:
        _schedule(tx, job, delay)
        return State.SCHEDULED
    return _back_in_play(tx, job)


def stall(
    tx: Transaction, job: dict[str, Any], failure: Failure, *, alone: bool, begun: bool, retain: float = 86400.0
) -> tuple[State, bool]:
    """THE routine that decides stalls: the worker is gone, or its owner reported that the process died (R18).

    Returns the job's new state, and whether the stall counted.
    """
    verdict = stall_verdict(
        stalls=job["stalls"],
        shared_stalls=job["shared_stalls"],
        max_stalls=job["max_stalls"],
        alone=alone,
        begun=begun,
        cancel_requested=bool(job["cancel_requested"]),
    )
    if job["max_stalls"] == 0 and not begun:
        return give_back(tx, job), False
    failure = _stamped(tx, job, failure)
    job["errors"] = with_failure(job["errors"], failure)
    by_itself, shared = int(alone), int(not alone)
    if verdict is StallVerdict.AGAIN:
        return _back_in_play(tx, job, stalls=by_itself, shared_stalls=shared), True
    if verdict is StallVerdict.CANCEL:
        finish(tx, job, State.CANCELLED, attempts=1, stalls=by_itself, shared_stalls=shared, retain=retain)
        return State.CANCELLED, True
    finish(tx, job, State.DEAD, attempts=1, stalls=by_itself, shared_stalls=shared, reason=failure.reason)
    bury(tx, job, failure.reason, failure)
    return State.DEAD, True


def recovered(tx: Transaction, job: dict[str, Any], *, isolates: bool) -> Recovered:
    """End a lease because its worker's deadline passed or the worker was proved dead."""
    alone = bool(job["suspect"]) or not isolates
    if _is_behind(tx, job):
        state, counted = give_back(tx, job), False
    else:
        counts = {name: job[name] for name in ("stalls", "shared_stalls", "max_stalls")}
        failure = Failure(reason="stalled", text=stall_text(**counts, alone=alone))
        state, counted = stall(tx, job, failure, alone=alone, begun=bool(job["begun"]))
    return Recovered(
        id=job["id"],
        task=job["task"],
        queue=job["queue"],
        group=job["grp"],
        state=state,
        worker=job["worker"],
        stalls=job["stalls"] + (counted and alone),
        counted=counted,
        shared_stalls=job["shared_stalls"] + (counted and not alone),
    )


def _is_behind(tx: Transaction, job: dict[str, Any]) -> bool:
    """Whether a lease follows another one in its chain: then nobody knows whether it began (R47)."""
    if job["grp"] is None or not tx.rules.strict(job["queue"], job["grp"]):
        return False
    return bool(tx.cursor.execute(_IS_BEHIND, job).fetchone()[0])


def _stamped(tx: Transaction, job: dict[str, Any], failure: Failure) -> Failure:
    return msgspec.structs.replace(
        failure,
        at=tx.now,
        attempt=job["attempts"] + 1,
        fence=job["fence"],
        worker=job["worker"],
        started_at=job["started_at"],
    )


def _schedule(tx: Transaction, job: dict[str, Any], delay: float, *, attempts: int = 0, failures: int = 0) -> None:
    queue, group = job["queue"], job["grp"]
    held = group is not None and tx.rules.strict(queue, group)
    values = {
        "attempts": attempts,
        "failures": failures,
        "due_at": tx.now + max(0.0, delay),
        "held": int(held),
        "errors": job["errors"],
        "seq": job["seq"],
    }
    tx.cursor.execute(_SCHEDULED, values)
    if group is not None:
        tx.touch(queue, group)


def _back_in_play(tx: Transaction, job: dict[str, Any], *, stalls: int = 0, shared_stalls: int = 0) -> State:
    queue, group = job["queue"], job["grp"]
    values = {
        "seq": job["seq"],
        "stalls": stalls,
        "shared_stalls": shared_stalls,
        "errors": job["errors"],
    }
    if group is None:
        values |= {"rank": rank(job["priority"], tx.rules.aging(queue)), "lane": tx.rules.lane_of(job["task"], group)}
        tx.cursor.execute(SQL["release.ready"], values)
        return State.READY
    tx.cursor.execute(SQL["release.waiting"], {**values, "held": int(tx.rules.strict(queue, group))})
    tx.touch(queue, group)
    return State.WAITING


def leave_group(tx: Transaction, job: dict[str, Any]) -> None:
    """An unstarted job, or one whose lease ends, leaves its place in its group. If it waited, one with a lower order
    may come first now (R105)."""
    waited = job.get("state") == State.WAITING
    if job["grp"] is not None and (waited or in_play(job)):
        tx.touch(job["queue"], job["grp"], changed=waited)


def in_play(job: dict[str, Any]) -> bool:
    """Whether a job occupies a slot of its group; a job read as a lease is running."""
    state = job.get("state", State.RUNNING)
    return state in (State.READY, State.RUNNING) or (state in (State.SCHEDULED, State.DEAD) and bool(job["held"]))


def finish(
    tx: Transaction,
    job: dict[str, Any],
    state: State,
    *,
    attempts: int = 0,
    failures: int = 0,
    stalls: int = 0,
    shared_stalls: int = 0,
    reason: str | None = None,
    retain: float = 86400.0,
) -> None:
    """End a job, and its lease if it had one. A dead job has no prune time: it holds its letter."""
    died_running = state is State.DEAD and attempts > 0  # only the end of a lease counts as an attempt
    values = {
        "state": state.value,
        "attempts": attempts,
        "failures": failures,
        "stalls": stalls,
        "shared_stalls": shared_stalls,
        "now": tx.now,
        "prune_at": None if state is State.DEAD else prune_at(tx.now, retain, None),
        "reason": reason,
        "held": int(died_running and tx.rules.stops(job["queue"], job["grp"])),
        "errors": job["errors"],
        "seq": job["seq"],
        "counted": int(job["task"] in tx.rules.trimmed),
    }
    tx.cursor.execute(_FINISHED, values)
    tx.ended([job["seq"]])
    if job["key"] is not None:
        tx.cursor.execute(_END_KEYS, (encoded([job["seq"]]).decode(),))
    leave_group(tx, job)
    if state is State.CANCELLED:
        close_letters(tx, [logical_name(job["id"], job["queue"], job["task"], job["key"])])


# ----------------------------------------------------------------------------------------------------------------------
# Dead letters


_CYCLES = 6  # positions in a row of bury.letter
_COUNT = 7


def bury(tx: Transaction, job: Mapping[str, Any], reason: str, failure: Failure | None) -> None:
    """THE routine that creates or merges a dead letter (R16); the caller makes the job dead in this transaction."""
    execute = tx.cursor.execute
    tx.rules.any_letter = 1
    logical = logical_name(job["id"], job["queue"], job["task"], job["key"])
    row = execute(SQL["bury.letter"], (job["seq"], logical)).fetchone()
    revival = codec.read_or(None, revival_of, job["revival"])
    cooldown = None if revival is None else revival.cooldown(0 if row is None else row[_CYCLES])
    values = {
        "logical": logical,
        "job_id": job["id"],
        "task": job["task"],
        "queue": job["queue"],
        "key": job["key"],
        "grp": job["grp"],
        "seq": job["seq"],
        "now": tx.now,
        "reason": reason,
        "error": None if failure is None else encoded(failure),
        "revive_at": None if cooldown is None else tx.now + cooldown,
    }
    _send_copy(tx, job, reason, 1 if row is None else row[_COUNT] + 1)
    if row is None:
        execute(SQL["bury.insert"], values)
        return
    earlier_id, earlier_args, failed_at, earlier_reason, error, history, *_ = row
    if earlier_id != job["id"]:
        let_go(tx, earlier_id, "superseded")
    past = codec.read_or(None, failure_of, error)
    earlier = PastDeath(
        job_id=earlier_id,
        at=failed_at,
        reason=earlier_reason,
        error="" if past is None else past.text,
        args=earlier_args,
    )
    deaths = (*codec.read_or((), deaths_of, history), earlier)[-HISTORY_KEPT_MAX:]
    execute(SQL["bury.merge"], {**values, "history": encoded(deaths)})


def _send_copy(tx: Transaction, job: Mapping[str, Any], reason: str, count: int) -> None:
    """Store a copy of a job that dies in the dead_queue of its queue, unless one died there before it (R120)."""
    to = tx.rules.queue(job["queue"]).dead_queue
    if to is None:
        return
    [options] = tx.cursor.execute(SQL["bury.options"], (job["seq"],)).fetchone()
    if died_in(options, to):
        return
    values = {
        "id": copy_id(job["id"], count, tx.now),
        "to": to,
        "now": tx.now,
        "options": with_death(options, Death(job["queue"], job["id"], reason)),
        "seq": job["seq"],
    }
    if tx.cursor.execute(SQL["bury.copy"], values).rowcount:
        tx.cursor.execute(SQL["bury.copy_body"], {"id": values["id"], "seq": values["seq"]})


def let_go(tx: Transaction, job_id: str, reason: str) -> None:
    """A dead job no longer holds its letter: it may be pruned, and a group that it stopped continues."""
    stopped = tx.cursor.execute(SQL["bury.held"], (job_id,)).fetchone()
    tx.cursor.execute(SQL["bury.let_go"], (reason, prune_at(tx.now, 0.0, None), job_id))
    if stopped is not None:
        tx.touch(*stopped)


def close_letters(tx: Transaction, logicals: Iterable[str]) -> None:
    """Success or cancellation closes a logical job's dead letter; an older job that held it may be pruned (R17)."""
    if tx.rules.any_letter:
        for logical in logicals:
            row = tx.cursor.execute(SQL["revive.letter_by_logical"], (logical,)).fetchone()
            if row is not None:
                let_go(tx, row[0], "superseded")
                tx.cursor.execute(SQL["settle.close_letter"], (logical,))
