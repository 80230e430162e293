"""The callers' own connections that connection= takes, all driven alike: one class, whatever the driver."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from holdfast import Job, Task

SYNC = ("psycopg", "sqlalchemy connection", "sqlalchemy session")
ASYNC = ("psycopg async", "sqlalchemy async connection", "sqlalchemy async session", "asyncpg")


class Caller:
    """Somebody with a database connection of their own. `address` is a SQLAlchemy URL; psycopg takes `conninfo`."""

    def __init__(self, kind: str, address: str, conninfo: str = "") -> None:
        self.kind, self.is_async = kind, kind in ASYNC
        self._address, self._conninfo = address, conninfo
        self.connection: Any = None
        self._engine: Any = None
        self._begun: Any = None  # asyncpg's transaction
        self._begins = False

    async def open(self, **options: Any) -> Caller:
        """Connect; options are the driver's (psycopg) or the engine's (SQLAlchemy)."""
        if self.kind == "psycopg":
            self.connection = psycopg.connect(self._conninfo, **options)
        elif self.kind == "psycopg async":
            self.connection = await psycopg.AsyncConnection.connect(self._conninfo, **options)
        elif self.kind == "asyncpg":
            self._begins = not options.pop("autocommit", False)
            self.connection = await asyncpg.connect(self._conninfo, **options)
        elif self.is_async:
            self._engine = create_async_engine(self._address, **options)
            session = self.kind.endswith("session")
            self.connection = AsyncSession(self._engine) if session else await self._engine.connect()
        else:
            self._engine = create_engine(self._address, **options)
            self.connection = Session(self._engine) if self.kind.endswith("session") else self._engine.connect()
        return self

    async def begin(self) -> None:
        """Begin a transaction, unless one is open or the driver does it itself."""
        if self._begins and self._begun is None:
            self._begun = self.connection.transaction()
            await self._begun.start()

    async def _do(self, name: str) -> None:
        if self.kind == "asyncpg" and name != "close":
            begun, self._begun = self._begun, None
            if begun is not None:
                await getattr(begun, name)()
            return
        answer = getattr(self.connection, name)()
        if self.is_async:
            await answer

    async def commit(self) -> None:
        await self._do("commit")

    async def rollback(self) -> None:
        await self._do("rollback")

    async def execute(self, statement: str) -> None:
        """Execute a statement in this caller's transaction."""
        if "sqlalchemy" in self.kind:
            session = self.kind.endswith("session")
            done = (self.connection.execute if session else self.connection.exec_driver_sql)(
                text(statement) if session else statement
            )
        else:
            done = self.connection.execute(statement)
        if self.is_async:
            await done

    async def enqueue(self, task: Task[..., Any], *args: Any, **options: Any) -> Job[Any]:
        """Enqueue in this caller's transaction."""
        await self.begin()
        using = task.using(connection=self.connection, **options)
        return await using.aenqueue(*args) if self.is_async else using.enqueue(*args)

    async def close(self) -> None:
        await self._do("close")
        if self._engine is not None:
            done = self._engine.dispose()
            if self.is_async:
                await done
