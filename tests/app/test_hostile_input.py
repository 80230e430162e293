"""Hostile input: it is refused with our error, or stored literally, and it never controls a reader's terminal."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from tests.moving.stage import fresh_url

from holdfast import Context, Holdfast, RetryPolicy, State
from holdfast.cli.main import main
from holdfast.errors import ConfigurationError, InvalidArguments
from holdfast.names import visible, visible_json
from holdfast.records import NewJob

DIGITS = "9" * 5000
HUGE = 10**5000
STEERING = "\x1b]0;x\x07\x9b31m\x7f\u202eab\u2066\u200b\u2028\U000e0001"


class Markup(str):
    """As markupsafe's: text that says it is more than text."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


class Nowhere(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None

    def tzname(self, dt: datetime | None) -> str | None:
        return None

    def dst(self, dt: datetime | None) -> timedelta | None:
        return None


def run(*words: str) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(list(words))
    return code, said.getvalue()


def nested(levels: int) -> object:
    value: object = None
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis", "cluster"])
def test_stored_arguments_nested_too_deep_cost_their_own_job_alone(kind: str, tmp_path: Path) -> None:
    """Another program, or an older version, may have stored them: to run them and to log it must end no worker."""
    url = "memory://" if kind == "memory" else fresh_url(kind, tmp_path)
    with Holdfast(url) as app:

        @app.task(name="any")
        def any_job(x: Any = None) -> None: ...

        deep = NewJob(id="deep", task="any", args=b'{"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}")
        options = NewJob(id="options", task="any", args=b"{}", options=deep.args)
        app._store.call(lambda backend: backend.enqueue([deep, options]))
        good = [any_job.enqueue(x=n) for n in range(3)]
        drained = app.work(drain=True, log_jobs="all")
        assert [job.refresh().state for job in good] == [State.SUCCEEDED] * 3
        assert (drained.succeeded, drained.failed, drained.left) == (4, 1, 0)
        dead = app.job("deep")
        assert (dead.state, dead.reason) == (State.DEAD, "undecodable")
        assert [job.id for job in app.jobs("args.x:1")] == [good[1].id]
        assert len(list(app.jobs("task:any"))) == 5
        assert app.job("options").state is State.SUCCEEDED


@pytest.mark.parametrize("levels", [66, 900, 60_000])
def test_arguments_nested_too_deep_are_rejected(levels: int) -> None:
    app = Holdfast("memory://")
    for call in (app.task(name="t")(lambda x: None).bind, app.task_by_name("u").bind):
        with pytest.raises(InvalidArguments, match="nested"):
            call(nested(levels))


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.queue("q", rate=f"{DIGITS}/s"),
        lambda app: app.queue("q", rate=f"1/{DIGITS}s"),
        lambda app: app.queue("q", limit=-HUGE),
        lambda app: app.queues.limit("q", rate=f"{DIGITS}/s"),
        lambda app: app.task_by_name("t", delay=HUGE),
        lambda app: RetryPolicy(limit=-HUGE),
        lambda app: RetryPolicy(factor=HUGE),
        lambda app: app.task_by_name("t", at=datetime(2030, 1, 1, tzinfo=Nowhere())),
        lambda app: app.cron.backfill("e", datetime(2030, 1, 1, tzinfo=Nowhere()), datetime.now(UTC)),
        lambda app: app.cron("*/999999999999 * * * *"),
        lambda app: app.cron(f"*/{DIGITS} * * * *"),
        lambda app: app.cron("* * * * */9"),
        lambda app: app.jobs("x" * 80_000),
        lambda app: app.jobs("'" * 80_000),
    ],
)
def test_what_cannot_be_meant_is_a_configuration_error(call: Callable[[Holdfast], object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        call(Holdfast("memory://"))
    assert len(str(caught.value)) < 500


def test_a_step_as_long_as_its_field_is_accepted() -> None:
    Holdfast("memory://").cron("*/60 */24 */31 */12 *")


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_marked_up_text_is_taken_as_text(store: str, tmp_path: Path) -> None:
    app = Holdfast("memory://" if store == "memory" else f"sqlite:///{tmp_path}/j.db")
    task = app.task(name=Markup("t"))(_say)
    keep: Any = Markup("keep")
    using = task.options(id=Markup("i"), queue=Markup("q"), group=Markup("g"), key=Markup("k"), on_conflict=keep)
    job = using.enqueue(Markup("x"))
    names: dict[str, Any] = {
        "queue": Markup("q"),
        "task": Markup("t"),
        "group": Markup("g"),
        "key": Markup("k"),
        "state": Markup("ready"),
    }
    assert [one.id for one in app.jobs(Markup("state:ready queue:q"))] == [one.id for one in app.jobs(**names)] == ["i"]
    app.pause(queue=Markup("p"), reason=Markup("r"), by=Markup("b"))
    app.work(["q"], drain=True)
    assert job.refresh().state == "succeeded"
    app.bury(app.task_by_name("t").options(delay=60).enqueue("x"), reason=Markup("r"))
    assert [letter.reason for letter in app.dead.list(reason=Markup("bury"))] == ["bury"]
    assert not app.audit().violations
    app.close()


def _say(ctx: Context, x: str) -> None:
    ctx.progress(0.5, Markup("half"))
    ctx.log(Markup("line"), field=Markup("f"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((f"x={'[' * 60_000}",), "x= is nested too deep"),
        (("--args", f'{{"x": {"[" * 60_000}{"]" * 60_000}}}'), "--args is nested too deep"),
        ((f"x={DIGITS}",), "x= has a number of too many digits"),
        (("--args", f'{{"x": {DIGITS}}}'), "--args has a number of too many digits"),
    ],
)
def test_a_command_refuses_arguments_it_cannot_carry(words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    code, said = run("enqueue", "t", *words, "--url", f"sqlite:///{tmp_path}/j.db")
    assert code == 2 and text in said
    assert len(said) < 1000


def test_what_could_steer_or_deceive_a_reader_is_spelt_out() -> None:
    shown = visible(STEERING)
    assert shown.isprintable() and "\\x1b" in shown and "\\u202e" in shown and "\\U000e0001" in shown
    document = visible_json(json.dumps({"a": STEERING}, ensure_ascii=False, indent=2))
    assert document.replace("\n", "").isprintable() and json.loads(document) == {"a": STEERING}
    assert visible("grün 日本 ok\n") == "grün 日本 ok\n"


def test_no_command_prints_marks_that_a_name_or_a_handler_brought(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/j.db"
    app = Holdfast(url)
    evil = type(f"Evil{STEERING}", (Exception,), {})

    def fail(ctx: Context) -> None:
        ctx.log(STEERING)
        raise evil(STEERING)

    app.task(name="t\u202ex", retry=0)(fail)
    app.task_by_name("t\u202ex").options(id="i\u202e", queue="q\u2066", group="g\u200b", key="k\u200b").enqueue()
    app.pause(queue="p\u202e", reason=STEERING)
    app.work(["q\u2066"], drain=True)
    app.close()
    marks = set(STEERING) - set("ab31m]0;x") | set("\u202e\u2066\u200b")
    assert "is dead" in caplog.text and not marks & set(caplog.text)
    commands = (["jobs"], ["job", "i\u202e"], ["explain", "i\u202e"], ["dead", "ls"], ["dead", "show", "i\u202e"])
    for words in (*commands, ["queues"], ["stats"], ["groups", "q\u2066"], ["tasks"]):
        for form in ([], ["--json"]):
            _, said = run(*words, *form, "--url", url)
            assert not marks & set(said), (words, form, said)
            if form and said.startswith("{"):
                json.loads(said)


def test_a_log_keeps_the_lines_of_a_stack(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("holdfast").warning("it is at:\n%s", "a\n\x1bb")
    assert "it is at:\na\n\\x1bb" in caplog.text
