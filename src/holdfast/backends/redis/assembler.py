"""Assembles the Lua scripts: each verb's section plus the parts it needs, as one text known by its SHA1.

Imported by scripts.py where a server does not know a script, or where there is no record of the scripts. Reads the
folder and assembles a script when it is first used. Refuses a missing or stray section, a name that no part defines and
a field that no record has, so that folder, contract and record layout cannot drift apart; a test assembles all and
refuses a part that no script needs. Never talks to a server.

The files in lua/ consist of sections, `-- == script NAME: …`, `-- == part NAME: …`, `-- == fast NAME: …` and
`-- == fragment NAME(a, b): …`, each of which opens with comments (purpose, arguments, results, why it is safe under
concurrency). A fragment is inserted where it is called, so that general and fast path share it at no cost. A script
lists its arguments: `-- args:` those packed in ARGV[1], `-- raw:` those after it; args.jobs is replaced by a position.
A script needs the parts whose names it uses, and the parts those use; `opening` precedes everything. `row[STATE]`
becomes the field's number, JOBS the position of the key among the keys the script uses, a constant its value,
ROW_IS_SOUND the check from layouts.py.

The server builds every function of a script anew at every run, and that is a good part of the cost of a short one. So
constants are not variables, parts lie inside one function (where Lua resolves outer variables without a lookup), and a
part with `-- lazy:` among its first lines is built when one of its names is first used. The most common calls are
served before any of it is built, by a fast path: straight code behind the opening, which a `break` leaves for the rest
of the script. It has the same effect as the script, in fewer steps.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..fragments import SECTION_MARK, StatementsBroken, with_texts
from .keys import KEY_NAMES, SCHEMA_VERSION
from .layouts import FIELDS, META, POSITIONS, ROW_IS_SOUND, VARIABLES, record_in_lua
from .scripts import DRAINING, FILLING, READING, Script

# Verbs that run before the store exists: they do not check for one first.
BEFORE_ALL = ("open", "rights")

# The sections of each verb's fast path, in order.
FAST = {
    "enqueue": ("enqueue",),
    "exchange": ("exchange", "exchange_taking", "exchange_chaining", "exchange_writing"),
    "wait_for_work": ("wait_for_work",),
}

_CAPITALS = re.compile(r"\b[A-Z][A-Z_]*\b")
_FIELD = re.compile(r"\[([A-Z][A-Z_]+)\]")
_KEYS = frozenset(name.upper() for name in KEY_NAMES)
_NO_CODE = re.compile(r"^[ \t]*(?:--.*)?(?:\n|\Z)", re.M)
_LITERAL = r"(?:[\d.e-]+|'[^']*')"
_CONSTANTS = re.compile(
    rf"^local ([A-Z][A-Z_]*(?:, [A-Z][A-Z_]*)*) = ({_LITERAL}(?:, {_LITERAL})*)(?: --.*)?$\n?", re.M
)
_NAMES = re.compile(r"^(?:function |local function )?((?:hf\.)?\w+(?:, hf\.\w+)*)(?=\(| =)", re.M)
_WORDS = re.compile(r"'([A-Z]{2,})'")
_USED = re.compile(r"\bhf\.\w+|\blives\b")
_LAZY = "\n-- lazy: "
OPENING = "opening"  # the part that precedes everything
_ARGUMENTS = re.compile(r"^-- (args|raw): (.*)$", re.M)
_NAMED = re.compile(rf"\b(args|ARGV|PLACE|FIELD|{'|'.join(VARIABLES)})\.(\w+)")


def _sections() -> dict[str, dict[str, str]]:
    """Return the sections of all files by kind (script, part, fast) and name."""
    found: dict[str, dict[str, str]] = {"script": {}, "part": {}, "fast": {}, "fragment": {}}
    for entry in (Path(__file__).parent / "lua").iterdir():
        if not entry.name.endswith(".lua"):
            continue
        head, *sections = with_texts(entry.read_text(encoding="utf-8")).split(f"\n{SECTION_MARK}")
        if not head.startswith(f"-- {entry.name.removesuffix('.lua')}: "):
            raise StatementsBroken(f"{entry.name} must open with its name and purpose")
        for section in sections:
            kind, _, text = section.partition(" ")
            name = re.split(r"[:(]", text, maxsplit=1)[0]
            if name in found[kind]:
                raise StatementsBroken(f"{entry.name}: the {kind} {name} is defined twice")
            found[kind][name] = f"-- {text}"
    return found


@functools.cache
def _code(text: str) -> str:
    """Strip comments on lines of their own: every run of a script would carry them."""
    return _NO_CODE.sub("", text).removesuffix("\n")


def _position(found: re.Match[str]) -> str:
    if found[1] not in POSITIONS:
        raise StatementsBroken(f"no position is named {found[1]}")
    return f"[{POSITIONS[found[1]]}]"


def _arguments(verb: str, body: str) -> dict[str, tuple[str, ...]]:
    """Return the names that have positions in a script, by variable; those of its arguments are in its header.

    `args` are packed in ARGV[1], `ARGV` are those beside it; PLACE and FIELD are positions themselves.
    """
    lines = dict(_ARGUMENTS.findall(body))
    if "args" not in lines:
        raise StatementsBroken(f"the script {verb} does not name its arguments")
    raw = ("args", *filter(None, lines.get("raw", "").removesuffix("...").split(", ")))
    return {"args": tuple(lines["args"].split(", ")), "ARGV": raw, "PLACE": raw, "FIELD": FIELDS, **VARIABLES}


def _with_positions(verb: str, code: str, names: Mapping[str, tuple[str, ...]]) -> str:
    """Replace names of arguments and fields by their positions."""

    def of_variable(found: re.Match[str]) -> str:
        variable, name = found.groups()
        known = names[variable]
        if name not in known:
            raise StatementsBroken(f"{verb}: {variable} has no {name}, only {known}")
        place = known.index(name) + 1
        return str(place) if variable in ("PLACE", "FIELD") else f"{variable}[{place}]"

    return _FIELD.sub(_position, _NAMED.sub(of_variable, code))


class _Fragment(NamedTuple):
    """A piece of code that several places share: inserted where it is called, so the call costs nothing."""

    names: list[str]  # of its parameters
    code: str

    def inserted(self, arguments: list[str]) -> str:
        if self.names[-1].endswith("..."):
            last = len(self.names) - 1
            arguments = [*arguments[:last], ", ".join(arguments[last:])]
        given = {name.removesuffix("..."): one for name, one in zip(self.names, arguments, strict=True)}
        return re.sub(rf"\b({'|'.join(given)})\b", lambda found: given[found[0]], self.code)


def _fragment(text: str) -> _Fragment:
    """Read a section `fragment NAME(a, b): …`; RECORD { field = …, … } becomes a list in the record's order."""

    def record(found: re.Match[str]) -> str:
        pairs = re.split(r",\s*(?=\w+ = |$)", found[1].strip())
        return record_in_lua(dict(pair.split(" = ", 1) for pair in pairs if pair))

    names = text.partition("(")[2].partition(")")[0].split(", ")
    return _Fragment(names, re.sub(r"RECORD \{(.*?)\n\}", record, _code(text), flags=re.S))


def _with_fragments(code: str, fragments: Mapping[str, _Fragment]) -> str:
    """Insert the fragments where they are called, from inside out."""
    call = re.compile(rf"\b({'|'.join(fragments)})\(")
    calls = list(call.finditer(code))
    while calls:
        last = calls.pop()
        arguments, depth, end = [""], 1, last.end()
        while depth:
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(code[end], 0)
            if code[end] == "," and depth == 1:
                arguments.append("")
            elif depth:
                arguments[-1] += code[end]
            end += 1
        line = code.rfind("\n", 0, last.start()) + 1
        indent = re.match(" *", code[line:])
        text = fragments[last[1]].inserted([one.strip() for one in arguments])
        text = text.replace("\n", f"\n{indent[0] if indent else ''}")
        code = code[: last.start()] + text + code[end:]
        calls += call.finditer(code, last.start(), last.start() + len(text))  # a fragment may call others
    return code


def _flags(verb: str) -> str:
    if verb in READING:
        return " flags=no-writes,allow-oom"
    return " flags=allow-oom" if verb in DRAINING else ""


def _constants(texts: Iterable[str]) -> dict[str, str]:
    """Return the values by name: one name has one value, in whatever file it is."""
    values: dict[str, str] = {}
    for text in texts:
        for names, literals in _CONSTANTS.findall(text):
            for name, literal in zip(names.split(", "), re.findall(_LITERAL, literals), strict=True):
                if values.setdefault(name, literal) != literal:
                    raise StatementsBroken(f"{name} is {literal} here and {values[name]} there")
    return values


@functools.cache
def _names_in(part: str) -> tuple[str, ...]:
    """Return what a part defines: functions, and fields that it sets when it is built."""
    return tuple(name for found in _NAMES.findall(part) for name in found.split(", "))


@functools.cache
def _names_used(text: str) -> frozenset[str]:
    return frozenset(_USED.findall(_code(text)))


def _built_lazily(parts: list[str]) -> str:
    """Build a part when one of its names is first looked up."""
    lines = ["setmetatable(hf, { __index = function(_, name)"]
    for part in parts:
        is_here = " or ".join(f"name == '{name.removeprefix('hf.')}'" for name in _names_in(part))
        lines += [f"if {is_here} then", part, "return rawget(hf, name)", "end"]
    return "\n".join([*lines, "end })"])


def _joined(opening: str, fast: list[str], parts: list[str], body: str) -> str:
    lazy = [part for part in parts if _LAZY in part]
    common = [_code(part) for part in parts if part not in lazy]
    built = [_built_lazily(list(map(_code, lazy)))] if lazy else []
    inside = ["local build = function()", *common, "end", "build()"] if common and opening else common
    before = ["repeat", *map(_code, fast), "until true"] if fast else []
    return "\n".join([_code(opening), *before, *built, *inside, _code(body)])


def _keys_used(code: str) -> tuple[str, ...]:
    if "KEYS" in code:  # it iterates over all of them
        return KEY_NAMES
    used = _KEYS.intersection(_CAPITALS.findall(code))
    return tuple(name for name in KEY_NAMES if name.upper() in used)


def _assembled(
    verb: str, body: str, fast: list[str], opening: str, parts: list[str], constants: Mapping[str, str]
) -> Script:
    code = _CONSTANTS.sub("", _joined(opening, fast, parts, body))
    code = _CAPITALS.sub(lambda found: constants.get(found[0], found[0]), code)
    code = code.replace("ROW_IS_SOUND", ROW_IS_SOUND)
    names = _arguments(verb, body)
    code = _with_positions(verb, code, names).replace("SCHEMA_VERSION", f"'{SCHEMA_VERSION}'")
    code = code.replace("FIELDS_NUMBER", str(len(FIELDS))).replace("META_FIELDS", ", ".join(map(repr, META)))
    keys = _keys_used(code)
    places = {name.upper(): f"KEYS[{place}]" for place, name in enumerate(keys, 1)}
    code = _CAPITALS.sub(lambda found: places.get(found[0], found[0]), code)
    text = f"#!lua{_flags(verb)}\n{code}\n"
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(verb, sha, verb not in READING, keys, names["args"], lambda: text)


class _Filled(Mapping[str, str]):
    """The sections of one kind; their fragments are inserted when a section is first used."""

    def __init__(self, sections: Mapping[str, str], fragments: Mapping[str, _Fragment]) -> None:
        self._sections, self._fragments, self._filled = sections, fragments, dict[str, str]()

    def __getitem__(self, name: str) -> str:
        filled = self._filled.get(name)
        if filled is None:
            filled = self._filled[name] = _with_fragments(self._sections[name], self._fragments)
        return filled

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)


class AssembledScripts(Mapping[str, Script]):
    """Every verb's script, assembled when it is first used."""

    def __init__(self, found: Mapping[str, Mapping[str, str]], *, with_fast_paths: bool) -> None:
        fragments = {name: _fragment(text) for name, text in found["fragment"].items()}
        self._bodies, self._parts, self._fast = (_Filled(found[kind], fragments) for kind in ("script", "part", "fast"))
        self._ways = FAST if with_fast_paths else {}
        texts = [text for sections in found.values() for text in sections.values()]
        self._constants = _constants(texts)
        self._makers = {name: part for part, text in found["part"].items() for name in _names_in(text)}
        self._words = [text for text in texts if _WORDS.search(text)]
        self._made: dict[str, Script] = {}

    def __getitem__(self, verb: str) -> Script:
        made = self._made.get(verb)
        if made is None:
            made = self._made[verb] = self._assembled(verb)
        return made

    def _needed(self, verb: str) -> list[str]:
        """Return the parts a script needs, sorted by name."""
        needed: set[str] = set()
        texts = [self._bodies[verb]]
        while texts:
            used = _names_used(texts.pop())
            if not used <= self._makers.keys():
                raise StatementsBroken(f"{verb}.lua uses names that no part has: {sorted(used - self._makers.keys())}")
            new = {self._makers[name] for name in used} - needed
            needed |= new
            texts += [self._parts[name] for name in new]
        return sorted(needed - {OPENING})

    def _assembled(self, verb: str) -> Script:
        body, fast = self._bodies[verb], [self._fast[name] for name in self._ways.get(verb, ())]
        parts = [self._parts[name] for name in self._needed(verb)]
        return _assembled(verb, body, fast, "" if verb in BEFORE_ALL else self._parts[OPENING], parts, self._constants)

    def check(self) -> None:
        """Assemble all of them; some script must need each part. For tests: it takes a good part of a second."""
        unneeded = set(self._parts) - {OPENING}.union(*map(self._needed, self))
        if unneeded:
            raise StatementsBroken(f"parts that no script needs: {sorted(unneeded)}.")
        for verb in self:
            self[verb]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bodies)

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def words(self) -> frozenset[str]:
        """All quoted words in capitals: the commands that the scripts call, and some others."""
        return frozenset(word for text in self._words for word in _WORDS.findall(_code(text)))


def load_scripts(*, with_fast_paths: bool = True) -> AssembledScripts:
    """Return every verb's script; there must be exactly one section per verb."""
    found = _sections()
    _check_names("scripts", found["script"], {*READING, *FILLING, *DRAINING})
    _check_names("fast paths", found["fast"], {name for names in FAST.values() for name in names})
    return AssembledScripts(found, with_fast_paths=with_fast_paths)


def _check_names(kind: str, there: Iterable[str], wanted: set[str]) -> None:
    if set(there) != wanted:
        missing, stray = sorted(wanted - set(there)), sorted(set(there) - wanted)
        raise StatementsBroken(f"{__package__}, {kind}: missing {missing}, stray {stray}. Reinstall holdfast.")
