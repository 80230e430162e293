"""The limit of a row: its handler called repeatedly by as many processes, threads or coroutines, without a queue or a
store. It ends when it is killed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time

import tally


def work() -> None:
    for _ in range(tally.PROCESSES - 1):
        if os.fork() == 0:
            break
    if tally.HANDLER.startswith("wait"):
        asyncio.run(wait())
        return
    for _ in range(tally.THREADS):
        threading.Thread(target=call).start()


def call() -> None:
    while True:
        tally.handled()


async def wait() -> None:
    async def again() -> None:
        while True:
            await tally.ahandled()

    await asyncio.gather(*(again() for _ in range(tally.SLOTS)))


if __name__ == "__main__":
    nothing = time.perf_counter  # there is no store to prepare and no queue to fill
    tally.main(prepare=nothing, bulk=lambda jobs, shape: nothing(), work=work)
