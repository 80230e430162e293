"""Links between the pages lead somewhere, every page can be reached, and no page names this or that machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.doc_pages import DOCS, PAGES, ROOT, anchors, links, name_of

INSIDE = [(page, link) for page in PAGES for link in links(page) if not re.match(r"[a-z]+:", link)]


def told(value: Path | str) -> str:
    return name_of(value) if isinstance(value, Path) else value


@pytest.mark.parametrize(("page", "link"), INSIDE, ids=told)
def test_the_link_leads_somewhere(page: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = page if not path else (page.parent / path).resolve()
    assert target.exists(), f"{name_of(page)} links to {link}, which is not there"
    if anchor:
        assert anchor in anchors(target), f"{name_of(page)} links to {link}; that page has no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if ":" not in link]
        waiting += [target for target in targets if target.exists() and target.is_file()]
    assert sorted(name_of(page) for page in set(DOCS.rglob("*.md")) - seen) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_opens_with_its_title_and_names_no_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert not re.search(r"/(?:home|root|tmp|Users)/|\bTODO\b|\bFIXME\b", text)
