"""Is this a server that keeps what it acknowledges? Asked when the store is opened; of a cluster, of every node.

Called by backend.py and nodes.py. Reads INFO alone, because managed services forbid CONFIG. Every refusal names the
setting, the value found, the safe value and the way to go on without it.
"""

from __future__ import annotations

from collections.abc import Mapping

from redis.exceptions import ResponseError

from ...errors import ConfigurationError
from .connection import REPLICA, Connections, mapped
from .rights import check_rights

REDIS_MAJOR_MIN, VALKEY_MAJOR_MIN = 7, 8


async def look_at_server(connections: Connections) -> dict[str, str]:
    """INFO as a mapping."""
    reply: bytes = await connections.command("open", "INFO")
    lines = (line for line in reply.decode(errors="replace").splitlines() if ":" in line and not line.startswith("#"))
    return dict(line.split(":", 1) for line in lines)


async def inspect(connections: Connections, *, allow_eviction: bool, allow_no_aof: bool) -> None:
    """Look at the server and at our rights there; refuse what would lose jobs or fail half-way."""
    told = await look_at_server(connections)
    check_server(told, allow_eviction=allow_eviction, allow_no_aof=allow_no_aof)
    await check_rights(connections)


def check_server(told: Mapping[str, str], *, allow_eviction: bool, allow_no_aof: bool) -> None:
    """Refuse a server on which jobs would be lost, or on which our scripts cannot run."""
    _check_version(told)
    if told.get("role", "master") != "master":
        raise mapped(replica := ResponseError(REPLICA), "open") from replica
    policy = told.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not allow_eviction:
        raise ConfigurationError(
            f"the server's maxmemory-policy is {policy!r}: it would throw jobs away when memory is full. "
            "Set maxmemory-policy noeviction, or accept the loss with ?allow_eviction=true in the URL."
        )
    if told.get("aof_enabled", "0") != "1" and not allow_no_aof:
        raise ConfigurationError(
            "the server's appendonly is 'no': acknowledged jobs would be lost when it stops. "
            "Set appendonly yes (and appendfsync everysec or always), or accept the loss with ?allow_no_aof=true "
            "in the URL."
        )


def _check_version(told: Mapping[str, str]) -> None:
    is_valkey = told.get("server_name") == "valkey" or "valkey_version" in told
    name, version, least = (
        ("Valkey", told.get("valkey_version", "8"), VALKEY_MAJOR_MIN)
        if is_valkey
        else ("Redis", told.get("redis_version", "0"), REDIS_MAJOR_MIN)
    )
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) < least:
        raise ConfigurationError(
            f"this server is {name} {version}; Holdfast needs Redis {REDIS_MAJOR_MIN} or Valkey {VALKEY_MAJOR_MIN}, "
            "or newer."
        )
