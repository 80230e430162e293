"""A mover killed with SIGKILL anywhere and started again: the target becomes exactly what the source is."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.backends.contract import Backend
from holdfast.records import Seal
from holdfast.testing.conformance.compare import same_tables

from ..moving.stage import fresh_url, furnished, split, tables, with_store

# Hundreds of moves; on a busy machine they take their time.
pytestmark = [pytest.mark.chaos, pytest.mark.spread, pytest.mark.timeout(600)]

PAIRS = [
    *(("sqlite", "sqlite"), ("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "redis"), ("redis", "postgres")),
    *(("redis", "cluster"), ("cluster", "sqlite")),
]
INSIDE = [("redis", "cluster"), ("cluster", "sqlite")]
PROGRAM = Path(__file__).with_name("killed_mover.py")


class Ended(NamedTuple):
    """How a mover's process ended, and what it said: the number of its calls, or an error."""

    code: int
    said: str


class Movers:
    """A process that forks movers, one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._asked = process, 0

    def ask(self, source: str, target: str, kill_at: int = 0, when: str = "after", inside: bool = False) -> None:
        assert self._process.stdin is not None
        self._asked += 1
        print(json.dumps([self._asked, source, target, kill_at, when, inside]), file=self._process.stdin, flush=True)

    def run(self, source: str, target: str, kill_at: int = 0, when: str = "after", inside: bool = False) -> Ended:
        self.ask(source, target, kill_at, when, inside)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, *ended = json.loads(line)
            if number == self._asked:  # else it is late: the test that asked for it was cut off
                return Ended(*ended)
        raise AssertionError(f"the movers' process ended with {self._process.wait()}")


@pytest.fixture(scope="module")
def movers() -> Iterator[Movers]:
    command = [sys.executable, str(PROGRAM)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Movers(process)


async def unseal(backend: Backend) -> None:
    assert await backend.seal(None, instead_of=await backend.sealed())


async def standing(backend: Backend) -> tuple[Seal | None, bool, bool]:
    """The seal, whether the store is open, whether it holds jobs."""
    seal = await backend.sealed()
    return seal, seal is None or not seal.closed, bool(await backend.count())


def nobody_can_run_a_job_twice(source: str, target: str) -> None:
    _, source_open, _ = asyncio.run(with_store(source, standing))
    _, target_open, target_filled = asyncio.run(with_store(target, standing))
    assert not (source_open and target_open and target_filled)
    assert not (source_open and target_filled)


@pytest.mark.parametrize("pair", PAIRS, ids="-to-".join)
def test_killed_at_any_call_and_started_again_nothing_is_lost_or_doubled(
    pair: tuple[str, str], tmp_path: Path, movers: Movers
) -> None:
    # All over the move, each pair at calls of its own, and around its beginning and its end, where the seals change.
    first = 12 + 2 * PAIRS.index(pair)
    kill_all_over(movers, pair, tmp_path, lambda n: {*range(2, 12, 3), *range(first, n - 4, 14), *range(n - 3, n + 1)})


@pytest.mark.parametrize("pair", INSIDE, ids="-to-".join)
def test_killed_between_two_shards_and_started_again(pair: tuple[str, str], tmp_path: Path, movers: Movers) -> None:
    """A call to a store of shards is many; it may end between any two of them, in the middle of a seal, too."""
    kill_all_over(movers, pair, tmp_path, lambda n: {*range(3, n, n // 10), *range(n - 9, n + 1, 2)}, inside=True)


def kill_all_over(
    movers: Movers, pair: tuple[str, str], tmp_path: Path, at: Callable[[int], set[int]], inside: bool = False
) -> None:
    """`at` names the calls to be killed at, given how many there are."""
    source = fresh_url(pair[0], tmp_path)
    before = asyncio.run(furnished(source, times=4))
    first = fresh_url(pair[1], tmp_path)
    asyncio.run(split(first))
    whole = movers.run(source, first, 0, "after", inside)
    assert whole.code == 0, whole.said
    calls = int(whole.said)
    assert calls >= 30
    asyncio.run(with_store(source, unseal))
    places = sorted(at(calls))
    assert len(places) >= 11
    for n, place in enumerate(places):
        target = fresh_url(pair[1], tmp_path)
        asyncio.run(split(target))
        killed = movers.run(source, target, place, "before" if n % 2 else "after", inside)
        assert killed.code == -signal.SIGKILL, f"place {place}: {killed.said}"
        nobody_can_run_a_job_twice(source, target)
        again = movers.run(source, target)
        assert again.code == 0, f"place {place}: {again.said}"
        same_tables(before, asyncio.run(tables(target)), f"killed at {place} and started again")
        same_tables(before, asyncio.run(tables(source)), f"the source, killed at {place}")
        seal, is_open, _ = asyncio.run(with_store(source, standing))
        assert seal is not None and seal.stage == "moved" and not is_open
        assert asyncio.run(with_store(target, standing))[1]
        asyncio.run(with_store(source, unseal))


def test_the_late_answer_to_a_test_that_was_cut_off_is_nobody_elses(tmp_path: Path, movers: Movers) -> None:
    source, target = fresh_url("sqlite", tmp_path), fresh_url("sqlite", tmp_path)
    asyncio.run(furnished(source))
    movers.ask(source, target, 1, "before")  # and nobody reads the answer
    assert movers.run(source, target).code == 0


def test_a_mover_that_is_killed_again_and_again_comes_to_its_end(tmp_path: Path, movers: Movers) -> None:
    source, target = fresh_url("sqlite", tmp_path), fresh_url("sqlite", tmp_path)
    before = asyncio.run(furnished(source, times=12))
    deaths = 0
    seal: Seal | None = None
    # It needs some calls to learn where it is; each life carries one piece more and ends.
    while seal is None or seal.part is not None:
        died = movers.run(source, target, 11, "after")
        assert died.code == -signal.SIGKILL, died.said
        nobody_can_run_a_job_twice(source, target)
        deaths += 1
        assert deaths < 60
        seal = asyncio.run(with_store(target, standing))[0]
    assert deaths >= 8
    done = movers.run(source, target)
    assert done.code == 0, done.said
    same_tables(before, asyncio.run(tables(target)), f"after {deaths} deaths")
