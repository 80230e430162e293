"""`holdfast dashboard`: a real server, asked over a socket; and what it refuses to do."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.cli.shells import Shell


@pytest.fixture
def serve(shell: Shell) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holdfast.cli", "dashboard", "--url", shell.url, "--port", "0", "--prefix", "ops"]
    return subprocess.Popen([*command, "--no-open"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_it_serves_the_store_until_it_is_interrupted(shell: Shell, serve: subprocess.Popen[str]) -> None:
    assert serve.stdout is not None
    try:
        line = serve.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/ops/", line)
        assert found is not None, line
        assert "Holdfast" in httpx.get(found[0], timeout=60).text
        serve.send_signal(signal.SIGINT)
        assert serve.wait(60) in (0, 130)
        assert "Traceback" not in serve.stdout.read()
    finally:
        serve.kill()
        serve.wait()
        serve.stdout.close()


def test_another_address_needs_a_password(shell: Shell) -> None:
    refused = shell("dashboard", "--host", "192.0.2.1", code=2)
    assert "--password-file" in refused.stderr


@pytest.mark.parametrize(("text", "why"), [("short", "fewer than eight"), (None, "cannot be read")])
def test_a_useless_password_file_is_refused(shell: Shell, tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "password"
    if text is not None:
        file.write_text(text)
    refused = shell("dashboard", "--password-file", str(file), code=2)
    assert why in refused.stderr
    assert text is None or text not in refused.stderr


def test_a_taken_port_is_a_sentence(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = shell("dashboard", "--port", str(taken.getsockname()[1]), code=1)
    assert "cannot listen" in refused.stderr


def test_a_store_that_is_not_there_is_said_before_anything_is_served(empty: Shell) -> None:
    assert "there is no store" in empty("dashboard", code=4).stderr
