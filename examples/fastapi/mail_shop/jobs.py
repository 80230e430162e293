"""The shop's jobs. `holdfast work mail_shop.jobs:jobs` runs them; the web program only enqueues."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import httpx

from holdfast import BoundCall, Bury, Context, Holdfast, Resources, RetryPolicy, Snooze

from .database import Database, Order
from .settings import settings

logger = logging.getLogger(__name__)
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="-")

jobs = Holdfast(settings.database)
jobs.queue("mail")  # strict groups: the mails of one tenant go out one after another, in order
jobs.queue("webhooks", rate="50/s", group_limit=2, group_order="relaxed")  # a slow tenant holds two slots, not all

# ------------------------------------------------------------------------------------------------ around every job


@jobs.on_startup
async def open_connections(resources: Resources) -> None:
    resources["database"] = Database()
    resources["http"] = httpx.AsyncClient(transport=settings.transport, timeout=10)


@jobs.on_shutdown
async def close_connections(resources: Resources) -> None:
    await resources.of(httpx.AsyncClient).aclose()
    await resources.of(Database).close()


@jobs.on_enqueue
def carry_request_id(call: BoundCall[Any], headers: dict[str, str]) -> None:
    headers.setdefault("request_id", REQUEST_ID.get())


@jobs.around
async def with_request_id(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    REQUEST_ID.set(ctx.headers.get("request_id", "-"))
    return await call_next()


# ------------------------------------------------------------------------------------------------ tasks


@jobs.task(queue="mail", group=lambda tenant: tenant, retry=5, timeout=30)
async def send_receipt(ctx: Context, tenant: str, order: int) -> str:
    """Send a receipt once: the mail service ignores a second request with the same idempotency key."""
    database, http = ctx.resources.of(Database), ctx.resources.of(httpx.AsyncClient)
    async with database.sessions() as session:
        row = await session.get(Order, order)
    if row is None:
        raise Bury(f"there is no order {order}")
    answer = await http.post(
        settings.mail_api,
        json={"to": row.email, "text": f"Thank you. You paid {row.amount} cents."},
        headers={"Idempotency-Key": ctx.id, "X-Request-Id": REQUEST_ID.get()},
    )
    answer.raise_for_status()
    async with database.sessions() as session, session.begin():
        (await session.get_one(Order, order)).receipt_sent = True
    logger.info("receipt of order %s sent", order)
    return row.email


@jobs.task(
    queue="webhooks",
    group=lambda tenant: tenant,
    retry=RetryPolicy(limit=8, base=10, factor=3, cap=3600, on=(httpx.TransportError, httpx.HTTPStatusError)),
    timeout=15,
)
async def deliver_webhook(ctx: Context, tenant: str, url: str, order: int) -> int:
    """Tell a tenant about an order. One that is overloaded says when to come back, and that costs no retry."""
    http = ctx.resources.of(httpx.AsyncClient)
    answer = await http.post(url, json={"order": order}, headers={"Idempotency-Key": ctx.id})
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise Snooze(float(answer.headers.get("Retry-After", "60")))
    if answer.status_code == httpx.codes.GONE:
        raise Bury("the tenant has removed this webhook")
    answer.raise_for_status()
    return answer.status_code
