"""Jobs leased by a program that is not a worker: `with app.lease("mail", most=10) as jobs:`.

Called by `app.lease`. It uses the app's own backend on the app's store thread, which renews the leases while the caller
works, so a block costs no thread and no connection. The caller settles each job; jobs it does not settle are released,
at no cost, when the block ends. It never runs a handler and cannot stop its caller: `job.lost` tells it when to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from . import events, logs
from .backends.contract import Backend
from .children import Children
from .clock import Clock
from .codec import encode_result
from .context import (
    TEXT_CHARS_MAX,
    Attempt,
    Bury,
    Outcome,
    OutcomeKind,
    Retry,
    Snooze,
    bounded,
    ended_as,
    error_text,
    interrupted,
    options_for,
    raised,
    settlement_of,
)
from .errors import (
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    JobCancelled,
    LeaseLost,
    OutcomeUnknown,
    StoreSealed,
)
from .job import BoundCall, Job, arguments_of
from .lifecycle import Ending, Failure, Settlement
from .options import TaskOptions, WorkerOptions
from .records import Answer, ClaimRequest, Exchanged, Held, Lease, Release, SettlementWithJobs
from .store_thread import forbid_running_loop
from .worker.keeper.crashes import crash_events
from .worker.keeper.identity import new_worker
from .worker.keeper.runners import Journal
from .worker.keeper.settle_with import settle_with, succeeded_under
from .worker.keeper.store_client import CLAIM_BYTES_MIN, AdaptiveLimit, StoreClient, backoff

if TYPE_CHECKING:
    from .app import Holdfast

R = TypeVar("R")

OVER = "The lease may have expired meanwhile; the job then runs again."
REMOVED_SINCE = "The lease is over and the job is removed: this success has done it, or one of a later lease."
REPEAT_SECONDS = 0.1  # before an outcome is sent again whose job is locked, or whose part of the store is silent


class LeasedJob(Attempt):
    """One leased job. Settle it once: `succeed`, `fail`, `retry`, `snooze`, `bury` or `release`; each has an a… twin.

    They return when the store has accepted the outcome, and raise LeaseLost if the lease is no longer ours,
    JobCancelled if an operator cancelled the job first.
    """

    __slots__ = ("_app", "_cancelled", "_children", "_lost", "_pull", "_renewed")

    def __init__(self, app: Holdfast, pull: Pull, lease: Lease, renewed: float) -> None:
        super().__init__(lease)
        self._app, self._pull = app, pull
        self._renewed = renewed  # when the renewal that its deadline counts from was sent (steady)
        self._lost = self._cancelled = False
        self._children = Children()

    @property
    def args(self) -> dict[str, Any]:
        """The arguments by name: rebuilt if this process has the task, else plain JSON. Defaults are not stored."""
        return arguments_of(self._app.find_task(self.task), self._lease.args)

    @property
    def lost(self) -> bool:
        """Whether to stop: the lease is gone, or was not renewed and may expire soon. Another may then run the job."""
        return self._lost or self._pull.expires(self._renewed)

    @property
    def cancelled(self) -> bool:
        """Whether somebody cancelled the job. Whatever it is settled as, it ends as cancelled."""
        return self._cancelled

    def __repr__(self) -> str:  # arguments do not belong in logs
        return f"<LeasedJob {self.task} {self.id}>"

    # ------------------------------------------------------------------ outcomes

    def enqueue(self, call: BoundCall[R]) -> Job[R]:
        """Enqueue a job with this one's success: `succeed` stores both in one step, or neither. Does not wait."""
        return self._children.add(self._app, call)

    def succeed(self, value: Any = None) -> None:
        """The job is done; `value` is its result. InvalidResult if it cannot be stored; then nothing has happened."""
        self._settle("succeed", self._children.stored_with(succeeded(self._app, self._lease, value)))

    async def asucceed(self, value: Any = None) -> None:
        """Async version of `succeed`."""
        await self._asettle(self._children.stored_with(succeeded(self._app, self._lease, value)))

    def fail(self, error: BaseException | str) -> None:
        """The attempt failed: spends a retry. The task's policy decides; without a retry left, the job is dead."""
        self._settle("fail", failed(self._app, self._lease, error))

    async def afail(self, error: BaseException | str) -> None:
        """Async version of `fail`."""
        await self._asettle(failed(self._app, self._lease, error))

    def retry(self, after: float | timedelta | None = None, reason: str = "") -> None:
        """Like `fail`, but run again after `after` seconds, if a retry is left."""
        self._settle("retry", failed(self._app, self._lease, Retry(after, reason)))

    async def aretry(self, after: float | timedelta | None = None, reason: str = "") -> None:
        """Async version of `retry`."""
        await self._asettle(failed(self._app, self._lease, Retry(after, reason)))

    def snooze(self, seconds: float | timedelta) -> None:
        """Run again in `seconds`. Not a failure."""
        self._settle("snooze", failed(self._app, self._lease, Snooze(seconds)))

    async def asnooze(self, seconds: float | timedelta) -> None:
        """Async version of `snooze`."""
        await self._asettle(failed(self._app, self._lease, Snooze(seconds)))

    def bury(self, reason: str = "") -> None:
        """No further attempt: the job becomes a dead letter."""
        self._settle("bury", failed(self._app, self._lease, Bury(reason)))

    async def abury(self, reason: str = "") -> None:
        """Async version of `bury`."""
        await self._asettle(failed(self._app, self._lease, Bury(reason)))

    def release(self) -> None:
        """Give the job back as if it had never been leased: nothing is counted, it keeps its place."""
        self._settle("release", Release(id=self.id, token=self._lease.token))

    async def arelease(self) -> None:
        """Async version of `release`."""
        await self._asettle(Release(id=self.id, token=self._lease.token))

    def _settle(self, name: str, end: Settlement | Release) -> None:
        forbid_running_loop(f"job.{name}()", f"job.a{name}()")
        self._app._store.call(partial(self._pull.settle, self, end))

    async def _asettle(self, end: Settlement | Release) -> None:
        await self._app._store.acall(partial(self._pull.settle, self, end))


def succeeded(app: Holdfast, lease: Lease, value: Any) -> Settlement:
    """The settlement of a success; InvalidResult if the value cannot be stored."""
    task = app.find_task(lease.task)
    raw = encode_result(lease.task, value, app.result_bytes_max) if task is None else task._encode(value)
    return settlement_of(lease, _options(app, lease), Outcome(kind=OutcomeKind.RETURNED, value=raw), None)


def failed(app: Holdfast, lease: Lease, error: BaseException | str) -> Settlement:
    """The settlement of a failure or a verdict, by the task's policy if this program knows the task."""
    if isinstance(error, BaseException):
        return settlement_of(lease, _options(app, lease), raised(error), error)
    failure = Failure(reason="failed", text=bounded(error_text(error), TEXT_CHARS_MAX))
    return settlement_of(lease, _options(app, lease), Outcome(kind=OutcomeKind.FAILED, failure=failure), None)


def _options(app: Holdfast, lease: Lease) -> TaskOptions:
    task = app.find_task(lease.task)
    return options_for(TaskOptions() if task is None else task.defaults, lease.options)


class Leases:
    """Jobs leased together: `with app.lease("mail", most=10) as jobs:`, or `async with`. Can be used once."""

    def __init__(self, app: Holdfast, options: WorkerOptions, wait: float) -> None:
        self._app, self._wait = app, wait
        self._pull = Pull(app, options)
        self._used = False

    def __enter__(self) -> list[LeasedJob]:
        forbid_running_loop("with app.lease()", "", advice="Use `async with app.lease(…)`.")
        return self._app._store.call(self._entered())

    async def __aenter__(self) -> list[LeasedJob]:
        return await self._app._store.acall(self._entered())

    def _entered(self) -> Callable[[Backend], Coroutine[Any, Any, list[LeasedJob]]]:
        if self._used:
            raise ConfigurationError("these leases have been used already. Call app.lease() again for more jobs.")
        self._used = True
        return partial(self._pull.enter, wait=self._wait)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._app._store.call(self._pull.leave)

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._app._store.acall(self._pull.leave)


class Pull:
    """The worker's side of a block: registers, claims, renews and settles. Runs on the app's store thread."""

    def __init__(self, app: Holdfast, options: WorkerOptions) -> None:
        self._app, self._options = app, options
        self._clock: Clock = app._clock
        self._worker = new_worker(lease=options.lease, queues=options.queues or (), slots=options.slots)
        self._call = self._seen_call = 0
        self._renewed = 0.0  # when the last successful renewal was sent (steady)
        self._held: dict[str, LeasedJob] = {}  # by token
        self._journal, self._recorded = Journal(), 0
        self._turn = asyncio.Lock()  # calls are numbered: one exchange at a time
        self._renewing: asyncio.Task[None] | None = None

    def expires(self, renewed: float) -> bool:
        """Whether a lease whose latest renewal was sent then may expire soon."""
        return self._clock.steady() >= renewed + self._options.lease - self._options.fence_margin

    # ------------------------------------------------------------------ the block

    async def enter(self, backend: Backend, *, wait: float) -> list[LeasedJob]:
        """Register and claim; wait for work up to `wait` seconds. The leases are renewed from here on."""
        self._store = StoreClient(backend, self._clock, self._options.call_timeout)
        self._renewed = self._clock.steady()
        await backend.register(self._worker)
        self._renewing = asyncio.get_running_loop().create_task(self._renew_forever())
        try:
            await self._claim(backend, self._clock.steady() + wait)
            return list(self._held.values())
        except BaseException:
            await self.leave(backend)
            raise

    async def leave(self, backend: Backend) -> None:
        """Release what was not settled and remove the worker. If the store is silent, the leases expire."""
        if self._renewing is not None:
            self._renewing.cancel()
        ends = [interrupted(job._lease) for job in self._held.values()]  # an at-most-once job may have begun
        stalls = [end for end in ends if isinstance(end, Settlement)]
        try:
            if stalls:
                answer, _ = await self._exchange(stalls, [])
                self._count_stalls(stalls, answer.answers)
            await self._store.call("retire", backend.retire(self._worker.id))
            await self._record()
        except HoldfastError as error:
            logs.retire_failed(self._worker.id, error)
        self._held.clear()

    def _count_stalls(self, stalls: Sequence[Settlement], answers: Sequence[Answer]) -> None:
        for end, answer in zip(stalls, answers, strict=False):
            if answer is Answer.OK and (job := self._held.get(end.token)) is not None:
                self._journal.ended(job._lease, end, self._clock.steady())
                self._journal.seen(*crash_events(job._lease, end, self._worker.id))

    async def _claim(self, backend: Backend, until: float) -> None:
        queues, poll = self._worker.queues, self._options.poll_every
        while True:
            answer, _ = await self._exchange([], [], self._options.slots)
            self._journal.recovered(answer.recovered)
            self._journal.seen(*events.of_recovered(answer.recovered, self._worker.id))
            if not answer.known:  # its row was recovered: the store or this program was stopped for a whole lease
                self._renewed, self._call, self._seen_call = self._clock.steady(), 0, 0
                await backend.register(self._worker)
            if answer.sealed is not None:
                raise StoreSealed(answer.sealed.role, answer.sealed.stage, answer.sealed.other)
            await self._begin(backend, answer.leases)
            left = until - self._clock.steady()
            if self._held or left <= 0:
                return
            opens_in = poll if answer.opens_in is None else max(0.001, answer.opens_in)
            await backend.wait_for_work(queues, min(left, poll, opens_in))

    async def _begin(self, backend: Backend, leases: Sequence[Lease]) -> None:
        """Take the leases in. At-most-once jobs are marked begun before the caller sees them."""
        # Held before anything is awaited: a renewal that does not name a lease gives it back.
        self._held.update((lease.token, LeasedJob(self._app, self, lease, self._renewed)) for lease in leases)
        marked = [Held(lease.id, lease.token) for lease in leases if lease.max_stalls == 0]
        try:
            answers = await self._store.call("begin", backend.begin(marked)) if marked else []
        except BaseException:
            for ref in marked:  # their handlers never started: released, not stalled
                self._held.pop(ref.token, None)
            raise
        for ref, answer in zip(marked, answers, strict=True):
            if answer is not Answer.OK:
                self._held.pop(ref.token, None)
        kept = [lease for lease in leases if lease.token in self._held]
        if kept:
            self._journal.arrived(kept[0], self._clock.steady())
            self._journal.started(kept, self._worker.id)

    # ------------------------------------------------------------------ renewing

    async def _renew_forever(self) -> None:
        every = self._options.renew_every
        wait = every
        while True:
            await asyncio.sleep(wait)
            wait = every if await self._renew() else every / 4
            if self._held:
                await self._record()

    async def _renew(self) -> bool:
        named = {job.id: job for job in self._held.values()}
        refs = [Held(job.id, token) for token, job in self._held.items()]
        sent, backend = self._clock.steady(), self._store.backend
        try:
            answer = await self._store.call("renew", backend.renew(self._worker.id, refs, seen_call=self._seen_call))
        except HoldfastError as error:
            fence_in = self._renewed + self._options.lease - self._options.fence_margin - self._clock.steady()
            logs.renewal_failed(self._worker.id, error, max(0.0, fence_in))
            return False
        self._renewed = sent
        for job in named.values():
            if not answer.known or job.id in answer.lost:
                job._lost = True
                self._held.pop(job._lease.token, None)
            elif job.id not in answer.unheard:
                job._renewed = sent
            job._cancelled = job._cancelled or job.id in answer.cancelled
        return True

    # ------------------------------------------------------------------ outcomes

    async def settle(self, job: LeasedJob, end: Settlement | Release, backend: Backend) -> None:
        """Send an outcome until the store has replied."""
        cancelled = False
        while True:
            settlements, releases = ([end], []) if isinstance(end, Settlement) else ([], [end])
            ended_at = self._clock.steady()
            if isinstance(end, SettlementWithJobs):
                answer = await self._settle_with(job, end)
            else:
                answer = await self._settle_alone(job, settlements, releases)
            if answer in (Answer.BUSY, Answer.UNHEARD):
                self._give_up_if_lost(job)
                await asyncio.sleep(REPEAT_SECONDS)
            elif answer is Answer.CANCELLED and isinstance(end, Settlement):
                end = ended_as(Ending.CANCELLED, end)
                cancelled = True
            else:
                break
        self._held.pop(end.token, None)
        if answer is not Answer.OK and isinstance(end, Settlement):
            job._lost = True
            raise LeaseLost(job.id)
        if isinstance(end, Settlement):
            self._journal.settled([job._lease], end.ending, ended_at)
            self._journal.seen(*events.of_settlement(job._lease, end, self._worker.id))
        if cancelled:
            raise JobCancelled(job.id)

    async def _settle_alone(self, job: LeasedJob, settlements: list[Settlement], releases: list[Release]) -> Answer:
        try:
            answered, repeated = await self._exchange(settlements, releases)
        except (BackendUnavailable, OutcomeUnknown) as error:  # the last of several tries: one of them may have done it
            raise OutcomeUnknown("settle", OVER) from error
        answer = answered.answers[0]
        if answer is Answer.LOST and settlements and repeated and not answered.known:
            return await self._read_lost(job, settlements[0])  # the store had no first answer to return
        return answer

    async def _read_lost(self, job: LeasedJob, end: Settlement) -> Answer:
        """The lease is over, perhaps because of an earlier call without a reply: read the job to find out."""
        tries, ids = 0, [end.id]
        while end.ending is Ending.SUCCEEDED:
            try:
                found = await self._store.call("ended", self._store.backend.ended(ids))
            except HoldfastError:
                tries += 1
                self._give_up_if_lost(job)
                await asyncio.sleep(backoff(tries))
                continue
            record = found.get(end.id)
            if record is None and end.id in found:
                break
            return Answer.OK if succeeded_under(job._lease, record) else Answer.LOST
        self._held.pop(end.token, None)
        raise OutcomeUnknown("settle", REMOVED_SINCE if end.ending is Ending.SUCCEEDED else OVER)

    async def _settle_with(self, job: LeasedJob, end: SettlementWithJobs) -> Answer:
        """Settle together with jobs. A refusal is raised, and the job can still be settled without them."""
        tries = 0
        while True:
            try:
                answer = await self._store.call("settle_with", settle_with(end, self._store.backend))
            except HoldfastError:
                tries += 1
                self._give_up_if_lost(job)
                await asyncio.sleep(backoff(tries))
                continue
            if isinstance(answer, HoldfastError):
                raise answer
            if answer is Answer.LOST and tries:  # an earlier call without a reply may have done it
                return await self._read_lost(job, end)
            return answer

    def _give_up_if_lost(self, job: LeasedJob) -> None:
        if job.lost:
            raise OutcomeUnknown("settle", OVER)

    async def _exchange(
        self, settlements: list[Settlement], releases: list[Release], most: int = 0
    ) -> tuple[Exchanged, bool]:
        """One numbered call, repeated until it is answered or the leases may have expired; after a timeout it requests
        less. Returns also whether it was repeated."""
        async with self._turn:
            self._call += 1
            request = ClaimRequest(worker=self._worker.id, call=self._call, queues=self._worker.queues, most=most)
            jobs, sweep = AdaptiveLimit(max(1, most)), AdaptiveLimit(request.sweep_max)
            size = AdaptiveLimit(request.bytes_max, CLAIM_BYTES_MIN)
            limits = jobs, sweep, size
            tries = 0
            while True:
                sent, asked = self._clock.steady(), self._store.backend.exchange(settlements, releases, request)
                try:
                    answer = await self._store.call("exchange", asked, min(limit.patience for limit in limits))
                    break
                except HoldfastError as error:
                    tries += 1
                    self._store.adapt(limits, sent, error)
                    request = replace(request, most=min(most, jobs.value), bytes_max=size.value, sweep_max=sweep.value)
                    if self.expires(self._renewed):
                        raise
                    await asyncio.sleep(backoff(tries))
            if answer.known:
                self._seen_call = self._call
            return answer, tries > 0

    async def _record(self) -> None:
        """Write what was counted into the roll-ups. Best effort."""
        recording = self._journal.take(self._worker.id, self._recorded + 1)
        if recording is not None:
            self._recorded += 1
            try:
                await self._store.call("record", self._store.backend.record(recording))
            except HoldfastError as error:
                logs.record_failed(error)
