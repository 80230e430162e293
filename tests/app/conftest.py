"""Apps to test with: the same user's app on memory and on a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    with Holdfast(url) as made:
        yield made


@pytest.fixture
def memory_app() -> Iterator[Holdfast]:
    with Holdfast("memory://") as made:
        yield made


@pytest.fixture
def sqlite_app(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(f"sqlite:///{tmp_path}/jobs.db") as made:
        yield made
