"""What the stores share about seals: how one is written down, what it refuses, which shipments it lets in.

Called by every store's seal, carry and refusing verbs. Pure: it decides from what it is given and touches no store.
"""

from __future__ import annotations

import msgspec

from ..errors import ConfigurationError, StoreSealed
from ..lifecycle import State
from ..records import Seal, Shipment

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Seal).decode


def written(seal: Seal) -> str:
    """The seal as a store keeps it: equal seals are equal texts."""
    return _encode(seal).decode()


def read(record: str) -> Seal:
    return _decode(record)


def refusal(seal: Seal) -> StoreSealed:
    """The error of a verb that a sealed store does not carry out."""
    return StoreSealed(role=seal.role, stage=seal.stage, other=seal.other)


def is_new_target(seal: Seal | None, before: Seal | None) -> bool:
    """Whether this seal makes a store the target of a move it had no part in: then it must be empty."""
    return seal is not None and seal.role == "target" and (before is None or before.move != seal.move)


def refuse_unless_empty(jobs: int, letters: int, overrides: int, pauses: int, entries: int) -> None:
    """A target holds nothing but what the move brings."""
    held = {
        "jobs": jobs,
        "dead letters": letters,
        "overrides": overrides,
        "pauses": pauses,
        "cron entries": entries,
    }
    found = [f"{number} {what}" for what, number in held.items() if number]
    if found:
        raise ConfigurationError(
            f"the target of a move must be empty, and this store holds {', '.join(found)}. "
            "Name a store that has never been used."
        )


def check_carry(seal: Seal | None, move: str, shipment: Shipment) -> Seal:
    """The seal, if it lets the shipment in."""
    if seal is None or not seal.closed:
        raise ConfigurationError("this store is not the target of a move that is under way. Start it again.")
    if seal.move != move or seal.role != "target" or seal.stage != "moving":
        raise refusal(seal)
    if any(job.state is State.RUNNING for job in shipment.jobs):
        raise ConfigurationError("a running job cannot be carried to another store. Wait until its lease has ended.")
    return seal


def key_taken() -> ConfigurationError:
    """The error of a shipment that would make two live jobs of one key."""
    return ConfigurationError(
        "two live jobs of one queue and task have the same key, as a store of shards allows it in different groups; "
        "this store cannot hold both. Give the move up, cancel one of them, and begin again."
    )
