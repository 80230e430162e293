"""What the process tests stand on: a scene of their own, cleared away afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.process_scene import ProcessScene


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ProcessScene]:
    stage = ProcessScene(tmp_path)
    yield stage
    stage.close()
