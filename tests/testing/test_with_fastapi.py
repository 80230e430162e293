"""A FastAPI program whose tests roll back: request, transaction and job on one loop and one session."""

from __future__ import annotations

import asyncio
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import StaticPool

from holdfast import Holdfast
from holdfast.testing import sandbox

jobs = Holdfast("postgresql://nobody@nowhere.invalid/shop")  # never opened
api = FastAPI()
of_the_test: list[AsyncSession] = []


def get_session() -> AsyncSession:
    return of_the_test[0]


@jobs.task(name="welcome")
async def welcome(name: str) -> int:
    """How many users of that name the session of the test sees."""
    found = await get_session().execute(text("SELECT count(*) FROM users WHERE name = :name"), {"name": name})
    return int(found.scalar_one())


@api.post("/users/{name}", status_code=201)
async def sign_up(name: str, session: Annotated[AsyncSession, Depends(get_session)]) -> None:
    await session.execute(text("INSERT INTO users VALUES (:name)"), {"name": name})
    await welcome.using(connection=session).aenqueue(name)
    if name == "admin":
        await session.rollback()
        raise HTTPException(409)
    await session.commit()


def test_a_request_its_job_and_the_rollback_of_the_test() -> None:
    async def scene() -> None:
        engine = create_async_engine("sqlite+aiosqlite://", poolclass=StaticPool)
        async with engine.begin() as setup:
            await setup.execute(text("CREATE TABLE users (name)"))
        async with (
            engine.connect() as connection,
            AsyncSession(connection, join_transaction_mode="create_savepoint") as session,
        ):
            outer = await connection.begin()
            of_the_test[:] = [session]
            with sandbox(jobs) as box:
                async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as client:
                    assert (await client.post("/users/ann")).status_code == 201
                    assert (await client.post("/users/admin")).status_code == 409
                box.assert_enqueued(welcome, name="ann", count=1)
                box.assert_not_enqueued(welcome, name="admin")
                assert (await box.adrain(inline=True, raises=True)).succeeded == 1
                assert [job.value for job in box.enqueued()] == [1]
            await session.close()
            await outer.rollback()
        of_the_test.clear()
        await engine.dispose()

    asyncio.run(scene())
