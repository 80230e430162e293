"""Conformance of the read side: get, find, count, logs, letters, queues, groups, pauses, workers, dump, clock.

Called by run_case. Reading never changes anything; that is asserted too.
"""

from __future__ import annotations

from ...lifecycle import LIVE, Ending, State
from ...records import JobQuery, LetterQuery, Override, Pause, QueueRule, WorkerRecord
from .compare import same
from .registry import case, case_for_each
from .world import DAY, HOUR, World


async def _found(world: World, **fields: object) -> list[str]:
    return [job.id for job in await world.backend.find(JobQuery(**fields))]  # type: ignore[arg-type]


@case
async def get_of_an_unknown_job_answers_nothing(world: World) -> None:
    same(await world.backend.get("nobody"), None, "get")
    same(await world.backend.letter("nobody"), None, "letter")
    same(await world.backend.logs("nobody"), [], "logs")


@case
async def find_shows_the_newest_first_page_by_page(world: World) -> None:
    ids = await world.enqueue_many(7)
    newest = ids[::-1]
    same(await _found(world), newest, "all")
    first = await world.backend.find(JobQuery(limit=3))
    same([job.id for job in first], newest[:3], "first page")
    second = await world.backend.find(JobQuery(limit=3, before=first[-1].seq))
    same([job.id for job in second], newest[3:6], "second page")
    same(await _found(world, limit=3, before=second[-1].seq), newest[6:], "last page")
    same(await world.get(first[0].id), first[0], "find and get show the same")


@case
async def find_narrows_by_every_condition_given(world: World) -> None:
    plain = await world.enqueue()
    mail = await world.enqueue(task="mail", queue="post", group="g", key="k")
    same_task = await world.enqueue(task="mail", queue="post", delay=60.0)
    lease = await world.claim_one(plain)
    other = await world.enqueue(id="zz-special")
    same(await _found(world, states=(State.RUNNING,)), [lease.id], "by state")
    same(await _found(world, states=(State.RUNNING, State.SCHEDULED)), [same_task, plain], "by states")
    same(await _found(world, queue="post"), [same_task, mail], "by queue")
    same(await _found(world, task="mail"), [same_task, mail], "by task")
    same(await _found(world, group="g"), [mail], "by group")
    same(await _found(world, key="k"), [mail], "by key")
    same(await _found(world, worker="w1"), [plain], "by worker")
    same(await _found(world, id_prefix="zz-"), [other], "by prefix")
    same(await _found(world, id_prefix="ZZ-"), [], "a prefix is taken to the letter")
    same(await _found(world, id_prefix="%"), [], "a prefix is no pattern")
    same(await _found(world, id_prefix="zz_"), [], "a prefix is no pattern")
    same(await _found(world, queue="post", states=(State.READY,)), [mail], "by both")
    same(await _found(world, queue="nowhere"), [], "by a queue that is not there")


@case
async def count_leaves_out_what_is_not_there(world: World) -> None:
    same(dict(await world.backend.count()), {}, "of an empty store")
    await world.enqueue_many(3, queue="a", group="g")
    await world.enqueue(queue="b", delay=5.0)
    counts = {queue: dict(states) for queue, states in (await world.backend.count()).items()}
    expected = {"a": {State.READY: 1, State.WAITING: 2}, "b": {State.SCHEDULED: 1}}
    same(counts, expected, "by queue and state")
    same({q: dict(s) for q, s in (await world.backend.count("b")).items()}, {"b": expected["b"]}, "of one queue")


@case
async def counts_follow_a_jobs_life(world: World) -> None:
    job_id = await world.enqueue()
    lease = await world.claim_one(job_id)
    same(dict((await world.backend.count())["default"]), {State.RUNNING: 1}, "running")
    await world.end(lease, Ending.RETRY)
    same(dict((await world.backend.count())["default"]), {State.SCHEDULED: 1}, "scheduled")
    await world.backend.cancel(job_id, now=world.now)
    same(dict((await world.backend.count())["default"]), {State.CANCELLED: 1}, "cancelled")
    world.advance(400 * 24 * HOUR)
    await world.backend.prune(now=world.now)
    same(dict(await world.backend.count()), {}, "after prune")


@case
async def letters_show_the_newest_failure_first_and_narrow(world: World) -> None:
    ids = []
    for task, queue in (("a", "x"), ("b", "x"), ("a", "y")):
        start = await world.put(State.DEAD, task=task, queue=queue)
        ids.append(start.id)
        world.advance(10.0)
    buried = await world.enqueue(task="a", queue="x", id="zz-buried")
    await world.backend.bury(buried, "why", now=world.now)

    async def found(**fields: object) -> list[str]:
        return [letter.id for letter in await world.backend.letters(LetterQuery(**fields))]  # type: ignore[arg-type]

    same(await found(), [buried, *ids[::-1]], "all")
    same(await found(limit=2), [buried, ids[2]], "bounded")
    same(await found(queue="y"), [ids[2]], "by queue")
    same(await found(task="b"), [ids[1]], "by task")
    same(await found(reason="bury"), [buried], "by reason")
    same(await found(id_prefix="zz-"), [buried], "by prefix")
    same(await found(queue="x", task="a", reason="failed"), [ids[0]], "by all")


@case
async def queues_show_what_is_declared_paused_or_used(world: World) -> None:
    await world.backend.declare([QueueRule(name="declared", group_limit=4, group_order="relaxed")], now=world.now)
    await world.backend.pause(Pause(queue="paused", reason="why"), now=world.now)
    await world.enqueue(queue="used", group="g")
    first_due = world.now
    world.advance(5.0)
    await world.enqueue(queue="used")
    await world.enqueue(queue="used", group="g")
    declared, paused, used = await world.backend.queues()
    same([q.name for q in (declared, paused, used)], ["declared", "paused", "used"], "names, in order")
    same((declared.group_limit, declared.group_order, declared.declared), (4, "relaxed", True), "declared")
    assert paused.pause is not None, "a paused queue shows its pause"
    same((paused.pause.reason, paused.declared), ("why", False), "paused")
    same((used.pause, used.declared, used.group_order, used.group_limit), (None, False, "strict", 1), "used")
    same({s: n for s, n in used.counts.items() if n}, {"ready": 2, "waiting": 1}, "counts")
    same((used.oldest_due_at, declared.oldest_due_at), (first_due, None), "oldest_due_at of ready jobs")


@case
async def groups_show_their_limit_and_their_jobs(world: World) -> None:
    await world.relaxed(2)
    a = await world.enqueue_many(3, group="a")
    lease = await world.claim_one(a[0])
    await world.backend.limit(Override(queue="default", group="b", limit=7), now=world.now)
    await world.backend.pause(Pause(queue="default", group="c", reason="why"), now=world.now)
    await world.enqueue(queue="other", group="z")
    shown = await world.backend.groups()
    names = [(g.queue, g.name) for g in shown]
    same(names, [("default", "a"), ("default", "b"), ("default", "c"), ("other", "z")], "groups in order")
    first, override, paused, _ = shown
    same({s: n for s, n in first.counts.items() if n}, {"running": 1, "ready": 1, "waiting": 1}, "counts")
    same((first.limit, first.order, first.override, first.pause), (2, "relaxed", None, None), "the first")
    same((override.limit, override.override), (7, 7), "the second")
    assert paused.pause is not None, "a paused group shows its pause"
    same((paused.limit, paused.pause.reason), (0, "why"), "the third")
    same([g.name for g in await world.backend.groups("other")], ["z"], "of one queue")
    same([g.name for g in await world.backend.groups(limit=2)], ["a", "b"], "bounded")
    same(await world.backend.group("default", "a"), first, "one group")
    for held in [lease, *await world.claim(9)]:
        await world.end(held)
    await world.end(await world.claim_one(a[2]))
    assert "a" not in [g.name for g in await world.backend.groups()], "a group without unfinished jobs is left out"


@case
async def a_groups_head_is_the_job_whose_turn_it_is(world: World) -> None:
    first, second = await world.enqueue_many(2, group="g")
    same((await world.backend.group("default", "g")).head, first, "head, ready")
    lease = await world.claim_one(first)
    await world.end(lease, Ending.RETRY, delay=60.0)
    same((await world.backend.group("default", "g")).head, first, "head, backing off")
    await world.backend.cancel(first, now=world.now)
    same((await world.backend.group("default", "g")).head, second, "head, once the first is over")


@case
async def an_unknown_group_is_shown_as_empty(world: World) -> None:
    record = await world.backend.group("default", "nobody")
    same((record.queue, record.name, record.limit, record.head), ("default", "nobody", 1, None), "the group")
    same(sum(record.counts.values()), 0, "its jobs")


@case
async def workers_show_what_they_hold_and_whether_they_expired(world: World) -> None:
    row = WorkerRecord(
        id="w1",
        host="h",
        pid=7,
        boot_id="b",
        pid_namespace="n",
        lease_seconds=20.0,
        queues=("default",),
        slots=3,
        isolates=True,
    )
    await world.backend.register(row, now=world.now)
    started = world.now
    await world.enqueue_many(2)
    leases = await world.claim(2, "w1", registered=True)
    world.advance(10.0)
    await world.renew("w1", leases)
    [shown] = await world.backend.workers(now=world.now)
    for field in ("id", "host", "pid", "boot_id", "pid_namespace", "lease_seconds", "queues", "slots", "isolates"):
        same(getattr(shown, field), getattr(row, field), field)
    same((shown.started_at, shown.renewed_at), (started, world.now), "started_at and renewed_at")
    same((shown.running, shown.expired), (2, False), "running, expired")
    world.advance(21.0)
    [shown] = await world.backend.workers(now=world.now)
    same(shown.expired, True, "expired")


@case
async def dump_holds_every_table_and_the_hidden_columns(world: World) -> None:
    start = await world.put(State.RUNNING, group="g")
    await world.backend.limit(Override(queue="default", group="g", limit=1), now=world.now)
    await world.report(start.held, lines=("a",))
    tables = await world.tables()
    names = {
        "jobs",
        "letters",
        "workers",
        "queues",
        "tasks",
        "overrides",
        "flows",
        "entries",
        "pauses",
        "logs",
        "marks",
        "edges",
        "dependents",
        "propagating",
        "steps",
    }
    same(set(tables), names, "tables in dump")
    row = await world.row(start.id)
    for column in ("token", "turn", "rank", "lane", "claim_call", "prune_at", "state", "held", "begun", "seq"):
        assert column in row, f"a job's row in dump has no column {column!r}"
    [worker] = tables["workers"]
    same((worker["deadline"], worker["last_call"]), (world.now + 30.0, 1), "deadline and last_call")
    same(len(tables["logs"]), 1, "log lines in dump")
    same(row["state"], State.RUNNING, "state in dump")


@case
async def reading_changes_nothing(world: World) -> None:
    for state in LIVE:
        await world.put(state, worker=f"w-{state}", queue=f"q-{state}", group="g")
    dead = await world.put(State.DEAD, queue="q-dead")
    async with world.unchanged("reading"):
        await world.backend.clock()
        await world.backend.get(dead.id)
        await world.backend.find(JobQuery())
        await world.backend.count()
        await world.backend.logs(dead.id)
        await world.backend.letter(dead.id)
        await world.backend.letters(LetterQuery())
        await world.backend.queues()
        await world.backend.groups()
        await world.backend.group("q-ready", "g")
        await world.backend.pauses()
        await world.backend.workers(now=world.now)
        await world.backend.dump()


@case
async def opening_again_and_migrating_harm_nothing(world: World) -> None:
    start = await world.put(State.RUNNING)
    async with world.unchanged("open and migrate again"):
        await world.backend.open()
        before, after = await world.backend.migrate()
        same(before, after, "schema before and after")
    await world.end(start.held)


@case
async def without_now_the_stores_own_clock_decides(world: World) -> None:
    job = world.job(delay=HOUR)
    before = await world.backend.clock()
    await world.backend.enqueue([job])
    after = await world.backend.clock()
    record = await world.get(job.id)
    assert before <= record.created_at <= after, f"created_at {record.created_at} between {before} and {after}"
    assert before + HOUR <= record.due_at <= after + HOUR, f"due_at {record.due_at}"
    await world.backend.register(WorkerRecord(id="real"))
    same(await world.backend.recover(), [], "nothing expires at once on the store's clock")
    same([w.expired for w in await world.backend.workers()], [False], "expired")


# ----------------------------------------------------------------------------------------------------------------------
# Ended: one look at many jobs, for whoever waits for them.


@case_for_each(sorted(State))
async def ended_answers_a_finished_job_as_get_does_and_leaves_out_a_live_one(world: World, state: State) -> None:
    start = await world.put(state)
    async with world.unchanged("looking"):
        found = await world.backend.ended([start.id])
    same(dict(found), {start.id: await world.get(start.id)} if state.finished else {}, "what ended answers")


@case
async def ended_answers_none_for_a_job_nobody_knows(world: World) -> None:
    done = await world.put(State.SUCCEEDED)
    live = await world.enqueue()
    found = await world.backend.ended(["nobody", live, done.id, "nobody", done.id])
    same(dict(found), {"nobody": None, done.id: await world.get(done.id)}, "what ended answers")
    same(dict(await world.backend.ended([])), {}, "asked for none")


@case
async def ended_answers_none_for_a_job_that_was_pruned(world: World) -> None:
    done = await world.put(State.SUCCEEDED)
    world.advance(400 * DAY)
    await world.backend.prune(now=world.now)
    same(dict(await world.backend.ended([done.id])), {done.id: None}, "what ended answers")


@case
async def ended_leaves_out_a_job_that_was_brought_back(world: World) -> None:
    done = await world.put(State.DEAD)
    await world.backend.revive(done.id, now=world.now)
    same(dict(await world.backend.ended([done.id])), {}, "what ended answers")


@case
async def ended_takes_a_thousand_at_once(world: World) -> None:
    ids = await world.enqueue_many(world.sized(1000))
    for job_id in ids[::2]:
        await world.backend.cancel(job_id, now=world.now)
    found = await world.backend.ended(ids)
    same(sorted(found), sorted(ids[::2]), "those that have ended")
    same({job.state for job in found.values() if job is not None}, {State.CANCELLED}, "their states")
