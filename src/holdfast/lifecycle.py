"""The state machine: states, verbs, legal transitions, refusals and failure texts, and what a settlement asks for.

Called everywhere. Pure: no I/O, no clock, no randomness. Backends carry out what is decided here and decide only what
must be atomic with the row: eligibility, token, limits. The docs page and the conformance cases are generated from
TRANSITIONS.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from .errors import StateConflict


class State(StrEnum):
    """The states of a job."""

    SCHEDULED = "scheduled"  # not due yet: a delay, a back-off, a snooze
    WAITING = "waiting"  # due, but behind others of its group
    READY = "ready"  # can be claimed
    RUNNING = "running"  # leased
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    DEAD = "dead"

    @property
    def finished(self) -> bool:
        return self in FINISHED

    @property
    def live(self) -> bool:
        return self not in FINISHED


FINISHED = frozenset({State.SUCCEEDED, State.CANCELLED, State.DEAD})
UNSTARTED = frozenset({State.SCHEDULED, State.WAITING, State.READY})
LIVE = UNSTARTED | {State.RUNNING}


class Ending(StrEnum):
    """How settling ends a lease."""

    SUCCEEDED = "succeeded"
    RETRY = "retry"
    SNOOZED = "snoozed"
    BURIED = "buried"
    CANCELLED = "cancelled"
    STALLED = "stalled"  # the process running it died without a result


SUCCEEDED: Final = Ending.SUCCEEDED  # for what runs for every job: until Python 3.12 looking up a member costs 80 ns


class Verb(StrEnum):
    """What can be done to a job. The same word names the contract's method, its file, event, command and docs page."""

    ENQUEUE = "enqueue"
    PROMOTE = "promote"
    REFILL = "refill"
    CLAIM = "claim"
    BEGIN = "begin"
    RENEW = "renew"
    REPORT = "report"
    CHECKPOINT = "checkpoint"
    SETTLE_SUCCEEDED = "settle succeeded"
    SETTLE_RETRY = "settle retry"
    SETTLE_SNOOZED = "settle snoozed"
    SETTLE_BURIED = "settle buried"
    SETTLE_CANCELLED = "settle cancelled"
    SETTLE_STALLED = "settle stalled"
    RELEASE = "release"
    RECOVER = "recover"
    EXPIRE = "expire"
    CANCEL = "cancel"
    BURY = "bury"
    RUN_NOW = "run_now"
    SIGNAL = "signal"
    REVIVE = "revive"
    RETRY = "retry"
    EDIT = "edit"
    DELETE = "delete"
    PRUNE = "prune"


_S, _W, _R, _X = State.SCHEDULED, State.WAITING, State.READY, State.RUNNING
_OK, _C, _D = State.SUCCEEDED, State.CANCELLED, State.DEAD
_BACK = frozenset({_R, _W})  # claimable again, or behind others of its group

# verb → start state (None: no job yet) → possible end states (empty: the job is gone).
# A verb that is not listed for a state is rejected there and changes nothing.
TRANSITIONS: Mapping[Verb, Mapping[State | None, frozenset[State]]] = MappingProxyType(
    {
        Verb.ENQUEUE: {None: frozenset({_S, _W, _R})},
        Verb.PROMOTE: {_S: _BACK},
        Verb.REFILL: {_W: frozenset({_R}), _R: frozenset({_W})},
        Verb.CLAIM: {_R: frozenset({_X})},
        Verb.BEGIN: {_X: frozenset({_X})},
        Verb.RENEW: {_X: frozenset({_X})},
        Verb.REPORT: {_X: frozenset({_X})},
        Verb.CHECKPOINT: {_X: frozenset({_X})},
        Verb.SETTLE_SUCCEEDED: {_X: frozenset({_OK})},
        Verb.SETTLE_RETRY: {_X: frozenset({_S})},
        Verb.SETTLE_SNOOZED: {_X: frozenset({_S})},
        Verb.SETTLE_BURIED: {_X: frozenset({_D})},
        Verb.SETTLE_CANCELLED: {_X: frozenset({_C})},
        Verb.SETTLE_STALLED: {_X: frozenset({_R, _W, _D, _C})},
        Verb.RELEASE: {_X: frozenset({_R, _W, _S, _C})},
        Verb.RECOVER: {_X: frozenset({_R, _W, _D, _C})},
        Verb.EXPIRE: {_S: frozenset({_D, _C}), _W: frozenset({_D, _C}), _R: frozenset({_D, _C})},
        Verb.CANCEL: {
            _S: frozenset({_C}),
            _W: frozenset({_C}),
            _R: frozenset({_C}),
            _X: frozenset({_X}),
            _C: frozenset({_C}),
        },
        Verb.BURY: {_S: frozenset({_D}), _W: frozenset({_D}), _R: frozenset({_D})},
        Verb.RUN_NOW: {_S: _BACK},
        Verb.SIGNAL: {_S: frozenset({_S, _W, _R}), _W: frozenset({_W}), _R: frozenset({_R}), _X: frozenset({_X})},
        Verb.REVIVE: {_D: _BACK},
        Verb.RETRY: {_OK: _BACK, _C: _BACK, _D: _BACK},
        Verb.EDIT: {
            _S: frozenset({_S, _W, _R}),
            _W: frozenset({_S, _W, _R}),
            _R: frozenset({_S, _W, _R}),
        },
        Verb.DELETE: dict.fromkeys((_S, _W, _R, _OK, _C, _D), frozenset()),
        Verb.PRUNE: {_OK: frozenset(), _C: frozenset(), _D: frozenset()},
    }
)


def allowed(verb: Verb, state: State | None) -> frozenset[State] | None:
    """The states `verb` may lead to from `state`; None if the verb is rejected there."""
    return TRANSITIONS[verb].get(state)


_ADVICE: Mapping[str, Mapping[State | None, str]] = {  # by the state the job is in; None: any other state
    Verb.CANCEL: {_D: "Discard its dead letter instead.", None: "There is nothing left to cancel."},
    Verb.BURY: {
        _X: "Only jobs that have not started can be buried: cancel it instead.",
        None: "Only jobs that have not started can be buried.",
    },
    Verb.RUN_NOW: {None: "Only scheduled jobs can be brought forward."},
    Verb.SIGNAL: {None: "It will not wait for a signal any more."},
    Verb.REVIVE: {
        _OK: "Only dead jobs can be revived; retry takes any finished one.",
        _C: "Only dead jobs can be revived; retry takes any finished one.",
        None: "Only dead jobs can be revived.",
    },
    Verb.RETRY: {None: "It has not finished yet; only finished jobs can be retried."},
    Verb.EDIT: {
        _X: "It was claimed before the edit: cancel it, or wait until it ends.",
        _D: "A dead job is edited together with its revival: revive it with the new values.",
        None: "Only jobs that have not started can be edited.",
    },
    Verb.DELETE: {None: "Cancel it first, and delete it when it has ended."},
    "rejoin": {None: "Only dead and cancelled jobs with parents that have not succeeded can wait for them again."},
    "join": {None: "It no longer waits for others: its batch has finished. Use a new batch, or none."},
    "discard": {None: "It was revived: its letter closes when it succeeds. Or cancel it first."},
}


def state_conflict(
    job_id: str,
    verb: str,
    state: str,
    *,
    live_id: str | None = None,
    heir_id: str | None = None,
    letter_id: str | None = None,
    child_id: str | None = None,
) -> StateConflict:
    """The rejection of a verb in a job's state, worded the same for every store; stores only supply the facts.

    `live_id`: another job holds its key. `heir_id`: its dead letter now belongs to another job. `letter_id`: it has a
    dead letter, and so has another job of its key in the queue it is to move to. `child_id`: that job waits for it.
    """
    if child_id is not None:
        advice = f"Job {child_id} waits for it: cancel it instead, then on_parent_failure decides about {child_id}."
        return StateConflict(job_id, verb, state, advice)
    if letter_id is not None:
        advice = f"The other queue has a dead letter of the same key, of job {letter_id}: discard that one first."
        return StateConflict(job_id, verb, state, advice)
    if live_id is not None:
        return StateConflict(job_id, verb, state, "Wait for that one to end.", live_id=live_id)
    if heir_id is not None:
        advice = f"Its dead letter now belongs to job {heir_id}: {verb} that one."
        return StateConflict(job_id, verb, "dead and superseded", advice)
    by_state = _ADVICE[verb]
    return StateConflict(job_id, verb, state, by_state.get(State(state), by_state[None]))


# Failure texts that stores write into a job's history themselves. SQL and Lua refer to them as 'text:NAME'.
FAILURE_TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "expired": "not claimed before it expired",
        "buried": "buried by an operator",  # an operator who gave no reason
        "parent": "its parent %s died or was cancelled",
        "stalled": "its worker stopped renewing the lease, or died (stall %s; %s allowed)",
        "stalled_among": "its worker stopped renewing the lease, or died, with others running (stall %s; %s allowed)",
    }
)


def stall_text(*, stalls: int, shared_stalls: int, max_stalls: int, alone: bool) -> str:
    """The history text for a lease whose worker is gone. Both counts are the ones before it."""
    if alone:
        return FAILURE_TEXTS["stalled"] % (stalls + 1, max_stalls)
    return FAILURE_TEXTS["stalled_among"] % (shared_stalls + 1, SHARED_STALLS_MAX)


SETTLES: Mapping[Ending, Verb] = MappingProxyType(
    {
        Ending.SUCCEEDED: Verb.SETTLE_SUCCEEDED,
        Ending.RETRY: Verb.SETTLE_RETRY,
        Ending.SNOOZED: Verb.SETTLE_SNOOZED,
        Ending.BURIED: Verb.SETTLE_BURIED,
        Ending.CANCELLED: Verb.SETTLE_CANCELLED,
        Ending.STALLED: Verb.SETTLE_STALLED,
    }
)


SHARED_STALLS_MAX = 10  # stalls allowed while sharing a process; stalls while running alone are limited by max_stalls


class StallVerdict(StrEnum):
    """What happens to a job whose lease expired or whose process died."""

    FREE = "free"  # the lease never began: released, nothing counted
    AGAIN = "again"  # counted as a stall, runs again
    BURY = "bury"  # one stall too many
    CANCEL = "cancel"  # cancellation had been requested


def stall_verdict(
    *, stalls: int, shared_stalls: int, max_stalls: int, alone: bool, begun: bool, cancel_requested: bool
) -> StallVerdict:
    """Decide a stall. Both counts are the ones before it. A stall while running alone adds one to `stalls`, otherwise
    to `shared_stalls`. An at-most-once lease (max_stalls 0) counts only if it began, and then it was the last."""
    if cancel_requested:
        return StallVerdict.CANCEL
    if max_stalls == 0:
        return StallVerdict.BURY if begun else StallVerdict.FREE
    too_many = stalls + alone > max_stalls or shared_stalls + (not alone) > SHARED_STALLS_MAX
    return StallVerdict.BURY if too_many else StallVerdict.AGAIN


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One recorded failure, stall or timeout of an attempt."""

    at: float = 0.0  # set by the store
    reason: str = "failed"  # failed memory cpu file timeout stalled crash expired parent undecodable bury cancelled …
    type: str = ""  # exception class, dotted
    text: str = ""
    traceback: str = ""
    attempt: int = 0  # set by the store
    fence: int = 0  # set by the store
    worker: str | None = None  # set by the store
    started_at: float | None = None  # set by the store: when the lease began


REMOVED = -1.0  # the `retain` of a settlement that removes the job


class Settlement(Struct, frozen=True, kw_only=True):
    """How a lease ends, decided by lifecycle.settlement_for and carried out by the store."""

    id: str
    token: str
    ending: Ending
    failed: bool = False  # spends one of the retries
    delay: float = 0.0  # retry, snoozed: seconds until it is due again
    value: bytes | None = None
    failure: Failure | None = None
    reason: str | None = None  # buried: why; snoozed: the signal that it waits for
    alone: bool = False  # stalled: no other job was running in the process that died
    retain: float = 86400.0  # seconds a finished job is kept; REMOVED: not at all, if it succeeded
    ran: float | None = None  # seconds its handler ran, measured around it; for the worker's log, never stored
