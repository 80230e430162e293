"""The blocks made from the code say what the code says now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.doc_pages import DOCS, name_of


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = load()


@pytest.mark.parametrize("page", sorted({name for name, _ in GENERATE.BLOCKS.values()}))
def test_the_generated_blocks_are_current(page: str) -> None:
    path: Path = DOCS / page
    assert path.read_text(encoding="utf-8") == GENERATE.regenerated()[path], (
        f"{name_of(path)} is behind the code. Run: python docs/generate.py"
    )


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(SystemExit, match="markers"):
        GENERATE.replaced("# A page\n", "events", "body")


def test_regenerating_twice_changes_nothing() -> None:
    for path, text in GENERATE.regenerated().items():
        for block, (name, make) in GENERATE.BLOCKS.items():
            if DOCS / name == path:
                assert GENERATE.replaced(text, block, make()) == text
