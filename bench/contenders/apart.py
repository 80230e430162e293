"""Where the floor's handler runs: in the same process, or with BARE_APART=1 in another one, called over a socket pair.

Imported by bare_*.py. The other process is this file, run as a script. It shows the highest possible rate of a chain of
jobs whose handlers are not in the process that talks to the store: no framework, no event loop, one byte each way.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import tally


class Handler:
    """Calls the no-op handler with a job's arguments and waits for its end."""

    def __init__(self) -> None:
        self._asked: socket.socket | None = None
        if os.environ.get("BARE_APART") == "1":
            self._asked, theirs = socket.socketpair()
            with theirs:
                words = [sys.executable, __file__, str(theirs.fileno())]
                self._process = subprocess.Popen(words, pass_fds=(theirs.fileno(),))

    def __call__(self, arguments: str | bytes) -> None:
        if self._asked is None:
            json.loads(arguments)
            tally.called()
        else:
            self._asked.sendall(arguments.encode() if isinstance(arguments, str) else arguments)
            self._asked.recv(1)

    def close(self) -> None:
        if self._asked is not None:
            self._asked.close()
            self._process.wait()


def serve(fd: int) -> None:
    with socket.socket(fileno=fd) as asked:
        while arguments := asked.recv(1 << 16):
            json.loads(arguments)
            tally.called()
            asked.sendall(b".")


if __name__ == "__main__":
    serve(int(sys.argv[1]))
