"""A newcomer's first quarter of an hour: README and tutorial, line by line, in an environment with only the wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tests.docs.doc_pages import DOCS, ROOT, Block, blocks, console_lines

pytestmark = pytest.mark.timeout(300)

# Lines that are not for this run: the environment is made by the fixture, the two commands of the README are for a
# clone, and a worker without --drain runs until it is stopped.
ELSEWHERE = ("python3 -m venv", ". .venv", "pip install", "./demo", "./check")
FOREVER = "holdfast work shop:app"

# What the reader's terminal does: commands run in the same folder, between the lines typed into Python.
TERMINAL = """
import json, os, shlex, subprocess
def _typed(line):
    if line.startswith("export "):
        os.environ.update([line.removeprefix("export ").split("=", 1)])
        return
    words = shlex.split(line, comments=True)
    if "ID" in words:
        jobs = json.loads(subprocess.run(["holdfast", "jobs", "--json"], check=True, capture_output=True).stdout)
        words[words.index("ID")] = jobs["jobs"][0]["id"]
    print("$", line, flush=True)
    subprocess.run(words, check=True)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell in which an environment is active that has the wheel and its dependencies.

    The dependencies come from the environment of the tests, which saves a download."""
    folder = tmp_path_factory.mktemp("newcomer")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    home = folder / "venv"
    venv.create(home, symlinks=True, with_pip=False)
    outside = sys._base_executable  # type: ignore[attr-defined]  # of which typeshed knows nothing
    pip = [outside, "-m", "pip", "--python", str(home / "bin/python"), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    [site] = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return {**kept, "PATH": f"{home / 'bin'}:/usr/bin:/bin", "NO_COLOR": "1"}


def typed(block: Block) -> str:
    """A block as lines of the newcomer's session."""
    if block.language == "python" and block.file is None:
        return block.text
    if block.language == "console":
        lines = [line for line in console_lines(block) if not line.startswith(ELSEWHERE) and line != FOREVER]
        return "".join(f"_typed({line!r})\n" for line in lines)
    return ""


def follow(page: Path, folder: Path, environment: dict[str, str]) -> str:
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")
    session = TERMINAL + "".join(typed(block) for block in blocks(page) if block.note != "not run")
    done = subprocess.run(
        ["python", "-c", session], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_readme_leads_to_a_first_job(tmp_path: Path, environment: dict[str, str]) -> None:
    [example] = [block for block in blocks(ROOT / "README.md") if block.language == "python"][:1]
    (tmp_path / "hello.py").write_text(example.text, encoding="utf-8")
    for command in ("python hello.py", "holdfast enqueue hello.greet name=Ben", "holdfast work hello:app --drain"):
        words = command.split() + (["--app", "hello:app"] if " enqueue " in command else [])
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if command == "python hello.py":
            assert done.stdout == "hello Ann\n"
    counted = subprocess.run(
        ["holdfast", "jobs", "--url", "sqlite:///jobs.db", "--count", "--json", "succeeded"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(counted.stdout)["total"] == 2, "importing hello.py for the worker must not enqueue a third"


def test_the_tutorial_can_be_followed_from_top_to_bottom(tmp_path: Path, environment: dict[str, str]) -> None:
    printed = follow(DOCS / "tutorial.md", tmp_path, environment)
    for expected in ("hello Ann", "https://example.com after 3 attempts", "the card has expired", "no violations"):
        assert expected in printed
    assert str(ROOT) not in printed, "nothing comes from the source tree"
    assert printed.count("$ holdfast ") >= 10
