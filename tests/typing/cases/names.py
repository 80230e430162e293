"""Names and types of the public face: events by name, families of options, calling a task."""

from __future__ import annotations

from holdfast import RESET, UNLIMITED, Context, Holdfast, Retention, TaskRouter, Unique, events

app = Holdfast("memory://")
tasks = TaskRouter()


@app.on("dead")
def on_dead(event: events.Dead) -> None:
    print(event.reason)


@app.on("succeeded")
async def on_success(event: events.JobEvent) -> None:
    print(event.job_id)


@app.on("dead")  # E: arg-type
def on_wrong(event: events.Succeeded) -> None: ...


@app.task(unique=Unique(key="k", on_conflict="throttle", window=5), retention=Retention(finished=999))
async def send(ctx: Context, to: str) -> int:
    return len(to)


Unique(key="k", on_conflict="sometimes")  # E: arg-type
Retention(finshed=5)  # E: call-arg
send.options(delay=60).enqueue("ann")
send.options(dealy=60)  # E: call-arg
send.options(delay=60).enqueue(5)  # E: arg-type
send("ann")
app.on("deaad")  # E: call-overload
send(5)  # E: arg-type
app.queues.limit("mail", UNLIMITED)
app.queues.limit("mail", RESET, rate=RESET)
app.queues.limit("mail", "reset")  # E: arg-type
app.task_by_name("x", queue="q").options(delay=1).enqueue(1)
reachable: int = "no"  # E: assignment
