"""`holdfast signal`, and what `holdfast job` and `holdfast explain` tell about a job that sleeps."""

from __future__ import annotations

from typing import Any

from tests.cli.shells import Shell

from holdfast import Context, Holdfast


def test_a_job_that_sleeps_is_shown_explained_and_woken(shell: Shell) -> None:
    app = Holdfast(shell.url)

    @app.task(name="order")
    def order(ctx: Context) -> Any:
        ctx.step("charge", dict, amount=7)
        return ctx.wait_for("paid", timeout=3600)

    @app.task(name="nap")
    def nap(ctx: Context) -> None:
        ctx.sleep(days=3)

    with app:
        job, sleeper = order.enqueue(), nap.enqueue()
        app.work(drain=True)
        lines = shell("job", job.id).stdout.splitlines()
        steps = lines[lines.index("steps") :]
        assert [line.split()[:3] for line in steps[3:5]] == [["1", "step", "charge"], ["2", "wait", "paid"]]
        charge, wait = shell.json("job", job.id)["steps"]
        assert (charge["name"], charge["value"], charge["until"]) == ("charge", {"amount": 7}, None)
        assert (wait["kind"], wait["number"], wait["value"]) == ("wait", 2, None) and wait["until"]
        assert "It waits for signal 'paid'" in shell("explain", job.id).stdout
        assert f"holdfast signal {job.id} paid VALUE" in shell("explain", job.id).stdout
        assert "It sleeps (ctx.sleep, 'sleep-1') until" in shell("explain", sleeper.id).stdout
        assert shell.json("signal", job.id, "paid", '{"amount": 7}')["job"]["state"] == "ready"
        assert shell("signal", sleeper.id, "other", "plain words").stdout.split()[-1] == "scheduled"
        assert shell.json("job", sleeper.id)["steps"][-1]["value"] == "plain words"
        app.work(drain=True)
        assert job.result(timeout=10) == {"amount": 7}
    assert shell.error("signal", job.id, "paid", code=1)["code"] == "failed"
    assert shell.error("signal", "nobody", "paid", code=3)["code"] == "not_found"
