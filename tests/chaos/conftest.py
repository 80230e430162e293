"""What the process tests stand on: a scene or crew of their own, cleared away afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.flow_scene import STORES, Crew
from tests.chaos.process_scene import ProcessScene


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ProcessScene]:
    stage = ProcessScene(tmp_path)
    yield stage
    stage.close()


@pytest.fixture(params=sorted(STORES))
def crew(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Crew]:
    crew = Crew(tmp_path, request.param)
    yield crew
    crew.close()
