"""Rows written by other programs: an invalid one is shown and listed, and everything else works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.records import ClaimRequest, JobQuery, LetterQuery, NewJob, Part, Release, WorkerRecord

from ...servers.postgres import Server

Make = Callable[..., PostgresBackend]
VICTIM = "WHERE id = 'victim'"
_UNSOUND = "ALTER TABLE {schema}.jobs DROP CONSTRAINT jobs_check; UPDATE {schema}.jobs SET state = 'limbo' " + VICTIM
NESTED = "[" * 3000 + "]" * 3000  # deeper than a decoder of Python goes
WORKER = """
INSERT INTO {schema}.workers (id, host, pid, boot_id, pid_namespace, lease_seconds, queues, slots, isolates, started_at,
    renewed_at, deadline) VALUES ('odd', 'h', 1, 'b', 'n', 30, '5', 1, false, 0, 0, 'NaN')
"""
# What is done to a store: the statement, where it is listed, by which id and field.
POISONS: dict[str, tuple[str, str, str | None, str | None]] = {
    "an unknown state": (_UNSOUND, "jobs", "victim", "state"),
    "errors that are no list": ("UPDATE {schema}.jobs SET errors = '{{}}' " + VICTIM, "jobs", "victim", "errors"),
    "errors of numbers": ("UPDATE {schema}.jobs SET errors = '[5]' " + VICTIM, "jobs", "victim", "errors"),
    "errors nested too deep": (f"UPDATE {{schema}}.jobs SET errors = '{NESTED}' {VICTIM}", "jobs", "victim", "record"),
    "a revival that is none": ("UPDATE {schema}.jobs SET revival = '[]' " + VICTIM, "jobs", "victim", "revival"),
    "a time that is none": ("UPDATE {schema}.jobs SET created_at = 'NaN' " + VICTIM, "jobs", "victim", "created_at"),
    "due never": ("UPDATE {schema}.jobs SET due_at = 'Infinity' " + VICTIM, "jobs", "victim", "due_at"),
    "a counter at its end": ("UPDATE {schema}.jobs SET attempts = 2147483647 " + VICTIM, "jobs", "victim", None),
    "an id that is gone": ("DELETE FROM {schema}.ids " + VICTIM, "jobs", "victim", None),
    "an id of another": ("UPDATE {schema}.ids SET seq = 99999 " + VICTIM, "ids", "victim", None),
    "an id of nobody": ("INSERT INTO {schema}.ids VALUES ('nobody', 424242)", "ids", "nobody", None),
    "a letter's error": ("UPDATE {schema}.letters SET error = '5'", "letters", "dead", "error"),
    "a letter's history": ("UPDATE {schema}.letters SET history = '{{}}'", "letters", "dead", "history"),
    "a worker's queues": (WORKER, "workers", "odd", "queues"),
    "an entry": ("INSERT INTO {schema}.entries VALUES ('e', 1, true, '5')", "entries", "e", "record"),
    "no incarnation": ("DELETE FROM {schema}.incarnation", "incarnation", None, None),
    "no function": ("DROP FUNCTION {schema}.stirred(bigint[], double precision)", "functions", "stirred", None),
}
LONG = 3600.0


async def store(make: Make) -> PostgresBackend:
    backend = make(connections=1)
    await backend.open()
    await backend.enqueue([NewJob(id=id, task="t", args=b"[1]") for id in ("good-1", "victim", "good-2", "dead")])
    await backend.bury("dead", "x")
    assert await backend.flaws() == []
    return backend


def poison(server: Server, schema: str, what: str) -> None:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(POISONS[what][0].format(schema=schema))


@pytest.mark.parametrize("what", POISONS)
def test_one_bad_row_is_listed_and_hides_nothing(make: Make, server: Server, schema: str, what: str) -> None:
    async def run() -> None:
        backend = await store(make)
        poison(server, schema, what)
        _, place, id, field = POISONS[what]
        assert (place, id, field) in {(flaw.place, flaw.id, flaw.field) for flaw in await backend.flaws()}
        assert len(await backend.flaws(limit=1)) == 1
        jobs = {job.id: job for job in await backend.find(JobQuery())}
        assert {"good-1", "good-2", "victim", "dead"} <= set(jobs)
        if place == "jobs" and field is not None:
            assert jobs["victim"].unreadable == (field,)
        assert [letter.id for letter in await backend.letters(LetterQuery())] == ["dead"]
        counts = await backend.count()
        assert counts["default"][State.DEAD] == 1
        assert {job["id"] for job in (await backend.dump()).tables["jobs"]} >= {"good-1", "victim"}
        await backend.workers()
        assert await backend.entries() == []
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("what", [what for what in POISONS if what != "no function"])
def test_one_bad_row_stops_no_claim(make: Make, server: Server, schema: str, what: str) -> None:
    async def run() -> None:
        backend = await store(make)
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        poison(server, schema, what)
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=10)
        answer = await backend.claim(request)
        if what == "no incarnation":  # what happened meanwhile nobody knows: it waits for a lease, as after a failover
            assert answer.quiet_seconds > 0
            now = await backend.clock() + LONG / 2
            await backend.register(WorkerRecord(id="v", lease_seconds=LONG), now=now)
            answer = await backend.claim(ClaimRequest(worker="v", call=1, queues=("default",), most=10), now=now)
        leases = {lease.id: lease for lease in answer.leases}
        assert set(leases) >= {"good-1", "good-2"}
        done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
        assert {said.value for said in await backend.settle(done)} == {"ok"}
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("ending", ["released", "retried"])
def test_a_job_without_its_id_is_given_back_and_put_off_by_its_token(
    make: Make, server: Server, schema: str, ending: str
) -> None:
    async def run() -> None:
        backend = await store(make)
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=10)
        leases = {lease.id: lease for lease in (await backend.claim(request)).leases}
        poison(server, schema, "an id that is gone")
        token = leases["victim"].token
        if ending == "released":
            said = await backend.release([Release(id="victim", token=token)])
        else:
            said = await backend.settle([Settlement(id="victim", token=token, ending=Ending.RETRY, delay=5.0)])
        assert [one.value for one in said] == ["ok"]
        await backend.close()

    asyncio.run(run())


def test_a_counter_at_its_end_stays_there(make: Make, server: Server, schema: str) -> None:
    async def run() -> None:
        backend = await store(make)
        await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
        poison(server, schema, "a counter at its end")
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=10)
        leases = {lease.id: lease for lease in (await backend.claim(request)).leases}
        token = leases["victim"].token
        await backend.settle([Settlement(id="victim", token=token, ending=Ending.RETRY, delay=5.0)])
        job = await backend.get("victim")
        assert job is not None
        assert job.attempts == 2**31 - 1
        await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize(("what", "part"), [("errors of numbers", "jobs"), ("a letter's error", "letters")])
def test_what_cannot_be_read_is_not_carried_to_another_store(
    make: Make, server: Server, schema: str, what: str, part: Part
) -> None:
    async def run() -> None:
        backend = await store(make)
        poison(server, schema, what)
        with pytest.raises(ConfigurationError, match="cannot be read"):
            await backend.export(part)
        await backend.close()

    asyncio.run(run())
