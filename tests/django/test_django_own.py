"""Django's own tests for its tasks (tests/tasks of its source distribution) pass against Holdfast's backend.

Needs Django 6, so Python 3.12: `./check tests/django` and CI run it there. The source distribution of the installed
version is fetched by pip once per environment. Left out are cases that assert what only Django's dummy and immediate
backends do; docs/how-to/django.md lists them with the reasons below.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import django

ROOT = Path(__file__).parents[2]

LEFT_OUT = {
    ("test_dummy_backend", "test_refresh_result"): "changes the dummy backend's list of results by hand",
    ("test_dummy_backend", "test_refresh_result_async"): "changes the dummy backend's list of results by hand",
    ("test_dummy_backend", "test_doesnt_wait_until_transaction_commit_by_default"): "a job follows the transaction",
    ("test_immediate_backend", "test_doesnt_wait_until_transaction_commit_by_default"): "a job follows the transaction",
    ("test_immediate_backend", "test_cannot_get_result"): "the immediate backend keeps no results",
    ("test_immediate_backend", "test_cannot_refresh_result"): "the immediate backend keeps no results",
    ("test_immediate_backend", "test_cannot_pass_run_after"): "the immediate backend cannot defer",
    ("test_immediate_backend", "test_throws_keyboard_interrupt"): "the immediate backend runs in the caller",
}
SWAPPED = {
    "django.tasks.backends.dummy.DummyBackend": "django_own.Stored",
    "django.tasks.backends.immediate.ImmediateBackend": "django_own.Drained",
    "from django.tasks.backends.dummy import": "from django_own import Stored as",
    "from django.tasks.backends.immediate import": "from django_own import Drained as",
}
SETTINGS = """
SECRET_KEY = "for tests only"
INSTALLED_APPS = ["holdfast.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
HOLDFAST = {"URL": "memory://", "TASKS_MODULE": None}
USE_TZ = True
"""


def fetched() -> Path:
    """Django's source distribution, unpacked in this environment's own folder."""
    kept = Path(sys.prefix) / f"django-{django.__version__}"
    if not kept.exists():
        pip = [shutil.which("python3") or sys.executable, "-m", "pip", "--python", sys.executable]
        wanted = ["download", "--quiet", "--no-binary", ":all:", "--no-deps", f"django=={django.__version__}"]
        fresh = kept.with_suffix(f".{os.getpid()}")
        subprocess.run([*pip, *wanted, "--dest", fresh], check=True, timeout=240)
        [archive] = fresh.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(fresh, filter="data")
        [unpacked] = [path for path in fresh.iterdir() if path.is_dir()]
        unpacked.rename(kept)
        shutil.rmtree(fresh)
    return kept


def rewritten(text: str, module: str) -> str:
    """One of Django's test modules with our backends, and without the cases that are left out."""
    for theirs, ours in SWAPPED.items():
        text = text.replace(theirs, ours)
    for where, name in LEFT_OUT:
        if where == module:
            text, found = re.subn(rf"\bdef {name}\(", f"def left_out_{name}(", text)
            assert found == 1, f"{module}.{name} is not among Django's tests any more"
    return text


@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django 6 needs Python 3.12: ./check tests/django runs this there")
def test_djangos_own_tests_of_its_tasks_pass(tmp_path: Path) -> None:
    package = tmp_path / "tasks"
    package.mkdir()
    for path in (fetched() / "tests" / "tasks").glob("*.py"):
        (package / path.name).write_text(rewritten(path.read_text(), path.stem))
    (tmp_path / "site_settings.py").write_text(SETTINGS)
    shutil.copy(Path(__file__).with_name("django_own.py"), tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "django", "test", "tasks", "--noinput"],
        cwd=tmp_path,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "site_settings", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ran = re.search(r"Ran (\d+) tests", ended.stderr)
    assert ran is not None and int(ran[1]) >= 60, ended.stderr
