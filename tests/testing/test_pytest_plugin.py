"""The pytest plug-in in programs of its users: each is a folder of tests that another pytest runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from holdfast import pytest_plugin

REPOSITORY = Path(__file__).resolve().parents[2]

JOBS = """
from holdfast import Holdfast, RetryPolicy

app = Holdfast("postgresql://nobody@nowhere.invalid/shop")  # never opened

@app.task(retry=RetryPolicy.fixed(3600, limit=1))
def send(to: str) -> str:
    if to == "nobody":
        raise ValueError("no such person")
    return f"sent to {to}"

@app.task
async def asend(to: str) -> str:
    return f"sent to {to}"
"""

SYNC_TESTS = """
import sqlite3
import pytest
from shop.jobs import app, asend, send

def test_what_was_enqueued(holdfast_sandbox):
    assert holdfast_sandbox.app is app
    send.enqueue("ann")
    holdfast_sandbox.assert_enqueued(send, to="ann", count=1)
    holdfast_sandbox.assert_not_enqueued(send, to="ben")

def test_each_test_begins_with_nothing_and_time_moves_on_demand(holdfast_sandbox):
    holdfast_sandbox.assert_not_enqueued()
    job = send.enqueue("nobody")
    holdfast_sandbox.drain(inline=True)
    assert job.refresh().state == "scheduled"
    holdfast_sandbox.clock.advance(hours=1)
    with pytest.raises(ValueError, match="no such person"):
        holdfast_sandbox.drain(inline=True, raises=True)
    assert job.refresh().state == "dead"

def test_a_worker_runs_beside_the_test(holdfast_worker, holdfast_sandbox):
    assert send.enqueue("ann").result(timeout=60) == "sent to ann"
    later = asend.using(delay=86400).enqueue("ben")
    holdfast_sandbox.clock.advance(days=1)
    assert later.result(timeout=60) == "sent to ben"
    connection = sqlite3.connect(":memory:")
    job = send.using(connection=connection).enqueue("cid")
    connection.commit()
    assert job.result(timeout=60) == "sent to cid"
    connection.close()
"""

ASYNC_TESTS = """
import asyncio
import pytest
from shop.jobs import asend, send

pytestmark = pytest.mark.{mark}

async def test_async_tests_use_the_same_fixtures(holdfast_sandbox):
    job = await send.aenqueue("ann")
    other = await asend.aenqueue("ben")
    holdfast_sandbox.assert_enqueued(send.bind("ann"), count=1)
    assert (await holdfast_sandbox.adrain(inline=True)).succeeded == 2
    assert await job.aresult(0) == "sent to ann"
    assert await other.aresult(0) == "sent to ben"

async def test_a_worker_runs_beside_an_async_test(holdfast_worker):
    job = await asend.aenqueue("ann")
    assert await job.aresult(timeout=60) == "sent to ann"
"""


def run(folder: Path, *arguments: str, plugin: str = "", code: int = 0) -> str:
    """Run pytest in the folder with no plug-ins but ours and the one named; returns what it printed."""
    shop = folder / "shop"
    shop.mkdir(exist_ok=True)
    (shop / "__init__.py").touch()
    (shop / "jobs.py").write_text(JOBS)
    plugins = ["-p", "holdfast.pytest_plugin", *(["-p", plugin] if plugin else [])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def configure(folder: Path, more: str = "") -> None:
    (folder / "pytest.ini").write_text(f"[pytest]\nholdfast_app = shop.jobs:app\n{more}")


def test_the_fixtures_serve_sync_tests_and_those_of_pytest_asyncio(tmp_path: Path) -> None:
    configure(tmp_path, "asyncio_default_fixture_loop_scope = function\n")
    (tmp_path / "test_shop.py").write_text(SYNC_TESTS)
    (tmp_path / "test_shop_async.py").write_text(ASYNC_TESTS.format(mark="asyncio"))
    assert "5 passed" in run(tmp_path, plugin="pytest_asyncio.plugin")


def test_the_fixtures_serve_tests_of_anyio(tmp_path: Path) -> None:
    configure(tmp_path)
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    (tmp_path / "test_shop_async.py").write_text(ASYNC_TESTS.format(mark="anyio"))
    assert "2 passed" in run(tmp_path, plugin="anyio.pytest_plugin")


def test_an_app_may_come_from_a_fixture_and_a_missing_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_lost.py").write_text("def test_it(holdfast_sandbox): pass\n")
    assert "do not know your app. Say `holdfast_app = MODULE:APP`" in run(tmp_path, "test_lost.py", code=1)
    (tmp_path / "pytest.ini").write_text("[pytest]\nholdfast_app = shop.jobs:ap\n")
    assert "module 'shop.jobs' has no 'ap'. Did you mean" in run(tmp_path, "test_lost.py", code=1)
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom holdfast import Holdfast\n\n"
        "@pytest.fixture\ndef holdfast_app():\n    return Holdfast('memory://')\n"
    )
    (tmp_path / "test_found.py").write_text(
        "def test_it(holdfast_sandbox):\n"
        "    holdfast_sandbox.app.task_by_name('mail').enqueue(7)\n"
        "    holdfast_sandbox.assert_enqueued('mail')\n\n"
        "def test_no_tasks(holdfast_worker): pass\n"
    )
    told = run(tmp_path, "test_found.py", code=1)
    assert "1 passed, 1 error" in told
    assert "this worker has nothing to serve" in told


def test_nothing_is_imported_before_a_fixture_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\ndef test_it():\n"
        "    ours = {name for name in sys.modules if name.startswith('holdfast')}\n"
        "    assert ours == {'holdfast', 'holdfast.pytest_plugin'}\n"
    )
    assert "1 passed" in run(tmp_path)


def test_pytest_finds_it_by_its_entry_point() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"holdfast": pytest_plugin.__name__}
