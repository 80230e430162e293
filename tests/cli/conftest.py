"""Commands to run, on a store of each test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.shells import SHOP, Shell


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Commands, where no store has been made yet."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    shell = Shell(tmp_path, url)
    (tmp_path / f"{shell.module}.py").write_text(SHOP.format(url=url))
    return shell


@pytest.fixture
def shell(empty: Shell) -> Shell:
    """Commands, on a store that is there."""
    empty("migrate")
    return empty
