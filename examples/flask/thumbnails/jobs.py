"""The jobs. They belong to the Flask app that `create_app` makes; handlers run in its application context."""

from __future__ import annotations

from pathlib import Path

from flask import current_app

from holdfast import Context, RetryPolicy
from holdfast.flask import Holdfast

from .images import NotAnImage, shrunk

jobs = Holdfast()


@jobs.task(queue="images", retry=RetryPolicy(limit=2, never=(NotAnImage,)), timeout=60, retain=3600)
def shrink(ctx: Context, name: str, width: int = 64) -> str:
    """Make a thumbnail. It stops between two rows when it is cancelled, and appears whole or not at all."""
    media = Path(current_app.config["MEDIA"])

    def row_done(fraction: float) -> None:
        ctx.raise_if_cancelled()
        ctx.progress(fraction, f"{fraction:.0%} of the rows")

    small = shrunk((media / f"{name}.ppm").read_bytes(), width, row_done)
    unfinished = media / f"{name}.{ctx.fence}.part"
    unfinished.write_bytes(small)
    unfinished.replace(media / f"{name}.small.ppm")
    ctx.log("made a thumbnail", bytes=len(small))
    return f"{name}.small.ppm"
