"""A filled shop on SQLite, and its dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.dashboard.shop import fill, shop


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    made = shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    yield made
    made.close()


@pytest.fixture
def jobs(app: Holdfast) -> dict[str, str]:
    """One id for each state."""
    return asyncio.run(fill(app))
