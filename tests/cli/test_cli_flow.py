"""Commands about limits, rates and slow-downs: queues, tasks, groups, explain, and the worker's own caps."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.cli.shells import Shell, wait_until

from holdfast import Holdfast
from holdfast.backends import open_backend
from holdfast.worker_status import draw


def slow_down(url: str, queue: str) -> None:
    backend = open_backend(url)

    async def play() -> None:
        await backend.open()
        await backend.slow_down(queue, 3600.0)
        await backend.close()

    asyncio.run(play())


def slowed(shell: Shell) -> dict[str, Any] | None:
    """The queues by name, once two of them are slowed down."""
    found = {queue["name"]: queue for queue in shell.json("queues")["queues"]}
    return found if sum(queue["slowed_until"] is not None for queue in found.values()) == 2 else None


def test_queues_show_how_many_jobs_of_a_group_live_workers_lease_together(shell: Shell) -> None:
    shell("queues", "limit", "mail", "2")
    shell("queues", "limit", "bills", "2")
    assert {queue["group_prefetch"] for queue in shell.json("queues")["queues"]} == {1}
    shell.worker("w1", draw([], group_prefetch={"mail": 16}))
    shell.worker("w2", draw([], group_prefetch={"mail": 8}))
    found = {queue["name"]: queue["group_prefetch"] for queue in shell.json("queues")["queues"]}
    assert found == {"mail": 16, "bills": 1}
    assert "strict 1, prefetch 16" in shell("queues").stdout


def test_a_queue_is_limited_lifted_and_reset(shell: Shell) -> None:
    with Holdfast(shell.url) as app:
        app.queue("mail", limit=5, rate="100/m")
        app.open()
    told = shell("queues", "limit", "mail", "2")
    assert told.stdout == "queue 'mail': limit 2 (code: 5), rate 100/m.\n"
    assert shell.url in told.stderr
    assert "none (code: 5)" in shell("queues", "limit", "mail", "none").stdout
    assert "5/10s (code: 100/m)" in shell("queues", "rate", "mail", "5/10s").stdout
    [mail] = shell.json("queues")["queues"]
    assert (mail["limit"], mail["rate"]) == (5, "100/m")
    assert mail["override"] == {"limit": "none", "rate": "5/10s"}
    assert mail["in_force"] == {"limit": None, "rate": "5/10s"}
    shell("queues", "limit", "mail", "reset")
    document = shell.json("queues", "rate", "mail", "reset")
    assert document["queue"]["override"] is None
    assert document["store"] == shell.url
    assert "100/m" in shell("queues").stdout


def test_a_dry_run_changes_nothing(shell: Shell) -> None:
    assert (
        "would change queue 'mail' to 2; nothing was changed."
        in shell("queues", "limit", "mail", "2", "--dry-run").stderr
    )
    assert shell.json("tasks", "rate", "send", "1/s", "--dry-run")["dry_run"] is True
    assert shell.json("queues")["queues"] == []
    assert shell.json("tasks")["tasks"] == []


@pytest.mark.parametrize(
    "words",
    [
        ("queues", "limit", "mail", "0"),
        ("queues", "limit", "mail", "some"),
        ("queues", "rate", "mail", "fast"),
        ("tasks", "limit", "send", "-1"),
        ("group", "mail", "ann", "--rate", "1/fortnight"),
        ("queues", "burn", "mail"),
    ],
)
def test_a_slip_is_said_and_changes_nothing(shell: Shell, words: tuple[str, ...]) -> None:
    shell.job(queue="mail", group="ann")
    assert shell.error(*words, code=2)["code"] == "usage"
    assert shell.json("queues")["queues"][0]["override"] is None


def test_options_go_behind_the_last_word(shell: Shell) -> None:
    told = shell("queues", "--json", "limit", "mail", "5", code=2)
    assert "put options after 'limit'" in told.output


def test_a_queue_is_paused_and_resumed_by_name(shell: Shell) -> None:
    shell.job(queue="mail")
    assert shell("queues", "pause", "mail", "--reason", "deploy").stdout == "paused queue 'mail'.\n"
    assert shell.json("queues")["queues"][0]["pause"]["reason"] == "deploy"
    assert shell("queues", "resume", "mail").stdout == "resumed queue 'mail'.\n"


def test_a_slow_down_is_ended_by_resume(shell: Shell) -> None:
    shell.job(queue="mail")
    slow_down(shell.url, "mail")
    assert shell.json("queues")["queues"][0]["slowed_until"] is not None
    assert shell("queues", "resume", "mail").stdout == "resumed queue 'mail'.\n"
    assert shell.json("queues")["queues"][0]["slowed_until"] is None
    assert shell("resume", "-q", "mail").stdout == "queue 'mail' was neither paused nor slowed down.\n"


def test_tasks_lists_what_live_workers_have(shell: Shell) -> None:
    shell.worker("w1", draw([], tasks=["send", "pay"]))
    shell.worker("w2", draw([], tasks=["send"]))
    shell("tasks", "limit", "other", "3")
    found = {task["name"]: task["workers"] for task in shell.json("tasks")["tasks"]}
    assert found == {"send": 2, "pay": 1, "other": 0}
    assert [line.split()[:2] for line in shell("tasks").stdout.splitlines()[-2:]] == [["pay", "1"], ["send", "2"]]
    shell("tasks", "limit", "send", "3")
    undeclared = [line.split()[0] for line in shell("tasks").stdout.splitlines() if "not declared" in line]
    assert undeclared == ["other"]  # a task that a live worker has is declared, even without a rule of its own


def test_tasks_show_what_the_store_knows(shell: Shell) -> None:
    assert "none has a limit" in shell("tasks").stderr
    assert "limit 3 (code: none)" in shell("tasks", "limit", "send", "3").stdout
    shell("tasks", "rate", "send", "7/s")
    [send] = shell.json("tasks")["tasks"]
    assert (send["name"], send["declared"], send["in_force"]) == ("send", False, {"limit": 3, "rate": "7/s"})
    told = shell("tasks").stdout
    assert "not declared by code" in told
    assert "7/s (code: none)" in told
    shell("tasks", "limit", "send", "reset")
    shell("tasks", "rate", "send", "reset")
    assert shell.json("tasks")["tasks"] == []


def test_a_group_has_limits_and_rates_of_its_own(shell: Shell) -> None:
    with Holdfast(shell.url) as app:
        app.queue("bulk", group_limit=3, group_order="relaxed", group_rate="10/s")
        app.open()
    shell.job(queue="bulk", group="ann")
    document = shell.json("group", "bulk", "ann", "--limit", "2", "--rate", "5/s")["group"]
    assert (document["limit"], document["override"]) == (2, 2)
    assert (document["rate"], document["rate_override"]) == ("5/s", "5/s")
    assert "override 5/s" in shell("groups").stdout
    document = shell.json("group", "bulk", "ann", "--no-limit", "--rate", "reset")["group"]
    assert (document["limit"], document["rate"], document["rate_override"]) == (3, "10/s", None)
    assert "10/s" in shell("group", "bulk", "ann").stdout
    assert shell.json("group", "bulk", "ann", "--limit", "none")["group"]["override"] == 1_000_000_000
    assert "none (override none)" in shell("group", "bulk", "ann").stdout


def test_explain_says_what_holds_a_job_back(shell: Shell) -> None:
    held = shell.job("fail", id="held", queue="default")
    shell("queues", "limit", "default", "1")
    shell("queues", "rate", "default", "1/h")
    shell("tasks", "limit", "fail", "1")
    shell("tasks", "rate", "fail", "1/h")
    shell.crash(held)  # claimed once, so the buckets are charged; ready again
    sentences = shell.json("explain", "held")["explanation"]["reasons"]
    told = " ".join([shell.json("explain", "held")["explanation"]["summary"], *sentences])
    assert "Queue 'default' has used up its rate of 1/h; the next may start" in told
    assert "Task 'fail' has used up its rate of 1/h; the next may start" in told
    slow_down(shell.url, "default")
    told = shell("explain", "held").stdout
    assert "Queue 'default' is slowed down; nothing of it starts before" in told
    assert "slowed down, goes on in" in shell("queues").stdout
    assert shell.json("queues")["queues"][0]["slowed_until"] is not None


def test_a_worker_takes_caps_weights_and_an_order(shell: Shell) -> None:
    for _ in range(3):
        shell.job(queue="mail")
    work = ("work", f"{shell.module}:app", "--app-dir", str(shell.directory), "--drain", "--runners", "1")
    shell(*work, "--task-slots", "send=1", "--group-slots", "1", "--weight", "mail=3", "-q", "mail,default")
    assert shell.json("jobs", "succeeded")["jobs"][2]["state"] == "succeeded"
    tasks = {task["name"]: task for task in shell.json("tasks")["tasks"]}
    assert tasks["send"]["apart"] is True
    shell(*work, "-q", "mail", "--strict-order")
    assert shell.json("tasks")["tasks"] == []
    assert "needs queues=" in shell(*work, "--strict-order", code=2).output
    assert "pdf=2" in shell(*work, "--task-slots", "pdf", code=2).output


def test_work_takes_only_the_given_priorities(shell: Shell) -> None:
    low, high = shell.job(), shell.job(priority=7)
    work = ("work", f"{shell.module}:app", "--app-dir", str(shell.directory), "--drain", "--runners", "1")
    shell(*work, "--priority", "5..10")
    assert [shell.json("job", one)["job"]["state"] for one in (low, high)] == ["ready", "succeeded"]
    shell(*work, "--priority", "-5..0")
    assert shell.json("job", low)["job"]["state"] == "succeeded"
    assert "0..10" in shell(*work, "--priority", "high", code=2).output


def test_who_takes_which_priorities_is_shown_and_explained(shell: Shell) -> None:
    shell.worker("w1", draw([], priority=(5, 10)))
    low, high = shell.job(queue="mail"), shell.job(queue="mail", priority=7)
    assert shell.json("workers")["workers"][0]["priority"] == [5, 10]
    assert "priority 5..10" in shell("workers").stdout
    told = shell("explain", low).stdout
    assert "takes jobs of its priority, which is 0; they take 5..10" in " ".join(told.split())
    assert "by 1 live worker" in shell("explain", high).stdout
    told = shell("doctor", code=1).stdout
    assert "priorities" in told and "mail (1)" in told
    shell.worker("w2", draw([]))
    assert "by 1 live worker" in shell("explain", low).stdout


def test_a_job_is_followed_to_its_end(shell: Shell) -> None:
    job = shell.job(queue="mail")
    shell.drain()
    told = shell("job", job[:8], "--follow")
    assert told.stdout.startswith("sending times=1")
    assert told.stderr.endswith("succeeded\n")
    lines = shell("job", job, "--follow", "--json").stdout.splitlines()
    assert '"kind": "log"' in lines[0]
    assert '"state": "succeeded"' in lines[-1]
    dead = shell.job("fail", id="gone")
    shell("bury", dead)
    assert "dead" in shell("job", dead, "--follow", code=1).stderr


BUSY = """
from holdfast import Snooze

@app.task(name="busy", queue="remote")
def busy(ctx: Context, to: str) -> None:
    ctx.slow_down(3600)

@app.task(name="snoozing", queue="other")
async def snoozing(to: str) -> None:
    raise Snooze(3600, queue=True)
"""


def test_handlers_in_runner_processes_slow_their_queues_down(shell: Shell) -> None:
    path = shell.directory / f"{shell.module}.py"
    path.write_text(path.read_text() + BUSY)
    for _ in range(3):
        shell.job("busy", queue="remote")
        shell.job("snoozing", queue="other")
    options = ("--runners", "1", "--slots", "1", "-q", "remote:1,other:1", "--weight", "other=1")
    work = ["work", f"{shell.module}:app", "--app-dir", str(shell.directory), *options]
    with subprocess.Popen([sys.executable, "-m", "holdfast.cli", *work]) as worker:
        queues = wait_until(lambda: slowed(shell), 60)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert queues["remote"]["counts"].get("succeeded", 0) <= 1
    counts = {queue["name"]: queue["counts"] for queue in shell.json("queues")["queues"]}
    assert counts["remote"] == {"ready": 2, "succeeded": 1}
    assert counts["other"] == {"ready": 2, "scheduled": 1}
