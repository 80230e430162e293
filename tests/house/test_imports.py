"""What a process must not import for what it does: imports are most of the time from start to the first job."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.backends import preload
from holdfast.worker.processes.process_worker import likely_scheme
from holdfast.worker.processes.spawner import Plan

NEVER = "asyncio ssl subprocess ctypes difflib tempfile zipfile importlib.resources redis psycopg rich click cronsim"
PRODUCER = """
    app backends clock codec context dead_copies dead_letters dependencies durable errors events frozen headers hooks
    job lazy lifecycle logs names named_task observer operator options options.checks options.families options.special
    options.tasks options.workers placeholders producer queries queries.language queries.match queries.pages rates
    records results retry rollups schedules steps store_thread task task_settings unique_keys worker_commands
    worker_status
"""
FEATURES = """
    batches bulk children eager flows leased_jobs step_replay cron.api metrics otel inspection mover testing redact
    worker.runner.batches backends.sqlite.steps
"""
ENQUEUE = """
import sys
from holdfast import Holdfast
app = Holdfast(sys.argv[1])
@app.task(name="greet")
def greet(who: str) -> None: ...
greet.enqueue("you")
"""


def imported(code: str, *arguments: str) -> set[str]:
    """The modules that a new interpreter has imported after this code, without those it starts with."""
    code = f"import sys; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_importing_holdfast_imports_nothing_else() -> None:
    assert imported("import typing, importlib, holdfast") <= {"holdfast", "__future__"} | imported(
        "import typing, importlib"
    )


def test_an_app_imports_no_driver_no_loop_and_no_worker() -> None:
    found = imported("from holdfast import Holdfast; Holdfast('redis://127.0.0.1:1')")
    assert found & set(NEVER.split()) == set()
    assert not [
        name for name in found if name.startswith(("holdfast.worker.", "holdfast.cron", "holdfast.backends.redis"))
    ]


def test_a_producer_on_sqlite_enqueues_without_asyncio(tmp_path: Path) -> None:
    found = imported(ENQUEUE, f"sqlite:///{tmp_path}/jobs.db")
    assert found & set(NEVER.split()) == set()
    verbs = {name.rpartition(".")[2] for name in found if name.startswith("holdfast.backends.sqlite.")}
    assert verbs == {"backend", "codec", "connection", "enqueue", "fork", "groups", "schema", "wakeups"}


def test_a_producer_on_sqlite_imports_no_feature_that_it_does_not_use(tmp_path: Path) -> None:
    """A module that joins this list costs every producer: import it lazily (`lazy.py`) if most do without."""
    found = {name for name in imported(ENQUEUE, f"sqlite:///{tmp_path}/jobs.db") if name.startswith("holdfast.")}
    stores = {name for name in found if name.startswith("holdfast.backends.")}
    assert {name.removeprefix("holdfast.") for name in found - stores} <= set(PRODUCER.split())
    assert {name.removeprefix("holdfast.backends.") for name in stores if ".sqlite" not in name} == {
        *(
            "caller_connections",
            "contract",
            "formulas",
            "fragments",
            "reader",
            "scan_pages",
            "seals",
            "urls",
        )
    }


def test_the_command_line_shows_its_version_without_msgspec() -> None:
    found = imported("import holdfast.cli.main")
    assert found & {"msgspec", "asyncio", "rich"} == set()


@pytest.mark.parametrize("what", [f"exec({ENQUEUE!r})", "import holdfast.cli.runner_main"])
def test_dataclasses_are_not_compiled_at_every_start(tmp_path: Path, what: str) -> None:
    """Each costs half a millisecond. `Revival` is one, as it is stored."""
    count = "import dataclasses; made = []; process = dataclasses._process_class\n"
    count += "dataclasses._process_class = lambda cls, *rest: (made.append(cls.__name__), process(cls, *rest))[1]\n"
    ran = subprocess.run(
        [sys.executable, "-c", f"{count}{what}\nprint(*made)", f"sqlite:///{tmp_path}/jobs.db"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.split() == ["Revival"]


COUNTED = f"""
import gc
collections = []
gc.callbacks.append(lambda phase, facts: collections.append(facts["generation"]) if phase == "stop" else None)
{ENQUEUE}
print(len(collections), gc.isenabled(), gc.get_freeze_count())
"""


def test_a_producers_imports_are_not_searched_for_garbage(tmp_path: Path) -> None:
    """Everything that is imported stays. Searching it took a seventh of the time: 44 times on SQLite."""
    ran = subprocess.run(
        [sys.executable, "-c", COUNTED, f"sqlite:///{tmp_path}/jobs.db"], capture_output=True, text=True, check=True
    )
    count, *state = ran.stdout.split()
    assert int(count) < 15
    assert state == ["True", "0"]


def test_a_program_that_never_collects_or_keeps_frozen_objects_finds_them_so(tmp_path: Path) -> None:
    for first, state in (
        ("gc.disable()", ["False", "0"]),
        ("gc.freeze(); kept = gc.get_freeze_count()", ["True", "kept"]),
    ):
        code = COUNTED.replace("collections = []", f"collections = []; {first}")
        code += "\nif 'kept' in globals(): assert gc.get_freeze_count() >= kept - 100 > 0; print('kept')"
        ran = subprocess.run(
            [sys.executable, "-c", code, f"sqlite:///{tmp_path}/jobs.db"], capture_output=True, text=True, check=True
        )
        words = ran.stdout.split()[1:]
        assert [words[0], words[-1]] == state


@pytest.mark.parametrize("feature", FEATURES.split())
def test_features_are_modules_that_exist(feature: str) -> None:
    assert importlib.util.find_spec(f"holdfast.{feature}") is not None


def test_a_runner_imports_neither_the_keeper_nor_the_command_line() -> None:
    found = imported("import holdfast.cli.runner_main")
    assert (
        found & {"click", "rich", "cronsim", "tempfile", "ctypes", "sqlite3", "holdfast.worker.keeper.keeper"} == set()
    )
    assert found & {f"holdfast.{name}" for name in FEATURES.split()} == set()


def test_a_keeper_imports_its_own_store_and_no_feature_of_handlers() -> None:
    found = imported(
        "import holdfast.cli.work, holdfast.worker.processes.process_worker as worker; worker.import_engine('sqlite')"
    )
    assert found & {"secrets", "rich", "redis", "psycopg", "holdfast.app", "holdfast.worker.runner.attempt"} == set()
    assert found & {f"holdfast.{name}" for name in FEATURES.split()} == {
        "holdfast.cron.api"
    }  # every keeper fires ticks


def test_the_first_runner_is_launched_before_the_keeper_is_imported() -> None:
    found = imported("import holdfast.cli.main, holdfast.cli.work, holdfast.worker.processes.launch")
    ours = {name.removeprefix("holdfast.") for name in found if name.startswith("holdfast.")}
    launch = {f"worker.processes.{name}" for name in ("launch", "guard", "begin_flags")}
    rest = {"cli", "cli.main", "cli.work", "cli.output", "cli.parse", "cli.exits", "errors", "lazy", "names"}
    assert ours == {*launch, *rest, "worker", "worker.processes", "worker.keeper", "worker.keeper.identity"}
    assert found & {"asyncio", "ssl", "msgspec", "logging", "rich", "concurrent"} == set()


def test_the_keeper_imports_its_engine_and_the_store_while_the_runner_imports_the_app() -> None:
    found = imported("import holdfast.cli.work, holdfast.worker.processes.process_worker")
    late = ("holdfast.worker.keeper.keeper", "holdfast.worker.keeper.exchange_loop", "holdfast.cron.api", "cronsim")
    assert found & {*late, "sqlite3", "redis", "psycopg", "rich"} == set()


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("app = Holdfast('redis://127.0.0.1/0')", "redis"),
        ("app = Holdfast('valkeys+cluster://h:1')", "valkey"),
        ("URL = os.environ.get('X', 'postgresql://h/db')", "postgres"),
        ("app = Holdfast('sqlite:///jobs.db')", "sqlite"),
        ("app = Holdfast(settings.url)", ""),
    ],
)
def test_the_store_is_guessed_from_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, scheme: str
) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text(text)
    (tmp_path / "jobs.py").write_text(text)
    for app in ("shop:app", "jobs:app"):
        plan = Plan(app=app, app_dir=str(tmp_path))
        assert likely_scheme(plan) == scheme
        assert likely_scheme(replace(plan, url="postgresql://h/db")) == "postgresql"
    assert likely_scheme(Plan(app="nowhere:app", app_dir=str(tmp_path))) == ""


def test_a_wrong_guess_is_no_error() -> None:
    preload("nonsense")
    preload("")


@pytest.mark.parametrize("name", ["asyncio", "bulks"])
def test_a_lazy_import_puts_the_module_in_its_place(name: str) -> None:
    code = f"""
from holdfast import operator, store_thread
home = {{"asyncio": store_thread, "bulks": operator}}[{name!r}]
before = type(vars(home)[{name!r}]).__name__
assert callable(getattr(vars(home)[{name!r}], {{"asyncio": "sleep", "bulks": "run"}}[{name!r}]))
print(before, type(vars(home)[{name!r}]).__name__)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["_Pending", "module"]


def test_only_what_the_type_checker_sees_is_imported_lazily() -> None:
    """A lazy name must be imported under TYPE_CHECKING, where mypy and the reader find it."""
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for line in text.splitlines():
            if line.strip().startswith("import_lazily(globals(), "):
                assert "\nif TYPE_CHECKING:\n" in text, path.name
