"""A process that claims, notes begin and end of each job in a ledger table, and settles, until nothing is left.

Run as a program by the tests beside it: claimer.py CONNINFO SCHEMA NAME TOTAL. The ledger is pessimistic: begin is
noted after the claim answered, end before the settlement is asked, so an overlap it shows is real.
"""

from __future__ import annotations

import asyncio
import sys

import psycopg

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, WorkerRecord

PATIENCE_SECONDS = 90.0


def note(ledger: psycopg.Connection, schema: str, name: str, events: list[tuple[str, str | None, int]]) -> None:
    for job, group, step in events:
        ledger.execute(f"INSERT INTO {schema}.ledger (job, grp, step, who) VALUES (%s, %s, %s, %s)",
                       (job, group, step, name))  # fmt: skip


async def claim_all(conninfo: str, schema: str, name: str, total: int) -> None:
    backend = PostgresBackend(conninfo, schema=schema)
    await backend.open()
    await backend.register(WorkerRecord(id=name, lease_seconds=600.0))
    done: list[Settlement] = []
    call = 0
    with psycopg.connect(conninfo, autocommit=True) as ledger:
        count = f"SELECT count(*) FROM {schema}.ledger WHERE step = 1"
        while done or (ledger.execute(count).fetchone() or (0,))[0] < total:
            call += 1
            request = ClaimRequest(worker=name, call=call, queues=("default",), most=5)
            answer = await backend.exchange(done, [], request)
            assert all(word == "ok" for word in answer.answers), answer.answers
            note(ledger, schema, name, [(lease.id, lease.group, 1) for lease in answer.leases])
            note(ledger, schema, name, [(lease.id, lease.group, -1) for lease in answer.leases])
            done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
            if not answer.leases:
                await backend.wait_for_work(("default",), 0.02)
    await backend.retire(name)
    await backend.close()


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(claim_all(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])), PATIENCE_SECONDS))
