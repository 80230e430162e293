"""Settlements as they are sent: successes by column, the others one by one, the answers back in the caller's order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.codec import outcomes
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import Answer, ClaimRequest, NewJob, WorkerRecord

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
