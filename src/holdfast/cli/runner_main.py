"""The program of a runner process: `python -P -m holdfast.cli.runner_main`, started by the guard and by nobody else.

Reads from its socket what to import, imports it, says hello, and runs handlers until told to quit. Import errors go to
the keeper as the sentences the command line has for them. It never opens the store for itself; handlers that enqueue
do, through the app.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from functools import partial

from ..app import Holdfast
from ..worker.processes import protocol
from ..worker.processes.begin_flags import BeginFlags
from ..worker.processes.guard import FIRST_FD
from ..worker.processes.runner_endpoint import RunnerEndpoint, hello, listen_for_dumps
from ..worker.runner.outcomes import storable
from ..worker.runner.output import capture_output
from .app_import import import_app, import_modules, tellable_words
from .exits import CommandFailed, Exit
from .output import logs_on_stderr


def main() -> int:
    fds = FIRST_FD, FIRST_FD + 1, FIRST_FD + 2
    for fd in fds:
        os.set_inheritable(fd, False)  # what handlers start must not hold on to them
    sock, marks = socket.socket(fileno=fds[0]), BeginFlags(fds[1])
    listen_for_dumps(fds[2])
    # A supervisor may send these to the whole worker. Handled, not ignored: what handlers start gets the default back.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    setup = _read_setup(sock)
    if setup is None:
        return Exit.FAILED
    ended = None if setup.solo else capture_output()  # alone, everything it prints is its job's
    if setup.solo and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        app = _load(setup)
        ready = hello(app, app.url, app.result_bytes_max)
    except BaseException as error:  # whatever the user's code raises while it loads: the keeper says it, once
        if os.environ.get("HOLDFAST_DEBUG"):
            traceback.print_exc()
        sock.sendall(protocol.pack([_refusal(setup.app, error)]))
        return Exit.IMPORT_FAILED
    sock.sendall(protocol.pack([ready]))
    with logs_on_stderr(setup.verbose):
        _run(partial(RunnerEndpoint, app, setup, marks, ended), sock)
    return Exit.DONE


def _read_setup(sock: socket.socket) -> protocol.Setup | None:
    """The first frame and not a byte more: what follows it is for the loop. None when the keeper is gone."""
    reader, need = protocol.from_keeper(), protocol.HEAD_BYTES
    while piece := sock.recv(need):
        for frame in reader.feed(piece):
            return frame if isinstance(frame, protocol.Setup) else None
        need = reader.missing
    return None


def _load(setup: protocol.Setup) -> Holdfast:
    if setup.version != protocol.VERSION:
        raise CommandFailed(
            Exit.FAILED,
            f"the keeper speaks frames of version {setup.version}, this runner {protocol.VERSION}.",
            "Holdfast was replaced while it ran: start the worker again.",
        )
    app = import_app(setup.app, setup.app_dir)
    import_modules((*app.imports, *setup.imports))
    if setup.url is not None:
        app.aim(setup.url)
    return app


def _refusal(app: str, error: BaseException) -> protocol.Refused:
    if isinstance(error, CommandFailed):
        return protocol.Refused(storable(error.text), storable(error.hint))
    text = f"{app} cannot be used: {type(error).__name__}: {tellable_words(error)}"
    return protocol.Refused(storable(text), "HOLDFAST_DEBUG=1 shows where.")


def _run(make: Callable[[], RunnerEndpoint], sock: socket.socket) -> None:
    """Run the loop until Quit. What ends it otherwise ends the process at once.

    SystemExit in a task that a handler made goes past the handler and out of the loop. An orderly end would cancel all
    handlers then and give their jobs back free, the guilty one among them, and again, for ever; a crash is charged.
    """
    runner = asyncio.Runner()
    try:
        runner.run(_serve(make, sock))
    except BaseException:
        traceback.print_exc()
        os._exit(Exit.FAILED)
    runner.close()


async def _serve(make: Callable[[], RunnerEndpoint], sock: socket.socket) -> None:
    await make().serve(sock)


if __name__ == "__main__":
    sys.exit(main())
