"""Chains: leases of one strict group that a runner runs one after another (a queue's group_prefetch).

Used by the exchange loop, which asks for them, by the ledger and by both kinds of runners. Pure bookkeeping. In every
list of leases the chained ones follow directly behind the lease before them in their chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from ...records import ClaimRequest, Lease, QueueRule

CHAIN_SECONDS = 0.5  # a chain holds as many jobs as run within this time, judging by recent run times
CHAINED_MAX = 1000  # chained jobs that one runner may hold
CHAINED_PER_JOB_MAX = 16  # chained leases that a claim may return per ordinary lease


def prefetches(rules: Iterable[QueueRule]) -> dict[str, int]:
    """The group_prefetch of each queue where it is above 1."""
    return {rule.name: rule.group_prefetch for rule in rules if rule.group_prefetch > 1}


def lengths(
    prefetch: Mapping[str, int], seconds: float | None, capped: Mapping[str, int], share: int | None
) -> dict[str, int]:
    """The longest chain of each queue: as many jobs as fit into CHAIN_SECONDS if each runs for `seconds`, at most this
    worker's share of a group. Capped queues get no chains, because every lease counts against the cap."""
    most = max(1, int(CHAIN_SECONDS / max(seconds, 1e-6))) if seconds is not None else max(prefetch.values(), default=1)
    most = most if share is None else min(most, share)
    found = {queue: min(number, most) for queue, number in prefetch.items() if queue not in capped}
    return {queue: number for queue, number in found.items() if number > 1}


def asked_for(
    request: ClaimRequest, prefetch: Mapping[str, int], room: int, seconds: float | None, jobs: int, share: int | None
) -> ClaimRequest:
    """A claim of at most `jobs` jobs that asks for consecutive jobs of strict groups, where their queue allows it."""
    longest = lengths(prefetch, seconds, request.most_by_queue, share)
    room = min(room, CHAINED_PER_JOB_MAX * jobs)
    return replace(request, chain_by_queue=longest, chained_max=room) if longest else request


def in_order(leases: Sequence[Lease]) -> tuple[list[Lease], list[Lease]]:
    """The leases with each chain in one piece and in order, and the strays: leases whose chain is incomplete."""
    units: dict[str, list[Lease]] = {}  # by the token of its first lease
    chains: dict[tuple[str, str | None], list[Lease]] = {}
    strays: list[Lease] = []
    for lease in leases:
        place = (lease.queue, lease.group)
        if not lease.chained:
            units[lease.token] = chains[place] = [lease]
        elif place in chains:
            chains[place].append(lease)
        else:
            strays.append(lease)
    return [lease for unit in units.values() for lease in unit], strays


class Chains:
    """Which of the held leases come after another one in a chain.

    Most workers have no chains: callers check whether `of` is empty first.
    """

    __slots__ = ("behind", "of")

    def __init__(self) -> None:
        self.of: dict[str, dict[str, None]] = {}  # by token: the tokens of its chain that are held, in order
        self.behind = 0  # leases that come after another one

    def add(self, leases: Sequence[Lease]) -> None:
        before: Lease | None = None
        for lease in leases:
            if lease.chained and before is not None:
                chain = self.of.setdefault(before.token, {before.token: None})
                chain[lease.token] = None
                self.of[lease.token] = chain
                self.behind += 1
            before = lease

    def drop(self, token: str) -> None:
        """This lease is no longer held."""
        chain = self.of.pop(token, None)
        if chain is not None:
            del chain[token]
            self.behind -= bool(chain)

    def is_behind(self, token: str) -> bool:
        chain = self.of.get(token)
        return chain is not None and next(iter(chain)) != token

    def after(self, token: str) -> list[str]:
        """The tokens behind this one."""
        tokens = list(self.of.get(token, ()))
        return tokens[tokens.index(token) + 1 :] if token in tokens else []
