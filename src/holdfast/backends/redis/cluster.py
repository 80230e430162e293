"""The store on a Redis or Valkey cluster: the router over shards, each of them a store under its own hash tag.

Selected by `redis+cluster://` URLs. A hash tag lives on one node, so each shard is exactly the single-server store;
nodes.py knows which node that is. The registry of shards is a key of a store next to them, under the plain prefix.
"""

from __future__ import annotations

import functools
from typing import ClassVar

from ...clock import Clock
from ...errors import ConfigurationError
from ..contract import Backend
from ..seq_numbers import Numbering
from ..sharded.backend import ShardedBackend
from ..sharded.lease import HOME
from .backend import RedisBackend
from .connection import CONNECTIONS_MAX
from .keys import KEY_NAMES, PREFIX_DEFAULT
from .nodes import Nodes, SlotConnections
from .scripts import SCRIPTS
from .server import inspect


class RegistryKey:
    """The registry's document: one key under the plain prefix."""

    def __init__(self, connections: SlotConnections) -> None:
        self._connections = connections
        self._key = connections.keys[KEY_NAMES.index("registry")]
        self._was_read = False

    async def read(self) -> bytes | None:
        verb = "registry" if self._was_read else "open"  # only a caller that read it before can go on without it
        text: bytes | None = await self._connections.command(verb, "GET", self._key)
        self._was_read = True
        return text

    async def swap(self, before: bytes | None, after: bytes) -> bool:
        [done] = await self._connections.run(SCRIPTS["swap"], [None, before is not None], [before or b"", after])
        return bool(done)


class ClusterBackend(ShardedBackend):
    """A store under one prefix of a Redis or Valkey cluster, its queues spread over the nodes."""

    scheme: ClassVar[str] = "redis+cluster"
    durable: ClassVar[bool] = True

    def __init__(
        self,
        url: str,
        *,
        prefix: str = PREFIX_DEFAULT,
        call_timeout: float = 5.0,
        connections: int = CONNECTIONS_MAX,
        allow_eviction: bool = False,
        allow_no_aof: bool = False,
        trust_restarts: bool = False,
        wait: int = 0,
        clock: Clock | None = None,  # unused, the servers' clocks decide; every store takes it
    ) -> None:
        if not call_timeout > 0:
            raise ConfigurationError(f"call_timeout is a number of seconds above 0, not {call_timeout!r}.")
        judge = functools.partial(inspect, allow_eviction=allow_eviction, allow_no_aof=allow_no_aof)
        nodes = Nodes(url, prefix=prefix, call_timeout=call_timeout, most=connections, judge=judge, wait=wait)

        def slot_of(name: str) -> SlotConnections:
            return SlotConnections(nodes, prefix if name == HOME else f"{prefix}:{name}")

        def make_shard(name: str, numbering: Numbering) -> Backend:
            return RedisBackend(
                nodes.url(),
                through=slot_of(name),
                numbering=numbering,
                trust_restarts=trust_restarts,
            )

        super().__init__(RegistryKey(slot_of(HOME)), make_shard)
        self.prefix, self._nodes = prefix, nodes

    async def open(self) -> None:
        await self._nodes.inspect_all()
        await super().open()

    async def migrate(self) -> tuple[int, int]:
        await self._nodes.inspect_all()
        return await super().migrate()

    async def close(self) -> None:
        await super().close()
        self._nodes.abandon()
