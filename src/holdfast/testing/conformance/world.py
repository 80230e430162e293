"""The world a conformance case lives in: one fresh, opened backend, virtual time, and short forms of the verbs.

Called by every case. Every contract call it makes carries `now=world.now`; nothing here reads a clock. It never looks
behind the contract: what it knows it learnt from answers, get and dump.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from ...backends.contract import Backend
from ...backends.polls import TellsNothingToClaim
from ...errors import HoldfastError
from ...lifecycle import Ending, Failure, Settlement, State
from ...records import (
    Answer,
    ClaimRequest,
    DeadLetter,
    Exchanged,
    Held,
    JobRecord,
    Lease,
    NewJob,
    QueueRule,
    Release,
    Renewal,
    Report,
    WorkerRecord,
)
from .compare import Tables, same, same_tables, tables_of

MakeBackend = Callable[[str], Backend]

START = 2_000_000_000.0  # ahead of any real clock: a store that reads its own although given `now` is found out
FOREVER = 1_000_000_000.0  # lease seconds of workers that must not expire in a case
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
NO_TOKEN = "no-such-token"  # noqa: S105 - never issued by a store


class Start(Struct, frozen=True, kw_only=True):
    """A job that was put into a state; `lease` is its live lease, or the last one it had."""

    id: str
    state: State
    lease: Lease | None = None

    @property
    def held(self) -> Held:
        return Held(self.id, self.lease.token if self.lease else NO_TOKEN)


class World:
    """One store under test and the clock around it."""

    def __init__(self, backend: Backend, make_backend: MakeBackend, *, store: str, scale: float) -> None:
        self.backend = backend
        self.now = START
        self.scale = scale
        self.store = store
        self.make_backend = make_backend
        self._jobs = 0
        self._others = 0
        self._calls: dict[str, int] = {}
        self._open: list[World | Backend] = [backend]

    @classmethod
    async def create(cls, make_backend: MakeBackend, *, store: str = "store", scale: float = 1.0) -> World:
        backend = make_backend(store)
        await backend.open()
        return cls(backend, make_backend, store=store, scale=scale)

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()

    async def another(self) -> World:
        """A second world with a fresh store of its own, at the same time of day."""
        self._others += 1
        world = await World.create(self.make_backend, store=f"{self.store}-{self._others}", scale=self.scale)
        self._open.append(world)
        return world

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now

    def sized(self, number: int) -> int:
        """A case's number of jobs under this world's scale; never below 2."""
        return max(2, int(number * self.scale))

    # ------------------------------------------------------------------ producing

    def job(self, **fields: Any) -> NewJob:
        """A new job with an id of its own; any field of NewJob may be given."""
        self._jobs += 1
        return NewJob(**{"id": f"job-{self._jobs:06d}", "task": "work", **fields})

    async def enqueue(self, **fields: Any) -> str:
        """Store one job that must be new; returns its id."""
        job = self.job(**fields)
        [answer] = await self.backend.enqueue([job], now=self.now)
        same((answer.id, answer.created), (job.id, True), "enqueue of a new job")
        return job.id

    async def enqueue_many(self, number: int, **fields: Any) -> list[str]:
        """Store `number` new jobs in one batch; returns their ids in order."""
        jobs = [self.job(**fields) for _ in range(number)]
        answers = await self.backend.enqueue(jobs, now=self.now)
        same([a.id for a in answers], [job.id for job in jobs], "ids answered by enqueue")
        assert all(a.created for a in answers), "every new job of a batch is created"
        return [job.id for job in jobs]

    async def relaxed(self, limit: int, queue: str = "default") -> None:
        await self.backend.declare([QueueRule(name=queue, group_limit=limit, group_order="relaxed")], now=self.now)

    async def strict(self, queue: str = "default") -> None:
        await self.backend.declare([QueueRule(name=queue)], now=self.now)

    # ------------------------------------------------------------------ leasing

    async def register(self, worker: str, *, lease: float = 30.0, isolates: bool = False) -> str:
        row = WorkerRecord(id=worker, host="host", pid=1, lease_seconds=lease, isolates=isolates)
        await self.backend.register(row, now=self.now)
        self._calls.setdefault(worker, 0)
        return worker

    def next_call(self, worker: str) -> int:
        self._calls[worker] = self._calls.get(worker, 0) + 1
        return self._calls[worker]

    def last_call(self, worker: str) -> int:
        return self._calls.get(worker, 0)

    def request(self, worker: str = "w1", most: int = 1, **fields: Any) -> ClaimRequest:
        """The worker's next claim; `queues` is ("default",) unless given, `call` the next number unless given."""
        call = fields.pop("call", None) or self.next_call(worker)
        return ClaimRequest(**{"worker": worker, "call": call, "queues": ("default",), "most": most, **fields})

    async def claim(
        self, most: int = 1, worker: str = "w1", *, lease: float = 30.0, registered: bool = False, **fields: Any
    ) -> list[Lease]:
        """Claim as a worker that is registered on first use unless it already was; returns the leases."""
        if worker not in self._calls and not registered:
            await self.register(worker, lease=lease)
        request = self.request(worker, most, **fields)
        told_nothing = "call" not in fields and await self._nothing_to_claim(request)
        answer = await self.backend.claim(request, now=self.now)
        assert answer.known, f"worker {worker!r} is registered, yet claim answered known=False"
        assert not (told_nothing and (answer.leases or answer.recovered)), (
            "the store told that there was nothing to claim"
        )
        assert len(answer.leases) <= most, f"claim gave {len(answer.leases)} leases where {most} were asked for"
        return list(answer.leases)

    async def _nothing_to_claim(self, request: ClaimRequest) -> bool:
        if not isinstance(self.backend, TellsNothingToClaim):
            return False
        return await self.backend.nothing_to_claim(request.worker, request.queues, now=self.now)

    async def leased(self, number: int, **fields: Any) -> list[Lease]:
        """So many new jobs, all leased to w1."""
        await self.enqueue_many(number, **fields)
        leases = await self.claim(number)
        same(len(leases), number, "new jobs leased")
        return leases

    async def claim_ids(self, most: int = 1, worker: str = "w1", **fields: Any) -> list[str]:
        return [lease.id for lease in await self.claim(most, worker, **fields)]

    async def claim_one(self, job_id: str | None = None, worker: str = "w1", **fields: Any) -> Lease:
        """Claim exactly one job, which must be `job_id` where it is given."""
        leases = await self.claim(1, worker, **fields)
        assert leases, f"a job was to be claimed ({job_id or 'any'}), and claim gave none"
        if job_id is not None:
            same(leases[0].id, job_id, "the job claimed")
        return leases[0]

    async def claim_none(self, worker: str = "w1", most: int = 10, **fields: Any) -> None:
        same(await self.claim_ids(most, worker, **fields), [], "nothing is claimable")

    async def begin(self, lease: Lease | Held) -> Answer:
        [answer] = await self.backend.begin([Held(lease.id, lease.token)], now=self.now)
        return answer

    async def renew(
        self,
        worker: str,
        held: Sequence[Lease | Held] = (),
        *,
        seen_call: int | None = None,
        portrait: bytes | None = None,
    ) -> Renewal:
        seen = self.last_call(worker) if seen_call is None else seen_call
        named = [Held(lease.id, lease.token) for lease in held]
        return await self.backend.renew(worker, named, seen_call=seen, portrait=portrait, now=self.now)

    async def report(self, lease: Lease | Held, **fields: Any) -> Answer:
        [answer] = await self.backend.report([Report(id=lease.id, token=lease.token, **fields)], now=self.now)
        return answer

    def settlement(self, lease: Lease | Held, ending: Ending, **fields: Any) -> Settlement:
        """A settlement of that lease; retries and burials are failures with an error, stalls crashes, unless told
        otherwise."""
        given: dict[str, Any] = {}
        if ending in (Ending.RETRY, Ending.BURIED):
            given = {"failed": True, "failure": Failure(reason="failed", type="builtins.ValueError", text="no")}
        if ending in (Ending.RETRY, Ending.SNOOZED):
            given["delay"] = 10.0
        if ending is Ending.BURIED:
            given["reason"] = "failed"
        if ending is Ending.STALLED:
            given = {"failure": Failure(reason="crash", text="killed by SIGSEGV", traceback="Fatal Python error …")}
        return Settlement(id=lease.id, token=lease.token, ending=ending, **{**given, **fields})

    async def settle(self, lease: Lease | Held, ending: Ending = Ending.SUCCEEDED, **fields: Any) -> Answer:
        [answer] = await self.backend.settle([self.settlement(lease, ending, **fields)], now=self.now)
        return answer

    async def end(self, lease: Lease | Held, ending: Ending = Ending.SUCCEEDED, **fields: Any) -> None:
        """Settle a lease that is ours: anything but OK is a fault."""
        same(await self.settle(lease, ending, **fields), Answer.OK, f"settle {ending} of a live lease")

    async def release(self, lease: Lease | Held, delay: float = 0.0) -> Answer:
        [answer] = await self.backend.release([Release(id=lease.id, token=lease.token, delay=delay)], now=self.now)
        return answer

    async def give_back(self, lease: Lease | Held, delay: float = 0.0) -> None:
        same(await self.release(lease, delay), Answer.OK, "release of a live lease")

    async def exchange(
        self,
        settlements: Sequence[Settlement] = (),
        releases: Sequence[Release] = (),
        request: ClaimRequest | None = None,
    ) -> Exchanged:
        return await self.backend.exchange(settlements, releases, request, now=self.now)

    async def expire_worker(self, worker: str = "w1") -> None:
        """Let time pass the deadline of that worker; recovers nothing."""
        [row] = [w for w in await self.backend.workers(now=self.now) if w.id == worker]
        self.advance(row.lease_seconds + 1.0)

    async def promote_all(self) -> None:
        """Promote until a pass finds nothing more to do."""
        for _ in range(1000):
            done = await self.backend.promote(now=self.now)
            if not (done.more or done.due or done.expired or done.revived):
                return
        raise AssertionError("promote never comes to an end")

    # ------------------------------------------------------------------ looking

    async def get(self, job_id: str) -> JobRecord:
        record = await self.backend.get(job_id)
        assert record is not None, f"job {job_id} must be there, and get answers None"
        return record

    async def state(self, job_id: str) -> State:
        return (await self.get(job_id)).state

    async def states(self, job_ids: Sequence[str]) -> list[State]:
        return [await self.state(job_id) for job_id in job_ids]

    async def is_in(self, job_id: str, state: State) -> None:
        same(await self.state(job_id), state, f"state of {job_id}")

    async def counters(self, job_id: str, attempts: int, failures: int, stalls: int, shared: int = 0) -> None:
        """Assert the counters of a job."""
        job = await self.get(job_id)
        same(
            {"attempts": job.attempts, "failures": job.failures, "stalls": job.stalls, "shared": job.shared_stalls},
            {"attempts": attempts, "failures": failures, "stalls": stalls, "shared": shared},
            f"counters of {job_id}",
        )

    async def letter(self, job_id: str) -> DeadLetter:
        letter = await self.backend.letter(job_id)
        assert letter is not None, f"job {job_id} must hold a dead letter, and there is none"
        return letter

    async def tables(self, *, besides: Mapping[str, Collection[str]] | None = None) -> Tables:
        return tables_of(await self.backend.dump(), besides=besides)

    async def row(self, job_id: str) -> dict[str, Any]:
        """The job's row in the dump, with token, turn, lane, claim_call and prune_at."""
        [row] = [row for row in (await self.tables())["jobs"] if row["id"] == job_id]
        return row

    @asynccontextmanager
    async def unchanged(
        self, what: str, *, besides: Mapping[str, Collection[str]] | None = None
    ) -> AsyncIterator[None]:
        """Everything inside must leave the dump as it was, besides the columns named."""
        before = await self.tables(besides=besides)
        yield
        same_tables(before, await self.tables(besides=besides), what)

    @asynccontextmanager
    async def refused(self, error: type[HoldfastError], what: str) -> AsyncIterator[list[HoldfastError]]:
        """The call inside must raise `error` and change nothing; the list receives what was raised."""
        before = await self.tables()
        raised: list[HoldfastError] = []
        try:
            yield raised
        except error as caught:
            raised.append(caught)
        assert raised, f"{what}: {error.__name__} was due, and nothing was raised"
        same_tables(before, await self.tables(), what)

    # ------------------------------------------------------------------ any starting state

    async def put(self, state: State, *, worker: str = "holder", **fields: Any) -> Start:
        """Make a job that is in `state`. Finished jobs got there by a lease, so they have a stale token to show.

        A waiting job gets a predecessor in its group that runs under a worker which never expires. Other claimable
        jobs in the same queue would be claimed in its place: put jobs before making such bystanders.
        """
        queue = fields.get("queue", "default")
        if state is State.WAITING:
            await self.enqueue(queue=queue, group=fields.setdefault("group", "g"))
            await self.claim_one(worker=f"{worker}-of-the-first", lease=FOREVER, queues=(queue,))
        if state is State.SCHEDULED:
            fields.setdefault("delay", 1000.0)
        job_id = await self.enqueue(**fields)
        lease = None
        if state is State.RUNNING or state.finished:
            lease = await self.claim_one(job_id, worker, queues=(queue,))
        if state.finished and lease is not None:
            endings = {State.SUCCEEDED: Ending.SUCCEEDED, State.CANCELLED: Ending.CANCELLED, State.DEAD: Ending.BURIED}
            await self.end(lease, endings[state])
            await self.backend.retire(worker, now=self.now)
            del self._calls[worker]
        await self.is_in(job_id, state)
        return Start(id=job_id, state=state, lease=lease)
