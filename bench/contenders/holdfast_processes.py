"""No-op jobs on Holdfast, `holdfast work` with runner processes: URL JOBS RUNNERS, prints jobs per second as JSON.

Rate = jobs / (last handler call - first handler call) over all runners, for every contender alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast import Holdfast

SLOTS = 400
APP = """
import atexit, json, os, time
from pathlib import Path
from holdfast import Holdfast

HERE = Path(__file__).parent
app = Holdfast()
first = last = 0.0


@app.task(name="nothing")
async def nothing(number: int) -> None:
    global first, last
    last = time.perf_counter()
    first = first or last


@atexit.register
def write() -> None:
    if first:
        (HERE / f"times-{os.getpid()}").write_text(json.dumps([first, last]))
"""


def main(url: str, jobs: int, runners: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bench_app.py").write_text(APP)
        with Holdfast(url) as app:
            app.open()  # as for every contender: making the tables is not enqueueing
            began = time.perf_counter()
            task = app.named("nothing")
            app.enqueue_many(task.bind(number=number) for number in range(jobs))
            enqueued = time.perf_counter()
        words = ["work", "bench_app:app", "--app-dir", name, "--drain", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *words, "--runners", str(runners), "--slots", str(SLOTS)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "HOLDFAST_URL": url},
        )
        assert json.loads(done.stdout)["succeeded"] == jobs, done.stdout
        times = [json.loads(path.read_text()) for path in folder.glob("times-*")]
        span = max(last for _, last in times) - min(first for first, _ in times)
        print(json.dumps({"jobs_per_second": jobs / span, "enqueue_per_second": jobs / (enqueued - began)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
