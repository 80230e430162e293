"""The scripts as they are called: by verb, each with its SHA1 and the keys it uses.

A call takes no more than that. The text, which assembler.py puts together from the Lua files, is sent only to a server
that does not know the script. Assembling takes 10 to 20 ms a script: it was most of a producer's first enqueue, and
held up a keeper's event loop at its first sweep. So SHA1s and keys are recorded in a file when the package is built
(hatch_build.py, for wheels and editable installs; bench/run does the same).

The file names the digest of everything the scripts are made of. One that is missing, damaged or made from other sources
counts for nothing, and scripts are assembled when they are first used, as in a checkout whose Lua files were edited. A
wrong SHA1 must never be sent: a server may still know it from an older version and would run that. Nothing is written
at run time: an installed package may be read-only, and many processes share it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...lifecycle import FAILURE_TEXTS
from .keys import KEY_NAMES, SCHEMA_VERSION
from .layouts import FIELDS, META, POSITIONS, ROW_IS_SOUND, VARIABLES

if TYPE_CHECKING:
    from .assembler import AssembledScripts

# Verbs that only read. They also run on a full server.
READING = (
    *("count", "dump", "dump_page", "ended", "export", "flaws", "elsewhere", "get", "groups", "queues", "relatives"),
    *("rights", "rollups", "scan", "steps", "tally", "tasks", "wait_for_work", "watchers", "workers"),
)
# Verbs that add work to the store: a full server refuses them. All others run there, so that a worker can start, claim
# and settle until the server has room again.
FILLING = ("carry", "edit", "enqueue", "link", "record", "rejoin", "revive", "settle_with", "signal", "tick")
DRAINING = (
    "annotate",
    "answer",
    "begin",
    "bury",
    "cancel",
    "checkpoint",
    "command",
    "declare",
    "delete",
    "delivered",
    "discard",
    "exchange",
    "follow",
    "free_key",
    "let_go",
    "limit",
    "open",
    "outbox",
    "pause",
    "promote",
    "prune",
    "rearrange",
    "recover",
    "refill",
    "register",
    "relieve",
    "renew",
    "report",
    "retain",
    "retire",
    "run_now",
    "seal",
    "slow_down",
    "swap",
    "unwatch",
    "watch",
)


@dataclass(frozen=True, slots=True)
class Script:
    """A verb's script and the SHA1 the server knows it by."""

    verb: str
    sha: str
    writes: bool
    keys: tuple[str, ...]  # names of the keys it uses, in the order of KEYS
    args: tuple[str, ...]  # names of the values packed into ARGV[1]
    source: Callable[[], str]  # returns its text, which may have to be assembled first

    @property
    def text(self) -> str:
        return self.source()


# ----------------------------------------------------------------------------------------------------------------------
# The record

RECORD_FILE = Path(__file__).with_name("scripts.json")


class Record(msgspec.Struct, frozen=True):
    """What is recorded: the words that the check of rights needs, and SHA1, keys and arguments by verb."""

    words: tuple[str, ...]
    scripts: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]]


def fingerprint() -> str:
    """A digest of everything the scripts are made of."""
    here = Path(__file__).parent
    code = [here / "scripts.py", here / "assembler.py", here / "layouts.py", here.parent / "fragments.py"]
    values = (KEY_NAMES, SCHEMA_VERSION, FAILURE_TEXTS, FIELDS, META, POSITIONS, ROW_IS_SOUND, VARIABLES)
    digest = hashlib.sha1(repr(values).encode(), usedforsecurity=False)
    for path in (*sorted((here / "lua").glob("*.lua")), *code):
        content = path.read_bytes()
        digest.update(b"%b %d\n%b" % (path.name.encode(), len(content), content))
    return digest.hexdigest()


def _digest(content: bytes) -> bytes:
    """Of what the scripts are made of and of the record itself: a flipped bit must not pass for a SHA1."""
    return hashlib.sha1(fingerprint().encode() + content, usedforsecurity=False).hexdigest().encode()


def read_record(path: Path) -> Record | None:
    """The record, if it is whole and made from these sources."""
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
        return msgspec.json.decode(content, type=Record) if digest == _digest(content) else None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_record(path: Path = RECORD_FILE) -> None:
    """Assemble all scripts and replace the file in one step: others may be reading it."""
    from .assembler import load_scripts

    made = load_scripts()
    found = {verb: (script.sha, script.keys, script.args) for verb, script in made.items()}
    content = msgspec.json.encode(Record(tuple(sorted(made.words)), found))
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        new.write_bytes(_digest(content) + b"\n" + content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


class Scripts(dict[str, Script]):
    """Every verb's script; holds those used so far."""

    def __init__(self, record: Record | None) -> None:
        super().__init__()
        self._record = record

    def __missing__(self, verb: str) -> Script:
        if self._record is None:
            made = _assembler()[verb]
        else:
            sha, keys, args = self._record.scripts[verb]
            made = Script(verb, sha, verb not in READING, keys, args, lambda: _text(verb))
        self[verb] = made
        return made

    @property
    def recorded(self) -> bool:
        return self._record is not None

    @property
    def words(self) -> frozenset[str]:
        """All quoted words in capitals: the commands that the scripts call, and some others."""
        return _assembler().words if self._record is None else frozenset(self._record.words)


_assembling = threading.Lock()


def _text(verb: str) -> str:
    """Assemble it once: where a server knows no scripts, many shards ask for the same text at the same time, each in a
    thread of its own, and together they would keep the event loop from the interpreter for seconds."""
    with _assembling:
        return _assembler()[verb].text


def _after_fork() -> None:
    global _assembling  # the thread that holds it stayed behind
    _assembling = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _assembler() -> AssembledScripts:
    from .assembler import load_scripts

    return load_scripts()


SCRIPTS = Scripts(read_record(RECORD_FILE))
