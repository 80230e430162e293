"""Loads a backend's statements from files named by verb, split into named parts.

Called once by each backend at import. Refuses a missing file, a stray file, a part defined twice or a file without
its opening comment, so that the folder and the contract cannot drift apart. Never touches a database.

A file opens with comments (purpose, inputs, outputs, what makes it safe against concurrent callers); each part begins
with a line `-- :: name`. If several statements of the contract share a file, each has its own section, which begins
with a line `-- == verb: purpose`. A part's name is "verb.name": the verb of its section, else of its file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import resources

from ..lifecycle import FAILURE_TEXTS

PART_MARK = "-- :: "
SECTION_MARK = "-- == "
_TEXT = re.compile(r"'text:(\w+)'")


class StatementsBroken(RuntimeError):
    """The packaged statement files are not the ones the code expects: a damaged installation."""


def with_texts(text: str) -> str:
    """Replace 'text:NAME' by the failure texts of lifecycle.py, which stores write into histories."""
    return _TEXT.sub(lambda found: f"'{FAILURE_TEXTS[found[1]]}'", text)


def split_parts(verb: str, text: str) -> dict[str, str]:
    """The parts of one file as {"verb.part": text}, without the comments of file and sections."""
    if not text.startswith("-- "):
        raise StatementsBroken(f"{verb} must open with a comment that says its purpose")
    parts: dict[str, str] = {}
    current: str | None = None
    lines: list[str] = []
    for line in [*text.splitlines(), PART_MARK]:
        if not line.startswith((PART_MARK, SECTION_MARK)):
            lines.append(line)
            continue
        if current is not None:
            body = "\n".join(lines).strip().rstrip(";")
            if current in parts or not body:
                raise StatementsBroken(f"the part {current!r} is defined twice or empty")
            parts[current] = body
        current, lines = None, []
        if line.startswith(SECTION_MARK):
            verb = line[len(SECTION_MARK) :].partition(":")[0]
        else:
            current = f"{verb}.{line[len(PART_MARK) :].strip()}"
    if not parts:
        raise StatementsBroken(f"{verb} has no part")
    return parts


def load_statements(package: str, files: Iterable[str], suffix: str = ".sql") -> Mapping[str, str]:
    """All statements of a package as {"verb.part": text}; the folder must contain exactly these files."""
    folder = resources.files(package)
    found = {entry.name.removesuffix(suffix): entry for entry in folder.iterdir() if entry.name.endswith(suffix)}
    wanted = set(files)
    if set(found) != wanted:
        missing, stray = sorted(wanted - set(found)), sorted(set(found) - wanted)
        raise StatementsBroken(f"{package}: missing {missing}, stray {stray}. Reinstall holdfast.")
    statements: dict[str, str] = {}
    for name, entry in found.items():
        parts = split_parts(name, with_texts(entry.read_text(encoding="utf-8")))
        if twice := parts.keys() & statements.keys():
            raise StatementsBroken(f"{package}: two files define {sorted(twice)}")
        statements |= parts
    return statements
