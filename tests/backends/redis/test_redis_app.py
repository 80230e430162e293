"""The public API and the command line on Redis: the same code, another URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Holdfast

from ...cli.shells import Shell
from ...servers.valkey import Server


def test_ten_lines_of_code_run_on_redis_too(server: Server, prefix: str) -> None:
    app = Holdfast(server.url(prefix))
    seen: list[int] = []

    @app.task(name="note", group=lambda n: f"g{n % 2}")
    def note(n: int) -> int:
        seen.append(n)
        return n * 2

    jobs = [note.enqueue(n) for n in range(10)]
    drained = app.work(drain=True)
    assert drained.succeeded == 10
    assert [job.result(timeout=5) for job in jobs] == [n * 2 for n in range(10)]
    assert [n for n in seen if n % 2 == 0] == [0, 2, 4, 6, 8]
    assert app.audit().violations == []
    app.close()


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_commands_answer_on_redis(server: Server, prefix: str, tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{server.port}/0?prefix={prefix}"
    shell = Shell(tmp_path, url)
    job_id = shell.job("mail.send", queue="mail", group="ann")
    assert job_id in str(shell.json("jobs", "-u", url))
    assert "mail" in str(shell.json("queues", "-u", url))
    assert "ann" in str(shell.json("groups", "-u", url))
    assert "violations" in str(shell.json("audit", "-u", url))
    shell("explain", job_id, "-u", url)
    shell("cancel", job_id, "-u", url, "--yes")
    assert "cancelled" in str(shell.json("job", job_id, "-u", url))
