"""Rules, pauses and limits over many shards: home has them all, the shards enforce what concerns their jobs.

Called by backend.py. Home is updated first, so that a shard created a moment later gets the change as well; then the
shards, each with its part (divide.py). Every verb here is idempotent, and repeating it fixes what an unreachable shard
missed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from ...errors import ConfigurationError
from ...records import NewJob, Override, Pause, QueueRule, TaskRule
from ..contract import Backend
from ..seals import check_limit, check_rules
from . import divide
from .fanout import SILENCE, at_once
from .lease import HOME, Stores
from .places import shard_name
from .registry import FRESH_SECONDS, Entry, Registry, Shards, TaskEntry

TRIES_MAX = 10

T = TypeVar("T")


class LimitVerbs:
    """The verbs that decide what may run."""

    def __init__(self, shards: Shards, stores: Stores) -> None:
        self._shards, self._stores = shards, stores
        self._finished_at: float | None = None

    async def _home(self) -> Backend:
        return await self._stores(HOME)

    async def _at(self, name: str, verb: Callable[[Backend], Awaitable[T]]) -> T:
        return await verb(await self._stores(name))

    async def _at_all(self, names: Iterable[str], verb: Callable[[Backend], Awaitable[T]]) -> list[T]:
        """Return the results of these shards; raises if one is silent."""
        return list((await at_once({name: self._at(name, verb) for name in names})).of_all().values())

    async def _overrides(self) -> tuple[Override, ...]:
        return (await (await self._home()).export("rules")).overrides

    # ------------------------------------------------------------------ before jobs are stored or claimed

    async def known(self, queues: set[str], now: float | None) -> Registry:
        """Return the registry with these queues in it, whose shards have all rules they need before their first job.

        In a sealed store missing queues are not added: they get no job.
        """
        registry = await self._shards.known(queues)
        for queue in queues:
            if queue in registry.queues and registry.queues[queue].state == "new" and not registry.closed:
                registry = await self._tell(queue, now)
        if self._shards.unsettled and not registry.closed:
            await self._finish_interrupted(now)
        return registry

    async def ready_for(self, jobs: Sequence[NewJob], now: float | None) -> Registry:
        """As `known`, and the shards have the rules of the jobs' tasks before they get the first job of one."""
        await self._refuse_wide_keys(jobs)
        registry = await self.known({job.queue for job in jobs}, now)
        if any(job.queue not in registry.queues for job in jobs):
            registry.refuse_sealed()
        unlisted = {(job.task, job.queue) for job in jobs} - self._shards.listed_pairs
        return await self._list(unlisted, now) if unlisted else registry

    async def _refuse_wide_keys(self, jobs: Sequence[NewJob]) -> None:
        if not any(job.key_scope == "global" and job.key is not None for job in jobs):
            return
        registry = await self._shards.refresh(FRESH_SECONDS)
        shards = len(self._shards.numbers) + len({job.queue for job in jobs} - set(registry.queues))
        if shards > 1:
            raise ConfigurationError(
                f'key_scope="global" is not possible here: this store has {shards} shards, and a key is unique '
                'within one. Use key_scope="queue".'
            )

    async def _list(self, pairs: set[tuple[str, str]], now: float | None) -> Registry:
        """Record that these tasks have jobs in these queues; if a task has a rule or an override, send it to all its
        shards, because the parts change."""
        tasks = {task for task, _ in pairs}
        known = self._shards.registry.tasks
        overrides = await self._overrides() if any(task in known and known[task].said for task in tasks) else ()

        def listed(found: Registry) -> Registry:
            found.refuse_sealed()
            for task, queue in sorted(pairs):
                found = found.with_task_in(task, queue)
            divide.refuse_undividable(found, (), tasks, overrides)
            return found

        registry = await self._shards.change(listed)
        names = tasks & set(self._shards.unsettled)
        return await self._tell_tasks(names, now) if names else registry

    async def _finish_interrupted(self, now: float | None) -> None:
        """Send rules that another process began to send and did not finish; what fails now is sent later."""
        clock = time.monotonic()
        if self._finished_at is None or clock - self._finished_at >= FRESH_SECONDS:
            self._finished_at = clock
            with suppress(*SILENCE):
                await self._tell_tasks(self._shards.unsettled, now)

    # ------------------------------------------------------------------ declared rules

    async def declare(self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule], now: float | None) -> None:
        check_rules(rules, tasks)
        registry = await self._shards.refresh()
        rules = [replace(rule, group_limit=1) if rule.group_order == "strict" else rule for rule in rules]
        changed = [rule for rule in rules if not _is_current(registry.queues.get(rule.name), rule)]
        declared = {task.name: None if task == TaskRule(name=task.name) else task for task in tasks}
        news = {
            name: rule
            for name, rule in declared.items()
            if (entry := registry.tasks.get(name, TaskEntry())).rule != rule or entry.state != "ready"
        }
        if not changed and not news:
            return
        registry.refuse_sealed()
        divide.refuse_undividable(*_as_declared(registry, changed, news), await self._overrides())
        for rule in changed:
            await self._declare(rule, registry.queues.get(rule.name), now)
        if news:
            await self._shards.change(lambda found: _with_rules(found, news))
        unsettled = [name for name in self._shards.unsettled if self._shards.registry.tasks[name].state == "changing"]
        if unsettled:
            await self._tell_tasks(unsettled, now)

    async def _declare(self, rule: QueueRule, entry: Entry | None, now: float | None) -> None:
        if entry is not None and entry.shards != rule.shards:
            await self._refuse_unless_empty(rule, entry)

        def declared(found: Registry) -> Registry:
            found.refuse_sealed()
            known = found.queues.get(rule.name)
            if known is None or known.shards != rule.shards:
                found = _divided_anew(found.with_queue(rule.name, rule.shards), rule.name)
                state = found.queues[rule.name].state
            else:
                state = "new" if known.state == "new" else "changing"
            found = found.with_entry(rule.name, replace(found.queues[rule.name], rule=rule, state=state))
            return found if rule.dead_queue is None else found.with_dead_queues()

        await self._shards.change(declared)
        if rule.dead_queue is not None and self._shards.unsettled:  # that queue has the tasks' rules before a copy
            await self._tell_tasks(self._shards.unsettled, now)
        await self._tell(rule.name, now)

    async def _refuse_unless_empty(self, rule: QueueRule, entry: Entry) -> None:
        """With another number of shards its groups and keys would be looked up in shards where they are not."""
        names = [shard_name(rule.name, place) for place in range(entry.reach)]
        found = await self._at_all(names, lambda store: store.count(rule.name))
        jobs = sum(sum(states.values()) for counts in found for states in counts.values())
        if jobs:
            raise ConfigurationError(
                f"queue {rule.name!r} has {entry.shards} shards and {jobs} jobs, finished ones and dead letters "
                f"included, so it cannot change to {rule.shards}. Say shards={entry.shards}; or stop its producers, "
                "drain it, prune it and declare it again; or move it to another prefix with `holdfast move`."
            )

    # ------------------------------------------------------------------ updating the shards

    async def _tell(self, queue: str, now: float | None) -> Registry:
        """Bring every shard of a queue in line with home, then mark it ready; repeat if it was changed meanwhile."""
        for _ in range(TRIES_MAX):
            entry = self._shards.registry.queues[queue]
            await self._align(queue, self._shards.registry, now)

            def settled(found: Registry, seen: Entry = entry) -> Registry:
                same = found.queues.get(queue) == seen
                return found.with_entry(queue, replace(seen, state="ready")) if same else found

            registry = await self._shards.change(settled)
            if registry.queues[queue].state == "ready":
                break
        return registry

    async def _align(self, queue: str, registry: Registry, now: float | None) -> None:
        entry, home = registry.queues[queue], await self._home()
        declared = [task.rule for task in registry.tasks.values() if task.rule is not None]
        await home.declare([] if entry.rule is None else [entry.rule], declared, now)
        rules = await home.export("rules")

        async def align(place: int, name: str) -> None:
            store = await self._stores(name)
            there = await store.export("rules")
            wanted = divide.concerning(rules, registry, queue, place)
            of_tasks = divide.task_rules_for(rules, registry, queue, place)
            named = {task.name for task in of_tasks.tasks}
            gone = [TaskRule(name=task.name) for task in there.tasks if task.name not in named]
            await store.declare(wanted.queues, [*of_tasks.tasks, *gone], now)
            for pause in wanted.pauses:
                await store.pause(pause, now)
            pauses = {_scope(pause) for pause in wanted.pauses}
            for pause in there.pauses:
                if _scope(pause) not in pauses:
                    await store.resume(pause, now)
            words = {_scope(override): override for override in (*wanted.overrides, *of_tasks.overrides)}
            for override in there.overrides:
                if _scope(override) not in words:
                    await store.limit(replace(override, limit=None, rate=None, apart=None, weight=None), now)
            for override in words.values():
                with suppress(ConfigurationError):  # a limit from before the queue became strict
                    await store.limit(override, now)

        names = {shard_name(queue, place): place for place in range(entry.reach)}
        (await at_once({name: align(place, name) for name, place in names.items()})).of_all()

    async def _tell_tasks(self, tasks: Iterable[str], now: float | None) -> Registry:
        """Give every shard its part of these tasks' rules and overrides; repeat if they were changed meanwhile."""
        tasks, home = list(tasks), await self._home()
        for _ in range(TRIES_MAX):
            entries = {task: self._shards.registry.tasks[task] for task in tasks}
            await home.declare((), [entry.rule or TaskRule(name=task) for task, entry in entries.items()], now)
            overrides = await self._overrides()
            await self._hand_out(entries, overrides, now)

            def settled(found: Registry, seen: Mapping[str, TaskEntry] = entries) -> Registry:
                for task, entry in seen.items():
                    if found.tasks.get(task) == entry:
                        found = found.with_task(task, entry.propagated)
                return found

            registry = await self._shards.change(settled)
            same = all(registry.tasks[task] == entry.propagated for task, entry in entries.items())
            has_overrides = any(entry.said for entry in entries.values())
            if same and (not has_overrides or await self._overrides() == overrides):
                break
        return registry

    async def _hand_out(
        self, entries: Mapping[str, TaskEntry], overrides: Sequence[Override], now: float | None
    ) -> None:
        spread = {task: self._shards.registry.shards_of_task(task) for task in entries}

        async def tell(name: str) -> None:
            store = await self._stores(name)
            mine = {task: (len(names), names.index(name)) for task, names in spread.items() if name in names}
            rules = [divide.task_share(entries[task].rule or TaskRule(name=task), *mine[task]) for task in mine]
            await store.declare((), rules, now)
            for task in mine:
                if entries[task].said:
                    word = divide.override_of(overrides, (None, None, task))
                    await store.limit(divide.override_share(word, *mine[task]), now)

        concerned = {name for names in spread.values() for name in names}
        (await at_once({name: tell(name) for name in concerned})).of_all()

    # ------------------------------------------------------------------ pauses

    async def pause(self, pause: Pause, now: float | None) -> None:
        await (await self._home()).pause(pause, now)
        await self._at_all(await self._concerned(pause, now), lambda store: store.pause(pause, now))

    async def resume(self, pause: Pause, now: float | None, *, skip_dead: bool) -> bool:
        ended = await (await self._home()).resume(pause, now)
        concerned = await self._concerned(pause, now)
        there = await self._at_all(concerned, lambda store: store.resume(pause, now, skip_dead=skip_dead))
        return ended or any(there)

    async def _concerned(self, pause: Pause, now: float | None) -> list[str]:
        """Return the shards in the registry after home was updated: a process that adds one later reads home."""
        await self._shards.refresh()
        if pause.queue is None:
            return self._shards.all()
        await self.known({pause.queue}, now)
        group = None if pause.group is None else self._shards.of_group(pause.queue, pause.group)
        return self._shards.of(pause.queue) if group is None else [group]

    # ------------------------------------------------------------------ an operator's limits

    async def limit(self, override: Override, now: float | None) -> None:
        check_limit(override.limit, f"the limit of {_named(override)}")
        registry, home = await self._shards.refresh(), await self._home()
        registry.refuse_sealed()
        if override.task is not None:
            task = override.task
            divide.refuse_too_small(override.limit, len(registry.shards_of_task(task)), _named(override))
            await self._shards.change(lambda found: _with_word(found, task))
            await home.limit(override, now)
            await self._shards.refresh()
            await self._tell_tasks([task], now)
            return
        queue = override.queue or ""
        if override.group is None and queue in registry.queues:
            divide.refuse_too_small(override.limit, registry.queues[queue].shards, _named(override))
        await home.limit(override, now)
        await self._shards.refresh()
        await self.known({queue}, now)
        await self._push_override(override, queue, now)

    async def _push_override(self, override: Override, queue: str, now: float | None) -> None:
        """Give the shards of a queue, or that of a group, home's override; repeat if it was changed meanwhile."""
        own = None if override.group is None else self._shards.of_group(queue, override.group)
        shards = self._shards.registry.queues[queue].shards
        names = {shard_name(queue, place): place for place in range(shards)} if own is None else {own: 0}
        for _ in range(TRIES_MAX):
            word = divide.override_of(await self._overrides(), _scope(override))
            tell = {
                name: self._limit_at(name, divide.override_share(word, len(names), names[name]), now) for name in names
            }
            (await at_once(tell)).of_all()
            if divide.override_of(await self._overrides(), _scope(override)) == word:
                break

    async def _limit_at(self, name: str, override: Override, now: float | None) -> None:
        await (await self._stores(name)).limit(override, now)

    async def slow_down(self, queue: str, seconds: float, now: float | None) -> float:
        """Slow down every shard of the queue; the latest time counts. Repeat the call if a shard was unreachable."""
        (await self._shards.refresh()).refuse_sealed()
        await self.known({queue}, now)
        return max(await self._at_all(self._shards.of(queue), lambda store: store.slow_down(queue, seconds, now)))


def _scope(one: Pause | Override) -> tuple[str | None, str | None, str | None]:
    return (one.queue, one.group, one.task)


def _named(override: Override) -> str:
    if override.task is not None:
        return f"task {override.task!r}"
    queue = f"queue {override.queue!r}"
    return queue if override.group is None else f"group {override.group!r} of {queue}"


def _is_current(entry: Entry | None, rule: QueueRule) -> bool:
    return entry is not None and entry.state == "ready" and entry.rule == rule


def _divided_anew(found: Registry, queue: str) -> Registry:
    """The queue has another number of shards: its tasks' rules must be sent to all their shards again."""
    for task, entry in found.tasks.items():
        if queue in entry.queues and (entry.rule is not None or entry.said):
            found = found.with_task(task, replace(entry, state="changing"))
    return found


def _with_rules(found: Registry, rules: dict[str, TaskRule | None]) -> Registry:
    found.refuse_sealed()
    for task, rule in rules.items():
        found = found.with_task(task, replace(found.tasks.get(task, TaskEntry()), rule=rule, state="changing"))
    return found


def _with_word(found: Registry, task: str) -> Registry:
    """An operator overrides a task: from now on a process that adds a queue to it reads home."""
    found.refuse_sealed()
    return found.with_task(task, replace(found.tasks.get(task, TaskEntry()), said=True))


def _as_declared(
    registry: Registry, rules: Sequence[QueueRule], tasks: dict[str, TaskRule | None]
) -> tuple[Registry, list[str], set[str]]:
    """Return the future registry, the queues whose rule changes, and the tasks whose rule or parts change."""
    touched = set(tasks)
    for rule in rules:
        registry = registry.with_queue(rule.name, rule.shards)  # raises if that number is not allowed
        registry = registry.with_entry(rule.name, replace(registry.queues[rule.name], rule=rule))
        touched |= {task for task, entry in registry.tasks.items() if rule.name in entry.queues}
    registry = registry.with_dead_queues()
    for task, declared in tasks.items():
        registry = registry.with_task(task, replace(registry.tasks.get(task, TaskEntry()), rule=declared))
    return registry, [rule.name for rule in rules], touched
