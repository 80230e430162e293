"""Decides which Python runs the scripts of this folder: one that has Holdfast, by default the `.venv` of ./check."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = ROOT / ".venv" / "bin" / "python"


def enter() -> None:
    """Continue in the project's own environment if this interpreter lacks what is needed."""
    if importlib.util.find_spec("holdfast") is not None:
        return
    if MADE.exists() and Path(sys.prefix) != MADE.parent.parent:
        os.execv(MADE, [str(MADE), *sys.argv])  # noqa: S606 - the same script
    sys.exit(
        "this Python does not have Holdfast. Make an environment and install it there:\n"
        "  python3 -m venv .venv && python3 -m pip --python .venv/bin/python install -e '.[test,bench]'"
    )
