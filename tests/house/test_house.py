"""The house rules that a machine can check: imports point down, sizes, sorted exports, no forbidden name."""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.postgres.connection import SCHEMA_VERSION
from holdfast.backends.postgres.schema import STATEMENTS
from holdfast.backends.sqlite.codec import SQL

from ..spreading import MANY, PIECE, Order, fillers, is_row

ROOT = Path(holdfast.__file__).parent
REPOSITORY = ROOT.parent.parent
MODULES = sorted(ROOT.rglob("*.py"))

# Lower may not import from higher. A module is looked up by its first part below the package.
WORDS = """
    batch_calls clock codec context dead_copies dependencies durable errors events frozen headers hooks job lazy
    lifecycle logs named_task names options placeholders queries rates records redact retry rollups schedules
    step_replay steps task task_settings worker_status
"""
FACE = "app batches bulk caller_transaction children dead_letters eager edits flows leased_jobs observer operator"
FACE += " producer results store_thread topics unique_keys worker_commands"
INTEGRATIONS = "__main__ asgi cli dashboard django flask metrics otel pytest_plugin sentry"
LAYERS = {
    **dict.fromkeys(WORDS.split(), 0),
    "backends": 1,
    **dict.fromkeys(["cron", "worker", "inspection", "mover"], 2),
    **dict.fromkeys([*FACE.split(), "testing", "__init__"], 3),
    **dict.fromkeys(INTEGRATIONS.split(), 4),
}
FORBIDDEN_NAMES = re.compile(
    r"^(utils?|common|helpers?|base|core|misc|manager|message|broker|consumer|execution|item)$"
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def layer_of(path: Path) -> int:
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert first in LAYERS, f"{name_of(path)}: say in tests/house which layer this belongs to"
    return LAYERS[first]


def imports_at_load(tree: ast.Module) -> list[ast.ImportFrom]:
    """Imports that happen when the module loads: not those inside functions or under TYPE_CHECKING."""
    found: list[ast.ImportFrom] = []
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            waiting += node.body + node.orelse
        elif isinstance(node, ast.Try):
            waiting += node.body
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    here = layer_of(path)
    package = path.relative_to(ROOT).parent.parts
    for node in imports_at_load(ast.parse(path.read_text())):
        if node.level == 0 and not (node.module or "").startswith("holdfast"):
            continue
        above = package[: len(package) - (node.level - 1)] if node.level else ()
        below = (node.module or "").removeprefix("holdfast").strip(".").split(".") if node.module else []
        targets = [*above, *[part for part in below if part]]
        names = [targets[0]] if targets else [alias.name for alias in node.names]
        for name in names:
            layer = LAYERS.get(name, LAYERS["__init__"])
            assert layer <= here, f"{name_of(path)} imports {name}, which is above it"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_and_stays_readable(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{name_of(path)} does not say what it is"
    assert text.count("\n") <= 700, f"{name_of(path)} is more than one concept"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 70, f"{name_of(path)}: {node.name} is {length} lines long"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_file_has_a_name_that_says_nothing(path: Path) -> None:
    for part in path.relative_to(ROOT).parts:
        assert not FORBIDDEN_NAMES.match(part.removesuffix(".py")), name_of(path)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_is_pickled_and_nothing_is_left_to_do(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"^\s*(import|from) (pickle|marshal|shelve)\b", text, re.M)
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)


def test_the_public_names_are_sorted_exist_and_are_few() -> None:
    names = list(holdfast.__all__)
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(holdfast, name)] == []
    assert len(names) <= 66


def test_every_sqlite_statement_is_used() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "backends" / "sqlite").glob("*.py"))
    unused = [name for name in SQL.names if f'"{name}"' not in sources]
    assert unused == []


def test_every_statement_file_opens_with_its_purpose_and_is_short() -> None:
    for path in sorted(ROOT.rglob("*.sql")):
        text = path.read_text()
        assert text.startswith("-- "), path.name
        if path.parent.name == "statements":
            assert text.startswith(f"-- {path.stem}: "), path.name
            assert text.count("\n") <= 400, path.name


def test_no_part_of_a_statement_file_is_long() -> None:
    """A function may be assembled from fragments: nothing is paid for them at run time."""
    for path in sorted((ROOT / "backends").rglob("statements/*.sql")):
        for part in re.split(r"^(?=-- (?:::|==) )", path.read_text(), flags=re.M):
            lines = part.rstrip().count("\n") + 1
            assert lines <= 75, f"{path.name}: {part.splitlines()[0]} has {lines} lines"


def test_every_script_file_opens_with_its_purpose_and_is_short() -> None:
    for path in sorted(ROOT.rglob("*.lua")):
        text = path.read_text()
        assert text.startswith(f"-- {path.stem}: "), path.name
        assert text.count("\n") <= 400, path.name
        assert max(map(len, text.splitlines())) <= 120, path.name


# Lists of equal things, whose first one is meant; the packed arguments; the first of a reply: call(…)[1].
FIRST_OF = {"jobs", "members", "found", "freed", "places", "pieces", "hashes", "ARGV", ")"}


def test_no_script_names_a_position_by_its_number() -> None:
    for path in sorted(ROOT.rglob("*.lua")):
        code = re.sub(r"--.*", "", path.read_text())
        positions = re.findall(r"(\w+|[)\]])\[(\d+)\]", code)
        bare = [(name, number) for name, number in positions if number != "1" or name not in FIRST_OF]
        assert bare == [], f"{path.name}: see backends/redis/layouts.py"
        assert not re.search(r"\bunpack\(args,", code), path.name


# The files in which every store keeps what it does for these verbs, in the order of a job's life.
VERBS = [
    "enqueue",
    "claim",
    "settle",
    "renew",
    "recover",
    "promote",
    "groups",
    "limits",
    "operate",
    "prune",
    "cron",
    "move",
    "read",
    "flaws",
]


@pytest.mark.parametrize("folder", ["sqlite/statements", "postgres/statements", "redis/lua"])
def test_every_store_has_a_file_for_each_verb(folder: str) -> None:
    there = {path.stem for path in (ROOT / "backends" / folder).iterdir()}
    assert [verb for verb in VERBS if verb not in there] == []


# What the functions of each version of the PostgreSQL schema were. The versions up to RELEASED never change.
RELEASED = 3
FUNCTIONS_OF_VERSION = {11: "5f556cfecb903277"}


def test_the_functions_of_a_postgres_schema_version_do_not_change() -> None:
    """A store re-creates its functions only when its version changes."""
    functions = sorted(STATEMENTS[name] for name in STATEMENTS.names if ".function_" in name)
    now = hashlib.sha256("\n".join(functions).encode()).hexdigest()[:16]
    advice = "raise SCHEMA_VERSION" if SCHEMA_VERSION <= RELEASED else "no release has this version yet"
    recorded = f"{SCHEMA_VERSION}: {now!r}"
    assert FUNCTIONS_OF_VERSION.get(SCHEMA_VERSION) == now, f"Functions changed: {advice}; then record {recorded}."


def test_every_rule_of_the_contract_has_a_number_of_its_own() -> None:
    texts = [(ROOT / "backends" / name).read_text() for name in ("contract.py", "reader.py")]
    numbers = sorted(int(number) for text in texts for number in re.findall(r"^ *R(\d+)\.", text, re.M))
    assert numbers == sorted(set(numbers)), "a rule is cited by its number: two have the same"


def test_no_test_sleeps_outside_chaos_and_soak() -> None:
    sleeping = re.compile(r"\b(time|asyncio|anyio)\.sleep\((?!0\))")
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        if not {"chaos", "soak"} & set(path.parts) and path.name != Path(__file__).name:
            assert not sleeping.search(path.read_text()), path.relative_to(REPOSITORY)


def test_chaos_tests_stand_in_a_row_unless_their_file_says_otherwise() -> None:
    """Those that watch real leases must not run beside whatever comes; see tests/spreading.py."""
    rows = {
        path.name for path in (REPOSITORY / "tests").rglob("test_*.py") if is_row(str(path.relative_to(REPOSITORY)))
    }
    assert rows >= {"test_process_fence.py", "test_redis_chaos.py"}
    assert not rows & {"test_move_killed.py", "test_conformance.py"}


def test_rows_come_first_and_what_goes_in_pieces_last() -> None:
    cases = [f"tests/conformance/test_conformance.py::test_case[{n}]" for n in range(MANY)]
    large = "tests/conformance/test_conformance.py::test_case_ten_times_as_large[a]"
    row, walk, other = (
        "tests/chaos/test_process_fence.py",
        "tests/simulation/test_random_walk.py",
        "tests/cli/test_demo_verdict.py",
    )
    given = [*cases, large, f"{other}::test_a", f"{row}::test_a", f"{row}::test_b", f"{walk}::test_a"]
    order = Order(given)
    came = sorted(given, key=order.key)
    assert came == [f"{row}::test_a", f"{row}::test_b", large, f"{walk}::test_a", f"{other}::test_a", *cases]
    units = [order.unit(nodeid) for nodeid in came]
    assert units[:5] == [row, row, large, f"{walk}::test_a", f"{other}::test_a"]
    assert len(set(units[5:])) <= MANY // PIECE + 1
    assert [name for name in dict.fromkeys(units) if order.is_row(name)] == [row]
    pages = ["tests/browser/test_screens.py::test_a", "tests/browser/test_main_paths.py::test_b"]
    assert {Order(pages).unit(nodeid) for nodeid in pages} == {"tests/browser"}, "one browser for all"


def test_some_processes_take_rows_and_some_do_not() -> None:
    assert fillers(1) == 0, "one process runs everything"
    assert [1 <= processes - fillers(processes) < processes for processes in range(2, 9)] == [True] * 7


WALK = (REPOSITORY / "docs/internals/walk-of-a-job.md").read_text()


def test_everything_that_the_index_of_words_names_exists() -> None:
    """An engineer who searches for the field's word finds the file and the name there."""
    rows = WALK.split("## Where to look first")[1].split("## ")[0]
    named = re.findall(r"`([\w/]+\.(?:py|sql|lua))(?:#(\w+))?`", rows)
    assert len(named) > 30
    for file, name in named:
        texts = [path.read_text() for path in ROOT.rglob(file)]
        assert texts, file
        assert not name or any(f"def {name}(" in text for text in texts), f"{file}#{name}"


PLACES = (REPOSITORY / "docs/internals/rules-and-places.md").read_text()
FOLDERS = [ROOT, *(ROOT / "backends" / store for store in ("sqlite", "postgres", "redis")), ROOT]


def test_everything_that_the_page_of_rules_names_exists() -> None:
    """The page lists where each rule is written; its counts are those of its rows."""
    rows = [line.split("|")[1:-1] for line in PLACES.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == 23
    total = 0
    for rule, *cells, places in rows:
        named = 0
        for cell, folder in zip(cells, FOLDERS, strict=True):
            for file, name in re.findall(r"`([\w/]+\.\w+)#(\w+)`", cell):
                named += 1
                texts = [path.read_text() for path in folder.rglob(file)]
                defined = rf"(?:def |hf\.|-- :: |fragment |function_|-- == (?:script|part|fast) ){name}\b"
                assert any(re.search(defined, text) for text in texts), f"{rule.strip()}: {file}#{name}"
        assert named == int(places), rule
        total += named
    assert f"That is {total} places." in PLACES
