"""Dependencies between shards: one shard decides, the others follow from its outbox.

Called by backend.py. A set of calls that spans shards and has dependencies is stored in ONE step of one shard: the jobs
that belong there, and a note for each of the others. So it is stored whole or not at all. Then the notes are delivered
(`deliver`), at once by the process that stored them, else by the next sweep of a worker; so is the news of a job's end
for those that wait for it elsewhere. Every delivery may be repeated, be late or overlap with another: ids make one job,
and the news with the highest tick counts (backends/shard.py). A silent shard delays only what is meant for it.

A note of a job is delivered after those of its parents, so a job that is to wait for a parent finds it. Notes of jobs
that are left behind hold up the news of that outbox: a batch must not learn of the end of a member before it learns of
the member that this one added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ...dead_copies import is_copy
from ...dependencies import DUE_AFTER_PARENTS, Relative, Relatives
from ...errors import BackendUnavailable, HoldfastError, JobNotFound, ParentNotFound, StateConflict
from ...lifecycle import Settlement, State, state_conflict
from ...records import Answer, Enqueued, NewJob, with_conflicts_kept
from ..shard import OUTBOX_BYTES, Join, News, Noted, Post, Ties
from .enqueue import refuse_duplicates
from .fanout import SILENCE, at_once
from .lease import LeaseVerbs, Stores
from .places import parted, place_of_job, shard_name
from .registry import FRESH_SECONDS, Registry, Shards

PAGE, PAGES_MAX = 500, 20  # notes of one shard that are delivered at once, and in one pass
ROUNDS_MAX = 20  # rounds of a pass: each delivery may create further notes
WATCH_TRIES_MAX = 3  # to find the parents of a call where they were a moment before
IDS_MAX = 1000  # per call to a shard
ID_BYTES = 36  # of a parent's id
LOOKS_MAX = 100  # live parents in other shards whose state is looked up for a list of relatives


class EdgeVerbs:
    """Enqueue and settle_with over shards, the delivery of notes, and the relatives of a job."""

    def __init__(self, shards: Shards, stores: Stores, leasing: LeaseVerbs) -> None:
        self._shards, self._stores, self._leasing = shards, stores, leasing

    @property
    def crossing(self) -> bool:
        """Whether there has ever been a dependency between shards: if not, outboxes are not read."""
        return self._shards.registry.crossing

    async def begin_crossing(self) -> None:
        if not self.crossing:
            await self._shards.change(lambda found: replace(found, crossing=True))

    # ------------------------------------------------------------------ storing

    async def enqueue(self, jobs: Sequence[NewJob], now: float | None) -> list[Enqueued]:
        """Store jobs of which some wait for others in another shard, all in one step."""
        own = {job.id: _place(job, self._shards.registry) for job in jobs}
        await self._refuse_duplicates(jobs, own, now)
        jobs, where = await self._kept([with_conflicts_kept(job) for job in jobs], own, now)
        joined = next((where[job.before] for job in jobs if job.before is not None), None)
        at = joined or own[jobs[0].id]
        here, ties = divided(jobs, own, where, at)
        stored = await (await self._stores(at)).enqueue_tied(here, ties, now)
        answers = dict(zip((job.id for job in here), stored, strict=True))
        with suppress(*SILENCE):  # it is decided: a sweep will deliver the notes
            await self.deliver(now, [at], answers)
        return [answers.get(job.id) or Enqueued(job.id, created=True) for job in jobs]

    async def settle_with(self, settlement: Settlement, jobs: Sequence[NewJob], now: float | None) -> Answer:
        """End a lease and store jobs of which some belong to other shards, all in one step."""
        shard, _ = parted(settlement.token)
        own = {job.id: _place(job, self._shards.registry) for job in jobs}
        jobs, where = await self._kept([with_conflicts_kept(job) for job in jobs], own, now)
        here, ties = divided(jobs, own, where, shard)

        async def settle(_: object, items: list[Settlement]) -> list[Answer]:
            return [await (await self._stores(shard)).settle_tied(items[0], here, ties, now)]

        answer = (await self._leasing.by_token([settlement], settle))[0]
        if answer is Answer.OK:
            with suppress(*SILENCE):
                await self.deliver(now, [shard])
        return answer

    async def _refuse_duplicates(self, jobs: Sequence[NewJob], own: Mapping[str, str], now: float | None) -> None:
        """Raise for a key that is held, before anything is stored: later the other job would be kept instead."""
        parts: dict[str, list[NewJob]] = {}
        for job in jobs:
            parts.setdefault(own[job.id], []).append(replace(job, after=(), before=None))

        async def rehearse(name: str) -> None:
            await refuse_duplicates(await self._stores(name), parts[name], now)

        choosy = [name for name, part in parts.items() if any(job.on_conflict == "raise" for job in part)]
        (await at_once({name: rehearse(name) for name in choosy})).of_all()

    async def _kept(
        self, jobs: Sequence[NewJob], own: Mapping[str, str], now: float | None
    ) -> tuple[list[NewJob], dict[str, str]]:
        """Locate what these jobs name, and let their parents elsewhere be watched, before anything is stored.

        A watched job stays where it is, as one with a child in its own shard does: one with `remove` would otherwise be
        gone when the child asks what became of it. If nothing is stored after all, prune ends the watch.
        """
        given, where = await self._located(jobs)
        await self.begin_crossing()
        for _ in range(WATCH_TRIES_MAX):
            if await self._watched(given, own, where, now):
                break
            given, where = await self._located(jobs)  # a parent has just gone: it is refused, unless its child is known
        return given, where

    async def _watched(
        self, jobs: Sequence[NewJob], own: Mapping[str, str], where: Mapping[str, str], now: float | None
    ) -> bool:
        """Let the shards of these jobs watch the parents that are stored elsewhere; False if one of those is gone."""
        asked: dict[str, dict[str, dict[str, None]]] = {}
        for job in jobs:
            for name in job.after:
                if name in where and where[name] != own[job.id]:
                    asked.setdefault(where[name], {}).setdefault(own[job.id], {})[name] = None

        async def watch(name: str) -> bool:
            store, found = await self._stores(name), 0
            for shard, named in asked[name].items():
                ids = list(named)
                for start in range(0, len(ids), IDS_MAX):
                    found += len(await store.watch(ids[start : start + IDS_MAX], shard, now))
            return found == sum(map(len, asked[name].values()))

        return all((await at_once({name: watch(name) for name in asked})).of_all().values())

    async def _located(self, jobs: Sequence[NewJob]) -> tuple[list[NewJob], dict[str, str]]:
        """Return the shards of the stored jobs that these jobs name; refuses what R83 and R87 refuse.

        If a job is already stored, what it names is not checked: it is returned without it.
        """
        named = {name for job in jobs for name in (*job.after, job.before) if name is not None}
        where = await places_of(self._shards, self._stores, named)
        coming: set[str] = set()
        strange: list[HoldfastError] = []
        doubtful: set[str] = set()
        for job in jobs:
            missing = next((name for name in job.after if name not in coming and name not in where), None)
            refusal: HoldfastError | None = None if missing is None else ParentNotFound(missing, job.id)
            if refusal is None and job.before is not None:
                refusal = await self._refusal_to_join(job.before, where)
            if refusal is not None:
                strange.append(refusal)
                doubtful.add(job.id)
            coming.add(job.id)
        if not doubtful:
            return list(jobs), where
        known = await places_of(self._shards, self._stores, doubtful)
        for job_id, refusal in zip([job.id for job in jobs if job.id in doubtful], strange, strict=True):
            if job_id not in known:
                raise refusal
        return [replace(job, after=(), before=None) if job.id in known else job for job in jobs], where

    async def _refusal_to_join(self, waiting: str, where: Mapping[str, str]) -> HoldfastError | None:
        job = None if waiting not in where else await (await self._stores(where[waiting])).get(waiting)
        if job is None:
            return JobNotFound(waiting)
        waits = job.state is State.SCHEDULED and job.due_at == DUE_AFTER_PARENTS
        return None if waits else state_conflict(waiting, "join", job.state)

    # ------------------------------------------------------------------ delivering

    async def deliver(
        self, now: float | None, names: Iterable[str] | None = None, answers: dict[str, Enqueued] | None = None
    ) -> bool:
        """Deliver the notes of these shards, or all, and what follows from them; True if there may be more.

        `answers` gets the results for noted jobs. A silent shard keeps its notes, and those meant for it stay.
        """
        todo = set(self._shards.all() if names is None else names)
        for _ in range(ROUNDS_MAX):
            found = await at_once(
                {name: Delivery(self._shards, self._stores, name, now).run(answers) for name in sorted(todo)}
            )
            todo = {name for touched in found.values() for name in touched}
            if not todo:
                return False
        return True

    async def finish(self, now: float | None) -> None:
        """Deliver everything; raises if that cannot be done now."""
        while await self.deliver(now):
            pass
        for name in self._shards.all():
            left = await (await self._stores(name)).outbox(1)
            if left:
                raise BackendUnavailable(
                    f"shard {name} has a note of job {left[0].name} for another shard that could not be delivered. "
                    "Try again when all nodes of the cluster reply."
                )

    # ------------------------------------------------------------------ looking, and deleting

    async def relatives(self, shard: str, job_id: str, found: Relatives, limit: int, beyond: str) -> Relatives:
        """Complete the relatives that a job's own shard knows."""
        store = await self._stores(shard)
        others = await store.elsewhere([one.id for one in found.parents]) if found.parents else {}
        parents = await self._parents(found.parents, others)
        children, more = list(found.children), found.more
        for name in await store.watchers(job_id):
            there = await (await self._stores(name)).relatives(job_id, limit=limit, beyond=beyond)
            children += there.children
            more = more or there.more
        children.sort(key=lambda one: one.id)
        return replace(found, parents=parents, children=tuple(children[:limit]), more=more or len(children) > limit)

    async def _parents(self, parents: Sequence[Relative], others: Mapping[str, str]) -> tuple[Relative, ...]:
        """Look up parents in other shards, without their results."""
        if not others:
            return tuple(parents)
        asked: dict[str, list[str]] = {}
        for parent, shard in others.items():
            asked.setdefault(shard, []).append(parent)
        known: dict[str, Relative] = {one.id: one for one in parents}
        looks = LOOKS_MAX
        for shard, ids in asked.items():
            store = await self._stores(shard)
            for start in range(0, len(ids), IDS_MAX):
                page = ids[start : start + IDS_MAX]
                ended = await store.ended(page)
                for parent in page:
                    job = ended.get(parent)
                    if parent not in ended and looks:
                        looks, job = looks - 1, await store.get(parent)
                    if job is not None:
                        value = job.value if job.state is State.SUCCEEDED else None
                        known[parent] = replace(known[parent], task=job.task, state=job.state, value=value)
        return tuple(known.values())

    async def release(self, shard: str, job_id: str, now: float | None) -> None:
        """Make children in other shards forget a job to be deleted; StateConflict if one of them waits for it.

        A child that was accepted may still be a note, so notes are delivered first. One whose enqueue has watched this
        job and not yet stored the child is not seen: then the child finds no parent, which counts as dead.
        """
        store = await self._stores(shard)
        names = await store.watchers(job_id)
        job = await store.get(job_id) if names else None
        if job is None or job.state is State.RUNNING:
            return
        await self.deliver(now)  # one bounded pass: what other callers add meanwhile must not keep this one here
        for name in await store.watchers(job_id):
            child = await (await self._stores(name)).let_go(job_id, "waiting", now)
            if child is not None:
                raise state_conflict(job_id, "delete", job.state, child_id=child)
            await store.unwatch(job_id, name)


class Delivery:
    """One pass over the oldest notes of one shard."""

    def __init__(self, shards: Shards, stores: Stores, name: str, now: float | None) -> None:
        self._shards, self._stores, self._name, self._now = shards, stores, name, now
        self._done: list[Post] = []
        self._stored: dict[str, Enqueued] = {}  # noted jobs
        self._left: set[str] = set()  # noted jobs that could not be stored now: what waits for them is not, either
        self._where: dict[str, str] = {}  # the shards of jobs that they name
        # calls for which another job was kept: they stay until no note is left that may name them
        self._kept: list[Post] = []
        self._touched: set[str] = set()  # shards that may have notes now

    async def run(self, answers: dict[str, Enqueued] | None = None) -> set[str]:
        """Deliver some pages. Returns the shards to look at next, this one if there is more."""
        store, after, held = await self._stores(self._name), 0, False
        for _ in range(PAGES_MAX):  # notes for a silent shard stay; those behind them are delivered
            posts = await store.outbox(PAGE, after)
            full, after = _is_full(posts), posts[-1].tick if posts else after
            held = await self._jobs([post for post in posts if post.kind == "job"]) or held
            if not held:
                await self._watches([post for post in posts if post.kind == "watch"])
                await self._news([post for post in posts if post.kind == "news"])
            await self._asks([post for post in posts if post.kind == "ask"])
            done, self._done = self._done, []
            if not full:
                done += self._kept
            if done:
                await store.delivered(done)
            if answers is not None:
                answers.update(self._stored)
            if not full:
                return self._touched
        if done:
            self._touched.add(self._name)
        return self._touched

    # ------------------------------------------------------------------ jobs

    async def _jobs(self, posts: Sequence[Post]) -> bool:
        """Store noted jobs where they belong, parents first; True if some stay because a shard is silent. Copies of
        dead jobs do not count: no news is about them."""
        left = {post.name: post.job for post in posts if post.job is not None}
        if any(job.queue not in self._shards.registry.queues for job in left.values()):
            known = (await self._shards.refresh()).queues
            left = {name: job for name, job in left.items() if job.queue in known}
        for name, job in list(left.items()):
            if not self._left.isdisjoint(job.after):
                _without(left, name)
        named = {name for job in left.values() for name in (*job.after, job.before) if name is not None}
        unknown = named - set(left) - set(self._where)
        where, stored, held = self._where, self._stored, False
        where.update(await places_of(self._shards, self._stores, unknown))
        while wave := _wave(left, self._shards.registry):
            found = await at_once({shard: self._store(shard, part, where, stored) for shard, part in wave.items()})
            held = held or any(not is_copy(job.options) for shard in found.silent for job in wave[shard])
            for shard, part in wave.items():
                for job in part:
                    answer = (found.get(shard) or {}).get(job.id)
                    if answer is None:
                        _without(left, job.id)
                        continue
                    self._touched.add(shard)
                    left.pop(job.id, None)
                    stored[job.id], where[job.id] = answer, shard
        for post in posts:
            if post.name not in stored:
                self._left.add(post.name)
            else:
                (self._done if stored[post.name].id == post.name else self._kept).append(post)
        return held

    async def _store(
        self, shard: str, jobs: Sequence[Noted], where: Mapping[str, str], stored: Mapping[str, Enqueued]
    ) -> dict[str, Enqueued]:
        """Store the jobs of one shard; {} if it refuses them for now."""
        stands_for = {name: answer.id for name, answer in stored.items()}
        coming = {job.id for job in jobs}
        parents: dict[str, str] = {}
        joins: list[tuple[Noted, str]] = []
        given: list[NewJob] = []
        for job in jobs:
            after = tuple(dict.fromkeys(stands_for.get(name, name) for name in job.after))
            for named, parent in zip(job.after, (stands_for.get(name, name) for name in job.after), strict=True):
                if parent not in coming and where.get(named) != shard:
                    parents[parent] = where.get(named, shard)  # one that is gone is not found there
            before = job.before
            if before is not None and where.get(before) != shard:
                if before in where:
                    joins.append((job, where[before]))
                before = None
            given.append(replace(job, after=after, before=before))
        try:
            for job, place in joins:
                join = Join(job.before or "", job.id, shard)
                await (await self._stores(place)).enqueue_tied((), Ties(joins=(join,), noted=True), self._now)
            watchers = [(job.id, place) for job, place in joins]
            watchers += [(job.id, place) for job in jobs for place in job.watchers]
            answers = await self._accepted(shard, given, Ties(parents=parents, watchers=tuple(watchers), noted=True))
            for job, place in joins:
                if answers[job.id].id != job.id:  # another job was kept, which is no member
                    await (await self._stores(place)).let_go(job.id, "never", self._now)
                    self._touched.add(place)
        except SILENCE:
            raise
        except HoldfastError:
            return {}
        return answers

    async def _accepted(self, shard: str, jobs: list[NewJob], ties: Ties) -> dict[str, Enqueued]:
        store = await self._stores(shard)
        try:
            found = await store.enqueue_tied(jobs, ties, self._now)
        except (StateConflict, JobNotFound) as error:
            if isinstance(error, ParentNotFound) or all(job.before is None for job in jobs):
                raise
            # the job that was to wait for it no longer waits: it was accepted, so it is stored alone
            found = await store.enqueue_tied([replace(job, before=None) for job in jobs], ties, self._now)
        return {job.id: answer for job, answer in zip(jobs, found, strict=True)}

    # ------------------------------------------------------------------ what others must learn

    async def _watches(self, posts: Sequence[Post]) -> None:
        """Ask the shards of parents to report how they end, and apply what they report."""
        store = await self._stores(self._name)

        async def ask(shard: str, asked: Sequence[Post]) -> None:
            there = await self._stores(shard)
            news = {one.parent: one for one in await there.watch([one.name for one in asked], self._name, self._now)}
            gone = [News(one.name, State.DEAD, "", one.tick) for one in asked if one.name not in news]
            await store.follow([*news.values(), *gone], self._now)
            self._done += asked
            self._touched.add(self._name)

        self._done += [post for post in posts if not post.shard]  # no job waits for it any more
        await at_once({shard: ask(shard, asked) for shard, asked in _by_shard(posts, lambda post: (post.shard,))})

    async def _news(self, posts: Sequence[Post]) -> None:
        async def tell(shard: str, told: Sequence[Post]) -> None:
            await (await self._stores(shard)).follow([post.news for post in told if post.news is not None], self._now)
            self._touched.add(shard)

        found = await at_once({shard: tell(shard, told) for shard, told in _by_shard(posts, lambda post: post.shards)})
        self._done += [post for post in posts if found.silent.keys().isdisjoint(post.shards)]

    async def _asks(self, posts: Sequence[Post]) -> None:
        """Jobs that are to be pruned: those that no child elsewhere needs any more are watched no longer."""
        store = await self._stores(self._name)

        async def ask(shard: str, asked: Sequence[Post]) -> None:
            there = await self._stores(shard)
            for post in asked:
                if await there.let_go(post.name, "unfinished", self._now) is None:
                    await store.unwatch(post.name, shard)

        await at_once({shard: ask(shard, asked) for shard, asked in _by_shard(posts, lambda post: post.shards)})
        self._done += posts  # the next prune asks again


# ----------------------------------------------------------------------------------------------------------------------
# Which job goes where: pure functions, and the look-up of jobs that are stored.


def divided(
    jobs: Sequence[NewJob], own: Mapping[str, str], where: Mapping[str, str], at: str
) -> tuple[list[NewJob], Ties]:
    """Divide a set of calls into jobs that one shard stores itself, and notes and ties for the others.

    A job that belongs here is noted, too, if others must learn of it first: a job in another shard that is to wait for
    it; or a child, which must name the job that is kept in its place if its key is held. So is one behind such a note.
    """
    calls = {job.id: job for job in jobs}
    doubtful = {name for job in jobs for name in job.after if name in calls and calls[name].key is not None}
    noted: dict[str, NewJob] = {}
    here: list[NewJob] = []
    parents: dict[str, str] = {}
    joins: list[Join] = []
    for job in jobs:
        behind = any(name in noted and (name in doubtful or own[name] == at) for name in job.after)
        joins_here = job.before is None or where[job.before] == at
        if own[job.id] != at or job.id in doubtful or behind or not joins_here:
            noted[job.id] = job
            if job.before is not None and joins_here and own[job.id] != at:
                joins.append(Join(job.before, job.id, own[job.id]))
            continue
        here.append(job)
        for name in job.after:
            place = own[name] if name in calls else where[name]
            if place != at:
                parents[name] = place
    watchers = _watchers(jobs, own)
    return here, Ties(
        parents=parents,
        joins=tuple(joins),
        watchers=tuple((job.id, shard) for job in here for shard in watchers.get(job.id, ())),
        notes=tuple(_noted(job, watchers.get(job.id, {})) for job in noted.values()),
    )


def _watchers(jobs: Sequence[NewJob], own: Mapping[str, str]) -> dict[str, dict[str, None]]:
    """Return for each of these jobs the other shards to which children of it belong."""
    found: dict[str, dict[str, None]] = {}
    for job in jobs:
        for name in job.after:
            if own.get(name, own[job.id]) != own[job.id]:
                found.setdefault(name, {})[own[job.id]] = None
    return found


def _noted(job: NewJob, watchers: Iterable[str]) -> Noted:
    return Noted(**{name: getattr(job, name) for name in NewJob.__struct_fields__}, watchers=tuple(watchers))


def _place(job: NewJob, registry: Registry) -> str:
    return shard_name(job.queue, place_of_job(job, registry.queues[job.queue].shards))


def _wave(left: Mapping[str, Noted], registry: Registry) -> dict[str, list[Noted]]:
    """Return by shard the jobs that can be stored now: parents are stored, or go before them to the same shard."""
    wave: dict[str, list[Noted]] = {}
    going: dict[str, str] = {}
    for job in left.values():
        shard = _place(job, registry)
        if all(name not in left or going.get(name) == shard for name in job.after):
            going[job.id] = shard
            wave.setdefault(shard, []).append(job)
    return wave


def _is_full(posts: Sequence[Post]) -> bool:
    """Whether there may be more notes behind these. Their size is estimated, on the low side."""
    jobs = [post.job for post in posts if post.job is not None]
    size = sum(len(job.args) + len(job.options or b"") + ID_BYTES * len(job.after) for job in jobs)
    return len(posts) >= PAGE or size >= OUTBOX_BYTES // 8


def _without(left: dict[str, Noted], job_id: str) -> None:
    """Take a job out that cannot be stored now, and all that wait for it."""
    gone = {job_id}
    left.pop(job_id, None)
    for name, job in list(left.items()):  # parents come first
        if not gone.isdisjoint(job.after):
            gone.add(name)
            del left[name]


def _by_shard(posts: Sequence[Post], shards: Callable[[Post], Sequence[str]]) -> Iterable[tuple[str, list[Post]]]:
    found: dict[str, list[Post]] = {}
    for post in posts:
        for shard in shards(post):
            if shard:
                found.setdefault(shard, []).append(post)
    return found.items()


async def places_of(shards: Shards, stores: Stores, job_ids: Collection[str]) -> dict[str, str]:
    """Return the shard of each of these jobs that is stored."""
    ids, places = sorted(job_ids), dict[str, str]()
    if not ids:
        return places

    async def look(name: str) -> None:
        store = await stores(name)
        for start in range(0, len(ids), IDS_MAX):
            page = ids[start : start + IDS_MAX]
            ended = await store.ended(page)
            places.update({one: name for one in page if one not in ended or ended[one] is not None})

    await shards.refresh(FRESH_SECONDS)
    (await at_once({name: look(name) for name in shards.all()})).of_all()
    return places
