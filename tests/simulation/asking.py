"""Makes one call to the model and to every store, and compares everything afterwards.

Called by the random walk, which chooses the questions. Time is virtual: every call carries `now`, nothing sleeps.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine

from holdfast.backends.contract import Backend
from holdfast.errors import HoldfastError
from holdfast.lifecycle import Ending, Failure, Settlement, State
from holdfast.records import Answer, ClaimRequest, Exchanged, Held, Lease, Recovered, Release, Report

from . import pictures
from .model import Model
from .shapes import ModelEnding, ModelExchange, ModelJob, ModelRelease, ModelSettlement, Refused, Ticket

START = 2_000_000_000.0  # ahead of any real clock: a store that reads its own although given `now` is found out

Maker = Callable[[Path], Backend]


class Asking(RuleBasedStateMachine):
    """A model and the stores a subclass names, each in a folder of its own, at the same virtual time."""

    makers: ClassVar[Sequence[Maker]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-walk-"))
        self.stores = [make(self.folder / f"store-{n}") for n, make in enumerate(self.makers)]
        for store in self.stores:
            self.loop.run_until_complete(store.open())
        self.model = Model()
        self.now = START
        self.tickets: list[Ticket] = []
        self.tokens: list[set[str]] = [set() for _ in self.stores]
        self.top_fence = [0 for _ in self.stores]
        self.raw: list[pictures.Tables] = []
        self.look()

    def teardown(self) -> None:
        for store in self.stores:
            self.loop.run_until_complete(store.close())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------ looking

    def dump(self, store: Backend) -> pictures.Tables:
        return pictures.plain(self.loop.run_until_complete(store.dump()))

    def unchanged(self, number: int, what: str) -> None:
        assert self.dump(self.stores[number]) == self.raw[number], f"{self.stores[number].scheme}: {what} left traces"

    def look(self) -> None:
        """After every question: invariants, everything as the model says, and all stores alike."""
        self.raw = [self.dump(store) for store in self.stores]
        jobs, rest = pictures.jobs_of_model(self.model), pictures.rest_of_model(self.model)
        limits = {name: self.model.limit(*name) for name in self.model.group_names()}
        for store, tables in zip(self.stores, self.raw, strict=True):
            pictures.check_invariants(tables)
            pictures.check_groups(tables, limits)
            pictures.same(pictures.jobs_of_store(tables), jobs, f"jobs in {store.scheme}")
            pictures.same(pictures.rest_of_store(tables), rest, f"the rest of {store.scheme}")
            pictures.check_order(tables, self.model)
        if len(self.stores) > 1:
            first, *others = [pictures.comparable(tables) for tables in self.raw]
            for other in others:
                for part, wanted in first.items():
                    pictures.same(other[part], wanted, f"{part} of two stores")

    def live_tickets(self, worker: str | None = None) -> list[Ticket]:
        tickets = (job.ticket for job in self.model.those(State.RUNNING))
        return [ticket for ticket in tickets if ticket is not None and worker in (None, ticket.worker)]

    # ------------------------------------------------------------------ any verb

    def ask(
        self,
        expect: Callable[[], Any],
        call: Callable[[Backend, int], Awaitable[Any]],
        shown: Callable[[Any], Any] = lambda answer: answer,
        still: Callable[[Any], bool] = lambda wanted: False,
    ) -> None:
        """Put one question to the model and to every store. What is refused, or `still`, must change nothing."""
        self.model.step += 1
        self.model.now = self.now
        refused = False
        try:
            wanted = expect()
        except Refused as refusal:
            wanted, refused = refusal.kind, True
        for number, store in enumerate(self.stores):
            seen: Any
            try:
                seen = shown(self.loop.run_until_complete(call(store, number)))
            except HoldfastError as error:
                seen = type(error)
            assert seen == wanted, f"{store.scheme} answered {seen!r}, not {wanted!r}"
            if refused or still(wanted):
                self.unchanged(number, f"a call answered by {wanted!r}")
        self.look()

    def ask_about(
        self,
        ticket: Ticket,
        expect: Callable[[Ticket], Answer],
        call: Callable[[Backend, Held], Awaitable[list[Answer]]],
    ) -> None:
        """A verb about one lease: where the answer is not OK, the store must be as before."""
        self.ask(
            lambda: [expect(ticket)],
            lambda store, n: call(store, Held(ticket.job_id, ticket.tokens[n])),
            still=lambda answers: Answer.OK not in answers,
        )

    def report_to(self, store: Backend, held: Held, progress: float) -> Awaitable[list[Answer]]:
        report = Report(id=held.id, token=held.token, progress=progress, lines=(f"line {progress}",))
        return store.report([report], now=self.now)

    def end(self, items: Sequence[ModelEnding]) -> None:
        """settle what is a settlement, release the rest: alone by their own verbs, together by exchange."""

        def call(store: Backend, n: int) -> Awaitable[Any]:
            settlements, releases = as_settlements(items, n), as_releases(items, n)
            if not releases:
                return store.settle(settlements, now=self.now)
            if not settlements:
                return store.release(releases, now=self.now)
            return store.exchange(settlements, releases, None, now=self.now)

        self.ask(
            lambda: self.model.end(items, self.now),
            call,
            shown=lambda answer: answer.answers if isinstance(answer, Exchanged) else tuple(answer),
            still=lambda answers: Answer.OK not in answers,
        )

    # ------------------------------------------------------------------ exchange

    def exchange_with(self, items: Sequence[ModelEnding], request: ClaimRequest) -> list[Ticket]:
        """Settle, release and claim; returns the tickets of new leases."""
        self.model.step += 1
        self.model.now = self.now
        wanted = self.model.exchange(items, request, self.now)
        answers = []
        for number, store in enumerate(self.stores):
            settlements, releases = as_settlements(items, number), as_releases(items, number)
            call = (
                store.exchange(settlements, releases, request, now=self.now)
                if items
                else store.claim(request, self.now)
            )
            answer = self.loop.run_until_complete(call)
            answers.append(answer)
            assert answer.known == wanted.known, f"{store.scheme}: known={answer.known}"
            assert answer.answers == wanted.answers, f"{store.scheme} answered {answer.answers}, not {wanted.answers}"
            assert recovered(answer.recovered) == wanted.recovered, f"{store.scheme} recovered {answer.recovered}"
            if wanted.shares is None:
                self.check_leases_still_ours(number, wanted, answer)
        tickets = [] if wanted.shares is None else self.hand_out(wanted.shares, request, answers)
        self.look()
        return tickets

    def settled_by_rank(self, items: Sequence[ModelEnding], request: ClaimRequest) -> bool:
        """Does the rank of jobs alone decide what this claim leases? Where not, two stores may choose differently."""
        model, ending = copy.deepcopy((self.model, items))
        model.step += 1
        for share in model.exchange(ending, request, self.now).shares or ():
            if share:
                last = share[-1]
                lane = [
                    job for job in model.those(State.READY, queue=last.new.queue) if model.lane(job) == model.lane(last)
                ]
                if any(job not in share and model.rank(job) == model.rank(last) for job in lane):
                    return False
        return True

    def check_leases_still_ours(self, number: int, wanted: ModelExchange, answer: Exchanged) -> None:
        """Nothing was claimed anew: a repeat returns the leases it gave, as far as they are still ours."""
        held = sorted((job.new.id, job.ticket.tokens[number]) for job in wanted.again if job.ticket is not None)
        seen = sorted((lease.id, lease.token) for lease in answer.leases)
        assert seen == held, f"{self.stores[number].scheme} answered the leases {seen}, not {held}"
        if wanted.still:
            self.unchanged(number, "a repeated or unknown call")

    def hand_out(
        self, shares: list[list[ModelJob]], request: ClaimRequest, answers: Sequence[Exchanged]
    ) -> list[Ticket]:
        """Check that what was leased is what the lanes owed, and make a ticket of each lease.

        Jobs that came into play in the same step may be leased in any order; everything else is fixed.
        """
        model, leased = self.model, [lease.id for lease in answers[0].leases]
        for answer in answers[1:]:
            assert sorted(lease.id for lease in answer.leases) == sorted(leased), "two stores leased different jobs"
        owed = sorted((job.new.queue, model.lane(job), model.rank(job)) for share in shares for job in share)
        jobs = [model.jobs[job_id] for job_id in leased]
        assert all(job.state is State.READY for job in jobs), f"leased {leased}, which were not all ready"
        got = sorted((job.new.queue, model.lane(job), model.rank(job)) for job in jobs)
        assert got == owed, f"leased {leased}: {got}, not {owed}"
        for number, answer in enumerate(answers):
            for lease in answer.leases:
                self.check_lease(number, model.jobs[lease.id], lease)
        tokens = [{lease.id: lease.token for lease in answer.leases} for answer in answers]
        tickets = [Ticket(x, tuple(by_id[x] for by_id in tokens), request.worker, request.call) for x in leased]
        for ticket in tickets:
            model.lease(ticket, self.now)
        self.tickets += tickets
        return tickets

    def check_lease(self, number: int, job: ModelJob, lease: Lease) -> None:
        """Tokens never come again; fences grow, over all leases of a store and so per job and per group."""
        assert lease.token not in self.tokens[number], f"token {lease.token} was issued twice"
        assert lease.fence > self.top_fence[number], f"fence {lease.fence} does not grow"
        self.tokens[number].add(lease.token)
        self.top_fence[number] = lease.fence
        seen = (lease.attempt, lease.failures, lease.stalls, lease.args, lease.options, lease.started_at)
        assert seen == (job.attempts + 1, job.failures, job.stalls, job.args, job.new.options, self.now)
        assert (lease.suspect, lease.shared_stalls) == (job.suspect, job.shared_stalls)


def recovered(answer: Sequence[Recovered]) -> dict[str, tuple[State, int, int, bool]]:
    return {one.id: (one.state, one.stalls, one.shared_stalls, one.counted) for one in answer}


def _failure(item: ModelSettlement) -> Failure | None:
    if item.ending is Ending.STALLED:
        return Failure(reason="crash", text="killed")
    return Failure(reason="failed", type="ValueError", text="no") if item.failed else None


def as_settlements(items: Sequence[ModelEnding], n: int) -> list[Settlement]:
    return [
        Settlement(
            id=item.ticket.job_id,
            token=item.ticket.tokens[n],
            ending=item.ending,
            failed=item.failed,
            delay=item.delay,
            retain=item.retain,
            value=item.value if item.ending is Ending.SUCCEEDED else None,
            failure=_failure(item),
            reason="failed" if item.ending is Ending.BURIED else None,
            alone=item.alone,
        )
        for item in items
        if isinstance(item, ModelSettlement)
    ]


def as_releases(items: Sequence[ModelEnding], n: int) -> list[Release]:
    return [
        Release(id=item.ticket.job_id, token=item.ticket.tokens[n], delay=item.delay)
        for item in items
        if isinstance(item, ModelRelease)
    ]
