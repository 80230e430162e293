"""`holdfast dev` and `holdfast demo --dashboard`: a worker and a dashboard from one command, which end together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(sys.platform == "win32", reason="needs `holdfast work`")]
WAIT_SECONDS = 120.0
APP = """
from holdfast import Holdfast

app = Holdfast("sqlite:///dev.db")


@app.task(name="greet")
def greet(name: str) -> str:
    return f"hello {name}"
"""


def until(base: str, path: str, wanted: Any) -> Any:
    """Ask until the answer is as wanted."""
    ends = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < ends:
        answer = httpx.get(f"{base}{path}", timeout=60).json()
        if wanted(answer):
            return answer
    raise AssertionError(f"{path} stayed {answer}")


@pytest.mark.parametrize("words", [["dev", "shop:app"], ["demo", "--dashboard"]])
def test_worker_and_dashboard_start_and_end_together(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "shop.py").write_text(APP)
    command = [sys.executable, "-m", "holdfast.cli", *words, "--port", "0", "--no-open"]
    started = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert started.stdout is not None
    try:
        found = None
        while found is None:
            line = started.stdout.readline()
            assert line, "it ended before it said where it serves"
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
        until(found[0], "/api/overview", lambda answer: answer["workers"] == 1)
        if words[0] == "dev":
            sent = httpx.post(f"{found[0]}/api/do/enqueue", json={"task": "greet", "args": {"name": "Ann"}}, timeout=60)
            assert sent.status_code == 200, sent.text
        until(found[0], "/api/overview", lambda answer: answer["counts"]["succeeded"] >= 1)
        started.send_signal(signal.SIGINT)
        rest = started.stdout.read()
        assert started.wait(60) == 0, rest
        assert "Traceback" not in rest
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        started.stdout.close()
