"""The Lua scripts: each verb's file with the parts it needs, in one text, known to the server by its content.

Called once at import. Refuses a missing or stray file, a part nobody needs, a field that no record has, so that folder,
contract and record layout cannot drift apart. Never talks to a server.

A file opens with comments (purpose, takes, returns, what makes it safe against a rival); its line `-- needs:` names the
parts that go before it, in order. `row[STATE]` becomes the field's number, JOBS the key's place in KEYS.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from ..statements import StatementsBroken
from .keys import FIELDS, KEY_NAMES, SCHEMA_VERSION

# Verbs that only read. They run on a full server, too.
READING = ("count", "export", "find", "get", "groups", "queues", "wait_for_work", "workers")
# Verbs that bring more work into the store: refused by a full server. All others run there, so that a worker can start,
# claim and settle until the server has room again.
FILLING = ("carry", "enqueue", "revive")
DRAINING = (
    "begin",
    "bury",
    "cancel",
    "declare",
    "discard",
    "exchange",
    "limit_group",
    "open",
    "pause",
    "promote",
    "prune",
    "recover",
    "refill",
    "register",
    "renew",
    "report",
    "retire",
    "run_now",
    "seal",
    "swap",
)

_NEEDS = re.compile(r"^-- needs: (.+)$", re.M)
_FIELD = re.compile(r"\[([A-Z][A-Z_]+)\]")
_PLACES = {name.upper(): f"KEYS[{place}]" for place, name in enumerate(KEY_NAMES, 1)}
_KEY = re.compile(rf"\b({'|'.join(_PLACES)})\b")
_NUMBERS = {name.upper(): str(place) for place, name in enumerate(FIELDS, 1)}


@dataclass(frozen=True, slots=True)
class Script:
    """A verb's script and the name the server knows it by."""

    verb: str
    text: str
    sha: str
    writes: bool


def _files(folder: str) -> dict[str, str]:
    entries = resources.files(f"{__package__}.{folder}").iterdir()
    files = {
        entry.name.removesuffix(".lua"): entry.read_text(encoding="utf-8")
        for entry in entries
        if entry.name.endswith(".lua")
    }
    for name, text in files.items():
        if not text.startswith(f"-- {name}: "):
            raise StatementsBroken(f"{folder}/{name}.lua must open with `-- {name}: ` and its purpose")
    return files


def _code(text: str) -> str:
    """Without comments on lines of their own: every run of a script would carry them."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
    return "\n".join(lines)


def _number(found: re.Match[str]) -> str:
    if found[1] not in _NUMBERS:
        raise StatementsBroken(f"no field of a record is named {found[1]}")
    return f"[{_NUMBERS[found[1]]}]"


def _flags(verb: str) -> str:
    if verb in READING:
        return " flags=no-writes,allow-oom"
    return " flags=allow-oom" if verb in DRAINING else ""


def _assembled(verb: str, body: str, parts: Mapping[str, str]) -> Script:
    found = _NEEDS.search(body)
    needed = found[1].split() if found else []
    missing = [name for name in needed if name not in parts]
    if missing:
        raise StatementsBroken(f"{verb}.lua needs parts that are not there: {missing}. Reinstall holdfast.")
    code = "\n".join([*(parts[name] for name in needed), body])
    code = _FIELD.sub(_number, _code(code)).replace("SCHEMA_VERSION", f"'{SCHEMA_VERSION}'")
    code = code.replace("FIELDS_NUMBER", str(len(FIELDS)))
    text = f"#!lua{_flags(verb)}\n{_KEY.sub(lambda found: _PLACES[found[0]], code)}\n"
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(verb, text, sha, verb not in READING)


def load_scripts() -> Mapping[str, Script]:
    """Every verb's script; exactly the files of the verbs must be there, and no part that none of them needs."""
    bodies, parts = _files("scripts"), _files("parts")
    wanted = {*READING, *FILLING, *DRAINING}
    if set(bodies) != wanted:
        missing, stray = sorted(wanted - set(bodies)), sorted(set(bodies) - wanted)
        raise StatementsBroken(f"{__package__}.scripts: missing {missing}, stray {stray}. Reinstall holdfast.")
    needed = {name for body in bodies.values() for line in _NEEDS.findall(body) for name in line.split()}
    if set(parts) != needed:
        raise StatementsBroken(f"{__package__}.parts: needed by nobody {sorted(set(parts) - needed)}.")
    return {verb: _assembled(verb, body, parts) for verb, body in bodies.items()}


SCRIPTS = load_scripts()
