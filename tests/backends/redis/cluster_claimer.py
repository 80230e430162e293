"""A process that claims from a cluster, notes begin and end of each job in a list of another server, and settles.

Run as a program by the tests beside it: cluster_claimer.py URL LEDGER_SOCKET NAME TOTAL. The ledger is pessimistic:
begin is noted after the claim answered, end before the settlement is asked, so an overlap it shows is real.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import redis

from holdfast.backends import open_backend
from holdfast.backends.redis import cluster as nodes
from holdfast.errors import BackendUnavailable
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, WorkerRecord

PATIENCE_SECONDS = 90.0
LEDGER = "ledger"


async def claim_all(url: str, ledger: redis.Redis, name: str, total: int) -> None:
    backend = open_backend(url)
    await backend.open()
    await backend.register(WorkerRecord(id=name, lease_seconds=600.0, queues=("default",)))
    done: list[Settlement] = []
    call = 0
    while done or ledger.llen(LEDGER) < 2 * total:
        call += 1
        request = ClaimRequest(worker=name, call=call, queues=("default",), most=8)
        answer = await backend.exchange(done, [], request)
        assert all(word == "ok" for word in answer.answers), answer.answers
        for step in ("+", "-"):
            if answer.leases:
                ledger.rpush(LEDGER, *(f"{step} {lease.id} {lease.group or ''}" for lease in answer.leases))
        done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
        if not answer.leases:
            await backend.wait_for_work(("default",), 0.02)
    with suppress(BackendUnavailable):  # a busy machine may take a node for silent; nothing here is about retiring
        await backend.retire(name)
    await backend.close()


if __name__ == "__main__":
    nodes.HANG_SECONDS = PATIENCE_SECONDS  # a wait given up late on a busy machine says nothing about its node
    with redis.Redis(unix_socket_path=sys.argv[2]) as client:
        work = claim_all(sys.argv[1], client, sys.argv[3], int(sys.argv[4]))
        asyncio.run(asyncio.wait_for(work, PATIENCE_SECONDS))
