"""Read by mypy, never run: hooks around jobs, as users type them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, assert_type

from holdfast import BoundCall, Context, Holdfast, Resources

app = Holdfast("memory://")


class Pool: ...


@app.around
def trace(ctx: Context, call_next: Callable[[], Any]) -> Any:
    return call_next()


@app.around(only="async")
async def atrace(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    return await call_next()


app.around(trace, atrace)
assert_type(trace(Context.current(), int), Any)


@app.around  # E: type-var
def no_context(call_next: Callable[[], Any]) -> Any:
    return call_next()


@app.around(only="both")  # E: call-overload, untyped-decorator
def odd(ctx: Context, call_next: Callable[[], Any]) -> Any:
    return call_next()


@app.on_startup
async def open_pool(resources: Resources) -> None:
    resources["db"] = Pool()


@app.on_shutdown
def close_pool(resources: Resources) -> None:
    assert_type(resources.of(Pool), Pool)
    assert_type(resources.of(Pool, "db"), Pool)


@app.on_enqueue
def stamp(call: BoundCall[Any], headers: dict[str, str]) -> None:
    headers["request_id"] = call.id


@app.on_enqueue  # E: type-var
def wrong(call: BoundCall[Any]) -> None: ...


@app.task
def work(ctx: Context) -> None:
    assert_type(ctx.headers, dict[str, str])
    assert_type(ctx.resources, Resources)


work.options(headers={"a": "b"}).enqueue()
work.options(headers={"a": 1})  # E: dict-item
app.configure(url="memory://", imports=["shop"])
