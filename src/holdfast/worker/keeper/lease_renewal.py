"""Lease renewal: the worker's row in the store, its renewal on a separate timer, and the fence when renewal fails; and
the ledger of leases, busy slots and unsent outcomes.

Run by the keeper beside the settle + claim loop, which can therefore never delay a renewal. The fence deadline counts
from when the last successful renewal was SENT, on a clock that keeps running through a suspend: by the time the store
may give a lease to another worker, its handler has been told to stop.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from msgspec.structs import replace

from ... import events, logs
from ...clock import until_tick
from ...context import Ended, Gone, Stop, interrupted
from ...errors import HoldfastError, OutcomeUnknown
from ...lifecycle import Settlement
from ...options import WorkerOptions
from ...records import Command, Held, Lease, Release, Renewal, WorkerRecord
from . import identity
from .batches import Together
from .chains import Chains
from .runners import Runners, Signals
from .store_client import AdaptiveLimit, StoreClient, backoff

FENCE_LOOK_SECONDS = 0.5  # check interval: a suspend advances the steady clock but not the loop's timers
LOG_AGAIN_SECONDS = 10.0  # after the fence, log failing renewals at most this often
CHANGES_SECONDS = 0.5  # batches runner changes that happen together into one renewal
EXIT_CODE = 70


class LeaseRenewer:
    """Keeps the worker's row alive and fences its handlers when that fails."""

    def __init__(
        self,
        store: StoreClient,
        runners: Runners,
        signals: Signals,
        ledger: Ledger,
        options: WorkerOptions,
        queues: tuple[str, ...],
        on_commands: Callable[[str, Sequence[Command]], None] = lambda worker, commands: None,
    ) -> None:
        self._store, self._runners, self._signals, self._ledger = store, runners, signals, ledger
        self._options, self._queues, self._slots = options, queues, options.slots
        self.worker = self._new_worker()
        self.call = 0  # number of the latest claim sent
        self.seen_call = 0  # number of the latest claim with a reply
        self.fenced = False
        self.sent = 0.0  # steady time the last successful renewal was sent
        self._silent: dict[str, float] = {}  # by token: when its store part's last accepted renewal was sent
        self._given_up: set[str] = set()  # tokens of handlers told to stop: their part of the store is unreachable
        self._changing = asyncio.Lock()
        self._logged_at = 0.0  # when a failed renewal was last logged
        self._shown: bytes | None = None  # the worker status the store has
        self._other_queues = False  # the stored row lists outdated queues or slots
        self._on_commands = on_commands

    def _new_worker(self) -> WorkerRecord:
        options = self._options
        worker = identity.new_worker(
            lease=options.lease, queues=self._queues, slots=self._slots, isolates=self._runners.isolates
        )
        self._runners.set_worker(worker.id)
        return worker

    @property
    def registered(self) -> bool:
        return self.sent > 0.0

    @property
    def fence_at(self) -> float:
        return self.sent + self._options.lease - self._options.fence_margin

    async def enter(self) -> None:
        """Register for the first time. An unreachable store is raised to the caller; a slow one is retried.

        Retries last for one lease at most, and end when the worker is asked to stop.
        """
        patience = self._store.clock.steady() + self._options.lease
        tries = 0
        while True:
            try:
                return await self.register()
            except OutcomeUnknown:
                tries += 1
                if self._store.clock.steady() >= patience or self._signals.closing:
                    raise
                await asyncio.sleep(backoff(tries))

    async def register(self, worker: WorkerRecord | None = None) -> None:
        """Store the worker's row; repeating it renews the row."""
        sent = self._store.clock.steady()
        await self._store.call("register", self._store.backend.register(worker or self.worker))
        self._renewed(sent)
        if self._runners.status() != self._shown:
            self._signals.status_changed.set()  # the row does not show the current runners yet

    async def forgotten(self, worker_id: str) -> None:
        """The store no longer knows this worker: its leases are lost. Continue under a new id; never reuse the old one.

        The new id takes effect once the store has its row. Until then, callers use the old one and wait here: a request
        under an id that is not stored yet would look like another eviction.
        """
        async with self._changing:
            if self.worker.id != worker_id:
                return  # another coroutine has already handled it
            lost = self._ledger.lose_all(self._signals.settling)
            new = self._new_worker()
            logs.worker_forgotten(worker_id, new.id, len(lost))
            self._runners.stop(lost, Stop.LOST)
            self._runners.leases_lost(lost)
            tries = 0
            while not self._signals.abandon.is_set():
                self._signals.alive_at = self._store.clock.steady()  # the exchange loop may be waiting here
                try:
                    await self.register(new)
                    break
                except HoldfastError as error:
                    tries += 1
                    self._report_failure(error, new.id)
                    wait = backoff(tries)
                    self._signals.alive_at = self._store.clock.steady() + wait
                    await asyncio.sleep(wait)
            else:
                return  # the worker is ending: the new id is not used
            self.worker, self._other_queues = replace(new, queues=self._queues), new.queues != self._queues
            self.call = self.seen_call = 0
            self._shown = None
            self._lift()
        self._signals.claim_again()

    def serve(self, queues: tuple[str, ...]) -> None:
        """Reloaded code serves other queues; update the row after the next renewal."""
        self._queues = queues
        self.worker = replace(self.worker, queues=queues)
        self._other_queues = True

    def use_slots(self, slots: int) -> None:
        """The worker uses another number of slots; update the row after the next renewal."""
        self._slots = slots
        self.worker = replace(self.worker, slots=slots)
        self._other_queues = True

    # ------------------------------------------------------------------ renewing

    async def renew_forever(self) -> None:
        every = self._options.renew_every
        wait, tries = every, 0
        while True:
            await self._due_or_changed(wait)
            began = self._store.clock.steady()
            renewed = await self.renew()
            spent = self._store.clock.steady() - began
            # Retry sooner after a failure, to fit several tries in before the fence. After the fence, back off.
            tries = 0 if renewed else tries + 1
            wait = max(0.0, every - spent) if renewed else every / 4 * random.uniform(0.5, 1.0)
            if self.fenced and not renewed:
                wait = max(wait, backoff(tries))

    async def _due_or_changed(self, seconds: float) -> None:
        """Wait until a renewal is due, or CHANGES_SECONDS after the worker status has changed."""
        due = self._store.clock.steady() + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._signals.status_changed.wait()
        except TimeoutError:
            pass
        else:
            await asyncio.sleep(max(0.0, min(CHANGES_SECONDS, due - self._store.clock.steady())))
        self._signals.status_changed.clear()

    async def renew(self) -> bool:
        """Renew once. Return False if it failed or a part of the store was unreachable."""
        worker_id, leases = self.worker.id, self._ledger.newest()
        sent = self._store.clock.steady()
        status = self._runners.status()
        changed = None if status == self._shown else status
        request = self._store.backend.renew(
            worker_id, lease_refs(leases.values()), seen_call=self.seen_call, portrait=changed
        )
        try:
            answer = await self._store.call("renew", request)
        except HoldfastError as error:
            self._report_failure(error)
            return False
        if worker_id != self.worker.id:
            return True
        if not answer.known:
            await self.forgotten(worker_id)
            return True
        self._shown = status
        late = self._note_silent(answer.unheard)
        self._renewed(min([sent, *(at for token, at in self._silent.items() if token in self._ledger.busy)]))
        if self.fenced and self.fence_at > self._store.clock.steady():
            self._lift()
            self._signals.claim_again()
        self._act_on(answer, leases, late)
        if self._other_queues:
            await self._update_queues()
        return not answer.unheard

    async def _update_queues(self) -> None:
        """Update the row's queues right after a renewal, so that it does not resurrect a row that is gone.

        It does not move the fence: leases in an unreachable part of the store keep their old deadline.
        """
        current = self.worker
        try:
            await self._store.call("register", self._store.backend.register(current))
        except HoldfastError as error:
            self._report_failure(error)
        else:
            self._other_queues = self.worker is not current and self._other_queues

    def _renewed(self, sent: float) -> None:
        self.sent = sent
        self._runners.renewed(self.fence_at, self._options.fence_margin)

    def _note_silent(self, unheard: Sequence[str]) -> list[Lease]:
        """Keep the old deadline for leases in unreachable parts of the store. Return the leases to give up now.

        Such a lease holds back the whole worker's fence, so its handler is told to stop while there is still time;
        otherwise all handlers would have to stop with it.
        """
        leases, busy = self._ledger.leases, self._ledger.busy
        quiet = [lease for lease in leases.values() if lease.id in unheard]  # also those claimed during the renewal
        new = [lease for lease in quiet if lease.token not in self._silent]
        given_up = {token: at for token, at in self._silent.items() if token in busy and token not in leases}
        self._silent = given_up | {lease.token: self._silent.get(lease.token, self.sent) for lease in quiet}
        if not quiet:
            return []
        options, steady = self._options, self._store.clock.steady()
        fence_in = options.lease - options.fence_margin
        if new:
            logs.part_silent(self.worker.id, len(new), min(self._silent.values()) + fence_in - steady)
        last = steady + options.renew_every / 2 + options.call_timeout
        return [lease for lease in quiet if self._silent[lease.token] + fence_in <= last]

    def _act_on(self, answer: Renewal, leases: dict[str, Lease], late: list[Lease]) -> None:
        # Skip leases whose handler has ended: the reply to their settlement decides. An exchange that overtook this
        # renewal may already have settled them.
        busy = self._ledger.busy
        # Also skip those whose handlers settle them: they may just have done so, and are about to return.
        lost = [leases[job_id] for job_id in answer.lost if job_id in leases and leases[job_id].token in busy]
        lost += [lease for lease in self._ledger.superseded(leases) if lease.token in busy]
        lost = [lease for lease in lost if lease.token not in self._signals.settling]
        for lease in lost:
            self._ledger.leases.pop(lease.token, None)
        # Keep naming a given-up lease until its handler has ended: if its part of the store comes back before the
        # deadline, it releases any lease that is not named, and another worker would start the job beside this handler.
        given_up = [lease for lease in late if lease.token in busy]
        lost += [lease for lease in given_up if lease.token not in self._given_up]
        self._given_up = {token for token in self._given_up if token in busy} | {lease.token for lease in given_up}
        if lost:
            self._runners.stop(lost, Stop.LOST)
            self._runners.leases_lost(lost)
        if answer.cancelled:
            cancelled = [leases[job_id] for job_id in answer.cancelled if job_id in leases]
            self._runners.stop([lease for lease in cancelled if lease.token in busy], Stop.CANCELLED)
        if answer.released:
            logs.leases_given_back(answer.released)
        if answer.commands:
            self._on_commands(self.worker.id, answer.commands)

    def _report_failure(self, error: HoldfastError, worker_id: str | None = None) -> None:
        worker, fence_in = worker_id or self.worker.id, max(0.0, self.fence_at - self._store.clock.steady())
        now = self._store.clock.steady()
        if not self.fenced or now - self._logged_at >= LOG_AGAIN_SECONDS:
            self._logged_at = now
            logs.renewal_failed(worker, error, fence_in)
        if self._runners.wanted("renewal_failed"):
            self._runners.emit(events.RenewalFailed(worker=worker, error=type(error).__name__, fence_in=fence_in))

    # ------------------------------------------------------------------ the fence

    async def fence_forever(self) -> None:
        while True:
            remaining = self.fence_at - self._store.clock.steady()
            if remaining > 0 or self.fenced:
                await asyncio.sleep(until_tick(min(max(remaining, 0.01), FENCE_LOOK_SECONDS)))
            else:
                await self._fence()

    async def _fence(self) -> None:
        self.fenced = True
        self._runners.stop_all(Stop.FENCED)
        jobs = tuple(lease.id for lease in self._ledger.busy.values())
        logs.fence_passed(self.worker.id, jobs)
        self._runners.emit(events.FencePassed(worker=self.worker.id, jobs=jobs))
        if self._options.on_fence == "exit":
            await self._exit_unless_stopped()

    async def _exit_unless_stopped(self) -> None:
        clock, margin = self._store.clock, self._options.fence_margin
        last = self.fence_at + margin / 4
        while self._ledger.busy and self.fenced:
            if clock.steady() >= last:
                logs.exiting_on_fence(self.worker.id, [lease.id for lease in self._ledger.busy.values()])
                os._exit(EXIT_CODE)
            await asyncio.sleep(margin / 40)

    def _lift(self) -> None:
        if self.fenced:
            self.fenced = False
            self._runners.allow_starts()
            logs.fence_lifted(self.worker.id)


# ----------------------------------------------------------------------------------------------------------------------
# The ledger: what the worker holds. Pure bookkeeping, on the keeper's loop only: it makes no calls.


BATCH_MAX = 1000  # outcomes in one exchange: bounds the store's work
BATCH_BYTES_MAX = 8 << 20  # of their values: a batch that cannot be sent within call_timeout would never succeed
BATCH_BYTES_MIN = 1 << 14


class Ledger:
    """A lease is in `leases` until the store reports otherwise; a slot is `busy` until its handler has stopped."""

    def __init__(
        self, slots: int, slots_by_queue: Mapping[str, int], slots_by_task: Mapping[str, int] | None = None
    ) -> None:
        self.leases: dict[str, Lease] = {}  # by token
        self.busy: dict[str, Lease] = {}  # by token; outlives `leases` if the handler of a lost lease has not stopped
        self.chains = Chains()  # of those that are busy
        self.together = Together()  # batches of those that are busy
        self.settlements: list[Settlement] = []
        self.releases: list[Release] = []
        self._jobs_limit = AdaptiveLimit(BATCH_MAX)
        self._bytes_limit = AdaptiveLimit(BATCH_BYTES_MAX, BATCH_BYTES_MIN)
        self.slots = slots  # may change; if it shrinks, running handlers are not interrupted
        self._slots_by_queue, self._slots_by_task = slots_by_queue, slots_by_task or {}

    @property
    def unsent(self) -> bool:
        return bool(self.settlements or self.releases)

    def spare(self, queued: int) -> int:
        """Free slots, if `queued` of the held jobs wait for one; negative if more are in use than there should be."""
        return self.slots - self.units + queued

    @property
    def units(self) -> int:
        """How many slots the busy leases take or wait for: a chain takes one, and so does a batch."""
        return len(self.busy) - self.chains.behind - self.together.behind

    def free_by_queue(self) -> Mapping[str, int]:
        """Free slots of queues with their own cap."""
        if not self._slots_by_queue:
            return {}
        taken = Counter(lease.queue for lease in self._first())
        return {queue: max(0, cap - taken[queue]) for queue, cap in self._slots_by_queue.items()}

    def free_by_task(self) -> Mapping[str, int]:
        """Free slots of tasks with their own cap."""
        if not self._slots_by_task:
            return {}
        taken = Counter(lease.task for lease in self._first())
        return {task: max(0, cap - taken[task]) for task, cap in self._slots_by_task.items()}

    def _first(self) -> Iterable[Lease]:
        """The busy leases, one for each slot."""
        together = self.together
        if not together.of:
            return self.busy.values()
        return [lease for token, lease in self.busy.items() if not together.is_behind(token)]

    def add(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self.leases[lease.token] = self.busy[lease.token] = lease

    def ended(self, batch: Iterable[Ended]) -> None:
        """Handlers have stopped: free their slots and queue their outcomes for sending."""
        for end in batch:
            self.busy.pop(end.token, None)
            if self.chains.of:
                self.chains.drop(end.token)
            if self.together.of:
                self.together.drop(end.token)
            lease = self.leases.get(end.token)
            if lease is None:
                continue  # lost meanwhile: no outcome to send
            if isinstance(end, Gone) and lease.max_stalls == 0:
                # Given up but not lost: its part of the store is unreachable. A lease that renew does not name is
                # released and would run again, so keep naming it until that part has stored that this was the only run.
                end = interrupted(lease)
            if isinstance(end, Settlement):
                self.settlements.append(end)
            elif isinstance(end, Release):
                self.releases.append(end)
            else:
                del self.leases[end.token]

    @property
    def limits(self) -> tuple[AdaptiveLimit, ...]:
        """Adaptive bounds on the outcomes of one exchange; adjusted after each exchange."""
        return self._jobs_limit, self._bytes_limit

    def take(self) -> tuple[list[Settlement], list[Release]]:
        """Take out the outcomes for the next exchange."""
        most = self._jobs_limit.value
        number = self._sendable(most)
        settlements, self.settlements = self.settlements[:number], self.settlements[number:]
        releases, self.releases = self.releases[:most], self.releases[most:]
        return settlements, releases

    def _sendable(self, most: int) -> int:
        """How many settlements fit into one exchange; the first one always does, whatever its size."""
        size = 0
        for number, settlement in enumerate(self.settlements[:most]):
            size += 0 if settlement.value is None else len(settlement.value)
            if size > self._bytes_limit.value and number:
                return number
        return most

    def newest(self) -> dict[str, Lease]:
        """The newest lease of each job. There are two if this worker was given a job again before it noticed that the
        first lease was lost; the store's replies name jobs, and are then about the newer lease."""
        return {lease.id: lease for lease in self.leases.values()}

    def superseded(self, newest: Mapping[str, Lease]) -> list[Lease]:
        """Leases whose job has a newer one: they are lost."""
        return [one for one in self.leases.values() if one.id in newest and newest[one.id].fence > one.fence]

    def lose_all(self, settling: Container[str]) -> list[Lease]:
        """The worker's row is gone and every lease with it. Return the leases it had.

        Leases that handlers settle in their own transactions are kept until their jobs have been read.
        """
        self.settlements = [one for one in self.settlements if one.token in settling]
        kept = {one.token: self.leases[one.token] for one in self.settlements if one.token in self.leases}
        lost = [lease for token, lease in self.leases.items() if token not in kept]
        self.leases.clear()
        self.leases.update(kept)
        self.releases.clear()
        return lost


def lease_refs(leases: Iterable[Lease]) -> list[Held]:
    """Leases in the form `renew` takes."""
    return [Held(lease.id, lease.token) for lease in leases]
