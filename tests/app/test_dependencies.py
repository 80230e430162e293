"""Jobs that wait for others, as users write them: `after=`, policies, results of parents, calls that name others."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast import Bury, Context, Holdfast, State
from holdfast.dependencies import DUE_AFTER_PARENTS
from holdfast.errors import ConfigurationError, JobCancelled, JobDied, ParentNotFound, StateConflict


@dataclasses.dataclass
class Total:
    amount: int


def test_a_child_gets_the_results_of_its_parents(app: Holdfast) -> None:
    @app.task(name="count")
    def count(number: int) -> Total:
        return Total(number)

    @app.task(name="add")
    def add(ctx: Context) -> int:
        return sum(total.amount for total in ctx.parents.values())

    @app.task(name="show")
    async def show(ctx: Context) -> dict[str, Any]:
        return dict(ctx.parents)

    parents = [count.enqueue(number) for number in (1, 2, 3)]
    total = add.options(after=parents).enqueue()
    shown = show.options(after=[total, parents[0].id]).enqueue()
    assert (total.state, total.created) == (State.SCHEDULED, True)
    app.work(drain=True)
    assert total.result(timeout=10) == 6
    assert shown.result(timeout=10) == {total.id: 6, parents[0].id: {"amount": 1}}


def test_a_job_without_parents_has_none(app: Holdfast) -> None:
    @app.task(name="plain")
    def plain(ctx: Context) -> int:
        return len(ctx.parents)

    @app.task(name="aplain")
    async def aplain(ctx: Context) -> int:
        return len(ctx.parents)

    jobs = [plain.enqueue(), aplain.options(headers={"a": "b"}).enqueue()]
    app.work(drain=True)
    assert [job.result(timeout=10) for job in jobs] == [0, 0]


def test_calls_that_name_each_other_are_stored_in_any_order(app: Holdfast) -> None:
    order: list[str] = []

    @app.task(name="step")
    def step(name: str) -> None:
        order.append(name)

    first = step.bind("first")
    middle = [step.options(after=[first]).bind(f"middle {n}") for n in range(3)]
    last = step.options(after=middle).bind("last")
    made = app.enqueue_many([last, *middle, first, last])
    assert (made.created, made.kept) == (5, 1)
    assert asyncio.run(app.aenqueue_many([first, last])).kept == 2
    app.work(drain=True)
    assert order[0] == "first"
    assert order[-1] == "last"
    assert len(order) == 5


def test_nothing_is_stored_if_one_of_them_cannot_be(app: Holdfast) -> None:
    @app.task(name="step")
    def step() -> None: ...

    one = step.bind()
    two = step.options(after=[one, "nobody"]).bind()
    with pytest.raises(ParentNotFound, match="'nobody', which is not in the store") as raised:
        app.enqueue_many([one, two])
    assert (raised.value.job_id, raised.value.child_id) == ("nobody", two.id)
    assert app.counts() == {}


def test_a_cycle_is_refused(app: Holdfast) -> None:
    @app.task(name="step")
    def step() -> None: ...

    calls = [step.options(id=f"s{n}", after=[f"s{(n + 1) % 3}"]).bind() for n in range(3)]
    with pytest.raises(ConfigurationError, match="wait for each other: s0 → s1 → s2 → s0"):
        app.enqueue_many(calls)
    with pytest.raises(ConfigurationError, match="wait for each other: me → me"):
        app.enqueue_many([step.options(id="me", after=["me"]).bind()])
    with pytest.raises(ParentNotFound):
        step.options(id="me", after=["me"]).enqueue()
    assert app.counts() == {}


def test_a_chain_longer_than_a_step_goes_in_its_order(memory_app: Holdfast) -> None:
    @memory_app.task(name="step")
    def step() -> None: ...

    calls = [step.options(id="0").bind()]
    for n in range(1, 2500):
        calls.append(step.options(id=str(n), after=[calls[-1]]).bind())
    assert memory_app.enqueue_many(calls).created == 2500
    assert [one.id for one in memory_app.relatives("1700").parents] == ["1699"]
    assert [one.id for one in memory_app.relatives("1700").children] == ["1701"]


@pytest.mark.parametrize("policy", ["bury", "cancel", "run"])
def test_what_becomes_of_a_child_whose_parent_dies(app: Holdfast, policy: Any) -> None:
    @app.task(name="doomed")
    def doomed() -> None:
        raise Bury("no use")

    @app.task(name="child")
    def child(ctx: Context) -> int:
        return len(ctx.parents)

    parent = doomed.enqueue()
    job = child.options(after=[parent], on_parent_failure=policy).enqueue()
    app.work(drain=True)
    if policy == "bury":
        with pytest.raises(JobDied, match=rf"\(parent\): its parent {parent.id} died or was cancelled"):
            job.result(timeout=10)
        assert app.dead.get(job.id).reason == "parent"
    elif policy == "cancel":
        with pytest.raises(JobCancelled):
            job.result(timeout=10)
    else:
        assert job.result(timeout=10) == 0


def test_the_revival_of_a_parent_revives_its_child(app: Holdfast) -> None:
    broken = [True]

    @app.task(name="flaky")
    def flaky() -> int:
        if broken:
            raise Bury("not yet")
        return 5

    @app.task(name="child")
    def child(ctx: Context) -> int:
        [value] = ctx.parents.values()
        return int(value) + 1

    parent = flaky.enqueue()
    job = child.options(after=[parent]).enqueue()
    app.work(drain=True)
    assert job.refresh().state is State.DEAD
    broken.clear()
    app.dead.revive(parent.id)
    app.work(drain=True)
    assert job.result(timeout=10) == 6
    assert app.audit().violations == []


def test_a_parent_that_others_wait_for_cannot_be_deleted(app: Holdfast) -> None:
    @app.task(name="step")
    def step() -> None: ...

    parent = step.enqueue()
    child = step.options(after=[parent]).enqueue()
    with pytest.raises(StateConflict, match=f"Job {child.id} waits for it"):
        app.delete(parent.id)
    assert child.due_at.timestamp() == DUE_AFTER_PARENTS
    app.run_now(child.id)
    app.delete(parent.id)
    assert app.relatives(child).parents == ()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"after": "abc"}, "takes a list of jobs, bound calls or ids, not a str"),
        ({"after": [7]}, "takes jobs, bound calls and ids, not a int"),
        ({"after": [""]}, "id in after="),
        ({"after": [], "on_parent_failure": "wait"}, "on_parent_failure="),
    ],
)
def test_bad_settings_are_refused(memory_app: Holdfast, settings: dict[str, Any], words: str) -> None:
    @memory_app.task(name="step")
    def step() -> None: ...

    with pytest.raises(ConfigurationError, match=words):
        step.options(**settings)


def test_what_does_not_go_together_is_refused(sqlite_app: Holdfast, tmp_path: Path) -> None:
    @sqlite_app.task(name="step")
    def step() -> None: ...

    parent = step.enqueue()
    with pytest.raises(ConfigurationError, match="a job that waits for others is not changed"):
        step.options(after=[parent], key="k", on_conflict="replace").enqueue()
    with pytest.raises(ConfigurationError, match="cron entry wait for no other jobs"):
        sqlite_app.cron.add("nightly", step.options(after=[parent]).bind(), cron="0 3 * * *")
    connection = sqlite3.connect(tmp_path / "jobs.db")
    with pytest.raises(ConfigurationError, match="after= and connection= do not go together"):
        step.options(after=[parent], connection=connection).enqueue()
    connection.close()
