"""Sentry: what its SDK sends to a server of this test's own, from a worker of processes and from an embedded one."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigurationError, Holdfast
from holdfast.sentry import instrument

PATIENCE_SECONDS = 120
HIDDEN = "a secret of ann's"

APP = """
import asyncio, os
import sentry_sdk
import holdfast.sentry
from holdfast import Bury, Holdfast, Retry, RetryPolicy, Snooze

app = Holdfast({url!r})
sentry_sdk.init("http://key@127.0.0.1:{port}/1", default_integrations=True, shutdown_timeout=0)
holdfast.sentry.instrument(app)


@app.task(name="fails", queue="mail", retry=RetryPolicy.fixed(0, limit=1))
def fails(word: str) -> None:
    told = word + "!"
    raise ValueError("cannot")


@app.task(name="afails", retry=0)
async def afails(word: str) -> None:
    raise LookupError("nowhere")


@app.task(name="overruns", retry=0, timeout=0.2)
async def overruns() -> None:
    await asyncio.Event().wait()


@app.task(name="fine")
def fine() -> None:
    pass


@app.task(name="decides")
def decides(how: str) -> None:
    raise {{"retry": Retry(after=3600), "snooze": Snooze(3600), "bury": Bury("enough")}}[how]
"""


class Inbox:
    """A server that accepts Sentry's envelopes."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        inbox = self

        class Post(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                inbox.take(body)
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Post)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, envelope: bytes) -> None:
        lines = envelope.splitlines()
        for head, body in zip(lines[1::2], lines[2::2], strict=False):
            if json.loads(head).get("type") == "event":
                self.events.append(json.loads(body))

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


@pytest.mark.parametrize("form", ["processes", "embedded"])
def test_one_event_for_each_failure_and_none_for_a_verdict(form: str, inbox: Inbox, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    (tmp_path / "reported.py").write_text(APP.format(url=url, port=inbox.port))
    with Holdfast(url) as app:
        failing = app.named("fails", queue="mail").enqueue(HIDDEN)
        app.named("afails").enqueue(HIDDEN)
        app.named("overruns").enqueue()
        app.named("fine").enqueue()
        for how in ("retry", "snooze", "bury"):
            app.named("decides").enqueue(how)
    work = ["-m", "holdfast.cli", "work", "reported:app", "--app-dir", str(tmp_path), "--runners", "1", "--drain"]
    embedded = ["-c", "from reported import app; app.work(drain=True)"]
    done = subprocess.run(
        [sys.executable, *(work if form == "processes" else embedded)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        timeout=PATIENCE_SECONDS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    events = [event for event in inbox.events if not _is_of_a_busy_machine(event)]
    told = sorted((_tag(event, "task"), int(_tag(event, "attempt")), _what(event)) for event in events)
    assert told == [
        ("afails", 1, "LookupError"),
        ("fails", 1, "ValueError"),
        ("fails", 2, "ValueError"),
        ("overruns", 1, "overruns: timeout"),
    ]
    [first, _] = [event for event in events if _tag(event, "task") == "fails"]
    assert (_tag(first, "job_id"), _tag(first, "queue")) == (failing.id, "mail")
    assert first["transaction"] == "fails"
    assert first["exception"]["values"][0]["stacktrace"]["frames"], "it says where"
    assert HIDDEN not in json.dumps(inbox.events), "neither as an argument nor in a frame's variables"


def _is_of_a_busy_machine(event: dict[str, Any]) -> bool:
    """The worker's own complaint that it got no processor: no event of a job."""
    return "has been blocked for" in event.get("logentry", {}).get("message", "")


def _tag(event: dict[str, Any], name: str) -> str:
    return str(dict(event["tags"])[f"holdfast.{name}"])


def _what(event: dict[str, Any]) -> str:
    if "exception" in event:
        return str(event["exception"]["values"][-1]["type"])
    return str(event["message"])


def test_an_app_is_instrumented_once() -> None:
    app = Holdfast("memory://")
    instrument(app)
    with pytest.raises(ConfigurationError, match="already"):
        instrument(app)
