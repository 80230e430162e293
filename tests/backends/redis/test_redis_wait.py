"""`?wait=1`: an enqueue and an outcome are acknowledged when a replica has them, and not before."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from holdfast.backends import open_backend
from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.connection import Unconfirmed, confirmation_by
from holdfast.errors import ConfigurationError, DuplicateJob, OutcomeUnknown
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import Answer, ClaimRequest, NewJob, WorkerRecord

from ...servers.valkey import shared_server
from ...servers.valkey_cluster import Cluster, own_cluster
from .pair import Pair

PATIENCE = 60.0


@pytest.fixture
def pair() -> Iterator[Pair]:
    shared_server()  # skips or fails where there is none
    pair = Pair()
    yield pair
    pair.replica.send(signal.SIGCONT)
    pair.remove()


@pytest.fixture
def replicated() -> Iterator[Cluster]:
    yield from own_cluster(replicas=1, cluster_node_timeout="60000")


def job(name: str, **more: str) -> list[NewJob]:
    return [NewJob(id=name, task="t", **more)]  # type: ignore[arg-type]


async def opened(pair: Pair, call_timeout: float = 30.0, wait: int = 1) -> RedisBackend:
    backend = RedisBackend(pair.plain_url, wait=wait, call_timeout=call_timeout)
    await backend.open()
    return backend


def test_what_was_acknowledged_is_on_the_replica(pair: Pair) -> None:
    async def body() -> None:
        backend = await opened(pair)
        for number in range(20):
            assert (await backend.enqueue(job(f"a{number}")))[0].created
            [one] = backend.enqueue_here(job(f"b{number}")) or []
            assert one.created
        pair.cut()  # the replica hears nothing more
        await asyncio.to_thread(pair.fail_over)
        assert sum((await backend.count())["default"].values()) == 40
        await backend.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_what_no_replica_has_is_not_acknowledged_however_often_it_is_repeated(pair: Pair) -> None:
    async def body() -> None:
        patient, backend = await opened(pair), await opened(pair, call_timeout=0.4)
        pair.replica.send(signal.SIGSTOP)
        for _ in range(3):  # the second and the third find nothing left to write
            with pytest.raises(OutcomeUnknown):
                await backend.enqueue(job("a"))
            await backend.close()  # on a connection that never wrote
            await backend.open()
            with pytest.raises(OutcomeUnknown):
                backend.enqueue_here(job("b"))
        pair.replica.send(signal.SIGCONT)
        assert [one.created for one in await patient.enqueue(job("a"))] == [False]
        assert [one.created for one in patient.enqueue_here(job("b")) or []] == [False]
        await backend.close()
        await patient.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_an_outcome_waits_and_a_claim_and_a_renewal_do_not(pair: Pair) -> None:
    async def body() -> None:
        patient, backend = await opened(pair), await opened(pair, call_timeout=0.4)
        await patient.register(WorkerRecord(id="w", lease_seconds=600.0))
        await patient.enqueue([*job("a"), *job("b")])
        pair.replica.send(signal.SIGSTOP)
        first = ClaimRequest(worker="w", call=1, queues=("default",), most=1)
        [lease] = (await patient.exchange((), (), first)).leases
        assert (await patient.renew("w", [], seen_call=0)).known
        done = [Settlement(id=lease.id, token=lease.token, ending=Ending.SUCCEEDED)]
        second = ClaimRequest(worker="w", call=2, queues=("default",), most=1)
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await backend.exchange(done, (), second)
        pair.replica.send(signal.SIGCONT)
        answer = await patient.exchange(done, (), second)
        assert answer.answers == (Answer.OK,)
        assert [one.id for one in answer.leases] == ["b"]
        await backend.close()
        await patient.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_a_refusal_is_raised_whether_or_not_replicas_reply(pair: Pair) -> None:
    async def body() -> None:
        patient, backend = await opened(pair), await opened(pair, call_timeout=0.4)
        await patient.enqueue(job("a", key="k", on_conflict="raise"))
        pair.replica.send(signal.SIGSTOP)
        with pytest.raises(DuplicateJob):
            await backend.enqueue(job("b", key="k", on_conflict="raise"))
        await backend.close()
        await patient.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_on_a_cluster_each_shard_waits_for_its_own_replica(replicated: Cluster) -> None:
    async def body() -> None:
        url = f"{replicated.url('waits')}&wait=1"
        patient, backend = open_backend(f"{url}&call_timeout=30"), open_backend(f"{url}&call_timeout=0.6")
        await patient.open()
        assert (await patient.enqueue(job("a")))[0].created
        await backend.open()
        await backend.get("a")
        for node in replicated.replicas:
            node.send(signal.SIGSTOP)
        with pytest.raises(OutcomeUnknown):
            await backend.enqueue(job("b"))
        for node in replicated.replicas:
            node.send(signal.SIGCONT)
        assert not (await patient.enqueue(job("b")))[0].created
        await backend.close()
        await patient.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_why_it_is_not_acknowledged_is_said() -> None:
    confirmation = confirmation_by(2, "key", 5.0, of_cluster=False)
    confirmation.check([0, 2])
    with pytest.raises(Unconfirmed, match="1 of 2 replicas"):
        confirmation.check([0, 1])
    with pytest.raises(Unconfirmed, match="READONLY"):  # demoted between the two: the number is not of its replicas
        confirmation.check([ResponseError("READONLY replica"), 2])


@pytest.mark.parametrize("word", ["yes", "-1", "10", "1.5", ""])
def test_a_number_of_replicas_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ConfigurationError, match="wait="):
        open_backend(f"redis://host/0?wait={word}")
