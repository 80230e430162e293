"""The doctor on stores that are not well: each fault is found, alone, and a sound store has none."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.durability import StoreFacts
from holdfast.inspection.store_health import StoreLook, judge_store
from holdfast.records import Seal

SQLITE = StoreFacts(schema=4, settings={"journal_mode": "wal", "synchronous": "FULL"}, free_bytes=50 << 30)
POSTGRES = StoreFacts(
    schema=1, settings={"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "server_version": "18.0"}
)
REDIS = StoreFacts(
    schema=1,
    settings={
        "aof_enabled": "1",
        "aof_last_write_status": "ok",
        "rdb_last_bgsave_status": "ok",
        "appendfsync": "everysec",
        "maxmemory": "1000",
        "maxmemory_policy": "noeviction",
        "used_memory": "100",
    },
)
SOUND = {
    "sqlite": StoreLook(url="sqlite:///jobs.db", scheme="sqlite", facts=SQLITE),
    "postgresql": StoreLook(url="postgresql://h/d", scheme="postgresql", facts=POSTGRES),
    "redis": StoreLook(url="redis://h", scheme="redis", facts=REDIS),
    "redis+cluster": StoreLook(
        url="redis+cluster://h",
        scheme="redis+cluster",
        facts=StoreFacts(schema=1, nodes={"h:1": REDIS.settings, "h:2": REDIS.settings}),
    ),
}


def verdicts(look: StoreLook) -> dict[str, str]:
    return {one.about: one.verdict for one in judge_store(look) if one.verdict != "fine"}


@pytest.mark.parametrize("scheme", SOUND)
def test_a_sound_store_is_fine(scheme: str) -> None:
    assert verdicts(SOUND[scheme]) == {}
    assert {"store", "schema", "clock", "durability", "seal"} <= {one.about for one in judge_store(SOUND[scheme])}


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_a_service_that_tells_no_settings_is_not_accused(scheme: str) -> None:
    assert verdicts(replace(SOUND[scheme], facts=StoreFacts(schema=1))) == {}


@pytest.mark.parametrize(
    ("scheme", "settings", "found"),
    [
        ("sqlite", {"synchronous": "NORMAL"}, {"durability": "note"}),
        ("sqlite", {"synchronous": "EXTRA"}, {}),
        ("sqlite", {"journal_mode": "delete"}, {"durability": "wrong"}),
        ("postgresql", {"fsync": "off"}, {"durability": "wrong"}),
        ("postgresql", {"full_page_writes": "off"}, {"durability": "wrong"}),
        ("postgresql", {"synchronous_commit": "off"}, {"durability": "wrong"}),
        ("postgresql", {"synchronous_commit": "local"}, {"durability": "note"}),
        ("postgresql", {"synchronous_commit": "remote_apply"}, {}),
        ("redis", {"aof_enabled": "0"}, {"durability": "note"}),
        ("redis", {"aof_last_write_status": "err"}, {"durability": "wrong"}),
        ("redis", {"rdb_last_bgsave_status": "err"}, {"durability": "wrong"}),
        ("redis", {"appendfsync": "no"}, {"durability": "wrong"}),
        ("redis", {"appendfsync": "always"}, {}),
        ("redis", {"maxmemory_policy": "allkeys-lru"}, {"memory": "note"}),
        ("redis", {"maxmemory": "0"}, {}),
        ("redis", {"used_memory": "850"}, {"memory": "note"}),
        ("redis", {"used_memory": "990"}, {"memory": "wrong"}),
    ],
)
def test_each_setting_that_may_lose_jobs_is_found(scheme: str, settings: dict[str, str], found: dict[str, str]) -> None:
    look = SOUND[scheme]
    facts = replace(look.facts, settings={**look.facts.settings, **settings})
    assert verdicts(replace(look, facts=facts)) == found


SOURCE = Seal(move="m", role="source", other="redis://h")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"answer_seconds": 1.5}, {"store": "note"}),
        ({"difference_seconds": 0.9}, {}),
        ({"difference_seconds": -2.0}, {"clock": "note"}),
        ({"difference_seconds": 3600.0}, {"clock": "wrong"}),
        ({"seal": SOURCE}, {"seal": "wrong"}),
        ({"seal": replace(SOURCE, stage="moved")}, {"seal": "wrong"}),
        ({"seal": replace(SOURCE, role="target")}, {"seal": "wrong"}),
        ({"seal": replace(SOURCE, role="target", stage="moved")}, {}),
        ({"facts": replace(SQLITE, quiet_seconds=12.0)}, {"quiet": "note"}),
        ({"facts": replace(SQLITE, free_bytes=500 << 20)}, {"disk": "note"}),
        ({"facts": replace(SQLITE, free_bytes=1 << 20)}, {"disk": "wrong"}),
        ({"facts": replace(SQLITE, free_bytes=None)}, {"disk": "note"}),
    ],
)
def test_each_fault_is_found_and_nothing_else(change: dict[str, Any], found: dict[str, str]) -> None:
    look = replace(SOUND["sqlite"], **change)
    assert verdicts(look) == found
    assert all(one.next for one in judge_store(look) if one.verdict == "wrong")


def test_a_clock_that_is_off_is_reported_as_ahead_or_behind() -> None:
    for off, words in ((5.0, "ahead of"), (-5.0, "behind")):
        (clock,) = [
            one for one in judge_store(replace(SOUND["sqlite"], difference_seconds=off)) if one.about == "clock"
        ]
        assert f"5.000 s {words} this machine's" in clock.text
        assert clock.facts == {"difference_seconds": off}


def test_a_node_of_a_cluster_that_is_not_well_is_named() -> None:
    bad = {**REDIS.settings, "appendfsync": "no", "used_memory": "990"}
    nodes = {"h:1": REDIS.settings, "h:2": bad, "h:3": None}
    found = judge_store(replace(SOUND["redis+cluster"], facts=StoreFacts(schema=1, nodes=nodes)))
    bad_ones = [(one.about, one.verdict, one.text.partition(":")[0]) for one in found if one.verdict != "fine"]
    assert bad_ones == [
        ("durability", "wrong", "node h"),
        ("memory", "wrong", "node h"),
        ("durability", "wrong", "node h"),
    ]
    assert [one.facts["node"] for one in found if one.verdict != "fine"] == ["h:2", "h:2", "h:3"]


@pytest.mark.parametrize(
    ("finished", "step"),
    [(1200, "1,200 finished jobs are removed early"), (0, "No finished job is left to remove"), (None, "Above 90 %")],
)
def test_a_full_redis_says_what_opens_it_again(finished: int | None, step: str) -> None:
    facts = replace(REDIS, settings={**REDIS.settings, "used_memory": "990"})
    found = judge_store(replace(SOUND["redis"], facts=facts, finished=finished))
    [memory] = [one for one in found if one.about == "memory"]
    assert memory.next.startswith(step)
