"""The metrics of a worker: what its meter counts, and what a real `holdfast work --metrics-port` serves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Holdfast
from holdfast.lifecycle import Ending, State
from holdfast.metrics import WORKER_METRICS, worker_text
from holdfast.records import Lease, Recovered
from holdfast.rollups import OTHER
from holdfast.worker.keeper.meter import BUCKET_BOUNDS, PAIRS_MAX, Meter
from holdfast.worker.keeper.runners import Journal
from tests.cli.shells import wait_until

from .test_store_metrics import samples

PATIENCE_SECONDS = 120.0

APP = """
import os
from holdfast import Holdfast, Snooze

app = Holdfast({url!r})


@app.task(name="fine", queue="mail")
async def fine() -> None:
    pass


@app.task(name="fails", retry=0)
def fails() -> None:
    raise ValueError("secret")


@app.task(name="dies", retry=0, max_stalls=1)
def dies() -> None:
    os._exit(3)


@app.task(name="never", queue="mail")
def never() -> None:
    pass


@app.task(name="naps")
def naps(times: int) -> None:
    raise Snooze(3600)
"""


@pytest.fixture
def working(tmp_path: Path) -> Iterator[tuple[Holdfast, str]]:
    """A worker of processes, and where it serves its metrics."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    (tmp_path / "metered.py").write_text(APP.format(url=url))
    log = tmp_path / "log"
    words = ["work", "metered:app", "--app-dir", str(tmp_path), "--runners", "1", "--slots", "3", "--metrics-port", "0"]
    with log.open("wb") as heard, Holdfast(url) as app:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *words], stderr=heard, stdout=heard, env=environment
        )
        try:
            where = wait_until(lambda: re.search(r"http://\S+/metrics", log.read_text()), PATIENCE_SECONDS)
            yield app, where[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)


def fetch(url: str) -> bytes:
    reply = httpx.get(url, timeout=PATIENCE_SECONDS)
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return reply.content


def test_a_worker_serves_what_it_did(working: tuple[Holdfast, str]) -> None:
    app, url = working
    assert url.startswith("http://127.0.0.1:"), "nobody else can read it unless told so"
    for _ in range(5):
        app.named("fine", queue="mail").enqueue()
    app.named("fails").enqueue()
    app.named("naps").enqueue(1)
    succeeded = ("holdfast_jobs_total", "succeeded", "mail", "fine")
    wait_until(lambda: samples(fetch(url)).get(succeeded) == 5, PATIENCE_SECONDS)  # else some would die with the next
    app.named("dies").enqueue()

    def all_ended() -> bytes | None:
        body = fetch(url)
        found = samples(body)
        dead = found.get(("holdfast_jobs_total", "dead", "default", "fails"), 0)
        stalls = found.get(("holdfast_job_stalls_total", "default", "dies"), 0)
        fine = found.get(succeeded, 0)
        naps = found.get(("holdfast_jobs_total", "snoozed", "default", "naps"), 0)
        swept = ("holdfast_worker_sweep_age_seconds", "prune") in found
        return body if (dead, stalls >= 2, fine, naps, swept) == (1, True, 5, 1, True) else None

    body = wait_until(all_ended, PATIENCE_SECONDS)
    found = samples(body)
    for name in ("holdfast_job_run_seconds", "holdfast_job_wait_seconds"):
        assert found[f"{name}_count", "mail", "fine"] == 5
        assert found[f"{name}_bucket", "+Inf", "mail", "fine"] == 5
        assert found[f"{name}_sum", "mail", "fine"] > 0
    assert found["holdfast_jobs_total", "dead", "mail", "never"] == 0, "a task that has not run is there"
    assert found["holdfast_job_run_seconds_count", "mail", "never"] == 0
    assert found["holdfast_worker_slots",] == 3
    assert found["holdfast_worker_paused",] == found["holdfast_worker_fenced",] == 0
    assert found["holdfast_store_call_seconds_count", "exchange"] > 0
    assert found["holdfast_store_call_errors_total", "exchange"] == 0
    assert found["holdfast_worker_renewal_age_seconds",] >= 0
    assert found["process_resident_memory_bytes",] > 1 << 20
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    ours = {name.removesuffix("_total") for name in WORKER_METRICS}
    assert {name for name in families if name.startswith("holdfast_")} == ours
    assert b"secret" not in body
    assert httpx.get(url.replace("/metrics", "/"), timeout=PATIENCE_SECONDS).status_code == 404


def lease(task: str, queue: str = "mail", started_at: float = 3.0) -> Lease:
    held = Lease(id="j", token="", task=task, queue=queue, args=b"", attempt=1, fence=1)
    return replace(held, due_at=1.0, started_at=started_at)


def test_durations_are_counted_in_buckets_with_their_sum() -> None:
    meter = Meter()
    meter.settled([lease("send"), lease("send", started_at=3.5)], "succeeded", 4.0)
    found = samples(worker_text(meter, {}, {}))
    assert found["holdfast_jobs_total", "succeeded", "mail", "send"] == 2
    assert found["holdfast_jobs_total", "dead", "mail", "send"] == 0, "there before the first one, which rate() sees"
    assert (
        found["holdfast_lost_leases_total", "mail", "send"] == found["holdfast_job_stalls_total", "mail", "send"] == 0
    )
    assert found["holdfast_job_run_seconds_sum", "mail", "send"] == 1.5
    assert found["holdfast_job_wait_seconds_sum", "mail", "send"] == 4.5
    runs = [found["holdfast_job_run_seconds_bucket", f"{bound:g}", "mail", "send"] for bound in BUCKET_BOUNDS]
    assert runs == [sum(run <= bound for run in (0.5, 1.0)) for bound in BUCKET_BOUNDS]
    assert (BUCKET_BOUNDS[0], BUCKET_BOUNDS[10]) == (0.001, 1.024)


def test_names_beyond_the_bound_are_counted_together() -> None:
    meter = Meter()
    for n in range(PAIRS_MAX + 50):
        meter.settled([lease(f"t{n}")], "failed", 4.0)
    meter.settled([lease("t0", queue="new")], "failed", 4.0)
    assert len(meter.runs) == PAIRS_MAX + 2
    assert meter.ended["mail", OTHER, "failed"] == 50
    assert meter.ended[OTHER, OTHER, "failed"] == 1
    assert sum(meter.ended.values()) == PAIRS_MAX + 51


def test_a_journal_counts_for_the_meter_whether_or_not_history_is_kept() -> None:
    for on in (True, False):
        journal = Journal()
        assert journal.counts
        journal.on, journal.meter = on, Meter()
        assert journal.counts
        journal.settled([lease("send")], Ending.SUCCEEDED, 4.0)
        journal.leases_lost([lease("send")])
        stalled = Recovered(
            id="j", task="send", queue="mail", group=None, state=State.READY, worker="w", stalls=1, counted=True
        )
        journal.recovered([stalled])
        assert journal.meter.ended == {("mail", "send", "succeeded"): 1, ("mail", "send", "stalled"): 1}
        assert journal.meter.lost == journal.meter.stalls == {("mail", "send"): 1}
        recording = journal.take("w", 1)
        if on:
            assert recording is not None
            assert {one.outcome: one.count for one in recording.rollups if one.task == "send"} == {
                "succeeded": 1,
                "stalled": 1,
                "lost": 1,
            }
        else:
            assert recording is None
    silent = Journal()
    silent.on = False
    assert not silent.counts, "then nobody counts at all"
