"""Where a job lives and how a shard is named: pure arithmetic, the same in every process and every version.

Called by the router's parts. Never does I/O and never uses Python's own hash, which differs from process to process.

A token that the router hands out carries the shard, so that it comes back with it: "<shard>/<the shard's token>". seqs
are unique over all shards, because every shard gives only those that leave its own number when divided by NUMBERS_MAX.
A worker's call becomes a number for each shard that grows with the call and with the round inside it. By that number
claim chooses which of its lanes goes first: divided by 10 or less it leaves what the call leaves, and for any number of
lanes they all have their turn, because calls are a prime apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from ...records import DeadLetter, JobRecord, NewJob

NUMBERS_MAX = 4096  # shards of all queues together: each has a number of its own
ROUNDS_MAX = 4  # calls to one shard within one call of a worker

_ROUND = 2520  # divisible by 1 to 10
_CALLS = (ROUNDS_MAX + 1) * _ROUND + 1  # 12601, a prime
_ODD = re.compile(r"[^A-Za-z0-9.\-]")
_SPELLED_MAX = 200


def place_of(name: str, shards: int) -> int:
    """Which shard of a queue a group, key or id belongs to."""
    if shards == 1:
        return 0
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % shards


def place_of_job(job: NewJob | JobRecord | DeadLetter, shards: int) -> int:
    """By its group, so that a group is in one place; else by its key, so that it is unique; else by its id."""
    return place_of(job.group or job.key or job.id, shards)


@lru_cache(maxsize=2 * NUMBERS_MAX)
def shard_name(queue: str, place: int) -> str:
    """A name made of letters, digits, `-`, `.`, `_` and one colon, whatever the queue is called.

    Other characters are spelled as _xx, byte by byte; a name that grows too long that way is cut and told apart by a
    hash.
    """
    spelled = _ODD.sub(lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), queue)
    if len(spelled) > _SPELLED_MAX:
        spelled = spelled[:_SPELLED_MAX] + "_." + blake2b(queue.encode(), digest_size=16).hexdigest()
    return f"{spelled}:{place}"


def signed(shard: str, token: str) -> str:
    """The token as the router hands it out."""
    return f"{shard}/{token}"


def parted(token: str) -> tuple[str, str]:
    """The shard and the shard's own token; the shard is empty where the token is none of ours."""
    shard, _, own = token.rpartition("/")
    return shard, own


def number_of(call: int, round: int) -> int:
    """A worker's call as a shard sees it in the given round."""
    return _CALLS * call + _ROUND * round


def last_number_of(call: int) -> int:
    """The highest number that belongs to a call or an earlier one."""
    return _CALLS * call + _CALLS - 1


def call_of(number: int) -> int:
    return number // _CALLS


def shares(total: int, names: Sequence[str]) -> dict[str, int]:
    """`total` divided as evenly as can be; the first names get what is left over, and who would get 0 is left out."""
    each, more = divmod(total, len(names))
    portions = {name: each + (place < more) for place, name in enumerate(names)}
    return {name: portion for name, portion in portions.items() if portion}
