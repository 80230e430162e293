"""Results of other jobs as arguments: bound before the other job has run, in place when the handler is called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.moving.stage import fresh_url

from holdfast import (
    BoundCall,
    Bury,
    Call,
    ConfigurationError,
    Context,
    Holdfast,
    InvalidArguments,
    Job,
    State,
    Task,
    chain,
    group_of,
    result_of,
    testing,
)
from holdfast.backends.sqlite.memory import MemoryBackend

KINDS = ["memory", "sqlite", "postgres", "redis", "cluster"]


@dataclass
class Order:
    id: int
    total: float


class Shop:
    """The tasks of one app."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app

        @app.task(name="price", retry=0)
        def price(n: int) -> Order:
            if n < 0:
                raise Bury("no such order")
            return Order(n, n * 1.5)

        @app.task(name="count", retry=0)
        async def count(n: int) -> int:
            return n

        @app.task(name="nothing", retry=0)
        def nothing() -> None: ...

        @app.task(name="bill", retry=0)
        def bill(ctx: Context, order: Order, times: int = 1) -> str:
            assert isinstance(order, Order)
            return f"{order.id}: {order.total * times}"

        @app.task(name="add", retry=0)
        async def add(one: int, two: int) -> int:
            return one + two

        @app.task(name="add_all", retry=0)
        def add_all(numbers: list[int], more: dict[str, int]) -> int:
            return sum(numbers) + sum(more.values())

        @app.task(name="whatever", retry=0)
        def whatever(value: Any) -> Any:
            return value

        self.price, self.count, self.nothing, self.bill = price, count, nothing, bill
        self.add, self.add_all, self.whatever = add, add_all, whatever

    def text_of(self, id: str) -> str:
        """Why a job is dead."""
        job = self.app.job(id)
        assert job.state is State.DEAD and job.error is not None
        return str(job.error.text)


@pytest.fixture
def shop() -> Iterator[Shop]:
    with Holdfast("memory://") as app:
        yield Shop(app)


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_an_argument_on_every_store(kind: str, tmp_path: Path) -> None:
    with Holdfast("memory://" if kind == "memory" else fresh_url(kind, tmp_path)) as app:
        shop = Shop(app)
        priced = shop.price.bind(4)
        billed = shop.bill.bind(priced.result, times=2)
        one, two = shop.count.bind(3), shop.count.bind(4)
        added = shop.add.bind(one.result, two.result)
        both = shop.add_all.bind([1, one.result, added.result], {"two": two.result})
        app.enqueue_many([both, added, two, one, billed, priced])
        assert (billed.new.after, added.new.after) == ((priced.id,), (one.id, two.id))
        app.work(drain=True)
        assert app.job(billed.id).value == "4: 12.0"
        assert (app.job(added.id).value, app.job(both.id).value) == (7, 1 + 3 + 7 + 4)
        assert app.audit().violations == []


def test_a_stored_job_gives_its_result_too(shop: Shop) -> None:
    job = shop.count.enqueue(5)
    done = shop.add.enqueue(result_of(job), 1)
    shop.app.work(drain=True)
    late = shop.add.enqueue(result_of(shop.app.job(job.id)), 10)  # it has run already
    shop.app.work(drain=True)
    assert (done.result(timeout=10), late.result(timeout=10)) == (6, 15)


def test_enqueued_from_async_code(shop: Shop) -> None:
    async def use() -> list[int]:
        job = await shop.count.aenqueue(5)
        first = await shop.add.aenqueue(result_of(job), 1)
        second = await shop.add.aenqueue(2, result_of(first))
        await shop.app.awork(drain=True)
        return [await first.aresult(timeout=10), await second.aresult(timeout=10)]

    assert asyncio.run(use()) == [6, 8]


def test_flows_take_results(shop: Shop) -> None:
    one, two = shop.count.bind(20), shop.count.bind(22)
    total = shop.add.bind(one.result, two.result)
    run = shop.app.enqueue_flow(chain(group_of(one, two, then=total), shop.whatever.bind([total.result, None])))
    shop.app.work(drain=True)
    assert run.result(timeout=10) == [42, None]


def test_after_stays_and_is_not_doubled(shop: Shop) -> None:
    one, two = shop.count.bind(1), shop.count.bind(2)
    call = shop.add.options(after=[two, one], headers={"a": "b"}).bind(one.result, 5)
    assert (call.new.after, call.headers) == ((two.id, one.id), {"a": "b"})


def test_a_task_known_by_name_takes_results(shop: Shop) -> None:
    one = shop.count.bind(7)
    by_name = shop.app.task_by_name("add")
    calls = [by_name.bind(one.result, 1), by_name.bind(two=one.result, one=2)]
    shop.app.enqueue_many([one, *calls])
    shop.app.work(drain=True)
    assert [shop.app.job(call.id).value for call in calls] == [8, 9]


def test_a_job_that_returned_nothing_gives_none(shop: Shop) -> None:
    nothing = shop.nothing.bind()
    value, fits_not = shop.whatever.bind(nothing.result), shop.bill.bind(nothing.result)  # type: ignore[arg-type]
    shop.app.enqueue_many([nothing, value, fits_not])
    shop.app.work(drain=True)
    assert (shop.app.job(value.id).state, shop.app.job(value.id).value) == (State.SUCCEEDED, None)
    assert "parameter 'order': expected `object`, got `null`" in shop.text_of(fits_not.id)


def test_known_arguments_are_checked_when_bound_the_others_when_they_are_there(shop: Shop) -> None:
    one = shop.count.bind(1)
    with pytest.raises(InvalidArguments, match="parameter 'two': expected `int`, got `str`"):
        shop.add.bind(one.result, "two")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="missing 'two'"):
        shop.add.bind(one.result)  # type: ignore[call-arg]
    with pytest.raises(InvalidArguments, match="parameter 'two': a value of type object cannot be stored"):
        shop.add.bind(one.result, object())  # type: ignore[arg-type]
    wrong = shop.bill.bind(one.result)  # type: ignore[arg-type]
    shop.app.enqueue_many([one, wrong])
    shop.app.work(drain=True)
    text = shop.text_of(wrong.id)
    assert "parameter 'order': expected `object`, got `int`" in text and one.id in text


def test_a_parent_that_failed_has_no_result(shop: Shop) -> None:
    bad = shop.price.bind(-1)
    call = shop.bill.options(on_parent_failure="run").bind(bad.result)
    shop.app.enqueue_many([bad, call])
    shop.app.work(drain=True)
    assert shop.text_of(call.id) == (
        f"parameter 'order' is the result of job {bad.id}, and that is dead and has none. Edit the arguments, or "
        "revive both."
    )


def test_arguments_that_were_edited_no_longer_need_the_result(shop: Shop) -> None:
    bad = shop.price.bind(-1)
    call = shop.bill.options(on_parent_failure="run").bind(bad.result)
    shop.app.enqueue_many([bad, call])
    shop.app.edit(call.id, args={"order": {"id": 1, "total": 2.0}, "times": 3})
    shop.app.work(drain=True)
    assert shop.app.job(call.id).value == "1: 6.0"


@pytest.mark.parametrize(("there", "why"), [(True, "that is not one of its parents"), (False, "that is gone")])
def test_a_job_that_is_no_parent_or_gone_has_none(shop: Shop, there: bool, why: str) -> None:
    one, other = shop.count.bind(1), shop.count.bind(2)
    call = shop.whatever.bind(one.result)
    shop.app.enqueue_many([one, call, *([other] if there else [])])
    shop.app.edit(call.id, args={"value": {"$result": other.id}})
    shop.app.work(drain=True)
    assert f"parameter 'value' is the result of job {other.id}, and {why}" in shop.text_of(call.id)


def test_what_looks_like_a_placeholder_is_a_value(shop: Shop) -> None:
    one = shop.count.bind(1)
    plain = shop.whatever.options(after=[one]).bind({"$result": "x"})
    shop.app.enqueue_many([one, plain])
    shop.app.work(drain=True)
    assert shop.app.job(plain.id).value == {"$result": "x"}
    with pytest.raises(InvalidArguments, match="a key '\\$result' stands for the result of another job"):
        shop.whatever.bind([one.result, {"$result": "x"}])
    shop.whatever.bind([one.result, '{"$result": "x"}'])  # text is no key


def test_a_placeholder_can_only_be_passed_on(shop: Shop) -> None:
    value: Any = shop.count.bind(1).result
    uses: list[Callable[[Any], object]] = ["{}".format, str, bool, int, float, list, len]
    for use in uses:
        with pytest.raises(ConfigurationError, match="is not known yet"):
            use(value)
    with pytest.raises(TypeError):
        _ = value + 1
    with pytest.raises(InvalidArguments, match=r"is an argument of task\.bind"):
        shop.app.edit(shop.whatever.enqueue(1).id, args={"value": value})


def test_what_has_no_single_result_or_may_be_another_job_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="has a key, so another job may stand for it"):
        _ = shop.count.options(key="k").bind(1).result
    with pytest.raises(ConfigurationError, match=r"result_of\(\) takes a job or a bound call, not a int"):
        result_of(5)  # type: ignore[arg-type]
    held: Job[int] = shop.count.options(key="k").enqueue(1)
    assert shop.add.bind(result_of(held), 1).new.after == (held.id,)

    @shop.app.task(name="together", batch=10)
    def together(calls: list[Call[dict[str, Any]]]) -> None: ...

    with pytest.raises(InvalidArguments, match="a batch handler gets its calls as they were stored"):
        together.bind(n=shop.count.bind(1).result)


def test_a_group_or_key_cannot_depend_on_a_result(shop: Shop) -> None:
    @shop.app.task(name="grouped", group=lambda n: f"g{n}")
    def grouped(n: int, other: int = 0) -> None: ...

    with pytest.raises(InvalidArguments, match="its group callable raised ConfigurationError"):
        grouped.bind(shop.count.bind(1).result)
    assert grouped.bind(1, shop.count.bind(1).result).group == "g1"


def test_what_is_shown_names_the_job(shop: Shop) -> None:
    one = shop.count.bind(1)
    call: BoundCall[int] = shop.add.bind(one.result, 2)
    shop.app.enqueue_many([one, call])
    assert shop.app.job(call.id).args == {"one": {"$result": one.id}, "two": 2}
    task: Task[..., Any] = shop.add
    assert repr(one.result) == f"<result of job {one.id}>" and task.name == "add"


@pytest.mark.parametrize("inline", [False, True])
def test_in_the_sandbox(shop: Shop, inline: bool) -> None:
    with testing.sandbox(shop.app) as box:
        one = shop.count.bind(1)
        call = shop.add.bind(one.result, 2)
        shop.app.enqueue_many([one, call])
        box.drain(inline=inline)
        assert shop.app.job(call.id).value == 3


def test_at_once(shop: Shop) -> None:
    with shop.app.eager():
        job = shop.count.enqueue(1)
        assert shop.add.enqueue(result_of(job), 2).result() == 3


def test_the_results_of_parents_are_read_for_async_handlers_that_take_a_context(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    inner = MemoryBackend.relatives

    async def noted(self: MemoryBackend, job_id: str, **how: Any) -> Any:
        reads.append(job_id)
        return await inner(self, job_id, **how)

    monkeypatch.setattr(MemoryBackend, "relatives", noted)

    @shop.app.task(name="without")
    async def without() -> int:
        return 1

    @shop.app.task(name="helped")
    async def helped() -> int:
        return int(sum(Context.current().parents.values()))

    @shop.app.task(name="with_context")
    async def with_context(ctx: Context) -> int:
        return int(sum(ctx.parents.values()))

    one = shop.count.bind(3)
    calls = [task.options(after=[one]).bind() for task in (without, helped, with_context)]
    shop.app.enqueue_many([one, *calls])
    shop.app.work(drain=True)
    assert [shop.app.job(call.id).value for call in calls] == [1, 3, 3]
    assert sorted(reads) == sorted(call.id for call in calls[1:])
