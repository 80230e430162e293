"""The log of `holdfast work`: handlers' records, crashes, and the options about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast

PROGRAM = """
import logging, os, sys
from holdfast import Context, Holdfast

app = Holdfast("URL")
log = logging.getLogger("shop")
LOGGING

@app.task(name="shared")
def shared(word: str) -> None:
    log.info("info of %s", "shared", extra={"size": 3})
    log.debug("debug")
    print("printed")

@app.task(name="alone", isolation="process")
def alone(word: str) -> None:
    log.warning("warning of alone")
    print("printed")

@app.task(name="crash", max_stalls=0, queue="crash")
def crash(word: str) -> None:
    os._exit(9)
"""


def work(folder: Path, queue: str, *words: str, logging: str = "") -> str:
    """What `holdfast work --drain` writes on stderr."""
    (folder / "shop.py").write_text(PROGRAM.replace("URL", url(folder)).replace("LOGGING", logging))
    command = [sys.executable, "-m", "holdfast.cli", "work", "shop:app", "--drain", "--runners", "1", "-q", queue]
    ended = subprocess.run(
        [*command, *words], cwd=folder, env={**os.environ}, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db"


def enqueue(folder: Path, *tasks: str, **settings: Any) -> list[str]:
    with Holdfast(url(folder)) as app:
        return [app.named(task, **settings).enqueue(word="hunter2").id for task in tasks]


def job_log(folder: Path, job_id: str) -> list[str]:
    with Holdfast(url(folder)) as app:
        return [line.text for line in app.logs(job_id)]


def test_records_of_handlers_reach_both_logs_in_every_kind_of_runner(tmp_path: Path) -> None:
    shared, alone = enqueue(tmp_path, "shared", "alone")
    said = work(tmp_path, "default", "--log-format", "json")
    records = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    found = {record["message"]: record for record in records if record["logger"] == "shop"}
    assert set(found) == {"info of shared", "warning of alone"}
    assert (found["info of shared"]["job_id"], found["info of shared"]["size"]) == (shared, 3)
    assert (found["warning of alone"]["job_id"], found["warning of alone"]["level"]) == (alone, "warning")
    assert job_log(tmp_path, shared) == ["INFO shop: info of shared", "printed"]
    assert sorted(job_log(tmp_path, alone)) == ["WARNING shop: warning of alone", "printed"]
    ends = [record for record in records if record.get("event") == "succeeded"]
    assert {record["job_id"] for record in ends} == {shared, alone}
    assert all(record["run_seconds"] >= 0 and record["wait_seconds"] >= 0 for record in ends)
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("words", "shown"),
    [((), {"info of shared"}), (("-v",), {"info of shared", "debug"}), (("--log-level", "warning"), set())],
)
def test_the_level_holds_for_worker_and_handlers(tmp_path: Path, words: tuple[str, ...], shown: set[str]) -> None:
    [shared] = enqueue(tmp_path, "shared")
    said = work(tmp_path, "default", *words, "--log-jobs", "none")
    assert {text for text in ("info of shared", "debug") if f"shop: {text} [job {shared} (shared)]" in said} == shown
    assert len([line for line in job_log(tmp_path, shared) if "printed" not in line]) == len(shown)
    assert "succeeded on" not in said and ("started: queues" in said) == (words != ("--log-level", "warning"))


def test_logging_that_the_program_set_up_stays_as_it_is(tmp_path: Path) -> None:
    [shared] = enqueue(tmp_path, "shared")
    said = work(tmp_path, "default", logging='logging.basicConfig(level="INFO", format="<<%(message)s>>")')
    assert "<<info of shared>>" in said
    assert job_log(tmp_path, shared) == ["INFO shop: info of shared", "printed"]


def test_a_crash_is_one_message(tmp_path: Path) -> None:
    [job] = enqueue(tmp_path, "crash", queue="crash", max_stalls=0)
    said = work(tmp_path, "crash")
    about = said[said.index("ERROR") :].splitlines()
    assert "ended with exit code 9 while running 1 job:" in about[0] and "wait status" not in said
    assert (
        f"job {job} (crash), attempt 1" in about[1] and f"it is dead now; `holdfast job {job}` shows more" in about[1]
    )
    assert said.count(job) == 3  # its start, and the two in that message
