"""Flows and batches while workers and their store are killed: `python -m tests.soak.flows` in small."""

from __future__ import annotations

import pytest

from tests.soak.flows import run


@pytest.mark.parametrize("kind", ["sqlite", "redis", "cluster"])
def test_every_join_and_callback_is_fired_once(kind: str) -> None:
    holds, text = run(kind, jobs=58, kills=3, store_kills=1, pause=0.5, seed=1)
    assert holds, text
