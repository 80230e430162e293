"""Every Python block in README and docs runs as shown, page by page; the tutorial's commands run too."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.doc_pages import PAGES, ROOT, Block, blocks, console_lines, name_of

SECONDS_MAX = 60
PRINTS = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)  # what the page says is printed
NOT_RUN_MAX = 12  # few blocks may be exempt, each with its reason


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "SYSTEMROOT") if name in os.environ}
    here = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": here, "HOLDFAST_URL": f"sqlite:///{folder / 'jobs.db'}", "NO_COLOR": "1"}


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def save_files(page: Path, folder: Path) -> None:
    """Blocks that open with `# name.py` are files: the page says to save them."""
    for block in python_blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")


def program(page: Path) -> str:
    """The page's other blocks as one program whose line numbers are the page's."""
    lines = [""] * page.read_text(encoding="utf-8").count("\n")
    for block in python_blocks(page):
        if block.file is None and block.note != "not run":
            for place, line in enumerate(block.text.splitlines()):
                lines[block.line - 1 + place] = line
    return "\n".join(lines) + "\n"


WITH_PYTHON = [page for page in PAGES if page.exists() and python_blocks(page)]
WITH_COMMANDS = [page for page in PAGES if page.exists() and any(block.note == "run" for block in blocks(page))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    save_files(page, tmp_path)
    script = tmp_path / f"{page.stem.lower().replace('-', '_')}_page.py"
    script.write_text(program(page), encoding="utf-8")
    printed = iter(run([sys.executable, str(script)], tmp_path).splitlines())
    for promised in PRINTS.findall(program(page)):
        wanted = promised.removesuffix("…")
        assert any(line.startswith(wanted) for line in printed), f"{promised!r} is not printed, or not in that order"


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_commands_marked_to_run_do_run(page: Path, tmp_path: Path) -> None:
    save_files(page, tmp_path)
    for block in blocks(page):
        if block.language == "console" and block.note == "run":
            for line in console_lines(block):
                run(shlex.split(line, comments=True), tmp_path)


def test_few_blocks_are_exempt_and_each_says_why() -> None:
    exempt = [block for page in PAGES for block in python_blocks(page) if block.note == "not run"]
    assert len(exempt) <= NOT_RUN_MAX
    assert [f"{name_of(block.page)}:{block.line}" for block in exempt if not block.why] == []


def test_every_block_names_its_language() -> None:
    silent = [f"{name_of(block.page)}:{block.line}" for page in PAGES for block in blocks(page) if not block.language]
    assert silent == []


def test_the_readme_shows_a_job_in_ten_lines() -> None:
    first = python_blocks(ROOT / "README.md")[0]
    assert len([line for line in first.text.splitlines() if line.strip()]) <= 10
