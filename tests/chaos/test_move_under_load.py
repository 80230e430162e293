"""A store is moved while producers and a worker are at it: what was acknowledged is carried and runs once, in order."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..moving.stage import fresh_url, move, tables
from .scene import until

PAIRS = [("sqlite", "sqlite"), ("sqlite", "postgres"), ("postgres", "sqlite")]
SEALED = 3
PROGRAM = Path(__file__).with_name("load_app.py")  # not imported: it reads its arguments as it loads


class Load:
    """Processes on a store, and the books they keep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, url: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), url, str(self.folder), *words]
        self.processes.append(subprocess.Popen(command))
        return self.processes[-1]

    def book(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def ended(self) -> set[str]:
        return {line["job"] for line in self.book("journal") if line["what"] == "end"}


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    load = Load(tmp_path)
    yield load
    for process in load.processes:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.chaos
@pytest.mark.parametrize("pair", PAIRS, ids="-to-".join)
def test_every_acknowledged_job_is_carried_and_runs_once_in_its_groups_order(
    pair: tuple[str, str], load: Load, tmp_path: Path
) -> None:
    source, target = (fresh_url(kind, tmp_path) for kind in pair)
    asyncio.run(tables(source))  # sets it up
    crew = [load.start(source, "produce", "p1"), load.start(source, "join", "p2"), load.start(source, "join", "p3")]
    crew.append(load.start(source, "work"))
    until(lambda: len(load.ended()) >= 40, what="the worker is at it")
    moved = asyncio.run(move(source, target, wait=30.0))
    assert moved.done
    assert [process.wait(30) for process in crew] == [SEALED] * 4  # each of them was told, and ended

    stored, refused = load.book("stored"), load.book("refused")
    here = {job["id"]: job for job in asyncio.run(tables(source))["jobs"]}
    there = {job["id"]: job for job in asyncio.run(tables(target))["jobs"]}
    assert {line["job"] for line in stored} == set(there) == set(here)
    assert len(refused) == 3 and not {line["job"] for line in refused} & set(there)
    done_before = load.ended()
    assert {name for name, job in there.items() if job["state"] == "succeeded"} == done_before
    assert 40 <= len(done_before) < len(there)  # the seal came in the middle

    assert load.start(target, "drain").wait(60) == 0
    starts = [line for line in load.book("journal") if line["what"] == "start"]
    assert set(Counter(line["job"] for line in starts).values()) == {1}
    assert {line["job"] for line in starts} == set(there)
    by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in starts:
        by_group[line["group"]].append(line)
    for group, lines in by_group.items():
        numbers, fences = [line["number"] for line in lines], [line["fence"] for line in lines]
        assert numbers == sorted(numbers), group
        assert fences == sorted(set(fences)), group
    assert {job["state"] for job in asyncio.run(tables(target))["jobs"]} == {"succeeded"}
