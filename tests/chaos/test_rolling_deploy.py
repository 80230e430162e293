"""A rolling deploy with real `holdfast work` processes: new tasks run although the old version still serves."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.worker_status import read
from tests.chaos.flow_scene import STORES, Store, all_succeeded
from tests.chaos.scene import journal_of, until
from tests.servers import valkey_cluster

pytestmark = pytest.mark.chaos

SECONDS_MAX = 60.0
JOBS = 20
OLD = """
import json, os
from holdfast import Context, Holdfast

app = Holdfast(os.environ["ROLLING_URL"])
app.queue("default", shards=3)


def note(**facts):
    fd = os.open("journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (json.dumps(facts) + "\\n").encode())
    os.close(fd)


@app.task(name="both", retry=0)
async def both(ctx: Context, n: int) -> None:
    note(job=ctx.id, version=__name__)
"""
NEW = f"""{OLD}

@app.task(name="fresh", retry=0)
async def fresh(ctx: Context, n: int) -> None:
    note(job=ctx.id, version=__name__)
"""


def _cluster(folder: Path) -> Store:
    cluster = valkey_cluster.shared_cluster()
    cluster.empty()
    return cluster.url("rolling"), lambda: None


class Deploy:
    """A folder with two versions of an app, and the workers started in it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        (folder / "old.py").write_text(OLD)
        (folder / "new.py").write_text(NEW)
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, version: str) -> subprocess.Popen[bytes]:
        words = ["work", f"{version}:app", "--app-dir", ".", "--runners", "1", "--slots", "4", "--lease", "5s"]
        with (self.folder / f"{version}.log").open("wb") as sink:
            worker = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", *words],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.workers.append(worker)
        return worker

    def runs(self) -> Counter[tuple[str, str]]:
        return Counter((line["job"], line["version"]) for line in journal_of(self.folder))

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()


@pytest.fixture(params=["cluster", *sorted(STORES)])
def deploy(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deploy]:
    url, clear = (_cluster if request.param == "cluster" else STORES[request.param])(tmp_path)
    monkeypatch.setenv("ROLLING_URL", url)
    deploy = Deploy(tmp_path, url)
    yield deploy
    deploy.close()
    clear()


def strangers(app: Holdfast) -> int:
    """Live workers that show that they do not know the new task."""
    views = [read(worker.portrait) for worker in app.workers() if not worker.expired]
    return sum(view is not None and "fresh" in view.unknown for view in views)


def is_apart(app: Holdfast) -> bool:
    rows = app._dump().tables["overrides"]
    return any(row["task"] == "fresh" and row["apart"] for row in rows)


def test_new_tasks_run_beside_the_old_version_until_that_has_their_code_too(deploy: Deploy) -> None:
    old = deploy.start("old")
    with Holdfast(deploy.url) as app:
        until(lambda: app.workers(), SECONDS_MAX, what="the old worker")
        fresh = [app.named("fresh").enqueue(n=n).id for n in range(JOBS)]
        until(lambda: strangers(app) == 1, SECONDS_MAX, what="the old worker to meet the new task")
        both = [app.named("both").enqueue(n=n).id for n in range(JOBS)]
        until(lambda: len(deploy.runs()) == JOBS, SECONDS_MAX, what="the old worker to run what it knows")
        new = deploy.start("new")
        until(lambda: all_succeeded(app), SECONDS_MAX, what="the new tasks' jobs to run beside the old worker")
        assert old.poll() is None and strangers(app) == 1 and is_apart(app)
        assert deploy.runs() == Counter([(job, "old") for job in both] + [(job, "new") for job in fresh])
        (deploy.folder / "old.py").write_text(NEW)
        old.send_signal(signal.SIGHUP)
        until(lambda: not (strangers(app) or is_apart(app)), SECONDS_MAX, what="the old worker's override to go")
        new.terminate()
        assert new.wait(SECONDS_MAX) == 0
        last = app.named("fresh").enqueue(n=0).id
        until(lambda: deploy.runs()[last, "old"], SECONDS_MAX, what="the worker with the new code to run it")
        old.terminate()
        assert old.wait(SECONDS_MAX) == 0
