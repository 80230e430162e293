"""Which shard a job is in, and how shards, tokens and calls are numbered: pure, the same in every process and version.

Called by the router's modules. Never does I/O and never uses Python's own hash, which differs from process to process.

A token that the router returns contains the shard, so that the shard is known when it comes back: "<shard>/<the shard's
token>". seqs are unique over all shards, because a shard only gives seqs whose remainder modulo NUMBERS_MAX is its own
number. A worker's call becomes a number for each shard that grows with the call and with the round inside it. claim
picks by that number which lane goes first: modulo any number up to 10 it equals the call, and for any number of
lanes each has its turn, because calls are a prime apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from msgspec import UNSET

from ...errors import ConfigurationError
from ...records import DeadLetter, Edit, JobRecord, NewJob

NUMBERS_MAX = 4096  # shards of all queues together: each has its own number
ROUNDS_MAX = 4  # calls to one shard within one call of a worker

_ROUND = 2520  # divisible by 1 to 10
_CALLS = (ROUNDS_MAX + 1) * _ROUND + 1  # 12601, a prime
_ODD = re.compile(r"[^A-Za-z0-9.\-]")
_SPELLED_MAX = 200


def place_of(name: str, shards: int) -> int:
    """Return which shard of a queue a group, key or id belongs to."""
    if shards == 1:
        return 0
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % shards


def place_of_job(job: NewJob | JobRecord | DeadLetter, shards: int) -> int:
    """Place by group, so that a group is in one shard; else by key, so that it is unique; else by id."""
    return place_of(job.group or job.key or job.id, shards)


def refuse_other_shard(job: JobRecord, edit: Edit, shards: int) -> None:
    """Refuse an edit that would bring a job to another shard: leaving one and entering the other is not one step."""
    if edit.queue is not UNSET and edit.queue != job.queue:
        raise ConfigurationError(
            f"job {job.id} cannot be moved from queue {job.queue!r} to {edit.queue!r}: on a cluster every queue has "
            "shards of its own. Enqueue a new job there and delete this one."
        )
    group = job.group if edit.group is UNSET else edit.group
    if place_of(group or job.key or job.id, shards) != place_of_job(job, shards):
        raise ConfigurationError(
            f"job {job.id} cannot be moved to group {group!r}, which lives in another shard of queue {job.queue!r}. "
            "Enqueue a new job in that group and delete this one."
        )


@lru_cache(maxsize=2 * NUMBERS_MAX)
def shard_name(queue: str, place: int) -> str:
    """Return a name made of letters, digits, `-`, `.`, `_` and one colon, whatever the queue is called.

    Other characters are written as _xx, byte by byte; a name that becomes too long is cut and made unique by a hash.
    """
    spelled = _ODD.sub(lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), queue)
    if len(spelled) > _SPELLED_MAX:
        spelled = spelled[:_SPELLED_MAX] + "_." + blake2b(queue.encode(), digest_size=16).hexdigest()
    return f"{spelled}:{place}"


def signed(shard: str, token: str) -> str:
    """Return the token as the router hands it out."""
    return f"{shard}/{token}"


def parted(token: str) -> tuple[str, str]:
    """Return the shard and the shard's own token; the shard is empty if the token is not ours."""
    shard, _, own = token.rpartition("/")
    return shard, own


def number_of(call: int, round: int) -> int:
    """Return a worker's call as a shard sees it in the given round."""
    return _CALLS * call + _ROUND * round


def last_number_of(call: int) -> int:
    """Return the highest number that belongs to a call or an earlier one."""
    return _CALLS * call + _CALLS - 1


def call_of(number: int) -> int:
    return number // _CALLS


def shares(total: int, names: Sequence[str]) -> dict[str, int]:
    """Divide `total` as evenly as possible; the first names get the remainder; names that get 0 are left out."""
    each, more = divmod(total, len(names))
    portions = {name: each + (place < more) for place, name in enumerate(names)}
    return {name: portion for name, portion in portions.items() if portion}
