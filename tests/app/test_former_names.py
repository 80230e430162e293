"""Old spellings work for one release, say what to write now, and blame the caller's line."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import RESET, UNLIMITED, Context, Holdfast, Retention, RetryPolicy, Unique, errors
from holdfast.errors import ConfigurationError
from holdfast.events import EVENTS, Listens
from holdfast.options import TaskOptions

app = Holdfast("memory://")


@app.task(name="send", queue="mail")
def send(to: str) -> str:
    return f"to {to}"


def former(thing: Any) -> Any:
    """The thing without its types, which no longer know the old spelling."""
    return thing


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: send.using(delay=1), ".using(…) is now .options(…)"),
        (lambda: send.options(delay=1).using(priority=1), ".using(…) is now .options(…)"),
        (lambda: app.task_by_name("x").using(delay=1), ".using(…) is now .options(…)"),
        (lambda: app.named("x"), "app.named(…) is now app.task_by_name(…)"),
        (lambda: send.options.queue, "task.options.queue is now task.defaults.queue"),
        (lambda: holdfast.Tasks, "holdfast.Tasks is now TaskRouter"),
        (lambda: holdfast.EntryNotFound, "holdfast.EntryNotFound is now CronEntryNotFound"),
        (lambda: errors.EntryNotFound, "EntryNotFound is now CronEntryNotFound"),
        (lambda: holdfast.ArgumentsRejected, "holdfast.ArgumentsRejected is now InvalidArguments or InvalidResult"),
        (lambda: app.queues.limit("mail", "none"), "limit(…, 'none') is now limit(…, holdfast.UNLIMITED)"),
        (lambda: app.queues.limit("mail", None), "limit(…, None) is now limit(…, holdfast.RESET)"),
        (lambda: app.tasks.limit("send", rate=None), "limit(…, None) is now limit(…, holdfast.RESET)"),
        (lambda: former(app).dump(), "app.dump is now internal, app._dump"),
        (lambda: former(app).aim("memory://"), "app.aim is now internal, app._aim"),
        (lambda: former(send).decode(b'{"to": "ann"}'), "task.decode is now internal, task._decode"),
        (lambda: asyncio.run(app.queues.alimit("mail", "none")), "is now limit(…, holdfast.UNLIMITED)"),
    ],
)
def test_a_former_spelling_works_and_warns(call: Callable[[], object], text: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    [warning] = [one for one in seen if issubclass(one.category, DeprecationWarning)]
    assert text in str(warning.message) and "0.2" in str(warning.message)
    if "asyncio" not in call.__code__.co_names:
        assert warning.filename == __file__


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Other tests count what is open."""
    yield
    app.close()


def test_new_spellings_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert send.options(delay=60, priority=3).bind("ann").new.priority == 3
        assert app.task_by_name("x", queue="q").options(delay=60).bind(1).new.queue == "q"
        app.queues.limit("mail", 5, rate="1/s")
        app.queues.limit("mail", UNLIMITED, rate=UNLIMITED)
        app.queues.limit("mail", RESET, rate=RESET)
        assert send.defaults.queue == "mail" and holdfast.CronEntryNotFound is errors.CronEntryNotFound


def test_what_caught_the_former_error_still_catches() -> None:
    with pytest.raises(errors.ArgumentsRejected):
        send.bind(to=5)  # type: ignore[arg-type]
    with pytest.raises(holdfast.InvalidArguments, match="arguments of 'send' rejected"):
        send.bind(to=5)  # type: ignore[arg-type]
    with pytest.raises(holdfast.InvalidResult, match="result of 'send' rejected: "):
        send._encode(object())
    assert issubclass(holdfast.InvalidResult, errors.ArgumentsRejected)


# ---------------------------------------------------------------------- families


def test_a_family_is_another_spelling_of_its_options() -> None:
    grouped = TaskOptions.make(
        unique=Unique(key="k", on_conflict="throttle", scope="global", window=5),
        retention=Retention(finished=1000, finished_count=7, dead=2000, dead_count=9),
    )
    single = TaskOptions.make(
        key="k",
        on_conflict="throttle",
        key_scope="global",
        window=5,
        retain=1000,
        retain_count=7,
        retain_dead=2000,
        retain_dead_count=9,
    )
    policy = RetryPolicy()
    assert grouped.changed(retry=policy) == single.changed(retry=policy)
    assert TaskOptions.make(retention=Retention(dead=2000)).retain == TaskOptions().retain
    call = send.options(unique=Unique(key="k", on_conflict="debounce", wait=9), retention=Retention(finished=999))
    assert (call.bind("ann").new.key, call.bind("ann").new.delay) == ("k", 9)
    assert call.options(unique=None).bind("ann").new.key is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"unique": Unique(key="k"), "key": "k"}, "unique= and key= say the same thing twice"),
        ({"retention": Retention(finished=999), "retain": 5}, "retention= and retain= say the same thing twice"),
        ({"unique": "k"}, r"unique= takes Unique\(…\), not str"),
        ({"retention": None}, r"retention= takes Retention\(…\), not NoneType"),
    ],
)
def test_a_family_that_contradicts_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        app.task(name="other", **given)(lambda: None)


def test_retention_of_a_task_is_not_for_one_call() -> None:
    with pytest.raises(ConfigurationError, match="retain_dead= belongs to the task"):
        send.options(retention=Retention(dead=2000))


# ---------------------------------------------------------------------- calling a task, listening


def test_calling_a_task_runs_its_function() -> None:
    other = Holdfast("memory://")

    @other.task(name="with_context")
    def with_context(ctx: Context, word: str) -> tuple[str, str, int]:
        return ctx.task, word, ctx.attempt

    @other.task(name="nested")
    async def nested(ctx: Context) -> bool:
        return bool(await plain() == "plain" and with_id() == ctx.id)

    @other.task(name="plain")
    async def plain() -> str:
        return "plain"

    @other.task(name="with_id")
    def with_id(ctx: Context) -> str:
        return ctx.id

    assert send("ann") == "to ann"
    assert with_context("x") == ("with_context", "x", 1)
    assert asyncio.run(plain()) == "plain"
    assert with_id() != with_id()  # outside of jobs each call is on its own
    with other:
        job = nested.enqueue()
        other.work(drain=True)
        assert job.result(timeout=0) is True


def test_every_event_has_its_type() -> None:
    from typing import get_args, get_overloads, get_type_hints

    hints = [get_type_hints(one, vars(holdfast.events)) for one in get_overloads(Listens.on)]
    typed = {get_args(hint["event"])[0]: get_args(hint["return"])[0] for hint in hints}
    assert typed == dict(EVENTS)
