"""One worker as this process knows it: where it has a row, what its latest call sent to which shard, and the results.

Kept by lease.py, one per worker. Pure bookkeeping, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ...errors import HoldfastError
from ...lifecycle import Settlement
from ...records import Answer, ClaimRequest, Exchanged, Lease, Recovered, Release, Seal, WorkerRecord
from .divide import NOTHING, Portion
from .places import ROUNDS_MAX, call_of, last_number_of, number_of, parted, signed
from .registry import Shards

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
        self, shard: str, queue: str, portion: Portion = NOTHING, most_by_group: int | None = None
    ) -> ClaimRequest:
        """Return this call's next request to that shard. The shard does its part of the sweep in the first round."""
        round = sum(sent.shard == shard for sent in self.sent)
        return ClaimRequest(
            worker=self.record.id,
            call=number_of(self.call, round),
            queues=(queue,),
            most=portion.most,
            most_by_task=portion.by_task,
            most_by_group=most_by_group,
            bytes_max=portion.bytes_max,
            sweep_max=0 if round else self.sweeps.get(shard, 0),
        )

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
                sent.written_off, sent.request = True, replace(sent.request, most=0)

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
