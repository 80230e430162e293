"""The web program: `uvicorn mail_shop.api:api`. An order and its jobs are stored in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from holdfast import Holdfast, Job, JobNotFound
from holdfast.asgi import lifespan
from holdfast.dashboard import Access, create

from .database import Database, Order
from .jobs import REQUEST_ID, deliver_webhook, jobs, send_receipt
from .settings import settings


@asynccontextmanager
async def run(api: FastAPI) -> AsyncIterator[None]:
    api.state.database = database = Database()
    await database.create_tables()
    try:
        async with lifespan(jobs, worker=settings.worker)(api):
            yield
    finally:
        await database.close()


api = FastAPI(lifespan=run)


def staff_only(connection: Any) -> Access | None:
    """Who may see the dashboard: ask your own session here."""
    user = connection.headers.get("x-user")
    return None if user is None else Access(name=user, payload=True, operate=True)


api.mount("/jobs", create(jobs, access=staff_only))


@api.middleware("http")
async def request_id(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    REQUEST_ID.set(request.headers.get("x-request-id") or uuid.uuid4().hex)
    return await call_next(request)


# ------------------------------------------------------------------------------------------------ dependencies


async def get_session(request: Request) -> AsyncIterator[AsyncSession]:
    """A session. The handler commits it: after the response has begun it would be too late to report a failure."""
    database: Database = request.app.state.database
    async with database.sessions() as session:
        yield session


def get_jobs() -> Holdfast:
    return jobs


Session = Annotated[AsyncSession, Depends(get_session)]
Jobs = Annotated[Holdfast, Depends(get_jobs)]


# ------------------------------------------------------------------------------------------------ endpoints


class NewOrder(BaseModel):
    tenant: str
    email: str
    amount: int
    webhook: str | None = None


class Stored(BaseModel):
    order: int
    jobs: list[str]


class JobStatus(BaseModel):
    id: str
    task: str
    state: str
    attempts: int


@api.post("/orders", status_code=201)
async def place_order(new: NewOrder, session: Session) -> Stored:
    async with session.begin():
        order = Order(tenant=new.tenant, email=new.email, amount=new.amount)
        session.add(order)
        await session.flush()  # gives the order its id
        stored: list[Job[Any]] = [await send_receipt.options(connection=session).aenqueue(new.tenant, order.id)]
        if new.webhook is not None:
            call = deliver_webhook.options(connection=session)
            stored.append(await call.aenqueue(new.tenant, new.webhook, order.id))
        if new.amount <= 0:
            raise HTTPException(422, "the amount must be positive")  # rolls back the order and its jobs
    return Stored(order=order.id, jobs=[job.id for job in stored])


@api.get("/status/{job_id}")
async def job_status(job_id: str, app: Jobs) -> JobStatus:
    try:
        job = await app.ajob(job_id)
    except JobNotFound:
        raise HTTPException(404, "there is no such job") from None
    return JobStatus(id=job.id, task=job.task, state=job.state.value, attempts=job.attempts)
