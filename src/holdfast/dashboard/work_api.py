"""Work over the JSON API, for programs in other languages: lease jobs, renew the leases, settle them, leave.

Called by app.py after host, access, role and origin were checked. It keeps no state between calls: who holds a lease
is in the store, every outcome carries the token of its lease, and every call about a worker its secret, of which the
worker's id is a hash. So any process that serves the dashboard can answer, also after a restart, and none has to share
a key or store the secret. A client that falls silent loses its leases when they expire, as a worker does.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from .. import events
from ..app import Holdfast
from ..backends.contract import Backend
from ..context import Bury, Retry, Snooze
from ..errors import BackendUnavailable, HoldfastError, StoreSealed
from ..headers import headers_of
from ..leased_jobs import failed, succeeded
from ..lifecycle import Ending, Settlement, State
from ..records import Answer, ClaimRequest, Held, JobRecord, Lease, Release, WorkerRecord
from ..worker.keeper.identity import new_worker
from ..worker.keeper.runners import Journal
from .access import Refused
from .request_bodies import Delay, Text

WAIT_SECONDS_MAX = 20.0  # less than what proxies usually allow
POLL_SECONDS = 1.0
HELD_MAX = 500
SECRET_BYTES = 24
WORKER_ID_LETTERS = 32  # of the hash: 128 bits
Id = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]*$")]
Name = Annotated[str, Meta(max_length=2000, pattern=r"^[^\x00-\x1f]*$")]


class LeaseBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What to lease: at most `most` jobs of these queues, for `lease` seconds from now and from each renewal."""

    queues: Annotated[list[Id], Meta(min_length=1, max_length=100)]
    most: Annotated[int, Meta(ge=1, le=HELD_MAX)] = 1
    lease: Annotated[float, Meta(ge=2, le=3600)] = 30.0
    wait: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 0.0  # for a first job, in seconds
    name: Name = ""  # shown among the workers


class HeldLease(Struct, frozen=True, forbid_unknown_fields=True):
    """A lease, as it was handed out."""

    id: Id
    token: Id


class RenewBody(Struct, frozen=True, forbid_unknown_fields=True):
    """All leases that this worker still works on. Those it does not name are released."""

    worker: Id
    secret: Id
    leases: Annotated[list[HeldLease], Meta(max_length=HELD_MAX)]


class OutcomeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """How one job ended: `value` of a success, `error` of a failure or a burial, `delay` of a retry or a snooze."""

    id: Id
    token: Id
    outcome: Literal["succeed", "fail", "retry", "snooze", "bury", "release"]
    value: Any = None
    error: Text = ""
    delay: Delay | None = None


class SettleBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Outcomes of a worker's jobs."""

    worker: Id
    secret: Id
    outcomes: Annotated[list[OutcomeBody], Meta(min_length=1, max_length=HELD_MAX)]


class LeaveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The worker that ends."""

    worker: Id
    secret: Id


class LeasedDocument(Struct, frozen=True):
    """One leased job."""

    id: str
    token: str
    task: str
    queue: str
    args: Raw
    attempt: int
    failures: int
    fence: int
    group: str | None
    key: str | None
    headers: dict[str, str]


class LeasesDocument(Struct, frozen=True):
    """The worker that holds the leases, the secret that proves it, and how often to renew. No jobs, no worker."""

    worker: str | None
    secret: str | None
    renew_every: float
    jobs: list[LeasedDocument]


class RenewedDocument(Struct, frozen=True):
    """Jobs to stop: `lost` ones may run elsewhere, `cancelled` ones end as cancelled, however they are settled."""

    lost: list[str]
    cancelled: list[str]


class AnswerDocument(Struct, frozen=True):
    """The answer to an outcome. lost: it changed nothing; busy: send it again."""

    id: str
    answer: Literal["ok", "lost", "cancelled", "busy"]


class SettledDocument(Struct, frozen=True):
    """One answer for each outcome, in order."""

    answers: list[AnswerDocument]


class LeftDocument(Struct, frozen=True):
    """How many leases were released."""

    released: int


class Leasing:
    """The four calls, on one store. `code` is the app with the tasks, if one is known: its retry policies apply."""

    def __init__(self, app: Holdfast, code: Holdfast | None) -> None:
        self._app, self._knowing = app, code or app

    async def lease(self, body: LeaseBody) -> LeasesDocument:
        secret = secrets.token_urlsafe(SECRET_BYTES)
        worker = self._new_worker(body, secret)
        leases = await self._app._store.acall(lambda backend: self._lease(backend, worker, body))
        documents = [
            LeasedDocument(
                id=lease.id,
                token=lease.token,
                task=lease.task,
                queue=lease.queue,
                args=Raw(lease.args or b"null"),  # empty if they are gone from the store
                attempt=lease.attempt,
                failures=lease.failures,
                fence=lease.fence,
                group=lease.group,
                key=lease.key,
                headers=headers_of(lease.options),
            )
            for lease in leases
        ]
        return LeasesDocument(
            worker=worker.id if leases else None,
            secret=secret if leases else None,
            renew_every=body.lease / 3,
            jobs=documents,
        )

    def _new_worker(self, body: LeaseBody, secret: str) -> WorkerRecord:
        """No process id: the client's is not on this machine, and ours may end before it does."""
        made = new_worker(lease=body.lease, queues=tuple(dict.fromkeys(body.queues)), slots=body.most)
        made = msgspec.structs.replace(made, id=worker_of(secret))
        return msgspec.structs.replace(made, host=body.name or "api", pid=0, boot_id="", pid_namespace="")

    async def _lease(self, backend: Backend, worker: WorkerRecord, body: LeaseBody) -> list[Lease]:
        until, call, journal = time.monotonic() + body.wait, 0, Journal()
        await backend.register(worker)
        try:
            while True:
                call += 1
                request = ClaimRequest(worker=worker.id, call=call, queues=worker.queues, most=body.most)
                answer = await backend.claim(request)
                journal.recovered(answer.recovered)
                journal.seen(*events.of_recovered(answer.recovered, worker.id))
                if answer.sealed is not None:
                    raise StoreSealed(answer.sealed.role, answer.sealed.stage, answer.sealed.other)
                leases = await self._begun(backend, answer.leases)
                left = until - time.monotonic()
                if leases or left <= 0:
                    break
                opens_in = POLL_SECONDS if answer.opens_in is None else max(0.001, answer.opens_in)
                await backend.wait_for_work(worker.queues, min(left, POLL_SECONDS, opens_in))
                await backend.renew(worker.id, (), seen_call=call)
        except BaseException:
            await backend.retire(worker.id)
            raise
        if leases:
            journal.started(leases, worker.id)
        else:
            await backend.retire(worker.id)
        await self._record(backend, journal, worker.id)
        return leases

    async def _begun(self, backend: Backend, leases: Sequence[Lease]) -> list[Lease]:
        """Mark at-most-once jobs as begun before the client sees them."""
        marked = [Held(lease.id, lease.token) for lease in leases if lease.max_stalls == 0]
        answers = await backend.begin(marked) if marked else []
        refused = {ref.token for ref, answer in zip(marked, answers, strict=True) if answer is not Answer.OK}
        return [lease for lease in leases if lease.token not in refused]

    async def renew(self, body: RenewBody) -> RenewedDocument:
        _check_secret(body)
        held = [Held(one.id, one.token) for one in body.leases]
        answer = await self._app._store.acall(lambda backend: backend.renew(body.worker, held, seen_call=_CALLS_MAX))
        if not answer.known:
            return RenewedDocument(lost=[one.id for one in held], cancelled=[])
        if answer.unheard:
            raise BackendUnavailable("a part of the store did not respond. Renew again soon.")
        return RenewedDocument(lost=list(answer.lost), cancelled=list(answer.cancelled))

    async def settle(self, body: SettleBody) -> SettledDocument:
        _check_secret(body)
        answers = await self._app._store.acall(lambda backend: self._settle(backend, body))
        return SettledDocument(answers=answers)

    async def _settle(self, backend: Backend, body: SettleBody) -> list[AnswerDocument]:
        journal, said = Journal(), []
        ends = [
            self._end_of(await backend.get(outcome.id), outcome) for outcome in body.outcomes
        ]  # if one is refused, all are
        for outcome, found in zip(body.outcomes, ends, strict=True):
            answer = "lost" if found is None else await self._end(backend, body.worker, *found, journal)
            said.append(AnswerDocument(outcome.id, answer))
        await self._record(backend, journal, body.worker)
        return said

    def _end_of(self, record: JobRecord | None, outcome: OutcomeBody) -> tuple[Lease, Settlement | Release] | None:
        """The lease and its end; None if there is no lease. InvalidResult."""
        if record is None or record.state is not State.RUNNING:
            return None
        lease = _lease_of(record, outcome.token)
        if outcome.outcome == "release":
            return lease, Release(id=lease.id, token=lease.token)
        return lease, self._settlement(lease, outcome)

    async def _end(
        self, backend: Backend, worker: str, lease: Lease, end: Settlement | Release, journal: Journal
    ) -> Literal["ok", "lost", "cancelled", "busy"]:
        if isinstance(end, Release):
            return _ANSWERS[(await backend.exchange((), [end], None)).answers[0]]
        answer = (await backend.exchange([end], (), None)).answers[0]
        cancelled = answer is Answer.CANCELLED
        if cancelled:
            end = Settlement(id=end.id, token=end.token, ending=Ending.CANCELLED, retain=end.retain)
            answer = (await backend.exchange([end], (), None)).answers[0]
        if answer is Answer.OK:
            journal.settled([lease], end.ending, await backend.clock())
            journal.seen(*events.of_settlement(lease, end, worker))
        return "cancelled" if cancelled and answer is Answer.OK else _ANSWERS[answer]

    def _settlement(self, lease: Lease, outcome: OutcomeBody) -> Settlement:
        match outcome.outcome:
            case "succeed":
                return succeeded(self._knowing, lease, outcome.value)
            case "retry":
                return failed(self._knowing, lease, Retry(outcome.delay, outcome.error))
            case "snooze":
                return failed(self._knowing, lease, Snooze(outcome.delay or 0.0))
            case "bury":
                return failed(self._knowing, lease, Bury(outcome.error))
        return failed(self._knowing, lease, outcome.error)

    async def _record(self, backend: Backend, journal: Journal, worker: str) -> None:
        """Count them in the roll-ups. Best effort."""
        recording = journal.take(worker, time.time_ns() // 1000)
        if recording is not None:
            try:
                await backend.record(recording)
            except HoldfastError:
                return

    async def leave(self, body: LeaveBody) -> LeftDocument:
        _check_secret(body)
        return LeftDocument(released=await self._app._store.acall(lambda backend: backend.retire(body.worker)))


_CALLS_MAX = 1 << 30  # its client has seen every claim: leases that a renewal does not name are released
_ANSWERS: Mapping[Answer, Literal["ok", "lost", "busy"]] = {
    Answer.OK: "ok",
    Answer.LOST: "lost",
    Answer.BUSY: "busy",
    Answer.UNHEARD: "busy",
}


def worker_of(secret: str) -> str:
    """The id of the worker with this secret. Everybody may see the id; only the client that leased has the secret."""
    return f"api-{hashlib.sha256(secret.encode()).hexdigest()[:WORKER_ID_LETTERS]}"


def _check_secret(body: RenewBody | SettleBody | LeaveBody) -> None:
    """A renewal needs no token and releases what it does not name, so it must not name the worker of another client."""
    if not hmac.compare_digest(worker_of(body.secret).encode(), body.worker.encode()):
        raise Refused(
            403,
            f"This is not the secret of worker {body.worker!r}. Send `worker` and `secret` as one reply of lease has "
            "them. If the secret is lost, the leases expire by themselves.",
        )


def _lease_of(record: JobRecord, token: str) -> Lease:
    """The lease, as far as its outcome needs it; the token decides whether it is still valid."""
    return Lease(
        record.id,
        token,
        record.fence,
        record.task,
        record.queue,
        record.args,
        group=record.group,
        key=record.key,
        attempt=record.attempts + 1,
        failures=record.failures,
        max_stalls=record.max_stalls,
        created_at=record.created_at,
        started_at=record.started_at or 0.0,
        options=record.options,
        due_at=record.due_at,
    )


class Step(Struct, frozen=True):
    """One POST."""

    about: str
    body: type[Struct]
    returns: type[Struct]
    run: Callable[[Leasing, Any], Awaitable[Struct]]


STEPS: Mapping[str, Step] = {
    "lease": Step("Lease jobs, to work on them in any language.", LeaseBody, LeasesDocument, Leasing.lease),
    "renew": Step("Renew leases; do it every `renew_every` seconds.", RenewBody, RenewedDocument, Leasing.renew),
    "settle": Step("Settle leased jobs.", SettleBody, SettledDocument, Leasing.settle),
    "leave": Step("Release leases that were not settled.", LeaveBody, LeftDocument, Leasing.leave),
}
