"""Store health: reachable, current schema, durable, in step with this machine's clock, open for work?

Called by the doctor on an open backend. `look_at_store` reads through the contract and reads the store's settings;
`judge_store` is pure. Nothing is changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..backends import Address
from ..backends.contract import Backend
from ..backends.durability import StoreFacts, ask_store
from ..lifecycle import State
from ..records import Flaw, Seal
from .audit import named
from .machine import Finding, fine, note, wrong

CLOCK_NOTE_SECONDS = 1.0
CLOCK_WRONG_SECONDS = 60.0
SLOW_SECONDS = 1.0
DISK_NOTE_BYTES = 1 << 30
DISK_WRONG_BYTES = 64 << 20
FLAWS_SECONDS = 10.0  # how long the doctor searches for unreadable rows
FLAWS_MAX = 100
FLAWS_SHOWN = 3
MEMORY_NOTE_SHARE = 0.8
MEMORY_WRONG_SHARE = 0.95


class StoreLook(Struct, frozen=True, kw_only=True):
    """A store as observed at one time."""

    url: str  # safe to display
    scheme: str
    facts: StoreFacts
    answer_seconds: float = 0.0
    difference_seconds: float = 0.0  # its clock minus this machine's
    seal: Seal | None = None
    flaws: tuple[Flaw, ...] | None = ()  # None: there was too much to search
    finished: int | None = None  # jobs that can be removed when memory is full; None: not counted


async def look_at_store(backend: Backend, address: Address) -> StoreLook:
    """Read the store's state and settings."""
    before, began = time.time(), time.monotonic()
    clock = await backend.clock()
    took = time.monotonic() - began
    facts = await ask_store(address)
    return StoreLook(
        url=address.safe_url,
        scheme=address.scheme,
        facts=facts,
        answer_seconds=took,
        difference_seconds=clock - (before + took / 2),
        seal=await backend.sealed(),
        flaws=await _flaws(backend),
        finished=await _finished(backend) if _share(facts.settings) > MEMORY_NOTE_SHARE else None,
    )


def _share(settings: Mapping[str, str]) -> float:
    """How much of a Redis server's memory is used; 0 if it has no bound."""
    most = int(settings.get("maxmemory", 0))
    return int(settings.get("used_memory", 0)) / most if most else 0.0


async def _finished(backend: Backend) -> int:
    counts = await backend.count()
    return sum(one.get(state, 0) for one in counts.values() for state in (State.SUCCEEDED, State.CANCELLED))


async def _flaws(backend: Backend) -> tuple[Flaw, ...] | None:
    try:
        async with asyncio.timeout(FLAWS_SECONDS):
            return tuple(await backend.flaws(limit=FLAWS_MAX))
    except TimeoutError:
        return None


def judge_store(look: StoreLook) -> list[Finding]:
    """Findings about the store."""
    findings = [_reached(look), _schema(look), _clock(look), *_settings(look), _open(look), _sound(look)]
    if look.facts.quiet_seconds > 0:
        findings.append(_quiet(look))
    if look.facts.missing_right is not None:
        text, step = look.facts.missing_right
        findings.append(wrong("rights", text, step))
    if look.facts.old_snapshot is not None:
        text, step = look.facts.old_snapshot
        findings.append(note("vacuum", f"{text}.", step))
    return findings


def _reached(look: StoreLook) -> Finding:
    text, facts = f"{look.url} answers in {look.answer_seconds * 1000:.1f} ms.", {"url": look.url}
    if look.answer_seconds > SLOW_SECONDS:
        return note("store", text, "That is slow: check its load and the network.", **facts)
    return fine("store", text, **facts)


def _schema(look: StoreLook) -> Finding:
    version = look.facts.schema
    return fine("schema", f"version {version}, as this version of Holdfast requires.", version=version)


def _clock(look: StoreLook) -> Finding:
    off = look.difference_seconds
    facts = {"difference_seconds": round(off, 3)}
    size = f"{abs(off):.3f} s" if abs(off) < 10 else f"{abs(off):.0f} s"
    if abs(off) <= CLOCK_NOTE_SECONDS:
        return fine("clock", f"the store's clock and this machine's are {size} apart.", **facts)
    way = "ahead of" if off > 0 else "behind"
    text = f"the store's clock is {size} {way} this machine's. Leases do not depend on it; times given as at= do."
    step = "Synchronize both clocks (NTP)."
    return (wrong if abs(off) > CLOCK_WRONG_SECONDS else note)("clock", text, step, **facts)


def _open(look: StoreLook) -> Finding:
    seal = look.seal
    if seal is None or not seal.closed:
        return fine("seal", "none: the store accepts jobs and hands them out.", sealed=False)
    facts = {"sealed": True, "role": seal.role, "stage": seal.stage, "other": seal.other}
    if seal.stage == "moved":
        return wrong(
            "seal", f"everything was moved to {seal.other}: this store hands out no jobs.", "Use that one.", **facts
        )
    return wrong(
        "seal",
        f"the store is the {seal.role} of a move ({seal.stage}) and hands out no jobs; the other side is {seal.other}.",
        "`holdfast move` continues or abandons it.",
        **facts,
    )


def _sound(look: StoreLook) -> Finding:
    if look.flaws is None:
        text = f"in {FLAWS_SECONDS:g} s not all rows could be checked; those that were are sound."
        return note("rows", text, "`holdfast audit` checks all of them.", flaws=None)
    if not look.flaws:
        return fine("rows", "all can be read; indexes and records agree.", flaws=0)
    number = f"{FLAWS_MAX} or more" if len(look.flaws) >= FLAWS_MAX else str(len(look.flaws))
    listed = "; ".join(named(flaw) for flaw in look.flaws[:FLAWS_SHOWN])
    return wrong(
        "rows",
        f"{number} cannot be read or contradict an index; all others work as usual. {listed}.",
        "`holdfast audit` lists them all, by id and field.",
        flaws=len(look.flaws),
    )


def _quiet(look: StoreLook) -> Finding:
    seconds = look.facts.quiet_seconds
    return note(
        "quiet",
        f"after a failover or restart the latest writes may be missing: no job is handed out for {seconds:.0f} s.",
        "It ends by itself. With appendfsync always, ?trust_restarts=true avoids it.",
        quiet_seconds=round(seconds, 1),
    )


# ---------------------------------------------------------------------- durability


def _settings(look: StoreLook) -> list[Finding]:
    settings = look.facts.settings
    if look.scheme == "postgresql":
        return [_postgres(settings)]
    if look.scheme == "redis":
        return [_redis(settings), *_redis_memory(settings, look.finished)]
    if look.scheme == "redis+cluster":
        return _nodes(look.facts.nodes)
    return [_sqlite(settings), _disk(look.facts.free_bytes)]


def _sqlite(settings: Mapping[str, str]) -> Finding:
    mode, level = settings.get("journal_mode", "wal"), settings.get("synchronous", "FULL")
    if mode != "wal":
        text = f"the file's journal_mode is {mode}: readers and writers block each other."
        return wrong("durability", text, "Do not change it by hand; run PRAGMA journal_mode = WAL.", **settings)
    text = f"write-ahead log, synchronous={level}"
    if level == "NORMAL":
        return note(
            "durability", f"{text}: a power cut may lose the latest jobs.", "Leave it out for FULL.", **settings
        )
    return fine("durability", f"{text}: an acknowledged job survives a power cut.", **settings)


def _disk(free: int | None) -> Finding:
    if free is None:
        return note("disk", "its free space is not known.")
    size = f"{free / 1e9:.1f} GB" if free >= 1e10 else f"{free >> 20} MiB"
    text, step = f"{size} are free on the file's disk.", "Free some space, or prune: `holdfast prune`."
    if free < DISK_NOTE_BYTES:
        return (wrong if free < DISK_WRONG_BYTES else note)("disk", text, step, free_bytes=free)
    return fine("disk", text, free_bytes=free)


def _postgres(settings: Mapping[str, str]) -> Finding:
    for name, why in (
        ("fsync", "a crash of its system may destroy the database"),
        ("full_page_writes", "a crash of its system may destroy the database"),
        ("synchronous_commit", "a crash may lose acknowledged jobs and renewals"),
    ):
        if settings.get(name) == "off":
            return wrong("durability", f"{name} is off: {why}.", f"Set {name} = on.", **settings)
    commit, version = settings.get("synchronous_commit", "unknown"), settings.get("server_version", "?")
    text = f"PostgreSQL {version}, synchronous_commit={commit}"
    if commit == "local":
        return note("durability", f"{text}: a failover may lose the latest jobs.", "Set it to on or more.", **settings)
    return fine("durability", f"{text}: an acknowledged job survives a crash.", **settings)


def _redis(settings: Mapping[str, str]) -> Finding:
    for name, why in (
        ("aof_last_write_status", "its append-only file could not be written"),
        ("rdb_last_bgsave_status", "its last snapshot could not be written"),
    ):
        if settings.get(name, "ok") != "ok":
            return wrong("durability", f"{why}.", "Look at the server's log and its disk.", **settings)
    sync = settings.get("appendfsync", "unknown")
    if settings.get("aof_enabled", "1") != "1":
        text, step = "appendonly is off: jobs are lost when the server stops.", "Set appendonly yes."
        return note("durability", text, step, **settings)
    if sync == "no":
        text = "appendfsync is no: a power cut may lose the last half minute."
        return wrong("durability", text, "Set appendfsync everysec or always.", **settings)
    loss = "nothing" if sync == "always" else "the last second or two"
    return fine("durability", f"append-only file, appendfsync {sync}: a power cut may lose {loss}.", **settings)


def _redis_memory(settings: Mapping[str, str], finished: int | None = None) -> list[Finding]:
    policy = settings.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        text = f"maxmemory-policy is {policy}: the server may evict jobs when memory is full."
        return [note("memory", text, "Set maxmemory-policy noeviction.", policy=policy)]
    most, used = int(settings.get("maxmemory", 0)), int(settings.get("used_memory", 0))
    if not most:
        return [fine("memory", f"{used >> 20} MiB are used; there is no maxmemory.", used_bytes=used, most_bytes=None)]
    text = f"{used >> 20} of {most >> 20} MiB are used ({used / most:.0%}); when it is full, new jobs are refused."
    facts: dict[str, int] = {"used_bytes": used, "most_bytes": most}
    if used > MEMORY_NOTE_SHARE * most:
        facts |= {} if finished is None else {"finished_jobs": finished}
        step = "Above 90 %, finished jobs are removed early. Give it more memory, or discard dead letters."
        if finished:
            step = (
                f"{finished:,} finished jobs are removed early, 10 s after they ended, so it recovers by itself. "
                "Give it more memory, or keep jobs for less time (retain=)."
            )
        elif finished == 0:
            step = (
                "No finished job is left to remove: it accepts jobs again when jobs end, when dead letters are "
                "discarded (`holdfast dead discard`), or with more memory."
            )
        return [(wrong if used > MEMORY_WRONG_SHARE * most else note)("memory", text, step, **facts)]
    return [fine("memory", text, **facts)]


def _nodes(nodes: Mapping[str, Mapping[str, str] | None]) -> list[Finding]:
    """Problems of single nodes of a cluster; one sentence if there are none."""
    findings = []
    for name, settings in nodes.items():
        if settings is None:
            text, step = f"node {name} does not answer.", "Jobs of its shards wait until it, or its replica, does."
            findings.append(wrong("durability", text, step, node=name))
            continue
        for one in [_redis(settings), *_redis_memory(settings)]:
            if one.verdict != "fine":
                findings.append(replace(one, text=f"node {name}: {one.text}", facts={**one.facts, "node": name}))
    if not findings:
        findings.append(fine("durability", f"{len(nodes)} nodes, each with an append-only file.", nodes=sorted(nodes)))
    return findings
