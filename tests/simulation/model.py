"""An obviously correct model of the observable behaviour: a plain dict of jobs, one short method per verb.

Called by the random walk, which asks model and store the same questions. It knows no tokens (a lease is a Ticket), is
nobody's fast path and shares no code with any store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from holdfast.errors import ConfigurationError, DuplicateJob, JobNotFound, StateConflict
from holdfast.lifecycle import Ending, State
from holdfast.records import Answer, ClaimRequest, Enqueued, NewJob, Pause, QueueRule, Tick, Ticked

from .rules import ModelRules
from .shapes import (
    DAY,
    LIVE,
    TEN_MINUTES,
    UNSTARTED,
    ModelEnding,
    ModelExchange,
    ModelJob,
    ModelRelease,
    ModelSettlement,
    ModelWorker,
    Refused,
    Ticket,
    Turn,
    key_name,
)


class Model(ModelRules):
    # ------------------------------------------------------------------ verbs: producing

    def enqueue(self, batch: Sequence[NewJob], now: float) -> list[Enqueued]:
        self.refuse_duplicates(batch)
        answers: list[Enqueued] = []
        replaced: list[tuple[ModelJob, NewJob, int]] = []
        for place, new in enumerate(batch):
            holder = self.holder(key_name(new))
            if new.id in self.jobs:
                answers.append(Enqueued(new.id, False))
            elif holder is None:
                self.made += 1
                job = ModelJob(new, self.made, new.args, new.priority, new.group, now, None, now)
                job.due_max = None if new.wait_max is None else now + new.wait_max
                self.jobs[new.id] = job
                self.take_key(job)
                self.call_anew(job, new, now, place)
                answers.append(Enqueued(new.id, True))
            elif new.on_conflict in ("replace", "debounce") and holder.state in UNSTARTED:
                replaced.append((holder, new, place))
                holder.new = structs.replace(holder.new, key_window=new.key_window)  # for those behind it, too
                answers.append(Enqueued(holder.new.id, False, True))
            else:
                answers.append(Enqueued(holder.new.id, False))
        for holder, new, place in replaced:
            self.call_anew(holder, new, now, place, held_to=holder.due_max if new.on_conflict == "debounce" else None)
        self.refill()
        if len(batch) == 1 and answers[0].created:
            return [Enqueued(batch[0].id, True, waits=self.jobs[batch[0].id].state is State.WAITING)]
        return answers

    def refuse_duplicates(self, batch: Sequence[NewJob]) -> None:
        """Nothing of a batch is stored if one of it may not share its key, with a job or with one before it."""
        taken: set[tuple[str, ...] | None] = {None}
        ids = set(self.jobs)
        for new in batch:
            name = key_name(new)
            conflict = self.holder(name) is not None or (name is not None and name in taken)
            if new.id in ids:
                continue
            if conflict and new.on_conflict == "raise":
                raise Refused(DuplicateJob)
            if not conflict:
                ids.add(new.id)
                taken.add(name)

    def call_anew(self, job: ModelJob, new: NewJob, now: float, place: int, held_to: float | None = None) -> None:
        job.new = structs.replace(new, id=job.new.id, queue=job.new.queue, max_stalls=max(new.max_stalls, job.stalls))
        job.held = job.held and job.group == new.group
        stays = (job.group, job.priority) == (new.group, new.priority)
        job.args, job.priority, job.group = new.args, new.priority, new.group
        job.due_at = new.due_at if new.due_at is not None else now + (new.delay or 0.0)
        job.due_at = job.due_at if held_to is None else min(job.due_at, max(held_to, now))
        job.expires_at = None if new.expires is None else job.due_at + new.expires
        job.turn = job.turn if stays and job.due_at <= now else None
        if job.due_at > now:
            job.state = State.SCHEDULED
        else:
            self.into_play(job, (0, 0.0, place))

    def tick(self, tick: Tick, now: float) -> Ticked:
        there = self.entries.get(tick.name)
        early = tick.not_before is not None and now < tick.not_before
        if early or tick.version != (0 if there is None else there.version):
            return Ticked(done=False, entry=there)
        previous = self.jobs.get(tick.previous or "")
        live = previous is not None and previous.state in LIVE
        skipped = live and tick.overlap == "skip"
        answers: list[Enqueued] = []
        if not skipped:
            if previous is not None and live and tick.overlap == "cancel":
                self.cancel(previous.new.id, now)
            keeping = [
                structs.replace(new, on_conflict="keep") if new.on_conflict == "raise" else new for new in tick.jobs
            ]
            answers = [structs.replace(one, waits=False) for one in self.enqueue(keeping, now)]  # only enqueue tells
        entry = tick.entry_if_skipped if skipped else tick.entry
        self.entries.pop(tick.name, None)
        if entry is not None:
            entry = self.entries[tick.name] = structs.replace(entry, version=tick.version + 1)
        return Ticked(done=True, entry=entry, enqueued=tuple(answers), skipped=skipped)

    def declare(self, rule: QueueRule) -> None:
        self.rules[rule.name] = rule
        self.refill()

    # ------------------------------------------------------------------ verbs: leasing

    def register(self, worker: str, lease_seconds: float, isolates: bool, now: float) -> None:
        known = self.workers.setdefault(worker, ModelWorker(lease_seconds, 0.0, isolates))
        known.deadline = now + known.lease_seconds

    def begin(self, ticket: Ticket) -> Answer:
        job = self.owned(ticket)
        if job is None:
            return Answer.LOST
        if job.cancel_requested:
            return Answer.CANCELLED
        job.begun = True
        return Answer.OK

    def report(self, ticket: Ticket, progress: float, line: str) -> Answer:
        job = self.owned(ticket)
        if job is None:
            return Answer.LOST
        job.progress = progress
        job.logs.append(line)
        return Answer.OK

    def settle(self, item: ModelSettlement, now: float) -> Answer:
        job = self.owned(item.ticket)
        if job is None:
            return Answer.LOST
        if item.ending is Ending.STALLED:
            self.stall(job, now, "crash", item.alone, item.retain)
            return Answer.OK
        if job.cancel_requested and item.ending is not Ending.CANCELLED:
            return Answer.CANCELLED
        job.attempts += 1
        job.suspect = False
        if item.ending in (Ending.RETRY, Ending.SNOOZED):
            job.expires_at = None
        if item.failed:
            job.failures += 1
            job.errors = [*job.errors, ("failed", job.attempts)][-10:]
        if item.ending is Ending.SUCCEEDED:
            job.value = item.value
            self.finish(job, now, State.SUCCEEDED, item.retain)
        elif item.ending is Ending.CANCELLED:
            self.finish(job, now, State.CANCELLED, item.retain)
        elif item.ending is Ending.BURIED:
            self.die(job, now, "failed", leased=True)
        else:
            self.back(job, now, item.delay)
        return Answer.OK

    def release(self, item: ModelRelease, now: float) -> Answer:
        job = self.owned(item.ticket)
        if job is None:
            return Answer.LOST
        self.free(job, now, item.delay)
        return Answer.OK

    def end(self, items: Sequence[ModelEnding], now: float) -> tuple[Answer, ...]:
        """settle or release each, then refill."""
        answers = tuple(
            self.settle(item, now) if isinstance(item, ModelSettlement) else self.release(item, now) for item in items
        )
        self.refill()
        return answers

    def exchange(self, items: Sequence[ModelEnding], request: ClaimRequest, now: float) -> ModelExchange:
        worker = self.workers.get(request.worker)
        if worker is not None and request.call == worker.last_call:
            again = [job for job in self.held_by(request.worker) if job.ticket and job.ticket.call == request.call]
            return ModelExchange(worker.answers, again=again, still=True)
        answers = self.end(items, now)
        if worker is None or request.call < worker.last_call:
            return ModelExchange(answers, known=worker is not None, still=Answer.OK not in answers)
        recovered = self.recover((), now)
        if request.worker not in self.workers:
            return ModelExchange(answers, known=False, recovered=recovered)
        self.promote(now)
        worker.last_call, worker.answers = request.call, answers
        return ModelExchange(answers, recovered=recovered, shares=self.shares(request))

    def renew(
        self, worker: str, tickets: Sequence[Ticket], seen_call: int, now: float
    ) -> tuple[bool, set[str], set[str], set[str]]:
        """known, lost, cancelled, released."""
        if worker not in self.workers:
            return False, {ticket.job_id for ticket in tickets}, set(), set()
        self.workers[worker].deadline = now + self.workers[worker].lease_seconds
        held = self.held_by(worker)
        named = [job for job in held if job.ticket in tickets]
        lost = {ticket.job_id for ticket in tickets if self.owned(ticket) not in named}
        unnamed = [job for job in held if job not in named and job.ticket is not None and job.ticket.call <= seen_call]
        for job in unnamed:
            self.free(job, now)
        self.refill()
        cancelled = {job.new.id for job in named if job.cancel_requested}
        return True, lost, cancelled, {job.new.id for job in unnamed}

    def retire(self, worker: str, now: float) -> int:
        held = self.held_by(worker)
        for job in held:
            self.free(job, now)
        self.workers.pop(worker, None)
        self.refill()
        return len(held)

    def recover(self, dead: Iterable[str], now: float) -> dict[str, tuple[State, int, int, bool]]:
        """By job: where it went, its stalls alone and among others, whether that counted."""
        gone = [name for name, worker in self.workers.items() if name in dead or now >= worker.deadline]
        ended = [(job, self.lose(job, now, self.workers[name])) for name in gone for job in self.held_by(name)]
        for name in gone:
            del self.workers[name]
        self.refill()
        return {job.new.id: (job.state, job.stalls, job.shared_stalls, counted) for job, counted in ended}

    def lose(self, job: ModelJob, now: float, worker: ModelWorker) -> bool:
        if job.new.max_stalls == 0 and not job.begun:
            self.free(job, now)
            return False
        self.stall(job, now, "stalled", alone=job.suspect if worker.isolates else True)
        return True

    def stall(self, job: ModelJob, now: float, reason: str, alone: bool, retain: float = DAY) -> None:
        job.attempts += 1
        job.errors = [*job.errors, (reason, job.attempts)][-10:]
        job.suspect = True
        if alone:
            job.stalls += 1
        else:
            job.shared_stalls += 1
        if job.cancel_requested:
            self.finish(job, now, State.CANCELLED, retain)
        elif job.new.max_stalls == 0 or job.stalls > job.new.max_stalls or job.shared_stalls > 10:
            self.die(job, now, reason, leased=True)
        else:
            job.expires_at = None
            self.back(job, now)

    def shares(self, request: ClaimRequest) -> list[list[ModelJob]]:
        """What a claim may lease, as lists: per queue and lane, in order, cut to the lane's share."""
        taken: list[list[ModelJob]] = []
        left = request.most
        for queue in request.queues:
            room = min(left, request.most_by_queue.get(queue, left))
            if (queue, None, None) in self.paused or room <= 0:
                continue
            lanes = [[job for job in self.those(State.READY, queue=queue) if self.lane(job) == n] for n in (0, 1)]
            for lane in lanes:
                lane.sort(key=self.rank)
            first, second = lanes[request.call % 2], lanes[1 - request.call % 2]
            of_second = min(len(second), max(room // 2, room - len(first)))
            of_first = min(len(first), room - of_second)
            taken += [first[:of_first], second[:of_second]]
            left -= of_first + of_second
        return taken

    def rank(self, job: ModelJob) -> tuple[int, Turn]:
        assert job.turn is not None
        return (-job.priority, job.turn)

    def lease(self, ticket: Ticket, now: float) -> None:
        job = self.jobs[ticket.job_id]
        job.state, job.ticket, job.started_at, job.begun = State.RUNNING, ticket, now, False
        if job.new.key_until == "started" and not job.new.key_window:
            job.holds_key = False

    # ------------------------------------------------------------------ verbs: sweeping

    def promote(self, now: float) -> tuple[int, int, int]:
        """due, expired, revived."""
        expired = [job for job in self.those(*UNSTARTED) if job.expires_at is not None and job.expires_at <= now]
        for job in sorted(expired, key=lambda job: job.expires_at or 0.0):
            self.expire(job, now)
        due = [job for job in self.those(State.SCHEDULED) if job.due_at <= now]
        for job in due:
            self.into_play(job, (1, job.due_at, job.seq))
        late = [x for x in self.letters.values() if x.revive_at is not None and x.revive_at <= now]
        revived = 0
        for letter in sorted(late, key=lambda letter: letter.revive_at or 0.0):
            if not self.taken_from(self.jobs[letter.id]):
                self.again(self.jobs[letter.id], now, (2, letter.revive_at or 0.0, 0))
                letter.revived_at, letter.cycles = now, letter.cycles + 1
                revived += 1
            letter.revive_at = None
        self.refill()
        return len(due), len(expired), revived

    def prune(self, older_than: float | None, now: float) -> int:
        past = [
            job
            for job in self.jobs.values()
            if job.prune_at is not None
            and job.finished_at is not None
            and (job.prune_at <= now if older_than is None else job.finished_at <= now - max(older_than, TEN_MINUTES))
            and job.window_ends_at <= now
        ]
        for job in past:
            del self.jobs[job.new.id]
        return len(past)

    # ------------------------------------------------------------------ verbs: operating

    def bury_unstarted(self, job: ModelJob, now: float, reason: str) -> None:
        job.errors = [*job.errors, (reason, job.attempts)][-10:]
        self.die(job, now, reason)

    def expire(self, job: ModelJob, now: float) -> None:
        if job.new.on_expire == "drop":
            self.finish(job, now, State.CANCELLED)
            job.reason = "expired"
        else:
            self.bury_unstarted(job, now, "expired")

    def cancel(self, job_id: str, now: float) -> State:
        job = self.find(job_id)
        if job.state in (State.SUCCEEDED, State.DEAD):
            raise Refused(StateConflict)
        if job.state is State.RUNNING:
            job.cancel_requested = True
        elif job.state in UNSTARTED:
            self.finish(job, now, State.CANCELLED)
        self.refill()
        return job.state

    def bury(self, job_id: str, now: float) -> State:
        job = self.find(job_id)
        if job.state not in UNSTARTED:
            raise Refused(StateConflict)
        self.bury_unstarted(job, now, "bury")
        self.refill()
        return job.state

    def run_now(self, job_id: str, now: float) -> State:
        job = self.find(job_id)
        if job.state is not State.SCHEDULED:
            raise Refused(StateConflict)
        job.due_at = now
        self.into_play(job)
        self.refill()
        return job.state

    def revive(self, job_id: str, now: float) -> State:
        job = self.find(job_id)
        letter = self.letters.get(job.logical)
        if job.state in LIVE and letter is not None and letter.id == job_id:
            return job.state
        if job.state is not State.DEAD or self.taken_from(job):
            raise Refused(StateConflict)
        if letter is not None and letter.id != job_id:
            raise Refused(StateConflict)
        if letter is not None:
            letter.revived_at, letter.revive_at = now, None
        self.again(job, now)
        self.refill()
        return job.state

    def retry(self, job_id: str, now: float) -> State:
        job = self.find(job_id)
        if job.state is State.DEAD:
            return self.revive(job_id, now)
        if job.state in LIVE or self.taken_from(job):
            raise Refused(StateConflict)
        self.again(job, now)
        self.refill()
        return job.state

    def discard(self, job_id: str, now: float) -> int:
        letter = next((letter for letter in self.letters.values() if letter.id == job_id), None)
        if letter is None:
            raise Refused(JobNotFound)
        job = self.jobs[job_id]
        if job.state in LIVE:
            raise Refused(StateConflict)
        del self.letters[job.logical]
        self.let_go(job, now, "discarded")
        self.refill()
        return letter.count

    def pause(self, pause: Pause) -> None:
        self.paused.add((pause.queue, pause.group, pause.task))
        self.refill()

    def resume(self, pause: Pause, skip_dead: bool) -> bool:
        found = (pause.queue, pause.group, pause.task) in self.paused
        for job in self.those(State.DEAD, queue=pause.queue, group=pause.group) if skip_dead and pause.group else ():
            found, job.held = found or job.held, False
        self.paused.discard((pause.queue, pause.group, pause.task))
        self.refill()
        return found

    def limit_group(self, queue: str, group: str, limit: int | None) -> None:
        if limit is not None and (limit < 1 or (limit > 1 and self.strict(queue))):
            raise Refused(ConfigurationError)
        if limit is None:
            self.overrides.pop((queue, group), None)
        else:
            self.overrides[queue, group] = limit
        self.refill()
