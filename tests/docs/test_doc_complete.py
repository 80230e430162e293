"""The reference names everything: every public name, option, command, error and event, with its true default."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import click
import msgspec
import pytest
from tests.docs.doc_pages import DOCS, mentions, rows, section

import holdfast
from holdfast import errors, events
from holdfast.cli.exits import Exit
from holdfast.cli.main import COMMANDS, cli
from holdfast.context import Context
from holdfast.cron.api import Backfilled, Cron, Entry
from holdfast.cron.entry import CronOptions
from holdfast.inspection import Audit, Explanation, Violation
from holdfast.job import BoundCall, DeadLetter, Job
from holdfast.lifecycle import State, Verb
from holdfast.operator import Dead, Groups, Queues, RegisteredTasks
from holdfast.options import QueueOptions, TaskOptions, WorkerOptions
from holdfast.records import Revival
from holdfast.results import Step
from holdfast.retry import RetryPolicy
from holdfast.task import UsingSettings
from holdfast.testing import ManualClock, Sandbox

API = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
OPTIONS = DOCS / "reference" / "options.md"

FORMER = {"named", "using"}  # old spellings, on the upgrading page

app = holdfast.Holdfast("memory://")


@app.task(name="made_here")
def made_here() -> None:
    """Has the attributes that a task gets when it is made."""


def public(kind: object) -> set[str]:
    """The public attributes of a class or object, its fields among them; a twin counts as its sync method."""
    fields = set(getattr(kind, "__struct_fields__", ())) | {
        field.name for field in (dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ())
    }
    names = {name for name in dir(kind) if not name.startswith("_")} | fields
    twins = {f"a{name}" for name in names}
    return names - twins - FORMER


@pytest.mark.parametrize("name", holdfast.__all__)
def test_the_api_page_names(name: str) -> None:
    assert mentions(API, name)


@pytest.mark.parametrize(
    "kind",
    [
        app,
        made_here,
        made_here.options(delay=1),
        app.task_by_name("elsewhere"),
        holdfast.TaskRouter(),
        Job,
        BoundCall,
        DeadLetter,
        Context,
        RetryPolicy,
        Revival,
        Dead,
        Groups,
        Queues,
        RegisteredTasks,
        Cron,
        Entry,
        Backfilled,
        Step,
        Sandbox,
        ManualClock,
        Audit,
        Violation,
        Explanation,
        holdfast.Enqueued,
        holdfast.Drained,
        holdfast.Failure,
        holdfast.LeasedJob,
    ],
)
def test_the_api_page_names_every_attribute_of(kind: object) -> None:
    assert sorted(name for name in public(kind) if not mentions(API, name)) == []


@pytest.mark.parametrize("state", State)
def test_the_lifecycle_page_names_every_state(state: State) -> None:
    assert mentions((DOCS / "lifecycle.md").read_text(encoding="utf-8"), state.value)


def test_the_lifecycle_page_names_every_verb() -> None:
    text = (DOCS / "lifecycle.md").read_text(encoding="utf-8")
    assert [verb.value for verb in Verb if f"| {verb.value} |" not in text] == []


# ---------------------------------------------------------------------- options


def spelt(value: Any) -> str:
    """A default as the tables spell it."""
    if isinstance(value, str):
        return f'`"{value}"`' if value else "see right"
    if isinstance(value, float) and value.is_integer():
        return f"`{int(value)}`"
    if isinstance(value, Mapping):
        return f"`{dict(value)!r}`"
    return f"`{value!r}`"


def listed(heading: str) -> dict[str, list[str]]:
    found = [row for row in rows(section(OPTIONS, heading)) if row[0].startswith("`")]
    table = {row[0].strip("`"): row for row in found}
    assert len(table) == len(found), f"an option is listed twice under {heading!r}"
    return table


@pytest.mark.parametrize(
    ("heading", "defaults"),
    [
        ("Task options", msgspec.structs.asdict(TaskOptions(retry=RetryPolicy()))),
        (
            "Queue options",
            {field.name: field.default for field in msgspec.structs.fields(QueueOptions) if field.name != "name"},
        ),
        ("Cron options", {field.name: field.default for field in msgspec.structs.fields(CronOptions)}),
        (
            "Worker options",
            {name: getattr(WorkerOptions(), name) for name in WorkerOptions.__slots__ if name != "slots_by_queue"},
        ),
    ],
)
def test_every_option_is_listed_with_its_default(heading: str, defaults: dict[str, Any]) -> None:
    table = listed(heading)
    assert sorted(table) == sorted(defaults)
    for name, value in defaults.items():
        if name != "retry":  # an object: said in words, and checked below
            assert table[name][1] == spelt(value), f"{heading}: {name}"
        assert all(table[name]), f"{heading}: {name} has an empty cell"


def test_the_default_retry_policy_is_told_truly() -> None:
    policy = RetryPolicy()
    assert listed("Task options")["retry"][1] == f"`RetryPolicy(limit={policy.limit})`"
    table = listed("RetryPolicy")
    for name in ("limit", "base", "factor", "cap", "jitter", "delays", "step"):
        assert table[name][1] == spelt(getattr(policy, name)), name
    assert sorted(table) == sorted(RetryPolicy.__slots__)


def test_what_using_takes_is_listed() -> None:
    assert sorted(listed("Options of one call")) == sorted(UsingSettings.__annotations__)


def test_the_default_revival_is_told_truly() -> None:
    table = listed("Revival")
    assert {name: row[1] for name, row in table.items()} == {
        name: spelt(getattr(Revival(), name)) for name in Revival.__slots__
    }


def test_the_apps_own_options_are_listed() -> None:
    parameters = list(inspect.signature(holdfast.Holdfast.__init__).parameters.values())[1:]
    table = listed("App options")
    assert sorted(table) == sorted(parameter.name for parameter in parameters)
    for parameter in parameters:
        assert table[parameter.name][1] == spelt(parameter.default), parameter.name


# ---------------------------------------------------------------------- commands, errors, events


def commands(group: click.Group, path: Iterable[str] = ()) -> Iterable[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        here = (*path, name)
        yield " ".join(here), command
        if isinstance(command, click.Group):
            yield from commands(command, here)


def test_every_command_and_option_is_in_the_reference() -> None:
    page = DOCS / "reference" / "cli.md"
    assert set(COMMANDS) <= {path for path, _ in commands(cli)}
    for path, command in commands(cli):
        text = section(page, f"`holdfast {path}`")
        for parameter in command.params:
            for name in parameter.opts if isinstance(parameter, click.Option) else []:
                assert mentions(text, name), f"{path}: {name}"


@pytest.mark.parametrize("code", Exit)
def test_every_exit_code_is_in_the_reference(code: Exit) -> None:
    table = rows(section(DOCS / "reference" / "cli.md", "Exit codes"))
    assert [row for row in table if row[0] == f"`{code.value}`"]


ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HoldfastError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_explained(kind: type[errors.HoldfastError]) -> None:
    table = {row[0].strip("`"): row for row in rows(section(DOCS / "reference" / "errors.md", "What to do"))}
    assert kind.__name__ in table
    own = inspect.signature(kind.__init__).parameters if "__init__" in vars(kind) else ()
    carried = set(own) - {"self", "advice", "what"}
    assert [name for name in carried if not mentions(table[kind.__name__][2], name)] == []


@pytest.mark.parametrize("name", events.EVENTS)
def test_every_event_is_listed(name: str) -> None:
    assert mentions((DOCS / "reference" / "events.md").read_text(encoding="utf-8"), name)
