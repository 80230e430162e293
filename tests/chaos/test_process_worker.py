"""`holdfast work` as keeper, guard and runners: work is done, stopped in order, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from holdfast.lifecycle import State
from holdfast.worker.processes.resource_limits import memory_of
from tests.chaos.process_scene import Family, ProcessScene, alive, below, children, send
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos


def test_a_drain_runs_every_job_once_on_all_runners_and_leaves_no_process(stage: ProcessScene) -> None:
    with stage.app() as app:
        calls = [app.named(name).bind(n=n) for n in range(200) for name in ("quick", "quick_thread")]
        app.enqueue_many([app.named("waits").bind(), *calls])
        family = stage.start("--runners", "2", "--slots", "8", "--drain")
        until(lambda: len(stage.lines("import")) == 2, what="both runners")
        stage.open_gate()
        assert family.keeper.wait(60) == 0
        assert app.counts()["default"][State.SUCCEEDED] == 401
        assert app.audit().violations == []
    starts = stage.lines("start")
    assert len(starts) == len({line["job"] for line in starts}) == 401
    imports = stage.lines("import")
    assert len({line["pid"] for line in imports}) == 2
    assert {line["pid"] for line in starts} <= {line["pid"] for line in imports}
    assert not alive(*(line[who] for line in imports for who in ("pid", "parent")))
    assert len(stage.lines("event", name="worker_started")) == 1


def test_handlers_inherit_nothing_of_the_keepers(stage: ProcessScene) -> None:
    family = stage.start()
    (runner,) = family.runners()
    until(lambda: "started" in family.text(), what="the worker is registered")
    files = [os.readlink(f"/proc/{runner}/fd/{fd}") for fd in os.listdir(f"/proc/{runner}/fd")]
    assert not [name for name in files if "jobs.db" in name]
    files = [os.readlink(f"/proc/{family.guard()}/fd/{fd}") for fd in os.listdir(f"/proc/{family.guard()}/fd")]
    assert not [name for name in files if "jobs.db" in name]


def test_the_keeper_never_imports_the_app(stage: ProcessScene) -> None:
    family = stage.start()
    family.runners()
    until(lambda: "started" in family.text(), what="the worker is registered")
    assert {line["pid"] for line in stage.lines("import")} == set(family.runners())
    assert family.stop() == 0


def test_sigterm_lets_running_jobs_end_and_gives_nothing_back(stage: ProcessScene) -> None:
    with stage.app() as app:
        jobs = [app.named(name).enqueue() for name in ("ticks", "waits")]
        family = stage.start("--grace", "20s")
        until(lambda: len(stage.lines("start")) == 2, what="both run")
        family.keeper.terminate()
        until(lambda: "stopping" in family.text(), what="it says so")
        late = app.named("quick").enqueue(n=1)
        time.sleep(4)  # longer than the lease: renewals go on
        stage.open_gate()
        assert family.keeper.wait(90) == 0
        assert [job.refresh().state for job in jobs] == [State.SUCCEEDED] * 2, family.text()
        assert [job.attempts for job in jobs] == [1, 1]
        assert late.refresh().state is State.READY


def test_after_the_grace_handlers_are_killed_and_their_jobs_given_back_free(stage: ProcessScene) -> None:
    with stage.app() as app:
        stuck = app.named("ticks").enqueue()
        polite = app.named("waits").enqueue()
        family = stage.start("--grace", "500ms")
        until(lambda: len(stage.lines("start")) == 2, what="both run")
        assert family.stop() == 0
        assert len(stage.lines("cancelled")) == 1
        for job in (stuck, polite):
            assert (job.refresh().state, job.attempts, job.failures, job.stalls) == (State.READY, 0, 0, 0)
        assert app.workers() == []
        assert app.audit().violations == []


def test_a_second_signal_hurries(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("ticks").enqueue()
        family = stage.start("--grace", "60s")
        until(lambda: stage.lines("start"), what="it runs")
        family.keeper.send_signal(signal.SIGINT)
        until(lambda: "stopping" in family.text(), what="it says so")
        family.keeper.send_signal(signal.SIGINT)
        assert family.keeper.wait(45) == 0  # the grace is longer
        assert (job.refresh().state, job.attempts) == (State.READY, 0)


def test_signals_to_the_whole_group_still_stop_it_in_order(stage: ProcessScene) -> None:
    """A supervisor that signals every process of a unit must not take the runners from under their jobs."""
    with stage.app() as app:
        job = app.named("waits").enqueue()
        family = stage.start()
        until(lambda: stage.lines("start"), what="it runs")
        for pid in family.tree():
            send(pid, signal.SIGTERM)
        until(lambda: "stopping" in family.text(), what="it says so")
        stage.open_gate()
        assert family.keeper.wait(90) == 0
        assert (job.refresh().state, job.attempts) == (State.SUCCEEDED, 1)


def test_a_cancel_reaches_running_handlers(stage: ProcessScene) -> None:
    with stage.app() as app:
        on_loop = app.named("waits").enqueue()
        in_thread = app.named("ticks").enqueue(obeys=True)
        stage.start()
        until(lambda: len(stage.lines("start")) == 2, what="both run")
        app.cancel(on_loop.id)
        app.cancel(in_thread.id)
        until(lambda: on_loop.refresh().state is State.CANCELLED, what="the coroutine is cancelled")
        until(lambda: in_thread.refresh().state is State.CANCELLED, what="the thread sees the flag")
        assert len(stage.lines("cancelled")) == 1


def test_an_import_error_is_the_keepers_answer(stage: ProcessScene) -> None:
    (stage.folder / "scene_app.py").write_text("raise RuntimeError('broken')\n")
    family = stage.start()
    assert family.keeper.wait(90) == 7
    assert "RuntimeError: broken" in family.text()


@pytest.mark.parametrize("runners", [1, 2])
def test_killing_the_keeper_ends_everything_it_had(stage: ProcessScene, runners: int) -> None:
    with stage.app() as app:
        app.named("has_children").enqueue()
        family = stage.start("--runners", str(runners))
        until(lambda: len(stage.lines("child")) == 2, what="grandchildren")
        app.named("holds_the_gil").enqueue(seconds=30)
        until(lambda: len(stage.lines("start")) == 2, what="the interpreter is stuck")
        everybody = below(family.keeper.pid)
        grandchildren = {line["child"] for line in stage.lines("child")}
        assert grandchildren <= everybody
        family.keeper.kill()
        family.keeper.wait()
        until(lambda: not alive(*everybody), 20, what="everybody is dead")  # before the call that is stuck ends


def test_stopping_leaves_no_grandchild_and_no_zombie(stage: ProcessScene) -> None:
    with stage.app() as app:
        app.named("has_children").enqueue()
        family = stage.start("--grace", "200ms")
        until(lambda: len(stage.lines("child")) == 2, what="grandchildren")
        everybody = below(family.keeper.pid)
        assert family.stop() == 0
        assert not alive(*everybody)
        assert not children(family.keeper.pid)


def test_probes_follow_the_workers_life(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("waits").enqueue()
        family = stage.start("--health-port", "0")
        until(lambda: "/healthz" in family.text(), what="the port")
        port = int(family.text().partition("http://127.0.0.1:")[2].partition("/")[0])
        until(lambda: probe(port, "readyz")[0] == 200 and stage.lines("start"), what="it is ready")
        code, facts = probe(port, "healthz")
        assert code == 200
        assert facts["pid"] == family.keeper.pid
        assert [one["pid"] for one in facts["runners"]] == family.runners()
        assert facts["runners"][0]["running"] == facts["running"] == 1
        family.keeper.terminate()
        until(lambda: probe(port, "readyz")[0] == 503, what="it is stopping, and so not ready")
        assert probe(port, "healthz")[0] == 200
        stage.open_gate()
        assert family.keeper.wait(90) == 0
        assert job.refresh().state is State.SUCCEEDED


def test_workers_shows_the_runners_and_what_they_run(stage: ProcessScene) -> None:
    with stage.app() as app:
        shared, alone = app.named("ticks_on_the_loop").enqueue(), app.named("alone").enqueue(does="waits")
        family = stage.start("--runners", "2", "--slots", "4", "--lease", "2s")
        until(lambda: len(stage.lines("start")) == 2, what="both run")
        pids = {line["job"]: line["pid"] for line in stage.lines("start")}

        def shown() -> dict[int, Any]:
            [worker] = workers(stage)["workers"]
            assert worker["pid"] == family.keeper.pid
            return {one["pid"]: one for one in worker["runners"]}

        def there() -> bool:
            seen = shown()
            return len(seen) == 3 and not seen[pids[shared.id]]["responds"] and seen[pids[alone.id]]["memory_bytes"] > 0

        until(there, what="two runners, one of them blocked, and one for the job that runs alone")
        seen = shown()
        assert set(seen) == set(family.runners(3))
        blocked, solo = seen.pop(pids[shared.id]), seen.pop(pids[alone.id])
        assert (blocked["jobs"], blocked["alone"], blocked["slots"]) == ([shared.id], False, 2)
        assert (solo["jobs"], solo["alone"], solo["state"], solo["running"]) == ([alone.id], True, "ready", 1)
        assert [one["jobs"] for one in seen.values()] == [[]]
        stage.open_gate()
        until(lambda: all(job.refresh().state is State.SUCCEEDED for job in (shared, alone)), what="they end")
        until(lambda: not any(one["jobs"] for one in shown().values()), what="nothing runs")


def test_workers_shows_the_runners_as_soon_as_they_are_there(stage: ProcessScene) -> None:
    """Long before the first renewal is due, which with this lease is after 100 s."""
    family = stage.start("--lease", "10m", "--runners", "2")
    pids = family.runners(2)
    until(lambda: "started" in family.text(), what="it is registered")
    until(lambda: [sorted(r["pid"] for r in one["runners"]) for one in workers(stage)["workers"]] == [pids], 15)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: [pids[0] in {r["pid"] for r in one["runners"]} for one in workers(stage)["workers"]] == [False], 15)


def workers(stage: ProcessScene) -> Any:
    """What `holdfast workers --json` prints."""
    words = [sys.executable, "-m", "holdfast.cli", "workers", "--json", "--url", f"sqlite:///{stage.folder}/jobs.db"]
    return json.loads(subprocess.run(words, capture_output=True, check=True, timeout=30).stdout)


def probe(port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_worker_asked_to_stop_while_its_app_is_still_importing_ends(stage: ProcessScene) -> None:
    stage.change_code("VERSION = 1", "time.sleep(600)")
    family = stage.start()
    (runner,) = family.runners()
    assert family.stop(20) == 0
    assert not alive(runner)


def test_an_idle_worker_is_small(stage: ProcessScene) -> None:
    """Keeper, guard and one runner, resident memory added up, pages they share counted three times."""
    family = stage.start()
    (runner,) = family.runners()
    until(lambda: "started" in family.text(), what="it is registered")
    until(lambda: workers(stage)["workers"][0]["runners"], what="its runner is shown")
    sizes = {name: memory_of(pid, "VmRSS") for name, pid in members(family, runner).items()}
    told = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in sizes.items())
    print(f"\nidle: {sum(sizes.values()) / 1e6:.1f} MB ({told})")
    assert min(sizes.values()) > 0
    assert sum(sizes.values()) < 90e6


def members(family: Family, runner: int) -> dict[str, int]:
    return {"keeper": family.keeper.pid, "guard": family.guard(), "runner": runner}


def test_it_works_and_stops_as_pid_1(stage: ProcessScene) -> None:
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make a pid namespace")
    with stage.app() as app:
        job = app.named("has_children").enqueue()
        family = stage.start(before=inside)
        until(lambda: len(stage.lines("child")) == 2, what="it runs, with grandchildren")
        assert "(pid 1," in family.text()
        stage.open_gate()
        until(lambda: job.refresh().state is State.SUCCEEDED, what="it ends")
        (keeper,) = children(family.keeper.pid)
        os.kill(keeper, signal.SIGTERM)
        assert family.keeper.wait(90) == 0
        assert "stopped: 1 succeeded" in family.text()


def test_a_worker_has_a_name_and_a_timeout_for_tasks_without_their_own(stage: ProcessScene) -> None:
    with stage.app() as app:
        job = app.named("waits").enqueue()
        stage.start("--timeout", "200ms", "--name", "mailer")
        until(lambda: app.job(job.id).state is State.DEAD, what="it is past the worker's timeout")
        assert app.job(job.id).reason == "timeout"
        until(lambda: [one.portrait and b'"name":"mailer"' in one.portrait for one in app.workers()] == [True])
