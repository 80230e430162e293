"""A mover that kills itself with SIGKILL before or after its n-th call to a store: started by tests/chaos.

python killed_mover.py SOURCE_URL TARGET_URL N before|after    (N = 0: lives to its end)
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from holdfast.backends import open_backend, parse_url
from holdfast.moving import Mover, Side, comparing


class Fatal:
    """A backend whose calls are counted, and whose caller dies at one of them."""

    calls = 0

    def __init__(self, backend: Any, kill_at: int, when: str) -> None:
        self._backend, self._kill_at, self._when = backend, kill_at, when

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._backend, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            Fatal.calls += 1
            mine = Fatal.calls == self._kill_at
            if mine and self._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = await real(*args, **kwargs)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call


async def run(source: str, target: str, kill_at: int, when: str) -> int:
    one, two = open_backend(source), open_backend(target)
    await one.open()
    await two.open()
    sides = [
        Side(Fatal(backend, kill_at, when), parse_url(url).store_name)  # type: ignore[arg-type]
        for backend, url in ((one, source), (two, target))
    ]
    moved = await Mover(*sides, wait=5.0, say=lambda step: None).run()
    await one.close()
    await two.close()
    print(Fatal.calls)
    return 0 if moved.done else 1


if __name__ == "__main__":
    comparing.PIECE_ROWS_FIRST = comparing.PIECE_ROWS_MAX = 7  # many pieces, many places to die at
    sys.exit(asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])))
