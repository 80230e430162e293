"""The soak's own servers: what they do must not lose what was acknowledged."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.soak import stores


def test_a_replica_that_does_not_catch_up_is_not_taken_for_the_primary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "SWITCH_MILLIS", 100)
    store = stores.RedisStore(tmp_path)
    try:
        primary, replica = store._servers
        with primary.client() as client:
            stores.RedisStore._until(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
            replica.send(signal.SIGSTOP)
            client.set("late", "yes")
            store._switch()
            assert store._servers == [primary, replica]
            replica.send(signal.SIGCONT)
            assert client.get("late") == b"yes"
    finally:
        store.close()


def test_a_replica_that_caught_up_is_the_primary(tmp_path: Path) -> None:
    store = stores.RedisStore(tmp_path)
    try:
        primary, replica = store._servers
        with primary.client() as client:
            stores.RedisStore._until(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
            client.set("late", "yes")
        store._switch()
        assert store._servers == [replica, primary]
        with replica.client() as client:
            assert client.get("late") == b"yes"
    finally:
        store.close()
