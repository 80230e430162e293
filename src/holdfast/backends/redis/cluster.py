"""The store on a Redis or Valkey cluster: the router over shards, each of them a store under its own hash tag.

Selected by `redis+cluster://` URLs. A hash tag lives on one node, so each shard is exactly the single-server store;
`Nodes` knows which node that is. The registry of shards is a key of a store next to them, under the plain prefix.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ClassVar

from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot
from redis.exceptions import BusyLoadingError, ResponseError

from ... import logs
from ...clock import Clock
from ...errors import BackendError, BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown
from ..formulas import Numbering
from ..sharded.backend import ShardedBackend
from ..sharded.lease import HOME
from .backend import RedisBackend
from .connection import CONNECTIONS_MAX, Confirmation, Connections, packed_command
from .keys import KEY_NAMES, PREFIX_DEFAULT
from .scripts import FILLING, SCRIPTS
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

        def make_shard(name: str, numbering: Numbering) -> RedisBackend:
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


# ----------------------------------------------------------------------------------------------------------------------
# The nodes of a Redis or Valkey cluster: `Node` is one primary, `Nodes` the map of slots, `SlotConnections` one store.
#
# redis-py's own cluster client is not used: it repeats calls that may have been carried out, and it gives up while a
# slot migrates. Here a call is sent again only after a refusal, which means that nothing was done: MOVED, ASK,
# TRYAGAIN, CLUSTERDOWN, LOADING. Replicas are never used.
#
# A node that does not reply is skipped for a moment, so that it does not hold up callers with work for the others. A
# worker's calls go to many nodes at once, and the slowest holds up the rest; so when one takes unusually long, the node
# is pinged, and the call is given up if the ping fails. Its outcome is unknown then, as after any timeout, and it is
# repeated. After that the node gets more time for the next call: a slow but not silent node is reached in the end. A
# node may reply to PING and carry out no script, as while its clients are paused for a failover (CLIENT PAUSE WRITE).
# So it is pinged with a script, too: a worker skips a node that does not reply to that; others wait for it.
#
# A ping has a quarter of a second, which a busy machine or disk may take for itself. That is enough for a worker, which
# loses nothing by skipping a node for a moment. Who waits is not refused for an unanswered ping alone: the call is made
# and has its whole time. Once a call has failed, the others fail at once, until the node replies to a ping.
#
# A node is inspected before it is used: at the start, when it joins, when a slot first moves to it, after it was
# silent. One that could lose jobs gets no new ones; those that came to it with their slot are worked off.


# ---------------------------------------------------------------------- one primary


PING = packed_command("PING")
PROBE = packed_command("EVAL", "return 1", "0")  # held up by whatever holds up our scripts
LOOK_SECONDS = 0.25  # a silent node is pinged this often, with this timeout
LATE_SECONDS = 0.01  # a timeout that comes later than it was due by this: our own process did not run, see _replies
LOOKS_MAX = 5  # pings in a row that say nothing for that reason
HANG_SECONDS = 0.05  # after a call cancelled later than this, its node is pinged before the next one
LONG_SECONDS = 0.3  # if a hurried call takes longer, and longer than usual there, its node is pinged
LONG_TIMES = 4.0  # … by this factor
INSPECT_SECONDS = 5.0  # an unsafe node is inspected again this often

KEEPING = (*FILLING, "open")  # verbs that add work to a store, or create one
SWEEPS = ("promote", "prune", "recover", "refill", "retain")
# Verbs of a worker: results of other nodes wait for them. Producers and operators have nothing to do but wait.
HURRIED = frozenset({"begin", "exchange", "map", "register", "registry", "renew", "report", "retire", *SWEEPS})

Address = tuple[str, int]
Judge = Callable[[Connections], Awaitable[None]]


class GivenUp(Exception):
    """A hurried call: the node did not reply to a ping, or to a probe, meanwhile."""


class Node:
    """One primary."""

    def __init__(self, address: Address, connections: Connections, judge: Judge | None = None) -> None:
        self.address, self.connections = address, connections
        self._judge = judge
        self._unsafe: ConfigurationError | None = None  # why it must get no new jobs
        self._inspect_at = 0.0  # in the past: before the next call
        self.silent = False  # it did not reply: a worker's calls fail at once, until it replies to a ping
        self._lost = False  # … to a call, which had its whole time: everybody's calls fail at once
        self.stuck = False  # it replies to a ping but not to a probe: a worker's calls fail at once
        self._doubted = False  # a call to it was cancelled: it or the caller may be busy; ping it first
        self._look_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._usual = 0.0  # recent maximum duration of a hurried call

    async def call(self, verb: str, command: bytes, *, bare: bool = False, **how: Any) -> Any:
        """As `Connections.call`, but fails at once while the node is known to be silent. `bare` skips inspection."""
        await self._check_heard(waits=verb not in HURRIED and verb != "wait_for_work")
        began = time.monotonic()
        try:
            if not bare and (self.silent or began >= self._inspect_at):
                await self._inspect()
            if not bare and self._unsafe is not None and verb in KEEPING:
                raise self._unsafe
            answer = await (self._hurried if verb in HURRIED else self.connections.call)(verb, command, **how)
        except GivenUp:
            if how["writes"]:
                raise OutcomeUnknown(verb) from None
            raise self._unavailable() from None
        except HoldfastError as error:
            lost = not self.stuck and isinstance(error, BackendError | OutcomeUnknown) and not refusal(error)
            self.silent = self._lost = lost
            raise
        except asyncio.CancelledError:
            if verb != "wait_for_work" and time.monotonic() - began > HANG_SECONDS:  # waiters cancel at any time
                self._doubted, self._lost = True, self.silent
            raise
        self.silent = self._lost = False
        return answer

    async def _hurried(self, verb: str, command: bytes, **how: Any) -> Any:
        """Give the call up if it takes long and the node does not reply to a ping or probe, either."""
        began, loop = time.monotonic(), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as scope:

                def judge(_: asyncio.Task[None]) -> None:
                    if (self.silent or self.stuck) and not timer.cancelled():
                        scope.reschedule(loop.time())

                def doubt() -> None:
                    self._look().add_done_callback(judge)

                timer = loop.call_later(max(LONG_SECONDS, LONG_TIMES * self._usual), doubt)
                try:
                    answer = await self.connections.call(verb, command, **how)
                finally:
                    timer.cancel()
        except TimeoutError:
            self._usual = max(2.0 * self._usual, LONG_SECONDS / 2.0)
            raise GivenUp from None
        self._usual = max(time.monotonic() - began, 0.9 * self._usual)
        return answer

    # ------------------------------------------------------------------ is it safe?

    async def inspect(self) -> None:
        """Raise if the node could lose jobs; one that cannot be reached is inspected when it is first used."""
        try:
            await self._check_heard(waits=True)
            if self.silent:
                return
            await self._inspect()
        except (BackendError, OutcomeUnknown):
            return
        if self._unsafe is not None:
            raise self._unsafe

    async def _inspect(self) -> None:
        unsafe: ConfigurationError | None = None
        try:
            if self._judge is not None:
                await self._judge(self.connections)
        except ConfigurationError as error:
            host, port = self.address
            unsafe = ConfigurationError(f"the cluster's node {host}:{port} takes no jobs: {error}")
            if self._unsafe is None:
                logs.unsafe_node(unsafe)
        self._unsafe = unsafe
        self._inspect_at = float("inf") if unsafe is None else time.monotonic() + INSPECT_SECONDS

    # ------------------------------------------------------------------ is it there?

    async def _check_heard(self, waits: bool) -> None:
        """Raise if the node is silent. A caller that waits gets the ping's result; for others it runs in background."""
        is_skipped = self._is_skipped(waits)
        if not is_skipped and not self._doubted:
            return
        now = time.monotonic()
        if is_skipped and now < self._look_at:
            raise self._unavailable()
        looking = self._look()
        if waits or not is_skipped:
            try:
                await asyncio.shield(looking)
            except asyncio.CancelledError:
                if time.monotonic() - now > HANG_SECONDS:
                    self._fall_silent()
                    self._lost = True
                raise
        if self._is_skipped(waits):
            raise self._unavailable()

    def _is_skipped(self, waits: bool) -> bool:
        return self._lost if waits else self.silent or self.stuck

    def _look(self) -> asyncio.Task[None]:
        """Ping the node, one ping at a time; afterwards `silent` and `stuck` have the result."""
        loop, looking = asyncio.get_running_loop(), self._looking
        if looking is None or looking.done() or looking.get_loop() is not loop:
            self._look_at = time.monotonic() + LOOK_SECONDS
            looking = self._looking = loop.create_task(self._ping())
        return looking

    async def _ping(self) -> None:
        replies, carries_out = await asyncio.gather(self._replies("ping", PING), self._replies("probe", PROBE))
        if not replies:
            self._fall_silent()
            return
        if self.silent:
            self._inspect_at = 0.0  # it may have been restarted with other settings
        self.silent = self._lost = self._doubted = False
        self.stuck = not carries_out

    async def _replies(self, verb: str, command: bytes) -> bool:
        """A timeout counts only if it came when it was due: on a busy machine this process may not get to run for so
        long that the reply is there, unread."""
        for _ in range(LOOKS_MAX):
            due = time.monotonic() + LOOK_SECONDS
            try:
                async with asyncio.timeout(LOOK_SECONDS):  # urgent: a node with all connections busy is not silent
                    await self.connections.call(verb, command, writes=False, urgent=True)
            except TimeoutError:
                if time.monotonic() < due + LATE_SECONDS:
                    return False
            except HoldfastError as error:
                return verb == "probe" and bool(refusal(error))
            else:
                return True
        return False

    def _fall_silent(self) -> None:
        self.silent, self.stuck, self._look_at = True, False, time.monotonic() + LOOK_SECONDS

    def _unavailable(self) -> BackendUnavailable:
        host, port = self.address
        return BackendUnavailable(f"the cluster's node {host}:{port} does not answer. Try again.")

    def abandon(self) -> None:
        """Close what is open, without waiting."""
        looking, self._looking = self._looking, None
        if looking is not None and not looking.done() and not looking.get_loop().is_closed():
            looking.get_loop().call_soon_threadsafe(looking.cancel)
        self.connections.abandon()


def refusal(error: HoldfastError) -> str:
    """Return the node's own error, if it refused; '' if it did not reply."""
    cause = error.__cause__
    if isinstance(cause, BusyLoadingError):
        return "LOADING"
    return str(cause) if isinstance(cause, ResponseError) else ""


# ---------------------------------------------------------------------- all nodes, and one slot


SLOTS = 16384
ASKING = packed_command("ASKING")
MAP = packed_command("CLUSTER", "SLOTS")
REFRESH_SECONDS = 0.2  # the map of slots is not requested more often
AGAIN_SECONDS_MAX = 0.1
REDIRECTS_MAX = 16
PASSING = (
    "TRYAGAIN",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "LOADING",
    "READONLY",
)  # temporary: a retry or a new map of slots may succeed

# How long to wait for a temporary refusal to pass. A worker's calls go to many shards at once, and the slowest of them
# holds up the others: so it waits once, and not again before that shard has replied. Producers and operators have
# nothing else to do, and wait as long as a call may take.
PATIENCE = {"exchange": 0.2, **dict.fromkeys(SWEEPS, 0.2), "register": 0.5, "renew": 0.5}


class Nodes:
    """Every known node, and the map of slots; shared by all shards of a store."""

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
        """Return a node's URL, or that of the first seed."""
        host, port = address or self._seeds[0]
        before, after = self._url
        return f"{before}{f'[{host}]' if ':' in host else host}:{port}/{after}"

    async def owner(self, slot: int) -> Node:
        """Return the primary that has the slot."""
        if self._owners[slot] is None:
            await self.refresh()
        address = self._owners[slot]
        if address is None:
            raise BackendUnavailable("the cluster has no node for some of its slots. Try again.")
        return self.node(address)

    def redirected(self, slot: int, reply: str, told_by: Node) -> Node:
        """Return where "MOVED slot host:port" or "ASK …" points; a missing host means the replying node's own."""
        host, _, port = reply.split(" ")[2].rpartition(":")
        node = self.node((host.strip("[]") if host not in ("", "?") else told_by.address[0], int(port)))
        if reply.startswith("MOVED "):
            self._owners[slot] = node.address
        return node

    async def primaries(self) -> list[Node]:
        """Return every primary that has a slot."""
        await self.refresh()
        return [self.node(one) for one in sorted({address for address in self._owners if address is not None})]

    async def inspect_all(self) -> None:
        """Refuse the cluster if one of its primaries could lose jobs, whether it has any of ours or not."""
        found = [node.inspect() for node in await self.primaries()]
        for error in await asyncio.gather(*found, return_exceptions=True):
            if error is not None:
                raise error

    async def refresh(self) -> None:
        """Request the map of slots from any node, at most every REFRESH_SECONDS."""
        if time.monotonic() - self._asked_at < REFRESH_SECONDS:
            return
        self._asked_at = time.monotonic()
        addresses = list(dict.fromkeys([*self._nodes, *self._seeds]))
        random.shuffle(addresses)
        addresses.sort(key=lambda address: self.node(address).silent)
        failure: HoldfastError | None = None
        # Who has no map yet can do nothing without one: if all nodes are slow, it waits for them.
        verbs = ("map",) if any(self._owners) else ("map", "open")
        for verb, address in itertools.product(verbs, addresses):
            try:
                reply = await self.node(address).call(verb, MAP, writes=False, bare=True)
                self._learn(reply, address[0])
                return
            except HoldfastError as error:
                if "cluster support disabled" in str(error.__cause__):
                    raise ConfigurationError(
                        "this server is not part of a cluster. Name it with redis:// instead of redis+cluster://."
                    ) from error
                failure = failure or error
        self._asked_at = float("-inf")
        if isinstance(failure, ConfigurationError):  # permanent, such as a wrong password
            raise failure
        raise BackendUnavailable(
            "no node of the cluster answers. Check that they run and that the URL is right, then try again."
        ) from failure

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
        self._away = False  # refused for longer than a worker waits, and no reply since

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
        bodies: str | None = None,
    ) -> Any:
        """Send to the slot's node; resend after a temporary refusal, or to where a redirection points."""
        until = time.monotonic() + (self.call_timeout if verb not in PATIENCE else self._patience(verb))
        node, asking, tries = await self._nodes.owner(self._place), False, 0
        while True:
            how: dict[str, Any] = {"writes": writes, "urgent": urgent, "replies": replies + asking}
            how["whole"] = _asking(whole) if asking and whole is not None else whole
            how["confirm"], how["bodies"] = confirm, bodies
            try:
                answer = await node.call(verb, ASKING + command if asking else command, **how)
                self._away = False
                return answer
            except HoldfastError as error:
                reply, tries = refusal(error), tries + 1
                if reply.startswith(("MOVED ", "ASK ")) and tries < REDIRECTS_MAX:
                    asking = reply.startswith("ASK ")
                    node = self._nodes.redirected(self._place, reply, node)
                    continue
                passes = reply.startswith(PASSING)
                if isinstance(error, OutcomeUnknown) or (reply and not passes):
                    raise
                # Refused for now, or unreachable: is there another owner?
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
            self._away = True  # the caller's own timeout is shorter
            raise

    async def _new_owner(self, node: Node) -> Node | None:
        """Return the node that has the slot now, if it is another."""
        try:
            await self._nodes.refresh()
            owner = await self._nodes.owner(self._place)
        except HoldfastError:
            return None
        return None if owner is node else owner

    async def connect(self) -> AbstractConnection:
        """Open a separate connection to the slot's node, for waiting on hints."""
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
