"""Leases over many shards: divide a worker's calls among shards and combine the results.

Called by backend.py. A call that a shard did not answer is repeated there unchanged before that shard gets any other
call: so its settlements take effect once, and their first results come back, late. Safety does not depend on anything
kept here: every write to a lease is fenced by its token in its own shard.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from msgspec.structs import replace

from ...errors import HoldfastError
from ...lifecycle import Settlement, State
from ...records import (
    Answer,
    ClaimRequest,
    Exchanged,
    Held,
    Lease,
    Recovered,
    Release,
    Renewal,
    Report,
    Seal,
    WorkerRecord,
)
from ..contract import Backend
from ..shard import Shard
from .divide import NOTHING, Portion, QueueRoom, turned, within
from .fanout import SILENCE, at_once
from .places import ROUNDS_MAX, call_of, last_number_of, number_of, parted, shares, signed
from .registry import Shards

HOME = ""  # the store beside the shards: rules, pauses, limits, cron entries and all workers' rows, but no user's job
RECOVERED_PER_CLAIM_MAX = 100
PORTION_JOBS = 200  # a claim asks no more shards than have about so many jobs to lease, as long as they have enough
ASKED_WITHIN_SECONDS = 0.1  # … and those that were not asked for this long

T = TypeVar("T")
Named = TypeVar("Named", Held, Report, Release, Settlement)


class Stores(Protocol):
    """Returns a shard by its name; opened on first use."""

    async def __call__(self, name: str) -> Shard: ...


class Gone(Exception):
    """No store knows the worker any more, or only past its deadline."""


class LeaseVerbs:
    """The verbs for leases and workers."""

    def __init__(self, shards: Shards, stores: Stores) -> None:
        self._shards, self._stores = shards, stores
        self._services: dict[str, WorkerCalls] = {}

    async def _at(self, name: str, verb: Callable[[Backend], Awaitable[T]]) -> T:
        return await verb(await self._stores(name))

    # ------------------------------------------------------------------ a worker's rows

    async def register(self, worker: WorkerRecord, now: float | None) -> None:
        """Register in every shard it is known to serve; the others follow when it first claims there."""
        service = self._services.setdefault(worker.id, WorkerCalls(worker))
        service.record = worker
        names = {HOME, *service.joined, *(shard for queue in worker.queues for shard in self._shards.of(queue))}
        answers = await at_once({name: self._at(name, lambda store: store.register(worker, now)) for name in names})
        service.joined.update(name for name in answers.of_some() if name != HOME)
        service.stale -= set(answers)

    async def retire(self, worker: str, now: float | None) -> int:
        names = [HOME, *self._shards.all()]
        answers = await at_once({name: self._at(name, lambda store: store.retire(worker, now)) for name in names})
        self._services.pop(worker, None)
        return sum(answers.of_all().values())

    async def _service(self, worker: str, now: float | None) -> WorkerCalls | None:
        """Return the worker as this process knows it, or as another process registered it."""
        found = self._services.get(worker)
        if found is None:
            rows = await self._at(HOME, lambda store: store.workers(now))
            found = next((WorkerCalls(row) for row in rows if row.id == worker), None)
            if found is not None:
                self._services[worker] = found
        return found

    async def _join(self, service: WorkerCalls, shard: str, now: float | None) -> None:
        """Give the worker a row in a shard that has none, if it is alive."""
        request = ClaimRequest(worker=service.record.id, call=number_of(service.call, 0), queues=(), most=0)
        if not (await self._at(HOME, lambda store: store.claim(request, now))).known:
            if not await self._alive(service, now):
                raise Gone
            await self._at(HOME, lambda store: store.register(service.record, now))
        await self._at(shard, lambda store: store.register(service.record, now))
        service.joined.add(shard)

    async def _alive(self, service: WorkerCalls, now: float | None) -> bool:
        """Whether some store has the worker with a deadline that has not passed, or cannot be reached."""
        names = [HOME, *service.joined]
        answers = await at_once({name: self._at(name, lambda store: store.workers(now)) for name in names})
        rows = [row for found in answers.of_some().values() for row in found if row.id == service.record.id]
        return bool(answers.silent) or not all(row.expired for row in rows)

    # ------------------------------------------------------------------ settle + claim

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None,
    ) -> Exchanged:
        service = None if request is None else await self._service(request.worker, now)
        if request is None or service is None or request.call < service.call:
            answers = (
                *await self.by_token(settlements, lambda store, items: store.settle(items, now)),
                *await self.by_token(releases, lambda store, items: store.release(items, now)),
            )
            return Exchanged(answers=answers, known=request is None or service is not None)
        try:
            if request.call == service.call:
                await self._repeat(service, request, now)
            else:
                await self._begin_anew(service, settlements, releases, request, now)
            known = True
        except Gone:
            self._services.pop(request.worker, None)
            known = False
        recovered, service.recovered = tuple(service.recovered), []
        quiet = max((sent.answer.quiet_seconds for sent in service.sent if sent.answer is not None), default=0.0)
        return Exchanged(
            answers=tuple(answer or Answer.UNHEARD for answer in service.answers),
            leases=tuple(service.leases) if known else (),
            known=known,
            recovered=recovered,
            sealed=service.sealed if known else None,
            quiet_seconds=quiet,
            opens_in=service.opens_in if known else None,
        )

    async def _begin_anew(
        self,
        service: WorkerCalls,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest,
        now: float | None,
    ) -> None:
        """Make a new call. A worker past its deadline is recovered everywhere, as it is in one store."""
        try:
            await self._exchange_in_rounds(service, settlements, releases, request, now)
            if not any(sent.answer is not None and sent.answer.known for sent in service.sent):
                await self._make_sure(service, now)
        except Gone:
            names, limit = [HOME, *service.joined], RECOVERED_PER_CLAIM_MAX
            sweep: Callable[[Backend], Awaitable[list[Recovered]]] = lambda store: store.recover(limit=limit, now=now)  # noqa: E731
            answers = await at_once({name: self._at(name, sweep) for name in names})
            service.recovered += [end for found in answers.values() for end in found]
            raise

    async def _make_sure(self, service: WorkerCalls, now: float | None) -> None:
        """No shard confirmed the worker in this call: check that it is alive, and that any store replies at all."""
        try:
            alive = await self._alive(service, now)
        except SILENCE as error:
            raise next((sent.error for sent in service.sent if sent.error is not None), error) from error
        if not alive:
            raise Gone

    async def _exchange_in_rounds(
        self,
        service: WorkerCalls,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest,
        now: float | None,
    ) -> None:
        """Make a new call: first repeat unanswered calls, then send the settlements, then claim the queues in order.

        The settlements travel with the first queue's claims. A queue's shards are asked at once for their shares, or
        only a few of them (`WorkerCalls.few`); what some cannot use is then claimed from the others and from those that
        used up theirs.
        """
        service.turn_to(request.call, len(settlements) + len(releases))
        swept = dict.fromkeys(shard for queue in request.queues for shard in self._shards.of(queue))
        service.sweeps = shares(request.sweep_max, turned(list(swept), request.call)) if swept else {}
        await self._hear_again(service, request, now)
        batch = service.divided(self._shards, settlements, releases)
        for queue in request.queues:
            shards = turned(self._shards.of(queue), request.call)
            few = partial(service.few, set(batch)) if queue in service.filled else None
            if few is None:  # all are asked
                service.turns, service.turned_at = 0.0, time.monotonic()
            room = QueueRoom(request, service.leases, queue, shards, few)
            while portions := room.next_round(service.may_ask):
                for shard, portion in portions.items():
                    claim = service.asking(shard, queue, portion, request)
                    batch.setdefault(shard, Sent(shard, claim)).request = claim
                sending, batch = list(batch.values()), {}
                await self._send(service, sending, now)
                heard = {sent.shard: sent.answer.leases for sent in sending if sent.answer is not None}
                room.heard({shard: heard[shard] for shard in portions if shard in heard})
            (service.filled.add if room.is_filled else service.filled.discard)(queue)
        await self._send(service, list(batch.values()), now)
        await self._fit(service, request, now)

    async def _send(self, service: WorkerCalls, batch: Sequence[Sent], now: float | None) -> None:
        """Make these calls at once. They are recorded first, so that a call cancelled midway can be repeated.

        The largest claims go first: a shard takes longer over them than over settlements, and their leases are decoded
        while the others reply.
        """
        batch = sorted(batch, key=lambda sent: -sent.request.most)
        service.sent += [sent for sent in batch if sent not in service.sent]
        answers = await at_once({sent.shard: self._exchange_at(service, sent, now) for sent in batch})
        for sent in batch:
            sent.error = answers.silent.get(sent.shard)

    async def _exchange_at(self, service: WorkerCalls, sent: Sent, now: float | None) -> None:
        store = await self._stores(sent.shard)
        if sent.shard in service.stale:
            # Its row there may be about to expire, and with it whatever is claimed now: move its deadline first.
            await store.register(service.record, now)
            service.stale.discard(sent.shard)
        answer = await store.exchange(sent.settlements, sent.releases, sent.request, now)
        if not answer.known and sent.shard not in service.joined:
            await self._join(service, sent.shard, now)
            again = await store.exchange((), (), sent.request, now)
            answer = replace(again, answers=answer.answers)
        service.heard(sent, answer)

    async def _hear_again(self, service: WorkerCalls, request: ClaimRequest, now: float | None) -> None:
        """Repeat the calls that were not answered. Leases beyond the free slots are released at no cost."""
        owed = list(service.unheard.values())
        for sent in owed:
            sent.ask_for_less(request, part=2)
        await at_once({sent.shard: self._exchange_at(service, sent, now) for sent in owed})
        await self._fit(service, request, now, request.most_by_task)

    async def _fit(
        self, service: WorkerCalls, request: ClaimRequest, now: float | None, by_task: Mapping[str, int] = {}
    ) -> None:
        """Release the leases there is no room for. If a shard does not reply, the next renewal releases them.

        Per-task caps apply only to late leases: in other claims the shards know whether the task has a dedicated lane.
        """
        service.leases, surplus = within(request, service.leases, by_task)
        if surplus:
            with suppress(*SILENCE):
                await self.by_token(surplus, lambda store, items: store.release(items, now))

    async def _repeat(self, service: WorkerCalls, request: ClaimRequest, now: float | None) -> None:
        """Repeat the latest call: results are still known, and unanswered calls are sent again.

        If home or a shard is silent, what is known of it stays: the next renewal reports what is no longer ours.
        """
        found = await at_once({HOME: self._at(HOME, lambda store: store.workers(now))})
        if HOME in found and all(row.id != service.record.id for row in found[HOME]):
            raise Gone

        async def ended(lease: Lease) -> bool:
            job = await (await self._stores(parted(lease.token)[0])).get(lease.id)
            return job is None or job.state is not State.RUNNING or job.fence != lease.fence

        ends = await at_once({lease.token: ended(lease) for lease in service.leases})
        service.leases = [lease for lease in service.leases if not ends.get(lease.token)]
        unanswered = [sent for sent in service.sent if sent.answer is None]
        for sent in unanswered:
            sent.ask_for_less(request)
        await self._send(service, unanswered, now)
        if all(sent.answer is None for sent in service.sent):
            found.of_all()  # no store replies at all
        await self._fit(service, request, now)

    # ------------------------------------------------------------------ renewing, and the verbs that name a token

    async def renew(
        self, worker: str, held: Sequence[Held], seen_call: int, portrait: bytes | None, now: float | None
    ) -> Renewal:
        """Renew all rows of the worker at once. Leases in a silent shard are `unheard`: its deadline did not move.

        The status goes to home alone; if home did not take it, it is sent again with the next renewal.
        """
        service = await self._service(worker, now)
        if service is None:
            return Renewal(known=False, lost=tuple(item.id for item in held))
        named: dict[str, list[Held]] = {name: [] for name in (HOME, *service.joined)}
        unknown: list[str] = []
        for item in held:
            shard, token = parted(item.token)
            if self._shards.queue_of(shard) is None:
                unknown.append(item.id)
            else:
                named.setdefault(shard, []).append(Held(item.id, token))
        service.write_off(seen_call)
        seen = {name: service.seen_at(name, seen_call) for name in named}
        shown = service.unshown = service.unshown if portrait is None else portrait

        async def renew(name: str) -> Renewal:
            own = shown if name == HOME else None
            store = await self._stores(name)
            return await store.renew(worker, named[name], seen_call=seen[name], portrait=own, now=now)

        service.fresh.clear()
        answers = await at_once({name: renew(name) for name in named})
        service.stale = (service.stale | set(answers.silent)) - set(answers) - {HOME}
        known = [name for name, answer in answers.of_some().items() if answer.known]
        if not known and not answers.silent:
            self._services.pop(worker, None)
            return Renewal(known=False, lost=tuple(item.id for item in held))
        service.joined.difference_update(set(answers) - set(known))
        if HOME in known and service.unshown is shown:
            service.unshown = None
        if HOME in answers and HOME not in known:
            await at_once({HOME: self._at(HOME, lambda store: store.register(service.record, now))})
        return Renewal(
            lost=(*unknown, *(job_id for answer in answers.values() for job_id in answer.lost)),
            cancelled=tuple(job_id for answer in answers.values() for job_id in answer.cancelled),
            released=tuple(job_id for answer in answers.values() for job_id in answer.released),
            commands=answers[HOME].commands if HOME in answers else (),
            unheard=(
                *(item.id for name in answers.silent for item in named[name]),
                *(lease.id for lease in service.fresh if parted(lease.token)[0] in answers.silent),
            ),
        )

    async def by_token(
        self, items: Sequence[Named], verb: Callable[[Backend, list[Named]], Awaitable[list[Answer]]]
    ) -> list[Answer]:
        """Run a verb on each lease's own shard. Raises if no shard replied; else a silent one means UNHEARD."""
        answers = [Answer.LOST] * len(items)
        places: dict[str, list[int]] = {}
        own: dict[str, list[Named]] = {}
        for place, item in enumerate(items):
            shard, token = parted(item.token)
            if self._shards.queue_of(shard) is not None:
                places.setdefault(shard, []).append(place)
                own.setdefault(shard, []).append(replace(item, token=token))

        async def ask(shard: str) -> list[Answer]:
            return await verb(await self._stores(shard), own[shard])

        found = await at_once({shard: ask(shard) for shard in own})
        found.of_some()
        for shard, where in places.items():
            words = found.get(shard) or [Answer.UNHEARD] * len(where)
            for place, word in zip(where, words, strict=True):
                answers[place] = word
        return answers


# ----------------------------------------------------------------------------------------------------------------------
# One worker as this process knows it: where it has a row, what its latest call sent to which shard, and the results.
# Pure bookkeeping, no I/O.


CALLS_REMEMBERED = 1000  # a renewal that has seen only older calls releases nothing


@dataclass(eq=False)
class Sent:
    """One call to one shard. `places` are the positions of its settlements and releases in the worker's call."""

    shard: str
    request: ClaimRequest
    settlements: list[Settlement] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    answer: Exchanged | None = None
    error: HoldfastError | None = None
    written_off: bool = False  # a renewal may release its leases: they are no longer handed out

    def ask_for_less(self, request: ClaimRequest, *, part: int = 1) -> None:
        """Before a repeat, lower its limits to the current request's, and to a part of what was not done in time."""
        own = self.request
        self.request = replace(
            own,
            most=min(-(-own.most // part), request.most),
            bytes_max=max(1, min(own.bytes_max // part, request.bytes_max)),
            sweep_max=min(own.sweep_max // part, request.sweep_max),
            chained_max=min(own.chained_max // part, request.chained_max),
        )

    @property
    def tokens(self) -> list[tuple[str, bool]]:
        """Its settlements and releases in the order of their results, with tokens as the worker knows them."""
        items: list[Settlement | Release] = [*self.settlements, *self.releases]
        return [(signed(self.shard, item.token), isinstance(item, Release)) for item in items]


@dataclass
class WorkerCalls:
    """One worker."""

    record: WorkerRecord
    joined: set[str] = field(default_factory=set)  # shards in which it has a row
    stale: set[str] = field(default_factory=set)  # shards that did not answer its latest renewal
    fresh: list[Lease] = field(default_factory=list)  # leases received since its latest renewal was sent
    unshown: bytes | None = None  # a status that home has not taken yet
    unheard: dict[str, Sent] = field(default_factory=dict)  # shards that have not answered an earlier call
    late: dict[tuple[str, bool], Answer] = field(default_factory=dict)  # by token and kind: results that came late
    # by shard: the numbers of claims whose leases came late, and the call that handed them out
    handed_out: dict[str, dict[int, int]] = field(default_factory=dict)
    # the latest call: what it sent, its results by position, and the leases of all shards together
    call: int = 0
    sent: list[Sent] = field(default_factory=list)
    answers: list[Answer | None] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    recovered: list[Recovered] = field(default_factory=list)
    sweeps: Mapping[str, int] = field(default_factory=dict)  # by shard: its part of the call's sweep limit
    sealed: Seal | None = None
    filled: set[str] = field(default_factory=set)  # queues that had as many jobs as its latest claim asked for
    asked_at: dict[str, float] = field(default_factory=dict)  # by shard: when it was last asked for jobs
    turn_at: dict[str, float] = field(default_factory=dict)  # … because it was its turn
    short: set[str] = field(default_factory=set)  # shards that had fewer jobs than they were last asked for
    turns: float = 0.0  # how many shards have their turn to be asked, as of `turned_at`
    turned_at: float = 0.0

    def turn_to(self, call: int, number: int) -> None:
        """Begin a new call; what the last one left unanswered stays pending."""
        self.unheard.update({sent.shard: sent for sent in self.sent if sent.answer is None})
        for shard, calls in list(self.handed_out.items()):
            recent = {number: handed for number, handed in calls.items() if handed > call - CALLS_REMEMBERED}
            self.handed_out[shard] = recent
            if not recent:
                del self.handed_out[shard]
        self.call, self.sent, self.leases, self.recovered, self.sealed = call, [], [], [], None
        self.answers = [None] * number

    def asking(
        self, shard: str, queue: str, portion: Portion = NOTHING, request: ClaimRequest | None = None
    ) -> ClaimRequest:
        """Return this call's next request to that shard. The shard does its part of the sweep in the first round."""
        round = sum(sent.shard == shard for sent in self.sent)
        if portion.most:
            self.asked_at[shard] = time.monotonic()
        return ClaimRequest(
            worker=self.record.id,
            call=number_of(self.call, round),
            queues=(queue,),
            most=portion.most,
            most_by_task=portion.by_task,
            most_by_group=None if request is None else request.most_by_group,
            priorities=None if request is None else request.priorities,
            bytes_max=portion.bytes_max,
            sweep_max=0 if round else self.sweeps.get(shard, 0),
            chain_by_queue={queue: portion.chain} if portion.chained_max else {},
            chained_max=portion.chained_max,
        )

    def few(self, settling: Collection[str], shards: Sequence[str], most: int, asked: Collection[str]) -> list[str]:
        """Which of these shards to ask for so many jobs of a queue that has enough: a call costs as much as ten jobs.

        First those whose turn it is, then those that get outcomes in this call anyway, until each has PORTION_JOBS to
        lease. Of these stays whose turn came last, so that all have about as long. What a round leaves missing is asked
        of those `asked` before, as their outcomes will go together, then of others. A shard that had fewer jobs than it
        was asked for has only its turns. For fewer jobs than there are shards, all take turns.
        """
        if not asked and most <= len(shards):
            return list(shards)
        due, near = [] if asked else self._due(shards), asked or settling
        turn_at, asked_at = self.turn_at, self.asked_at
        full = [shard for shard in shards if shard not in due and shard not in self.short]
        full.sort(key=lambda one: (0, -turn_at.get(one, 0.0)) if one in near else (1, asked_at.get(one, 0.0)))
        wanted = -(-most // PORTION_JOBS) - sum(shard not in self.short for shard in due)
        return [*due, *full[: max(0, wanted)]]

    def _due(self, shards: Sequence[str]) -> list[str]:
        """The shards not asked for the longest time, so many that each has its turn within ASKED_WITHIN_SECONDS."""
        now, number = time.monotonic(), len(shards)
        self.turns = min(float(number), self.turns + number * (now - self.turned_at) / ASKED_WITHIN_SECONDS)
        self.turned_at = now
        late = sum(now - self.asked_at.get(shard, 0.0) >= ASKED_WITHIN_SECONDS for shard in shards)
        due = sorted(shards, key=lambda shard: self.asked_at.get(shard, 0.0))[: max(late, int(self.turns))]
        self.turns -= int(self.turns)
        self.turn_at.update(dict.fromkeys(due, now))
        return due

    @property
    def opens_in(self) -> float | None:
        """The minimum over all shards, each by its last reply in this call."""
        words = {sent.shard: sent.answer.opens_in for sent in self.sent if sent.answer is not None}
        return min((seconds for seconds in words.values() if seconds is not None), default=None)

    def may_ask(self, shard: str) -> bool:
        """Not while a reply is pending, and not without a bound in one call."""
        calls = [sent for sent in self.sent if sent.shard == shard]
        return shard not in self.unheard and len(calls) < ROUNDS_MAX and all(sent.answer is not None for sent in calls)

    def divided(
        self, shards: Shards, settlements: Sequence[Settlement], releases: Sequence[Release]
    ) -> dict[str, Sent]:
        """Divide settlements and releases by shard. Known results and foreign tokens are answered here."""
        batch: dict[str, Sent | None] = {}  # None: a shard that may not be called now
        items: list[Settlement | Release] = [*settlements, *releases]
        for place, item in enumerate(items):
            shard, token = parted(item.token)
            if self.late and (item.token, isinstance(item, Release)) in self.late:
                self.answers[place] = self.late.pop((item.token, isinstance(item, Release)))
                continue
            if shard not in batch:
                queue = shards.queue_of(shard)
                if queue is None:
                    self.answers[place] = Answer.LOST
                    continue
                batch[shard] = Sent(shard, self.asking(shard, queue)) if self.may_ask(shard) else None
            sent = batch[shard]
            if sent is not None:
                own = replace(item, token=token)
                if isinstance(own, Release):
                    sent.releases.append(own)
                else:
                    sent.settlements.append(own)
                sent.places.append(place)
        return {shard: sent for shard, sent in batch.items() if sent is not None}

    def write_off(self, seen_call: int) -> None:
        """The worker has the results of all calls up to that one. Leases that shards still owe for them are no longer
        handed out, so that a renewal may release them: else they would be leased until the worker's next call.
        """
        for sent in (*self.unheard.values(), *self.sent):
            if sent.answer is None and not sent.written_off and call_of(sent.request.call) <= seen_call:
                sent.written_off, sent.request = True, replace(sent.request, most=0, chained_max=0)

    def seen_at(self, shard: str, seen_call: int) -> int:
        """Return up to which number the worker knows a shard's leases, if it has the results up to `seen_call`.

        Leases that came late were handed out by a later call than the one that claimed them. A renewal that was built
        before that call returned does not name them, and must not release them.
        """
        if not self.call - CALLS_REMEMBERED < seen_call <= self.call:
            return 0
        later = (number for number, handed in self.handed_out.get(shard, {}).items() if handed > seen_call)
        return min((number - 1 for number in later), default=last_number_of(seen_call))

    def heard(self, sent: Sent, answer: Exchanged) -> None:
        """Record a shard's answer to a call, this one or an earlier one."""
        sent.answer, sent.error = answer, None
        if answer.known:
            self.joined.add(sent.shard)
        else:
            self.joined.discard(sent.shard)
        if sent.request.most:
            fewer = sum(not lease.chained for lease in answer.leases) < sent.request.most
            (self.short.add if fewer else self.short.discard)(sent.shard)
        leases = [] if sent.written_off else signed_leases(sent.shard, answer.leases)
        self.leases += leases
        self.fresh += leases
        self.recovered += answer.recovered
        self.sealed = answer.sealed or self.sealed
        if self.unheard.get(sent.shard) is sent:
            del self.unheard[sent.shard]
            if leases:
                self.handed_out.setdefault(sent.shard, {})[sent.request.call] = self.call
            self.late.update(zip(sent.tokens, answer.answers, strict=False))
        else:
            for place, word in zip(sent.places, answer.answers, strict=False):
                self.answers[place] = word


def signed_leases(shard: str, leases: Sequence[Lease]) -> list[Lease]:
    """Return leases as the router hands them out."""
    return [replace(lease, token=signed(shard, lease.token)) for lease in leases]
