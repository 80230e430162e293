"""The project's tasks: Holdfast's and, on Django 6, Django's. Found by their module's name."""

from __future__ import annotations

import asyncio
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connection, transaction

import django
from holdfast import Context
from holdfast.django import app

from .models import Order


@app.task
def pay(order: int) -> str:
    """Change a row through the ORM."""
    placed = Order.objects.get(pk=order)
    placed.state = "paid"
    placed.save()
    return str(placed.state)


@app.task(retry=0)
def ship(ctx: Context, commits: bool) -> None:
    """Make a row and end the job in one transaction."""
    with transaction.atomic():
        Order.objects.create(state="shipped")
        ctx.succeed("shipped", connection=connection)
        transaction.set_rollback(not commits)


@app.task(retry=0)
async def acount() -> int:
    """Count rows from async code."""
    return int(await Order.objects.acount())


@app.task(retry=0)
async def apay(order: int) -> str:
    """Change a row from async code."""
    placed = await Order.objects.aget(pk=order)
    placed.state = "paid"
    await placed.asave()
    return str(placed.state)


@app.task(retry=0)
def fail(secret_token: str = "") -> None:
    """Fail for good."""
    raise ValueError("out of stock")


@app.task
def take(number: Decimal, at: datetime, id: UUID, text: str, more: Any = None) -> str:
    """Take what Django code has at hand."""
    return f"{number} {at.isoformat()} {id} {text}"


@app.cron("0 3 * * *")
@app.task
def nightly() -> None:
    """A cron entry for the admin."""


if django.VERSION >= (6, 0):
    from django.tasks import TaskContext, task

    runs: list[int] = []

    @task
    def add(one: int, other: int = 1) -> int:
        return one + other

    @task
    async def aadd(one: int, other: int = 1) -> int:
        return one + other

    @task(takes_context=True)
    def second_time_lucky(context: TaskContext) -> list[int]:
        runs.append(context.attempt)
        if context.attempt == 1:
            raise ValueError("not yet")
        return runs

    @task(backend="once")
    def never() -> None:
        raise ValueError("not here")

    @task(backend="brief")
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    @task(queue_name="default")
    def set_paid(order: int) -> int:
        return int(Order.objects.filter(pk=order).update(state="paid"))
