"""Ids: sortable, unique across threads and forks, canonical."""

from __future__ import annotations

import os
import threading
import uuid

import pytest

from holdfast import names


def test_an_id_is_a_canonical_uuid_of_version_7() -> None:
    made = names.new_id()
    parsed = uuid.UUID(made)
    assert len(made) == 36
    assert str(parsed) == made
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122


def test_ids_of_one_thread_grow_as_they_are_made() -> None:
    made = [names.new_id() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_grow_although_the_wall_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([5_000_000_000_000_000_000, 4_000_000_000_000_000_000, 4_500_000_000_000_000_000])
    monkeypatch.setattr(names, "_source", names._Source())
    monkeypatch.setattr("holdfast.names.time.time_ns", lambda: next(moments))
    made = [names.new_id() for _ in range(3)]
    assert made == sorted(made)


def test_a_full_counter_goes_on_in_the_next_millisecond() -> None:
    source = names._Source()
    first = source.take()
    source._millisecond += 1_000_000  # ahead of the clock, so that it counts on
    source._counter = names._COUNTER_LIMIT - 1
    assert first < source.take() < source.take()


def test_ids_grow_across_every_part_of_the_counter() -> None:
    source = names._Source()
    source.take()
    source._millisecond += 1_000_000  # ahead of the clock, so that it counts on
    for bits in (16, 30, 41):
        source._counter = (1 << bits) - 2
        source._carry()
        made = [source.take() for _ in range(3)]
        assert made == sorted(made)
        parsed = [uuid.UUID(id).int for id in made]
        counters = [(one >> 64 & 0xFFF) << 30 | one >> 32 & 0x3FFFFFFF for one in parsed]
        assert counters == [(1 << bits) - 1, 1 << bits, (1 << bits) + 1]


def test_threads_never_share_an_id() -> None:
    made: list[list[str]] = [[] for _ in range(4)]

    def make(mine: list[str]) -> None:
        mine.extend(names.new_id() for _ in range(5_000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    everything = [id for mine in made for id in mine]
    assert len(set(everything)) == 20_000
    assert all(mine == sorted(mine) for mine in made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_begins_anew() -> None:
    names.new_id()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, f"{names._source._counter} {names.new_id()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        counter, theirs = answer.read().split()
    assert counter == "0"
    assert theirs not in {names.new_id() for _ in range(1000)}
