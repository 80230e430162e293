"""Loads a backend's statements from files named by verb, split into named parts.

Called once by each backend at import. Refuses a missing file, a stray file, a part defined twice or a file without
its opening comment, so that the folder and the contract cannot drift apart. Never touches a database.

A file opens with comments (purpose, takes, returns, what makes it safe against a rival); each part begins with a line
`-- :: name`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import resources

from ..lifecycle import FAILURE_TEXTS

PART_MARK = "-- :: "
_TEXT = re.compile(r"'text:(\w+)'")


class StatementsBroken(RuntimeError):
    """The statement files shipped with the package are not the ones the code expects: a damaged installation."""


def with_texts(text: str) -> str:
    """What a store writes into histories, in the words of lifecycle.py: 'text:NAME' stands for them."""
    return _TEXT.sub(lambda found: f"'{FAILURE_TEXTS[found[1]]}'", text)


def split_parts(name: str, text: str) -> dict[str, str]:
    """The named parts of one file, comments of the opening left out."""
    if not text.startswith("-- "):
        raise StatementsBroken(f"{name} must open with a comment that says its purpose")
    parts: dict[str, str] = {}
    current: str | None = None
    lines: list[str] = []
    for line in [*text.splitlines(), PART_MARK]:
        if not line.startswith(PART_MARK):
            lines.append(line)
            continue
        if current is not None:
            body = "\n".join(lines).strip().rstrip(";")
            if current in parts or not body:
                raise StatementsBroken(f"{name} defines the part {current!r} twice or empty")
            parts[current] = body
        current, lines = line[len(PART_MARK) :].strip(), []
    if not parts:
        raise StatementsBroken(f"{name} has no part")
    return parts


def load_statements(package: str, verbs: Iterable[str], suffix: str = ".sql") -> Mapping[str, str]:
    """All statements of a package as {"verb.part": text}; exactly the files of `verbs` must be there."""
    folder = resources.files(package)
    found = {entry.name.removesuffix(suffix): entry for entry in folder.iterdir() if entry.name.endswith(suffix)}
    wanted = set(verbs)
    if set(found) != wanted:
        missing, stray = sorted(wanted - set(found)), sorted(set(found) - wanted)
        raise StatementsBroken(f"{package}: missing {missing}, stray {stray}. Reinstall holdfast.")
    return {
        f"{verb}.{part}": sql
        for verb, entry in found.items()
        for part, sql in split_parts(entry.name, with_texts(entry.read_text(encoding="utf-8"))).items()
    }
