"""Entry point of a runner process: `python -P -m holdfast.cli.runner_main`, started only by the guard.

Reads from its socket what to import, imports it, runs the app's startup functions, sends Hello, and runs handlers until
Quit. Errors before Hello go to the keeper as the command line's messages. It never opens the store itself; handlers
that enqueue do, through the app.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # while it imports our own modules: all of that stays, so looking for garbage in it is time lost

import asyncio
import io
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TextIO

from ..app import Holdfast
from ..context import Resources, storable
from ..errors import StartupFailed
from ..hooks import tellable_words
from ..worker.processes import protocol
from ..worker.processes.begin_flags import BeginFlags
from ..worker.processes.guard import FIRST_FD
from ..worker.processes.runner_endpoint import RunnerEndpoint, hello, listen_for_dumps, slots_for
from ..worker.runner.log_capture import LogCapture
from ..worker.runner.output import capture_output
from .app_import import import_app, import_modules
from .exits import CommandFailed, Exit
from .log_output import logs_on_stderr


def main() -> int:
    fds = FIRST_FD, FIRST_FD + 1, FIRST_FD + 2
    for fd in fds:
        os.set_inheritable(fd, False)  # processes started by handlers must not inherit them
    sock, begin_flags = socket.socket(fileno=fds[0]), BeginFlags(fds[1])
    listen_for_dumps(fds[2])
    # A supervisor may signal the whole worker. Handled, not ignored: child processes then get the default action back.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    setup = _read_setup(sock)
    if setup is None:
        return Exit.FAILED
    ended = None if setup.dedicated else capture_output()  # a solo runner's entire output belongs to its job
    if setup.dedicated and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    try:
        app = _load(setup)
        ready = hello(app, app.url, app.result_bytes_max, *slots_for(app, setup.slots, setup.queues))
    except BaseException as error:  # whatever the user's code raises while loading: the keeper reports it, once
        if os.environ.get("HOLDFAST_DEBUG"):
            traceback.print_exc()
        sock.sendall(protocol.pack([_refusal(setup.app, error)]))
        return Exit.IMPORT_FAILED
    with logs_on_stderr(setup.log_level, setup.log_format, _own_log() if setup.dedicated else None), LogCapture():
        return _run(_serve(app, partial(RunnerEndpoint, app, setup, ready.slots, begin_flags, ended), ready, sock))


def _own_log() -> TextIO:
    """The worker's stderr in a dedicated runner, whose own output belongs to its job."""
    os.set_inheritable(FIRST_FD + 3, False)
    return open(FIRST_FD + 3, "w", buffering=1, encoding="utf-8", errors="backslashreplace")


def _read_setup(sock: socket.socket) -> protocol.Setup | None:
    """Read the first frame and not a byte more: the rest is for the loop. None if the keeper is gone."""
    reader = protocol.from_keeper()
    while count := sock.recv_into(reader.space(), reader.missing):
        for frame in reader.received(count):
            return frame if isinstance(frame, protocol.Setup) else None
    return None


def _load(setup: protocol.Setup) -> Holdfast:
    if setup.version != protocol.VERSION:
        raise CommandFailed(
            Exit.FAILED,
            f"the keeper uses protocol version {setup.version}, this runner {protocol.VERSION}.",
            "Holdfast was upgraded while the worker ran: restart the worker.",
        )
    app = import_app(setup.app, setup.app_dir)
    import_modules((*app.imports, *setup.imports))
    if setup.url is not None:
        app._aim(setup.url)
    if setup.timeout is not None:
        for task in app.tasks.values():
            task.defaults = task.defaults.within(setup.timeout)
    return app


def _refusal(app: str, error: BaseException) -> protocol.Refused:
    if isinstance(error, CommandFailed):
        return protocol.Refused(storable(error.text), storable(error.hint))
    text = f"{app} cannot be used: {type(error).__name__}: {tellable_words(error)}"
    return protocol.Refused(storable(text), "HOLDFAST_DEBUG=1 shows where.")


def _run(serving: Coroutine[Any, Any, Exit]) -> Exit:
    """Run the loop until Quit. Anything else that ends it ends the process immediately.

    SystemExit in a task created by a handler bypasses the handler and ends the loop. An orderly shutdown would then
    cancel all handlers and release their jobs at no cost, including the one to blame, over and over; a crash counts.
    """
    runner = asyncio.Runner()
    try:
        code = runner.run(serving)
    except BaseException:
        traceback.print_exc()
        os._exit(Exit.FAILED)
    runner.close()
    return code


async def _serve(
    app: Holdfast, make: Callable[[Resources], RunnerEndpoint], ready: protocol.Hello, sock: socket.socket
) -> Exit:
    """Run the startup functions, say hello, serve. If one fails, the keeper gets the reason and sends no job."""
    try:
        resources = await app._hooks.start()
    except StartupFailed as error:
        if os.environ.get("HOLDFAST_DEBUG"):
            traceback.print_exception(error)
        sock.sendall(protocol.pack([protocol.Refused(storable(str(error)), "HOLDFAST_DEBUG=1 shows where.")]))
        return Exit.IMPORT_FAILED
    sock.sendall(protocol.pack([ready]))
    await make(resources).serve(sock)
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
