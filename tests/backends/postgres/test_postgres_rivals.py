"""Sessions in the way: locks held by others, connections cut by the server, calls that take too long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement, State
from holdfast.rates import Rate
from holdfast.records import ClaimRequest, Lease, NewJob, QueueRule, WorkerRecord

from ...servers.postgres import Server

Make = Callable[..., PostgresBackend]
PATIENCE_SECONDS = 90.0


async def claim(backend: PostgresBackend, call: int, most: int = 10, done: tuple[Lease, ...] = ()) -> tuple[Lease, ...]:
    await backend.register(WorkerRecord(id="w"))
    settled = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in done]
    request = ClaimRequest(worker="w", call=call, queues=("default",), most=most)
    return (await backend.exchange(settled, [], request)).leases


def ids(leases: tuple[Lease, ...]) -> list[str]:
    return [lease.id for lease in leases]


def test_locked_ready_jobs_are_passed_over(make: Make, session: psycopg.Connection, schema: str) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.enqueue([NewJob(id=f"{n}", task="t") for n in range(4)])
        session.execute(f"SELECT 1 FROM {schema}.jobs WHERE id IN ('0', '1') FOR UPDATE")
        assert ids(await claim(backend, 1)) == ["2", "3"]
        session.rollback()
        assert ids(await claim(backend, 2)) == ["0", "1"]
        await backend.close()

    asyncio.run(run())


def test_a_locked_head_holds_its_own_group_only(make: Make, session: psycopg.Connection, schema: str) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.enqueue([NewJob(id=f"{g}{n}", task="t", group=g) for n in range(3) for g in "ab"])
        first = await claim(backend, 1)
        assert sorted(ids(first)) == ["a0", "b0"]
        session.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'a1' FOR UPDATE")
        second = await claim(backend, 2, done=first)
        assert ids(second) == ["b1"]  # a2 must not overtake a1
        session.rollback()
        assert await backend.refill() == 1
        assert sorted(ids(await claim(backend, 3, done=second))) == ["a1", "b2"]
        await backend.close()

    asyncio.run(run())


def test_a_lock_held_too_long_ends_the_call_and_changes_nothing(
    make: Make, session: psycopg.Connection, schema: str
) -> None:
    async def run() -> None:
        patient = make()  # which sets the store up: that may take longer than this call may
        await patient.open()
        await patient.enqueue([NewJob(id="a", task="t")])
        await patient.close()
        backend = make(call_timeout=0.4)
        await backend.open()
        session.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'a' FOR UPDATE")
        with pytest.raises(BackendUnavailable, match="lock"):
            await backend.cancel("a")
        session.rollback()
        record = await backend.get("a")
        assert record is not None
        assert record.state is State.READY
        await backend.close()

    asyncio.run(run())


def test_a_renewal_does_not_wait_for_an_exchange_that_is_stuck(
    make: Make, session: psycopg.Connection, schema: str
) -> None:
    async def run() -> None:
        backend = make(call_timeout=PATIENCE_SECONDS, connections=1)
        await backend.open()
        await backend.enqueue([NewJob(id="a", task="t")])
        first = await claim(backend, 1)
        session.execute("SELECT pg_advisory_xact_lock(hashtext(%s), 0)", (f'"{schema}".rules',))
        settlement = Settlement(id="a", token=first[0].token, ending=Ending.SUCCEEDED)
        request = ClaimRequest(worker="w", call=2, queues=("default",), most=1)
        stuck = asyncio.create_task(backend.exchange([settlement], [], request))
        await until_blocked(session)
        renewal = await asyncio.wait_for(backend.renew("w", [], seen_call=0), PATIENCE_SECONDS / 2)
        assert renewal.known
        assert not stuck.done()
        session.rollback()
        assert (await stuck).answers == ("ok",)
        await backend.close()

    asyncio.run(run())


def test_a_claim_that_waited_starts_its_jobs_when_it_got_them(
    make: Make, session: psycopg.Connection, schema: str
) -> None:
    """Not when it was asked: rivals started jobs meanwhile, and the windows of a rate are counted by these times."""

    async def run() -> None:
        backend = make(call_timeout=PATIENCE_SECONDS)
        await backend.open()
        await backend.declare([QueueRule(name="default", rate=Rate(5, 1.0))])
        await backend.enqueue([NewJob(id="a", task="t")])
        stripe = f"\"{schema}\".flow_stripe('queue', 'default')"
        session.execute(f"SELECT pg_advisory_xact_lock(hashtext(%s), {stripe})", (f'"{schema}".flows',))
        waiting = asyncio.create_task(claim(backend, 1))
        await until_blocked(session)
        row = session.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        session.rollback()
        [lease] = await waiting
        assert row is not None
        assert lease.started_at > row[0]
        [flow] = (await backend.dump()).tables["flows"]
        assert flow["spent_until"] >= lease.started_at + Rate(5, 1.0).every - 1e-6
        await backend.close()

    asyncio.run(run())


async def until_blocked(session: psycopg.Connection) -> None:
    """Until some call of ours waits for a lock."""
    text = "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast' AND wait_event_type = 'Lock'"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not session.execute(text).fetchall():
            session.execute("SELECT pg_stat_clear_snapshot()")
            await asyncio.sleep(0)


def test_a_connection_cut_in_the_middle_of_a_write_says_its_fate_is_unknown(
    make: Make, session: psycopg.Connection, schema: str, server: Server
) -> None:
    async def run() -> None:
        backend = make(call_timeout=PATIENCE_SECONDS)
        await backend.open()
        await backend.enqueue([NewJob(id="a", task="t")])
        session.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'a' FOR UPDATE")
        call = asyncio.create_task(backend.cancel("a"))
        await until_blocked(session)
        with psycopg.connect(server.conninfo, autocommit=True) as operator:
            operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'holdfast' AND wait_event_type = 'Lock'"
            )
        with pytest.raises(OutcomeUnknown, match="cancel"):
            await call
        session.rollback()
        assert (await backend.cancel("a")).state is State.CANCELLED
        await backend.close()

    asyncio.run(run())


def test_idle_connections_closed_by_the_server_are_replaced_unnoticed(make: Make, server: Server) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        for number in range(5):
            await backend.enqueue([NewJob(id=f"{number}", task="t")])
            with psycopg.connect(server.conninfo, autocommit=True) as operator:
                operator.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'holdfast'"
                )
        assert (await backend.count())["default"] == {State.READY: 5}
        await backend.close()

    asyncio.run(run())


def test_a_backend_may_be_used_on_one_loop_after_another(make: Make) -> None:
    backend = make()
    asyncio.run(backend.open())
    asyncio.run(backend.enqueue([NewJob(id="a", task="t")]))
    assert asyncio.run(backend.get("a")) is not None
    asyncio.run(backend.close())


def test_a_forked_child_leaves_the_parents_connections_alone(make: Make) -> None:
    async def look(backend: PostgresBackend) -> str | None:
        record = await backend.get("a")
        return None if record is None else record.id

    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.enqueue([NewJob(id="a", task="t")])
        pids = {connection.info.backend_pid for connection in backend._connections._idle}
        child = os.fork()
        if child == 0:
            asyncio._set_running_loop(None)
            os._exit(0 if asyncio.run(look(backend)) == "a" else 1)
        _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - the child is to be gone before the parent goes on
        try:
            assert os.waitstatus_to_exitcode(status) == 0
            assert await look(backend) == "a"
            # The hint of the enqueue may have had a connection of its own meanwhile, which is idle now.
            assert pids <= {connection.info.backend_pid for connection in backend._connections._idle}
            assert pids
        finally:
            await backend.close()

    asyncio.run(run())


def test_settings_of_the_url_go_before_ours(make: Make, server: Server, schema: str) -> None:
    async def timeout_on(conninfo: str) -> str:
        backend = PostgresBackend(conninfo, schema=schema, call_timeout=7.0)
        await backend.open()
        connection = backend._connections._idle[0]
        row = await (await connection.execute("SHOW statement_timeout")).fetchone()
        await backend.close()
        return str(row[0]) if row is not None else ""

    assert asyncio.run(timeout_on(server.conninfo)) == "7s"
    assert asyncio.run(timeout_on(server.conninfo + "&options=-c%20statement_timeout%3D9s")) == "9s"


def test_a_hint_wakes_a_waiter_elsewhere_and_hints_are_few(make: Make) -> None:
    async def run() -> None:
        here, there = make(), make()
        await here.open()
        await there.open()
        waiting = asyncio.create_task(there.wait_for_work(("other",), 10 * PATIENCE_SECONDS))
        async with asyncio.timeout(PATIENCE_SECONDS):
            number = 0
            while not waiting.done():
                number += 1
                await here.enqueue([NewJob(id=f"{number}", task="t", queue="other")])
                await asyncio.wait({waiting}, timeout=0.05)
        await here.close()
        await there.close()

    asyncio.run(run())


def test_nul_in_words_is_stored_as_the_replacement_character(make: Make) -> None:
    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.enqueue([NewJob(id="a", task="t")])
        assert (await backend.bury("a", "no\0good \\u0000")).errors[-1].text == "no\ufffdgood \\u0000"
        await backend.close()

    asyncio.run(run())
