"""Read by mypy, never run: results of other jobs as arguments; `# E: code` marks what must not pass."""

from __future__ import annotations

from typing import assert_type

from holdfast import Context, Holdfast, chain, group_of, result_of

app = Holdfast("memory://")


@app.task
def fetch(page: int) -> str:
    return str(page)


@app.task
async def count(ctx: Context, text: str, times: int = 1) -> int:
    return len(text) * times


@app.task
def add_up(numbers: list[int]) -> float:
    return float(sum(numbers))


page = fetch.bind(1)
number = count.bind(page.result, times=3)
assert_type(page.result, str)
assert_type(number.result, int)
assert_type(add_up.bind([number.result, 5]).result, float)
assert_type(result_of(page), str)
assert_type(result_of(count.enqueue("x")), int)
assert_type(chain(page, number).last.result, int)
count.enqueue(result_of(fetch.enqueue(1)), number.result)
add_up.options(delay=5).bind([number.result])
group_of(page, number, then=count.bind(page.result))

count.bind(number.result)  # E: arg-type
count.bind(page.result, times=page.result)  # E: arg-type
fetch.bind(page.result)  # E: arg-type
add_up.bind([page.result])  # E: list-item
add_up.bind(number.result)  # E: arg-type
count.bind(result_of(count.enqueue("x")))  # E: arg-type
count.bind(fetch.enqueue(1).result)  # E: arg-type
