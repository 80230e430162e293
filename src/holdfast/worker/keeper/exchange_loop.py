"""The settle + claim loop, one exchange at a time.

Run by the keeper. An exchange sends outcomes to the store and fills the free slots; outcomes that arrive meanwhile wait
for the next one. An exchange without a reply is repeated, the SAME call number with the SAME outcomes, until it gets
one: no outcome is ever dropped while its lease may be ours. After a timeout it requests fewer jobs and smaller sweeps,
and takes more time once it cannot request less; later calls grow again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ... import events, logs
from ...clock import until_tick
from ...context import Unknown, ended_as
from ...errors import HoldfastError, StoreSealed
from ...lifecycle import SUCCEEDED, Ending, Settlement
from ...options import WorkerOptions
from ...records import (
    CLAIM_BYTES_MAX,
    CLAIM_SWEEP_MAX,
    Answer,
    ClaimRequest,
    Exchanged,
    Lease,
    Release,
    SettlementWithJobs,
)
from . import chains
from .batches import BatchStarter
from .begin_marks import BeginMarks
from .declare import Declarations
from .lease_renewal import LeaseRenewer, Ledger
from .polls import Polls
from .reports import Reports, ReportWriter
from .runners import JobLog, Runners, Signals
from .settle_with import ExchangeWithJobs, committed, unreleased
from .store_client import CLAIM_BYTES_MIN, AdaptiveLimit, Halves, QueueRotation, StoreClient, backoff, cut_short, least
from .unknown_tasks import UnknownTasks
from .wakeup_claims import claims_on_wakeup

BUSY_AGAIN_SECONDS = 0.5  # delay before resending an outcome whose job was locked by another session
EARLY_SECONDS = 0.005  # a hint sooner than this after listening began was already pending
EARLY_FREE = 3  # after this many early wake-ups in a row without work, slow down
EARLY_WAIT_SECONDS_MAX = 0.05
UNKNOWN_WAIT_SECONDS_MAX = 0.5  # the same bound while a backlog of unknown tasks keeps waking this worker
OPENS_SECONDS_MIN = 0.001  # a rate or slow-down that opens sooner than this is not worth a shorter timer
CLAIM_JOBS_MIN = 100  # a claim may always bring this many: in smaller batches the call would dominate the cost
CLAIM_AHEAD_MIN = 200  # … and this many together with jobs claimed ahead, which run while the next claim is made
SPLIT_AFTER = 4  # timeouts of one call before its outcomes are sent in smaller batches under a new number
AHEAD_LEFT_SECONDS = 0.0075  # exchange again this long before a slot becomes free; or three exchanges, if longer
AHEAD_PACE_SECONDS = 0.02  # longest pause between exchanges while the runners have jobs claimed ahead
SENDING_PACE_SECONDS = 0.01  # … while they have yet to read large ones
AHEAD_AFTER_RATE_SECONDS = 1.0  # claim nothing ahead for this long after a rate held a claim back
AHEAD_AFTER_MARKED_SECONDS = 60.0  # … after a claim brought a job that must run at most once
EXCHANGES_AVERAGED = 16  # the duration of an exchange is averaged over about this many
EXCHANGE_SECONDS_MAX = 0.05  # … and none counts for more than this: a longer one was repeated, or the store was down
UNHEARD_AGAIN_SECONDS = 0.1  # between attempts to settle with an unreachable part of the store


class Abandoned(Exception):
    """The worker is ending although the store does not respond."""


class TooMuch(Exception):
    """A call with several outcomes timed out repeatedly."""


class Tally(Struct):
    """How many of this worker's attempts succeeded and failed."""

    succeeded: int = 0
    failed: int = 0


class ExchangeLoop:
    """Sends outcomes to the store and claims leases in the same call."""

    def __init__(
        self,
        *,
        store: StoreClient,
        runners: Runners,
        signals: Signals,
        ledger: Ledger,
        renewal: LeaseRenewer,
        reports: Reports,
        report_writer: ReportWriter,
        unknown: UnknownTasks,
        declarations: Declarations,
        options: WorkerOptions,
        queues: tuple[str, ...],
    ) -> None:
        self._store, self._runners, self._signals, self._ledger = store, runners, signals, ledger
        self._reports, self._report_writer = reports, report_writer
        self._renewal, self._unknown, self._declarations = renewal, unknown, declarations
        self._options = options
        self._job_log = JobLog(options.log_jobs, store.clock)
        # Claim half the slots at a time: one half runs while the store settles and fills the other, so neither side
        # waits. In one process both sides would only alternate on the GIL, and each switch costs.
        least = CLAIM_JOBS_MIN if runners.in_processes or runners.batches.by_task else options.slots
        self._start_most = max(least, -(-options.slots // 2) if runners.in_processes else options.slots)
        claim_most = max(self._start_most, CLAIM_AHEAD_MIN) if runners.in_processes else self._start_most
        self._exchanged_at = 0.0
        self._halves = Halves()
        self._ahead_from = 0.0  # nothing is claimed ahead before this time
        self._jobs_limit = AdaptiveLimit(claim_most)
        self._bytes_limit = AdaptiveLimit(CLAIM_BYTES_MAX, CLAIM_BYTES_MIN)
        self._sweep_limit = AdaptiveLimit(CLAIM_SWEEP_MAX)
        self._begin_marks = BeginMarks(store, runners, signals, ledger, renewal, AdaptiveLimit(options.slots))
        self._batches = BatchStarter(runners, ledger, self._start_batch)
        self._rotation = QueueRotation(queues, options.weights, strict=options.queue_order == "strict")
        self.tally = Tally()
        self._accepted: list[tuple[Lease | None, Settlement]] = []  # not told yet; None: the lease is gone
        self.left_some = False  # per-task caps may have left jobs behind that another claim brings at once
        self._unheard = False  # part of the store was unreachable for its settlements in the last exchange
        self.opens_in: float | None = None  # seconds until a rate or slow-down allows more starts, as of the last claim
        self._opening: asyncio.TimerHandle | None = None
        self._doubtful: set[str] = set()  # tokens of outcomes that an abandoned call may already have settled
        self._with_jobs = ExchangeWithJobs(store.backend, runners, self._doubtful)
        self._early, self._quiet_until = 0, 0.0  # until then the store, or part of it, hands out no jobs
        self._unconfirmed: list[Settlement] = []  # lost, or settled by their handlers' own transactions: to be read
        self._later: list[Settlement | Release] = []  # the store answered BUSY for these; resent shortly
        self._listening: asyncio.Task[None] | None = None
        self._wakeup_claims = claims_on_wakeup(store.backend, signals.wake)
        self._polls = Polls(store.backend, renewal, signals)
        self._background: set[asyncio.Task[None]] = set()
        self._seal_reported = False
        self.note_alive()

    async def run(self, drained: Callable[[], Awaitable[bool]] | None) -> None:
        """Exchange while there are outcomes to send or slots to fill, otherwise wait. Return when the worker may end.

        `drained`: asked whenever this worker has nothing left to do; True ends the worker.
        """
        signals = self._signals
        if drained is not None:
            self._wakeup_claims = None
        while not self._runners.broken:
            try:
                if await self.step():
                    continue
                if signals.abandon.is_set():
                    return
                if not (self._ledger.busy or signals.ended):
                    if signals.closing:
                        return
                    if drained is not None:
                        if await drained():
                            signals.closing = True
                        continue
                if drained is not None and self._runners.gathered.by_task and self.free() and not signals.claim_due:
                    self._batches.start_all()  # no further jobs will come to fill them
            except Abandoned:
                return
            await self.idle()

    # ------------------------------------------------------------------ one step

    async def step(self) -> bool:
        """Make one exchange. Return False if there is no outcome to send and no slot worth claiming for."""
        signals = self._signals
        signals.wake.clear()
        self.note_alive()
        if signals.sealed is not None and not self._seal_reported:
            self._report_seal(signals.sealed)
        self._take_in_ended()
        unbegun = self._runners.queued() or self._ledger.chains.behind or self._runners.gathered.by_task
        if unbegun and (signals.closing or signals.paused):
            self._runners.give_back_queued()
            self._take_in_ended()
        most = self.free()
        if not self._ledger.unsent and not (signals.claim_due and most):
            return False
        if not (signals.closing or self._renewal.fenced) and await self._pace():
            most = self.free()  # a slot that became free is why the pause ended
        settlements, releases = self._ledger.take()
        ahead = self._ahead(most)
        if self._runners.in_processes and self._halves.alternate(
            len(settlements), len(self._ledger.busy), self._store.clock.steady(), self._runners.exchange_seconds
        ):
            most, ahead = min(most, self._halves.size), 0
        await self.exchange(settlements, releases, most, ahead)
        if self._unheard:
            if self._signals.abandon.is_set():
                raise Abandoned
            await self._set_within(UNHEARD_AGAIN_SECONDS, self._signals.wake)  # the rest of the store works meanwhile
        return True

    def _take_in_ended(self) -> None:
        """Record ended attempts. Jobs of unknown tasks keep their slots until it is decided how to release them."""
        ended = self._signals.ended
        if not ended:
            return
        batch = [ended.popleft() for _ in range(len(ended))]
        unknown = [end for end in batch if isinstance(end, Unknown)]
        if unknown:
            batch = [end for end in batch if not isinstance(end, Unknown)]
            self._spawn(self._give_back_unknown(unknown))
        self._ledger.ended(batch)

    async def _give_back_unknown(self, ends: Sequence[Unknown]) -> None:
        for end in ends:
            lease = self._ledger.leases.get(end.token)
            delay = 0.0 if lease is None else await self._unknown.met(lease.task)
            self._signals.ended.append(Release(id=end.id, token=end.token, delay=delay))
        self._signals.wake.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def note_alive(self, seconds: float = 0.0) -> None:
        """Tell the watchdog that this loop is alive: it makes a bounded call, or waits `seconds` on purpose."""
        self._signals.alive_at = self._store.clock.steady() + seconds

    async def _pace(self) -> bool:
        """Collect outcomes before the next exchange while runners have jobs claimed ahead or large ones yet to read.
        Return whether it waited."""
        began, steady, runners, waited = self._exchanged_at, self._store.clock.steady, self._runners, False
        left = runners.lasts() - max(AHEAD_LEFT_SECONDS, 3 * runners.exchange_seconds)
        if (pause := min(left, began + AHEAD_PACE_SECONDS - steady())) > 0:
            self._signals.slot_free.clear()
            await self._set_within(pause, self._signals.slot_free)  # a single outcome must not end it
            self._take_in_ended()
            waited = True
        while runners.sending() and (pause := began + SENDING_PACE_SECONDS - steady()) > 0:
            self._signals.wake.clear()
            await self._set_within(pause, self._signals.wake)
            self._take_in_ended()
            waited = True
        return waited

    async def _set_within(self, seconds: float, event: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    def free(self) -> int:
        """How many jobs could start immediately."""
        if self._signals.closing or self._signals.paused or self._renewal.fenced:
            return 0
        room = self._room_now()
        if self._runners.batches.by_task:
            room = self._batches.room(room, self._rotation.queues)
        return min(self._start_most, self._jobs_limit.value, room)

    def _room_now(self) -> int:
        return self._runners.room(max(0, self._ledger.spare(self._runners.queued())))

    def _ahead(self, now: int) -> int:
        """How many more jobs a claim may return, to wait in the runners until short jobs free their slots. Only
        exchanges that are made anyway claim them, and never while more slots are in use than there should be."""
        if self._signals.closing or self._signals.paused or self._renewal.fenced:
            return 0
        if self._ledger.spare(self._runners.queued()) < 0 or self._store.clock.steady() < self._ahead_from:
            return 0
        return max(0, min(self._jobs_limit.value - now, self._runners.ahead(now)))

    async def exchange(
        self,
        settlements: list[Settlement],
        releases: list[Release],
        now: int,
        ahead: int = 0,
        on_wakeup: bool = False,
    ) -> bool:
        """Settle, release and claim in one call: `now` jobs to start at once, and `ahead` more. Return whether it
        brought leases. `on_wakeup`: only claim, once there may be work."""
        most = now + ahead
        self._exchanged_at = self._store.clock.steady()
        if self._reports.pending or self._report_writer.writing:
            await self._report_writer.flush_before(settlements)
        renewal, ended_at = self._renewal, self._store.clock.steady()
        renewal.call += 1
        isolated = self._runners.most_by_task() if most else {}
        (by_queue, capped), unknown = self._caps(now, ahead), self._unknown.caps
        request = ClaimRequest(
            worker=renewal.worker.id,
            call=renewal.call,
            queues=self._rotation.order() if len(self._rotation.queues) > 1 else self._rotation.queues,
            most=most,
            most_by_queue=by_queue,
            most_by_task=least(isolated, {**capped, **unknown} if unknown else capped),
            most_by_group=self._options.group_slots,
            priorities=self._options.priority,
            bytes_max=self._bytes_limit.value,
            sweep_max=self._sweep_limit.value,
        )
        if most and self._runners.group_prefetch:
            jobs, share, (room, seconds) = self._jobs_limit.value, self._options.group_slots, self._runners.chaining()
            room = -(-room // 2) if self._halves.halving else room  # the other half gets as many
            request = chains.asked_for(request, self._runners.group_prefetch, room, seconds, jobs, share)
        self.left_some = False
        try:
            wait = self._on_wakeup(request) if on_wakeup else self._until_answered(settlements, releases, request)
            answer, request = await wait
        except TooMuch:
            self._take_back(settlements, releases)
            self._doubtful.update(settlement.token for settlement in settlements)
            return False
        self._unheard = False
        if answer.answers:  # outcomes may be accepted even if the worker is unknown
            self._settled(settlements, releases, answer.answers, ended_at)
        try:
            if self._unconfirmed:
                await self._confirm(ended_at)
            return await self._claimed(answer, request, isolated if most else None)
        finally:
            self._tell_ended(ended_at)  # unless a job was started

    async def _claimed(self, answer: Exchanged, request: ClaimRequest, isolated: Mapping[str, int] | None) -> bool:
        """Act on a reply, except for its answers to outcomes. Return whether it brought leases. `isolated`: the most
        per isolated task; None: it was not to claim."""
        renewal = self._renewal
        if answer.recovered:
            self._runners.jobs_recovered(answer.recovered)
        if answer.sealed is not None:
            self._signals.seal(StoreSealed(answer.sealed.role, answer.sealed.stage, answer.sealed.other))
        if answer.quiet_seconds:
            self._met_quiet(answer.quiet_seconds)
        if request.worker != renewal.worker.id:
            return False  # the store dropped this worker meanwhile: any leases that came are no longer ours
        if not answer.known:
            await renewal.forgotten(request.worker)
            return False
        renewal.seen_call = request.call
        if isolated is not None:
            self.left_some = self._runners.left_some(isolated, answer.leases)
            first = sum(not lease.chained for lease in answer.leases)
            full = first >= request.most
            self._halves.claimed(first, self._ledger.units, self._store.clock.steady(), full=full)
            self._signals.claim_due = full or self.left_some or cut_short(answer.leases, request)
            if self._options.weights:
                self._rotation.claimed(lease.queue for lease in answer.leases)
            self._note_opening(answer.opens_in)
        await self._received(answer.leases)
        return bool(answer.leases)

    def _caps(self, now: int = 0, ahead: int = 0) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """How many more jobs this worker may take of each queue and task that it caps, and of those with a limit or
        rate, whose jobs are not claimed ahead."""
        caps = self._ledger.free_by_queue(), self._ledger.free_by_task()
        by_queue, by_task = self._batches.widened(*caps) if self._runners.batches.by_task else caps
        if ahead:
            limited = self._runners.limited
            by_queue = {**by_queue, **{queue: min(now, by_queue.get(queue, now)) for queue in limited.queues}}
            by_task = {**by_task, **{task: min(now, by_task.get(task, now)) for task in limited.tasks}}
        return by_queue, by_task

    def _note_opening(self, opens_in: float | None) -> None:
        """Claim again as soon as the rate or slow-down that limited this claim allows the next start."""
        self.opens_in = opens_in
        if opens_in is not None:
            self._ahead_from = self._store.clock.steady() + AHEAD_AFTER_RATE_SECONDS
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if opens_in is not None:
            wait = max(OPENS_SECONDS_MIN, opens_in)
            self._opening = asyncio.get_running_loop().call_later(wait, self._signals.claim_again)

    async def _until_answered(
        self, settlements: list[Settlement], releases: Sequence[Release], request: ClaimRequest
    ) -> tuple[Exchanged, ClaimRequest]:
        """Return the reply and the request as last sent: a repeat requests less, so that it can finish in time."""
        limits = self._jobs_limit, self._bytes_limit, self._sweep_limit, *self._ledger.limits
        tries, slow, began = 0, 0, self._store.clock.steady()
        while True:
            sent = self._signals.alive_at = self._store.clock.steady()
            try:
                jobs = any(isinstance(one, SettlementWithJobs) for one in settlements)
                exchange = self._with_jobs.exchange if jobs else self._store.backend.exchange
                patience = 1 if self._signals.closing else min(limit.patience for limit in limits)
                answer = await self._store.call("exchange", exchange(settlements, releases, request), patience)
            except HoldfastError as error:
                slow += self._store.adapt(limits, sent, error)
                tries += 1
                logs.exchange_failed(error, tries, len(settlements) + len(self._ledger.settlements))
            else:
                self._store.adapt(limits, sent)
                if request.most:
                    took = min(EXCHANGE_SECONDS_MAX, self._store.clock.steady() - began)
                    self._runners.exchange_seconds += (took - self._runners.exchange_seconds) / EXCHANGES_AVERAGED
                return answer, request
            request = replace(
                request,
                most=min(request.most, self._jobs_limit.value),
                bytes_max=min(request.bytes_max, self._bytes_limit.value),
                sweep_max=min(request.sweep_max, self._sweep_limit.value),
                chained_max=min(request.chained_max, chains.CHAINED_PER_JOB_MAX * self._jobs_limit.value),
            )
            if await self._abandoned_within(backoff(tries)):
                self._take_back(settlements, releases)
                raise Abandoned
            if slow >= SPLIT_AFTER and len(settlements) + len(releases) > 1:
                raise TooMuch

    async def _on_wakeup(self, request: ClaimRequest) -> tuple[Exchanged, ClaimRequest]:
        """Return the reply to a claim that the store carries out when it wakes this worker. If this worker has
        something else to do before, or there is no reply, the call is repeated at once, with the same number."""
        if (ahead := self._wakeup_claims) is not None and (answer := await ahead.answer(request)) is not None:
            if self._listening is not None and ahead.woken:  # by the same wake-up
                self._listening.cancel()
                self._listening = None
            return answer, request
        if self._signals.closing:  # it holds no lease, and retiring releases any that this call may still take
            return Exchanged(), request
        return await self._until_answered([], [], replace(request, most=min(request.most, self.free())))

    def _take_back(self, settlements: Sequence[Settlement], releases: Sequence[Release]) -> None:
        """Put unsent outcomes back at the front, for the next exchange."""
        self._ledger.settlements[:0] = settlements
        self._ledger.releases[:0] = releases

    async def _abandoned_within(self, seconds: float) -> bool:
        self.note_alive(seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._signals.abandon.wait()
        except TimeoutError:
            return False
        return True

    def _report_seal(self, error: StoreSealed) -> None:
        self._seal_reported = True
        worker = self._runners.worker
        logs.store_sealed(worker, error, len(self._ledger.busy))
        self._runners.emit(events.StoreSealed(worker=worker, role=error.role, stage=error.stage, other=error.other))

    @property
    def quiet(self) -> bool:
        """Whether the store is currently withholding ready jobs."""
        return self._store.clock.steady() < self._quiet_until

    def _met_quiet(self, seconds: float) -> None:
        if not self.quiet:
            logs.store_quiet(seconds)
        self._quiet_until = self._store.clock.steady() + seconds

    # ------------------------------------------------------------------ handling the reply

    def _settled(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        answers: Sequence[Answer],
        ended_at: float,
    ) -> None:
        leases, doubtful, ok = self._ledger.leases, self._doubtful, Answer.OK
        lost, accepted = list[Lease](), self._accepted
        if Answer.BUSY in answers:
            sent: list[Settlement | Release] = [*settlements, *releases]
            self._put_off([end for end, answer in zip(sent, answers, strict=False) if answer is Answer.BUSY])
        for settlement, answer in zip(settlements, answers, strict=False):
            if answer is ok:
                accepted.append((leases.pop(settlement.token, None), settlement))
                continue
            if answer is Answer.BUSY:
                continue
            if answer is Answer.CANCELLED:  # a cancel came first: the store now accepts only CANCELLED
                self._ledger.settlements.append(ended_as(Ending.CANCELLED, settlement))
                continue
            if settlement.token in self._signals.settling and settlement.token in leases and answer is Answer.LOST:
                self._unconfirmed.append(settlement)
                continue
            if answer is Answer.UNHEARD:  # resend it unchanged: the store knows whether the first arrived
                if settlement.token in leases:
                    self._ledger.settlements.append(settlement)
                    self._unheard = True
                continue
            lease = leases.pop(settlement.token, None)
            if settlement.token in doubtful:
                accepted.append((None, settlement))  # the abandoned call had already settled it
            elif lease is not None:
                lost.append(lease)
        for release, answer in zip(releases, answers[len(settlements) :], strict=False):
            if answer is Answer.LOST and release.token in self._signals.settling and release.token in leases:
                self._unconfirmed.append(unreleased(release))
            elif answer is not Answer.BUSY:  # drop UNHEARD ones too: the store releases what renew does not name
                lease = leases.pop(release.token, None)
                self._job_log.released(lease if lease and self._runners.knows(lease.task) else None)
        if lost:
            self._runners.leases_lost(lost)
        if self._runners.wanted("succeeded"):  # who listens hears of it before the next job starts
            self._tell_ended(ended_at)
        if doubtful:
            doubtful.intersection_update(leases)

    async def _confirm(self, ended_at: float) -> None:
        """Handlers settled these leases in transactions of their own: count those that were committed as successes."""
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        unheard = self._unheard
        try:
            done = await committed(self._store, unconfirmed, self._ledger.leases)
        except HoldfastError:  # they will be LOST again and read again: a success must not be taken for a loss
            self._take_back(unconfirmed, ())
            self._unheard = True
            return
        self._signals.settling.difference_update(one.token for one in unconfirmed)
        self._settled(done, [], [Answer.OK] * len(done), ended_at)
        lost = [one for one in unconfirmed if one.token not in {other.token for other in done}]
        self._settled(lost, [], [Answer.LOST] * len(lost), ended_at)
        self._unheard = unheard

    def _put_off(self, ended: list[Settlement | Release]) -> None:
        """Resend later: another session holds these jobs. Their slots stay taken, so the worker does not end yet."""
        logs.jobs_held_elsewhere([end.id for end in ended])
        leases = self._ledger.leases
        self._ledger.busy.update((end.token, leases[end.token]) for end in ended if end.token in leases)
        if not self._later:
            asyncio.get_running_loop().call_later(BUSY_AGAIN_SECONDS, self._resend)
        self._later += ended

    def _resend(self) -> None:
        self._signals.ended.extend(self._later)
        self._later.clear()
        self._signals.wake.set()

    async def _received(self, leases: Sequence[Lease]) -> None:
        if leases:
            self._signals.journal.arrived(leases[0], self._store.clock.steady())
            await self._start_received(leases)

    async def _start_received(self, leases: Sequence[Lease]) -> None:
        """Start what arrived, as far as it may start."""
        self._early = 0
        if self._wakeup_claims is not None:
            self._wakeup_claims.pay = True
        self._take_in_ended()  # their slots are free, too
        now = self._room_now()
        free = {**self._caps()[1], **self._unknown.caps}
        if self._runners.group_prefetch:
            leases, strays = chains.in_order(leases)
            self._ledger.add(strays)
            self._release(strays)
            self._ledger.chains.add(leases)
        self._ledger.add(leases)
        if free:
            leases = await self._declarations.within_caps(free, leases, self._ledger)
        if not self._may_start():  # claimed, but may not start any more: release unused
            self._release(leases)
            return
        if self._runners.batches.by_task:
            leases, strays, taken = self._batches.gather(leases)
            self._release(strays)
            now = max(0, now - taken)
        marked = [lease for lease in leases if lease.max_stalls == 0]
        if marked:
            self._release([lease for lease in leases if lease.chained])
            leases = [lease for lease in leases if lease.max_stalls and not lease.chained]
            if len(marked) + len(leases) > now:  # recorded as begun, they must not wait in a runner
                self._ahead_from = self._store.clock.steady() + AHEAD_AFTER_MARKED_SECONDS
                excess = [*leases[max(0, now - len(marked)) :], *marked[now:]]
                self._release(excess)
                leases, marked = leases[: max(0, now - len(marked))], marked[:now]
            self._spawn(self._begin_marks.mark(marked, self._start, self._abandoned_within))
        self._start(leases, now - len(marked))

    def _release(self, leases: Iterable[Lease]) -> None:
        """Give leases back whose jobs were not started."""
        self._ledger.ended([Release(id=lease.id, token=lease.token) for lease in leases])

    def _may_start(self) -> bool:
        return not (self._renewal.fenced or self._signals.closing)

    def _start(self, leases: Sequence[Lease], now: int | None = None) -> None:
        if leases:
            self._runners.start(leases, len(leases) if now is None else now)
            self._tell_ended(self._exchanged_at)
            self._tell_started(leases)  # afterwards: writing a line takes as long as sending a job to the runner

    def _start_batch(self, leases: list[Lease]) -> None:
        """A batch is full, or its time is up."""
        if not self._may_start():
            self._release(leases)
            self._signals.wake.set()
            return
        if marked := [lease for lease in leases if lease.max_stalls == 0]:
            self._spawn(self._begin_marks.mark(marked, self._start_together, self._abandoned_within))
        self._start_together([lease for lease in leases if lease.max_stalls])

    def _start_together(self, leases: list[Lease]) -> None:
        if leases:
            self._tell_started(leases)
            self._runners.start_batch(leases)

    def _tell_ended(self, ended_at: float) -> None:
        """Count, log, record and emit the outcomes that the store accepted. Repeating it does nothing."""
        if not self._accepted:
            return
        ends, self._accepted, journal, tally = self._accepted, [], self._signals.journal, self.tally
        room, counts, successes = journal.room, journal.counts, self._runners.wanted("succeeded")
        succeeded, ran, seen = list[Lease](), list[float | None](), list[events.Event]()
        for lease, settlement in ends:
            won = settlement.ending is SUCCEEDED
            tally.succeeded += won
            tally.failed += not won and (settlement.failed or settlement.ending is Ending.BURIED)
            if lease is None:
                continue
            if won:
                succeeded.append(lease)
                ran.append(settlement.ran)
                if not (successes or len(succeeded) <= room):
                    continue
            else:
                self._job_log.ended(lease, settlement, ended_at)
                if counts:
                    journal.ended(lease, settlement, ended_at)
            seen += self._runners.settled(lease, settlement)
        if succeeded:
            self._job_log.succeeded(succeeded, ran, ended_at)
        if succeeded and counts:
            journal.settled(succeeded, SUCCEEDED, ended_at)
            if not successes:
                journal.drop("succeeded", len(succeeded) - room)
        if seen:
            self._runners.emit(*seen)

    def _tell_started(self, leases: Sequence[Lease]) -> None:
        known = self._runners.known(leases)  # runners give the others back
        self._job_log.started(known)
        self._signals.journal.started(known, self._renewal.worker.id)

    # ------------------------------------------------------------------ waiting for work

    async def idle(self) -> None:
        """Wait until a handler ends or the store may have work."""
        if not self._signals.claim_due and self.free() and self._listening is None:
            # The wait begins with a check for work, which finds jobs that arrived after the last claim.
            self._listening = asyncio.get_running_loop().create_task(self._listen())
        if self._wakeup_claims is None:
            await self._signals.wake.wait()
            return
        free = 0 if self._ledger.leases or self._signals.ended or self._signals.claim_due else self.free()
        if await self._wakeup_claims.possible(free):
            await self.exchange([], [], free, on_wakeup=True)

    async def _listen(self) -> None:
        early = await self._hinted()
        while early is None and self.free():
            self._early = 0
            if not self._is_ahead():  # else the claim that was sent ahead is carried out now, hint or not
                await self._polls.poll(self._rotation.queues)  # in case a hint was lost; it keeps listening
            early = await self._hinted()
        self._early = self._early + 1 if early else 0
        if self._early > EARLY_FREE:  # the work may be jobs that cannot be claimed: do not spin on it
            most = UNKNOWN_WAIT_SECONDS_MAX if self._unknown.caps else EARLY_WAIT_SECONDS_MAX
            await asyncio.sleep(min(most, 0.001 * 2.0 ** min(self._early - EARLY_FREE, 10)))
        self._listening = None
        if not self._is_ahead():
            self._signals.claim_again()

    async def _hinted(self) -> bool | None:
        """Wait for a hint that there is work: True if it was there already; None if none came for the poll interval."""
        began, seconds, was_there = self._store.clock.steady(), until_tick(self._options.poll_every), False
        try:
            was_there = await self._store.backend.wait_for_work(self._rotation.queues, seconds)
        except Exception:  # wake-ups are only hints: fall back to polling
            await asyncio.sleep(seconds)
        passed = self._store.clock.steady() - began
        return True if was_there or passed < EARLY_SECONDS else False if passed < seconds else None

    def _is_ahead(self) -> bool:
        return self._wakeup_claims is not None and self._wakeup_claims.under_way

    def serve(self, queues: tuple[str, ...]) -> None:
        """Claim from these queues from now on."""
        self._rotation.serve(queues)
        self._signals.claim_again()

    def stop_listening(self) -> None:
        """Give up waiting for a wake-up and claim now."""
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
        self._signals.claim_again()

    def close(self) -> None:
        self._job_log.close()
        self._ledger.ended(self._later)  # so that they are reported as unsent
        if self._opening is not None:
            self._opening.cancel()
        for task in (*self._background, *([self._listening] if self._listening is not None else [])):
            task.cancel()
