"""Checks that a server keeps what it acknowledges, and that the user has the rights a store needs.

Called by backend.py when the store is opened and by cluster.py for every node of a cluster. Uses INFO alone, because
managed services forbid CONFIG. Every refusal names the setting, the value found, the safe value and how to accept the
risk. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from redis.exceptions import ResponseError

from ...errors import ConfigurationError
from .connection import REPLICA, Connections, mapped
from .scripts import SCRIPTS

REDIS_MAJOR_MIN, VALKEY_MAJOR_MIN = 7, 8


async def look_at_server(connections: Connections) -> dict[str, str]:
    """Return INFO as a mapping."""
    reply: bytes = await connections.command("open", "INFO")
    lines = (line for line in reply.decode(errors="replace").splitlines() if ":" in line and not line.startswith("#"))
    return dict(line.split(":", 1) for line in lines)


async def inspect(connections: Connections, *, allow_eviction: bool, allow_no_aof: bool) -> None:
    """Check the server and our rights there; refuse what would lose jobs or fail halfway."""
    info = await look_at_server(connections)
    check_server(info, allow_eviction=allow_eviction, allow_no_aof=allow_no_aof)
    await check_rights(connections)


def check_server(info: Mapping[str, str], *, allow_eviction: bool, allow_no_aof: bool) -> None:
    """Refuse a server that would lose jobs, or that cannot run our scripts."""
    _check_version(info)
    if info.get("role", "master") != "master":
        raise mapped(replica := ResponseError(REPLICA), "open") from replica
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not allow_eviction:
        raise ConfigurationError(
            f"the server's maxmemory-policy is {policy!r}: it would evict jobs when memory is full. "
            "Set maxmemory-policy noeviction, or accept the loss with ?allow_eviction=true in the URL."
        )
    if info.get("aof_enabled", "0") != "1" and not allow_no_aof:
        raise ConfigurationError(
            "the server's appendonly is 'no': acknowledged jobs would be lost when it stops. "
            "Set appendonly yes (and appendfsync everysec or always), or accept the loss with ?allow_no_aof=true "
            "in the URL."
        )


def _check_version(info: Mapping[str, str]) -> None:
    is_valkey = info.get("server_name") == "valkey" or "valkey_version" in info
    name, version, least = (
        ("Valkey", info.get("valkey_version", "8"), VALKEY_MAJOR_MIN)
        if is_valkey
        else ("Redis", info.get("redis_version", "0"), REDIS_MAJOR_MIN)
    )
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) < least:
        raise ConfigurationError(
            f"this server is {name} {version}; Holdfast needs Redis {REDIS_MAJOR_MIN} or Valkey {VALKEY_MAJOR_MIN}, "
            "or newer."
        )


# Rights. A script is not rolled back when one of its commands is refused: a job could be stored although its enqueue
# was refused. So every command of every script, and those sent beside them, is checked before the first one runs.
# That needs no right but to run scripts.


COMMANDS_OF_CLUSTERS = ("ASKING", "PING")  # CLUSTER SLOTS is not here: without it no node is found at all


async def check_rights(connections: Connections) -> None:
    """Refuse a user that lacks a command or the keys, naming each and the ACL rule that grants it."""
    key, user = connections.keys[0], connections.user
    asked = [["EVAL", "return 1", "1", key], ["EVAL", "return 1", "0"], ["EVALSHA", "0" * 40, "0"]]
    asked += [[name, key] for name in sorted(SCRIPTS.words)]
    asked += [[name] for name in ("MULTI", "EXEC", *(COMMANDS_OF_CLUSTERS if connections.of_cluster else ()))]
    if connections.confirmation is not None:
        asked += [["WAIT", "0", "0"]]
    asked += [["XREAD", "STREAMS", connections.keys[-1], "0"]]
    refused = await connections.run(SCRIPTS["rights"], asked)
    if refused[:1] == [1] and refused[1:2] != [2]:  # the user may run a script, but not with the key
        pattern = key.partition("}")[0] + ("*" if connections.of_cluster else "}:*")
        raise ConfigurationError(
            f"the Redis user {user!r} may not write to the store's keys. Allow it: ACL SETUSER {user} ~{pattern}"
        )
    missing = [asked[place - 1][0] for place in refused if place > 1]
    if missing:
        rules = " ".join(f"+{name.lower()}" for name in missing)
        raise ConfigurationError(
            f"the Redis user {user!r} may not run {', '.join(missing)}, which Holdfast needs. "
            f"Allow it: ACL SETUSER {user} {rules}"
        )
