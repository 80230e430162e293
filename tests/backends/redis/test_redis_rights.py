"""Users with few rights: a missing right is reported when the store opens, and nothing is stored half-way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from holdfast.backends import open_backend
from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.keys import keys_of
from holdfast.backends.redis.scripts import SCRIPTS
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

from ...servers.valkey import Server
from ...servers.valkey_cluster import shared_cluster

User = Callable[..., RedisBackend]
LEAST = "+eval +evalsha +info +time +multi +exec +xread"
SHORT = "+@read +@write +@scripting +@transaction +@connection +info +time"  # as docs/how-to/redis.md has it
NO_COMMANDS = {"LIMIT", "MAXLEN", "WITHSCORES", "WITHVALUES", "COUNT", "NX", "MYID", "MYSHARDID"}
NOT_NEEDED = {"CLUSTER"}  # a server that does not tell its place in a cluster will do


@pytest.fixture
def user(server: Server, client: redis.Redis, prefix: str) -> User:
    """A backend of a user with these rights, on an empty store."""

    def make(*rights: str, keys: str = "own", wait: int = 0) -> RedisBackend:
        pattern = {"own": f"~{{{prefix}}}:*", "none": "", "read": f"%R~{{{prefix}}}:*"}[keys]
        words = [word for word in (pattern, *" ".join(rights).split()) if word]
        run: Any = client.execute_command  # redis-py leaves it untyped
        run("ACL", "SETUSER", prefix, "reset", "on", ">word", *words)
        return RedisBackend(f"redis://{prefix}:word@127.0.0.1:{server.port}/0", prefix=prefix, wait=wait)

    return make


def refused(backend: RedisBackend) -> str:
    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(backend.open())
    asyncio.run(backend.close())
    return str(caught.value)


async def use(backend: RedisBackend) -> None:
    """Some of every kind of call."""
    await backend.open()
    await backend.register(WorkerRecord(id="w", lease_seconds=30.0))
    await backend.enqueue([NewJob(id=name, task="t", group="g", key=name) for name in "abc"])
    await backend.wait_for_work(("default",), 0.05)
    answer = await backend.exchange((), (), ClaimRequest(worker="w", call=1, queues=("default",), most=1))
    done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
    await backend.exchange(done, (), ClaimRequest(worker="w", call=2, queues=("default",), most=1))
    await backend.renew("w", [], seen_call=1)
    await backend.promote()
    await backend.recover()
    await backend.prune()
    assert len((await backend.dump()).tables["jobs"]) == 3
    await backend.clock()


@pytest.mark.parametrize("command", ["xadd", "xread", "hset", "zrangebylex", "multi", "time", "zremrangebylex"])
def test_a_missing_command_is_named_with_the_rule_that_gives_it(
    user: User, client: redis.Redis, prefix: str, command: str
) -> None:
    said = refused(user("+@all", f"-{command}"))
    assert f"may not run {command.upper()}, which" in said
    assert f"ACL SETUSER {prefix} +{command}" in said
    assert client.exists(*keys_of(prefix)) == 0


def test_waiting_for_replicas_needs_the_right_to(user: User) -> None:
    assert "+wait" in refused(user("+@all -wait", wait=1))


def test_all_missing_commands_are_named_at_once(user: User) -> None:
    said = refused(user("+@all -xadd -hset"))
    assert "HSET, XADD" in said and "+hset +xadd" in said


@pytest.mark.parametrize("command", ["eval", "evalsha", "info"])
def test_what_is_needed_to_ask_is_named_too(user: User, command: str) -> None:
    said = refused(user(f"+@all -{command}"))
    assert f"+{command}" in said


@pytest.mark.parametrize("keys", ["none", "read"])
def test_missing_keys_are_named(user: User, prefix: str, keys: str) -> None:
    assert f"ACL SETUSER {prefix} ~{{{prefix}}}:*" in refused(user("+@all", keys=keys))


@pytest.mark.parametrize("rights", ["each", "short"])
def test_the_rights_that_are_asked_for_are_enough(user: User, rights: str) -> None:
    commands = [f"+{name.lower()}" for name in sorted(SCRIPTS.words) if name not in NO_COMMANDS | NOT_NEEDED]
    backend = user(*((LEAST, *commands) if rights == "each" else (SHORT,)))

    async def body() -> None:
        await use(backend)
        assert [one.created for one in backend.enqueue_here([NewJob(id="d", task="t")]) or []] == [True]
        await backend.close()

    asyncio.run(body())


def test_a_user_that_may_not_name_its_connections_does_without(user: User) -> None:
    backend = user("+@all -client")

    async def body() -> None:
        await use(backend)
        assert [one.created for one in backend.enqueue_here([NewJob(id="d", task="t")]) or []] == [True]
        await backend.close()

    asyncio.run(body())


def test_a_right_taken_away_later_stores_no_job_whose_enqueue_fails(user: User, client: redis.Redis) -> None:
    """The hint for sleepers goes last, and is left out where it is refused."""
    backend = user("+@all")

    async def body() -> None:
        await backend.open()
        user("+@all -xadd")
        plain = await backend.enqueue([NewJob(id="a", task="t")])
        grouped = await backend.enqueue([NewJob(id="b", task="t", group="g", key="k")])
        assert [one.created for one in (*plain, *grouped)] == [True, True]
        await backend.close()

    asyncio.run(body())


def test_on_a_cluster_the_rights_that_the_page_names_are_enough_and_asked_for() -> None:
    cluster = shared_cluster()
    cluster.empty()
    keys = "~{rights*"

    def user(*rights: str) -> str:
        for node in cluster.primaries:
            words = ["reset", "on", ">word", keys, *" ".join(rights).split()]
            cluster.tell(node, "ACL", "SETUSER", "few", *words)
        return cluster.url("rights").replace("://", "://few:word@")

    async def body() -> None:
        backend = open_backend(user(SHORT, "+cluster|slots", "+asking"))
        await backend.open()
        await backend.enqueue([NewJob(id=name, task="t") for name in "abc"])
        await backend.close()
        for missing in ("asking", "cluster|slots"):
            refused = open_backend(user(SHORT, "+cluster|slots", "+asking", f"-{missing}"))
            with pytest.raises(ConfigurationError, match=re.escape(f"+{missing}")):
                await refused.open()
            await refused.close()

    try:
        asyncio.run(body())
    finally:
        for node in cluster.primaries:
            cluster.tell(node, "ACL", "DELUSER", "few")
