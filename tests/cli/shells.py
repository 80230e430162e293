"""A way to run commands in this process, on a store and an app of the test's own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.backends import open_backend
from holdfast.cli.main import cli
from holdfast.lifecycle import Ending, Settlement
from holdfast.records import ClaimRequest, WorkerRecord

SHOP = """
from dataclasses import dataclass
from holdfast import Bury, Context, Holdfast

app = Holdfast({url!r})
app.queue("bulk", group_limit=3, group_order="relaxed")

@app.task(name="send", queue="mail", group=lambda to: to)
async def send(ctx: Context, to: str, times: int = 1) -> str:
    ctx.log("sending", times=times)
    return f"{{times}} to {{to}}"

@app.task(name="fail", retry=0, subscribes="trouble")
def fail(word: str) -> None:
    raise ValueError("cannot " + word)
"""


T = TypeVar("T")


def wait_until(look: Callable[[], T | None], seconds: float) -> T:
    """Look again and again until there is an answer, no longer than that."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        pause.wait(0.05)
    raise AssertionError(f"nothing within {seconds} s")


class Shell:
    """Runs `holdfast …` in this process, on the store of this test."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url

    def __call__(self, *words: str, code: int = 0, given: str | None = None) -> Result:
        result = CliRunner().invoke(cli, list(words), input=given)
        assert result.exit_code == code, f"exit code {result.exit_code}\n{result.output}"
        assert "Traceback" not in result.stderr
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        """The one document the command prints, whatever its exit code."""
        return json.loads(self(*words, "--json", code=code).stdout)

    def error(self, *words: str, code: int) -> dict[str, str]:
        """The error document, which must be the only thing on stdout."""
        document = self.json(*words, code=code)
        assert set(document) == {"error"}
        assert set(document["error"]) == {"code", "message", "hint"}
        error: dict[str, str] = document["error"]
        return error

    @property
    def app(self) -> list[str]:
        """Options that name this test's app."""
        return ["--app", f"{self.module}:app", "--app-dir", str(self.directory)]

    @property
    def module(self) -> str:
        return f"shop_{self.directory.name.replace('-', '_')}"

    def job(self, task: str = "send", **settings: Any) -> str:
        """Enqueue a job without code; its id."""
        with Holdfast(self.url) as app:
            return app.named(task, **settings).enqueue(to="ann").id

    def crash(self, job_id: str) -> None:
        """Let the process die that runs this job, the only claimable one, among others."""
        backend = open_backend(self.url)

        async def play() -> None:
            await backend.open()
            await backend.register(WorkerRecord(id="w1", isolates=True))
            record = await backend.get(job_id)
            assert record is not None
            request = ClaimRequest(worker="w1", call=1, queues=(record.queue,), most=1)
            [lease] = (await backend.claim(request)).leases
            await backend.settle([Settlement(id=job_id, token=lease.token, ending=Ending.STALLED)])
            await backend.close()

        asyncio.run(play())

    def worker(self, name: str, portrait: bytes | None) -> None:
        """Let a worker of that name register, and renew once with this portrait."""
        backend = open_backend(self.url)

        async def play() -> None:
            await backend.open()
            await backend.register(WorkerRecord(id=name, host="host", pid=1000, queues=("mail",), slots=10))
            await backend.renew(name, [], seen_call=0, portrait=portrait)
            await backend.close()

        asyncio.run(play())

    def drain(self) -> None:
        """Work off what is ready, by the test's own app."""
        self("work", f"{self.module}:app", "--app-dir", str(self.directory), "--drain")
