"""Jobs are locked before dead letters, by everyone: of two callers one waits at the first lock they share.

The test is the rival: it locks the dead job, as `revive` does, waits until the call under test waits for it, and then
asks for the dead letter. If the call had locked the letter first, the two would be stuck now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.lifecycle import State
from holdfast.records import NewJob

from .test_postgres_rivals import until_blocked

Make = Callable[..., PostgresBackend]
DEADLINE_SECONDS = 60.0
CALLS: dict[str, tuple[Callable[[PostgresBackend], Awaitable[object]], State]] = {
    "discard": (lambda backend: backend.discard("dead"), State.DEAD),
    "revive": (lambda backend: backend.revive("dead"), State.READY),
    "retry": (lambda backend: backend.retry("dead"), State.READY),
    "cancel of another job with its key": (lambda backend: backend.cancel("live"), State.DEAD),
    "bury of another job with its key": (lambda backend: backend.bury("live", "x"), State.DEAD),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_waits_for_the_dead_job_before_it_locks_the_letter(
    make: Make, schema: str, session: psycopg.Connection, call: str
) -> None:
    async def run() -> State:
        backend = make(call_timeout=DEADLINE_SECONDS)
        await backend.open()
        await backend.enqueue([NewJob(id="dead", task="t", key="k")])
        await backend.bury("dead", "x")
        work, _ = CALLS[call]
        if "another" in call:
            await backend.enqueue([NewJob(id="live", task="t", key="k")])
        session.execute(f"SELECT 1 FROM {schema}.jobs WHERE id = 'dead' FOR UPDATE")
        called = asyncio.ensure_future(work(backend))
        await until_blocked(session)
        session.execute(f"SELECT 1 FROM {schema}.letters FOR UPDATE NOWAIT")
        session.rollback()
        await called
        record = await backend.get("dead")
        await backend.close()
        assert record is not None
        return record.state

    assert asyncio.run(run()) is CALLS[call][1]
