"""The random walk: one Hypothesis machine that chooses verbs and their arguments.

Called by the tests beside it, which say on which stores. Rules are few and each covers several verbs, so that the
common life of jobs is walked often and the rare knobs now and then.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec import structs

from holdfast.backends.contract import Backend
from holdfast.lifecycle import Ending, State
from holdfast.records import (
    Answer,
    ClaimRequest,
    CronEntry,
    Held,
    NewJob,
    Overlap,
    Override,
    Pause,
    QueueRule,
    Revival,
    Tick,
    WorkerRecord,
)

from .asking import Asking, as_releases, as_settlements, recovered
from .shapes import ModelEnding, ModelRelease, ModelSettlement, Ticket

LEASE_SECONDS = 30.0
QUEUES = ("a", "b")
GROUPS = ("g", "h")
WORKERS = ("w1", "w2")
ISOLATING = ("w2",)
TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "once": {"max_stalls": 0},
    "frail": {"max_stalls": 1},
    "poison": {"revival": Revival(after=50.0, factor=2.0, cap=1000.0, cycles=2)},
}
PAUSES = (
    *(Pause(queue=queue) for queue in QUEUES),
    *(Pause(queue=queue, group=group) for queue in QUEUES for group in GROUPS),
    *(Pause(task=task) for task in TASKS),
)
FITTING = {  # states in which a verb is worth trying most
    "bury": (State.WAITING, State.READY, State.SCHEDULED),
    "cancel": (State.RUNNING,),
    "retry": (State.SUCCEEDED, State.CANCELLED),
    "revive": (State.DEAD,),
    "run_now": (State.SCHEDULED,),
}
EVERYTHING = 1000  # more than a walk can enqueue
BOGUS = "no-such-token"
KEY_OPTIONS = ("key_scope", "key_until", "key_window")  # they mean nothing without a key

picks = st.integers(0, 25)  # which of several, newest first
workers = st.sampled_from(WORKERS)
delays = st.sampled_from((0.0, 5.0, 40.0))
new_jobs = st.fixed_dictionaries(
    {
        "task": st.sampled_from(sorted(TASKS)),
        "queue": st.sampled_from(("a", *QUEUES)),
        "group": st.sampled_from((None, "g", *GROUPS, None)),
        "key": st.sampled_from((None, None, "k")),
        "on_conflict": st.sampled_from(("keep", "replace", "debounce", "debounce", "raise")),
        "key_scope": st.sampled_from(("queue", "queue", "global")),
        "key_until": st.sampled_from(("finished", "finished", "started")),
        "key_window": st.sampled_from((None, None, 50.0)),
        "wait_max": st.sampled_from((None, 10.0)),
        "priority": st.sampled_from((0, 0, 7)),
        "delay": st.sampled_from((None, None, 20.0)),
        "expires": st.sampled_from((None, None, None, 45.0)),
        "on_expire": st.sampled_from(("bury", "drop")),
        "options": st.sampled_from((None, b'{"timeout":5}')),
        "repeat": st.sampled_from((False, False, False, False, True)),
    }
)
endings = st.fixed_dictionaries(
    {
        "which": st.sampled_from(("live", "live", "live", "live", "any")),
        "pick": picks,
        "how": st.sampled_from((*Ending, Ending.RETRY, Ending.BURIED, "release", "release")),
        "alone": st.booleans(),
        "delay": delays,
        "retain": st.sampled_from((0.0, 86400.0)),
    }
)


class Walk(Asking):
    """All verbs; subclasses name the stores."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.calls = dict.fromkeys(WORKERS, 0)
        self.last: dict[str, tuple[list[ModelEnding], ClaimRequest]] = {}

    @initialize(drawn=st.lists(new_jobs, min_size=3, max_size=6), relaxed=st.booleans())
    def begin_with_work(self, drawn: list[dict[str, Any]], relaxed: bool) -> None:
        if relaxed:
            self.declare(QueueRule(name="a", group_limit=2, group_order="relaxed"))
        self.declare(QueueRule(name="b", on_dead="stop"))
        self.enqueue(drawn)

    # ------------------------------------------------------------------ choosing

    def some_id(self, pick: int) -> str:
        return self.ids[-1 - pick % len(self.ids)] if self.ids else "no-such-job"

    def choose_ending(self, drawn: dict[str, Any], tickets: list[Ticket]) -> ModelEnding | None:
        chosen = tickets if drawn["which"] == "live" else self.tickets
        if not chosen:
            return None
        ticket, how = chosen[-1 - drawn["pick"] % len(chosen)], drawn["how"]
        if how == "release":
            return ModelRelease(ticket, drawn["delay"])
        failed, alone = how in (Ending.RETRY, Ending.BURIED), how is Ending.STALLED and drawn["alone"]
        return ModelSettlement(ticket, how, failed, drawn["delay"], drawn["retain"], b'"done"', alone)

    def choose_endings(self, drawn: list[dict[str, Any]], tickets: list[Ticket]) -> list[ModelEnding]:
        items = [item for item in (self.choose_ending(one, tickets) for one in drawn) if item is not None]
        return sorted(items, key=lambda item: isinstance(item, ModelRelease))  # settlements travel first

    # ------------------------------------------------------------------ producing

    @rule(drawn=st.lists(new_jobs, min_size=1, max_size=4))
    def enqueue(self, drawn: list[dict[str, Any]]) -> None:
        batch = self.new_batch(drawn)
        self.ask(lambda: self.model.enqueue(batch, self.now), lambda store, _: store.enqueue(batch, now=self.now))

    def new_batch(self, drawn: list[dict[str, Any]]) -> list[NewJob]:
        batch = []
        for fields in drawn:
            known = self.some_id(len(self.ids) // 2) if fields["repeat"] and self.ids else None
            job_id = known or f"job-{len(self.ids):04d}"
            if known is None:
                self.ids.append(job_id)
            left_out = ("repeat", *(KEY_OPTIONS if fields["key"] is None else ()))
            named = {name: value for name, value in fields.items() if name not in left_out}
            batch.append(NewJob(id=job_id, args=b'["%s"]' % job_id.encode(), **TASKS[fields["task"]], **named))
        return batch

    @rule(
        drawn=st.lists(new_jobs, max_size=2),
        queue=st.sampled_from(QUEUES),
        wrong=st.sampled_from(("", "", "", "", "", "version", "too early")),
        overlap=st.sampled_from(("allow", "skip", "cancel", "cancel")),
        pick=picks,
        removes=st.sampled_from((False, False, False, False, True)),
    )
    def tick(
        self, drawn: list[dict[str, Any]], queue: str, wrong: str, overlap: Overlap, pick: int, removes: bool
    ) -> None:
        """A cron entry of a queue is written with what it makes; of one priority, so that nothing is overtaken."""
        jobs = [structs.replace(new, queue=queue, priority=0) for new in self.new_batch(drawn)]
        entry = self.model.entries.get(
            queue, CronEntry(name=queue, call=b'{"task":"plain","queue":"%s"}' % queue.encode())
        )
        asked = Tick(
            name=queue,
            version=entry.version + (wrong == "version"),
            entry=None if removes else structs.replace(entry, fired=entry.fired + 1, last_at=self.now),
            entry_if_skipped=structs.replace(entry, skipped=entry.skipped + 1),
            jobs=tuple(jobs),
            not_before=self.now + (0.5 if wrong == "too early" else 0.0),
            overlap=overlap,
            previous=self.some_id(pick + len(jobs)),
        )
        self.ask(
            lambda: self.model.tick(asked, self.now),
            lambda store, _: store.tick(asked, now=self.now),
            still=lambda answer: not answer.done,
        )

    # ------------------------------------------------------------------ leasing

    def register(self, worker: str) -> None:
        isolates = worker in ISOLATING
        record = WorkerRecord(
            id=worker, host="host", pid=1, lease_seconds=LEASE_SECONDS, queues=QUEUES, slots=4, isolates=isolates
        )
        self.ask(
            lambda: self.model.register(worker, LEASE_SECONDS, isolates, self.now),
            lambda store, _: store.register(record, now=self.now),
        )

    def claim(self, worker: str, queues: tuple[str, ...], most: int, items: list[ModelEnding]) -> list[Ticket]:
        known = self.model.workers.get(worker)
        if known is None or self.now >= known.deadline + 20.0:  # sometimes it claims past its own deadline
            self.register(worker)
        self.calls[worker] += 1
        caps = {queues[0]: 1} if len(queues) > 1 and most % 2 else {}
        request = ClaimRequest(worker=worker, call=self.calls[worker], queues=queues, most=most, most_by_queue=caps)
        if len(self.stores) > 1 and not self.settled_by_rank(items, request):
            request = ClaimRequest(worker=worker, call=request.call, queues=queues, most=EVERYTHING)
        self.last[worker] = (items, request)
        return self.exchange_with(items, request)

    @rule(
        worker=workers,
        queues=st.sampled_from((QUEUES, QUEUES[::-1], ("a",))),
        most=st.sampled_from((3, 2, 5, 1)),
        drawn=st.lists(endings, max_size=2),
    )
    def exchange(self, worker: str, queues: tuple[str, ...], most: int, drawn: list[dict[str, Any]]) -> None:
        self.claim(worker, queues, most, self.choose_endings(drawn, self.live_tickets(worker)))

    @rule(worker=workers, most=st.integers(1, 3), drawn=st.lists(endings, min_size=1, max_size=3))
    def work(self, worker: str, most: int, drawn: list[dict[str, Any]]) -> None:
        """Claim and end what was claimed, one lease after the other."""
        tickets = self.claim(worker, QUEUES, most, [])
        for ticket, one in zip(tickets, drawn, strict=False):
            self.end(self.choose_endings([{**one, "which": "live"}], [ticket]))

    @rule(drawn=st.lists(endings, min_size=1, max_size=3))
    def settle_or_release(self, drawn: list[dict[str, Any]]) -> None:
        items = self.choose_endings(drawn, self.live_tickets())
        if items:
            self.end(items)

    @precondition(lambda self: self.last)
    @rule(worker=workers, ago=st.sampled_from((0, 0, 1, 2)))
    def repeat(self, worker: str, ago: int) -> None:
        """An answer was lost: the very same call once more, even if its worker is gone. Or an overtaken claim comes."""
        if worker not in self.last:
            return
        items, request = self.last[worker]
        known = self.model.workers.get(worker)
        if ago == 0:
            self.exchange_with(items, request)
        elif known is not None and 0 < request.call - ago < known.last_call:
            self.exchange_with([], ClaimRequest(worker=worker, call=request.call - ago, queues=QUEUES, most=3))

    @precondition(lambda self: self.live_tickets())
    @rule(pick=picks, begins=st.booleans(), progress=st.sampled_from((0.25, 0.75)))
    def begin_or_report(self, pick: int, begins: bool, progress: float) -> None:
        live = self.live_tickets()
        ticket = live[-1 - pick % len(live)]
        if begins:
            self.ask_about(ticket, self.model.begin, lambda store, held: store.begin([held], now=self.now))
        else:
            self.ask_about(
                ticket,
                lambda ticket: self.model.report(ticket, progress, f"line {progress}"),
                lambda store, held: self.report_to(store, held, progress),
            )

    @rule(
        worker=workers,
        name=st.sampled_from(("all", "all", "some", "none")),
        stranger=st.booleans(),
        seen=st.sampled_from((0, 0, 1)),
    )
    def renew(self, worker: str, name: str, stranger: bool, seen: int) -> None:
        """Name all, some or none of the worker's leases, perhaps with one that is stale or another's."""
        ours = self.live_tickets(worker)
        named = {"all": ours, "some": ours[::2], "none": []}[name]
        if stranger:
            taken = {ticket.job_id for ticket in named}
            named = [*named, *[x for x in self.tickets if x not in ours and x.job_id not in taken][-1:]]
        seen_call = max(0, self.calls[worker] - seen)
        self.ask(
            lambda: self.model.renew(worker, named, seen_call, self.now),
            lambda store, n: store.renew(
                worker, [Held(x.job_id, x.tokens[n]) for x in named], seen_call=seen_call, now=self.now
            ),
            shown=lambda answer: (answer.known, set(answer.lost), set(answer.cancelled), set(answer.released)),
            still=lambda wanted: not wanted[0],
        )

    @rule(pick=picks, verb=st.sampled_from(("begin", "report", "settle", "release")), how=st.sampled_from(Ending))
    def write_about_a_stale_lease(self, pick: int, verb: str, how: Ending) -> None:
        """A lease that ended, or never was: LOST, and the store is as before."""
        bogus = [Ticket(job_id, (BOGUS,) * len(self.stores)) for job_id in self.ids[-3:]]
        stale = [*bogus, *(ticket for ticket in self.tickets if self.model.owned(ticket) is None)]
        ticket = stale[-1 - pick % len(stale)]

        def call(store: Backend, n: int) -> Awaitable[list[Answer]]:
            held = Held(ticket.job_id, ticket.tokens[n])
            if verb == "begin":
                return store.begin([held], now=self.now)
            if verb == "report":
                return self.report_to(store, held, 0.5)
            if verb == "settle":
                settlement = ModelSettlement(ticket, how, how in (Ending.RETRY, Ending.BURIED), 5.0)
                return store.settle(as_settlements([settlement], n), now=self.now)
            return store.release(as_releases([ModelRelease(ticket)], n), now=self.now)

        self.ask(lambda: [Answer.LOST], call, still=lambda wanted: True)

    # ------------------------------------------------------------------ time and sweeps

    @rule(seconds=st.sampled_from((1.0, 6.0, 6.0, 25.0, 25.0, 31.0, 60.0, 700.0, 90_000.0)))
    def advance(self, seconds: float) -> None:
        self.now += seconds

    @rule(dead=st.lists(workers, max_size=1))
    def recover(self, dead: list[str]) -> None:
        self.ask(
            lambda: self.model.recover(dead, self.now),
            lambda store, _: store.recover(dead=dead, now=self.now),
            shown=recovered,
        )

    @rule(verb=st.sampled_from(("promote", "promote", "promote", "refill", "prune", "prune older")))
    def sweep(self, verb: str) -> None:
        if verb == "promote":
            self.ask(
                lambda: self.model.promote(self.now),
                lambda store, _: store.promote(now=self.now),
                shown=lambda answer: (answer.due, answer.expired, answer.revived),
            )
        elif verb == "refill":
            self.ask(self.model.refill, lambda store, _: store.refill(now=self.now), still=lambda wanted: True)
        else:
            older_than = None if verb == "prune" else 1000.0
            self.ask(
                lambda: self.model.prune(older_than, self.now),
                lambda store, _: store.prune(older_than=older_than, now=self.now),
            )

    # ------------------------------------------------------------------ operating

    @rule(pick=picks, fitting=st.sampled_from((True, True, True, False)), verb=st.sampled_from(sorted(FITTING)))
    def operate(self, pick: int, fitting: bool, verb: str) -> None:
        among = [job.new.id for job in self.model.those(*FITTING[verb])] if fitting else []
        job_id = among[-1 - pick % len(among)] if among else self.some_id(pick)
        more = ("on purpose",) if verb == "bury" else ()
        self.ask(
            lambda: getattr(self.model, verb)(job_id, self.now),
            lambda store, _: getattr(store, verb)(job_id, *more, now=self.now),
            shown=lambda record: record.state,
        )

    @precondition(lambda self: self.model.letters)
    @rule(pick=picks, verb=st.sampled_from(("revive", "revive", "revive", "retry", "discard")))
    def open_letter(self, pick: int, verb: str) -> None:
        letters = sorted(letter.id for letter in self.model.letters.values())
        job_id = letters[pick % len(letters)]
        self.ask(
            lambda: getattr(self.model, verb)(job_id, self.now),
            lambda store, _: getattr(store, verb)(job_id, now=self.now),
            shown=lambda answer: answer.failure_count if verb == "discard" else answer.state,
        )

    @rule(
        knob=st.sampled_from(("pause", "resume", "resume", "limit", "declare", "declare", "retire")),
        pick=picks,
        queue=st.sampled_from(QUEUES),
        limit=st.sampled_from((1, 2, 3, 0, None)),
    )
    def turn_a_knob(self, knob: str, pick: int, queue: str, limit: int | None) -> None:
        if knob == "declare":
            order = "relaxed" if limit else "strict"
            on_dead = "stop" if limit is None else "go_on"
            self.declare(
                QueueRule(name=queue, group_limit=limit or 1, group_order=order, on_dead=on_dead)  # type: ignore[arg-type]
            )
        elif knob == "limit":
            group = GROUPS[pick % len(GROUPS)]
            self.ask(
                lambda: self.model.limit_group(queue, group, limit),
                lambda store, _: store.limit(Override(queue=queue, group=group, limit=limit), now=self.now),
            )
        elif knob == "retire":
            worker = WORKERS[pick % len(WORKERS)]
            self.ask(lambda: self.model.retire(worker, self.now), lambda store, _: store.retire(worker, now=self.now))
        elif knob == "pause":
            pause = PAUSES[pick % len(PAUSES)]
            self.ask(lambda: self.model.pause(pause), lambda store, _: store.pause(pause, now=self.now))
        else:
            active = [pause for pause in PAUSES if (pause.queue, pause.group, pause.task) in self.model.paused]
            pause, skip = (active or PAUSES)[pick % len(active or PAUSES)], limit is None
            self.ask(
                lambda: self.model.resume(pause, skip),
                lambda store, _: store.resume(pause, now=self.now, skip_dead=skip),
            )

    def declare(self, told: QueueRule) -> None:
        self.ask(lambda: self.model.declare(told), lambda store, _: store.declare([told], now=self.now))
