"""Conformance of headers: what came with a call is there in every attempt, byte for byte.

Headers are stored among the call's options, so these cases hold for both. Called by run_case.
"""

from __future__ import annotations

from ...headers import HEADERS_BYTES_MAX, headers_of, with_headers
from ...lifecycle import Ending
from ...records import Edit
from .compare import same
from .registry import case, case_for_each
from .world import World

PLAIN = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tenant": "acme"}
ODD = {"größe": "ß, 京 and 🙂", "quotes": "\"'\\ {}", "controls": "a\x00b\tc\n", "empty": ""}
LONG = {"baggage": "x" * (HEADERS_BYTES_MAX - 7)}
SETS = {"plain": PLAIN, "odd": ODD, "long": LONG}


@case_for_each(SETS)
async def headers_are_the_same_in_every_attempt(world: World, kind: str) -> None:
    headers = SETS[kind]
    job_id = await world.enqueue(options=with_headers(b'{"timeout":5}', headers), group="g")
    same(headers_of((await world.get(job_id)).options), headers, "after enqueue")
    lease = await world.claim_one(job_id)
    same(headers_of(lease.options), headers, "of the first lease")
    await world.end(lease, Ending.RETRY, delay=0.0)
    again = await world.claim_one(job_id)
    same(again.options, lease.options, "of a retry")
    await world.end(again, Ending.BURIED)
    await world.backend.revive(job_id, now=world.now)
    await world.backend.edit(job_id, Edit(args=b'{"n":2}', priority=4), now=world.now)
    last = await world.claim_one(job_id)
    same((last.options, last.args), (lease.options, b'{"n":2}'), "of a job that was revived and edited")


@case
async def jobs_of_one_batch_have_headers_of_their_own(world: World) -> None:
    told = [{}, {"n": "1"}, {"n": "2"}, {}, PLAIN]
    jobs = [world.job(options=with_headers(None, headers)) for headers in told]
    await world.backend.enqueue(jobs, now=world.now)
    leases = {lease.id: lease for lease in await world.claim(len(jobs))}
    same([headers_of(leases[job.id].options) for job in jobs], told, "headers of the batch")
    same([leases[job.id].options for job in jobs if job.options is None], [None, None], "nothing stored for none")


@case_for_each(["keep", "replace"])
async def a_conflicting_call_brings_its_headers_only_where_it_replaces(world: World, on_conflict: str) -> None:
    first = await world.enqueue(key="k", options=with_headers(None, {"call": "1"}))
    second = world.job(key="k", on_conflict=on_conflict, options=with_headers(None, {"call": "2"}))
    await world.backend.enqueue([second], now=world.now)
    lease = await world.claim_one(first)
    same(headers_of(lease.options), {"call": "2" if on_conflict == "replace" else "1"}, "headers that run")
