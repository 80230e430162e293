"""The small parts of the process worker: captured output, ways to end, changed files."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
from pathlib import Path

import pytest
from msgspec import structs
from tests.worker.worker_bench import WorkerApp

from holdfast.clock import SystemClock
from holdfast.context import CURRENT, Context, Outcome, OutcomeKind
from holdfast.lifecycle import Ending, Failure, State
from holdfast.records import Lease
from holdfast.worker.keeper.declare import Declared
from holdfast.worker.keeper.reports import Reports
from holdfast.worker.keeper.runners import Signals
from holdfast.worker.processes import guard, protocol, spawner, timeouts
from holdfast.worker.processes.pool import RETRY_DECISION_WITHIN_SECONDS, RUNNER_WITHIN_SECONDS, Pool, _KilledJob
from holdfast.worker.processes.process_worker import python_files
from holdfast.worker.processes.resource_limits import Limits, children_of, memory_of, memory_of_family
from holdfast.worker.processes.runner_process import AHEAD_MAX, RunnerProcess, Stage, how_it_ended
from holdfast.worker.processes.timeouts import BEGIN_SECONDS, stack_of
from holdfast.worker.runner import output


def lease(job_id: str = "j1") -> Lease:
    return Lease(job_id, f"token of {job_id}", 1, "t", "q", b"{}")


# ---------------------------------------------------------------------- what handlers print


def test_output_is_cut_into_lines() -> None:
    put: list[str] = []
    lines = output.Lines(put.append)
    for piece in ("one", " line\ntwo", "\n\n", "rest"):
        assert lines.write(piece)
    assert put == ["one line", "two"]
    lines.end()
    assert put == ["one line", "two", "rest"]


def test_output_past_the_bound_is_left_out_and_that_is_said_once() -> None:
    put: list[str] = []
    lines = output.Lines(put.append)
    taken = [lines.write("x" * 999 + "\n") for _ in range(1000)]
    assert sum(map(len, put)) <= output.OUTPUT_CHARS_MAX + len(output.LEFT_OUT)
    assert put.count(output.LEFT_OUT) == 1 and put[-1] == output.LEFT_OUT
    assert taken.index(False) == output.OUTPUT_CHARS_MAX // 1000 + 1
    lines.end()
    assert put[-1] == output.LEFT_OUT


class Sink:
    """Where an attempt's reports go."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def progress(self, lease: Lease, fraction: float | None, text: str | None) -> None: ...

    def slow_down(self, lease: Lease, seconds: float) -> None: ...

    def settles_itself(self, lease: Lease) -> None: ...

    def line(self, lease: Lease, line: str) -> None:
        self.lines.append(line)


def test_each_attempt_gets_what_it_printed_and_the_rest_passes() -> None:
    real = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    stream = output.Captured(real)
    sinks = [Sink(), Sink()]
    contexts = [Context(lease(), reports=sink) for sink in sinks]
    print("nobody's", file=stream)
    for number, context in enumerate(contexts):
        token = CURRENT.set(context)
        print("mine", number, file=stream)
        print("no end of line", end="", file=stream)
        CURRENT.reset(token)
    assert [sink.lines for sink in sinks] == [["mine 0"], ["mine 1"]]
    stream.end(contexts[0])
    assert sinks[0].lines == ["mine 0", "no end of line"]
    stream.flush()
    assert real.buffer.getvalue().decode().startswith("nobody's\nmine 0\n")
    real.close()


# ---------------------------------------------------------------------- ends and stacks


@pytest.mark.parametrize(
    ("wait_status", "words"),
    [(0, "exit code 0"), (3 << 8, "exit code 3"), (signal.SIGSEGV, "SIGSEGV"), (64, "killed by")],
)
def test_ends_in_words(wait_status: int, words: str) -> None:
    assert words in how_it_ended(wait_status)


def test_of_a_dump_the_part_about_one_thread() -> None:
    first = "Thread 0x00007f0000000001 (most recent call first):\n  File a"
    second = "Current thread 0x00007f0000000002 (most recent call first):\n  File b"
    dump = f"{first}\n\n{second}\n"
    assert stack_of(dump, 0x7F0000000001) == first
    assert stack_of(dump, 0x7F0000000002) == f"{second}\n"
    assert stack_of(dump, 5) == dump


def test_memory_and_children_are_read_off_the_system() -> None:
    assert memory_of(os.getpid()) > 1 << 20
    assert memory_of_family(os.getpid()) >= memory_of(os.getpid()) // 2
    assert (memory_of(2**22 + 1), children_of(2**22 + 1)) == (0, [])


def test_the_files_that_are_watched(tmp_path: Path) -> None:
    for name in ("a.py", "deep/b.py", ".venv/c.py", "__pycache__/d.py", "site-packages/e.py", "f.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = [os.path.relpath(name, tmp_path) for name, _ in python_files(str(tmp_path))]
    assert sorted(found) == ["a.py", "deep/b.py"]


# ---------------------------------------------------------------------- the embedded worker


async def test_the_embedded_worker_says_that_it_does_not_isolate(
    memory_app: WorkerApp, caplog: pytest.LogCaptureFixture
) -> None:
    @memory_app.task(name="heavy", isolation="process", memory_limit=64 << 20)
    def heavy() -> int:
        return os.getpid()

    (job,) = await memory_app.put(heavy.bind())
    with caplog.at_level(logging.WARNING, "holdfast"):
        await memory_app.drain()
    assert (await memory_app.job(job)).state is State.SUCCEEDED
    assert "heavy" in caplog.text and "holdfast work" in caplog.text


async def test_a_runner_gets_no_more_jobs_than_it_has_places_for() -> None:
    """Taken back from a blocked runner, jobs keep their places until it has seen that; it may respond before."""

    class Owner:
        def on_frame(self, runner: RunnerProcess, frame: object) -> None: ...

        def on_closed(self, runner: RunnerProcess) -> None: ...

    runner = RunnerProcess(Owner(), 1, 200, dedicated=False)
    runner.handed_over()
    runner.stage = Stage.READY
    leases = [lease(f"j{number}") for number in range(200 + AHEAD_MAX)]
    for part in (leases[:200], leases[200:]):
        assert runner.room == 200 and runner.room_ahead(AHEAD_MAX) == len(leases) - 200 - leases.index(part[0])
        runner.give(part)
        assert runner.room == 0
        assert len(runner.take_back()) == 200
    assert runner.room == 0 and runner.room_ahead(AHEAD_MAX) == 0 and runner.has_spare_flag
    for one in leases[:50]:
        assert runner.drop(one.token) is None  # nothing of ours ended: it only saw the mark
    assert runner.room == 50
    runner.give([lease("last")])
    assert runner.begin_flags.begin(runner.jobs["token of last"].flag, 1.0, 1)
    assert runner.take_back() == []
    assert runner.drop("token of last") is not None
    runner.close()


async def test_a_runner_that_responds_and_begins_nothing_loses_its_jobs_and_its_place() -> None:
    class Owner:
        def on_frame(self, runner: RunnerProcess, frame: object) -> None: ...

        def on_closed(self, runner: RunnerProcess) -> None: ...

    clock = SystemClock()
    pool = Pool(spawner.Plan(app="shop:app"), clock, Reports(), Signals())
    replaced: list[str] = []
    pool.monitor.replace = lambda runner, why: replaced.append(why)  # type: ignore[method-assign]
    given_back = pool.signals.ended
    runner = RunnerProcess(Owner(), 1, 5, dedicated=False)
    runner.handed_over()
    runner.stage = Stage.READY
    pool.spawner.runners[1] = runner
    runner.give([lease("begun"), lease("held"), lease("behind")])
    assert runner.begin_flags.begin(runner.jobs["token of begun"].flag, 1.0, 1)
    pool._lost["behind"] = runner  # it waits for an attempt of the same job that has not stopped
    now = clock.steady()
    pool.monitor._check_begins(runner, now + BEGIN_SECONDS - 1)
    assert not replaced and pool.unbegun() == []
    pool.monitor._check_begins(runner, now + BEGIN_SECONDS + 1)
    assert replaced and set(runner.jobs) == {"token of begun", "token of behind"}
    assert {one.id for one in given_back} == {"held"}
    runner.close()


async def test_a_killed_job_is_judged_without_a_runner_when_none_can_start() -> None:
    clock = SystemClock()
    pool = Pool(spawner.Plan(app="shop:app"), clock, Reports(), Signals())
    facts = protocol.TaskFacts("t", "q", 1.0, False, None, None, (), 0, 60.0)
    pool.facts = {"t": facts, "again": structs.replace(facts, retries=3)}
    ended = pool.signals.ended
    outcome = Outcome(kind=OutcomeKind.TIMED_OUT, failure=Failure(reason="timeout", text="late"))
    again = structs.replace(lease("more"), task="again")
    strange = structs.replace(lease("strange"), task="unknown")
    for one in (lease("last"), again, strange):
        pool._failed_by_kill[one.token] = _KilledJob(one, outcome, clock.steady())
    pool.check_waiting(clock.steady())
    assert not ended
    pool.check_waiting(clock.steady() + RETRY_DECISION_WITHIN_SECONDS + 1)
    assert {one.id: getattr(one, "ending", None) for one in ended} == {
        "last": Ending.BURIED,
        "more": Ending.RETRY,
        "strange": None,
    }
    assert not pool._failed_by_kill


async def test_a_job_that_waits_too_long_for_a_process_of_its_own_is_given_back() -> None:
    clock = SystemClock()
    pool = Pool(spawner.Plan(app="shop:app"), clock, Reports(), Signals())
    ended = pool.signals.ended
    pool.start([structs.replace(lease("suspect"), suspect=True)], now=1)
    pool.check_waiting(clock.steady())
    assert not ended and pool.running() == ("suspect",)
    pool.check_waiting(clock.steady() + RUNNER_WITHIN_SECONDS + 1)
    assert [one.id for one in ended] == ["suspect"] and not pool.running()


def test_a_loop_is_idle_only_where_nothing_but_its_wait_is_on_the_stack() -> None:
    wait = '  File "/usr/lib/python3/selectors.py", line 468 in select\n'
    step = '  File "/usr/lib/python3/asyncio/base_events.py", line 1884 in _run_once\n'
    handler = '  File "/app/shop.py", line 3 in render\n'
    head = "Current thread 0x00007f0000000001 (most recent call first):\n"
    assert timeouts.loop_is_idle(head + wait + step)
    assert not timeouts.loop_is_idle(head + wait + handler + step)
    assert not timeouts.loop_is_idle(head + wait + step + handler + step)
    assert not timeouts.loop_is_idle(head + handler + step)
    assert not timeouts.loop_is_idle("")
    assert not timeouts.is_stopped(os.getpid()) and not timeouts.is_stopped(2**22 + 1)
    assert not timeouts.waits_for_events(os.getpid())


class Nobody:
    """Owns runners and hears nothing."""

    def on_frame(self, runner: RunnerProcess, frame: object) -> None: ...

    def on_closed(self, runner: RunnerProcess) -> None: ...


def ready_runner(pool: Pool, tag: int, *, dedicated: bool = False) -> RunnerProcess:
    runner = pool.spawner.runners[tag] = RunnerProcess(Nobody(), tag, 1 if dedicated else 5, dedicated=dedicated)
    runner.handed_over()
    runner.stage, runner.ready_at = Stage.READY, SystemClock().steady()
    return runner


async def test_runners_that_have_done_their_share_leave_one_by_one_each_after_its_successor_is_ready() -> None:
    pool = Pool(spawner.Plan(app="shop:app", runners=2, max_jobs=10), SystemClock(), Reports(), Signals())
    old = [ready_runner(pool, tag) for tag in (1, 2)]
    assert all(8 <= 10 * one.lifetime <= 10 for one in old)
    started: list[RunnerProcess] = []
    left: asyncio.Queue[int] = asyncio.Queue()
    begun: asyncio.Queue[RunnerProcess] = asyncio.Queue()

    def start(*, dedicated: bool = False) -> RunnerProcess:
        new = RunnerProcess(Nobody(), 10 + len(started), 5, dedicated=False)
        new.handed_over()
        started.append(new)
        begun.put_nowait(new)
        return new

    def replace(runner: RunnerProcess, why: str) -> None:
        runner.stage = Stage.LEAVING
        left.put_nowait(runner.tag)

    pool.spawner.start = start  # type: ignore[method-assign]
    pool.monitor.replace = replace  # type: ignore[method-assign]
    for runner in old:
        for runner.done in (10, 10, 1000):  # jobs that are over sooner than a successor starts do not make it leave
            pool.monitor.check_max_jobs(runner)
    for tag in (1, 2):
        new = await asyncio.wait_for(begun.get(), 20)
        assert left.empty() and begun.empty(), "one at a time, and not before its successor is ready"
        new.stage = Stage.READY
        assert await asyncio.wait_for(left.get(), 20) == tag
    for runner in (*old, *started):
        runner.close()


async def test_a_runner_that_dies_right_after_its_hello_is_started_again_after_a_growing_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(spawner.Plan(app="shop:app"), SystemClock(), Reports(), Signals())
    waits: list[int] = []
    started: list[bool] = []

    def backoff(tries: int) -> float:
        waits.append(tries)
        return 1.0

    monkeypatch.setattr(spawner, "backoff", backoff)
    monkeypatch.setattr(pool.spawner, "start", lambda *, dedicated=False: started.append(dedicated))
    own = pool.spawner
    hello = protocol.Hello(protocol.VERSION, 1, "memory://", Declared(), [], [], 0, 10, "option")
    for tag in (1, 2, 3):
        runner = ready_runner(pool, tag)
        runner.hello, runner.ended = hello, (0, guard.OWN)
        own._hold_until = 0.0
        own._on_exited(runner)
    assert waits == [1, 2, 3] and not started
    own._hold_until = 0.0
    crashed = ready_runner(pool, 4)
    crashed.hello, crashed.ended = hello, (9, guard.OWN)
    crashed.give([lease("bad")])
    assert crashed.begin_flags.begin(crashed.jobs["token of bad"].flag, 1.0, 1)
    own._on_exited(crashed)
    assert len(waits) == 3 and started == [False], "a job's crash costs no pause"
    for task in own._tasks:
        task.cancel()


async def test_runners_that_fail_together_are_one_failure_and_those_a_dead_guard_took_along_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(spawner.Plan(app="shop:app"), SystemClock(), Reports(), Signals())
    waits: list[int] = []
    started: list[bool] = []

    def backoff(tries: int) -> float:
        waits.append(tries)
        return 1.0

    monkeypatch.setattr(spawner, "backoff", backoff)
    monkeypatch.setattr(pool.spawner, "start", lambda *, dedicated=False: started.append(dedicated))
    own = pool.spawner

    def starting_runners_end(cause: int) -> None:
        for tag in range(1, 5):
            runner = ready_runner(pool, tag)
            runner.stage, runner.ended = Stage.STARTING, (0, cause)
            own._on_exited(runner)

    starting_runners_end(guard.GUARD_DIED)
    assert not waits, "the guard died, not they"
    starting_runners_end(guard.OWN)
    assert waits == [1, 1, 1, 1]
    own._hold_until = 0.0
    starting_runners_end(guard.OWN)
    assert waits[4:] == [2, 2, 2, 2], "the next round is the next failure"
    for task in own._tasks:
        task.cancel()


async def test_suspects_that_wait_get_more_processes_than_planned() -> None:
    pool = Pool(spawner.Plan(app="shop:app", isolated=4), SystemClock(), Reports(), Signals())
    begun: list[int] = []

    def start(*, dedicated: bool = False) -> RunnerProcess:
        runner = ready_runner(pool, 100 + len(begun), dedicated=True)
        runner.stage = Stage.STARTING
        begun.append(runner.tag)
        return runner

    pool.spawner.start = start  # type: ignore[method-assign]
    pool.start([structs.replace(lease(f"s{n}"), suspect=True) for n in range(40)], now=40)
    assert len(begun) == 4
    for seconds, processes in ((2.5, 8), (4.5, 16), (20.0, 16)):
        pool._waits_since = {token: SystemClock().steady() - seconds for token in pool._waits_since}
        pool.check_waiting(SystemClock().steady())
        assert len(begun) == processes
    for runner in pool.spawner.runners.values():
        runner.close()


def test_lifting_limits_that_an_attempt_made_final_returns_false(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    own = Limits()
    assert own.lift()
    monkeypatch.setattr("holdfast.worker.processes.resource_limits.resource.setrlimit", refuse)
    assert not own.lift()


def test_a_guard_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def start(owner: object) -> object:
        tried.append(owner)
        if len(tried) < 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return owner

    monkeypatch.setattr(spawner, "GuardClient", start)
    monkeypatch.setattr(spawner, "backoff", lambda tries: 0.0)
    own = spawner.RunnerSpawner(spawner.Plan(app="shop:app"), None, SystemClock())  # type: ignore[arg-type]
    assert asyncio.run(own._new_guard()) is own  # type: ignore[comparison-overlap]
    assert len(tried) == 3


def test_what_a_process_prints_without_a_job_is_read_though_stderr_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(output, "STDERR", writing)

    async def speak() -> list[str]:
        kept: list[str] = []
        own = output.OutputPipe()
        os.write(own.theirs, b"while importing\n")
        own.end()
        own.begin(kept.append)
        os.write(own.theirs, b"in a job\n")
        own.end()
        own.close()
        os.close(own.theirs)
        return kept

    assert asyncio.run(speak()) == ["in a job"]
    os.close(writing)
