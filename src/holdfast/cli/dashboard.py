"""`holdfast dashboard`: serve the dashboard of one store with uvicorn.

Loaded by main when called. It needs no app; with --app it also shows the tasks of that code. Without a password it
listens on this machine only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .exits import CommandFailed, Exit
from .session import Session, session_options

if TYPE_CHECKING:
    from starlette.applications import Starlette

PORT = 8642
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command()
@session_options
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; any but loopback needs a password."
)
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option("--prefix", default="", metavar="PATH", help="Serve under this path, as behind a proxy: /jobs")
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@click.option("--password-file", metavar="FILE", help="Require the password in this file.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A host name to accept. Repeatable.")
@click.option("--open/--no-open", "opens", default=None, help="Open a browser. [when started from a terminal]")
def dashboard(
    session: Session,
    host: str,
    port: int,
    prefix: str,
    read_only: bool,
    password_file: str | None,
    hosts: tuple[str, ...],
    opens: bool | None,
) -> int:
    """Monitor and control the store in a browser."""
    if host not in LOOPBACK and password_file is None:
        raise click.UsageError(f"to listen on {host}, which others can reach, give --password-file.")
    password = None if password_file is None else read_password(password_file)
    try:
        import uvicorn

        from ..dashboard import create
    except ImportError as error:
        raise CommandFailed(
            Exit.FAILED, f"the dashboard needs {error.name}.", "pip install 'holdfast[dashboard]'"
        ) from None
    source = session.code if session.has_code else session.named_url
    with session.store() as store:  # fails now, with a sentence, if the store cannot be reached
        store.counts()
        safe_url = store.safe_url
    app = create(source or store.url, read_only=read_only, password=password, hosts=hosts)
    path = f"/{prefix.strip('/')}" if prefix.strip("/") else ""
    with contextlib.closing(listen(host, port)) as listener:
        shown = f"[{host}]" if ":" in host else host
        _announce(session, safe_url, f"http://{shown}:{listener.getsockname()[1]}{path}/", opens)
        server = uvicorn.Server(uvicorn.Config(_mounted(app, path), log_level="warning", timeout_graceful_shutdown=2))
        server.run(sockets=[listener])
    return Exit.DONE


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that the address is known, and a taken port reported, before anything is announced."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise CommandFailed(
            Exit.FAILED, f"cannot listen on {host} port {port}: {error.strerror or error}.", "Give another --port."
        ) from None


def read_password(path: str) -> str:
    """The password in a file: its first line, of at least eight characters."""
    try:
        password = Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the password file cannot be read ({type(error).__name__}): {path}") from None
    if len(password) < 8:
        raise click.UsageError("the password has fewer than eight characters.")
    if os.name == "posix" and Path(path).stat().st_mode & 0o077:
        click.echo(f"note: others on this machine can read {path}; `chmod 600` it.", err=True)
    return password


def _mounted(app: Starlette, path: str) -> Starlette:
    if not path:
        return app
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount(path, app)])


def _announce(session: Session, store: str, url: str, opens: bool | None) -> None:
    if session.as_json:
        session.print.document({"url": url, "store": store})
    else:
        session.print.note(f"dashboard of {store}: {url} (Ctrl-C ends it)")
    start_browser(url, opens if opens is not None else sys.stdout.isatty() and not session.as_json)


def start_browser(url: str, wanted: bool) -> None:
    """Open the page, if that is wanted."""
    if wanted:
        threading.Thread(target=_open, args=(url,), daemon=True).start()


def _open(url: str) -> None:
    with contextlib.suppress(Exception):  # a machine without a browser still serves
        webbrowser.open(url)
