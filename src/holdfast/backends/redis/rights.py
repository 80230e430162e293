"""May this user do all that a store needs? Asked when the store is opened, so that no script fails half-way.

Called by backend.py. A script is not undone when one of its commands is refused: a job could be stored although its
enqueue was refused. So the server is asked about every command of every script, and of those sent beside them, before
the first is run. Changes nothing, and needs no right but to run scripts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from ...errors import ConfigurationError
from .connection import Connections
from .lua import SCRIPTS

_WORDS = re.compile(r"'([A-Z]{2,})'")  # of all that a script writes in capitals; the server knows which are commands


@functools.cache
def commands_of_scripts() -> tuple[str, ...]:
    """The words in capitals in any script: its commands, and some that are none, which the server skips."""
    return tuple(sorted({word for script in SCRIPTS.values() for word in _WORDS.findall(script.text)}))


async def check_rights(connections: Connections) -> None:
    """Refuse a user that may not run one of the commands, naming each and the rule that gives it."""
    asked: list[str | list[str]] = [*commands_of_scripts()]
    asked += [[name] for name in ("MULTI", "EXEC", *connections.commands_beside)]
    asked += [["EVAL", "return 1", "0"], ["EVALSHA", "0" * 40, "0"], ["XREAD", "STREAMS", connections.keys[-1], "0"]]
    missing = [name.decode() for name in await connections.run(SCRIPTS["rights"], asked)]
    if missing:
        names, rules = ", ".join(missing), _rules(missing)
        raise ConfigurationError(
            f"the Redis user {connections.user!r} may not run {names}, which Holdfast needs. "
            f"Allow it: ACL SETUSER {connections.user} {rules}"
        )


def _rules(commands: Iterable[str]) -> str:
    return " ".join(f"+{name.lower()}" for name in commands)
