"""Apps to test cron with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import Holdfast


@pytest.fixture
def app() -> Iterator[Holdfast]:
    with Holdfast("memory://") as made:
        yield made
