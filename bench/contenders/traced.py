"""`holdfast work` that records when each exchange with the store was sent and when its reply arrived.

Started by with_holdfast.py where BENCH_TRACE is set, in place of `python -m holdfast.cli`. The notes are written when
the worker ends, so that only two clock reads are added to what is measured.
"""

from __future__ import annotations

import atexit
import json
import sys
import time
from typing import Any

import tally

from holdfast.cli.main import main
from holdfast.worker.keeper.exchange_loop import ExchangeLoop

FILE = tally.FOLDER / "exchanges"


def trace() -> None:
    noted: list[tuple[float, float, int, list[str]]] = []
    through = ExchangeLoop._until_answered

    async def timed(self: ExchangeLoop, settlements: Any, releases: Any, request: Any) -> Any:
        sent = time.monotonic()
        answer, asked = await through(self, settlements, releases, request)
        if settlements or answer.leases:
            noted.append((sent, time.monotonic(), len(settlements), [lease.id for lease in answer.leases]))
        return answer, asked

    on_wakeup = ExchangeLoop._on_wakeup

    async def woken(self: ExchangeLoop, request: Any) -> Any:
        """A claim that was sent ahead: it takes no time between the wake-up and its reply."""
        answer, asked = await on_wakeup(self, request)
        if answer.leases and not (noted and answer.leases[-1].id in noted[-1][3]):  # else noted already: a repeat
            noted.append((time.monotonic(), time.monotonic(), 0, [lease.id for lease in answer.leases]))
        return answer, asked

    ExchangeLoop._until_answered = timed  # type: ignore[method-assign]
    ExchangeLoop._on_wakeup = woken  # type: ignore[method-assign]
    atexit.register(lambda: FILE.write_text(json.dumps(noted)))


if __name__ == "__main__":
    trace()
    sys.exit(main())
