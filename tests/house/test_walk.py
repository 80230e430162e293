"""The walk of one job, counted: the files it passes from enqueue to settled are those that the page about it names."""

from __future__ import annotations

import asyncio
import gc
import re
import runpy
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
PAGE = ROOT.parent.parent / "docs/internals/walk-of-a-job.md"
DEADLINE_SECONDS = 60
# Timers that run beside every job. What they call does not count, whenever the machine lets them run.
BESIDE = {
    "worker/keeper/lease_renewal.py",
    "worker/keeper/watchdog.py",
    "worker/keeper/sweeps.py",
    "worker/keeper/cron_ticker.py",
    "worker/keeper/reports.py",
    "InProcessRunners.watch_forever",
}
FILES_MAX = 22


class Walk:
    """The files of the package in which a function was called, in order, while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.files: dict[str, str] = {}  # and the first function

    def hook(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call" and (file := _file_of(frame)) and file not in self.files:
            above: FrameType | None = frame
            while above is not None:
                if BESIDE & {_file_of(above), above.f_code.co_qualname}:
                    return
                above = above.f_back
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


def _file_of(frame: FrameType) -> str:
    path, folder = frame.f_code.co_filename, f"{ROOT}/"
    return path[len(folder) :] if path.startswith(folder) else ""


def walk_of_a_grouped_job(url: str) -> Walk:
    """Run a first job, which opens and imports what is needed, then count the second from enqueue to settled."""
    walk = Walk()
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
        # An hour's lease and no sweeps: nothing but the job is due while it runs.
        async with app.worker(slots=2, lease=3600, sweep_every=None):
            await asyncio.to_thread(run_one, count=False)
            await asyncio.to_thread(run_one, count=True)

    with walk.watching():
        try:
            asyncio.run(work())
        finally:
            app.close()
    return walk


def named_on_the_page(store: str) -> list[str]:
    """The list of a store in the section "The files, counted"."""
    found = re.search(rf"^\* \*\*{store}\*\*, (\d+) files: (.*?)(?=^\* |^$)", PAGE.read_text(), re.M | re.S)
    assert found, f"{PAGE.name} does not list the files for {store}"
    files = re.findall(r"`([\w/.]+)`", found[2])
    assert len(files) == int(found[1])
    return files


@pytest.mark.parametrize("store", ["SQLite", "memory"])
def test_a_job_passes_no_more_files_than_the_page_about_its_walk_names(store: str, tmp_path: Path) -> None:
    walk = walk_of_a_grouped_job("memory://" if store == "memory" else f"sqlite:///{tmp_path}/jobs.db")
    print(f"{store}: {len(walk.files)} files\n{walk}")
    assert len(walk.files) <= FILES_MAX, f"{len(walk.files)} files on {store}:\n{walk}"
    assert set(walk.files) == set(named_on_the_page(store)), f"{PAGE.name} lists others for {store}:\n{walk}"


def test_the_picture_of_the_walk_is_current_and_shows_the_same_files() -> None:
    drawing = runpy.run_path(str(PAGE.parents[1] / "draw_walk.py"))
    assert drawing["PICTURE"].read_text() == drawing["drawn"](), "Run: python docs/draw_walk.py"
    assert {file for step in drawing["STEPS"] for file in step.files} == set(named_on_the_page("SQLite"))
