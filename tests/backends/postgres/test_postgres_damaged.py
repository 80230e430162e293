"""The command line on a store with a damaged row or a counter at its end: exit code, id and field, and no traceback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.cli.main import main
from holdfast.errors import BackendError, ConfigurationError
from holdfast.records import ClaimRequest, NewJob, QueueRule, WorkerRecord

from ...servers.postgres import Server

Make = Callable[..., PostgresBackend]
RATE = "ROW(0, 60, NULL)"  # none in a minute: nobody can reckon with it
# What is done to a store: the statement, and what audit and doctor name.
POISONS = {
    "a job": ("UPDATE {schema}.jobs SET errors = '[5]' WHERE id = 'victim'", ("victim", "errors")),
    "a queue's rate": (f"UPDATE {{schema}}.queues SET rate = {RATE}", ("default", "rate")),
    "a rate in force": (f"UPDATE {{schema}}.queues SET rate = {RATE}; UPDATE {{schema}}.bounds SET rate = {RATE}",
                        ("default", "rate")),
    "a queue's group rate": (f"UPDATE {{schema}}.queues SET group_rate = {RATE}", ("default", "group_rate")),
    "a queue's aging": ("UPDATE {schema}.queues SET aging = 'NaN'", ("default", "aging")),
    "a task": ("INSERT INTO {schema}.tasks (name, apart, retain_dead) VALUES ('odd', false, 'Infinity')",
               ("odd", "retain_dead")),
    "an override": ("INSERT INTO {schema}.overrides (kind, queue, name, rate) "
                    f"VALUES ('group', 'default', 'g', {RATE})",
                    ("default/g", "rate")),
    "a bucket": ("INSERT INTO {schema}.flows (kind, queue, name, spent_until) VALUES ('queue', 'default', '', 'NaN')",
                 ("default", "spent_until")),
}  # fmt: skip


async def filled(make: Make) -> PostgresBackend:
    backend = make(connections=1)
    await backend.open()
    await backend.declare([QueueRule(name="default", group_limit=2, group_order="relaxed", limit=100)])
    await backend.enqueue([NewJob(id=id, task="t", args=b"[]") for id in ("good", "victim")])
    await backend.enqueue([NewJob(id=f"g{n}", task="t", args=b"[]", group="g", priority=1) for n in range(3)])
    await backend.register(WorkerRecord(id="w", lease_seconds=600.0))
    return backend


def fill(make: Make) -> None:
    async def filling() -> None:
        await (await filled(make)).close()

    asyncio.run(filling())


def damage(server: Server, schema: str, text: str) -> None:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(text.format(schema=schema))


@pytest.mark.parametrize("what", POISONS)
def test_audit_and_doctor_name_it_and_lists_go_on(
    make: Make, server: Server, schema: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(make)
    damage(server, schema, POISONS[what][0])
    named = POISONS[what][1]
    url = ["--url", server.url(schema)]
    assert main(["audit", *url]) == 1
    told = capsys.readouterr()
    assert all(word in told.out for word in named), told.out
    assert main(["doctor", *url]) == 1
    told = capsys.readouterr()
    assert all(word in told.out for word in named), told.out
    for command in ("jobs", "queues", "groups", "tasks", "stats"):
        assert main([command, *url, "--json"]) == 0, command
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        json.loads(shown.out)


@pytest.mark.parametrize("what", POISONS)
def test_everything_else_goes_on(make: Make, server: Server, schema: str, what: str) -> None:
    async def working() -> None:
        backend = await filled(make)
        damage(server, schema, POISONS[what][0])
        await backend.enqueue([NewJob(id="late", task="t"), NewJob(id="g3", task="t", group="g")])
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=20)
        assert {one.id for one in (await backend.claim(request)).leases} == {"good", "victim", "late", "g0", "g1"}
        await backend.refill()
        await backend.promote()
        await backend.queues()
        await backend.groups()
        await backend.dump()
        if what != "a job":
            with pytest.raises(ConfigurationError, match="cannot be read"):
                await backend.export("rules")
        await backend.close()

    asyncio.run(working())


def test_an_exhausted_counter_is_named_in_the_error_and_the_documented_fix_works(
    make: Make, server: Server, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def working() -> None:
        backend = await filled(make)
        damage(server, schema, f"SELECT setval('{schema}.ticks', 9223372036854775807)")
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=20)
        with pytest.raises(BackendError, match=r"ticks.*A counter at its end"):
            await backend.claim(request)
        with pytest.raises(BackendError, match=r"ticks.*A counter at its end"):
            await backend.enqueue([NewJob(id="late", task="t")])
        await backend.close()

    async def cured() -> None:
        backend = make(connections=1)
        await backend.open()
        damage(
            server, schema,
            "BEGIN; UPDATE {schema}.jobs SET fence = 0 WHERE fence > extract(epoch FROM now()) * 1e6;"
            "UPDATE {schema}.jobs SET turn = seq WHERE turn > 4611686018427387904;"
            "SELECT setval('{schema}.ticks', (extract(epoch FROM now()) * 1e6)::bigint); COMMIT",
        )  # fmt: skip
        await backend.enqueue([NewJob(id="late", task="t")])
        request = ClaimRequest(worker="w", call=1, queues=("default",), most=20)
        assert "late" in {one.id for one in (await backend.claim(request)).leases}
        assert await backend.flaws() == []
        await backend.close()

    asyncio.run(working())
    assert main(["doctor", "--url", server.url(schema)]) == 1
    assert "ticks" in capsys.readouterr().out
    asyncio.run(cured())
