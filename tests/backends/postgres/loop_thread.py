"""An event loop on a thread of its own, as an app has it: for calls from threads that wait."""

from __future__ import annotations

import asyncio
import threading
from typing import Any


class Loop:
    """A loop on a thread of its own, as an app's portal has it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=60)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
