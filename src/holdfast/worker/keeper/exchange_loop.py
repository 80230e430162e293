"""The settle + claim loop: outcomes go to the store and free slots are filled in the same exchange.

Run by the keeper. One exchange is in flight at a time; what ends meanwhile gathers for the next. An exchange that is
not answered is repeated, the SAME call with the SAME outcomes, until it is: no outcome is ever dropped while its
lease may be ours. After a time-out it asks for fewer jobs and smaller sweeps; the next calls grow back.
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

BUSY_AGAIN_SECONDS = 0.5  # after which an outcome is told again whose job a stranger held
EARLY_SECONDS = 0.005  # a wake-up that comes sooner than this after listening began was there already
EARLY_FREE = 3  # so many of them in a row without work, and the next looks are slowed down
EARLY_WAIT_SECONDS_MAX = 0.05
UNKNOWN_WAIT_SECONDS_MAX = 0.5  # … where a backlog of tasks this worker does not know is known to wake it
OPENS_SECONDS_MIN = 0.001  # a rate or slow-down that lets the next start sooner is not worth a timer
CLAIM_JOBS_MIN = 100  # so many may come at once: cut smaller, the call itself would cost more than it brings
CLAIM_BYTES_MIN = 1 << 14  # a claim asks for no less: one job is leased whatever its size
SPLIT_AFTER = 4  # time-outs of one call: its outcomes are then sent in smaller batches under a new number
UNHEARD_AGAIN_SECONDS = 0.1  # between two tries to settle with a part of the store that is silent


class Abandoned(Exception):
    """The worker ends although the store does not answer."""


class TooMuch(Exception):
    """A call with many outcomes timed out again and again."""


@dataclass
class Tally:
    """What this worker's outcomes came to."""

    succeeded: int = 0
    failed: int = 0


class ExchangeLoop:
    """Trades outcomes for leases."""

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
        # Half the slots at a time: one half runs while the store settles and fills the other, so neither side waits.
        # In one process they would only take turns at the interpreter, and each turn costs.
        self._claim_most = max(CLAIM_JOBS_MIN, -(-options.slots // 2)) if link.apart else options.slots
        self._jobs_limit = AdaptiveLimit(self._claim_most)
        self._bytes_limit = AdaptiveLimit(CLAIM_BYTES_MAX, CLAIM_BYTES_MIN)
        self._sweep_limit = AdaptiveLimit(CLAIM_SWEEP_MAX)
        self._rotation = QueueRotation(queues, options.weights, strict=options.queue_order == "strict")
        self.tally = Tally()
        self.inbox: deque[Ended] = deque()  # filled by the runner's thread
        self.wake = asyncio.Event()
        self.closing = False  # no more claims
        self.sealed: StoreSealed | None = None  # the store is being moved: why this worker ends
        self.abandon = asyncio.Event()  # end although not everything is settled
        self._dry = False  # the last claim left slots free
        self.left_some = False  # … and may have left jobs because of caps by task, which another one brings at once
        self._unheard = False  # a part of the store did not take its settlements in the last exchange
        self.looked_at = line.clock.steady()  # when the claim loop last went round, or tried a call again
        self.opens_in: float | None = None  # after the last claim: seconds until a rate or slow-down lets more start
        self.redeclare: Callable[[], Awaitable[None]] = _nothing  # a task this worker caps has lost its own lane
        self._opening: asyncio.TimerHandle | None = None
        self._doubtful: set[str] = set()  # tokens of outcomes that an unanswered call may have brought already
        self._early = 0
        self._quiet_until = 0.0  # until then the store, or a part of it, hands out nothing
        self._later: list[Settlement | Release] = []  # the store could not take them: told again in a while
        self._listening: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ one step

    async def step(self) -> bool:
        """Do what there is to do; False when there is nothing: no outcome to send, no slot worth claiming for."""
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
            await self._woken_within(UNHEARD_AGAIN_SECONDS)  # the rest of the store goes on meanwhile
        return True

    def _take_in(self, batch: list[Ended]) -> None:
        """Handlers have stopped. Jobs of tasks nobody here knows keep their slots until it is clear where they go."""
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
        """Show the watchdog that this loop lives: it makes a call, which is bounded, or waits so long on purpose."""
        self.looked_at = self._store.clock.steady() + seconds

    async def _woken_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            pass

    def free(self) -> int:
        """How many jobs the next claim may bring: each of them must be able to begin at once."""
        if self.closing or self._renewal.fenced:
            return 0
        return min(self._jobs_limit.value, self._runners.room(self._ledger.free()))

    async def exchange(self, settlements: list[Settlement], releases: list[Release], most: int) -> bool:
        """Settle, release and claim in one call; answers whether it brought leases."""
        reported = self._reports.pending_of(settlement.token for settlement in settlements)
        if reported:  # the token is void once settled
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
        self._settled(settlements, releases, answer.answers)  # outcomes may be taken although the worker is not known
        if answer.recovered:
            self._runners.recovered(answer.recovered)
        if answer.sealed is not None:
            self.met_seal(StoreSealed(answer.sealed.role, answer.sealed.stage, answer.sealed.other))
        if answer.quiet_seconds:
            self._met_quiet(answer.quiet_seconds)
        if request.worker != tenure.worker.id:
            return False  # forgotten meanwhile: the leases that may have come are no longer ours
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
        """Look again as soon as a rate or a slow-down that held the claim back lets the next job start."""
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
        """The answer, and the request as it was made in the end: a repeat asks for less, if it is to be in time."""
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
        """These were not told: they come first in the next exchange."""
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
        """The store gives no work out any more: say it, let what runs end, and end."""
        if self.sealed is None:
            self.sealed, self.closing = error, True
            logs.store_sealed(self._runners.worker, error, len(self._ledger.busy))
            self._runners.tell(
                events.StoreSealed(worker=self._runners.worker, role=error.role, stage=error.stage, other=error.other)
            )
            self.wake.set()

    @property
    def quiet(self) -> bool:
        """Is what is ready not given out for a while?"""
        return self._store.clock.steady() < self._quiet_until

    def _met_quiet(self, seconds: float) -> None:
        if not self.quiet:
            logs.store_quiet(seconds)
        self._quiet_until = self._store.clock.steady() + seconds

    # ------------------------------------------------------------------ what the store answered

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
            if answer is Answer.CANCELLED:  # a cancel came first: the one ending that is accepted now
                self._ledger.settlements.append(_as_cancelled(settlement))
                continue
            if answer is Answer.UNHEARD:  # the same settlement again: the store knows what became of the first
                if settlement.token in held:
                    self._ledger.settlements.append(settlement)
                    self._unheard = True
                continue
            lease = held.pop(settlement.token, None)
            if settlement.token in doubtful:
                self._count(settlement)  # the call that was given up had brought it
            elif lease is not None:
                lost.append(lease)
        for release, answer in zip(releases, answers[len(settlements) :], strict=False):
            if answer is not Answer.BUSY:  # an unheard one goes, too: what renew does not name is given back
                held.pop(release.token, None)
        if lost:
            self._runners.lost(lost)
        self._runners.tell(*seen)
        if doubtful:
            doubtful.intersection_update(held)

    def _put_off(self, ended: list[Settlement | Release]) -> None:
        """Keep outcomes whose job somebody holds; their slots stay taken, so the worker does not end without them."""
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
        """What an accepted settlement means to listeners and to the log."""
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
        """Its process died. The store decided by the counts the lease told; only a cancel asked for is unknown here."""
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
        if self._renewal.fenced or self.closing:  # claimed, and then we may not start it: give it back unused
            self._ledger.ended([Release(id=lease.id, token=lease.token) for lease in leases])
            return
        marked = [lease for lease in leases if lease.max_stalls == 0]
        if marked:
            leases = [lease for lease in leases if lease.max_stalls != 0]
            self._spawn(self._begin(marked))
        if leases:
            self._runners.start(leases)

    async def _within(self, free: dict[str, int], leases: Sequence[Lease]) -> list[Lease]:
        """Those that fit under this worker's own caps. More come only where another worker, without such a cap,
        declared that the task needs no lane of its own, or took back that an unknown one has one: they go back unused,
        and ours is told again."""
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
        """At most once: the store knows that the handlers begin before they do. Repeating the mark is harmless."""
        held = [Held(lease.id, lease.token) for lease in leases]
        tries = 0
        while True:
            try:
                answers = await self._store.call("begin", self._store.backend.begin(held))
                break
            except HoldfastError:
                tries += 1
                if self._renewal.fenced or await self._abandoned_within(backoff(tries)):
                    answers = [Answer.CANCELLED] * len(leases)  # not started: given back, at no cost
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
            else:  # with a cancel asked for, the store makes this release a cancellation; of a lost lease it is nothing
                self.inbox.append(Release(id=lease.id, token=lease.token))
        if start:
            self._runners.start(start)
        self.wake.set()

    # ------------------------------------------------------------------ waiting for work

    async def idle(self) -> None:
        """Wait until something ends here or the store may have work."""
        if self._dry and self.free() and self._listening is None:
            # Listen first, then look once more: what was enqueued between the look and the listening is not missed.
            self._listening = asyncio.get_running_loop().create_task(self._listen())
            await asyncio.sleep(0)
            self._dry = False
            return
        await self.wake.wait()

    async def _listen(self) -> None:
        began = self._store.clock.steady()
        try:
            await self._store.backend.wait_for_work(self._rotation.queues, self._options.poll_every)
        except Exception:  # a hint is not worth a worry: poll instead
            await asyncio.sleep(self._options.poll_every)
        if self._store.clock.steady() - began >= EARLY_SECONDS:
            self._early = 0
        else:  # perhaps it tells of jobs nobody may claim: do not spin on it
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
        """Whatever it waits for does not come: poll instead."""
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
        self.look_again()

    def look_again(self) -> None:
        self._dry = False
        self.wake.set()

    def close(self) -> None:
        self._ledger.ended(self._later)  # among the unsent, whoever asks
        if self._opening is not None:
            self._opening.cancel()
        for task in (*self._beside, *([self._listening] if self._listening is not None else [])):
            task.cancel()


def _as_cancelled(settlement: Settlement) -> Settlement:
    return Settlement(id=settlement.id, token=settlement.token, ending=Ending.CANCELLED, retain=settlement.retain)


def _cut_short(leases: Sequence[Lease], request: ClaimRequest) -> bool:
    """Whether a claim that brought fewer jobs than asked for may have left some for their size."""
    if not leases:
        return False
    shrunk = request.bytes_max < CLAIM_BYTES_MAX
    return shrunk or 2 * sum(len(lease.args) for lease in leases) > request.bytes_max


def _least(isolated: Mapping[str, int], capped: Mapping[str, int]) -> Mapping[str, int]:
    """How many of each task a claim may bring: no more than can begin alone, nor than this worker takes."""
    if not (isolated and capped):
        return isolated or capped
    return {**isolated, **{task: min(free, isolated.get(task, free)) for task, free in capped.items()}}


async def _nothing() -> None:
    """What a worker without caps declares again."""
