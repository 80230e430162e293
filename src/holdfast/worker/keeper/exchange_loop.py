"""The settle + claim loop: one exchange sends outcomes to the store and fills the free slots.

Run by the keeper. One exchange is in flight at a time; outcomes that arrive meanwhile wait for the next one. An
exchange without a reply is repeated, the SAME call number with the SAME outcomes, until it gets one: no outcome is ever
dropped while its lease may be ours. After a timeout it requests fewer jobs and smaller sweeps; later calls grow again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from ... import events, logs
from ...backends.adaptive_limit import AdaptiveLimit
from ...errors import HoldfastError, StoreSealed
from ...lifecycle import Ending, Settlement, StallVerdict, stall_verdict
from ...options import WorkerOptions
from ...records import CLAIM_BYTES_MAX, CLAIM_SWEEP_MAX, Answer, ClaimRequest, Exchanged, Held, Lease, Release
from ..runner.attempt import Ended, Unknown, about
from .lease_renewal import LeaseRenewer
from .ledger import Ledger
from .queue_rotation import QueueRotation
from .reports import Reports
from .runners import Runners
from .store_client import StoreClient, backoff
from .unknown_tasks import UnknownTasks

BUSY_AGAIN_SECONDS = 0.5  # delay before resending an outcome whose job was locked by another session
EARLY_SECONDS = 0.005  # a wake-up sooner than this after listening began was already pending
EARLY_FREE = 3  # after this many early wake-ups in a row without work, slow down
EARLY_WAIT_SECONDS_MAX = 0.05
UNKNOWN_WAIT_SECONDS_MAX = 0.5  # the same bound while a backlog of unknown tasks keeps waking this worker
OPENS_SECONDS_MIN = 0.001  # a rate or slow-down that opens sooner than this is not worth a shorter timer
CLAIM_JOBS_MIN = 100  # a claim may always bring this many: in smaller batches the call would dominate the cost
CLAIM_BYTES_MIN = 1 << 14  # lower bound for `bytes_max`; one job is leased whatever its size
SPLIT_AFTER = 4  # timeouts of one call before its outcomes are sent in smaller batches under a new number
UNHEARD_AGAIN_SECONDS = 0.1  # between attempts to settle with an unreachable part of the store


class Abandoned(Exception):
    """The worker is ending although the store does not respond."""


class TooMuch(Exception):
    """A call with several outcomes timed out repeatedly."""


@dataclass
class Tally:
    """How many of this worker's attempts succeeded and failed."""

    succeeded: int = 0
    failed: int = 0


class ExchangeLoop:
    """Sends outcomes to the store and claims leases in the same call."""

    def __init__(
        self,
        line: StoreClient,
        link: Runners,
        ledger: Ledger,
        tenure: LeaseRenewer,
        reports: Reports,
        unknown: UnknownTasks,
        options: WorkerOptions,
        queues: tuple[str, ...],
    ) -> None:
        self._store, self._runners, self._ledger, self._renewal, self._reports = line, link, ledger, tenure, reports
        self._unknown = unknown
        self._options = options
        # Claim half the slots at a time: one half runs while the store settles and fills the other, so neither side
        # waits. In one process both sides would only alternate on the GIL, and each switch costs.
        self._claim_most = max(CLAIM_JOBS_MIN, -(-options.slots // 2)) if link.apart else options.slots
        self._jobs_limit = AdaptiveLimit(self._claim_most)
        self._bytes_limit = AdaptiveLimit(CLAIM_BYTES_MAX, CLAIM_BYTES_MIN)
        self._sweep_limit = AdaptiveLimit(CLAIM_SWEEP_MAX)
        self._rotation = QueueRotation(queues, options.weights, strict=options.queue_order == "strict")
        self.tally = Tally()
        self.inbox: deque[Ended] = deque()  # filled by the runner's thread
        self.wake = asyncio.Event()
        self.closing = False  # no more claims
        self.sealed: StoreSealed | None = None  # set when the store is being moved: the reason this worker ends
        self.abandon = asyncio.Event()  # end even if some outcomes are unsettled
        self._dry = False  # the last claim left slots free
        self.left_some = False  # per-task caps may have left jobs behind that another claim brings at once
        self._unheard = False  # part of the store was unreachable for its settlements in the last exchange
        self.looked_at = line.clock.steady()  # steady time of the loop's last iteration or retry
        self.opens_in: float | None = None  # seconds until a rate or slow-down allows more starts, as of the last claim
        self.redeclare: Callable[[], Awaitable[None]] = _nothing  # a task this worker caps lost its own lane
        self._opening: asyncio.TimerHandle | None = None
        self._doubtful: set[str] = set()  # tokens of outcomes that an abandoned call may already have settled
        self._early = 0
        self._quiet_until = 0.0  # until then the store, or part of it, hands out no jobs
        self._later: list[Settlement | Release] = []  # the store answered BUSY for these; resent shortly
        self._listening: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ one step

    async def step(self) -> bool:
        """Make one exchange. Return False if there is no outcome to send and no slot worth claiming for."""
        self.wake.clear()
        self.goes_round()
        inbox = self.inbox
        if inbox:
            self._take_in([inbox.popleft() for _ in range(len(inbox))])
        most = self.free()
        if not self._ledger.unsent and (self._dry or not most):
            return False
        settlements, releases = self._ledger.take()
        await self.exchange(settlements, releases, most)
        if self._unheard:
            if self.abandon.is_set():
                raise Abandoned
            await self._woken_within(UNHEARD_AGAIN_SECONDS)  # the rest of the store keeps working meanwhile
        return True

    def _take_in(self, batch: list[Ended]) -> None:
        """Record ended attempts. Jobs of unknown tasks keep their slots until it is decided how to release them."""
        unknown = [end for end in batch if isinstance(end, Unknown)]
        if unknown:
            batch = [end for end in batch if not isinstance(end, Unknown)]
            self._spawn(self._give_back_unknown(unknown))
        self._ledger.ended(batch)

    async def _give_back_unknown(self, ends: Sequence[Unknown]) -> None:
        for end in ends:
            lease = self._ledger.held.get(end.token)
            delay = 0.0 if lease is None else await self._unknown.met(lease.task)
            self.inbox.append(Release(id=end.id, token=end.token, delay=delay))
        self.wake.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def goes_round(self, seconds: float = 0.0) -> None:
        """Tell the watchdog that this loop is alive: it makes a bounded call, or waits `seconds` on purpose."""
        self.looked_at = self._store.clock.steady() + seconds

    async def _woken_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            pass

    def free(self) -> int:
        """How many jobs the next claim may bring: each must be able to start immediately."""
        if self.closing or self._renewal.fenced:
            return 0
        return min(self._jobs_limit.value, self._runners.room(self._ledger.free()))

    async def exchange(self, settlements: list[Settlement], releases: list[Release], most: int) -> bool:
        """Settle, release and claim in one call. Return whether it brought leases."""
        reported = self._reports.pending_of(settlement.token for settlement in settlements)
        if reported:  # settling invalidates the token, so store reports first
            await self._reports.flush(self._store, self._runners, reported)
        tenure = self._renewal
        tenure.call += 1
        isolated = self._runners.most_by_task() if most else {}
        capped, unknown = self._ledger.free_by_task(), self._unknown.caps
        request = ClaimRequest(
            worker=tenure.worker.id,
            call=tenure.call,
            queues=self._rotation.order(),
            most=most,
            most_by_queue=self._ledger.free_by_queue(),
            most_by_task=_least(isolated, {**capped, **unknown} if unknown else capped),
            most_by_group=self._options.group_slots,
            bytes_max=self._bytes_limit.value,
            sweep_max=self._sweep_limit.value,
        )
        self.left_some = False
        try:
            answer, request = await self._until_answered(settlements, releases, request)
        except TooMuch:
            self._take_back(settlements, releases)
            self._doubtful.update(one.token for one in settlements)
            return False
        self._settled(settlements, releases, answer.answers)  # outcomes may be accepted even if the worker is unknown
        if answer.recovered:
            self._runners.recovered(answer.recovered)
        if answer.sealed is not None:
            self.met_seal(StoreSealed(answer.sealed.role, answer.sealed.stage, answer.sealed.other))
        if answer.quiet_seconds:
            self._met_quiet(answer.quiet_seconds)
        if request.worker != tenure.worker.id:
            return False  # the store dropped this worker meanwhile: any leases that came are no longer ours
        if not answer.known:
            await tenure.forgotten(request.worker)
            return False
        tenure.seen_call = request.call
        if most:
            self.left_some = self._runners.left_some(isolated, answer.leases)
            self._dry = len(answer.leases) < request.most and not (self.left_some or _cut_short(answer.leases, request))
            self._rotation.took(lease.queue for lease in answer.leases)
            self._note_opening(answer.opens_in)
        await self._received(answer.leases)
        return bool(answer.leases)

    def _note_opening(self, opens_in: float | None) -> None:
        """Claim again as soon as the rate or slow-down that limited this claim allows the next start."""
        self.opens_in = opens_in
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if opens_in is not None:
            wait = max(OPENS_SECONDS_MIN, opens_in)
            self._opening = asyncio.get_running_loop().call_later(wait, self.look_again)

    async def _until_answered(
        self, settlements: Sequence[Settlement], releases: Sequence[Release], request: ClaimRequest
    ) -> tuple[Exchanged, ClaimRequest]:
        """Return the reply and the request as last sent: a repeat requests less, so that it can finish in time."""
        limits = self._jobs_limit, self._bytes_limit, self._sweep_limit, *self._ledger.limits
        tries = slow = 0
        while True:
            sent = self.looked_at = self._store.clock.steady()
            try:
                asked = self._store.backend.exchange(settlements, releases, request)
                answer = await self._store.call("exchange", asked)
            except HoldfastError as error:
                slow += self._store.teach(limits, sent, error)
                tries += 1
                logs.exchange_failed(error, tries, len(settlements) + len(self._ledger.settlements))
            else:
                self._store.teach(limits, sent)
                return answer, request
            request = replace(
                request,
                most=min(request.most, self._jobs_limit.value),
                bytes_max=min(request.bytes_max, self._bytes_limit.value),
                sweep_max=min(request.sweep_max, self._sweep_limit.value),
            )
            if await self._abandoned_within(backoff(tries)):
                self._take_back(settlements, releases)
                raise Abandoned
            if slow >= SPLIT_AFTER and len(settlements) + len(releases) > 1:
                raise TooMuch

    def _take_back(self, settlements: Sequence[Settlement], releases: Sequence[Release]) -> None:
        """Put unsent outcomes back at the front, for the next exchange."""
        self._ledger.settlements[:0] = settlements
        self._ledger.releases[:0] = releases

    async def _abandoned_within(self, seconds: float) -> bool:
        self.goes_round(seconds)
        try:
            async with asyncio.timeout(seconds):
                await self.abandon.wait()
        except TimeoutError:
            return False
        return True

    def met_seal(self, error: StoreSealed) -> None:
        """The store is sealed and hands out no more work: report it, let running jobs finish, and stop."""
        if self.sealed is None:
            self.sealed, self.closing = error, True
            logs.store_sealed(self._runners.worker, error, len(self._ledger.busy))
            self._runners.tell(
                events.StoreSealed(worker=self._runners.worker, role=error.role, stage=error.stage, other=error.other)
            )
            self.wake.set()

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
        self, settlements: Sequence[Settlement], releases: Sequence[Release], answers: Sequence[Answer]
    ) -> None:
        held, doubtful = self._ledger.held, self._doubtful
        self._unheard = False
        lost: list[Lease] = []
        seen: list[events.Event] = []
        successes = self._runners.wanted("succeeded")
        if Answer.BUSY in answers:
            told: list[Settlement | Release] = [*settlements, *releases]
            self._put_off([one for one, answer in zip(told, answers, strict=False) if answer is Answer.BUSY])
        for settlement, answer in zip(settlements, answers, strict=False):
            if answer is Answer.OK:
                lease = held.pop(settlement.token, None)
                self._count(settlement)
                if lease is not None and (successes or settlement.ending is not Ending.SUCCEEDED):
                    seen += self._seen(lease, settlement)
                continue
            if answer is Answer.BUSY:
                continue
            if answer is Answer.CANCELLED:  # a cancel came first: the store now accepts only CANCELLED
                self._ledger.settlements.append(_as_cancelled(settlement))
                continue
            if answer is Answer.UNHEARD:  # resend it unchanged: the store knows whether the first arrived
                if settlement.token in held:
                    self._ledger.settlements.append(settlement)
                    self._unheard = True
                continue
            lease = held.pop(settlement.token, None)
            if settlement.token in doubtful:
                self._count(settlement)  # the abandoned call had already settled it
            elif lease is not None:
                lost.append(lease)
        for release, answer in zip(releases, answers[len(settlements) :], strict=False):
            if answer is not Answer.BUSY:  # drop UNHEARD ones too: the store releases what renew does not name
                held.pop(release.token, None)
        if lost:
            self._runners.lost(lost)
        self._runners.tell(*seen)
        if doubtful:
            doubtful.intersection_update(held)

    def _put_off(self, ended: list[Settlement | Release]) -> None:
        """Resend later: another session holds these jobs. Their slots stay taken, so the worker does not end yet."""
        logs.jobs_held_elsewhere([one.id for one in ended])
        held = self._ledger.held
        self._ledger.busy.update((one.token, held[one.token]) for one in ended if one.token in held)
        if not self._later:
            asyncio.get_running_loop().call_later(BUSY_AGAIN_SECONDS, self._tell_again)
        self._later += ended

    def _tell_again(self) -> None:
        self.inbox.extend(self._later)
        self._later.clear()
        self.wake.set()

    def _count(self, settlement: Settlement) -> None:
        if settlement.ending is Ending.SUCCEEDED:
            self.tally.succeeded += 1
        elif settlement.failed or settlement.ending is Ending.BURIED:
            self.tally.failed += 1

    def _seen(self, lease: Lease, settlement: Settlement) -> list[events.Event]:
        """Log an accepted settlement and return its events."""
        facts, error = about(lease, self._runners.worker), settlement.failure
        ending, kind = settlement.ending, error.type if error is not None else ""
        seen: list[events.Event] = []
        if settlement.failed:
            failures, again = lease.failures + 1, ending is Ending.RETRY
            seen.append(events.Failed(**facts, failures=failures, error=error, will_retry=again))
            if again:
                reason = error.reason if error is not None else ""
                logs.attempt_failed(lease.id, lease.task, lease.attempt, kind or reason, settlement.delay)
                seen.append(events.Retrying(**facts, failures=failures, delay=settlement.delay, error=error))
        if ending is Ending.SUCCEEDED:
            seen.append(events.Succeeded(**facts))
        elif ending is Ending.BURIED:
            logs.job_dead(lease.id, lease.task, settlement.reason or "", kind)
            seen.append(events.Dead(**facts, reason=settlement.reason or "", error=error))
        elif ending is Ending.CANCELLED:
            seen.append(events.Cancelled(**facts))
        elif ending is Ending.STALLED:
            seen += self._seen_stall(lease, settlement)
        return seen

    def _seen_stall(self, lease: Lease, settlement: Settlement) -> list[events.Event]:
        """Events of a process death. The store decides by the lease's counts; only a pending cancel is unknown here."""
        facts, alone = about(lease, self._runners.worker), settlement.alone
        verdict = stall_verdict(
            stalls=lease.stalls,
            shared_stalls=lease.shared_stalls,
            max_stalls=lease.max_stalls,
            alone=alone,
            begun=True,
            cancel_requested=False,
        )
        state = "dead" if verdict is StallVerdict.BURY else "ready"
        stalls, shared_stalls = lease.stalls + alone, lease.shared_stalls + (not alone)
        logs.job_stalled(lease.id, lease.task, self._runners.worker, stalls, shared_stalls, state)
        holder = self._runners.worker
        seen: list[events.Event] = [
            events.Stalled(**facts, holder=holder, stalls=stalls, shared_stalls=shared_stalls, state=state)
        ]
        if state == "dead":
            reason = settlement.failure.reason if settlement.failure is not None else "crash"
            seen.append(events.Dead(**facts, reason=reason, error=settlement.failure))
        return seen

    async def _received(self, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        self._early = 0
        free = {**self._ledger.free_by_task(), **self._unknown.caps}
        self._ledger.add(leases)
        if free:
            leases = await self._within(free, leases)
        if self._renewal.fenced or self.closing:  # claimed, but may not start any more: release unused
            self._ledger.ended([Release(id=lease.id, token=lease.token) for lease in leases])
            return
        marked = [lease for lease in leases if lease.max_stalls == 0]
        if marked:
            leases = [lease for lease in leases if lease.max_stalls != 0]
            self._spawn(self._begin(marked))
        if leases:
            self._runners.start(leases)

    async def _within(self, free: dict[str, int], leases: Sequence[Lease]) -> list[Lease]:
        """Return the leases that fit this worker's per-task caps. Excess leases arrive only if another worker without
        such a cap declared that the task needs no dedicated lane, or removed an unknown task's override. Release them
        unused and declare again."""
        fitting: list[Lease] = []
        excess: list[Ended] = []
        declares = False
        for lease in leases:
            left = free.get(lease.task)
            if left is None or left > 0:
                fitting.append(lease)
                if left is not None:
                    free[lease.task] = left - 1
            else:
                stray = lease.task in self._unknown.caps
                delay = await self._unknown.strayed(lease.task) if stray else 0.0
                declares = declares or not stray
                excess.append(Release(id=lease.id, token=lease.token, delay=delay))
        self._ledger.ended(excess)
        if declares:
            await self.redeclare()
        return fitting

    async def _begin(self, leases: Sequence[Lease]) -> None:
        """At-most-once jobs: record in the store that they begin before they do. Repeating `begin` is harmless."""
        held = [Held(lease.id, lease.token) for lease in leases]
        tries = 0
        while True:
            try:
                answers = await self._store.call("begin", self._store.backend.begin(held))
                break
            except HoldfastError:
                tries += 1
                if self._renewal.fenced or await self._abandoned_within(backoff(tries)):
                    answers = [Answer.CANCELLED] * len(leases)  # not started: released at no cost
                    break
        start: list[Lease] = []
        for lease, answer in zip(leases, answers, strict=True):
            if answer is Answer.LOST:
                self._ledger.busy.pop(lease.token, None)
                if self._ledger.held.pop(lease.token, None) is not None:
                    self._runners.lost([lease])
            elif (
                answer is Answer.OK and lease.token in self._ledger.held and not (self._renewal.fenced or self.closing)
            ):
                start.append(lease)
            else:  # if a cancel was requested, the store cancels the job instead; for a lost lease this is a no-op
                self.inbox.append(Release(id=lease.id, token=lease.token))
        if start:
            self._runners.start(start)
        self.wake.set()

    # ------------------------------------------------------------------ waiting for work

    async def idle(self) -> None:
        """Wait until a handler ends or the store may have work."""
        if self._dry and self.free() and self._listening is None:
            # Listen first, then claim once more: this catches jobs enqueued between the last claim and listening.
            self._listening = asyncio.get_running_loop().create_task(self._listen())
            await asyncio.sleep(0)
            self._dry = False
            return
        await self.wake.wait()

    async def _listen(self) -> None:
        began = self._store.clock.steady()
        try:
            await self._store.backend.wait_for_work(self._rotation.queues, self._options.poll_every)
        except Exception:  # wake-ups are only hints: fall back to polling
            await asyncio.sleep(self._options.poll_every)
        if self._store.clock.steady() - began >= EARLY_SECONDS:
            self._early = 0
        else:  # the hint may be for jobs that cannot be claimed: do not spin on it
            self._early += 1
            if self._early > EARLY_FREE:
                most = UNKNOWN_WAIT_SECONDS_MAX if self._unknown.caps else EARLY_WAIT_SECONDS_MAX
                await asyncio.sleep(min(most, 0.001 * 2.0 ** min(self._early - EARLY_FREE, 10)))
        self._listening = None
        self.look_again()

    def serve(self, queues: tuple[str, ...]) -> None:
        """Claim from these queues from now on."""
        self._rotation.serve(queues)
        self.look_again()

    def stop_listening(self) -> None:
        """Give up waiting for a wake-up and claim now."""
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
        self.look_again()

    def look_again(self) -> None:
        self._dry = False
        self.wake.set()

    def close(self) -> None:
        self._ledger.ended(self._later)  # so that they are reported as unsent
        if self._opening is not None:
            self._opening.cancel()
        for task in (*self._beside, *([self._listening] if self._listening is not None else [])):
            task.cancel()


def _as_cancelled(settlement: Settlement) -> Settlement:
    return Settlement(id=settlement.id, token=settlement.token, ending=Ending.CANCELLED, retain=settlement.retain)


def _cut_short(leases: Sequence[Lease], request: ClaimRequest) -> bool:
    """Whether a claim that brought fewer jobs than requested may have left some behind because of their size."""
    if not leases:
        return False
    shrunk = request.bytes_max < CLAIM_BYTES_MAX
    return shrunk or 2 * sum(len(lease.args) for lease in leases) > request.bytes_max


def _least(isolated: Mapping[str, int], capped: Mapping[str, int]) -> Mapping[str, int]:
    """Per-task maximum of a claim: the smaller of free isolated slots and this worker's caps."""
    if not (isolated and capped):
        return isolated or capped
    return {**isolated, **{task: min(free, isolated.get(task, free)) for task, free in capped.items()}}


async def _nothing() -> None:
    """Default for `redeclare`: do nothing."""
