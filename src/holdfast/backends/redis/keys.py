"""The only place where keys are named, and the layout of a job's record.

Called by assembler.py, which declares the keys to the scripts, and by backend.py. A store has this fixed set of keys
under one hash tag and no others: no script builds the name of a key, so all keys of a script are on one cluster node.
"""

from __future__ import annotations

import re

from ...errors import ConfigurationError

SCHEMA_VERSION = 2
# What to do with a store of an earlier schema: none was ever released.
OLDER = "It was made before the first release. Use another prefix, or remove its keys."
PREFIX_DEFAULT = "holdfast"

# name → its type in the server. The order is the order of KEYS in every script.
KEY_TYPES = {
    "meta": "hash",  # schema, tick, seq; seal, sealed; life, server, quiet_until, lease_max; listing; used; body_max;
    # waited, whose value means nothing: it is written for its position among the writes
    "jobs": "hash",  # id → the record below
    "bodies": "hash",  # id → arguments, options, revival: written at enqueue, read at claim
    "values": "hash",  # id → what the handler returned, unless that was None
    "errors": "hash",  # id → failures and stalls, oldest first
    "progress": "hash",  # id → fraction and text
    "logs": "hash",  # id → log lines
    "marks": "hash",  # id → what the record does not show of a job's timeline
    "seqs": "zset",  # every job by seq
    "ready": "zset",  # by queue, lane, rank, turn; except for tasks with a dedicated lane:
    "apart": "zset",  # by queue, task, rank, turn
    "staged": "zset",  # ready jobs of groups that may have several, by queue, group, turn
    "waiting": "zset",  # by queue, group, held, priority, order, seq
    "scheduled": "zset",  # by queue, group, held, due time
    "ordered": "zset",  # scheduled jobs with an order that were never leased, by queue, group, priority, order
    "due": "zset",  # scheduled jobs of all queues by due time
    "running": "zset",  # by worker, fence
    "play": "zset",  # what each group has in play, by queue, group
    "busy": "hash",  # queue or task → how many of its jobs run
    "finished": "zset",  # by state, queue, seq
    "prunable": "zset",  # by the time they may be pruned
    "remembered": "zset",  # ids of jobs removed early to free memory, by the time until which they stay known
    "expiring": "zset",  # unstarted jobs by the time they expire
    "kept": "zset",  # succeeded and cancelled jobs of tasks that keep the newest N, by task, time of their end
    "keyed": "hash",  # key of a queue and task, or of a task → the job that holds it
    "letters": "hash",  # logical job → its dead letter
    "holders": "zset",  # jobs that hold a letter, by id, each with its logical job
    "failed": "zset",  # letters by the time of the latest failure
    "dead": "zset",  # letters by task, time of the latest failure
    "revivals": "zset",  # letters by the time of their automatic revival
    "edges": "zset",  # the parents that jobs wait for, by parent, status, child
    "parents": "zset",  # the same by child, parent
    "dependents": "hash",  # job with parents → how many of its edges are not met, how many failed, and its policy
    "propagating": "zset",  # parents whose edges may not be in line with their state yet, oldest first
    "elsewhere": "hash",  # parent in another shard → that shard, and the last news of the parent
    "outbox": "zset",  # notes for other shards, oldest first: see lua/shard.lua
    "notes": "hash",  # job of another shard → the call, until it is delivered
    "steps": "zset",  # the steps that jobs keep between their attempts, by job, kind and name
    "step_values": "hash",  # the same → number, value, until, at, fence
    "workers": "hash",  # id → its row
    "portraits": "hash",  # worker → the status of its runners: kept out of its row, which every claim reads
    "commands": "hash",  # worker → its commands, answered or not, oldest first
    "deadlines": "zset",  # workers by deadline
    "calls": "hash",  # worker → its last numbered call and the answers
    "rules": "hash",  # queue → the rule that code declares
    "tasks": "hash",  # task → the rule that code declares
    "overrides": "hash",  # queue, group or task → limit and rate set by an operator
    "changes": "hash",  # what changed rules left to rearrange: see lua/rearrange.lua
    "pauses": "hash",  # what is paused → reason, by, since
    "flows": "hash",  # queue or task → the state of its rate
    "group_flows": "hash",  # group → the state of its rate
    "waking": "zset",  # groups by the time their rate lets the next job start
    "lapsing": "zset",  # rate states by the time from which they no longer matter
    "rollups": "hash",  # span, start, queue, task, worker, outcome → counts
    "minutes": "zset",  # roll-ups of minutes by their start
    "hours": "zset",  # roll-ups of hours by their start
    "recordings": "hash",  # worker → number and time of its last recording
    "events": "stream",  # the newest events, by position
    "entries": "hash",  # cron entry → version, whether code declares it, JSON
    "quarantine": "hash",  # index and member, or table and name → when and why it was set aside
    "registry": "string",  # of a cluster's store: how many shards each queue has
    "wake": "stream",  # hints that there may be work
}
KEY_NAMES = tuple(KEY_TYPES)

_PREFIX = re.compile(r"[A-Za-z0-9_.:\-/]{1,400}")


def check_prefix(prefix: str) -> str:
    """Check a prefix. It becomes a hash tag, so it has no braces; nor spaces, so that it can be typed."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"prefix={prefix!r} is not a prefix for keys: letters, digits and _ . : - / only, at least one of them."
        )
    return prefix


def keys_of(prefix: str) -> list[str]:
    """Return every key of the store with that prefix, in the order of KEY_NAMES."""
    return [f"{{{check_prefix(prefix)}}}:{name}" for name in KEY_NAMES]
