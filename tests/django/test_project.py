"""The project's cases, run by Django's own test runner in a process of its own: once per database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..servers.postgres import shared_server

ROOT = Path(__file__).parents[2]


def run_cases(environment: dict[str, str]) -> None:
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", "django", "test", "tests.django.project"]
    ended = subprocess.run(
        [*command, "--pattern", "cases_*.py", "--noinput"],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.django.project.settings", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Ran 0 tests" not in ended.stderr


def test_the_project_on_sqlite(tmp_path: Path) -> None:
    run_cases({"PROJECT_SQLITE": str(tmp_path)})


def test_the_project_on_postgresql() -> None:
    run_cases({"PROJECT_POSTGRES": str(shared_server().home)})
