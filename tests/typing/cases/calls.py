"""Read by mypy, never run: what must pass, and, marked `# E: code`, what must not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import assert_type

from holdfast import (
    BoundCall,
    Context,
    DeadLetter,
    Enqueued,
    Holdfast,
    Job,
    RetryPolicy,
    Revival,
    Tasks,
    testing,
)

app = Holdfast("memory://", imports=["mail.tasks"])
tasks = Tasks()


@app.task
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


@app.task
def with_context(ctx: Context, to: str) -> str:
    return to


@app.task(queue="mail", retry=RetryPolicy(limit=5), timeout=timedelta(seconds=3), group=lambda to: to)
async def send(ctx: Context, to: str, subject: str) -> str:
    return subject


@tasks.task(name="other", revive=Revival(after=60), aliases=("old",))
def included(*, day: datetime) -> None: ...


app.include(tasks)

# ---------------------------------------------------------------------- what must pass

assert_type(add.enqueue(1), Job[int])
assert_type(add.enqueue(1, b=2).result(timeout=1), int)
assert_type(add.bind(1, 2), BoundCall[int])
assert_type(fetch.enqueue("u"), Job[bytes])
assert_type(with_context.enqueue("ann"), Job[str])
assert_type(send.enqueue("ann", "hi").result(), str)
assert_type(send.enqueue(to="ann", subject="hi"), Job[str])
assert_type(send.options(delay=60, priority=5, key="k").enqueue("ann", "hi"), Job[str])
assert_type(send.options(at=datetime.now(UTC)).options(group=lambda to: to).bind("ann", "hi"), BoundCall[str])
assert_type(included.enqueue(day=datetime.now(UTC)), Job[None])
assert_type(app.enqueue(add.bind(1)), Job[int])
assert_type(app.enqueue_many(add.bind(n) for n in range(3)), Enqueued)
assert_type(app.dead.list(), list[DeadLetter])
app.task_by_name("pdf.render", queue="pdf").enqueue(7, anything="goes")
add.fn(1, 2)


async def main() -> None:
    assert_type(await send.aenqueue("ann", "hi"), Job[str])
    assert_type(await (await fetch.aenqueue("u")).aresult(timeout=1), bytes)
    assert_type(await app.aenqueue(add.bind(1)), Job[int])

    async def calls() -> AsyncIterator[BoundCall[int]]:
        yield add.bind(1)

    assert_type(await app.aenqueue_many(calls()), Enqueued)
    async with app.worker(slots=3, lease=5):
        pass
    with testing.sandbox(app) as box:
        box.assert_enqueued(send, to="ann", count=1)
        box.clock.advance(hours=1)


asyncio.run(main())

# ---------------------------------------------------------------------- what must not

add.enqueue("1")  # E: arg-type
add.enqueue()  # E: call-arg
add.enqueue(1, 2, 3)  # E: call-arg
add.enqueue(1, c=2)  # E: call-arg
add.bind(1, b="2")  # E: arg-type
fetch.enqueue(1)  # E: arg-type
with_context.enqueue(1)  # E: arg-type
with_context.enqueue("ann", "bob")  # E: call-arg
send.enqueue("ann")  # E: call-arg
send.enqueue("ann", 7)  # E: arg-type
send.options(delay=60).enqueue(7, "hi")  # E: arg-type
send.options(delay="soon")  # E: arg-type
send.options(colour="red")  # E: call-arg
send.options(on_conflict="drop")  # E: arg-type
included.enqueue(day="today")  # E: arg-type
wrong: str = add.enqueue(1).result()  # E: assignment
app.enqueue(add)  # E: arg-type
app.queue("mail", group_order="loose")  # E: arg-type
app.task(retries=3)  # E: call-overload
app.queue("mail", limits=3)  # E: call-arg
app.worker(slot=3)  # E: call-arg
app.work(slot=3)  # E: call-arg
app.cron("* * * * *", timezone="UTC")  # E: call-arg
RetryPolicy(limits=3)  # E: call-arg
Revival(delay=3)  # E: call-arg
Holdfast("memory://", import_="x")  # E: call-arg


def plus(a: int, b: int = 1) -> int:
    return a + b


async def get(url: str) -> bytes:
    return url.encode()


def stepping(ctx: Context) -> None:
    assert_type(ctx.step("a", plus, 1, b=2), int)
    assert_type(ctx.version("v", 2), int)
    ctx.sleep(days=3)
    ctx.step("b", plus, "1")  # E: call-overload
    ctx.step(7, plus, 1)  # E: call-overload


async def astepping(ctx: Context) -> None:
    assert_type(await ctx.step("a", get, "u"), bytes)
    assert_type(await ctx.astep("b", plus, 1), int)
    assert_type(await ctx.astep("c", get, "u"), bytes)
    await ctx.sleep(timedelta(days=3))
    ctx.step("d", get, "u")  # E: unused-coroutine


async def must_not() -> None:
    await send.aenqueue("ann")  # E: call-arg
    await fetch.aenqueue(b"u")  # E: arg-type
    number: int = await (await fetch.aenqueue("u")).aresult()  # E: assignment
    print(number)
