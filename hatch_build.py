"""Run by hatchling when it builds a wheel or an editable install: records the SHA1 of every Redis script.

See src/holdfast/backends/redis/scripts.py. Without the file, each process would assemble the scripts it uses.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RecordScripts(BuildHookInterface[Any]):
    """Writes the file beside the module that reads it; the wheel takes it from there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(Path(self.root) / "src"))
        from holdfast.backends.redis.scripts import write_record

        write_record()
