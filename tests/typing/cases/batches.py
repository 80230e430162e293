"""Batch handlers: what they are called with, what they return, and how their jobs are enqueued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from holdfast import Call, Context, Holdfast, Job

app = Holdfast("memory://")


@dataclass
class Mail:
    to: str
    copies: int = 1


@app.task(batch=100, batch_of=Mail, batch_within=0.2, queue="mail")
def send(calls: list[Call[Mail]]) -> None:
    for call in calls:
        assert_type(call.args.to, str)
        print(call.args.bcc)  # E: attr-defined
        call.log(call.id)


@app.task(batch=100, batch_of=Mail)
async def price(ctx: Context, calls: list[Call[Mail]]) -> list[float | BaseException]:
    return [call.args.copies * 0.5 for call in calls]


@app.task(batch=10)
def loose(calls: list[Call[dict[str, object]]]) -> None:
    print([call.args for call in calls])


send.enqueue("ann")
send.enqueue(to="ann", copies=2)
send.enqueue(copies=2)  # E: call-arg
send.enqueue("ann", "two")  # E: arg-type
send.bind(7)  # E: arg-type
loose.enqueue(anything=1)
assert_type(price.enqueue("ann"), Job[float])
assert_type(send.enqueue("ann"), Job[None])


@app.task(batch=100, batch_of=Mail)  # E: arg-type
def wrong(to: str) -> None: ...
