"""What the stores share about seals: their encoding, the error of a refused verb, and which shipments are accepted.

Called by every store's seal and carry, and by the verbs a seal refuses. Pure functions; no store access.
"""

from __future__ import annotations

import msgspec

from ..errors import ConfigurationError, StoreSealed
from ..lifecycle import State
from ..records import Seal, Shipment

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Seal).decode


def written(seal: Seal) -> str:
    """The seal as stored: equal seals have equal text."""
    return _encode(seal).decode()


def read(record: str) -> Seal:
    return _decode(record)


def refusal(seal: Seal) -> StoreSealed:
    """The error of a verb that a sealed store refuses."""
    return StoreSealed(role=seal.role, stage=seal.stage, other=seal.other)


def is_new_target(seal: Seal | None, before: Seal | None) -> bool:
    """Whether this seal makes the store the target of a move it was not part of; the store must then be empty."""
    return seal is not None and seal.role == "target" and (before is None or before.move != seal.move)


def refuse_unless_empty(jobs: int, letters: int, overrides: int, pauses: int, entries: int) -> None:
    """A target may hold only what the move brings."""
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
    """Return the seal if it accepts the shipment, else raise."""
    if seal is None or not seal.closed:
        raise ConfigurationError("this store is not the target of a move that is under way. Start it again.")
    if seal.move != move or seal.role != "target" or seal.stage != "moving":
        raise refusal(seal)
    if any(job.state is State.RUNNING for job in shipment.jobs):
        raise ConfigurationError("a running job cannot be carried to another store. Wait until its lease has ended.")
    return seal


def key_taken() -> ConfigurationError:
    """The error of a shipment that would create two live jobs with one key."""
    return ConfigurationError(
        "two live jobs of one queue and task have the same key, as a store of shards allows it in different groups; "
        "this store cannot hold both. Give the move up, cancel one of them, and begin again."
    )
