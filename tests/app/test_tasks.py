"""Decorating functions: names, options, groups and keys, what is refused at once."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, RetryPolicy, TaskRouter
from holdfast.errors import ConfigurationError, InvalidArguments, TaskAlreadyRegistered

module_tasks = TaskRouter()


@module_tasks.task
def reusable(x: int) -> int:
    return x


@module_tasks.task(name="reusable.async", queue="other", aliases=["old.name"])
async def reusable_async(ctx: Context, x: int) -> int:
    return x


class Holder:
    def method(self, x: int) -> int:
        return x

    @staticmethod
    def static(x: int) -> int:
        return x


def test_a_bare_decorator_and_one_with_options(memory_app: Holdfast) -> None:
    @memory_app.task(name="plain")
    def plain(a: int) -> int:
        """Adds nothing."""
        return a

    @memory_app.task(name="rich", queue="mail", retry=5, timeout=2, priority=7)
    async def rich(ctx: Context, a: int) -> int:
        return a

    assert (plain.name, plain.is_async, plain._wants_context, plain.fn(3)) == ("plain", False, False, 3)
    assert (rich.is_async, rich._wants_context, rich.defaults.queue) == (True, True, "mail")
    assert rich.defaults.retry == RetryPolicy(5)
    assert plain.__doc__ == "Adds nothing."
    assert set(memory_app.tasks) == {"plain", "rich"}
    assert memory_app.find_task("rich") is rich
    assert memory_app.find_task("nobody") is None


def test_the_default_name_is_module_and_qualname() -> None:
    assert reusable.name == f"{__name__}.reusable"


def test_a_local_function_needs_a_name(memory_app: Holdfast) -> None:
    def local() -> None: ...

    with pytest.raises(ConfigurationError, match="name="):
        memory_app.task(local)
    with pytest.raises(ConfigurationError, match="name="):
        memory_app.task(lambda: None)
    assert memory_app.task(name="fine")(local).name == "fine"


@pytest.mark.parametrize(
    "wrong",
    [Holder.method, Holder().method, Holder, functools.partial(reusable.fn, 1), print, 7, object()],
)
def test_what_is_no_plain_function_is_refused(memory_app: Holdfast, wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        memory_app.task(name="x")(wrong)
    assert not memory_app.tasks


def test_generators_are_refused(memory_app: Holdfast) -> None:
    def generator() -> Any:
        yield 1

    async def async_generator() -> Any:
        yield 1

    for fn in (generator, async_generator):
        with pytest.raises(ConfigurationError, match="generator"):
            memory_app.task(name="x")(fn)


def test_a_name_belongs_to_one_task(memory_app: Holdfast) -> None:
    memory_app.task(name="a", aliases=["b"])(lambda: None)
    for settings in ({"name": "a"}, {"name": "b"}, {"name": "c", "aliases": ["a"]}, {"name": "c", "aliases": "b"}):
        with pytest.raises(TaskAlreadyRegistered):
            memory_app.task(**settings)(lambda: None)
    assert set(memory_app.tasks) == {"a"}
    assert memory_app.find_task("b") is memory_app.tasks["a"]


@pytest.mark.parametrize("wrong", ["a name", "mail"])
def test_a_name_given_by_position_says_how_to_give_it(memory_app: Holdfast, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="name="):
        memory_app.task(wrong)  # type: ignore[call-overload]


def test_groups_and_keys_see_the_arguments_they_name_defaults_included(memory_app: Holdfast) -> None:
    @memory_app.task(name="a", group=lambda to: to, key=lambda kind, to: f"{kind}:{to}")
    def send(to: str, subject: str, kind: str = "welcome") -> None: ...

    call = send.bind("ann", "hi")
    assert (call.group, call.key) == ("ann", "welcome:ann")
    assert send.options(group="fixed", key=None).bind("ann", "hi").group == "fixed"
    assert send.options(group="fixed", key=None).bind("ann", "hi").key is None
    assert send.options(key=lambda subject: subject).bind("ann", "hi").key == "hi"


def test_an_order_is_a_number_or_a_datetime(memory_app: Holdfast) -> None:
    @memory_app.task(name="a", group=lambda account: account, order=lambda number: number)
    def change(account: str, number: int | None) -> None: ...

    happened = datetime(2026, 11, 18, 1, 2, 3, 4, tzinfo=UTC)
    assert change.bind("ann", 7).new.order == 7
    assert change.bind("ann", None).new.order is None
    assert change.options(order=-3).bind("ann", 7).new.order == -3
    assert change.options(order=happened).bind("ann", 7).new.order == int(happened.timestamp()) * 1_000_000 + 4
    assert change.options(group=None).bind("ann", 7).new.order is None
    job = change.enqueue("ann", 9)
    assert (job.order, job.refresh().order) == (9, 9)
    assert memory_app.task_by_name("a", group="g", order=4).bind(1).new.order == 4


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (1.5, "a whole number or an aware datetime, not 1.5"),
        (True, "a whole number"),
        ("7", "a whole number"),
        (2**52, "must be from"),
        (datetime(2026, 1, 1), "not a naive one"),
    ],
)
def test_what_is_no_order_is_refused(memory_app: Holdfast, order: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        memory_app.task_by_name("a", group="g", order=order)

    @memory_app.task(name="a", group="g", order=lambda: order)
    def change() -> None: ...

    with pytest.raises(ConfigurationError, match=words):
        change.bind()


def test_an_order_needs_a_group(memory_app: Holdfast) -> None:
    with pytest.raises(ConfigurationError, match="Give group= too"):
        memory_app.task_by_name("a", order=1)


@pytest.mark.parametrize(
    ("window", "words"), [(0, "order_window="), (86401, "at most 86400 s"), ("5", "order_window=")]
)
def test_what_is_no_order_window_is_refused(memory_app: Holdfast, window: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        memory_app.queue("q", order_window=window)


def test_jobs_run_by_their_orders(memory_app: Holdfast) -> None:
    ran: list[int] = []

    @memory_app.task(name="a", group="g", order=lambda number: number)
    def change(number: int) -> None:
        ran.append(number)

    for number in (5, 3, 4, 1):
        change.enqueue(number)
    memory_app.work(drain=True)
    assert ran == [1, 3, 4, 5]


def test_a_window_is_declared_with_the_queue(memory_app: Holdfast) -> None:
    @memory_app.task(name="a", queue="changes", group="g", order=lambda number: number)
    def change(number: int) -> None: ...

    memory_app.queue("changes", order_window=timedelta(minutes=1))
    job = change.enqueue(3)
    assert job.state == "scheduled"
    assert job.due_at - job.created_at == timedelta(minutes=1)
    [queue] = [queue for queue in memory_app.queues.list() if queue.name == "changes"]
    assert queue.order_window == 60.0


def test_a_group_callable_may_take_everything_or_have_defaults_of_its_own(memory_app: Holdfast) -> None:
    @memory_app.task(name="a", group=lambda **all: "-".join(sorted(all)), key=lambda to, prefix="u": prefix + to)
    def send(to: str, n: int = 1) -> None: ...

    assert (send.bind("ann").group, send.bind("ann").key) == ("n-to", "uann")


@pytest.mark.parametrize("chooser", [lambda nobody: "x", lambda *args: "x", lambda to, /: "x", str, dict.get])
def test_a_group_callable_that_wants_what_is_not_there_is_refused_at_decoration(
    memory_app: Holdfast, chooser: Any
) -> None:
    with pytest.raises(ConfigurationError, match="group"):

        @memory_app.task(name="a", group=chooser)
        def send(to: str) -> None: ...

    assert not memory_app.tasks


@pytest.mark.parametrize("answer", ["", None, 7, "a\nb", "x" * 201])
def test_an_empty_or_bad_answer_is_refused_at_enqueue(memory_app: Holdfast, answer: Any) -> None:
    @memory_app.task(name="a", key=lambda to: answer)
    def send(to: str) -> None: ...

    with pytest.raises(ConfigurationError, match="key of task 'a'"):
        send.enqueue("ann")
    assert memory_app.counts() == {}


def test_a_group_callable_that_raises_is_refused_without_its_text(memory_app: Holdfast) -> None:
    @memory_app.task(name="a", group=lambda to: {}[to])
    def send(to: str) -> None: ...

    with pytest.raises(InvalidArguments, match="group callable raised KeyError") as caught:
        send.bind("secret")
    assert "secret" not in str(caught.value)


def test_tasks_of_a_module_are_included() -> None:
    app, other = Holdfast("memory://"), Holdfast("memory://")
    with pytest.raises(ConfigurationError, match="include"):
        reusable.enqueue(1)
    app.include(module_tasks)
    app.include(module_tasks)
    assert app.find_task("old.name") is reusable_async
    with app, other:
        assert reusable.enqueue(1).task == reusable.name
        other.include(module_tasks)
        with pytest.raises(ConfigurationError, match="Say which"):
            reusable.enqueue(1)
        assert other.enqueue(reusable.bind(1)).state == "ready"
    with pytest.raises(ConfigurationError, match=r"holdfast\.TaskRouter"):
        app.include(other)
    reusable._included_in.clear()
    reusable_async._included_in.clear()


def test_including_a_name_twice_is_refused(memory_app: Holdfast) -> None:
    memory_app.task(name=reusable.name)(lambda: None)
    with pytest.raises(TaskAlreadyRegistered):
        memory_app.include(module_tasks)


def test_a_task_can_be_named_by_producers_without_its_code(app: Holdfast) -> None:
    producer = app.task_by_name("pdf.render", queue="pdf", priority=3)
    job = producer.enqueue(7, size="a4")
    assert (job.task, job.queue, job.priority, job.args) == ("pdf.render", "pdf", 3, {"*": [7], "size": "a4"})
    assert producer.options(key="k", delay=60).enqueue(7).state == "scheduled"

    @app.task(name="pdf.render")
    def render(page: int, size: str) -> str:
        return f"{page}{size}"

    assert app.job(job.id).args == {"page": 7, "size": "a4"}


@pytest.mark.parametrize("wrong", [{"group": lambda: "x"}, {"timeout": -1}, {"name": "y"}, {"isolation": "none"}])
def test_a_task_known_by_name_refuses_what_needs_its_code(memory_app: Holdfast, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        memory_app.task_by_name("pdf.render", **wrong)


def test_imports_are_left_to_the_process_that_runs_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Holdfast("memory://", imports="no.such.module")
    assert app.imports == ("no.such.module",)
    with pytest.raises(ModuleNotFoundError):
        app.import_tasks()
