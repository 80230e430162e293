"""Pages, docstrings and comments name only source files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.doc_pages import DOCS, PAGES, ROOT, name_of, rows

SOURCE = ROOT / "src" / "holdfast"
WALK = DOCS / "internals" / "walk-of-a-job.md"
STORES = {
    "SQLite": SOURCE / "backends/sqlite",
    "PostgreSQL": SOURCE / "backends/postgres",
    "Redis": SOURCE / "backends/redis",
}
_OF_DJANGO = {"manage.py", "settings.py", "tasks.py"}
OTHERS = {"hello.py", "name.py", "shop.py", "selectors.py", *_OF_DJANGO}  # of the reader and of Python


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in {".py", ".sql", ".lua"}]


OURS = [*files_below(SOURCE), *ROOT.glob("*.py")]
ALL = [*OURS, *(path for folder in ("tests", "docs", "bench", "examples") for path in files_below(ROOT / folder))]


def named(text: str) -> list[str]:
    """The files a text names; not `a.b.lua`, `kind.lua.replace` or a pattern."""
    found = re.findall(r"(?<![\w./*<{%-])(?:[\w-]+/)*\w+\.(?:py|sql|lua)\b(?!\.\w)", text)
    return [name for name in found if name not in OTHERS]


def is_one_of(files: list[Path], name: str) -> bool:
    return any(path.as_posix().endswith(f"/{name}") for path in files)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_names_only_files_that_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # what was
    text = page.read_text(encoding="utf-8")
    assert [name for name in named(text) if not is_one_of(ALL if "/" in name else OURS, name)] == []


def test_a_store_has_the_files_that_the_walk_of_a_job_names_for_it() -> None:
    text = WALK.read_text(encoding="utf-8")
    heads, *steps = rows(text)
    told = [(head, cell) for row in steps for head, cell in zip(heads, row, strict=True)]
    told += re.findall(r"^\* \*\*(\w+)\*\*: (.*?)(?=^\* |^$)", text, re.M | re.S)
    for head, cell in told:
        for store, folder in STORES.items():
            if head.startswith(store):
                assert [name for name in named(cell) if not is_one_of(files_below(folder), name)] == [], store


def test_a_source_file_names_only_files_beside_below_or_above_it() -> None:
    wrong = {}
    for path in OURS:
        if path.parent.name == "migrations":
            continue  # their text never changes
        folders = {path.parent, *path.parents}
        near = [file for file in OURS if file.parent in folders or file.is_relative_to(path.parent)]
        names = named(path.read_text(encoding="utf-8"))
        if missing := [name for name in names if not is_one_of(ALL if "/" in name else near, name)]:
            wrong[str(path.relative_to(ROOT))] = missing
    assert wrong == {}
