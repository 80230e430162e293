"""A bulk action killed with SIGKILL in the middle and repeated as of its start: it acts on each job once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.chaos import killed_bulk

from ..moving.stage import fresh_url

pytestmark = [pytest.mark.chaos, pytest.mark.spread, pytest.mark.timeout(600)]

JOBS = 24
FIRST_STATE = {"retry": "dead", "revive": "dead", "discard": "dead"}  # of the others: scheduled
CASES = [
    *(("sqlite", verb, *kill) for verb in killed_bulk.VERBS for kill in ((1, "after"), (9, "before"), (20, "after"))),
    *((store, verb, 9, "after") for store in ("postgres", "redis", "cluster") for verb in ("retry", "edit", "delete")),
]


def act(url: str, verb: str, as_of: str, kill_at: int = 0, when: str = "after") -> tuple[int, str]:
    command = [sys.executable, killed_bulk.__file__, url, verb, as_of, str(kill_at), when]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize(("store", "verb", "kill_at", "when"), CASES)
def test_each_job_once(tmp_path: Path, store: str, verb: str, kill_at: int, when: str) -> None:
    url = fresh_url(store, tmp_path)
    runs: Counter[int] = Counter()
    with Holdfast(url) as app:

        @app.task(name="fail", queue="bulk", retry=0)
        async def fail(number: int) -> None:
            runs[number] += 1
            raise ValueError(number)

        delay = None if FIRST_STATE.get(verb) else 3600.0
        app.enqueue_many(fail.options(delay=delay).bind(number) for number in range(JOBS))
        app.work(drain=True)
        ids = [job.id for job in app.jobs("queue:bulk")]
        assert len(ids) == JOBS
        code, as_of = act(url, verb, "", kill_at, when)
        assert code == -signal.SIGKILL
        app.work(drain=True)  # what was retried dies again, and matches again
        assert act(url, verb, as_of) == (0, as_of)
        app.work(drain=True)
        if verb == "delete":
            assert not list(app.jobs("queue:bulk"))
            return
        marks = {id: Counter(entry.kind for entry in app.history(id) if entry.by == "ann") for id in ids}
        kind = {"retry": "revive", "reschedule": "edit"}.get(verb, verb)  # a dead letter that is run again is revived
        assert marks == {id: Counter({kind: 1}) for id in ids}
        again = verb in ("retry", "revive")
        assert set(runs.values()) == ({1 + again} if FIRST_STATE.get(verb) else set())
