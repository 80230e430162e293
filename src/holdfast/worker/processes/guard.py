"""The guard: a tiny process between the keeper and the runners that kills them in time, whatever else is stuck.

Started by the keeper as a separate script (`python -I -S guard.py FD KEEPER_PID`); the keeper's side is
guard_client.py, which takes the frame layout from here. It is the parent of all runners and reaps what they leave
behind. It kills every runner with all descendants when the deadline passes, when the keeper's end of the socket closes
and when the keeper dies. It is single-threaded and imports neither Holdfast nor user code, so no handler can delay it.
It never talks to the store and decides nothing about jobs.

Three lines of defence: this loop; a kernel timer that kills the guard itself a little after the deadline, even if it is
stopped; and the parent-death signal, which then kills its runners, even if they are stopped.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time

FRAME = struct.Struct("<BII")  # kind, tag, bytes that follow
DEADLINE = 1  # two doubles on CLOCK_BOOTTIME: when to kill runners, when the kernel kills the guard; 0: never
START = 2  # number of file descriptors, whether the last one becomes stdout and stderr, then argv, separated by NUL
SIGNAL = 3  # one byte: send this signal to the runner's process
KILL = 4  # kill the runner and everything it started
STARTED = 5  # pid
ENDED = 6  # pid, wait status, cause, peak memory in KiB

DEADLINES = struct.Struct("<dd")
STARTED_FACTS = struct.Struct("<I")
ENDED_FACTS = struct.Struct("<IiBQ")

OWN, ASKED, TOO_LATE = 0, 1, 2  # causes: it ended by itself, the keeper asked, the deadline passed
GUARD_DIED = 3  # set by the keeper, never sent by the guard: the guard died, and its runners with it

FIRST_FD = 3  # a runner finds its file descriptors from here on
KEEPER = "HOLDFAST_KEEPER"  # in the environment of all of a keeper's processes: finds survivors of a dead keeper
MARKER = "HOLDFAST_RUNNER"  # in the environment of a runner and its descendants: tells whose orphan a process is

DUMP_SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2  # asks a runner for its stacks

_PDEATHSIG, _SUBREAPER = 1, 36
_ORPHANED = signal.SIGUSR2  # the kernel sends this when the keeper dies
# A supervisor may send these to every process of the worker; only the keeper can shut down gracefully.
_IGNORED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
)
_BOOTTIME = 7
_ROUNDS_MAX = 50  # scans for descendants forked meanwhile
_LOOK_MS = 250  # poll interval if there is no timerfd
_HIGH_FD = 200
_NOT_STARTED = 127


_TIMER = struct.Struct("@4l")  # struct itimerspec: interval and time, each in seconds and nanoseconds
_EVENT = struct.Struct("@P14i")  # struct sigevent: value, signal, notification method, padding


def now() -> float:
    """Seconds on the clock that includes suspend."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _timer(at: float) -> bytes:
    """One-shot timer at an absolute time; 0 disarms it."""
    whole = int(at)
    return _TIMER.pack(0, 0, whole, int((at - whole) * 1e9))


class Kernel:
    """Linux kernel features (prctl, timers); does nothing on other systems."""

    def __init__(self) -> None:
        self.linux = sys.platform == "linux"
        self.alarm_fd = -1
        self._fuse: object = None  # the timer that kills this process
        if not self.linux:
            return
        import ctypes  # only the guard itself needs it: runners and keepers import this module, too

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._rt = self._libc if hasattr(self._libc, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)
        self.alarm_fd = self._libc.timerfd_create(_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC)
        self._ulong = ctypes.c_ulong
        fuse = ctypes.c_void_p()
        event = _EVENT.pack(0, signal.SIGKILL, *[0] * 13)
        if self._rt.timer_create(_BOOTTIME, event, ctypes.byref(fuse)) == 0:
            self._fuse = fuse

    @property
    def has_fuse(self) -> bool:
        return self._fuse is not None

    def prctl(self, option: int, value: int) -> None:
        if self.linux:
            self._libc.prctl(option, self._ulong(value), 0, 0, 0)

    def wake_at(self, at: float) -> None:
        """Make alarm_fd readable at that time, even if the machine was suspended meanwhile."""
        if self.alarm_fd >= 0:
            self._libc.timerfd_settime(self.alarm_fd, 1, _timer(at), None)

    def die_at(self, at: float) -> None:
        """Have the kernel kill this process at that time, running or stopped; 0 disarms."""
        if self._fuse is not None:
            self._rt.timer_settime(self._fuse, 1, _timer(at), None)


class Runner:
    """A runner process."""

    __slots__ = ("cause", "marker", "pid", "tag")

    def __init__(self, tag: int, pid: int, marker: str) -> None:
        self.tag, self.pid, self.marker = tag, pid, marker
        self.cause = OWN


class KeeperGone(Exception):
    """The keeper closed its end of the socket."""


class Guard:
    """The guard's loop. `run` returns when the keeper is gone and no runner process is left."""

    def __init__(self, control: socket.socket) -> None:
        self.control, self.pid = control, os.getpid()
        self.kernel = Kernel()
        self.runners: dict[int, Runner] = {}  # by pid
        self.deadline = self.last = 0.0
        self.incoming = bytearray()
        self.fds: list[int] = []
        self.wake_fd, tell = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(tell, False)
        control.setblocking(False)
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        self.gone = False
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(_ORPHANED, self._keeper_died)
        for quiet in _IGNORED_SIGNALS:
            signal.signal(quiet, signal.SIG_IGN)
        self.kernel.prctl(_SUBREAPER, 1)
        self.kernel.prctl(_PDEATHSIG, _ORPHANED)

    def _keeper_died(self, *_: object) -> None:
        self.gone = True

    def run(self, keeper: int) -> None:
        poll = select.poll()
        for fd in (self.control.fileno(), self.wake_fd, self.kernel.alarm_fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        wait = None if self.kernel.alarm_fd >= 0 else _LOOK_MS
        try:
            while not self.gone and os.getppid() == keeper:
                ready = {fd for fd, _ in poll.poll(wait)}
                if self.deadline and now() >= self.deadline:
                    self.kill(list(self.runners.values()), TOO_LATE)
                for fd in (self.wake_fd, self.kernel.alarm_fd):
                    if fd in ready:
                        _drain(fd)
                self.reap()
                if self.control.fileno() in ready:
                    self.listen()
        except (KeeperGone, OSError):
            pass
        self.gone = True
        self.kill(list(self.runners.values()), TOO_LATE)
        while self.runners and self.reap(0):
            pass
        self.kill_descendants(set())

    # ------------------------------------------------------------------ commands from the keeper

    def listen(self) -> None:
        room = socket.CMSG_SPACE(16 * 4)
        try:
            piece, extra, _, _ = self.control.recvmsg(1 << 16, room, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        except BlockingIOError:
            return
        if not piece:
            raise KeeperGone
        for level, kind, packed in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.fds += struct.unpack(f"<{len(packed) // 4}i", packed[: len(packed) // 4 * 4])
        self.incoming += piece
        while len(self.incoming) >= FRAME.size:
            kind, tag, size = FRAME.unpack_from(self.incoming)
            if len(self.incoming) < FRAME.size + size:
                return
            payload = bytes(self.incoming[FRAME.size : FRAME.size + size])
            del self.incoming[: FRAME.size + size]
            self.handle(kind, tag, payload)

    def handle(self, kind: int, tag: int, payload: bytes) -> None:
        if kind == DEADLINE:
            self.deadline, self.last = DEADLINES.unpack(payload)
            self.set_timers()
        elif kind == START:
            self.start(tag, payload)
        else:
            runner = next((runner for runner in self.runners.values() if runner.tag == tag), None)
            if runner is not None and kind == KILL:
                self.kill([runner], ASKED)
            elif runner is not None and kind == SIGNAL:
                send(runner.pid, payload[0])

    def set_timers(self) -> None:
        self.kernel.wake_at(self.deadline if self.runners else 0.0)
        self.kernel.die_at(self.last if self.runners else 0.0)  # without runners there is no reason to die

    def start(self, tag: int, payload: bytes) -> None:
        number, speaks = payload[0], payload[1]
        words = [word.decode() for word in payload[2:].split(b"\0")]
        given, self.fds = self.fds[:number], self.fds[number:]
        marker = f"{self.pid}-{tag}"
        try:
            pid = os.fork()  # safe: single-threaded, and the child only sets itself up and calls exec
        except OSError:
            pid = -1
        if pid == 0:
            try:
                self.become(words, given, bool(speaks), {**os.environ, MARKER: marker})
            finally:
                os._exit(_NOT_STARTED)
        for fd in given:
            os.close(fd)
        if pid < 0:  # too many processes: report it, and keep the other runners
            self.send_frame(ENDED, tag, ENDED_FACTS.pack(0, _NOT_STARTED << 8, OWN, 0))
            return
        self.runners[pid] = Runner(tag, pid, marker)
        self.set_timers()
        self.send_frame(STARTED, tag, STARTED_FACTS.pack(pid))

    def become(self, words: list[str], given: list[int], speaks: bool, environment: dict[str, str]) -> None:
        os.setsid()  # only the keeper handles the terminal's signals
        prefer_to_be_killed()
        self.kernel.prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.pid:
            return
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, _ORPHANED, *_IGNORED_SIGNALS):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(DUMP_SIGNAL, signal.SIG_IGN)  # until the runner handles it: by default it would end a slow start
        high = []
        for offset, fd in enumerate(given):  # move them up first: a source may occupy another's target
            os.dup2(fd, _HIGH_FD + offset, inheritable=False)
            high.append(_HIGH_FD + offset)
        for offset, fd in enumerate(high):
            os.dup2(fd, FIRST_FD + offset, inheritable=True)
        if speaks:  # a dedicated runner adopts its job's orphans, so that they can be counted and found
            self.kernel.prctl(_SUBREAPER, 1)
            os.dup2(2, FIRST_FD + len(high) - 1)  # keep the worker's stderr; the pipe replaces it below
            os.dup2(high[-1], 1)
            os.dup2(high[-1], 2)
        os.execve(words[0], words, environment)  # noqa: S606 - the keeper's own interpreter

    # ------------------------------------------------------------------ runners

    def reap(self, how: int = os.WNOHANG) -> bool:
        """Reap ended processes. Return whether there were any. With `how` 0, wait until the last runner has ended."""
        found = False
        while True:
            try:
                pid, wait_status, used = os.wait4(-1, how if self.runners else os.WNOHANG)
            except ChildProcessError:
                return found
            if not pid:
                return found
            found = True
            runner = self.runners.pop(pid, None)
            if runner is None:
                continue
            self.kill_descendants({runner.marker})
            self.set_timers()
            self.send_frame(ENDED, runner.tag, ENDED_FACTS.pack(pid, wait_status, runner.cause, used.ru_maxrss))

    def send_frame(self, kind: int, tag: int, facts: bytes) -> None:
        if self.gone:
            return
        try:
            sent = self.control.send(FRAME.pack(kind, tag, len(facts)) + facts)
        except OSError:
            sent = 0
        if sent != FRAME.size + len(facts):  # the keeper has not read thousands of frames: treat it as gone
            self.gone = True

    def kill(self, runners: list[Runner], cause: int) -> None:
        """Kill these runners with everything they started, including descendants in sessions of their own."""
        if not runners:
            return
        for runner in runners:
            runner.cause = runner.cause or cause
            send(runner.pid, signal.SIGSTOP)  # from now on it cannot fork
        if self.kernel.linux:
            self.kill_descendants({runner.marker for runner in runners}, tuple(runner.pid for runner in runners))
        for runner in runners:
            if not self.kernel.linux:
                send(-runner.pid, signal.SIGKILL)
            send(runner.pid, signal.SIGKILL)

    def kill_descendants(self, markers: set[str], roots: tuple[int, ...] = ()) -> None:
        """Stop, then kill `roots`, their descendants, and orphans that belong to no surviving runner."""
        if not self.kernel.linux:
            return
        others = {runner.marker: runner.pid for runner in self.runners.values() if runner.marker not in markers}
        stopped: set[int] = set()
        for _ in range(_ROUNDS_MAX):
            table = processes()
            to_kill = {pid for pid in roots if pid in table}
            to_kill |= {pid for pid, facts in table.items() if self._is_orphan(pid, facts, others)}
            to_kill |= _below(to_kill, table)
            new = to_kill - stopped
            if not new:
                break
            for pid in new:
                send(pid, signal.SIGSTOP)
            stopped |= new
        for pid in stopped:
            send(pid, signal.SIGKILL)

    def _is_orphan(self, pid: int, facts: tuple[int, int], others: dict[str, int]) -> bool:
        parent, session = facts
        if parent != self.pid or pid in self.runners or session in others.values():
            return False
        return marker_of(pid) not in others


def _drain(fd: int) -> None:
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        pass


def prefer_to_be_killed() -> None:
    """Make the OOM killer choose a runner rather than the keeper or the guard."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("300")
    except OSError:
        pass  # another system, or already set higher


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # already gone


def processes() -> dict[int, tuple[int, int]]:
    """pid → (parent, session) of every process that is not a zombie."""
    table: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open(f"/proc/{name}/stat", os.O_RDONLY)
        except OSError:
            continue
        try:
            fields = os.read(fd, 1024).rpartition(b")")[2].split()
        except OSError:
            continue
        finally:
            os.close(fd)
        if len(fields) > 3 and fields[0] not in b"ZX":
            table[int(name)] = int(fields[1]), int(fields[3])
    return table


def _below(roots: set[int], table: dict[int, tuple[int, int]]) -> set[int]:
    """All descendants of `roots`."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found:
                found.add(pid)
                waiting.append(pid)
    return found


def marker_of(pid: int, name: str = MARKER) -> str:
    """The marker in a process's initial environment, which shows whose descendant it is; "" if unreadable or absent."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return ""
    start = f"{name}=".encode()
    return next((word[len(start) :].decode("ascii", "replace") for word in words if word.startswith(start)), "")


def main() -> None:
    fd, keeper = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(fd, False)
    Guard(socket.socket(fileno=fd)).run(keeper)


if __name__ == "__main__":
    main()
