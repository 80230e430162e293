"""May this user do all that a store needs? Asked when the store is opened, so that no script fails half-way.

Called by server.py. A script is not undone when one of its commands is refused: a job could be stored although its
enqueue was refused. So the server is asked about every command of every script, and of those sent beside them, before
the first is run. Changes nothing, and needs no right but to run scripts.
"""

from __future__ import annotations

import functools
import re

from ...errors import ConfigurationError
from .connection import Connections
from .lua import SCRIPTS

_WORDS = re.compile(r"'([A-Z]{2,})'")  # of all that a script writes in capitals; the server knows which are commands
COMMANDS_OF_CLUSTERS = ("ASKING", "PING")  # and CLUSTER SLOTS, without which no node is found


@functools.cache
def commands_of_scripts() -> tuple[str, ...]:
    """The words in capitals in any script: its commands, and some that are none, which the server skips."""
    return tuple(sorted({word for script in SCRIPTS.values() for word in _WORDS.findall(script.text)}))


async def check_rights(connections: Connections) -> None:
    """Refuse a user that may not run one of the commands or use the keys, naming each and the rule that gives it."""
    key, user = connections.keys[0], connections.user
    asked = [["EVAL", "return 1", "1", key], ["EVAL", "return 1", "0"], ["EVALSHA", "0" * 40, "0"]]
    asked += [[name, key] for name in commands_of_scripts()]
    asked += [[name] for name in ("MULTI", "EXEC", *(COMMANDS_OF_CLUSTERS if connections.of_cluster else ()))]
    if connections.confirmation is not None:
        asked += [["WAIT", "0", "0"]]
    asked += [["XREAD", "STREAMS", connections.keys[-1], "0"]]
    refused = await connections.run(SCRIPTS["rights"], asked)
    if refused[:1] == [1] and refused[1:2] != [2]:  # a script may be run, but not with the key
        pattern = key.partition("}")[0] + ("*" if connections.of_cluster else "}:*")
        raise ConfigurationError(
            f"the Redis user {user!r} may not write to the store's keys. Allow it: ACL SETUSER {user} ~{pattern}"
        )
    missing = [asked[place - 1][0] for place in refused if place > 1]
    if missing:
        rules = " ".join(f"+{name.lower()}" for name in missing)
        raise ConfigurationError(
            f"the Redis user {user!r} may not run {', '.join(missing)}, which Holdfast needs. "
            f"Allow it: ACL SETUSER {user} {rules}"
        )
