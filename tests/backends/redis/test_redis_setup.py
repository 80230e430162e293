"""Set-up: servers that would lose jobs are refused, a store is made once, and what is not ours is left alone."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from holdfast import rates, records
from holdfast.backends import open_backend
from holdfast.backends.fragments import StatementsBroken
from holdfast.backends.redis import assembler, codec, scripts
from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.keys import KEY_NAMES, SCHEMA_VERSION, keys_of
from holdfast.backends.redis.server import check_server
from holdfast.errors import BackendNotInstalled, BackendUnavailable, ConfigurationError, HoldfastError, SchemaMismatch
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import NewJob
from holdfast.steps import SIGNALS_MAX

from ...reference.store import RETAIN_SECONDS
from ...servers.valkey import Server, free_port

Make = Callable[..., RedisBackend]
GOOD = {"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction", "aof_enabled": "1"}


async def opened(backend: RedisBackend) -> RedisBackend:
    try:
        await backend.open()
    finally:
        await backend.close()
    return backend


def test_opening_creates_the_store_and_opening_again_keeps_it(make: Make) -> None:
    async def run() -> None:
        first, second = make(), make()
        assert await first.migrate() == (0, SCHEMA_VERSION)
        await first.enqueue([NewJob(id="a", task="t")])
        await first.open()
        assert await second.migrate() == (SCHEMA_VERSION, SCHEMA_VERSION)
        assert await second.get("a") is not None
        await first.close()
        await second.close()

    asyncio.run(run())


def test_eight_may_set_it_up_at_once(make: Make) -> None:
    async def run() -> None:
        backends = [make() for _ in range(8)]
        found = await asyncio.gather(*(one.migrate() for one in backends))
        assert sorted(found) == [(0, SCHEMA_VERSION)] + [(SCHEMA_VERSION, SCHEMA_VERSION)] * 7
        for one in backends:
            await one.close()

    asyncio.run(run())


def test_an_evicting_server_is_refused_by_name_value_and_way_out(mortal: Server) -> None:
    with mortal.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(opened(RedisBackend(mortal.plain_url)))
    for word in ("maxmemory-policy", "'allkeys-lru'", "noeviction", "allow_eviction=true"):
        assert word in str(caught.value)
    asyncio.run(opened(RedisBackend(mortal.plain_url, allow_eviction=True)))


def test_a_server_without_its_file_is_refused_by_name_value_and_way_out(mortal: Server) -> None:
    with mortal.client() as client:
        client.config_set("appendonly", "no")
    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(opened(RedisBackend(mortal.plain_url)))
    for word in ("appendonly", "'no'", "appendonly yes", "allow_no_aof=true"):
        assert word in str(caught.value)
    asyncio.run(opened(RedisBackend(mortal.plain_url, allow_no_aof=True)))


def test_a_server_that_forbids_config_is_looked_at_all_the_same(mortal: Server) -> None:
    with mortal.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">hunter2", "~{holdfast}:*", "+@all", "-config")
    url = f"redis://app:hunter2@127.0.0.1:{mortal.port}/0"
    asyncio.run(opened(RedisBackend(url)))
    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(opened(RedisBackend(url.replace("hunter2", "hunter3"))))
    assert "hunter" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=re.escape("ACL SETUSER app ~{another}:*")):
        asyncio.run(opened(RedisBackend(url, prefix="another")))


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({"redis_version": "6.2.14"}, "Redis 6.2.14"),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.5", "server_name": "valkey"}, "Valkey 7.2.5"),
        ({"role": "slave"}, "replica"),
        ({"maxmemory_policy": "volatile-ttl"}, "volatile-ttl"),
        ({"aof_enabled": "0"}, "appendonly"),
    ],
)
def test_what_a_server_tells_of_itself_is_judged(told: dict[str, str], error: str) -> None:
    check_server(GOOD, allow_eviction=False, allow_no_aof=False)
    with pytest.raises(HoldfastError, match=error):
        check_server({**GOOD, **told}, allow_eviction=False, allow_no_aof=False)


def test_a_replica_is_refused(mortal: Server) -> None:
    with mortal.client() as client:
        client.replicaof("127.0.0.1", str(free_port()))
    with pytest.raises(BackendUnavailable, match="primary"):
        asyncio.run(opened(RedisBackend(mortal.plain_url)))


def test_a_server_that_became_a_replica_refuses_writes_and_nothing_is_unknown(mortal: Server) -> None:
    async def run() -> None:
        backend = RedisBackend(mortal.plain_url)
        await backend.open()
        with mortal.client() as client:
            client.replicaof("127.0.0.1", str(free_port()))
        with pytest.raises(BackendUnavailable, match="primary"):
            await backend.enqueue([NewJob(id="a", task="t")])
        await backend.close()

    asyncio.run(run())


def test_a_newer_store_is_refused_and_not_touched(make: Make, client: redis.Redis, prefix: str) -> None:
    meta = keys_of(prefix)[0]

    async def run() -> None:
        backend = make()
        await backend.open()
        client.hset(meta, "schema", str(SCHEMA_VERSION + 1))
        with pytest.raises(SchemaMismatch, match="Upgrade holdfast"):
            await backend.enqueue([NewJob(id="a", task="t")])  # who is open notices, too
        await backend.close()
        with pytest.raises(SchemaMismatch, match="Upgrade holdfast"):
            await backend.open()
        await backend.close()
        assert client.exists(*keys_of(prefix)) == 1

    asyncio.run(run())


def test_a_store_from_before_the_first_release_is_refused_with_advice_that_helps(
    make: Make, client: redis.Redis, prefix: str
) -> None:
    client.hset(keys_of(prefix)[0], "schema", "1")

    async def run() -> None:
        backend = make()
        with pytest.raises(SchemaMismatch, match="another prefix"):
            await backend.open()
        await backend.close()

    asyncio.run(run())


def test_a_store_that_was_flushed_away_is_not_written_into(make: Make, client: redis.Redis, prefix: str) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        client.delete(keys_of(prefix)[0])
        with pytest.raises(SchemaMismatch):
            await backend.enqueue([NewJob(id="a", task="t")])
        assert client.exists(*keys_of(prefix)) == 0
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("name", ["jobs", "ready", "wake", "meta"])
def test_a_prefix_in_use_by_something_else_is_left_alone(
    make: Make, client: redis.Redis, prefix: str, name: str
) -> None:
    key = dict(zip(KEY_NAMES, keys_of(prefix), strict=True))[name]
    client.set(key, "somebody's")
    with pytest.raises(ConfigurationError, match="belongs to no Holdfast store"):
        asyncio.run(opened(make()))
    assert client.exists(*keys_of(prefix)) == 1


@pytest.mark.parametrize("prefix", ["", "a{b}", "a b", "a\n", "x" * 500])
def test_prefixes_that_cannot_be_ours_are_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError):
        RedisBackend("redis://host", prefix=prefix)


def test_every_key_of_a_store_has_one_hash_tag() -> None:
    assert {key.partition("}")[0] for key in keys_of("jobs:mail:3")} == {"{jobs:mail:3"}
    assert len(set(keys_of("jobs"))) == len(KEY_NAMES)


def test_an_option_the_driver_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="colour"):
        open_backend("redis://host/0?colour=red")


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendNotInstalled, match=r"pip install 'holdfast\[redis\]'"):
        open_backend("redis://host/0")


def test_a_server_that_is_not_there_is_unavailable_and_no_password_is_shown() -> None:
    refusing = RedisBackend(f"redis://u:hunter2@127.0.0.1:{free_port()}/0", call_timeout=1.0)
    with pytest.raises(BackendUnavailable) as caught:
        asyncio.run(refusing.open())
    assert "hunter2" not in str(caught.value)
    with pytest.raises(BackendUnavailable):
        asyncio.run(RedisBackend("unix:///nowhere/redis.sock").open())


def test_no_caller_can_lend_a_connection(make: Make, client: redis.Redis) -> None:
    with pytest.raises(ConfigurationError, match="cannot join"):
        make().enqueue_on(client, [NewJob(id="a", task="t")])


def test_a_number_of_a_database_keeps_stores_apart(mortal: Server) -> None:
    async def run() -> None:
        one, two = (RedisBackend(f"redis://127.0.0.1:{mortal.port}/{number}") for number in (0, 5))
        await one.open()
        await two.open()
        await one.enqueue([NewJob(id="a", task="t")])
        assert await two.get("a") is None
        await one.close()
        await two.close()

    asyncio.run(run())


def test_scripts_build_no_name_of_a_key() -> None:
    for path in sorted((Path(scripts.__file__).parent / "lua").glob("*.lua")):
        assert "KEYS[" not in path.read_text() or path.stem == "failover", path.name  # open looks at all of them


def test_a_name_without_a_position_is_refused() -> None:
    names = assembler._arguments("enqueue", "-- args: now, jobs\n-- raw: bodies...")
    for code in ("return row[STAET]", "return args.jbos", "return meta.sek", "return ARGV.boddies"):
        with pytest.raises(StatementsBroken, match="no"):
            assembler._with_positions("enqueue", code, names)


def test_every_name_in_capitals_has_been_replaced() -> None:
    for script in assembler.load_scripts().values():
        code = re.sub(r"'[^']*'|--.*", "", script.text)
        left = set(re.findall(r"\b[A-Z][A-Z_]{2,}\b", code)) - {"KEYS", "ARGV"}
        assert {name for name in left if f"local {name} = " not in code} == set(), script.verb


def test_a_fragment_is_inserted_with_its_arguments() -> None:
    fragment = assembler._fragment("-- TWICE(a, b): twice.\n-- Why.\na .. b .. a\n")
    code = assembler._with_fragments("x = TWICE(f(1, 2), TWICE('p', q[1]))", {"TWICE": fragment})
    assert code == "x = f(1, 2) .. 'p' .. q[1] .. 'p' .. f(1, 2)"


def test_a_script_is_assembled_when_it_is_first_used_and_the_words_of_all_are_known_before() -> None:
    fresh = assembler.load_scripts()
    words = fresh.words
    assert not fresh._made
    assert fresh["enqueue"] is fresh["enqueue"] and set(fresh._made) == {"enqueue"}
    assert {word for script in fresh.values() for word in re.findall(r"'([A-Z]{2,})'", script.text)} <= words


def test_all_scripts_fit_together() -> None:
    assembler.load_scripts().check()
    found = assembler._sections()
    found["part"]["stray"] = "-- stray: needed by nobody.\nfunction hf.stray()\nend\n"
    with pytest.raises(StatementsBroken, match="parts that no script needs: \\['stray'\\]"):
        assembler.AssembledScripts(found, with_fast_paths=True).check()


def test_a_full_server_refuses_only_what_brings_more_work() -> None:
    every = assembler.load_scripts()
    flagged = {verb for verb, script in every.items() if "allow-oom" in script.text.splitlines()[0]}
    assert set(every) - flagged == {
        "carry",
        "edit",
        "enqueue",
        "link",
        "record",
        "rejoin",
        "revive",
        "settle_with",
        "signal",
        "tick",
    }


def test_the_page_about_the_store_names_every_key() -> None:
    page = Path(__file__).parents[3] / "docs" / "internals" / "redis.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    told = {name for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert set(KEY_NAMES) <= told


def test_bounds_in_lua_are_the_codes() -> None:
    found = assembler._sections()
    constants = assembler._constants([*found["part"].values(), *found["script"].values()])
    for name in ("ERRORS_KEPT_MAX", "HISTORY_KEPT_MAX", "LOGS_KEPT_MAX", "REMEMBER_SECONDS_MIN"):
        assert float(constants[name]) == getattr(records, name), name
    for name in ("GROUP_LOOKS_MAX", "READY_PER_GROUP_MAX", "STAGGER_TICKS"):
        assert float(constants[name]) == getattr(records, name), name
    for name in ("ROUNDING", "SLACK_SHARE", "UNLIMITED"):
        assert float(constants[name]) == getattr(rates, name), name
    assert float(constants["SIGNALS_MAX"]) == SIGNALS_MAX
    assert constants["SERIAL_PREFIX"] == repr(records.SERIAL_PREFIX)
    assert float(constants["RETAIN_SECONDS"]) == RETAIN_SECONDS
    assert RETAIN_SECONDS == codec._RETAIN == Settlement(id="", token="", ending=Ending.SUCCEEDED).retain


def test_the_event_loop_goes_on_while_a_script_is_assembled(make: Make) -> None:
    async def run() -> None:
        backend, may_go_on = make(), threading.Event()
        await backend.open()
        text = "#!lua\nreturn { 'assembled' }\n"

        loop = asyncio.get_running_loop()

        def source() -> str:
            loop.call_soon_threadsafe(may_go_on.set)
            assert may_go_on.wait(20), "the loop stood still"
            return text

        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        script = scripts.Script("slow", sha, True, (), (), source)
        assert await backend._connections.run(script, []) == [b"assembled"]
        await backend.close()

    asyncio.run(run())


def test_a_connection_does_not_read_the_version_of_the_driver(make: Make) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(redis.utils, "get_lib_version", lambda: pytest.fail("it was read"))
        backend = make()
        backend._connections._class(**backend._connections._settings)
