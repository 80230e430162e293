"""A shop with moving data for `holdfast demo --dashboard`: its tasks, and who keeps enqueueing.

Imported by the demo's worker as `holdfast.cli.demo.shop:app`; `keep_busy` runs in the demo's own process. Handlers wait
and fail at random, so that every screen has something to show.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator

from ...app import Holdfast
from ...context import Context
from ...errors import HoldfastError
from ...retry import RetryPolicy

SEND_SECONDS, CHARGE_SECONDS, PAGE_SECONDS = (0.05, 0.6), (0.2, 1.5), (0.3, 1.2)
app = Holdfast("sqlite:///holdfast-demo.db")  # the command gives the demo's own store
app.queue("billing", limit=6)


class GatewayTimeout(Exception):
    """The payment gateway did not answer."""


@app.task(name="mail.send_receipt", queue="mail", retry=3)
async def send_receipt(to: str, order: int) -> str:
    await asyncio.sleep(random.uniform(*SEND_SECONDS))
    if random.random() < 0.02:
        raise ConnectionError("mx-2 closed the connection")
    return f"sent to {to}"


@app.task(
    name="billing.charge",
    queue="billing",
    group=lambda customer: f"customer:{customer}",
    retry=RetryPolicy(limit=2, base=2.0),
)
async def charge(ctx: Context, customer: int, amount: str, card_number: str = "") -> None:
    ctx.log(f"charge {amount} to customer {customer}")
    await asyncio.sleep(random.uniform(*CHARGE_SECONDS))
    if random.random() < 0.12:
        raise GatewayTimeout("gateway did not answer within 30 s")


@app.task(name="pdf.render", queue="pdf", limit=3, timeout=60)
async def render(ctx: Context, report: str, pages: int) -> None:
    for page in range(pages):
        await asyncio.sleep(random.uniform(*PAGE_SECONDS))
        ctx.progress((page + 1) / pages, f"page {page + 1} of {pages}")


@app.cron("*/1 * * * *", name="stock")
@app.task(name="stock.sync", queue="default")
async def sync() -> None:
    await asyncio.sleep(1)


async def enqueue_some(shop: Holdfast, rng: random.Random) -> None:
    """A moment's orders."""
    customer = rng.randint(4800, 4830)
    calls = [shop.task_by_name("mail.send_receipt", queue="mail"), shop.task_by_name("pdf.render", queue="pdf")]
    for _ in range(rng.randint(1, 5)):
        await calls[0].aenqueue(to=f"u{customer}@example.com", order=rng.randint(80_000, 90_000))
    billing = shop.task_by_name("billing.charge", queue="billing", group=f"customer:{customer}")
    await billing.aenqueue(customer=customer, amount=f"{rng.uniform(5, 300):.2f}", card_number="4242424242424242")
    if rng.random() < 0.15:
        await calls[1].aenqueue(report=f"week {rng.randint(1, 52)}", pages=rng.randint(3, 14))
    if rng.random() < 0.2:
        later = shop.task_by_name("mail.send_receipt", queue="mail", delay=rng.choice([20.0, 120.0, 3600.0]))
        await later.aenqueue(to=f"u{customer}@example.com", order=0)


@contextlib.contextmanager
def keep_busy(url: str, seconds: float = 0.7) -> Iterator[None]:
    """Somebody who keeps ordering, in a thread of their own."""
    ended = threading.Event()

    def order() -> None:
        rng = random.Random()
        with Holdfast(url) as shop:
            while not ended.wait(rng.uniform(0.2, 2 * seconds)):
                with contextlib.suppress(HoldfastError):  # the store may be busy: the next order comes soon
                    asyncio.run(enqueue_some(shop, rng))

    thread = threading.Thread(target=order, name="orders", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)
