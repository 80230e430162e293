"""A bulk action that kills itself with SIGKILL before or after its n-th change: started by test_bulk_killed.

Called with the URL, the verb, the time of the first run (empty: this is the first), and N ("0": lives to its end) with
"before" or "after". Prints the time it is as of before it changes anything, as the command does.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from holdfast import Holdfast
from holdfast.bulk import BulkSettings

CHANGES: dict[str, BulkSettings] = {"edit": {"priority": 7}, "reschedule": {"delay": 600.0}}  # by verb
VERBS = ("cancel", "retry", "revive", "edit", "reschedule", "delete", "discard")
CALLS = ("cancel", "retry", "revive", "edit", "delete", "discard")  # the store's


def counted(real: Callable[..., Awaitable[Any]], calls: list[int], kill_at: int, when: str) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        mine = len(calls) == kill_at
        if mine and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await real(*args, **kwargs)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return call


def main(url: str, verb: str, as_of: str, kill_at: int, when: str) -> None:
    with Holdfast(url) as app:
        backend, calls = app._store.unopened, list[int]()
        for name in CALLS:
            setattr(backend, name, counted(getattr(backend, name), calls, kill_at, when))
        settings: BulkSettings = {**CHANGES.get(verb, {}), "by": "ann"}
        at = app.now() if not as_of else datetime.fromisoformat(as_of)
        settings["as_of"] = at
        print(at.isoformat(), flush=True)
        result = app.bulk(verb, "queue:bulk", **settings)
        assert result.stopped is None, result.stopped


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
