"""The example projects' own tests, each run as a user would: with pytest, in the project's folder."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import psycopg
import pytest

from tests.servers.postgres import shared_server

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(project: str, **environment: str) -> None:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST_"))}
    ended = subprocess.run(
        # The settings of this repository are not the project's: no pyproject.toml, and the plug-ins a user has.
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            os.devnull,
            "--rootdir",
            ".",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:asyncio",
            "-p",
            "no:anyio",
            "tests",
        ],
        cwd=EXAMPLES / project,
        env={**known, "PYTHONPATH": ".", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout


def test_fastapi_with_sqlalchemy_and_postgresql() -> None:
    server = shared_server()
    name = f"mail_shop_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    run("fastapi", DATABASE_URL=f"postgresql://postgres@/{name}?host={server.home}")


@pytest.mark.parametrize("project", ["flask"])
def test_projects_that_need_no_server(project: str, tmp_path: Path) -> None:
    run(project, MEDIA=str(tmp_path))
