"""The life of a lease on SQLite: register, claim, begin, renew, report, exchange, retire, recover, and promote.

Called by verbs.py, one write transaction per call. Ending a lease is in settle.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ...lifecycle import Settlement, State
from ...records import (
    LOGS_KEPT_MAX,
    Answer,
    ClaimRequest,
    Exchanged,
    Held,
    Promoted,
    Recovered,
    Release,
    Renewal,
    Report,
    WorkerRecord,
)
from . import claim, rates, rearrange, settle, tolerant
from .columns import SQL
from .operate import expire, revive_row
from .transaction import Transaction

_LOOK = SQL["promote.look"]
_answers = msgspec.json.Decoder(tuple[Answer, ...]).decode


class Look(NamedTuple):
    """Whether there is anything to promote or to recover, in one query: usually there is not."""

    due: int
    expired: int
    letters: int
    overdue: int

    @property
    def anything(self) -> bool:
        return bool(self.due or self.expired or self.letters)


def register(tx: Transaction, worker: WorkerRecord) -> None:
    tx.cursor.execute(
        SQL["register.store"],
        {
            "id": worker.id,
            "host": worker.host,
            "pid": worker.pid,
            "boot_id": worker.boot_id,
            "pid_namespace": worker.pid_namespace,
            "lease_seconds": worker.lease_seconds,
            "queues": msgspec.json.encode(worker.queues).decode(),
            "slots": worker.slots,
            "isolates": worker.isolates,
            "now": tx.now,
            "steady": tx.steady,
            "boot": tx.boot,
        },
    )


def exchange(
    tx: Transaction, settlements: Sequence[Settlement], releases: Sequence[Release], request: ClaimRequest | None
) -> Exchanged:
    """settle, release and claim in one transaction, in that order; detects a repeated call (R44)."""
    if request is None:
        answers = [*settle.settle(tx, settlements), *settle.release(tx, releases)]
        tx.close()
        return Exchanged(answers=tuple(answers))
    row = tx.cursor.execute(SQL["claim.worker"], (request.worker,)).fetchone()
    if row is not None and request.call == row[0]:
        return _first_answer(tx, request, row[1])
    answers = [*settle.settle(tx, settlements), *settle.release(tx, releases)]
    look = Look(*tx.cursor.execute(_LOOK, {"now": tx.now, "steady": tx.steady, "boot": tx.boot}).fetchone())
    if row is None or request.call < row[0]:  # unknown worker, or a later claim overtook this one: outcomes only
        tx.close()
        return Exchanged(answers=tuple(answers), known=row is not None)
    rules, recovered, opens_at = tx.rules, list[Recovered](), None
    seal = tx.closed_by  # after reading the rules, which include the seal
    leases = claim.claim_heads(tx, request) if seal is None and not any(look) and not rules.rearranging else None
    if leases is None:
        tx.refill(due=bool(look.due))
        if look.overdue:
            recovered, gone = _recover(tx, (), -(-request.sweep_max // 2))
            if request.worker in gone:
                tx.close()  # it was this worker's own deadline that had passed (R20)
                return Exchanged(answers=tuple(answers), known=False, recovered=tuple(recovered))
        leases = []
        if seal is None:
            if look.anything or recovered or rules.any_flow:
                promote(tx, request.sweep_max)
            if rules.rearranging:
                rearrange.carry_on(tx, -(-request.sweep_max // 2))
            leases = claim.claim(tx, request)
            tx.refill()
            opens_at = rates.next_opening(tx.cursor, tx.rules, request.queues, tx.now)  # after the claim
    stored = msgspec.json.encode(answers).decode() if answers else None
    tx.cursor.execute(SQL["claim.number"], (request.call, stored, request.worker))
    tx.close()
    return Exchanged(
        answers=tuple(answers),
        leases=tuple(leases),
        recovered=tuple(recovered),
        sealed=seal,
        opens_in=None if opens_at is None else opens_at - tx.now,
    )


def _first_answer(tx: Transaction, request: ClaimRequest, last_answers: str | None) -> Exchanged:
    """A repeated call: the leases it still holds that fit the request now; the rest is released without cost (R38)."""
    rows = tx.cursor.execute(SQL["claim.again"], (request.worker, request.call)).fetchall()
    fit = claim.fitting(rows, request)
    if fit < len(rows):
        settle.release(tx, [Release(id=row[1], token=row[-3]) for row in rows[fit:]])
        tx.close()
    leases = tuple(claim.as_lease(row[:-3], *row[-3:]) for row in claim.with_bodies(tx, rows[:fit]))
    return Exchanged(
        answers=() if last_answers is None else tolerant.read_or((), _answers, last_answers), leases=leases
    )


def begin(tx: Transaction, held: Sequence[Held]) -> list[Answer]:
    return [
        Answer.OK
        if tx.cursor.execute(SQL["begin.mark"], (one.id, one.token)).rowcount
        else settle.refusal(tx, one.id, one.token)
        for one in held
    ]


def renew(tx: Transaction, worker: str, held: Sequence[Held], seen_call: int, portrait: bytes | None) -> Renewal:
    values = {"id": worker, "steady": tx.steady, "boot": tx.boot, "now": tx.now}
    if not tx.cursor.execute(SQL["renew.deadline"], values).rowcount:
        return Renewal(known=False, lost=tuple(one.id for one in held))
    if portrait is not None:
        tx.cursor.execute(SQL["renew.portrait"], (worker, portrait))
    leases = {row[0]: row for row in tx.cursor.execute(SQL["renew.leases"], (worker,))}
    named = {one.id for one in held if one.id in leases and leases[one.id][1] == one.token}
    unnamed = [row for row in leases.values() if row[0] not in named and row[2] <= seen_call]
    for job_id, token, _, _ in unnamed:
        settle.release(tx, [Release(id=job_id, token=token)])
    tx.close()
    return Renewal(
        lost=tuple(one.id for one in held if one.id not in named),
        cancelled=tuple(one.id for one in held if one.id in named and leases[one.id][3]),
        released=tuple(row[0] for row in unnamed),
    )


def report(tx: Transaction, reports: Sequence[Report]) -> list[Answer]:
    execute = tx.cursor.execute
    answers: list[Answer] = []
    for one in reports:
        rows = execute(SQL["report.progress"], (one.progress, one.text, one.id, one.token)).fetchall()
        answers.append(Answer.OK if rows else Answer.LOST)
        lines = one.lines[-LOGS_KEPT_MAX:]
        if not rows or not lines:
            continue
        seq = rows[0][0]
        newest = execute(SQL["report.newest_line"], (seq,)).fetchone()[0]
        values = [(seq, newest + place, tx.now, text) for place, text in enumerate(lines, 1)]
        tx.cursor.executemany(SQL["report.line"], values)
        execute(SQL["report.trim"], (seq, newest + len(lines) - LOGS_KEPT_MAX))
    return answers


def retire(tx: Transaction, worker: str) -> int:
    rows = tx.cursor.execute(SQL["recover.leases"], (worker, -1)).fetchall()
    for row in rows:
        settle.give_back(tx, settle.as_lease(row))
    tx.cursor.execute(SQL["recover.remove"], (worker,))
    tx.close()
    return len(rows)


def recover(tx: Transaction, dead: Sequence[str], limit: int) -> list[Recovered]:
    """End the leases of dead workers, whoever noticed first."""
    return _recover(tx, dead, limit)[0]


def _recover(tx: Transaction, dead: Sequence[str], limit: int) -> tuple[list[Recovered], set[str]]:
    """What was recovered, and the workers whose rows were removed."""
    execute = tx.cursor.execute
    expired = dict(execute(SQL["recover.expired"], {"steady": tx.steady, "boot": tx.boot}).fetchall())
    for worker in dead:
        if worker not in expired and (row := execute(SQL["recover.exists"], (worker,)).fetchone()):
            expired[worker] = row[0]
    recovered: list[Recovered] = []
    gone: set[str] = set()
    for worker, isolates in sorted(expired.items()):
        # Reading one more than the limit shows whether the worker still holds leases afterwards.
        rows = execute(SQL["recover.leases"], (worker, limit - len(recovered) + 1)).fetchall()
        room = limit - len(recovered)
        recovered += [settle.recovered(tx, settle.as_lease(row), isolates=bool(isolates)) for row in rows[:room]]
        if len(rows) > room:
            break
        execute(SQL["recover.remove"], (worker,))
        gone.add(worker)
    tx.refill()
    return [_as_refilled(tx, one) for one in recovered], gone


def _as_refilled(tx: Transaction, one: Recovered) -> Recovered:
    """A grouped job was put back as waiting; the refill may have made it ready."""
    if one.state is not State.WAITING:
        return one
    row = tx.cursor.execute(SQL["cancel.job"], (one.id,)).fetchone()
    return msgspec.structs.replace(one, state=State(row[4]))


def promote(tx: Transaction, limit: int) -> Promoted:
    """Bury expired jobs, bring in due ones, revive letters: at most `limit` together. Then refill rated groups."""
    execute = tx.cursor.execute
    expired = execute(SQL["promote.expired"], (tx.now, limit)).fetchall()
    for (job_id,) in expired:
        expire(tx, job_id)
    due = execute(SQL["promote.due"], (tx.now, limit - len(expired))).fetchall()
    for row in due:
        tx.place(*row)
    letters = execute(SQL["promote.letters_due"], (tx.now, limit - len(expired) - len(due))).fetchall()
    revived = sum(revive_row(tx, job_id, automatic=True) for (job_id,) in letters)
    if tx.rules.any_flow:
        for queue, group in execute(SQL["promote.waking"], (tx.now, limit)).fetchall():
            tx.touch(queue, group, changed=True)
    tx.refill()
    more = len(expired) + len(due) + len(letters) >= limit
    return Promoted(due=len(due), expired=len(expired), revived=revived, more=more)
