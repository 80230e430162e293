"""`holdfast dev MODULE:APP`: a worker that reloads changed code and the dashboard of its store, in one command.

Loaded by main when called. The worker is `holdfast work --reload` in a process of its own, so that nothing here has to
import the code twice; the dashboard is served by this process. When one of the two ends, so does the other.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from .dashboard import PORT, listen, start_browser
from .exits import CommandFailed, Exit
from .output import Printer

if TYPE_CHECKING:
    from ..app import Holdfast

GRACE_SECONDS = 5.0


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="Port of the dashboard.")
@click.option("--app-dir", metavar="DIR", default=".", show_default=True, help="Where to import from.")
@click.option("--url", "-u", metavar="URL", help="Use this store instead of the app's.")
@click.option("--slots", type=click.IntRange(1), metavar="N", help="Concurrent jobs. [10; 100 if all tasks are async]")
@click.option("--open/--no-open", "opens", default=None, help="Open a browser. [when started from a terminal]")
def dev(app: str, port: int, app_dir: str, url: str | None, slots: int | None, opens: bool | None) -> int:
    """Run a worker that reloads changed code, together with the dashboard, until Ctrl-C.

    For development: one worker with one runner, and a short grace period at the end. The dashboard shows signatures as
    they were when it started.
    """
    if sys.platform == "win32":
        raise click.UsageError("`holdfast dev` needs Linux or macOS. On Windows call app.work() in your program.")
    from .app_import import import_app

    code = import_app(app, app_dir)
    if url is not None:
        code._aim(url)
    more = ["--app-dir", app_dir, "--reload"]
    more += [] if slots is None else ["--slots", str(slots)]
    with worker_beside([app, "--url", code.url, *more]) as worker:
        return serve_beside(worker, code, port=port, opens=opens)


@contextlib.contextmanager
def worker_beside(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """`holdfast work` with these words in a process of its own; ended, and waited for, on the way out."""
    command = [sys.executable, "-m", "holdfast.cli", "work", *words, "--grace", f"{GRACE_SECONDS:g}s", "--runners", "1"]
    worker = subprocess.Popen(command)  # noqa: S603 - our own program
    try:
        yield worker
    finally:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(GRACE_SECONDS + 10)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def serve_beside(worker: subprocess.Popen[bytes], app: Holdfast, *, port: int, opens: bool | None) -> int:
    """Serve the dashboard of this app for as long as the worker lives."""
    try:
        import uvicorn

        from ..dashboard import create
    except ImportError as error:
        raise CommandFailed(
            Exit.FAILED, f"the dashboard needs {error.name}.", "pip install 'holdfast[dashboard]'"
        ) from None
    with contextlib.closing(listen("127.0.0.1", port)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        Printer(as_json=False).note(f"dashboard: {address} (Ctrl-C ends worker and dashboard)")
        start_browser(address, sys.stdout.isatty() if opens is None else opens)
        server = uvicorn.Server(uvicorn.Config(create(app), log_level="warning", timeout_graceful_shutdown=1))

        def watch() -> None:
            worker.wait()
            server.should_exit = True

        threading.Thread(target=watch, daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    code = worker.poll()
    return Exit.DONE if code is None or code in (0, -signal.SIGINT, Exit.INTERRUPTED) else code
