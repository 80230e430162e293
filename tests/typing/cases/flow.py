"""Read by mypy, never run: limits, keys and cron as they are typed; `# E: code` marks what must not pass."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from zoneinfo import ZoneInfo

from holdfast import Context, Holdfast, Job, Snooze, Task
from holdfast.cron.api import Backfilled, Entry
from holdfast.results import Step

app = Holdfast("memory://")
app.queue("mail", limit=5, rate="100/m", group_limit=None, group_order="relaxed", group_rate="1/s", aging=60)
app.queue("mail", group_order="loose")  # E: arg-type
app.queue("mail", rate=100)  # E: arg-type


@app.cron("0 9 * * MON-FRI", tz="Europe/Berlin", overlap="skip", catch_up="none", jitter=timedelta(seconds=5))
@app.task(limit=2, rate="5/s", retain_count=10, retain_dead=timedelta(days=7), on_expire="drop")
async def report(ctx: Context, day: str = "today") -> bytes:
    ctx.slow_down(5)
    raise Snooze(timedelta(minutes=1), queue=True)


@app.cron(every=30, name="ping")
def ping() -> int:
    return 1


@app.cron("* * * * *", tz=ZoneInfo("UTC"), args={"n": 1})
async def count(ctx: Context, n: int) -> str:
    return str(n)


assert_type(report.enqueue(), Job[bytes])
assert_type(ping.enqueue(), Job[int])
assert_type(count.enqueue(5), Job[str])
plain: Task[..., Any] = ping
tasks: Mapping[str, Task[..., Any]] = app.tasks
count.enqueue("five")  # E: arg-type
app.cron("* * * * *", overlap="maybe")  # E: arg-type
app.cron("* * * * *", colour="red")  # E: call-arg

assert_type(app.cron.list(), list[Entry])
assert_type(app.cron.get("ping").next_at, datetime | None)
assert_type(app.cron.add("x", count.bind(1), "0 * * * *", tz="UTC"), Entry)
assert_type(app.cron.run_now("x"), Job[Any])
assert_type(app.cron.next("x", 3), list[datetime])
assert_type(app.cron.backfill("x", datetime.now(UTC), datetime.now(UTC)), list[Backfilled])
app.cron.add("x", "count", every=5)  # E: arg-type
app.cron.pause("x", because="holidays")  # E: call-arg

app.queues.limit("mail", 5, rate=None)
app.queues.limit("mail", "none")
app.queues.limit("mail", "some")  # E: arg-type
app.groups.limit("mail", "ann", rate="5/s")
app.tasks.limit(report, None)
app.tasks.limit("report", rate=5)  # E: arg-type

report.options(key="k", on_conflict="debounce", wait=5, wait_max=timedelta(minutes=1)).enqueue()
report.options(key="k", on_conflict="throttle", window=60, key_scope="global").enqueue("monday")
report.options(on_conflict="latest")  # E: arg-type
report.options(limit=5)  # E: call-arg

for step in app.follow("id"):
    assert_type(step, Step)
app.work(task_slots={"report": 2}, group_slots=1, weights={"mail": 3}, queue_order="strict")
app.work(queue_order="random")  # E: arg-type
