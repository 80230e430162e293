"""A wait for work that is cancelled in the very loop iteration in which it would end is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.backends.postgres.wakeups import Wakeups as PostgresWatch
from holdfast.backends.redis.wakeups import Wakeups as RedisWatch


class Silent:
    """Connections to a server that never answers."""

    pooled = False
    call_timeout = 60.0
    generation = 0

    async def connect(self) -> Any:
        await asyncio.Event().wait()


async def _given_up(waiting: asyncio.Task[None], listening: asyncio.Event, ends: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await listening.wait()
    ends.set()  # what it waits for is there …
    await asyncio.sleep(0)
    waiting.cancel()  # … and in the same turn the wait is given up
    done, _ = await asyncio.wait({waiting}, timeout=20)
    assert done and waiting.cancelled()


def test_listening_to_postgres() -> None:
    async def scene() -> None:
        watch = PostgresWatch(Silent(), "s")  # type: ignore[arg-type]
        begun = asyncio.Event()

        async def whole() -> None:
            asyncio.get_running_loop().call_soon(begun.set)
            await watch.listening()
            await asyncio.Event().wait()

        await _given_up(asyncio.create_task(whole()), begun, watch._heard)

    asyncio.run(scene())


def test_waiting_on_redis() -> None:
    async def scene() -> None:
        watch = RedisWatch(Silent(), "hints")  # type: ignore[arg-type]
        begun = asyncio.Event()

        async def at_hand() -> tuple[float | None, str]:
            asyncio.get_running_loop().call_soon(begun.set)
            return None, "0-0"

        async def whole() -> None:
            await watch.wait(["default"], 60.0, at_hand)
            await asyncio.Event().wait()

        waiting = asyncio.create_task(whole())
        await asyncio.sleep(0)
        [event] = watch._waiting
        await _given_up(waiting, begun, event)

    asyncio.run(scene())
