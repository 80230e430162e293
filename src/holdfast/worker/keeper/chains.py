"""Chains: leases of one strict group that a runner works off one after the other (a queue's group_prefetch).

Used by the exchange loop, which asks for them, by the ledger and by both kinds of runners. Pure bookkeeping. In every
list of leases the chained ones follow directly behind the lease before them in their chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from ...records import ClaimRequest, Lease, QueueRule

CHAIN_SECONDS = 0.5  # a chain is no longer than jobs run within this time, by the latest run times
CHAINED_MAX = 1000  # chained jobs that one runner may hold
CHAINED_PER_JOB_MAX = 16  # chained leases that a claim may bring for each job it may bring


def prefetches(rules: Iterable[QueueRule]) -> dict[str, int]:
    """The queues whose groups may hand out several jobs at once, with their numbers."""
    return {rule.name: rule.group_prefetch for rule in rules if rule.group_prefetch > 1}


def lengths(
    prefetch: Mapping[str, int], seconds: float | None, capped: Mapping[str, int], share: int | None
) -> dict[str, int]:
    """How long chains of these queues may be: as long as jobs that run for `seconds` take CHAIN_SECONDS, within this
    worker's share of a group, and none in queues that it caps, because all leases count there."""
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
    """Leases with the chained ones directly behind those before them, and the strays: their chain is not whole."""
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
    """Which of the leases that somebody holds are behind another one in their chain.

    Most workers have none: their callers look whether `of` is empty before they call.
    """

    __slots__ = ("behind", "of")

    def __init__(self) -> None:
        self.of: dict[str, dict[str, None]] = {}  # by token: the tokens of its chain that are held, in order
        self.behind = 0  # how many are behind another one

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
