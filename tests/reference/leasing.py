"""The verbs about leases: claim, begin, renew, report, settle, release, retire.

Called by backend.py inside its critical section. Every write about a lease goes through `fenced`: a job that is not
running under exactly the token named is not touched. What the end of a lease means is store.py's business; a stall is
stalling.py's.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.backends.seals import too_many_commands
from holdfast.errors import JobNotFound
from holdfast.lifecycle import Ending, Failure, Settlement, State
from holdfast.records import (
    LOGS_KEPT_MAX,
    Answer,
    ClaimRequest,
    Command,
    Exchanged,
    Held,
    Lease,
    LogLine,
    Release,
    Renewal,
    Report,
    WorkerRecord,
)
from holdfast.worker_status import COMMANDS_KEPT_MAX

from . import claiming, depending, reading, remembering, stalling
from .rows import Holder, Instant, Row
from .store import Store

_INTO = {
    Ending.SUCCEEDED: State.SUCCEEDED,
    Ending.RETRY: State.SCHEDULED,
    Ending.SNOOZED: State.SCHEDULED,
    Ending.BURIED: State.DEAD,
    Ending.CANCELLED: State.CANCELLED,
}


def fenced(store: Store, job_id: str, token: str) -> Row | None:
    """The job, if it is running under exactly this token."""
    row = store.jobs.get(job_id)
    return row if row is not None and row.state is State.RUNNING and row.token == token else None


def register(store: Store, worker: WorkerRecord, at: Instant) -> None:
    holder = store.workers.get(worker.id)
    if holder is None:
        record = replace(worker, started_at=at.wall, renewed_at=at.wall, expired=False, running=0, portrait=None)
        store.workers[worker.id] = Holder(record, at.steady + worker.lease_seconds)
    else:
        holder.record = replace(holder.record, queues=worker.queues, slots=worker.slots)
        _prolong(holder, at)


def _prolong(holder: Holder, at: Instant) -> None:
    holder.deadline = at.steady + holder.record.lease_seconds
    holder.record = replace(holder.record, renewed_at=at.wall)


def exchange(
    store: Store,
    settlements: Sequence[Settlement],
    releases: Sequence[Release],
    request: ClaimRequest | None,
    at: Instant,
) -> Exchanged:
    """settle, release and claim in one step; a repeated call is answered, not carried out again."""
    holder = None if request is None else store.workers.get(request.worker)
    if request is not None and holder is not None and request.call == holder.last_call:
        return Exchanged(answers=holder.answers, leases=_leases(store, _repeat(store, holder, request, at)))
    answers = (*(settle(store, item, at) for item in settlements), *(release(store, item, at) for item in releases))
    store.refill_touched()
    if request is None:
        return Exchanged(answers=answers)
    if holder is None:
        return Exchanged(answers=answers, known=False)
    return _claim(store, holder, request, answers, at)


def _repeat(store: Store, holder: Holder, request: ClaimRequest, at: Instant) -> list[Row]:
    """The leases of a repeated call that are still ours and fit what it asks for now; the rest is given back free."""
    ours = [row for row in holder.leases.values() if row.claim_call == request.call]
    fit = claiming.fitting(ours, claiming.chained(store, ours), request)
    for row in [row for row in ours if row not in fit]:
        store.give_back(row, at.wall)
    return fit


def _leases(store: Store, rows: Sequence[Row]) -> tuple[Lease, ...]:
    behind = claiming.chained(store, rows)
    return tuple(replace(reading.lease(row), chained=one) for row, one in zip(rows, behind, strict=True))


def _claim(store: Store, holder: Holder, request: ClaimRequest, answers: tuple[Answer, ...], at: Instant) -> Exchanged:
    depending.end_step(store, at.wall)
    if request.call < holder.last_call:
        return Exchanged(answers=answers)
    # a claim after its worker's own deadline finds itself among the stalled: then the worker is unknown from here on
    recovered = tuple(stalling.recover(store, at, (), -(-request.sweep_max // 2)))
    if holder.expired(at):
        return Exchanged(answers=answers, known=False, recovered=recovered)
    if store.seal is not None and store.seal.closed:
        holder.last_call, holder.answers = request.call, answers
        return Exchanged(answers=answers, recovered=recovered, sealed=store.seal)
    store.promote(at.wall, request.sweep_max)
    rows = claiming.claim(store, holder, request, at.wall)
    holder.last_call, holder.answers = request.call, answers
    store.refill_touched()  # what is held back is told as it stands after the claim
    opens_at = store.opens_at(request.queues, at.wall)
    return Exchanged(
        answers=answers,
        leases=_leases(store, rows),
        recovered=recovered,
        opens_in=None if opens_at is None else opens_at - at.wall,
    )


def begin(store: Store, held: Held) -> Answer:
    row = fenced(store, held.id, held.token)
    if row is None:
        return Answer.LOST
    if row.cancel_requested:
        return Answer.CANCELLED
    row.begun = True
    return Answer.OK


def report(store: Store, item: Report, at: Instant) -> Answer:
    row = fenced(store, item.id, item.token)
    if row is None:
        return Answer.LOST
    if item.progress is not None:
        row.progress = item.progress
    if item.text is not None:
        row.progress_text = item.text
    if item.progress is not None or item.text is not None:
        store.note(row, "progress", at.wall, progress=item.progress, text=item.text or "")
    if item.lines:
        logs = store.logs.setdefault(row.id, [])
        logs.extend(LogLine(at.wall, line) for line in item.lines)
        del logs[:-LOGS_KEPT_MAX]
    return Answer.OK


def settle(store: Store, item: Settlement, at: Instant) -> Answer:
    row = fenced(store, item.id, item.token)
    if row is None:
        return Answer.LOST
    if item.ending is Ending.STALLED:
        failure = item.failure or Failure(reason="crash")
        stalling.stall(store, row, at.wall, failure, alone=item.alone, begun=True, retain=item.retain)
        return Answer.OK
    if row.cancel_requested and item.ending is not Ending.CANCELLED:
        return Answer.CANCELLED
    if item.ending is Ending.SNOOZED:
        store.mark_lease(row, "snooze", at.wall)
    store.end_lease(
        row,
        at.wall,
        _INTO[item.ending],
        counted=True,
        failed=item.failed,
        delay=0.0 if remembering.is_due(store, item) else item.delay,
        retain=item.retain,
        failure=item.failure,
        value=item.value,
        reason=None if item.ending is Ending.SNOOZED else item.reason,
    )
    linked = row.id in store.children_of or row.id in store.parents_of or row.id in store.watchers
    if item.ending is Ending.SUCCEEDED and item.retain < 0 and not (row.holds_key or linked):
        store.remove(row)
    return Answer.OK


def release(store: Store, item: Release, at: Instant) -> Answer:
    row = fenced(store, item.id, item.token)
    if row is None:
        return Answer.LOST
    store.give_back(row, at.wall, item.delay)
    return Answer.OK


def renew(
    store: Store, worker: str, held: Sequence[Held], seen_call: int, portrait: bytes | None, at: Instant
) -> Renewal:
    holder = store.workers.get(worker)
    if holder is None:
        return Renewal(known=False, lost=tuple(item.id for item in held))
    before, lease = holder.record.renewed_at, holder.record.lease_seconds
    _prolong(holder, at)
    if portrait is not None:
        holder.record = replace(holder.record, portrait=portrait)
    named = {item.id: item.token for item in held}
    lost = tuple(item.id for item in held if (row := holder.leases.get(item.id)) is None or row.token != item.token)
    cancelled = tuple(item.id for item in held if item.id not in lost and holder.leases[item.id].cancel_requested)
    unnamed = [
        row for row in holder.leases.values() if (row.claim_call or 0) <= seen_call and named.get(row.id) != row.token
    ]
    for row in unnamed:
        store.give_back(row, at.wall)
    for row in holder.leases.values():
        gap = at.wall - max(before, row.started_at or 0.0)
        if named.get(row.id) == row.token and gap > lease / 2:
            store.note(row, "renewal", at.wall, gap=gap)
    waiting = tuple(one for one in holder.commands if one.done_at is None)
    return Renewal(lost=lost, cancelled=cancelled, released=tuple(row.id for row in unnamed), commands=waiting)


def command(store: Store, worker: str, asked: Command, at: Instant) -> Command:
    holder = store.workers.get(worker)
    if holder is None:
        raise JobNotFound(worker, "worker")
    for one in holder.commands:
        if one.id == asked.id:
            return one
    answered = [one for one in holder.commands if one.done_at is not None]
    if len(holder.commands) >= COMMANDS_KEPT_MAX:
        if not answered:
            raise too_many_commands(worker)
        holder.commands.remove(answered[0])
    holder.commands.append(replace(asked, at=at.wall))
    return holder.commands[-1]


def answer(store: Store, worker: str, command_id: str, result: str, refused: bool, at: Instant) -> bool:
    holder = store.workers.get(worker)
    for place, one in enumerate([] if holder is None else holder.commands):
        if holder is not None and one.id == command_id and one.done_at is None:
            holder.commands[place] = replace(one, done_at=at.wall, result=result, refused=refused)
            return True
    return False


def retire(store: Store, worker: str, at: Instant) -> int:
    holder = store.workers.get(worker)
    if holder is None:
        return 0
    rows = list(holder.leases.values())
    for row in rows:
        store.give_back(row, at.wall)
    del store.workers[worker]
    return len(rows)
