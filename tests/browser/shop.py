"""A shop with something on every screen: a live worker, a running job, groups in turn, failures, cron."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from holdfast import Bury, Context, Holdfast

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>\u202etxt.exe\x1b[31mred\x1b[0m'
LONG = "x" * 1_000_000
PHRASE = "hunter2, which nobody shall see"


class Shop:
    """The app, the ids of one job in each state, and the events that let its handlers go on."""

    def __init__(self, url: str) -> None:
        self.app = app = Holdfast(url)
        self.ids: dict[str, str] = {}
        self._running: asyncio.Event | None = None
        app.queue("billing", limit=50)

        @app.task(name="billing.charge", queue="billing", retry=0, group=lambda customer: f"customer:{customer}")
        async def charge(ctx: Context, customer: int, note: str = "", password: str = "") -> str:
            ctx.log(f"charging {customer} {note[:200]}")
            if note == "buried":
                raise Bury("the card was stolen")
            if note:
                raise ConnectionError(f"gateway said {note}")
            return f"charged {customer}"

        @app.task(name="mail.send", queue="mail", retry=3)
        async def send(to: str, text: str = "") -> None: ...

        @app.task(name="pdf.render", queue="pdf", limit=4)
        async def render(ctx: Context, page: int) -> None:
            ctx.progress(0.4, f"page {page} of 12")
            assert self._running is not None
            self._running.set()
            await asyncio.Event().wait()  # until the worker ends

        @app.cron("0 3 * * *", name="nightly")
        @app.task(name="reports.nightly", queue="reports")
        async def nightly() -> None: ...

    @contextlib.asynccontextmanager
    async def filled(self) -> AsyncIterator[Shop]:
        """With jobs in every state, and a worker that holds one while the block runs."""
        app, charge, send = self.app, self.app.tasks["billing.charge"], self.app.tasks["mail.send"]
        self._running = asyncio.Event()
        done = await charge.aenqueue(1, password=PHRASE)
        dead = [await charge.aenqueue(2, "no"), await charge.aenqueue(5, HOSTILE), await charge.aenqueue(6, "buried")]
        await app.awork(queues="billing", drain=True)
        later = await send.options(delay=3600).aenqueue("ann@example.com")
        gone = await send.aenqueue("bob@example.com")
        await app.acancel(gone.id)
        ready, waiting = await charge.aenqueue(3), await charge.aenqueue(3)
        self.ids = {"succeeded": done.id, "dead": dead[0].id, "hostile": dead[1].id, "scheduled": later.id}
        self.ids |= {"cancelled": gone.id, "ready": ready.id, "waiting": waiting.id}
        async with app.worker(queues=["pdf", "mail"], slots=4, grace=0.0):
            running = await app.tasks["pdf.render"].aenqueue(7)
            self.ids["running"] = running.id
            async with asyncio.timeout(60):
                await self._running.wait()
            yield self
        await app.aclose()

    def lists(self) -> list[str]:
        """Every screen but a job's."""
        paths = ["/", "/jobs", "/jobs?q=state:dead", "/jobs?q=nonsense:", "/failures", "/dead", "/queues", "/groups"]
        paths += ["/queue?name=billing", "/group?queue=billing&name=customer:3"]
        return [*paths, "/tasks", "/task?name=mail.send", "/cron", "/entry?name=nightly", "/workers", "/system", "/api"]

    def screens(self) -> list[str]:
        """Every screen, a job's in every state."""
        return [*self.lists(), *(f"/job?id={id}" for id in self.ids.values())]
