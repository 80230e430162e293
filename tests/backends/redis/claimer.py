"""A process that claims, notes begin and end of each job in a ledger, and settles, until nothing is left.

Run as a program by the tests beside it: claimer.py URL PREFIX NAME TOTAL. The ledger is pessimistic: begin is noted
after the claim answered, end before the settlement is asked, so an overlap it shows is real.
"""

from __future__ import annotations

import asyncio
import sys

import redis

from holdfast.backends.redis.backend import RedisBackend
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, WorkerRecord

PATIENCE_SECONDS = 90.0


async def claim_all(url: str, prefix: str, name: str, total: int) -> None:
    backend = RedisBackend(url, prefix=prefix)
    await backend.open()
    await backend.register(WorkerRecord(id=name, lease_seconds=600.0))
    done: list[Settlement] = []
    call = 0
    with redis.Redis.from_url(url) as ledger:
        while done or int(ledger.get(f"{prefix}:begun") or 0) < total:
            call += 1
            request = ClaimRequest(worker=name, call=call, queues=("default",), most=5)
            answer = await backend.exchange(done, [], request)
            assert all(word == "ok" for word in answer.answers), answer.answers
            if answer.leases:
                begun = [f"{lease.id} {lease.group or '-'} 1" for lease in answer.leases]
                ended = [f"{lease.id} {lease.group or '-'} -1" for lease in answer.leases]
                ledger.incrby(f"{prefix}:begun", len(begun))
                ledger.rpush(f"{prefix}:ledger", *begun)
                ledger.rpush(f"{prefix}:ledger", *ended)
            done = [Settlement(id=one.id, token=one.token, ending=Ending.SUCCEEDED) for one in answer.leases]
            if not answer.leases:
                await backend.wait_for_work(("default",), 0.02)
    await backend.retire(name)
    await backend.close()


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(claim_all(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])), PATIENCE_SECONDS))
