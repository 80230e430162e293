"""The project's cases, run by Django's own test runner in a process of its own: once per database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..servers.pgbouncer import PORT, Pooler
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


def test_without_django_it_says_what_to_install() -> None:
    script = "import sys; sys.modules['django'] = None; import holdfast.django"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "ConfigurationError: holdfast.django needs Django" in ended.stderr
    assert "pip install 'holdfast[django]'" in ended.stderr


def test_without_settings_it_says_what_to_set(tmp_path: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-m", "holdfast.cli", "work", "holdfast.django:app", "--drain"]
    ended = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, check=False)
    assert ended.returncode == 7
    assert "Set DJANGO_SETTINGS_MODULE" in ended.stderr


def test_the_project_on_sqlite(tmp_path: Path) -> None:
    run_cases({"PROJECT_SQLITE": str(tmp_path)})


def test_the_project_on_postgresql() -> None:
    run_cases({"PROJECT_POSTGRES": str(shared_server().home)})


def test_the_project_behind_pgbouncer() -> None:
    """In transaction mode. Its sessions would keep Django from dropping its test database, so they do not rest long."""
    pooler = Pooler(shared_server(), "server_idle_timeout = 1")
    try:
        run_cases({"PROJECT_POSTGRES": str(pooler.home), "PROJECT_PORT": str(PORT)})
    finally:
        pooler.remove()
