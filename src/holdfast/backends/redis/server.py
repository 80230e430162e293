"""Is this a server that keeps what it acknowledges? Asked once, when the store is opened.

Called by backend.py. Reads INFO alone, because managed services forbid CONFIG. Every refusal names the setting, the
value found, the safe value and the way to go on without it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import BackendUnavailable, ConfigurationError
from .connection import Connections

REDIS_MAJOR_MIN, VALKEY_MAJOR_MIN = 7, 8


async def look_at_server(connections: Connections) -> dict[str, str]:
    """INFO as a mapping."""
    reply: bytes = await connections.command("open", "INFO")
    lines = (line for line in reply.decode(errors="replace").splitlines() if ":" in line and not line.startswith("#"))
    return dict(line.split(":", 1) for line in lines)


def check_server(told: Mapping[str, str], *, allow_eviction: bool, allow_no_aof: bool) -> None:
    """Refuse a server on which jobs would be lost, or on which our scripts cannot run."""
    _check_version(told)
    if told.get("role", "master") != "master":
        raise BackendUnavailable("Redis: this server is a replica and takes no writes. Name the primary in the URL.")
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
