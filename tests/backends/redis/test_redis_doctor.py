"""What the doctor reads from a Redis or Valkey server: persistence, eviction, and a quiet time."""

from __future__ import annotations

import asyncio

import redis

from holdfast.backends import open_backend, parse_url
from holdfast.backends.durability import StoreFacts, ask_store
from holdfast.backends.redis.keys import KEY_NAMES, keys_of
from holdfast.inspection.store_health import judge_store, look_at_store

from ...servers.valkey import Server


def asked(server: Server, prefix: str, *options: str) -> tuple[StoreFacts, dict[str, str]]:
    joint = "&" if "?" in server.plain_url else "?"
    address = parse_url(f"{server.plain_url}{joint}{'&'.join([f'prefix={prefix}', *options])}")

    async def look() -> tuple[StoreFacts, dict[str, str]]:
        backend = open_backend(address.url)
        await backend.open()
        try:
            found = judge_store(await look_at_store(backend, address))
            return await ask_store(address), {one.about: one.verdict for one in found}
        finally:
            await backend.close()

    return asyncio.run(look())


def test_what_the_server_tells_is_judged(mortal: Server, prefix: str) -> None:
    with mortal.client() as client:
        facts, verdicts = asked(mortal, prefix)
        assert facts.settings["aof_enabled"] == "1"
        assert facts.settings["appendfsync"] == "everysec"
        assert set(verdicts.values()) == {"fine"}
        client.config_set("appendfsync", "no")
        assert asked(mortal, prefix)[1]["durability"] == "wrong"
        client.config_set("appendfsync", "always")
        assert asked(mortal, prefix)[1]["durability"] == "fine"
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert asked(mortal, prefix, "allow_eviction=true")[1]["memory"] == "note"
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("appendonly", "no")
        assert asked(mortal, prefix, "allow_no_aof=true")[1]["durability"] == "note"


def test_a_quiet_time_is_reported(server: Server, prefix: str, client: redis.Redis) -> None:
    assert "quiet" not in asked(server, prefix)[1]
    seconds, _ = client.time()
    client.hset(keys_of(prefix)[KEY_NAMES.index("meta")], "quiet_until", str(seconds + 50))
    facts, verdicts = asked(server, prefix)
    assert 30 < facts.quiet_seconds <= 50
    assert verdicts["quiet"] == "note"
