"""The pages of the documentation taken apart: code blocks, console lines, links, headings, tables.

Used by the tests beside it. Reads Markdown as our own pages write it (fenced blocks at the left margin) and nothing
more; what it does not understand it reports instead of skipping.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(DOCS.rglob("*.md"))

_FENCE = re.compile(r"^```(\w*)\s*$")
_NOTE = re.compile(r"^<!-- (not run|run): ?(.*?) ?-->$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the line its first line stands on, its text, and the note before it."""

    page: Path
    language: str
    line: int
    text: str
    note: str = ""  # "not run" or "run"
    why: str = ""

    @property
    def file(self) -> str | None:
        """The file this block is meant to be saved as: its first line is `# name.py`."""
        found = re.match(r"# ([a-z_]+\.py)\n", self.text)
        return found[1] if found else None


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    opened: tuple[str, int] | None = None
    note, why = "", ""
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if fence and opened is None:
            opened = (fence[1], number + 1)
        elif line == "```" and opened is not None:
            language, start = opened
            text = "".join(f"{inner}\n" for inner in lines[start - 1 : number - 1])
            yield Block(page, language, start, text, note, why)
            opened, note, why = None, "", ""
        elif opened is None and line.strip():
            marked = _NOTE.match(line.strip())
            note, why = (marked[1], marked[2]) if marked else ("", "")
    assert opened is None, f"{name_of(page)}: the block opened on line {opened and opened[1] - 1} is never closed"


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def links(page: Path) -> list[str]:
    """Targets of a page's links, fenced blocks left out."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors a page's headings make, as GitHub spells them."""
    headings = re.findall(r"^#{1,6} (.+)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def console_lines(block: Block) -> list[str]:
    """The commands of a console block: lines after `$ `, continued by a backslash."""
    joined = block.text.replace("\\\n", " ")
    return [line.removeprefix("$ ").strip() for line in joined.splitlines() if line.startswith("$ ")]


def section(page: Path, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, flags=re.M)
    assert found, f"{name_of(page)} has no heading {heading!r}"
    rest = text[found.end() :]
    after = re.search(rf"^#{{1,{len(found[1])}}} ", rest, flags=re.M)
    return rest[: after.start()] if after else rest


def rows(text: str) -> list[list[str]]:
    """The body rows of the Markdown tables in a text, each as its cells."""
    table = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in table]
    return [row for row in cells if not set("".join(row)) <= set("-: ")]


def mentions(text: str, name: str) -> bool:
    """Whether a text names something, in code style: `name`, `app.name(…)`, `--name`."""
    return re.search(rf"`[^`\n]*(?<![\w-]){re.escape(name)}(?![\w-])[^`\n]*`", text) is not None
