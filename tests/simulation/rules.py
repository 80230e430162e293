"""The rules of the model: who may be in play, who comes next, what the end of a lease or a job means.

Called by the model's verbs. Everything is recomputed by scanning all jobs; there is no index and no counter that could
be derived.
"""

from __future__ import annotations

from holdfast.errors import JobNotFound
from holdfast.lifecycle import State
from holdfast.records import STAGGER_TICKS, CronEntry, QueueRule, Revival

from .shapes import DAY, LIVE, TEN_MINUTES, ModelJob, ModelLetter, ModelWorker, Refused, Ticket, Turn

Place = tuple[int, float, int]  # within one step


class ModelRules:
    def __init__(self) -> None:
        self.jobs: dict[str, ModelJob] = {}
        self.letters: dict[tuple[str, ...], ModelLetter] = {}
        self.workers: dict[str, ModelWorker] = {}
        self.rules: dict[str, QueueRule] = {}
        self.overrides: dict[tuple[str, str], int] = {}
        self.entries: dict[str, CronEntry] = {}
        self.paused: set[tuple[str | None, str | None, str | None]] = set()
        self.step = 0
        self.made = 0
        self.now = 0.0  # of the question being asked

    # ------------------------------------------------------------------ looking

    def those(self, *states: State, **fields: object) -> list[ModelJob]:
        """Jobs in these states whose fields are as given, by seq."""
        return [
            job
            for job in self.jobs.values()
            if job.state in states
            and all(getattr(job.new if name in ("queue", "task") else job, name) == v for name, v in fields.items())
        ]

    def held_by(self, worker: str) -> list[ModelJob]:
        return [job for job in self.those(State.RUNNING) if job.ticket is not None and job.ticket.worker == worker]

    def holder(self, name: tuple[str, ...] | None) -> ModelJob | None:
        """Who holds that key now; a window that has passed holds nothing."""
        holding = [job for job in self.jobs.values() if job.holds_key and name is not None and job.key_name == name]
        return next((job for job in holding if not job.new.key_window or self.now < job.window_ends_at), None)

    def taken_from(self, job: ModelJob) -> bool:
        """Does another job hold its key?"""
        return self.holder(job.key_name) not in (None, job)

    def take_key(self, job: ModelJob) -> None:
        for other in self.jobs.values():
            if job.key_name is not None and other.key_name == job.key_name:
                other.holds_key = False
        job.holds_key = job.key_name is not None

    def strict(self, queue: str) -> bool:
        return queue not in self.rules or self.rules[queue].group_order == "strict"

    def stops(self, job: ModelJob) -> bool:
        """Does its death at the end of a lease stop its group?"""
        rule = self.rules.get(job.new.queue)
        return job.group is not None and self.strict(job.new.queue) and rule is not None and rule.on_dead == "stop"

    def limit(self, queue: str, group: str) -> int:
        if (queue, group, None) in self.paused:
            return 0
        if self.strict(queue):
            return 1
        return self.overrides.get((queue, group), self.rules[queue].group_limit)

    def group_names(self) -> list[tuple[str, str]]:
        return sorted({(job.new.queue, job.group) for job in self.jobs.values() if job.group is not None})

    def in_play(self, queue: str, group: str) -> list[ModelJob]:
        return [job for job in self.those(*LIVE, State.DEAD, queue=queue, group=group) if job.in_play]

    def lane(self, job: ModelJob) -> int:
        return 2 if (None, None, job.new.task) in self.paused else int(job.group is not None)

    def find(self, job_id: str) -> ModelJob:
        if job_id not in self.jobs:
            raise Refused(JobNotFound)
        return self.jobs[job_id]

    def owned(self, ticket: Ticket) -> ModelJob | None:
        job = self.jobs.get(ticket.job_id)
        return job if job is not None and job.ticket is ticket else None

    # ------------------------------------------------------------------ coming into play

    def ready(self, job: ModelJob, place: Place = (0, 0.0, 0)) -> None:
        job.turn = job.turn or self.new_turn(job, place)
        job.state = State.READY

    def new_turn(self, job: ModelJob, place: Place) -> Turn:
        """The k-th ready job of a group comes behind the heads of all groups, and behind those of its own."""
        group = [] if job.group is None else self.those(State.READY, queue=job.new.queue, group=job.group)
        turn: Turn = (int(self.now * 1_000_000) + len(group) * STAGGER_TICKS, self.step, *place)
        last = max((other.turn for other in group if other.turn is not None), default=())
        return (*last, 1) if last >= turn else turn

    def into_play(self, job: ModelJob, place: Place = (0, 0.0, 0)) -> None:
        if job.group is None:
            self.ready(job, place)
        else:
            job.state = State.WAITING

    def refill(self) -> int:
        made = 0
        for queue, group in self.group_names():
            while len(self.in_play(queue, group)) < self.limit(queue, group):
                waiting = self.those(State.WAITING, queue=queue, group=group)
                if not waiting:
                    break
                for job in self.those(State.SCHEDULED, queue=queue, group=group):
                    if job.due_at <= self.now and not job.held:
                        job.state = State.WAITING
                        waiting.append(job)
                self.ready(min(waiting, key=lambda job: (not job.held, -job.priority, job.seq)))
                made += 1
            while len(self.in_play(queue, group)) > self.limit(queue, group):
                members = self.those(State.READY, queue=queue, group=group)
                if not members:
                    break
                max(members, key=lambda job: (not job.held, -job.priority, job.seq)).state = State.WAITING
        return made

    # ------------------------------------------------------------------ ending

    def back(self, job: ModelJob, now: float, delay: float | None = None) -> None:
        """The lease ends, the job does not. A delay of None: claimable by its old turn."""
        job.ticket = None
        job.held = job.group is not None and self.strict(job.new.queue)
        if delay is None:
            self.into_play(job)
        else:
            job.state, job.due_at, job.turn = State.SCHEDULED, now + delay, None

    def free(self, job: ModelJob, now: float, delay: float = 0.0) -> None:
        if job.cancel_requested:
            self.finish(job, now, State.CANCELLED)
        else:
            self.back(job, now, delay if delay > 0 else None)

    def finish(self, job: ModelJob, now: float, state: State, retain: float = DAY) -> None:
        job.state, job.ticket, job.held = state, None, False
        job.finished_at, job.prune_at = now, max(now + max(retain, TEN_MINUTES), job.window_ends_at)
        job.holds_key = job.holds_key and bool(job.new.key_window)
        letter = self.letters.pop(job.logical, None)
        if letter is not None and letter.id != job.new.id:
            self.supersede(letter.id, now)

    def supersede(self, job_id: str, now: float) -> None:
        if self.jobs[job_id].state is State.DEAD:  # revived and live, it goes on without a letter
            self.let_go(self.jobs[job_id], now, "superseded")

    def let_go(self, job: ModelJob, now: float, reason: str) -> None:
        job.reason, job.prune_at = reason, max(now + TEN_MINUTES, job.window_ends_at)
        job.held = False

    def die(self, job: ModelJob, now: float, reason: str, *, leased: bool = False) -> None:
        job.state, job.ticket, job.held = State.DEAD, None, leased and self.stops(job)
        job.finished_at, job.prune_at, job.reason = now, None, reason
        job.holds_key = job.holds_key and bool(job.new.key_window)
        old = self.letters.get(job.logical)
        letter = ModelLetter(job.new.id, 1, now, now, reason, job.args, [])
        if old is not None:
            letter.count, letter.first_failed_at, letter.cycles = old.count + 1, old.first_failed_at, old.cycles
            letter.history = [*old.history, (old.id, old.failed_at, old.reason)][-10:]
            if old.id != job.new.id:
                self.supersede(old.id, now)
        revival = job.new.revival
        if revival is not None and letter.cycles < revival.cycles:
            letter.revive_at = now + self.cooldown(revival, letter.cycles)
        self.letters[job.logical] = letter

    def cooldown(self, revival: Revival, cycles: int) -> float:
        return min(revival.cap, revival.after * revival.factor**cycles)

    def again(self, job: ModelJob, now: float, place: Place = (0, 0.0, 0)) -> None:
        job.attempts = job.failures = job.stalls = job.shared_stalls = 0
        job.suspect = False
        job.due_at, job.expires_at = now, None
        job.finished_at = job.prune_at = job.reason = job.value = job.progress = job.turn = None
        job.begun = job.cancel_requested = False
        self.take_key(job)
        self.into_play(job, place)
