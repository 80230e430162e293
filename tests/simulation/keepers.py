"""A model of the keeper, and the journal of its handlers: what ran, and what the store was sent.

Called by the walk in in_flight.py. A keeper repeats an exchange until it is answered, renews beside it, marks jobs that
run at most once before they start, and stops handlers before their lease can pass to somebody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable
from random import Random
from typing import Any, TypeVar

from holdfast.backends.contract import Backend
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.lifecycle import Ending, Failure, Settlement
from holdfast.records import Answer, ClaimRequest, Held, Lease, NewJob, Recovered, Release, Renewal, WorkerRecord
from holdfast.worker.keeper.chains import in_order

from .flight import Message

LEASE_SECONDS = 30.0
MARGIN_SECONDS = 6.0
TRIES_MAX = 200
CHAIN_MAX = 4  # the longest chain that a keeper of chains asks for

T = TypeVar("T")


class Journal:
    """The truth, from the handlers' side and from what stores carried out."""

    def __init__(self) -> None:
        self.jobs: dict[str, NewJob] = {}  # in the order in which they were stored
        self.running: dict[str, str] = {}  # job → token of the handler that runs now
        self.begun: set[tuple[str, int]] = set()  # attempts that started
        self.settled: dict[str, Settlement] = {}  # by the store's own token: outcomes a store took
        self.stalls: Counter[str] = Counter()
        self.finished: set[str] = set()
        self.starts: Counter[str] = Counter()

    def start(self, lease: Lease, succeeded: Container[str] = ()) -> None:
        """A handler begins. `succeeded`: the jobs before it in its chain, whose outcomes the store may not have yet."""
        job = self.jobs[lease.id]
        assert lease.id not in self.running, f"{lease.id} runs twice at once"
        if job.max_stalls == 0:
            assert (lease.id, lease.attempt) not in self.begun, f"{lease.id} must run at most once and starts again"
        if job.group is not None:
            earlier = [one for one in self.jobs.values() if one.group == job.group]
            before = earlier[: earlier.index(job)]
            late = [one.id for one in before if one.id not in self.finished and one.id not in succeeded]
            assert not late, f"{lease.id} starts before {late} of its group"
            beside = [one.id for one in earlier if one.id in self.running]
            assert not beside, f"{lease.id} starts beside {beside} of its group"
        self.running[lease.id] = lease.token
        self.begun.add((lease.id, lease.attempt))
        self.starts[lease.id] += 1

    def stop(self, lease: Lease) -> None:
        if self.running.get(lease.id) == lease.token:
            del self.running[lease.id]

    def watch(self, message: Message) -> None:
        """Record what a store applied: each outcome counts once, however often it is sent."""
        settlements = message.arguments.get("settlements", ())
        answers = message.answer if message.verb == "settle" else getattr(message.answer, "answers", ())
        for settlement, answer in zip(settlements, answers, strict=False):
            if answer is Answer.OK:
                self.settled[settlement.token] = settlement
                if settlement.ending in (Ending.SUCCEEDED, Ending.STALLED):  # at most once: a stall was its last run
                    self.finished.add(settlement.id)
        if message.verb in ("exchange", "claim", "recover"):
            ends = message.answer if message.verb == "recover" else message.answer.recovered
            self.recovered(ends)

    def recovered(self, ends: list[Recovered]) -> None:
        for end in ends:
            self.stalls[end.id] += end.counted
            if end.state.finished:
                self.finished.add(end.id)

    def expected(self, job_id: str) -> tuple[int, int]:
        """attempts and failures of a job."""
        outcomes = [one for one in self.settled.values() if one.id == job_id]
        return len(outcomes) + self.stalls[job_id], sum(one.failed for one in outcomes)


class Keeper:
    """One worker. Its activities are tasks; the walk starts them and lets the messages fly."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        queues: tuple[str, ...],
        journal: Journal,
        dice: Random,
        *,
        chains: bool = False,
    ) -> None:
        self.name, self.backend, self.queues, self.journal, self.dice = name, backend, queues, journal, dice
        self.chains = chains
        self.rest: dict[str, list[Lease]] = {}  # by the token of the running job of a chain: what follows it
        self.succeeded: dict[str, set[str]] = {}  # by the same: the jobs before it in its chain
        self.call = self.seen_call = 0
        self.held: dict[str, Lease] = {}
        self.handlers: dict[str, Lease] = {}
        self.silent: dict[str, float] = {}
        self.done: list[Settlement] = []
        self.back: list[Release] = []
        self.sent = 0.0
        self.gone = False  # forgotten, fenced or ended: another worker takes its place
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.asking: dict[str, asyncio.Task[Any]] = {}

    # ------------------------------------------------------------------ activities

    def busy(self, what: str) -> bool:
        return what in self.tasks and not self.tasks[what].done()

    def do(self, what: str, now: Callable[[], float]) -> None:
        act: dict[str, Callable[[Callable[[], float]], Awaitable[None]]] = {
            "register": self.register,
            "exchange": self.exchange,
            "renew": self.renew,
        }
        self.tasks[what] = asyncio.ensure_future(act[what](now))

    async def _ask(self, what: str, call: Awaitable[T]) -> T:
        """A call the keeper may give up on: then its outcome is unknown."""
        task = asyncio.ensure_future(call)
        self.asking[what] = task
        try:
            return await task
        except asyncio.CancelledError:
            if self.gone:
                raise
            raise OutcomeUnknown(what) from None

    async def _until_answered(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        for _ in range(TRIES_MAX):
            try:
                return await self._ask(what, call())
            except HoldfastError:
                continue
        raise AssertionError(f"{what} of {self.name} was never answered")

    async def register(self, now: Callable[[], float]) -> None:
        record = WorkerRecord(id=self.name, lease_seconds=LEASE_SECONDS, queues=self.queues, slots=4)
        sent = now()

        async def call() -> None:
            nonlocal sent
            sent = now()
            await self.backend.register(record, now=now())

        await self._until_answered("register", call)
        self.sent = sent

    async def exchange(self, now: Callable[[], float]) -> None:
        self.call += 1
        most = self.dice.choice((0, 1, 2, 3))
        request = ClaimRequest(
            worker=self.name,
            call=self.call,
            queues=self.queues,
            most=most,
            chain_by_queue=dict.fromkeys(self.queues, CHAIN_MAX) if self.chains else {},
            chained_max=2 * CHAIN_MAX if self.chains else 0,
        )
        done, self.done = self.done, []
        back, self.back = self.back, []
        answer = await self._until_answered("exchange", lambda: self.backend.exchange(done, back, request, now=now()))
        for settlement, word in zip(done, answer.answers, strict=False):
            if word is Answer.UNHEARD and settlement.token in self.held:
                self.done.append(settlement)
            else:
                self.held.pop(settlement.token, None)
        for release in back:
            self.held.pop(release.token, None)
        if not answer.known:
            self.end()
            return
        self.seen_call = request.call
        number = sum(not lease.chained for lease in answer.leases)
        assert number <= most, f"{number} leases for {most} slots"
        for lease in answer.leases:
            assert lease.token not in self.held, f"{lease.id} is handed out twice"
            self.held[lease.token] = lease
        leases, strays = in_order(answer.leases)
        self.give_back(strays)
        head: Lease | None = None
        for lease in leases:
            if lease.chained and head is not None:
                assert head.max_stalls and lease.max_stalls, f"{lease.id} runs at most once and is in a chain"
                self.rest.setdefault(head.token, []).append(lease)
                continue
            head = lease
            if lease.max_stalls == 0:
                self.tasks[lease.token] = asyncio.ensure_future(self.begin(lease, now))
            else:
                self.start(lease)

    async def begin(self, lease: Lease, now: Callable[[], float]) -> None:
        held = [Held(lease.id, lease.token)]
        [word] = await self._until_answered(lease.token, lambda: self.backend.begin(held, now=now()))
        if word is Answer.OK and lease.token in self.held:
            self.start(lease)
        elif word is Answer.LOST:
            self.held.pop(lease.token, None)
        elif lease.token in self.held:
            self.back.append(Release(id=lease.id, token=lease.token))

    def start(self, lease: Lease) -> None:
        self.journal.start(lease, self.succeeded.get(lease.token, ()))
        self.handlers[lease.token] = lease

    def give_back(self, leases: Iterable[Lease]) -> None:
        self.back += [Release(id=lease.id, token=lease.token) for lease in leases]

    def cut(self, token: str) -> None:
        """What follows this job in its chain goes back, or what follows it and itself if it has not begun."""
        self.give_back(self.rest.pop(token, ()))
        for rest in self.rest.values():
            places = [place for place, lease in enumerate(rest) if lease.token == token]
            if places:
                self.give_back(rest[places[0] :])
                del rest[places[0] :]

    async def renew(self, now: Callable[[], float]) -> None:
        sent, named = now(), [Held(lease.id, lease.token) for lease in self.held.values()]
        call = self.backend.renew(self.name, named, seen_call=self.seen_call, now=now())
        if self.dice.random() < 0.3:  # put together, and sent a moment later
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        try:
            answer = await self._ask("renew", call)
        except HoldfastError:
            return
        if not answer.known:
            self.end()
            return
        self._heed(answer, named, sent)

    def _heed(self, answer: Renewal, named: list[Held], sent: float) -> None:
        quiet = [lease for lease in self.held.values() if lease.id in answer.unheard]
        self.silent = {lease.token: self.silent.get(lease.token, self.sent) for lease in quiet}
        self.sent = sent
        lost = [item.token for item in named if item.id in answer.lost]
        for lease in [self.handlers[token] for token in lost if token in self.handlers]:
            self.stop(lease)
            self.held.pop(lease.token, None)
        for token in lost:
            self.cut(token)

    # ------------------------------------------------------------------ handlers

    def finish(self, lease: Lease, how: str) -> None:
        """A handler returns, fails, or is asked to give its job back."""
        rest = self.rest.pop(lease.token, []) if how == "ok" else []
        before = self.succeeded.pop(lease.token, set())
        self.stop(lease)
        if how == "release":
            self.back.append(Release(id=lease.id, token=lease.token))
            return
        if rest:
            following = rest.pop(0)
            self.rest[following.token], self.succeeded[following.token] = rest, before | {lease.id}
            self.start(following)
        failed = how == "failed"
        ending = Ending.RETRY if failed else Ending.SUCCEEDED
        failure = Failure(reason="failed", type="ValueError", text="no") if failed else None
        self.done.append(
            Settlement(id=lease.id, token=lease.token, ending=ending, failed=failed, delay=0.0, failure=failure)
        )

    def stop(self, lease: Lease) -> None:
        self.cut(lease.token)
        self.handlers.pop(lease.token, None)
        self.journal.stop(lease)

    def fence(self, now: float) -> None:
        """Stop handlers whose lease may expire soon; all of them, if no renewal succeeded for too long."""
        patience = LEASE_SECONDS - MARGIN_SECONDS
        if now >= self.sent + patience and not self.busy("register"):
            self.end()
        for token, since in self.silent.items():
            if now >= since + patience:
                self.cut(token)
            if now >= since + patience and (token in self.handlers or self.busy(token)):
                lease = self.handlers.get(token)
                if lease is not None:
                    self.stop(lease)
                if lease is not None and lease.max_stalls == 0:
                    self.done.append(Settlement(id=lease.id, token=token, ending=Ending.STALLED, alone=True))
                else:
                    self.held.pop(token, None)  # what has ended is left to its settlement

    def end(self) -> None:
        """Handlers stop and nothing more is said; what was said may still fly."""
        self.gone = True
        for lease in list(self.handlers.values()):
            self.stop(lease)
        for task in (*self.tasks.values(), *self.asking.values()):
            if task is not asyncio.current_task():
                task.cancel()
