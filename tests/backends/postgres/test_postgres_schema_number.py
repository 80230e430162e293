"""A schema number that is wrong, unreadable or missing: SchemaMismatch, exit code 5, and nothing is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.cli.main import main
from holdfast.errors import SchemaMismatch

from ...servers.postgres import Server

Make = Callable[..., PostgresBackend]
SPOILT = {
    "newer": "UPDATE {}.schema_version SET version = 99",
    "zero": "UPDATE {}.schema_version SET version = 0",
    "negative": "UPDATE {}.schema_version SET version = -3",
    "missing": "DELETE FROM {}.schema_version",
    "two": "INSERT INTO {}.schema_version (version) VALUES (1)",
    "null": "ALTER TABLE {0}.schema_version ALTER version DROP NOT NULL; UPDATE {0}.schema_version SET version = NULL",
    "text": "ALTER TABLE {0}.schema_version ALTER version TYPE text USING 'seven'",
    "no column": "ALTER TABLE {}.schema_version DROP COLUMN version",
}
COMMANDS = [["migrate"], ["jobs"], ["stats"], ["audit"], ["queues"], ["prune", "--yes"]]


@pytest.mark.parametrize("how", SPOILT)
def test_it_is_a_schema_mismatch_everywhere(
    make: Make, server: Server, schema: str, session: psycopg.Connection, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    session.autocommit = True

    async def run() -> None:
        backend = make()
        await backend.open()
        await backend.close()
        session.execute(SPOILT[how].format(schema))
        with pytest.raises(SchemaMismatch):
            await backend.open()
        with pytest.raises(SchemaMismatch):
            await backend.migrate()
        await backend.close()

    asyncio.run(run())
    for words in COMMANDS:
        code = main([*words, "--url", server.url(schema)])
        said = capsys.readouterr()
        assert code == 5, (words, said.out, said.err)
