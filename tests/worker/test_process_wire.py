"""Frames and marks: what keeper and runners share, byte by byte and at the same instant."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import msgspec
import pytest

from holdfast.errors import ConfigurationError
from holdfast.lifecycle import Ending, Failure, Settlement
from holdfast.records import Lease, Release
from holdfast.worker.processes import protocol
from holdfast.worker.processes.begin_flags import BeginFlags, make_file

LEASE = Lease("j1", "t1", 7, "send", "mail", b'{"to":"\xc3\xa4"}', group="g", options=b"{}")
SETTLED = Settlement(
    id="j1", token=LEASE.token, ending=Ending.RETRY, failed=True, delay=1.5, failure=Failure(text="no", at=3.0)
)


def feed(reader: protocol.Reader, piece: bytes | bytearray) -> list[object]:
    """What a socket does: it fills the reader's space as often as it takes."""
    out: list[object] = []
    while piece:
        space = reader.space()
        count = min(len(space), len(piece))
        space[:count], piece = piece[:count], piece[count:]
        out += reader.received(count)
    return out


def frames() -> list[protocol.Frame]:
    return [
        protocol.Ping(1),
        protocol.Start([3], [LEASE]),
        protocol.Halt([("j1", "t1")], 4),
        protocol.Quit(),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 100_000])
def test_frames_come_out_whole_however_they_are_cut(size: int) -> None:
    reader, packed = protocol.from_keeper(), protocol.pack(frames())
    out: list[object] = []
    for start in range(0, len(packed), size):
        out += feed(reader, packed[start : start + size])
    assert out == frames()


def test_outcomes_travel_unchanged() -> None:
    ended = protocol.Ended([SETTLED], [Release(id="j2", token=LEASE.token, delay=2.0)], [("j3", "t3")])
    assert feed(protocol.from_runner(), protocol.pack([ended])) == [ended]


def test_a_frame_stays_sound_when_more_arrives() -> None:
    """A part kept undecoded must not change when the reader goes on."""
    reader = protocol.from_keeper()
    emit = protocol.Emit([("stalled", protocol.encode_part({"worker": "w"}))])
    (first,) = feed(reader, protocol.pack([emit]))
    feed(reader, protocol.pack([protocol.Ping(2)]) * 100)
    assert isinstance(first, protocol.Emit)
    assert first.events == emit.events


def test_a_large_frame_is_read_to_its_end_and_not_beyond_so_that_nothing_is_moved() -> None:
    large = protocol.Start([1], [msgspec.structs.replace(LEASE, args=b"x" * (3 * protocol.READ_BYTES))])
    packed, reader = protocol.pack([large]), protocol.from_keeper()
    assert feed(reader, packed[:100]) == []
    assert len(reader.space()) == len(packed) - 100
    assert feed(reader, packed[100:] + protocol.pack([protocol.Ping(1)])) == [large, protocol.Ping(1)]


def test_a_buffer_that_had_to_be_very_large_is_given_up_after_its_frame() -> None:
    reader = protocol.from_keeper()
    for size, kept in ((protocol.READ_BYTES_KEPT // 2, True), (2 * protocol.READ_BYTES_KEPT, False)):
        large = protocol.Start([1], [msgspec.structs.replace(LEASE, args=b"x" * size)])
        assert feed(reader, protocol.pack([large, protocol.Ping(1)])) == [large, protocol.Ping(1)]
        assert (len(reader.space()) > size) is kept


def test_jobs_with_large_arguments_are_sent_in_several_frames_and_a_chain_in_one() -> None:
    large = b"x" * (protocol.START_BYTES_TARGET // 2)
    lease, chained = (
        msgspec.structs.replace(LEASE, args=large),
        msgspec.structs.replace(LEASE, args=large, chained=True),
    )
    cut = list(protocol.start_frames([1, 2, 3, 4, 5, 6], [lease, lease, lease, chained, chained, LEASE]))
    assert [frame.flags for frame in cut] == [[1, 2], [3, 4, 5], [6]]
    assert [one for frame in cut for one in frame.leases] == [lease, lease, lease, chained, chained, LEASE]
    assert list(protocol.start_frames([7, 8], [LEASE, LEASE])) == [protocol.Start([7, 8], [LEASE, LEASE])]


def test_the_reader_says_how_much_it_lacks() -> None:
    reader, packed = protocol.from_keeper(), protocol.pack([protocol.Ping(1)])
    assert reader.missing == protocol.HEAD_BYTES
    feed(reader, packed[:8])
    assert reader.missing == len(packed) - 8


HEAD = protocol.pack([protocol.Quit()])[:4]


@pytest.mark.parametrize(
    "junk",
    [b"\xff" * 8, b"printed\n", b"\x01\x00\x00\x00\x01\x00\x00\x00\xc1", HEAD + b"\x01\x00\x00\x00\xc1"],
)
def test_what_is_no_frame_is_refused(junk: bytes) -> None:
    with pytest.raises(ConfigurationError, match="frame"):
        feed(protocol.from_runner(), junk)


def announced(size: int) -> bytearray:
    """The header of a frame of this many bytes."""
    return HEAD + size.to_bytes(4, "little")


def test_of_a_runner_no_frame_is_awaited_that_is_larger_than_it_may_be() -> None:
    feed(protocol.from_keeper(), announced(protocol.RUNNER_FRAME_BYTES_MAX + 1))  # the keeper is trusted
    reader = protocol.from_runner()
    assert feed(reader, announced(protocol.RUNNER_FRAME_BYTES_MAX)) == []
    reader = protocol.from_runner()
    with pytest.raises(ConfigurationError, match="announced"):
        feed(reader, announced(protocol.RUNNER_FRAME_BYTES_MAX + 1))
    reader = protocol.from_runner()
    reader.most += 1
    assert feed(reader, announced(protocol.RUNNER_FRAME_BYTES_MAX + 1)) == []


def test_ends_travel_in_frames_the_keeper_takes_and_none_is_left_out() -> None:
    large = protocol.FRAME_BYTES_TARGET // 3
    settlements = [
        Settlement(id=f"j{n}", token=f"t{n}", ending=Ending.SUCCEEDED, value=b"x" * (large if n % 2 else 1))
        for n in range(20)
    ]
    huge, bad = b"x" * (2 * protocol.FRAME_BYTES_TARGET), Failure(text="ä", traceback="y" * 10_000)
    settlements.append(Settlement(id="big", token=LEASE.token, ending=Ending.SUCCEEDED, value=huge))
    settlements.append(Settlement(id="bad", token=LEASE.token, ending=Ending.BURIED, failure=bad))
    releases = [Release(id=f"r{n}", token=LEASE.token) for n in range(protocol.FRAME_ITEMS_MAX + 1)]
    gone = [(f"g{n}", "t") for n in range(2 * protocol.FRAME_ITEMS_MAX + 1)]
    cut = list(protocol.outcome_frames(settlements, releases, gone))
    assert [one for frame in cut for one in frame.settlements] == settlements
    assert [one for frame in cut for one in frame.releases] == releases
    assert [one for frame in cut for one in frame.gone] == gone
    assert max(len(protocol.pack([frame])) for frame in cut) < protocol.RUNNER_FRAME_BYTES_MAX
    assert sum(len(frame.settlements) > 1 for frame in cut) > 3  # together as far as there is room
    whole, few = protocol.Ended(settlements, releases, gone), protocol.Ended([SETTLED], [], [])
    assert feed(protocol.from_runner(), protocol.pack_outcomes(whole)) == cut
    assert feed(protocol.from_runner(), protocol.pack_outcomes(few)) == [few]


def test_reports_travel_in_frames_the_keeper_takes_and_none_is_left_out() -> None:
    reports = [protocol.JobReport(f"t{n}", True, 0.5, "ä" * 500, ["€" * 2000] * 200) for n in range(20)]
    reports += [protocol.JobReport(f"s{n}", False, None, None, []) for n in range(2 * protocol.FRAME_ITEMS_MAX)]
    cut = list(protocol.report_frames(reports))
    assert [one for frame in cut for one in frame.reports] == reports
    assert feed(protocol.from_runner(), protocol.pack_reports(reports)) == cut
    assert feed(protocol.from_runner(), protocol.pack_reports(reports[-1:])) == [protocol.Reported(reports[-1:])]
    assert max(len(protocol.pack([frame])) for frame in cut) < protocol.RUNNER_FRAME_BYTES_MAX


# ---------------------------------------------------------------------- marks


@pytest.fixture
def sides() -> Iterator[tuple[BeginFlags, BeginFlags]]:
    fd = make_file(4)
    keeper, runner = BeginFlags(fd), BeginFlags(fd)
    os.close(fd)
    yield keeper, runner
    keeper.close()
    runner.close()


def test_a_begin_is_seen_by_the_keeper(sides: tuple[BeginFlags, BeginFlags]) -> None:
    keeper, runner = sides
    keeper.clear(2)
    assert keeper.begun(2) == 0.0
    assert runner.begin(2, 12.5, 99)
    assert (keeper.begun(2), keeper.thread(2), keeper.begun(1)) == (12.5, 99, 0.0)


def test_what_was_taken_back_does_not_begin_and_what_began_is_not_taken(sides: tuple[BeginFlags, BeginFlags]) -> None:
    keeper, runner = sides
    assert keeper.take_back(0)
    assert not runner.begin(0, 1.0, 1)
    assert runner.begin(1, 1.0, 1)
    assert not keeper.take_back(1)
    keeper.clear(0)
    assert runner.begin(0, 2.0, 1)


def test_begin_and_take_back_at_the_same_instant_never_both_win(sides: tuple[BeginFlags, BeginFlags]) -> None:
    keeper, runner = sides
    rounds, line = 3000, threading.Barrier(2)
    began: list[bool] = []

    def begin() -> None:
        for _ in range(rounds):
            line.wait()
            began.append(runner.begin(0, 1.0, 1))
            line.wait()

    thread = threading.Thread(target=begin)
    thread.start()
    taken: list[bool] = []
    for _ in range(rounds):
        keeper.clear(0)
        line.wait()
        taken.append(keeper.take_back(0))
        line.wait()
    thread.join()
    assert not any(first and second for first, second in zip(began, taken, strict=True))
