"""The guard by itself, with real processes: it starts, kills in time and reports, whatever is stopped or dead."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.options import SLOTS_ASYNC
from holdfast.worker.keeper.chains import CHAINED_MAX
from holdfast.worker.processes import guard, launch
from holdfast.worker.processes.runner_process import AHEAD_MAX, BATCHED_MAX, SPARE_FLAGS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's timers and /proc")

SLEEPER = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


class Ward:
    """A guard under test, and the keeper's end of its socket."""

    def __init__(self) -> None:
        self.end, theirs = socket.socketpair()
        words = [sys.executable, "-I", "-S", str(Path(guard.__file__)), str(theirs.fileno()), str(os.getpid())]
        self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        self.end.settimeout(20)
        self.pids: list[int] = []

    def say(self, kind: int, tag: int, told: bytes, fds: tuple[int, ...] = ()) -> None:
        frame = guard.FRAME.pack(kind, tag, len(told)) + told
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"<{len(fds)}i", *fds))] if fds else []
        self.end.sendmsg([frame], extra)

    def hear(self) -> tuple[int, int, tuple[int, ...]]:
        kind, tag, size = guard.FRAME.unpack(self._read(guard.FRAME.size))
        facts = guard.STARTED_FACTS if kind == guard.STARTED else guard.ENDED_FACTS
        return kind, tag, facts.unpack(self._read(size))

    def start(self, tag: int, code: str = SLEEPER) -> tuple[int, int]:
        """Start a program; its pid, and a descriptor that reaches its end when it and all its children are gone."""
        ours, theirs = os.pipe()
        words = "\0".join([sys.executable, "-I", "-S", "-c", f"import os; os.write(3, b'x'); {code}"])
        self.say(guard.START, tag, bytes([1, 0]) + words.encode(), (theirs,))
        os.close(theirs)
        kind, heard, (pid,) = self.hear()
        assert (kind, heard) == (guard.STARTED, tag)
        assert os.read(ours, 1) == b"x"
        self.pids.append(pid)
        return pid, ours

    def _read(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            piece = self.end.recv(size - len(got))
            assert piece, "the guard is gone"
            got += piece
        return got


@pytest.fixture
def ward() -> Iterator[Ward]:
    ward = Ward()
    yield ward
    ward.end.close()
    ward.process.send_signal(signal.SIGCONT)
    ward.process.wait(20)


def ends(fd: int, seconds: float = 20.0) -> bool:
    """Whether every holder of the other end goes away in this time."""
    try:
        return bool(select.select([fd], [], [], seconds)[0]) and os.read(fd, 1) == b""
    finally:
        os.close(fd)


def test_it_reports_how_a_runner_ended(ward: Ward) -> None:
    pid, fd = ward.start(1, "os._exit(5)")
    kind, tag, (heard, wait_status, cause, peak) = ward.hear()
    assert (kind, tag, heard, cause) == (guard.ENDED, 1, pid, guard.OWN)
    assert os.waitstatus_to_exitcode(wait_status) == 5
    assert peak > 1000
    assert ends(fd)


def test_it_kills_one_runner_with_its_descendants_and_spares_the_others(ward: Ward) -> None:
    # A child in a session of its own, and one nobody is parent of any more; both hold the pipe.
    fork = "pid = os.fork(); (pid or (os.setsid(), os.fork() and os._exit(0))); signal.pause()"
    _, doomed = ward.start(1, f"import signal; os.set_inheritable(3, True); {fork}")
    other, spared = ward.start(2)
    ward.say(guard.KILL, 1, b"")
    kind, tag, (_, wait_status, cause, _) = ward.hear()
    assert (kind, tag, cause, os.WTERMSIG(wait_status)) == (guard.ENDED, 1, guard.ASKED, signal.SIGKILL)
    assert ends(doomed)
    os.kill(other, 0)
    ward.end.close()
    assert ends(spared)


def test_it_kills_everything_at_the_deadline(ward: Ward) -> None:
    _, first = ward.start(1)
    _, second = ward.start(2)
    now = guard.now()
    ward.say(guard.DEADLINE, 0, guard.DEADLINES.pack(now + 0.2, now + 60))
    assert {ward.hear()[2][2], ward.hear()[2][2]} == {guard.TOO_LATE}
    assert guard.now() >= now + 0.2
    assert ends(first)
    assert ends(second)


def test_a_renewed_deadline_lets_runners_live(ward: Ward) -> None:
    _, fd = ward.start(1)
    now = guard.now()
    ward.say(guard.DEADLINE, 0, guard.DEADLINES.pack(now + 0.3, now + 60))
    ward.say(guard.DEADLINE, 0, guard.DEADLINES.pack(now + 60, now + 90))
    assert not select.select([fd], [], [], 0.6)[0]
    ward.end.close()
    assert ends(fd)


def test_stopped_past_the_deadline_the_kernel_kills_guard_and_runners(ward: Ward) -> None:
    pid, fd = ward.start(1)
    now = guard.now()
    ward.say(guard.DEADLINE, 0, guard.DEADLINES.pack(now + 0.4, now + 0.5))
    ward.say(guard.SIGNAL, 1, bytes([signal.SIGSTOP]))
    pid, _ = ward.start(2)  # both frames have been obeyed
    os.kill(ward.process.pid, signal.SIGSTOP)
    assert ends(fd)
    assert ward.process.wait(20) == -signal.SIGKILL
    assert guard.now() >= now + 0.5
    assert pid


def test_without_runners_a_passed_deadline_does_not_end_the_guard(ward: Ward) -> None:
    pid, fd = ward.start(1, "pass")
    assert ward.hear()[0] == guard.ENDED
    now = guard.now()
    ward.say(guard.DEADLINE, 0, guard.DEADLINES.pack(now + 0.05, now + 0.1))
    assert not select.select([ward.end], [], [], 0.3)[0]
    ward.say(guard.DEADLINE, 0, guard.DEADLINES.pack(now + 60, now + 90))
    other, second = ward.start(2)
    assert other != pid
    ward.end.close()
    assert ends(fd)
    assert ends(second)


def test_when_the_keeper_closes_its_end_everything_ends(ward: Ward) -> None:
    _, fd = ward.start(1)
    ward.end.close()
    assert ward.process.wait(20) == 0
    assert ends(fd)


def test_signals_meant_for_the_keeper_do_not_move_it(ward: Ward) -> None:
    _, first = ward.start(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        ward.process.send_signal(number)
    _, second = ward.start(2)
    ward.end.close()
    assert ends(first)
    assert ends(second)


def test_it_imports_nothing_of_ours() -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); "
    code += "print([name for name in sys.modules if name.split('.')[0] in ('holdfast', 'msgspec', 'asyncio')])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, guard.__file__], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_launched_guard_and_its_runner_end_if_nobody_adopts_them() -> None:
    with launch.launched(None) as one:
        guard_process = one.adopt()
        one.adopted = False
        guard_process.socket.settimeout(20)
        kind, tag, size = guard.FRAME.unpack(guard_process.socket.recv(guard.FRAME.size))
        assert (kind, tag) == (guard.STARTED, launch.FIRST_TAG)
        (pid,) = guard.STARTED_FACTS.unpack(guard_process.socket.recv(size))
        runner = os.pidfd_open(pid)
    assert guard_process.process.returncode is not None
    assert select.select([runner], [], [], 90.0)[0], "the runner lives on"
    os.close(runner)
    assert guard_process.process.pid not in launch.OWN_CHILDREN


def test_a_launched_guard_is_killed_before_it_could_stop_its_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of its socket it stops the runner first, which must not stay stopped if the guard dies then."""
    sockets: list[int] = []
    with launch.launched(None) as one:
        guard_process = one.adopt()
        one.adopted = False
        kill = guard_process.process.kill

        def killed() -> None:
            sockets.append(guard_process.socket.fileno())
            kill()

        monkeypatch.setattr(guard_process.process, "kill", killed)
    assert len(sockets) == 1 and sockets[0] >= 0
    assert guard_process.socket.fileno() == -1


def test_a_runner_that_was_launched_before_its_slots_were_known_has_a_flag_for_every_job() -> None:
    assert launch.FLAGS_BEYOND_SLOTS >= SLOTS_ASYNC + SPARE_FLAGS + AHEAD_MAX + CHAINED_MAX + BATCHED_MAX


def test_signals_are_held_until_a_keeper_can_obey_them_but_not_in_guard_and_runner() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
    try:
        with launch.launched(None) as one:
            signal.pthread_kill(threading.get_ident(), signal.SIGHUP)  # threads of other tests would take os.kill's
            assert heard == []
            process = one.adopt()
            assert heard == [signal.SIGHUP]
            one.adopted = False
            process.socket.settimeout(20)
            *_, size = guard.FRAME.unpack(process.socket.recv(guard.FRAME.size))
            for pid in (process.process.pid, *guard.STARTED_FACTS.unpack(process.socket.recv(size))):
                blocked = int(re.findall(r"SigBlk:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())[0], 16)
                assert not blocked & (1 << signal.SIGTERM - 1 | 1 << signal.SIGHUP - 1)
    finally:
        signal.signal(signal.SIGHUP, before)
