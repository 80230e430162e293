"""The mover on real stores: what it carries, what it refuses, what it leaves behind when it gives up."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast import mover
from holdfast.backends import parse_url
from holdfast.backends.contract import Backend
from holdfast.errors import BackendUnavailable, MoveRefused, OutcomeUnknown, StoreSealed
from holdfast.inspection import explain
from holdfast.mover import Moved, Mover, Side, Step, abandon, survey
from holdfast.records import ClaimRequest, NewJob, QueueRule, Seal, WorkerRecord
from holdfast.testing.conformance.compare import same_tables

from .stage import fresh_url, furnished, move, opened, split, tables, with_store

PAIRS = [
    *(("sqlite", "sqlite"), ("sqlite", "postgres"), ("postgres", "sqlite"), ("postgres", "postgres")),
    *(("sqlite", "redis"), ("redis", "sqlite"), ("redis", "postgres"), ("postgres", "redis"), ("redis", "redis")),
    *(("redis", "cluster"), ("sqlite", "cluster"), ("cluster", "sqlite"), ("cluster", "postgres")),
    ("cluster", "cluster"),
]


@pytest.fixture
def urls(tmp_path: Path) -> tuple[str, str]:
    return fresh_url("sqlite", tmp_path), fresh_url("sqlite", tmp_path)


async def claim(backend: Backend, worker: str = "w", call: int = 1, most: int = 10) -> list[Any]:
    await backend.register(WorkerRecord(id=worker, host="box", pid=77))
    return list((await backend.claim(ClaimRequest(worker=worker, call=call, queues=("default",), most=most))).leases)


async def put(url: str, *jobs: NewJob) -> None:
    await with_store(url, lambda backend: backend.enqueue(jobs))


@pytest.mark.parametrize("pair", PAIRS, ids="-to-".join)
def test_the_target_becomes_what_the_source_is(pair: tuple[str, str], tmp_path: Path) -> None:
    source, target = (fresh_url(kind, tmp_path) for kind in pair)
    before = asyncio.run(furnished(source, times=30))
    asyncio.run(split(target))
    steps: list[Step] = []
    moved = asyncio.run(move(source, target, say=steps.append))
    assert moved.done and moved.comparison is not None
    assert moved.comparison.rows["jobs"] == len(before["jobs"])
    assert moved.comparison.rows["letters"] == len(before["letters"]) > 0
    assert moved.comparison.rows["log_lines"] == len(before["logs"]) > 0
    assert moved.comparison.source_digest == moved.comparison.target_digest
    same_tables(before, asyncio.run(tables(target)), "the target")
    same_tables(before, asyncio.run(tables(source)), "the source")
    assert [step for step in steps if step.step == "carry"][-1].done == len(before["jobs"])
    again = asyncio.run(move(source, target))
    assert again.begins == "at its end" and again.done


def test_text_with_nul_is_no_difference(tmp_path: Path) -> None:
    """PostgreSQL's text cannot hold NUL; what a handler wrote must not keep anybody from moving there."""
    source, target = fresh_url("sqlite", tmp_path), fresh_url("postgres", tmp_path)

    async def fill(backend: Backend) -> None:
        await backend.enqueue([NewJob(id="a", task="t"), NewJob(id="b", task="t")])
        await backend.bury("a", "nul \0 and \\u0000 in it")

    asyncio.run(with_store(source, fill))
    moved = asyncio.run(move(source, target))
    assert moved.done, moved.comparison


def test_a_store_with_live_leases_is_refused_with_their_number_and_works_on(urls: tuple[str, str]) -> None:
    source, target = urls

    async def run() -> None:
        backend = await opened(source)
        await backend.enqueue([NewJob(id=str(n), task="t") for n in range(3)])
        assert len(await claim(backend, most=2)) == 2
        for wait in (0.0, 0.3):
            with pytest.raises(MoveRefused, match=r"2 jobs are still running: w \(2 on box, pid 77\)") as refused:
                await move(source, target, wait=wait)
            assert refused.value.leases == 2
            assert await backend.sealed() is None
            assert len(await claim(backend, worker=f"other {wait}", call=1, most=0)) == 0
        assert await with_store(target, lambda one: one.sealed()) is None
        await backend.enqueue([NewJob(id="later", task="t")])
        await backend.close()

    asyncio.run(run())


def test_it_waits_for_running_jobs_to_end(urls: tuple[str, str]) -> None:
    source, target = urls

    async def run() -> Moved:
        backend = await opened(source)
        await backend.enqueue([NewJob(id="a", task="t"), NewJob(id="b", task="t")])
        await claim(backend, most=1)
        waiting = asyncio.Event()

        def say(step: Step) -> None:
            if step.step == "wait":
                waiting.set()

        moving = asyncio.create_task(move(source, target, say=say))
        await asyncio.wait_for(waiting.wait(), 20)
        with pytest.raises(StoreSealed):
            await backend.enqueue([NewJob(id="c", task="t")])
        assert await backend.retire("w") == 1
        moved = await moving
        await backend.close()
        return moved

    assert asyncio.run(run()).done
    assert sorted(job["id"] for job in asyncio.run(tables(target))["jobs"]) == ["a", "b"]


def test_a_target_in_use_is_refused_and_not_touched(urls: tuple[str, str]) -> None:
    source, target = urls
    asyncio.run(put(source, NewJob(id="a", task="t")))
    asyncio.run(put(target, NewJob(id="b", task="t")))
    with pytest.raises(MoveRefused, match="not empty"):
        asyncio.run(move(source, target))
    asyncio.run(put(source, NewJob(id="c", task="t")))
    asyncio.run(put(target, NewJob(id="d", task="t")))


def test_two_names_of_one_store_are_found_out(tmp_path: Path) -> None:
    url = fresh_url("sqlite", tmp_path)
    asyncio.run(with_store(url, lambda one: one.declare([QueueRule(name="q")])))
    os.symlink(url.removeprefix("sqlite:///"), tmp_path / "link.db")
    with pytest.raises(MoveRefused, match="same store"):
        asyncio.run(move(url, f"sqlite:///{tmp_path / 'link.db'}"))
    asyncio.run(put(url, NewJob(id="a", task="t")))
    with pytest.raises(MoveRefused, match="not empty"):
        asyncio.run(move(url, f"sqlite:///{tmp_path / 'link.db'}"))
    asyncio.run(put(url, NewJob(id="b", task="t")))


def test_a_difference_is_named_and_neither_store_opens(urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = urls
    asyncio.run(put(source, *(NewJob(id=f"j{n}", task="t") for n in range(5))))
    whole = Mover._compare

    async def meddle(self: Mover) -> Any:
        connection = sqlite3.connect(target.removeprefix("sqlite:///"))
        with connection:
            connection.execute("UPDATE holdfast_jobs SET priority = 9 WHERE id = 'j3'")
        connection.close()
        return await whole(self)

    monkeypatch.setattr(Mover, "_compare", meddle)
    moved = asyncio.run(move(source, target))
    assert not moved.done and moved.comparison is not None
    assert moved.comparison.differences == ("job j3 differs",)
    for url in urls:
        with pytest.raises(StoreSealed):
            asyncio.run(put(url, NewJob(id="x", task="t")))


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("DELETE FROM holdfast_jobs WHERE id = 'j3'", "queue default: 5 ready jobs in the source, 4 in the target"),
        ("INSERT INTO holdfast_pauses VALUES ('queue', 'q', '', '', '', 1)", "rules: 0 rows here, 1 there"),
        ("INSERT INTO holdfast_logs VALUES (1, 1, 1, 'x')", "job j0 differs"),
    ],
)
def test_whatever_is_missing_or_too_much_is_found(urls: tuple[str, str], statement: str, named: str) -> None:
    source, target = urls

    async def run() -> None:
        await put(source, *(NewJob(id=f"j{n}", task="t") for n in range(5)))
        await move(source, target)
        connection = sqlite3.connect(target.removeprefix("sqlite:///"))
        with connection:
            connection.execute(statement)
        connection.close()
        one, two = await opened(source), await opened(target)
        compared = await mover.compare(one, two, lambda done: None)
        await one.close()
        await two.close()
        assert not compared.equal
        assert compared.differences[0] == named

    asyncio.run(run())


async def sides(urls: tuple[str, str], work: Any) -> Any:
    one, two = await opened(urls[0]), await opened(urls[1])
    try:
        return await work(Side(one, parse_url(urls[0]).store_name), Side(two, parse_url(urls[1]).store_name))
    finally:
        await one.close()
        await two.close()


def test_what_changed_rules_left_to_do_is_done_before_the_source_is_sealed(urls: tuple[str, str]) -> None:
    asked: list[int] = []

    async def run(one: Side, two: Side) -> None:
        async def rearrange(*, limit: int = 500, now: float | None = None) -> bool:
            assert await one.backend.sealed() is None
            asked.append(limit)
            if limit > 100:
                raise OutcomeUnknown("rearrange")
            return len(asked) < 6

        one.backend.rearrange = rearrange  # type: ignore[method-assign]
        moved = await Mover(one, two, wait=1.0, say=lambda step: None).run()
        assert moved.done

    asyncio.run(sides(urls, run))
    assert asked == [500, 250, 125, 62, 62, 62]


class Cut(Exception):
    """The mover's process ends here."""


def cut_after(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the mover after this many pieces, of few rows each."""
    monkeypatch.setattr(mover, "PIECE_ROWS_FIRST", 4)
    monkeypatch.setattr(mover, "PIECE_ROWS_MAX", 4)
    done = 0
    whole = mover.PieceSize.learn

    def learn(self: Any, piece: Any) -> None:
        nonlocal done
        done += 1
        if done > pieces:
            raise Cut
        whole(self, piece)

    monkeypatch.setattr(mover.PieceSize, "learn", learn)


def test_an_abandoned_source_works_again_and_its_half_filled_target_never_does(
    urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = urls
    before = asyncio.run(furnished(source))
    with monkeypatch.context() as patched:
        cut_after(3, patched)
        with pytest.raises(Cut):
            asyncio.run(move(source, target))
    assert asyncio.run(sides(urls, abandon)) is True
    same_tables(before, asyncio.run(tables(source)), "the source")
    asyncio.run(put(source, NewJob(id="works", task="t")))
    with pytest.raises(StoreSealed, match="abandoned"):
        asyncio.run(put(target, NewJob(id="x", task="t")))
    with pytest.raises(MoveRefused, match="abandoned"):
        asyncio.run(move(source, target))
    with pytest.raises(MoveRefused, match="no move"):
        asyncio.run(sides(urls, abandon))
    other = target.replace(".db", "-2.db")
    assert asyncio.run(move(source, other)).done


def test_a_mover_still_at_work_cannot_open_what_was_abandoned(
    urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = urls
    asyncio.run(put(source, *(NewJob(id=f"j{n}", task="t") for n in range(5))))
    whole = Mover._compare

    async def late(self: Mover) -> Any:
        compared = await whole(self)
        assert await sides(urls, abandon) is True
        await put(source, NewJob(id="new", task="t"))
        return compared

    monkeypatch.setattr(Mover, "_compare", late)
    with pytest.raises(MoveRefused, match="somebody else"):
        asyncio.run(move(source, target))
    with pytest.raises(StoreSealed, match="abandoned"):
        asyncio.run(put(target, NewJob(id="x", task="t")))


def test_abandoning_before_anything_was_carried_leaves_both_as_they_were(
    urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = urls
    asyncio.run(put(source, NewJob(id="a", task="t")))

    async def dies(self: Mover, *args: Any) -> None:
        raise Cut

    for step in ("_seal_source", "_until_no_lease"):
        with monkeypatch.context() as patched:
            patched.setattr(Mover, step, dies)
            with pytest.raises(Cut):
                asyncio.run(move(source, target))
        assert asyncio.run(sides(urls, abandon)) is False
        asyncio.run(put(source, NewJob(id=step, task="t")))
    assert asyncio.run(move(source, target)).done


def test_a_finished_move_cannot_be_abandoned(urls: tuple[str, str]) -> None:
    asyncio.run(put(urls[0], NewJob(id="a", task="t")))
    asyncio.run(move(*urls))
    with pytest.raises(MoveRefused, match="already"):
        asyncio.run(sides(urls, abandon))


def test_a_target_thrown_away_is_filled_afresh(urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = urls
    before = asyncio.run(furnished(source))
    with monkeypatch.context() as patched:
        cut_after(3, patched)
        with pytest.raises(Cut):
            asyncio.run(move(source, target))
    for path in Path(target.removeprefix("sqlite:///")).parent.glob(Path(target).name + "*"):
        path.unlink()
    assert asyncio.run(move(source, target)).done
    same_tables(before, asyncio.run(tables(target)), "the target")


class Stumbling:
    """A backend that loses every second answer to a call that changes something, after it was carried out."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._calls = backend, 0

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._backend, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = await real(*args, **kwargs)
            if verb in ("seal", "carry"):
                self._calls += 1
                if self._calls % 2:
                    raise OutcomeUnknown(verb)
            return answer

        return call


def test_lost_answers_lose_nothing(urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "RETRY_FIRST_SECONDS", 0.001)
    before = asyncio.run(furnished(urls[0]))

    async def run(one: Side, two: Side) -> Moved:
        stumbling: list[Any] = [Side(Stumbling(side.backend), side.name) for side in (one, two)]  # type: ignore[arg-type]
        return await Mover(*stumbling, wait=5.0, say=lambda step: None).run()

    assert asyncio.run(sides(urls, run)).done
    same_tables(before, asyncio.run(tables(urls[1])), "the target")


class Narrow:
    """A backend that cannot take more than a few jobs within its call timeout."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._backend, verb)

    async def carry(self, move: str, shipment: Any) -> None:
        if len(shipment.jobs) > 3:
            raise BackendUnavailable("too much at once.")
        await self._backend.carry(move, shipment)


def test_pieces_become_smaller_where_a_store_cannot_take_them(
    urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "RETRY_FIRST_SECONDS", 0.001)
    before = asyncio.run(furnished(urls[0], times=5))

    async def run(one: Side, two: Side) -> Moved:
        narrow: Any = Narrow(two.backend)
        return await Mover(one, Side(narrow, two.name), wait=5.0, say=lambda step: None).run()

    assert asyncio.run(sides(urls, run)).done
    same_tables(before, asyncio.run(tables(urls[1])), "the target")


def test_explain_names_the_seal(urls: tuple[str, str]) -> None:
    asyncio.run(put(urls[0], NewJob(id="a", task="t")))
    asyncio.run(move(*urls))
    told = asyncio.run(with_store(urls[0], lambda one: explain(one, "a")))
    assert "The store is sealed: its jobs were moved to" in told.reasons[0]
    assert not any(
        "sealed" in line for line in asyncio.run(with_store(urls[1], lambda one: explain(one, "a"))).sentences
    )


def test_two_movers_at_once_do_no_harm(urls: tuple[str, str]) -> None:
    before = asyncio.run(furnished(urls[0], times=20))

    async def run() -> list[Any]:
        return await asyncio.gather(*(move(*urls) for _ in range(3)), return_exceptions=True)

    for _ in range(5):
        asyncio.run(run())
        last = asyncio.run(move(*urls))
        if last.begins == "at its end":
            break
    assert last.begins == "at its end"
    same_tables(before, asyncio.run(tables(urls[1])), "the target")


@pytest.mark.parametrize("side", [0, 1])
def test_a_seal_that_came_meanwhile_is_not_replaced(
    urls: tuple[str, str], side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two movers decide at the same moment; the slower one must not take the place of the faster one's seal."""
    asyncio.run(put(urls[0], NewJob(id="a", task="t")))
    roles: tuple[Any, Any] = ("source", "target")
    rival = Seal(move="rival", role=roles[side], other="store://elsewhere")
    whole = mover._decided

    async def decided(source: Side, target: Side) -> Any:
        answer = await whole(source, target)
        assert await (source, target)[side].backend.seal(rival, instead_of=None)
        return answer

    monkeypatch.setattr(mover, "_decided", decided)
    with pytest.raises(MoveRefused, match="somebody else"):
        asyncio.run(move(*urls))
    assert asyncio.run(with_store(urls[side], lambda one: one.sealed())) == rival
    assert asyncio.run(with_store(urls[1 - side], lambda one: one.sealed())) is None


def test_a_survey_changes_nothing(urls: tuple[str, str]) -> None:
    before = asyncio.run(furnished(urls[0]))
    found = asyncio.run(sides(urls, survey))
    assert found.plan.begins == "anew" and found.leases == 0
    assert sum(sum(by.values()) for by in found.jobs.values()) == len(before["jobs"])
    assert asyncio.run(with_store(urls[0], lambda one: one.sealed())) is None
