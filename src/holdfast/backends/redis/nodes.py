"""The nodes of a Redis or Valkey cluster: who has which slot, and connections to one slot wherever it is.

Called by cluster.py. redis-py's own cluster client is not used: it repeats calls that may have been carried out, and it
gives up during a slot's move. Here a call is sent again only after a refusal, which says that nothing was done: MOVED,
ASK, TRYAGAIN, CLUSTERDOWN, LOADING. Replicas are never asked. What is said of a single node is in node.py.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot

from ...errors import BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown
from .connection import CONNECTIONS_MAX, Confirmation, Connections, packed_command
from .node import SWEEPS, Address, Judge, Node, refusal

SLOTS = 16384
ASKING = packed_command("ASKING")
MAP = packed_command("CLUSTER", "SLOTS")
REFRESH_SECONDS = 0.2  # the map of slots is not asked for more often
AGAIN_SECONDS_MAX = 0.1
REDIRECTS_MAX = 16
PASSING = (
    "TRYAGAIN",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "LOADING",
    "READONLY",
)  # another moment, or map, may not bring these

# How long a refusal that will pass is waited for. A worker's calls go to many shards at once, and the slowest of them
# holds up the others: so it waits once, and not again before that shard was heard. Producers and operators have nothing
# better to do, and wait as long as a call may take.
PATIENCE = {"exchange": 0.2, **dict.fromkeys(SWEEPS, 0.2), "register": 0.5, "renew": 0.5}


class Nodes:
    """Every node that is known, and the map of slots; shared by all shards of a store."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        call_timeout: float,
        most: int = CONNECTIONS_MAX,
        judge: Judge | None = None,
        wait: int = 0,
    ) -> None:
        scheme, _, rest = url.partition("://")
        place, mark, query = rest.partition("?")
        user, at, hosts = place.partition("/")[0].rpartition("@")
        self._url = (f"{scheme}://{user}{at}", f"{mark}{query}")
        self._seeds = [_address(host) for host in hosts.split(",")]
        self._prefix, self._most, self._judge = prefix, most, judge
        self.call_timeout, self.wait = call_timeout, wait
        self._nodes: dict[Address, Node] = {}
        self._owners: list[Address | None] = [None] * SLOTS
        self._asked_at = float("-inf")
        for seed in self._seeds:
            self.node(seed)

    def node(self, address: Address) -> Node:
        found = self._nodes.get(address)
        if found is None:
            url = self.url(address)
            bounds: dict[str, Any] = {"call_timeout": self.call_timeout, "most": self._most, "wait": self.wait}
            connections = Connections(url, prefix=self._prefix, of_cluster=True, **bounds)
            found = self._nodes[address] = Node(address, connections, self._judge)
        return found

    def url(self, address: Address | None = None) -> str:
        """A node's URL, or that of the first one we were told of."""
        host, port = address or self._seeds[0]
        before, after = self._url
        return f"{before}{f'[{host}]' if ':' in host else host}:{port}/{after}"

    async def owner(self, slot: int) -> Node:
        """The primary that has the slot."""
        if self._owners[slot] is None:
            await self.refresh()
        address = self._owners[slot]
        if address is None:
            raise BackendUnavailable("the cluster has no node for some of its slots. Try again.")
        return self.node(address)

    def redirected(self, slot: int, said: str, told_by: Node) -> Node:
        """Where "MOVED slot host:port" or "ASK …" points; a node that does not say its host means its own."""
        host, _, port = said.split(" ")[2].rpartition(":")
        node = self.node((host.strip("[]") if host not in ("", "?") else told_by.address[0], int(port)))
        if said.startswith("MOVED "):
            self._owners[slot] = node.address
        return node

    async def inspect_all(self) -> None:
        """Refuse the cluster where one of its primaries could lose jobs, whether it has any of ours or not."""
        await self.refresh()
        found = {address for address in self._owners if address is not None}
        for error in await asyncio.gather(*(self.node(one).inspect() for one in found), return_exceptions=True):
            if error is not None:
                raise error

    async def refresh(self) -> None:
        """Ask any node for the map of slots. Not more often than is useful."""
        if time.monotonic() - self._asked_at < REFRESH_SECONDS:
            return
        self._asked_at = time.monotonic()
        addresses = list(dict.fromkeys([*self._nodes, *self._seeds]))
        random.shuffle(addresses)
        addresses.sort(key=lambda address: self.node(address).silent)
        failure: HoldfastError | None = None
        for address in addresses:
            try:
                reply = await self.node(address).call("map", MAP, writes=False, bare=True)
                self._learn(reply, address[0])
                return
            except HoldfastError as error:
                if "cluster support disabled" in str(error.__cause__):
                    raise ConfigurationError(
                        "this server is not part of a cluster. Name it with redis:// instead of redis+cluster://."
                    ) from error
                failure = failure or error
        self._asked_at = float("-inf")
        if isinstance(failure, ConfigurationError):  # refused for good, such as for a wrong password
            raise failure
        raise BackendUnavailable("no node of the cluster answers. Try again.") from failure

    def _learn(self, reply: Iterable[Any], host: str) -> None:
        owners: list[Address | None] = [None] * SLOTS
        for first, last, primary, *_ in reply:
            name = (primary[0] or b"").decode()
            owners[first : last + 1] = [((name if name not in ("", "?") else host), primary[1])] * (last + 1 - first)
        self._owners = owners
        seen = {address for address in owners if address is not None} | set(self._seeds)
        for gone in set(self._nodes) - seen:
            self._nodes.pop(gone).abandon()

    def abandon(self) -> None:
        for node in self._nodes.values():
            node.abandon()


class SlotConnections(Connections):
    """Connections to whichever node has the slot of one store's keys."""

    def __init__(self, nodes: Nodes, prefix: str) -> None:
        super().__init__(nodes.url(), prefix=prefix, call_timeout=nodes.call_timeout, of_cluster=True, wait=nodes.wait)
        self._nodes = nodes
        self._place: int = key_slot(self.keys[0].encode())
        self._away = False  # refused for longer than a worker waits, and not heard since

    async def call(
        self,
        verb: str,
        command: bytes,
        *,
        writes: bool,
        urgent: bool = False,
        replies: int = 1,
        whole: Callable[[], bytes] | None = None,
        confirm: Confirmation | None = None,
    ) -> Any:
        """Send to the slot's node; after a refusal that will pass, or to where a redirection points, send again."""
        until = time.monotonic() + (self.call_timeout if verb not in PATIENCE else self._patience(verb))
        node, asking, tries = await self._nodes.owner(self._place), False, 0
        while True:
            how: dict[str, Any] = {"writes": writes, "urgent": urgent, "replies": replies + asking}
            how["whole"] = _asking(whole) if asking and whole is not None else whole
            how["confirm"] = confirm
            try:
                answer = await node.call(verb, ASKING + command if asking else command, **how)
                self._away = False
                return answer
            except HoldfastError as error:
                said, tries = refusal(error), tries + 1
                if said.startswith(("MOVED ", "ASK ")) and tries < REDIRECTS_MAX:
                    asking = said.startswith("ASK ")
                    node = self._nodes.redirected(self._place, said, node)
                    continue
                passes = said.startswith(PASSING)
                if isinstance(error, OutcomeUnknown) or (said and not passes):
                    raise
                # refused for now, or out of reach: is there another owner?
                again = await self._new_owner(node)
                if again is None and not (passes and time.monotonic() < until):
                    self._away = self._away or passes
                    raise
                node, asking = again or node, False
            await self._rest(tries)

    def _patience(self, verb: str) -> float:
        return 0.0 if self._away else PATIENCE[verb]

    async def _rest(self, tries: int) -> None:
        try:
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(AGAIN_SECONDS_MAX, 0.005 * 2.0 ** min(tries, 10)))
        except asyncio.CancelledError:
            self._away = True  # the caller's own patience is shorter
            raise

    async def _new_owner(self, node: Node) -> Node | None:
        """The node that has the slot now, if it is another."""
        try:
            await self._nodes.refresh()
            owner = await self._nodes.owner(self._place)
        except HoldfastError:
            return None
        return None if owner is node else owner

    async def connect(self) -> AbstractConnection:
        """A connection of its own to the slot's node, for whoever waits for hints."""
        return await (await self._nodes.owner(self._place)).connections.connect()


def _asking(whole: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: ASKING + whole()


def _address(host: str) -> Address:
    name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "6379")
    if not name or not port.isdigit():
        raise ConfigurationError(
            f"the cluster's node {host!r} is not understood. Write host:port, several with commas."
        )
    return name.strip("[]"), int(port)
