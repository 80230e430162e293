"""The documentation site builds without a warning, loads nothing from elsewhere, and its pictures are the code's."""

from __future__ import annotations

import html
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from tests.docs.doc_pages import DOCS, PAGES, ROOT, name_of
from tests.docs.test_doc_commands import parse

from holdfast.cli.main import cli

PICTURES = sorted(DOCS.rglob("*.svg"))
LOADS = re.compile(r"""(?:src|srcset|href|url|@import)\s*[=(]?\s*["']?((?:https?:)?//[^"')\s>]+)""")


def built(project: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=project,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Every broken link or anchor and every page missing from the navigation is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = built(ROOT, folder)
    assert done.returncode == 0, f"see the navigation in mkdocs.yml\n{done.stdout}{done.stderr}"
    return folder


def test_a_page_that_the_navigation_lacks_and_a_broken_link_stop_the_build(tmp_path: Path) -> None:
    """--strict counts warnings, and --quiet would keep it from seeing any."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[two](nowhere.md)\n", encoding="utf-8")
    (tmp_path / "docs" / "lost.md").write_text("# Lost\n", encoding="utf-8")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav:\n  - index.md\n", encoding="utf-8")
    done = built(tmp_path, tmp_path / "site")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "lost.md" in done.stderr
    assert "nowhere.md" in done.stderr


def text_of(page: Path) -> str:
    """What a reader sees of a built page outside of code."""
    article = re.search(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.S)
    assert article, page
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<(pre|code)\b.*?</\1>", "", article[0], flags=re.S)))


def test_every_page_becomes_one_of_the_site_that_can_be_searched(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        folder = page.relative_to(DOCS).with_suffix("").as_posix().removesuffix("index")
        assert (site / folder / "index.html").exists(), folder
        assert f'"location":"{folder}{"/" if folder and not folder.endswith("/") else ""}"' in index, folder


def test_the_site_reads_our_markdown_as_a_code_host_does(site: Path) -> None:
    """Lists, tables and fences that need a blank line or a deeper indent there would show up as their own text."""
    raw = re.compile(r"\s*(?:\* |\|)|.*(?:```|\]\(|\*\*)")
    for page in site.rglob("index.html"):
        assert [line for line in text_of(page).splitlines() if raw.match(line)] == [], page.relative_to(site)


def test_viewing_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        head = page.read_text(encoding="utf-8")
        loading = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", head)
        assert [tag for tag in loading if LOADS.search(tag) and 'rel="canonical"' not in tag] == [], page
        assert 'class="mermaid"' not in head, f"{page}: the site would load mermaid from elsewhere; draw an SVG"


@pytest.mark.parametrize("picture", PICTURES, ids=name_of)
def test_a_picture_is_small_scales_and_loads_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)  # noqa: S314 (our own file)
    assert root.tag.endswith("}svg")
    assert root.get("viewBox"), "it does not scale to the page"
    assert not LOADS.search(text.replace('="http://www.w3.org/2000/svg"', ""))
    assert "<script" not in text
    assert len(text) < 80_000


def test_every_picture_is_shown_on_a_page() -> None:
    shown = {
        name for page in PAGES for name in re.findall(r"!\[[^\]]+\]\([^)]*?([\w-]+\.svg)\)", page.read_text("utf-8"))
    }
    assert sorted(picture.name for picture in PICTURES if picture.name not in shown) == []


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("draw_terminal")


def test_every_terminal_picture_shows_a_command_we_have(terminal: ModuleType) -> None:
    assert {picture.stem for picture in PICTURES if picture.stem.startswith("terminal-")} == set(terminal.SCREENS)
    for name, command in terminal.SCREENS.items():
        parse(command.split(), cli)
        shown = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
        assert f"<title>{command}</title>" in shown, "Run: python docs/draw_terminal.py"


@pytest.fixture
def lifecycle(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("draw_lifecycle")


def test_the_picture_of_the_life_of_a_job_is_the_codes(lifecycle: ModuleType) -> None:
    assert lifecycle.PICTURE.read_text(encoding="utf-8") == lifecycle.drawn(), "Run: python docs/draw_lifecycle.py"


def test_every_transition_is_at_one_arrow_of_it(lifecycle: ModuleType) -> None:
    shown = [step for arrow in lifecycle.ARROWS for step in lifecycle.of_arrow(arrow)]
    assert len(shown) == len(set(shown))
    assert set(shown) == set(lifecycle.steps())
