"""The walk of one job, counted: the files it passes from enqueue to settled are those that the page about it names."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast.backends.redis.assembler import load_scripts
from holdfast.backends.redis.scripts import SCRIPTS
from holdfast.backends.sqlite.codec import SQL

from ..servers.postgres import shared_server as shared_postgres
from ..servers.valkey import shared_server as shared_valkey
from .walk_hook import ROOT, file_of, is_beside

REPOSITORY = Path(ROOT).parents[1]
PAGE = REPOSITORY / "docs/internals/walk-of-a-job.md"
DEADLINE_SECONDS = 60
EMBEDDED_MAX = 20
PROCESSES_MAX = 28


class Walk:
    """The files of the package in which a function was called, in order, while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.files: dict[str, str] = {}  # and the first function

    def hook(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.on or event != "call":
            return
        file = file_of(frame)
        if file and file not in self.files and file != "lazy.py" and not is_beside(frame):  # a sweep's first import
            self.files[file] = frame.f_code.co_qualname

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In this thread and in those that it starts. No garbage of other tests is collected meanwhile."""
        gc.disable()
        threading.setprofile(self.hook)
        sys.setprofile(self.hook)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            gc.enable()

    def __str__(self) -> str:
        return "\n".join(f"{n:3} {file} ({name})" for n, (file, name) in enumerate(self.files.items(), 1))


def walk_of_a_grouped_job(url: str) -> Walk:
    """Run two jobs, which open, import and assemble what is needed, then count the third from enqueue to settled."""
    walk = Walk()
    for name in SQL.names:  # which statements the first jobs use depends on what happens at once
        assert SQL[name]
    app = holdfast.Holdfast(url)
    settled = threading.Event()

    @app.task(name="greet", group=lambda who: who)
    def greet(who: str) -> str:
        return f"hello {who}"

    @app.on("succeeded")
    def end(_: holdfast.Event) -> None:
        settled.set()

    def run_one(count: bool) -> None:
        settled.clear()
        walk.on = count
        greet.enqueue("ann")
        assert settled.wait(DEADLINE_SECONDS)
        walk.on = False

    async def work() -> None:
        # An hour's lease, no sweeps, no history: nothing but the job is due while it runs, however long it takes.
        async with app.worker(slots=2, lease=3600, sweep_every=None, history=False):
            for count in (False, False, True):
                await asyncio.to_thread(run_one, count=count)

    with walk.watching():
        try:
            asyncio.run(work())
        finally:
            app.close()
    return walk


def named_on_the_page(store: str) -> list[str]:
    """The list of a store in the section "The files, counted"."""
    found = re.search(rf"^\* \*\*{re.escape(store)}\*\*, (\d+) files: (.*?)(?=^\* |^$)", PAGE.read_text(), re.M | re.S)
    assert found, f"{PAGE.name} does not list the files for {store}"
    files = re.findall(r"`([\w/.]+)`", found[2])
    assert len(files) == int(found[1])
    return files


def url_of(store: str, folder: Path) -> str:
    if store == "PostgreSQL":
        return shared_postgres().url("walk")
    if store == "Redis":
        with shared_valkey().client() as client:  # likewise: a script that this server does not know is assembled
            for verb, script in load_scripts().items():
                client.script_load(script.text)
                assert SCRIPTS[verb].sha == script.sha
        return shared_valkey().url()
    return "memory://" if store == "memory" else f"sqlite:///{folder}/jobs.db"


@pytest.mark.parametrize("store", ["SQLite", "memory", "PostgreSQL", "Redis"])
def test_a_job_passes_no_more_files_than_the_page_about_its_walk_names(store: str, tmp_path: Path) -> None:
    walk = walk_of_a_grouped_job(url_of(store, tmp_path))
    print(f"{store}: {len(walk.files)} files\n{walk}")
    assert len(walk.files) <= EMBEDDED_MAX, f"{len(walk.files)} files on {store}:\n{walk}"
    assert set(walk.files) == set(named_on_the_page(store)), f"{PAGE.name} lists others for {store}:\n{walk}"


PROGRAM = """
import walk_hook
from holdfast import Holdfast

app = Holdfast("URL")

@app.task(name="greet", group=lambda who: who)
def greet(who: str) -> str:
    return f"hello {who}"
"""
COMMAND = "import walk_hook; from holdfast.cli.main import main; main()"


def walk_with_processes(url: str, folder: Path) -> list[str]:
    """The files of the process that enqueues and of all of `holdfast work` while a second job passes."""
    (folder / "program.py").write_text(PROGRAM.replace("URL", url))
    notes = folder / "notes"
    notes.mkdir()
    path = os.pathsep.join([str(folder), str(Path(__file__).parent), str(Path(ROOT).parent)])
    environment = {**os.environ, "PYTHONPATH": path, "HOLDFAST_WALK": str(notes)}
    arguments = ["work", "program:app", "--runners", "1", "--slots", "2", "--lease", "1h", "--log-jobs", "none"]
    walk, app = Walk(), holdfast.Holdfast(url)

    @app.task(name="greet", group=lambda who: who)
    def greet(who: str) -> str:
        raise AssertionError(who)

    with subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], cwd=folder, env=environment) as worker:
        try:
            greet.enqueue("ann").result(timeout=DEADLINE_SECONDS)
            began = time.monotonic()
            with walk.watching():
                walk.on = True
                job = greet.enqueue("ann")
                walk.on = False
            job.result(timeout=DEADLINE_SECONDS)
            ended = time.monotonic()
        finally:
            worker.send_signal(signal.SIGTERM)
            app.close()
    files = dict.fromkeys(walk.files)
    for process in notes.iterdir():
        for file, times in json.loads(process.read_text()).items():
            if any(began <= at <= ended for at in times):
                files[file] = None
    return list(files)


def test_a_job_of_holdfast_work_passes_no_more_files_than_the_page_about_its_walk_names(tmp_path: Path) -> None:
    files = walk_with_processes(url_of("SQLite", tmp_path), tmp_path)
    listed = "\n".join(files)
    print(f"holdfast work: {len(files)} files\n{listed}")
    named = named_on_the_page("`holdfast work` on SQLite")
    assert len(named) <= PROCESSES_MAX
    assert set(files) <= set(named), f"{PAGE.name} lists others:\n{listed}"


def test_the_picture_of_the_walk_is_current_and_shows_the_same_files() -> None:
    drawing = runpy.run_path(str(PAGE.parents[1] / "draw_walk.py"))
    assert drawing["PICTURE"].read_text() == drawing["drawn"](), "Run: python docs/draw_walk.py"
    assert {file for step in drawing["STEPS"] for file in step.files} == set(named_on_the_page("SQLite"))
