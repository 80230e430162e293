"""Conformance of the key's flag to every legal verb: what a verb does to who holds the key, and that it does no more.

Called by run_case. The verbs themselves are those of transitions, carried out on jobs that have a key.
"""

from __future__ import annotations

from typing import Any

from ...lifecycle import TRANSITIONS, UNSTARTED, State, Verb
from .compare import changed_columns, same
from .registry import case_for_each
from .transitions import ACTS, CHANGES
from .world import World

# that a key until finished is held exactly while its job is live is judged after every case
KINDS: dict[str, dict[str, Any]] = {
    "until started": {"key_until": "started"},
    "within its window": {"key_window": 1_000_000.0},
}
LEGAL = [
    (verb, state, kind)
    for verb in ACTS
    if verb not in (Verb.REFILL, Verb.PRUNE, Verb.BEGIN, Verb.RENEW, Verb.REPORT)
    for state in State
    if state in TRANSITIONS[verb]
    for kind in KINDS
]
AGAIN = (Verb.REVIVE, Verb.RETRY)


def _holds(kind: str, verb: Verb, before: State, after: State) -> bool:
    """Whether a job still, or again, holds its key."""
    if kind == "within its window":
        return True
    return verb in AGAIN or (before in UNSTARTED and after in UNSTARTED)


@case_for_each(LEGAL, name=lambda p: f"{p[0]} from {p[1]}, {p[2]}")
async def a_verb_leaves_the_key_where_it_belongs(world: World, param: tuple[Verb, State, str]) -> None:
    verb, state, kind = param
    start = await world.put(state, key="k", expires=100.0 if verb is Verb.EXPIRE else None, **KINDS[kind])
    await world.register("actor")
    before = await world.row(start.id)
    assert await ACTS[verb](world, start), f"{verb} from {state} is legal and was refused"
    after = await world.row(start.id)
    same(after["holds_key"], _holds(kind, verb, state, State(after["state"])), f"the flag after {verb}")
    stray = changed_columns(before, after) - CHANGES[verb] - {"holds_key"}
    same(stray, set(), f"what {verb} changed besides")
