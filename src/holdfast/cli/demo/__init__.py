"""`holdfast demo`: a small real scenario on SQLite, with a verdict computed at the end.

Loaded by main when called. Everything happens in a temporary directory that is removed afterwards (unless --keep).
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..documents import plain
from ..exits import Exit
from ..output import Printer

if TYPE_CHECKING:
    from .stage import Stage


@click.command()
@click.option("--plain", "as_lines", is_flag=True, help="Print plain lines instead of a live display.")
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path), help="Use this empty directory and keep it.")
@click.option("--json", "as_json", is_flag=True, help="Only the verdict, as one JSON document.")
@click.option("--dashboard", is_flag=True, help="Show a busy shop in the dashboard instead, until Ctrl-C.")
@click.option("--port", default=8642, show_default=True, type=click.IntRange(0, 65535), help="Port of the dashboard.")
@click.option("--open/--no-open", "opens", default=None, help="Open a browser. [when started from a terminal]")
def demo(as_lines: bool, keep: Path | None, as_json: bool, dashboard: bool, port: int, opens: bool | None) -> int:
    """See a worker killed in mid-job and nothing lost.

    Six ships (groups) of six steps each, two real worker processes, one of them killed with SIGKILL in the middle of a
    job; a job that cannot succeed, revived once, and one dead letter. At the end the store is audited and compared with
    what the handlers wrote down themselves: exit code 1 if a promise was broken.
    """
    from .stage import Stage

    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise click.BadParameter(f"{keep} is not empty.", param_hint="--keep")
    printer = Printer(as_json=as_json)
    with contextlib.ExitStack() as stack:
        temporary = None if keep else stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-"))
        if dashboard:
            return _show_shop(keep or Path(temporary or "."), port=port, opens=opens)
        stage = Stage(keep or Path(temporary or "."))
        return _play(stage, printer, as_lines=as_lines)


def _show_shop(folder: Path, *, port: int, opens: bool | None) -> int:
    """The demo shop: a worker, somebody who keeps ordering, and the dashboard."""
    from ..dev import serve_beside, worker_beside
    from .shop import app, keep_busy

    url = f"sqlite:///{folder.absolute() / 'shop.db'}"
    app._aim(url)
    quiet = ["--log-jobs", "none", "--log-level", "error"]  # what happens is on the page
    with worker_beside(["holdfast.cli.demo.shop:app", "--url", url, *quiet]) as worker, keep_busy(url):
        return serve_beside(worker, app, port=port, opens=opens)


def _play(stage: Stage, printer: Printer, *, as_lines: bool) -> int:
    from .screen import live_show, plain_show, verdict_lines, verdict_panel

    if printer.as_json:
        verdict = stage.play(lambda frame: None)
        checks = {
            check.name.replace(" ", "_"): {"held": check.held, "detail": check.detail} for check in verdict.checks
        }
        printer.document(
            {
                "held": verdict.held,
                "seconds": round(stage.elapsed, 1),
                "checks": checks,
                "happenings": plain(stage.happenings),
            }
        )
    elif as_lines or not printer.console.is_terminal or printer.console.options.ascii_only:
        with plain_show() as show:
            verdict = stage.play(show)
        for line in verdict_lines(verdict):
            printer.line(line)
    else:
        with live_show(printer.console) as show:
            verdict = stage.play(show)
        printer.console.print(verdict_panel(verdict, stage.elapsed, printer.console.width))
        if verdict.held:
            printer.note("next: put your own tasks in a module and run `holdfast work MODULE:APP`.")
    return Exit.DONE if verdict.held else Exit.FAILED
