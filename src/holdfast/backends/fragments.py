"""Loads a backend's statements from files named by verb, split into named parts and assembled from fragments.

Called once by each backend at import. Refuses a missing file, a stray file, a part defined twice or a file without
its opening comment, so that the folder and the contract cannot drift apart. A statement is assembled when it is first
used: a producer needs few of them. Never touches a database.

A file opens with comments (purpose, inputs, outputs, what makes it safe against concurrent callers); each part begins
with a line `-- :: name`. If several statements of the contract share a file, each has its own section, which begins
with a line `-- == verb: purpose`. A part's name is "verb.name": the verb of its section, else of its file.

Text that several statements of a store share is a fragment: a part `-- :: fragment name(parameter, …)`, whose
text replaces every `@name(argument, …)` of the store when a statement is assembled; within it, `@parameter` is the
argument. `@NAME` in capitals is the constant of that name in records, rates, lifecycle, dependencies or steps. So the
database receives plain text and plans it as if it had been written there: it costs nothing at run time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from .. import dependencies, lifecycle, rates, records, steps, worker_status
from ..lifecycle import FAILURE_TEXTS

PART_MARK = "-- :: "
SECTION_MARK = "-- == "
_MARK = re.compile(rf"^({PART_MARK}|{SECTION_MARK})(.*)$", re.M)
_TEXT = re.compile(r"'text:(\w+)'")
_FRAGMENT = re.compile(r"fragment (\w+)(?:\((\w+(?:, \w+)*)\))?")
_USE = re.compile(r"@(\w+)")
_CONSTANTS_OF = (records, rates, lifecycle, worker_status, dependencies, steps)


class StatementsBroken(RuntimeError):
    """The packaged statement files are not the ones the code expects: a damaged installation."""


class Fragment(NamedTuple):
    """A named piece of SQL, and the names of its parameters."""

    parameters: tuple[str, ...]
    text: str


class Statements(dict[str, str]):
    """The statements of a store by "verb.part". Holds those already used; a fragment is filled in at first use."""

    def __init__(self, parts: Mapping[str, str]) -> None:
        self._fragments: dict[str, Fragment] = {}
        self._used: set[str] = set()
        self._parts = {name: text for name, text in parts.items() if ".fragment " not in name}
        for name, text in parts.items():
            found = _FRAGMENT.fullmatch(name.partition(".")[2])
            if found is None:
                continue
            if found[1] in self._fragments:
                raise StatementsBroken(f"the fragment {found[1]!r} is defined twice")
            code = re.sub(r"\A(?:--.*\n)+", "", text)
            self._fragments[found[1]] = Fragment(tuple((found[2] or "").split(", ")) if found[2] else (), code)

    def __missing__(self, name: str) -> str:
        filled = self[name] = self.fill(self._parts[name])
        return filled

    @property
    def names(self) -> Iterable[str]:
        """The names of all statements, used or not."""
        return self._parts

    def check(self) -> None:
        """Assemble all of them: every name must be known and every fragment used. For tests: it costs milliseconds."""
        for text in self._parts.values():
            self.fill(text)
        if unused := self._fragments.keys() - self._used:
            raise StatementsBroken(f"fragments that no statement uses: {sorted(unused)}")

    def fill(self, text: str, given: Mapping[str, str] | None = None) -> str:
        """Return this text with the fragments, parameters and constants it names filled in."""
        filled, end = "", 0
        while (use := _USE.search(text, end)) is not None:
            filled += text[end : use.start()]
            name, end = use[1], use.end()
            if given is not None and name in given:
                filled += given[name]
            elif name.isupper():
                filled += _constant(name)
            elif name in self._fragments:
                self._used.add(name)
                parameters, code = self._fragments[name]
                arguments: list[str] = []
                if parameters:
                    arguments, end = _arguments(text, end)
                if len(arguments) != len(parameters):
                    raise StatementsBroken(f"@{name} takes {parameters}, not {arguments}")
                values = [self.fill(argument, given) for argument in arguments]
                line = filled.rpartition("\n")[2]
                indent = line[: len(line) - len(line.lstrip())]
                filled += self.fill(code, dict(zip(parameters, values, strict=True))).replace("\n", f"\n{indent}")
            else:
                raise StatementsBroken(f"nothing is named @{name}")
        return filled + text[end:]


def _arguments(text: str, start: int) -> tuple[list[str], int]:
    """The arguments in the parentheses that begin here, and where they end."""
    depth, begin, found = 0, start + 1, list[str]()
    for place in range(start, len(text)):
        if text[place] == "(":
            depth += 1
        elif text[place] == ")":
            depth -= 1
        if (text[place] == "," and depth == 1) or depth == 0:
            found.append(text[begin:place].strip())
            begin = place + 1
        if depth == 0:
            return found, begin
    raise StatementsBroken(f"a parenthesis is not closed: {text[start:]}")


def _constant(name: str) -> str:
    value = next((vars(module)[name] for module in _CONSTANTS_OF if name in vars(module)), None)
    if value is None:
        raise StatementsBroken(f"no constant is named {name}")
    if isinstance(value, str):
        return f"'{value}'"
    return str(int(value) if value == int(value) else value)


def with_texts(text: str) -> str:
    """Replace 'text:NAME' by the failure texts of lifecycle.py, which stores write into histories."""
    return _TEXT.sub(lambda found: f"'{FAILURE_TEXTS[found[1]]}'", text)


def split_parts(verb: str, text: str) -> dict[str, str]:
    """The parts of one file as {"verb.part": text}, without the comments of file and sections."""
    if not text.startswith("-- "):
        raise StatementsBroken(f"{verb} must open with a comment that says its purpose")
    parts: dict[str, str] = {}
    marks = list(_MARK.finditer(text))
    for mark, end in zip(marks, [*(one.start() for one in marks[1:]), len(text)], strict=True):
        kind, line = mark.groups()
        if kind == SECTION_MARK:
            verb = line.partition(":")[0]
            continue
        name, body = f"{verb}.{line.strip()}", text[mark.end() : end].strip().rstrip(";")
        if name in parts or not body:
            raise StatementsBroken(f"the part {name!r} is defined twice or empty")
        parts[name] = body
    if not parts:
        raise StatementsBroken(f"{verb} has no part")
    return parts


def load_statements(package: str, files: Iterable[str]) -> Statements:
    """All statements of a store's package as {"verb.part": text}; its folder must contain exactly these files."""
    folder = Path(__file__).parent / package.rpartition(".")[2] / "statements"
    found = {entry.name.removesuffix(".sql"): entry for entry in folder.iterdir() if entry.name.endswith(".sql")}
    wanted = set(files)
    if set(found) != wanted:
        missing, stray = sorted(wanted - set(found)), sorted(set(found) - wanted)
        raise StatementsBroken(f"{package}: missing {missing}, stray {stray}. Reinstall holdfast.")
    every: dict[str, str] = {}
    for name, entry in found.items():
        parts = split_parts(name, with_texts(entry.read_text(encoding="utf-8")))
        if twice := parts.keys() & every.keys():
            raise StatementsBroken(f"{package}: two files define {sorted(twice)}")
        every |= parts
    return Statements(every)
