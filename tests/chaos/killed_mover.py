"""Movers that kill themselves with SIGKILL before or after their n-th call to a store: started by tests/chaos.

Each line of the input asks for one: [NUMBER, SOURCE_URL, TARGET_URL, N, "before" or "after", inside] (N = 0: lives to
its end). It gets a process of its own, forked so that nothing has to be imported again: stores import their parts and
drivers when they are first used, which would be in each mover, so all are imported before. The line of output repeats
the number, which tells a late answer from the one that is waited for, and says how that ended and what it said, which
is the number of its calls. `inside` counts calls to the nodes of a cluster, of which one call to a store makes many.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pkgutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import mover
from holdfast.backends import open_backend, parse_url, postgres, redis, sqlite
from holdfast.backends.redis.cluster import Node
from holdfast.mover import Mover, Side

SECONDS_MAX = 60


class Fatal:
    """A backend whose calls are counted, and whose caller dies at one of them."""

    calls = 0

    def __init__(self, backend: Any, kill_at: int, when: str) -> None:
        self._backend, self._kill_at, self._when = backend, kill_at, when

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._backend, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self.counted(lambda: real(*args, **kwargs))

        return call

    async def counted(self, real: Callable[[], Awaitable[Any]]) -> Any:
        Fatal.calls += 1
        mine = Fatal.calls == self._kill_at
        if mine and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await real()
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def count_inside(kill_at: int, when: str) -> None:
    whole = Node.call

    async def call(self: Node, *args: Any, **kwargs: Any) -> Any:
        return await Fatal(self, kill_at, when).counted(lambda: whole(self, *args, **kwargs))

    Node.call = call  # type: ignore[method-assign]


async def run(source: str, target: str, kill_at: int, when: str, inside: bool) -> int:
    one, two = open_backend(source), open_backend(target)
    await one.open()
    await two.open()
    sides = [
        Side(backend if inside else Fatal(backend, kill_at, when), parse_url(url).store_name)  # type: ignore[arg-type]
        for backend, url in ((one, source), (two, target))
    ]
    if inside:
        Fatal.calls = 0
        count_inside(kill_at, when)
    moved = await Mover(*sides, wait=5.0, say=lambda step: None).run()
    await one.close()
    await two.close()
    print(Fatal.calls)
    return 0 if moved.done else 1


def forked(*words: Any) -> tuple[int, str]:
    """Run a mover in a process of its own; returns its exit code, as subprocess does, and its output."""
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            os.dup2(said.fileno(), sys.stdout.fileno())
            os.dup2(said.fileno(), sys.stderr.fileno())
            signal.alarm(SECONDS_MAX)
            code = 1
            try:
                code = asyncio.run(run(*words))
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
        _, ended = os.waitpid(pid, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(ended), said.read().decode()


def import_stores() -> None:
    for store in (sqlite, postgres, redis):
        for part in pkgutil.iter_modules(store.__path__, f"{store.__name__}."):
            importlib.import_module(part.name)


if __name__ == "__main__":
    import_stores()
    mover.PIECE_ROWS_FIRST = mover.PIECE_ROWS_MAX = 7  # many pieces, many places to die at
    for line in sys.stdin:
        number, *words = json.loads(line)
        print(json.dumps([number, *forked(*words)]), flush=True)
