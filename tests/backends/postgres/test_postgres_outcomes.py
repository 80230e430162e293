"""Settlements as they are sent: successes by column, the others one by one, the answers back in the caller's order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.codec import LEASED_GROUPS_MAX, LeasedGroups, outcomes
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import Answer, ClaimRequest, Lease, NewJob, WorkerRecord

Make = Callable[..., PostgresBackend]


def success(id: str, token: str, retain: float = 0.0, value: bytes | None = None) -> Settlement:
    return Settlement(id=id, token=token, ending=Ending.SUCCEEDED, retain=retain, value=value)


def test_what_successes_share_is_said_once() -> None:
    told = outcomes([success("a", "1.2.f", 5.0, b"1"), success("b", "2.3.f", 5.0, b"1")])
    assert told.successes is not None
    assert json.loads(told.successes) == {
        "token": ["1.2.f", "2.3.f"], "id": ["a", "b"], "retain": 5.0, "value": "MQ=="
    }  # fmt: skip
    assert (told.others, told.places) == ("[]", None)


def test_values_that_differ_are_a_list_and_a_group_is_included() -> None:
    told = outcomes([success("a", "1.2.fg", 5.0, b"1"), success("b", "2.3.f", 6.0)])
    assert told.successes is not None
    sent = json.loads(told.successes)
    assert (sent["retains"], sent["values"], sent["grouped"]) == ([5.0, 6.0], ["MQ==", None], True)


def leased(token: str, group: str | None, queue: str = "q") -> Lease:
    return Lease(id="j", token=token, task="t", queue=queue, args=b"", group=group, attempt=1, fence=1)


def test_groups_that_were_leased_here_are_named_once() -> None:
    groups = LeasedGroups()
    groups.note([leased("1.1.fg", "x"), leased("2.1.fg", "x"), leased("3.1.f", None), leased("4.1.fg", "x", "r")])
    told = outcomes([success(id, f"{n}.1.f{'g' * (n != 3)}") for n, id in enumerate("abcd", 1)], groups)
    assert told.successes is not None
    sent = json.loads(told.successes)
    assert sorted(zip(sent["queues"], sent["grps"], strict=True)) == [("q", "x"), ("r", "x")]
    again = outcomes([success("a", "1.1.fg")], groups)
    assert again.successes is not None
    assert "queues" not in json.loads(again.successes), "a repeated call leaves it to the server"
    assert json.loads(again.successes)["grouped"]


def test_one_group_that_is_not_known_leaves_all_to_the_server() -> None:
    groups = LeasedGroups()
    groups.note([leased("1.1.fg", "x")])
    told = outcomes([success("a", "1.1.fg"), success("b", "2.1.fg")], groups)
    assert told.successes is not None
    assert "queues" not in json.loads(told.successes)


def test_groups_of_leases_that_never_end_here_are_forgotten() -> None:
    groups = LeasedGroups()
    for n in range(LEASED_GROUPS_MAX + 2):
        groups.note([leased(f"{n}.1.fg", "x")])
    assert groups.take(["0.1.fg"]) is None
    assert groups.take([f"{LEASED_GROUPS_MAX + 1}.1.fg"]) == [("q", "x")]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "by another process"])
def test_the_next_job_of_the_group_follows_wherever_the_one_before_was_settled(make: Make, elsewhere: bool) -> None:
    async def run() -> list[str]:
        backend = make()
        await backend.open()
        other = make() if elsewhere else backend
        await other.open()
        await backend.register(WorkerRecord(id="w"))
        await backend.enqueue([NewJob(id=name, task="t", group="g") for name in "ab"])
        claimed = await backend.claim(ClaimRequest(worker="w", call=1, queues=("default",), most=9))
        [lease] = claimed.leases
        found = await other.exchange(
            [success("a", lease.token)], (), ClaimRequest(worker="w", call=2, queues=("default",), most=9)
        )
        for one in {backend, other}:
            await one.close()
        return [one.id for one in found.leases]

    assert asyncio.run(run()) == ["b"]


def test_only_the_first_word_on_a_job_and_a_token_of_ours_goes_by_column() -> None:
    again, strange, twice = success("c", "3.4.f"), success("x", "no.such.token"), success("a", "1.2.f")
    failed = Settlement(id=again.id, token=again.token, ending=Ending.BURIED, failed=True)
    told = outcomes([failed, again, strange, twice, twice])
    assert told.successes is not None
    assert json.loads(told.successes)["id"] == ["a"]
    assert [one["id"] for one in json.loads(told.others)] == ["c", "c", "x", "a"]
    assert told.places == [3, 0, 1, 2, 4]


def test_answers_come_in_the_order_of_the_settlements(make: Make) -> None:
    async def run() -> list[Answer]:
        backend = make()
        await backend.open()
        await backend.register(WorkerRecord(id="w"))
        await backend.enqueue([NewJob(id=name, task="t", group="g" if name == "a" else None) for name in "abcd"])
        claimed = await backend.claim(ClaimRequest(worker="w", call=1, queues=("default",), most=9))
        leases = {lease.id: lease for lease in claimed.leases}
        await backend.cancel("c")
        given = [
            success("b", "1.2.wrong"),
            success("c", leases["c"].token),
            success("a", leases["a"].token, value=b"1"),
            Settlement(id="d", token=leases["d"].token, ending=Ending.BURIED, failed=True),
            success("b", leases["a"].token),
            success("b", leases["b"].token),
        ]
        found = await backend.settle(given)
        stored = {name: await backend.get(name) for name in "abcd"}
        assert [record.state.value for record in stored.values() if record] == [
            "succeeded",
            "succeeded",
            "running",
            "dead",
        ]
        assert stored["a"] is not None
        assert stored["a"].value == b"1"
        await backend.close()
        return found

    found = asyncio.run(run())
    assert found == [Answer.LOST, Answer.CANCELLED, Answer.OK, Answer.OK, Answer.LOST, Answer.OK]
