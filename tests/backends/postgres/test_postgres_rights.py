"""The error names the right that a role lacks and the GRANT for it; with the documented rights it can work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.cli.main import main
from holdfast.errors import ConfigurationError
from holdfast.records import NewJob, WorkerRecord

from ...servers.postgres import Server

_numbers = count(1)
GRANTS = {
    "schema": "USAGE ON SCHEMA {schema}",
    "table": "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema}",
    "sequence": "USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema}",
    "function": "EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema}",
}


class Role:
    """A role that has nothing of the store but what it is given."""

    def __init__(self, server: Server, schema: str, session: psycopg.Connection) -> None:
        self.name, self._schema, self._session = f"role_{next(_numbers)}", schema, session
        backend = PostgresBackend(server.conninfo, schema=schema)

        async def make() -> None:
            await backend.open()
            await backend.close()

        asyncio.run(make())
        self.execute(f"CREATE ROLE {self.name} LOGIN")
        self.execute(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC")
        self.conninfo = server.conninfo.replace("postgres@", f"{self.name}@")
        self.url = server.url(schema).replace("postgres@", f"{self.name}@")

    def execute(self, text: str) -> None:
        self._session.execute(text)
        self._session.commit()

    def grant(self, *kinds: str) -> None:
        for kind in kinds:
            self.execute(f"GRANT {GRANTS[kind].format(schema=self._schema)} TO {self.name}")


@pytest.fixture
def role(server: Server, schema: str, session: psycopg.Connection) -> Iterator[Role]:
    role = Role(server, schema, session)
    yield role
    role.execute(f"DROP OWNED BY {role.name}; DROP ROLE {role.name}")


@pytest.mark.parametrize("missing", GRANTS)
@pytest.mark.parametrize("pooled", [False, True], ids=["not pooled", "pooled"])
def test_the_missing_right_is_named_with_what_gives_it(role: Role, schema: str, missing: str, pooled: bool) -> None:
    role.grant(*(kind for kind in GRANTS if kind != missing))

    async def use() -> None:
        backend = PostgresBackend(role.conninfo, schema=schema, pooled=pooled)
        try:
            await backend.open()
            await backend.register(WorkerRecord(id="w"))
            await backend.enqueue([NewJob(id="a", task="t")])
        finally:
            await backend.close()

    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(use())
    wanted = GRANTS[missing].format(schema=f'"{schema}"')
    assert f"GRANT {wanted} TO {role.name};" in str(caught.value)
    role.grant(missing)  # what it says helps
    asyncio.run(use())


def test_with_those_rights_an_app_works(role: Role) -> None:
    role.grant(*GRANTS)
    with Holdfast(role.url) as app:

        @app.task(name="nothing", group="g", limit=3)
        def nothing(n: int) -> int:
            return n

        for n in range(10):
            nothing.enqueue(n)
        assert app.work(drain=True).succeeded == 10
        assert not app.audit().violations


def test_a_read_only_role_gets_an_error_from_drain_and_enqueue(role: Role, schema: str) -> None:
    role.grant("schema", "function")
    role.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role.name}")
    with Holdfast(role.url) as app:

        @app.task(name="nothing")
        def nothing() -> None:
            pass

        with pytest.raises(ConfigurationError, match=r"permission denied for table .*GRANT SELECT, INSERT"):
            app.work(drain=True)
        with pytest.raises(ConfigurationError, match="GRANT"):
            nothing.enqueue()


def test_the_doctor_says_that_a_role_cannot_write_and_what_lets_it(
    role: Role, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    role.grant("schema", "function")
    role.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role.name}")
    assert main(["doctor", "--url", role.url]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert f"the role '{role.name}' cannot write to this store" in told
    assert f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{role.name}"' in told
    role.grant("table", "sequence")
    main(["doctor", "--url", role.url])
    assert "cannot write" not in capsys.readouterr().out


def test_a_role_that_may_not_create_the_schema_is_told_so(role: Role) -> None:
    async def use() -> None:
        backend = PostgresBackend(role.conninfo, schema="not_there")
        try:
            await backend.open()
        finally:
            await backend.close()

    with pytest.raises(ConfigurationError, match=f"GRANT CREATE ON DATABASE postgres TO {role.name};"):
        asyncio.run(use())


@pytest.mark.parametrize("option", ["sslmode=nonsense", "target_session_attrs=x", "channel_binding=x"])
def test_an_option_that_libpq_does_not_know_is_the_urls_fault(server: Server, option: str) -> None:
    backend = PostgresBackend(f"{server.conninfo}&{option}")
    with pytest.raises(ConfigurationError, match=option.partition("=")[0]):
        asyncio.run(backend.open())


EVIL = """
CREATE SCHEMA {evil};
CREATE TABLE {evil}.called ();
GRANT USAGE ON SCHEMA {evil} TO PUBLIC;
CREATE FUNCTION {evil}.now() RETURNS timestamptz LANGUAGE sql AS
    'INSERT INTO {evil}.called DEFAULT VALUES; SELECT pg_catalog.now()';
CREATE FUNCTION {evil}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    'INSERT INTO {evil}.called DEFAULT VALUES; SELECT pg_catalog.clock_timestamp()';
CREATE FUNCTION {evil}.hashtext(text) RETURNS integer LANGUAGE sql AS
    'INSERT INTO {evil}.called DEFAULT VALUES; SELECT pg_catalog.hashtext($1)';
CREATE FUNCTION {evil}.jsonb_array_elements_text(jsonb) RETURNS SETOF text LANGUAGE sql AS
    'INSERT INTO {evil}.called DEFAULT VALUES; SELECT pg_catalog.jsonb_array_elements_text($1)'
"""


@pytest.mark.parametrize("pooled", [False, True], ids=["not pooled", "pooled"])
def test_functions_of_the_same_name_in_the_search_path_are_not_called(
    server: Server, schema: str, session: psycopg.Connection, pooled: bool
) -> None:
    evil = f"{schema}_evil"
    session.autocommit = True
    session.execute(EVIL.format(evil=evil))
    given = f"{server.conninfo}&options=-c%20search_path%3D{evil},pg_catalog"

    async def use() -> None:
        backend = PostgresBackend(given, schema=schema, pooled=pooled)
        await backend.open()
        await backend.register(WorkerRecord(id="w"))
        await backend.enqueue([NewJob(id="a", task="t")])
        await backend.enqueue([NewJob(id=name, task="t", group="g", key=name) for name in "bc"])
        await backend.dump()
        with psycopg.connect(given) as mine:
            backend.enqueue_on(mine, [NewJob(id="d", task="t")])
        await backend.close()

    try:
        asyncio.run(use())
        assert session.execute(f"SELECT count(*) FROM {evil}.called").fetchone() == (0,)
        with psycopg.connect(given) as mine:
            mine.execute("SELECT now()")  # the trap is one
            assert mine.execute(f"SELECT count(*) FROM {evil}.called").fetchone() == (1,)
    finally:
        session.execute(f"DROP SCHEMA {evil} CASCADE")
