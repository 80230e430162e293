"""What the doctor reads from a PostgreSQL server: settings that lose or keep jobs, and a quiet time."""

from __future__ import annotations

import asyncio

import psycopg

from holdfast.backends import Address, open_backend, parse_url
from holdfast.backends.durability import StoreFacts, ask_store
from holdfast.inspection.store_health import judge_store, look_at_store

from ...servers.postgres import Server


def asked(server: Server, schema: str) -> tuple[Address, StoreFacts, dict[str, str]]:
    address = parse_url(server.url(schema))

    async def look() -> tuple[StoreFacts, dict[str, str]]:
        backend = open_backend(address.url)
        await backend.open()
        try:
            found = judge_store(await look_at_store(backend, address))
            return await ask_store(address), {one.about: one.verdict for one in found}
        finally:
            await backend.close()

    facts, verdicts = asyncio.run(look())
    return address, facts, verdicts


def test_a_server_that_writes_nothing_through_is_found(server: Server, schema: str) -> None:
    """The run's own server is made quick."""
    _, facts, verdicts = asked(server, schema)
    assert facts.settings["fsync"] == "off"
    assert verdicts["durability"] == "wrong"
    assert (verdicts["store"], verdicts["clock"], verdicts["schema"]) == ("fine", "fine", "fine")


def test_a_server_that_keeps_what_it_promised_is_fine(mortal: Server, schema: str) -> None:
    _, facts, verdicts = asked(mortal, schema)
    assert facts.settings["synchronous_commit"] == "on"
    assert verdicts["durability"] == "fine"
    assert "quiet" not in verdicts


def test_a_quiet_time_is_reported(server: Server, schema: str) -> None:
    asked(server, schema)
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"UPDATE {schema}.incarnation SET quiet_until = extract(epoch FROM now()) + 50")
    _, facts, verdicts = asked(server, schema)
    assert 30 < facts.quiet_seconds <= 50
    assert verdicts["quiet"] == "note"
