"""Handlers that do what no handler should: only their own job is affected, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from holdfast.lifecycle import State
from holdfast.worker.processes.resource_limits import memory_of
from tests.chaos.process_scene import ProcessScene, alive
from tests.chaos.scene import until

pytestmark = pytest.mark.chaos

MORE = '''
import contextlib, threading


@app.task(name="leaves_the_loop", retry=0, max_stalls=1)
async def leaves_the_loop(ctx: Context) -> None:
    """The exception of a task of its own does not go through the handler: it ends the loop."""
    note(what="start", job=ctx.id, fence=ctx.fence)

    async def leave():
        sys.exit(3)

    await asyncio.gather(leave(), asyncio.sleep(60))


@app.task(name="odd_alone", retry=0, isolation="process")
def odd_alone(ctx: Context, does: str) -> int:
    note(what="start", job=ctx.id, fence=ctx.fence)
    if does == "closes stdout":
        print("last words")
        sys.stdout.close()
    elif does == "has no stdout":
        sys.stdout = None
    elif does == "daemon":
        code = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); "
        code += "print(os.getpid(), flush=True); os.close(1); time.sleep(600)"
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env={})
        note(what="child", child=int(done.stdout))
    elif does == "waits":
        while not gate_open():
            time.sleep(0.01)
    return os.getpid()


@app.task(name="forks_and_returns", retry=0, max_stalls=1)
async def forks_and_returns(ctx: Context, how: str) -> None:
    """Its child goes on as if it were the runner."""
    note(what="start", job=ctx.id, fence=ctx.fence)
    if os.fork() == 0:
        note(what="child", child=os.getpid())
        if how == "awaits":
            await asyncio.sleep(60)
        elif how == "raises":
            raise RuntimeError("in the child")


@app.task(name="forks_in_a_thread", retry=0, max_stalls=1)
def forks_in_a_thread(ctx: Context) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    if os.fork() == 0:
        note(what="child", child=os.getpid())


@app.task(name="shrinks_marks", retry=0, max_stalls=0)
def shrinks_marks(ctx: Context) -> None:
    note(what="start", job=ctx.id, fence=ctx.fence)
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
    while not gate_open():
        time.sleep(0.01)


@app.task(name="babbles", retry=0, max_stalls=0)
def babbles(ctx: Context, announces: int) -> None:
    """Writes into the runner's socket: the head of a frame, and as much of it as anybody reads."""
    note(what="start", job=ctx.id, fence=ctx.fence)
    from holdfast.worker.processes import protocol

    head = protocol.pack([protocol.Quit()])[:4] + announces.to_bytes(4, "little")
    with contextlib.suppress(OSError):
        os.write(3, head if announces else b"hello, world")
        for _ in range(announces // 65536):
            os.write(3, bytes(65536))
            note(what="wrote", job=ctx.id, fence=ctx.fence)
    while not gate_open():
        time.sleep(0.01)


@app.task(name="breaks", retry=0, max_stalls=1)
def breaks(ctx: Context, how: str) -> None:
    """Leaves a runner behind that cannot answer any more, unless it is alone."""
    note(what="start", job=ctx.id, fence=ctx.fence)
    if len([line for line in open(f"{HERE}/journal") if ctx.id in line]) > 1:
        return
    from holdfast.worker.runner import attempt
    from holdfast.worker.processes import protocol

    if how == "half a frame":
        os.write(3, protocol.pack([protocol.Quit()])[:4] + (15 << 20).to_bytes(4, "little"))
    elif how == "a wild pong":
        os.write(3, protocol.pack([protocol.Pong(2**62, 2**62)]))
    elif how == "no text":
        frame = protocol.pack([protocol.Refused("ab", "")])
        os.write(3, frame.replace(b"ab", b"\\xff\\xfe"))
    elif how == "stops itself":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "patches":
        attempt.settlement_for = None
    elif how == "patches the pong":
        from holdfast.worker.processes.runner_endpoint import RunnerEndpoint

        RunnerEndpoint._write = lambda self, packed: None
    elif how == "a signal to the keeper":
        keeper = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])
        os.kill(keeper, signal.SIGUSR1)
        os.kill(os.getppid(), signal.SIGUSR1)


@app.task(name="recurses", retry=0, max_stalls=1)
def recurses(ctx: Context, how: str) -> None:
    """Calls itself for ever: frames live on the heap, so only memory ends it. Here that is made to be short."""
    note(what="start", job=ctx.id, fence=ctx.fence)
    if how == "without a limit":
        import resource

        room = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.getrlimit(resource.RLIMIT_AS)[1]))
        sys.setrecursionlimit(10**8)

    def again(depth):
        return again(depth + 1)

    try:
        again(0)
    finally:
        if how == "without a limit":
            resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)


@app.task(name="large", retry=0)
def large(size: int) -> str:
    return "x" * size


@app.task(name="hides", retry=0)
async def hides(ctx: Context) -> None:
    """Outlives its parent, and has written a title over its environment as some programs do."""
    note(what="start", job=ctx.id, fence=ctx.fence)
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    with open("/proc/self/stat") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[47:49])
    ctypes.memset(start, 0, end - start)
    while not gate_open():
        note(what="tick", job=ctx.id, fence=ctx.fence)
        time.sleep(0.01)


@app.task(name="leaves_a_thread", retry=0)
async def leaves_a_thread(ctx: Context, kind: str) -> int:
    note(what="start", job=ctx.id, fence=ctx.fence)
    if kind == "own":
        threading.Thread(target=time.sleep, args=(600,)).start()
    else:
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
    return os.getpid()
'''


@pytest.fixture
def hostile(stage: ProcessScene) -> ProcessScene:
    with (stage.folder / "scene_app.py").open("a") as file:
        file.write(MORE)
    return stage


def test_a_job_whose_own_task_ends_the_loop_is_found(hostile: ProcessScene) -> None:
    with hostile.app() as app:
        neighbour = app.named("waits").enqueue()
        hostile.start()
        until(lambda: hostile.lines("start"), what="the neighbour runs")
        poison = app.named("leaves_the_loop", max_stalls=1).enqueue()
        until(lambda: poison.refresh().state is State.DEAD, what="the poison is found")
        assert (poison.reason, poison.failures) == ("crash", 0)
        hostile.open_gate()
        until(lambda: neighbour.refresh().state is State.SUCCEEDED, what="the neighbour ends")
        assert (neighbour.failures, neighbour.stalls) == (0, 0)


@pytest.mark.parametrize("does", ["closes stdout", "has no stdout"])
def test_an_isolated_job_may_do_without_stdout(hostile: ProcessScene, does: str) -> None:
    with hostile.app() as app:
        job = app.named("odd_alone").enqueue(does=does)
        hostile.start()
        job.result(timeout=90)
        assert (job.refresh().attempts, job.stalls) == (1, 0)
        after = app.named("alone").enqueue(does="prints")
        after.result(timeout=90)
        assert "from python" in [line.text for line in app.logs(after.id)]


def test_a_daemon_an_isolated_job_leaves_behind_is_ended(hostile: ProcessScene) -> None:
    with hostile.app() as app:
        job = app.named("odd_alone").enqueue(does="daemon")
        hostile.start()
        job.result(timeout=90)
        (child,) = hostile.lines("child")
        until(lambda: not alive(child["child"]), what="the daemon is gone")


@pytest.mark.parametrize("how", ["returns", "awaits", "raises", "in a thread"])
def test_a_forked_child_that_comes_back_is_no_second_runner(hostile: ProcessScene, how: str) -> None:
    """It shares socket and queued jobs with its parent: it ends, and its parent runs all of them, once."""
    with hostile.app() as app:
        hostile.start("--slots", "5")
        quick = [app.named("quick_thread").enqueue(n=n) for n in range(5)]
        odd = [
            app.named("forks_in_a_thread").enqueue()
            if how == "in a thread"
            else app.named("forks_and_returns").enqueue(how=how)
            for _ in range(3)
        ]
        quick += [app.named("quick_thread").enqueue(n=n) for n in range(30)]
        for job in (*odd, *quick):
            job.result(timeout=90)
        until(lambda: len(hostile.lines("child")) == 3, what="the children")
        until(lambda: not alive(*(line["child"] for line in hostile.lines("child"))), what="the children's ends")
        starts = hostile.lines("start")
        assert len(starts) == len({line["job"] for line in starts}) == 38
        assert app.audit().violations == []


def test_a_killed_job_does_not_wait_for_a_runner_that_cannot_start(hostile: ProcessScene) -> None:
    """Broken code was deployed: the job is charged all the same and passes on."""
    with hostile.app() as app:
        family = hostile.start("--grace", "0.1s", "--lease", "60s")  # a fence would release it
        job = app.named("overruns").enqueue()
        until(lambda: hostile.lines("start", job=job.id), what="its start")
        hostile.change_code("VERSION = 1", "raise SystemError('a broken deploy')")
        until(lambda: job.refresh().attempts, what="its judgement")
        assert (job.state, job.failures, job.stalls) != (State.RUNNING, 0, 0) and job.failures == 1
        assert "no runner is available to apply its retry policy" in family.text()


def test_a_handler_cannot_take_the_marks_from_under_the_keeper(hostile: ProcessScene) -> None:
    with hostile.app() as app:
        app.named("shrinks_marks").enqueue()
        family = hostile.start()
        until(lambda: hostile.lines("start"), what="it runs")
        assert app.named("quick").enqueue(n=1).result(timeout=90) == 1
        time.sleep(1)  # the keeper looks at the marks meanwhile
        (runner,) = family.runners()
        os.kill(runner, signal.SIGKILL)
        assert app.named("quick").enqueue(n=2).result(timeout=90) == 2
        assert family.keeper.poll() is None


@pytest.mark.parametrize("announces", [0, 900 << 20])
def test_what_a_handler_writes_into_its_runners_socket_fills_nothing(hostile: ProcessScene, announces: int) -> None:
    with hostile.app() as app:
        bad = app.named("babbles").enqueue(announces=announces)
        family = hostile.start()
        until(lambda: bad.refresh().state is State.DEAD, what="its runner is ended")
        assert "data that is not a frame" in family.text()
        assert bad.reason == "crash"
        assert len(hostile.lines("wrote")) < 100
        assert memory_of(family.keeper.pid) < 150 << 20
        assert app.named("quick").enqueue(n=1).result(timeout=90) == 1
        assert family.stop() == 0


@pytest.mark.parametrize(
    "how",
    [
        "half a frame",
        "a wild pong",
        "no text",
        "stops itself",
        "patches",
        "patches the pong",
        "a signal to the keeper",
    ],
)
def test_a_runner_that_a_handler_broke_keeps_nobody_waiting(hostile: ProcessScene, how: str) -> None:
    with hostile.app() as app:
        family = hostile.start("--slots", "4")
        before = [app.named("quick_thread").enqueue(n=n) for n in range(3)]
        odd = app.named("breaks").enqueue(how=how)
        after = [app.named("quick_thread").enqueue(n=n) for n in range(20)]
        for job in (*before, *after, odd):
            job.result(timeout=60)
        assert family.keeper.poll() is None
        assert "never retrieved" not in family.text() and "Fatal error" not in family.text()
        assert app.audit().violations == []


@pytest.mark.parametrize("how", ["within the limit", "without a limit"])
def test_a_handler_that_recurses_without_end_ends_and_its_neighbours_lose_nothing(
    hostile: ProcessScene, how: str
) -> None:
    with hostile.app() as app:
        family = hostile.start("--slots", "4", "--lease", "10s")
        neighbour = app.named("waits").enqueue()
        until(lambda: hostile.lines("start"), what="the neighbour runs")
        odd = app.named("recurses").enqueue(how=how)
        until(lambda: odd.refresh().state is State.DEAD, 90, what="the recursion to end")
        after = [app.named("quick_thread").enqueue(n=n) for n in range(10)]
        for job in after:
            job.result(timeout=60)
        hostile.open_gate()
        neighbour.result(timeout=60)
        assert (neighbour.refresh().failures, neighbour.stalls) == (0, 0)
        assert family.keeper.poll() is None


def test_results_as_large_as_the_app_allows_come_through(hostile: ProcessScene) -> None:
    hostile.change_code('/jobs.db")', '/jobs.db", result_bytes_max=40 << 20)')
    with hostile.app() as app:
        jobs = [app.named("large").enqueue(size=size) for size in (30 << 20, 900_000, 900_000, 900_000, 10)]
        family = hostile.start("--drain", "--lease", "30s")
        assert family.keeper.wait(60) == 0
        assert [len(job.result(timeout=1)) for job in jobs] == [30 << 20, 900_000, 900_000, 900_000, 10]


def test_a_replaced_runner_ends_although_a_thread_of_its_own_does_not(hostile: ProcessScene) -> None:
    with hostile.app() as app:
        family = hostile.start("--max-jobs", "1")
        pids = [app.named("leaves_a_thread").enqueue(kind=kind).result(timeout=90) for kind in ("own", "executor")]
        until(lambda: not alive(*pids), what="they are gone")
        assert family.stop() == 0


def test_a_job_that_waits_for_a_process_gets_one_after_the_guard_died(hostile: ProcessScene) -> None:
    hostile.change_code("VERSION = 1", "VERSION = 1\nif os.path.exists(f'{HERE}/slow'): time.sleep(1.5)")
    with hostile.app() as app:
        family = hostile.start("--lease", "10s")
        until(lambda: "started" in family.text(), what="the worker is there")
        (hostile.folder / "slow").touch()
        job = app.named("odd_alone").enqueue(does="")
        family.runners(2)
        os.kill(family.guard(), signal.SIGKILL)
        job.result(timeout=90)
        assert (job.refresh().attempts, job.stalls) == (1, 0)


def test_a_runner_that_hides_from_its_guards_death_is_dead_before_its_job_runs_again(hostile: ProcessScene) -> None:
    with hostile.app() as app:
        app.named("hides").enqueue()
        family = hostile.start("--lease", "20s")
        until(lambda: hostile.lines("tick"), what="it runs, hidden")
        os.kill(family.guard(), signal.SIGKILL)
        until(lambda: len(hostile.lines("start")) == 2, what="it runs again")
        first, again = hostile.lines("start")
        assert not alive(first["pid"])
        assert max(line["at"] for line in hostile.lines("tick", fence=first["fence"])) < again["at"]


def test_the_guards_death_is_no_isolated_jobs_fault(hostile: ProcessScene) -> None:
    with hostile.app() as app:
        jobs = [app.named("odd_alone").enqueue(does="waits") for _ in range(2)]
        family = hostile.start("--lease", "10s")
        until(lambda: len(hostile.lines("start")) == 2, what="both run")
        os.kill(family.guard(), signal.SIGKILL)
        until(lambda: len(hostile.lines("start")) == 4, what="both run again")
        hostile.open_gate()
        until(lambda: all(job.refresh().state is State.SUCCEEDED for job in jobs), what="they end")
        assert [(job.stalls, job.failures) for job in jobs] == [(0, 0)] * 2


def test_isolated_processes_that_cannot_start_are_not_started_without_end(hostile: ProcessScene) -> None:
    with hostile.app() as app:
        family = hostile.start("--lease", "10s")
        until(lambda: "started" in family.text(), what="the worker is there")
        hostile.change_code("VERSION = 1", "raise RuntimeError('broken')")
        job = app.named("odd_alone").enqueue(does="")
        until(lambda: "RuntimeError: broken" in family.text(), what="the first cannot start")
        until(lambda: job.refresh().state is State.SCHEDULED, what="it is given back meanwhile")
        time.sleep(4)
        assert family.text().count("could not start") <= 7  # the pauses grow, with jitter
        hostile.change_code("raise RuntimeError('broken')", "VERSION = 2")
        job.result(timeout=90)
        assert (job.refresh().attempts, job.stalls) == (1, 0)


def test_an_early_stop_with_json_ends_with_a_document(stage: ProcessScene) -> None:
    stage.change_code("VERSION = 1", "time.sleep(600)")
    family = stage.start("--json")
    family.runners()
    assert family.stop(20) == 0
    assert '"succeeded"' in family.text()


def test_a_worker_asked_to_stop_while_the_store_is_silent_ends_soon_and_quietly(stage: ProcessScene) -> None:
    with stage.app() as app:
        app.named("quick").enqueue(n=1)
    rival = sqlite3.connect(stage.folder / "jobs.db", isolation_level=None)
    rival.execute("BEGIN EXCLUSIVE")
    family = stage.start("--lease", "12s")
    until(lambda: "working for" in family.text(), what="it is about to register")
    assert family.stop(11) != 0  # sooner than the lease, for which it would have gone on
    rival.close()
    assert "never retrieved" not in family.text()


def test_a_worker_without_standard_streams_works(hostile: ProcessScene) -> None:
    with hostile.app() as app:
        jobs = [
            app.named("quick").enqueue(n=1),
            app.named("alone").enqueue(does="prints"),
            app.named("prints").enqueue(text="x"),
        ]
        words = [sys.executable, "-m", "holdfast.cli", "work", "scene_app:app", "--runners", "1", "--drain"]
        ended = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words], cwd=hostile.folder, timeout=60)
        assert ended.returncode == 0
        assert [job.refresh().state for job in jobs] == [State.SUCCEEDED] * 3
        assert app.audit().violations == []


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise KeyboardInterrupt", "scene_app:app cannot be used: KeyboardInterrupt"),
        ("app.__class__ = type('Odd', (Holdfast,), {'url': property(lambda self: 1 / 0)})", "ZeroDivisionError"),
        ("os._exit(0)", "a runner process ended with exit code 0 before it was ready"),
        ("os.kill(os.getpid(), 9)", "a runner process was killed by SIGKILL before it was ready"),
    ],
)
def test_an_app_that_cannot_be_imported_gets_one_sentence(stage: ProcessScene, code: str, says: str) -> None:
    stage.change_code("VERSION = 1", code)
    family = stage.start()
    assert family.keeper.wait(90) == 7
    assert says in family.text()
    assert "Traceback" not in family.text()


@pytest.mark.parametrize(
    ("words", "says"),
    [(("--url", "nonsense://x"), "scheme nonsense"), (("--health-port", "256.0.0.1:1"), "cannot be used for probes")],
)
def test_a_mistake_on_the_command_line_gets_one_sentence(
    stage: ProcessScene, words: tuple[str, ...], says: str
) -> None:
    family = stage.start(*words)
    assert family.keeper.wait(90) == 2
    assert says in family.text()
    assert "Traceback" not in family.text()
