"""The program on a SQLite file of each test's own, with the worker in this process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from thumbnails import create_app
from thumbnails.jobs import jobs, shrink

from holdfast import Context, State

WIDTH, HEIGHT = 40, 20
IMAGE = b"P6\n%d %d\n255\n" % (WIDTH, HEIGHT) + bytes(range(240)) * 10


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Flask]:
    jobs.close()  # so that it can be pointed at another store
    made = create_app({"TESTING": True, "MEDIA": tmp_path, "HOLDFAST_URL": f"sqlite:///{tmp_path}/jobs.db"})
    yield made
    jobs.close()


def upload(app: Flask, image: bytes = IMAGE) -> tuple[str, str]:
    answer = app.test_client().post("/images?width=10", data=image)
    assert answer.status_code == 202
    document = answer.get_json()
    return document["job"], document["image"]


def test_an_upload_becomes_a_thumbnail(app: Flask) -> None:
    job_id, image = upload(app)
    client = app.test_client()
    assert client.get(f"/jobs/{job_id}").get_json()["state"] == "ready"
    assert client.get(f"/thumbnails/{image}").status_code == 404
    assert jobs.work(drain=True).succeeded == 1
    status = client.get(f"/jobs/{job_id}").get_json()
    assert (status["state"], status["progress"], status["text"]) == ("succeeded", 1.0, "100% of the rows")
    small = client.get(f"/thumbnails/{image}").get_data()
    assert small.startswith(b"P6\n10 5\n255\n")
    assert len(small) == len(b"P6\n10 5\n255\n") + 10 * 5 * 3


def test_what_is_no_image_is_not_tried_again(app: Flask) -> None:
    job_id, _ = upload(app, b"hello")
    jobs.work(drain=True)
    status = app.test_client().get(f"/jobs/{job_id}").get_json()
    assert (status["state"], status["error"]) == ("dead", "this is not a binary PPM image with 255 shades")
    assert jobs.job(job_id).attempts == 1


def test_a_waiting_job_is_cancelled_at_once(app: Flask) -> None:
    job_id, image = upload(app)
    assert app.test_client().post(f"/jobs/{job_id}/cancel").get_json() == {"state": "cancelled"}
    assert jobs.work(drain=True).succeeded == 0
    assert app.test_client().get(f"/thumbnails/{image}").status_code == 404


def test_a_running_job_stops_at_the_next_row(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, image = upload(app)
    begun, report = threading.Event(), Context.progress

    def report_and_wait(ctx: Context, fraction: float | None, text: str | None = None) -> None:
        report(ctx, fraction, text)
        begun.set()
        for _ in range(3000):  # until the worker has heard of the cancel: half a minute at most
            if ctx.cancelled:
                return
            threading.Event().wait(0.01)

    monkeypatch.setattr(Context, "progress", report_and_wait)
    worker = threading.Thread(target=lambda: jobs.work(drain=True, lease=3))
    worker.start()
    assert begun.wait(30)
    assert app.test_client().post(f"/jobs/{job_id}/cancel").status_code == 200
    worker.join(60)
    assert jobs.job(job_id).state is State.CANCELLED
    assert app.test_client().get(f"/thumbnails/{image}").status_code == 404


def test_a_worker_in_processes_of_its_own_has_the_flask_app_too(app: Flask, tmp_path: Path) -> None:
    job_id, image = upload(app)
    command = [sys.executable, "-m", "holdfast.cli", "work", "thumbnails.worker:jobs", "--drain", "--runners", "1"]
    ended = subprocess.run(command, env={**os.environ, "MEDIA": str(tmp_path)}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert jobs.job(job_id).value == f"{image}.small.ppm"


def test_what_is_not_there(app: Flask) -> None:
    client = app.test_client()
    paths = ["/jobs/none", "/thumbnails/none", "/thumbnails/" + "0" * 32]
    assert [client.get(path).status_code for path in paths] == [404, 404, 404]
    assert client.post("/jobs/none/cancel").status_code == 404
    assert shrink.bind("x").queue == "images"
