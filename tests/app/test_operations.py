"""The operator's half of the app, through both twins."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from holdfast import RESET, DeadLetter, Holdfast, Job, RetryPolicy, State
from holdfast.app import Holdfast as App
from holdfast.errors import ConfigurationError, JobNotFound, StateConflict
from holdfast.job import Job as JobClass
from holdfast.named_task import NamedTask
from holdfast.operator import Dead, Groups, Queues
from holdfast.records import JobQuery
from holdfast.task import Task, Using
from holdfast.testing import Sandbox

LAZY = {"jobs", "follow", "afollow", "watch"}  # for `for` and `async for`
WITHOUT_TWIN = {
    *(
        "task",
        "tasks",
        "find_task",
        "include",
        "named",
        "task_by_name",
        "flow",
        "queue",
        "queue_rules",
        "task_rules",
        "cron",
        "cron_entries",
        "on",
        "import_tasks",
        "worker",
    ),
    *(
        "url",
        "safe_url",
        "backend",
        "open_backend",
        "clock",
        "aim",
        "bind",
        "using",
        "options",
        "decode",
        "encode",
        "decode_value",
    ),
    *("around", "batch", "configure", "eager", "find_batch", "lease", "on_enqueue", "on_shutdown", "on_startup"),
    *("app", "include_in", "args_bytes_max", "enqueued", "assert_enqueued", "refute_enqueued"),
    *("assert_not_enqueued", "commit", "eager", "pending"),
}


def poison(app: Holdfast) -> Any:
    @app.task(name="poison", retry=0, key=lambda n: f"k{n}")
    def poisoned(n: int) -> None:
        raise ValueError("bad")

    return poisoned


@pytest.mark.parametrize("kind", [App, JobClass, Task, Using, NamedTask, Dead, Groups, Queues, Sandbox])
def test_every_sync_method_has_a_twin_with_the_same_parameters(kind: type) -> None:
    public = {name for name in dir(kind) if not name.startswith("_")}
    facts = {name for name in public if isinstance(getattr(kind, name), property)} if kind is JobClass else set()
    verbs = public - WITHOUT_TWIN - LAZY - facts
    plain = {name for name in verbs if not inspect.iscoroutinefunction(getattr(kind, name))}
    twins = verbs - plain
    assert twins == {f"a{name}" for name in plain}
    for name in plain:
        ours = inspect.signature(getattr(kind, name))
        theirs = inspect.signature(getattr(kind, f"a{name}"))
        if name != "enqueue_many":  # the async one takes async iterables too
            assert ours == theirs, name
        assert getattr(kind, name).__doc__ or kind is NamedTask


def test_jobs_are_found_by_text_by_filters_and_lazily(app: Holdfast) -> None:
    send, other = app.task_by_name("send", queue="mail"), app.task_by_name("other")
    app.enqueue_many(send.bind(n=n) for n in range(450))
    app.enqueue_many(other.options(delay=60, key=f"k{n}", group="g").bind() for n in range(3))
    assert sum(1 for _ in app.jobs()) == 453
    assert [job.args["n"] for job in app.jobs("queue:mail", limit=250)] == list(range(449, 199, -1))
    assert len(list(app.jobs("state:scheduled task:other"))) == 3
    assert len(list(app.jobs(state="scheduled", key="k1"))) == 1
    assert len(list(app.jobs(states=[State.READY, "scheduled"], group="g"))) == 3
    assert len(list(app.jobs("live", queue="mail", limit=7))) == 7
    assert len(list(app.jobs(JobQuery(task="other")))) == 3
    assert list(app.jobs(limit=0)) == []
    first = next(iter(app.jobs()))
    assert list(app.jobs(id_prefix=first.id)) == [first]
    with pytest.raises(ConfigurationError, match="no filter 'colour'"):
        app.jobs(colour="red")
    with pytest.raises(ConfigurationError, match="no state"):
        app.jobs(state="gone")

    async def main() -> list[Job[Any]]:
        return [job async for job in app.jobs("queue:mail")]

    assert len(asyncio.run(main())) == 450


def test_one_job_is_cancelled_run_now_buried_and_retried(app: Holdfast) -> None:
    scheduled = [app.task_by_name("x").options(delay=60).enqueue() for _ in range(3)]
    assert app.cancel(scheduled[0]).state == "cancelled"
    assert app.cancel(scheduled[0].id).state == "cancelled"
    assert app.run_now(scheduled[1].id).state == "ready"
    buried = app.bury(scheduled[2], "not wanted")
    assert (buried.state, buried.reason) == ("dead", "bury")
    assert app.retry(scheduled[0]).state == "ready"
    assert app.retry(buried.id).state == "ready"
    with pytest.raises(StateConflict):
        app.retry(scheduled[0])
    verbs: list[Any] = [app.cancel, app.run_now, app.bury, app.retry, app.job, app.dead.get, app.dead.revive]
    for verb in verbs:
        with pytest.raises(JobNotFound):
            verb("nobody")
        for wrong in ("", "a\nb", 7, None):
            with pytest.raises(ConfigurationError):
                verb(wrong)


def test_the_twins_do_the_same(app: Holdfast) -> None:
    async def main() -> None:
        jobs = [await app.task_by_name("x").options(delay=60).aenqueue() for _ in range(3)]
        assert (await app.acancel(jobs[0])).state == "cancelled"
        assert (await app.arun_now(jobs[1])).state == "ready"
        assert (await app.abury(jobs[2], "no")).state == "dead"
        assert [letter.id for letter in await app.dead.alist()] == [jobs[2].id]
        assert (await app.dead.aget(jobs[2])).reason == "bury"
        assert (await app.dead.arevive(jobs[2])).state == "ready"
        assert (await app.aretry(jobs[0])).state == "ready"
        await app.apause(queue="default", reason="deploy")
        assert (await app.queues.alist())[0].pause is not None
        assert await app.aresume(queue="default")
        assert (await app.acounts("default"))["default"]["ready"] == 3
        assert await app.arecover() == []
        assert (await app.aaudit()).violations == []
        assert (await app.aexplain(jobs[0])) is not None
        assert await app.groups.alist() == []
        assert (await app.groups.aget("default", "g")).limit == 1

    asyncio.run(main())


def test_dead_letters_are_listed_revived_and_discarded(app: Holdfast) -> None:
    task = poison(app)
    jobs = [task.enqueue(n) for n in range(3)]
    app.work(drain=True)
    letters = app.dead.list()
    assert {letter.id for letter in letters} == {job.id for job in jobs}
    letter = app.dead.get(jobs[0])
    assert isinstance(letter, DeadLetter)
    assert (letter.task, letter.queue, letter.key, letter.args) == ("poison", "default", "k0", {"n": 0})
    assert (letter.failure_count, letter.reason, letter.history) == (1, "failed", ())
    assert letter.first_failed_at.tzinfo is not None
    assert letter.error is not None
    assert letter.error.text == "bad"
    assert app.dead.revive(letter.id).state == "ready"
    assert app.dead.revive(jobs[0]).state == "ready"
    app.work(drain=True)
    assert app.dead.get(letter).failure_count == 2
    assert len(app.dead.get(jobs[0]).history) == 1
    assert app.dead.discard(jobs[1]).id == jobs[1].id
    with pytest.raises(JobNotFound, match="dead letter"):
        app.dead.get(jobs[1])
    assert len(app.dead.list(task=task)) == 2
    assert app.dead.list(queue="nobody") == []
    assert len(app.dead.list(reason="failed", limit=1)) == 1
    assert "n" not in repr(letter).split("poison")[0]


def test_pausing_says_what(app: Holdfast) -> None:
    app.task_by_name("x").options(group="g").enqueue()
    app.pause(queue="default", group="g", reason="why")
    pause = app.groups.get("default", "g").pause
    assert pause is not None
    assert pause.reason == "why"
    assert app.resume(queue="default", group="g")
    assert not app.resume(queue="default", group="g")
    app.pause(task="x")
    app.pause(task=app.task(name="x")(lambda: None))
    assert app.resume(task="x")
    wrongs: list[dict[str, Any]] = [{}, {"group": "g"}, {"queue": "a", "task": "b"}, {"task": "b", "group": "g"}]
    for wrong in (*wrongs, {"queue": ""}):
        with pytest.raises(ConfigurationError):
            app.pause(**wrong)
        with pytest.raises(ConfigurationError):
            app.resume(**wrong)
    with pytest.raises(ConfigurationError, match="one group"):
        app.resume(queue="default", skip_dead=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.jobs(queue="\ud800"),
        lambda app: app.jobs("task:\ud800"),
        lambda app: app.jobs(key=7),
        lambda app: app.jobs(7),
        lambda app: app.jobs(limit=-1),
        lambda app: app.jobs(limit="all"),
        lambda app: app.counts("a\nb"),
        lambda app: app.groups.list("{"),
        lambda app: app.groups.list(limit=0),
        lambda app: app.groups.get("mail", ""),
        lambda app: app.groups.limit("mail", "g", 2),
        lambda app: app.dead.list(limit=0),
        lambda app: app.dead.list(task="\ud800"),
        lambda app: app.dead.list(reason=7),
        lambda app: app.bury("x", "\ud800"),
        lambda app: app.bury("x", "y" * 3000),
        lambda app: app.pause(queue="mail", reason="\ud800"),
        lambda app: app.pause(queue="mail", reason=None),
        lambda app: app.queue("mail", group_limit=2),
        lambda app: app.queue("a{b}"),
        lambda app: Holdfast("memory://", imports=[""]),
        lambda app: Holdfast("memory://", imports=[7]),  # type: ignore[list-item]
    ],
)
def test_bad_input_is_refused_before_the_store_sees_it(app: Holdfast, call: Any) -> None:
    with pytest.raises(ConfigurationError):
        call(app)


def test_counts_name_every_state(app: Holdfast) -> None:
    assert app.counts() == {}
    assert set(app.counts("mail")) == {"mail"}
    assert set(app.counts("mail")["mail"]) == set(State)
    app.task_by_name("x", queue="mail").enqueue()
    assert app.counts()["mail"]["ready"] == 1
    assert app.counts()["mail"]["dead"] == 0


def test_queue_rules_are_declared_at_first_use_and_when_they_change(app: Holdfast) -> None:
    mail = app.queue("mail", group_limit=3, group_order="relaxed")
    assert mail.name == "mail"

    @app.task(name="send", queue=mail, group=lambda to: to)
    def send(to: str) -> None: ...

    assert [send.enqueue("ann").state for _ in range(4)] == ["ready", "ready", "ready", "waiting"]
    app.queue("mail")
    app.counts()
    assert app.groups.get("mail", "ann").counts == {"ready": 1, "waiting": 3}
    assert [rule.name for rule in app._queue_rules()] == ["mail"]
    app.queue("mail", group_limit=2, group_order="relaxed")
    app.groups.limit("mail", "ann", 4)
    assert app.groups.get("mail", "ann").limit == 4
    app.groups.limit("mail", "ann", RESET)
    assert app.groups.get("mail", "ann").limit == 2
    assert [queue.name for queue in app.queues.list() if queue.declared] == ["mail"]


def test_the_audit_finds_nothing_after_a_days_work(app: Holdfast) -> None:
    @app.task(name="work", retry=RetryPolicy.fixed(0, limit=1), group=lambda n: f"g{n % 3}")
    def work(n: int) -> int:
        if n % 5 == 0:
            raise RuntimeError("no")
        return n

    app.enqueue_many(work.bind(n) for n in range(60))
    while app.work(drain=True).left:
        pass
    assert app.audit().violations == []
    assert app.counts()["default"]["dead"] == 12
    assert app.recover() == []
