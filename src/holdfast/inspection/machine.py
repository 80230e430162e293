"""The doctor's findings, and those about this machine: can it run `holdfast work`, kill and isolate runners?

Called by the doctor. `look_at_machine` tries each feature, in this process or a short-lived one of its own, and
leaves no trace; `judge_machine` is pure. Linux features that other systems lack are reported, with their consequences.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

# ----------------------------------------------------------------------------------------------------------------------
# The doctor's findings, one per check: fine, worth a note, or wrong. Created by machine.py, store_health.py and
# coverage.py, displayed by the command line. Plain values: the only decision here is which verdict is worse.


Verdict = Literal["fine", "note", "wrong"]


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    about: str  # a word or two: "schema", "clock"
    verdict: Verdict
    text: str
    next: str = ""  # what to do, if anything
    facts: Mapping[str, Any] = {}  # the same for programs (--json)


def fine(about: str, text: str, **facts: Any) -> Finding:
    return Finding(about=about, verdict="fine", text=text, facts=facts)


def note(about: str, text: str, next: str = "", **facts: Any) -> Finding:
    """Worth knowing, but nothing is broken."""
    return Finding(about=about, verdict="note", text=text, next=next, facts=facts)


def wrong(about: str, text: str, next: str = "", **facts: Any) -> Finding:
    """Something does not work, or a guarantee does not hold."""
    return Finding(about=about, verdict="wrong", text=text, next=next, facts=facts)


def all_well(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong."""
    return all(finding.verdict != "wrong" for finding in findings)


# ----------------------------------------------------------------------------------------------------------------------
# Checks of this machine


PYTHON_MIN = (3, 11)
REQUIRED = ("msgspec", "click", "rich")
OPTIONAL = ("psycopg", "redis", "hiredis", "uvloop")
DRIVERS = {
    "postgresql": (("psycopg",), "pip install 'holdfast[postgres]'"),
    "redis": (("redis", "hiredis"), "pip install 'holdfast[redis]'"),
    "redis+cluster": (("redis", "hiredis"), "pip install 'holdfast[redis]'"),
}
SHELLS = ("sh", "bash", "dash", "ash", "zsh")  # they do not forward the signals they receive
LIMITS = {"memory": "RLIMIT_DATA", "cpu": "RLIMIT_CPU", "file": "RLIMIT_FSIZE"}
START_SECONDS_MAX = 20.0
SLOW_SECONDS = 2.0

_GET_PDEATHSIG, _SET_PDEATHSIG, _GET_SUBREAPER, _SET_SUBREAPER = 2, 1, 37, 36
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # the same on every Linux: outside any container


class Machine(Struct, frozen=True, kw_only=True):
    """The results of the probes."""

    platform: str  # sys.platform
    system: str  # for display
    python: tuple[int, int, int]
    packages: Mapping[str, str | None] = {}  # name → version, None: not installed
    subreaper: bool = False
    parent_death: bool = False
    pidfd: bool = False
    timers: bool = False  # on a clock that includes suspend, one of which kills the guard
    proc: bool = False  # other processes can be inspected
    children: bool = False  # /proc lists a thread's children
    limits: Mapping[str, int | None] = {}  # kind → hard limit, None: unlimited; absent: not supported
    start_error: str = ""  # why a process could not be started
    start_seconds: float = 0.0
    pid: int = 0
    contained: bool = False  # in its own pid namespace
    pid_1: str = ""  # its name


def look_at_machine() -> Machine:
    """Run all probes."""
    error, seconds = _try_start()
    linux = sys.platform == "linux"
    return Machine(
        platform=sys.platform,
        system=f"{platform.system()} {platform.release()}",
        python=sys.version_info[:3],
        packages={name: _version(name) for name in (*REQUIRED, *OPTIONAL)},
        subreaper=linux and _settable(_GET_SUBREAPER, _SET_SUBREAPER),
        parent_death=linux and _settable(_GET_PDEATHSIG, _SET_PDEATHSIG),
        pidfd=_has_pidfd(),
        timers=linux and _has_timers(),
        proc=_read("/proc/self/stat") != "" and os.path.isdir(f"/proc/{os.getppid()}"),
        children=os.path.exists(f"/proc/self/task/{os.getpid()}/children"),
        limits=_limits(),
        start_error=error,
        start_seconds=seconds,
        pid=os.getpid(),
        contained=linux and _link("/proc/self/ns/pid") not in ("", _FIRST_PID_NAMESPACE),
        pid_1=_read("/proc/1/comm").strip(),
    )


def judge_machine(machine: Machine, scheme: str = "") -> list[Finding]:
    """Findings for a worker on this machine; `scheme` is the store's, whose driver must be installed."""
    return [
        _python(machine),
        _packages(machine, scheme),
        *([_elsewhere(machine)] if machine.platform != "linux" else [_killing(machine), _deadline(machine)]),
        _limiting(machine),
        _starting(machine),
        _first_process(machine),
    ]


# ---------------------------------------------------------------------- judgement


def _python(machine: Machine) -> Finding:
    version = ".".join(map(str, machine.python))
    facts = {"python": version, "system": machine.system}
    if machine.python < PYTHON_MIN:
        least = ".".join(map(str, PYTHON_MIN))
        return wrong("python", f"Python {version} is too old.", f"Use {least} or newer.", **facts)
    return fine("python", f"Python {version} on {machine.system}.", **facts)


def _packages(machine: Machine, scheme: str) -> Finding:
    found = {name: version for name, version in machine.packages.items() if version is not None}
    drivers, install = DRIVERS.get(scheme, ((), ""))
    missing = [name for name in (*REQUIRED, *drivers) if name not in found]
    if missing:
        step = f"Install the driver: {install}." if set(missing) <= set(drivers) else "Install holdfast again."
        return wrong("packages", f"{', '.join(missing)}: not installed.", step, **machine.packages)
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    absent = [name for name in OPTIONAL if name not in found]
    return fine("packages", f"{text}{f'; without {chr(44).join(absent)}' if absent else ''}.", **machine.packages)


def _elsewhere(machine: Machine) -> Finding:
    if machine.platform == "win32":
        return wrong("killing", "`holdfast work` does not run on Windows.", "Call app.work() in your program.")
    return note(
        "killing",
        "there is no parent-death signal, kernel timer or adoption of orphans here: the guard kills process groups, "
        "and a process that started its own session may survive.",
        "Use Linux where handlers start programs that must not outlive them.",
    )


def _killing(machine: Machine) -> Finding:
    facts = {
        "subreaper": machine.subreaper,
        "parent_death_signal": machine.parent_death,
        "proc": machine.proc,
        "pidfd": machine.pidfd,
    }
    lacking = {
        "children of runners cannot be adopted (subreaper)": machine.subreaper,
        "runners do not die with their guard (parent-death signal)": machine.parent_death,
        "other processes cannot be seen (/proc)": machine.proc,
    }
    missing = [text for text, there in lacking.items() if not there]
    if missing:
        step = "Allow prctl and mount /proc in the sandbox or container that forbids it."
        return wrong("killing", f"{'; '.join(missing)}: what handlers start may outlive them.", step, **facts)
    text = "runners are killed with every process they started: by the guard as subreaper, and by signal when it dies"
    return fine("killing", f"{text}{'; pidfd is available' if machine.pidfd else ''}.", **facts)


def _deadline(machine: Machine) -> Finding:
    if machine.timers:
        return fine("deadline", "kernel timers enforce it, even after a suspend or with a stopped guard.", timers=True)
    return wrong(
        "deadline",
        "no timer on CLOCK_BOOTTIME can be made: a guard that is stopped cannot kill runners.",
        "Allow timer_create and timerfd_create in the sandbox that forbids them.",
        timers=False,
    )


def _limiting(machine: Machine) -> Finding:
    lacking = [f"{kind}_limit" for kind in LIMITS if kind not in machine.limits]
    if machine.platform == "linux" and not machine.children:
        lacking.append("memory_limit for the child processes of a job (/proc does not list children)")
    if lacking:
        text = f"cannot be enforced here: {', '.join(lacking)}."
        return note("limits", text, "Give isolated tasks a timeout.", **machine.limits)
    capped = {kind: most for kind, most in machine.limits.items() if most is not None}
    if capped:
        shown = ", ".join(f"{kind} {most}" for kind, most in capped.items())
        text = f"this user's resource limits are lower than some tasks may request: {shown}."
        return note("limits", text, "Raise its hard limits (ulimit -H) where tasks need more.", **machine.limits)
    return fine("limits", "memory_limit, cpu_limit and file_limit of isolated tasks are enforced.", **machine.limits)


def _starting(machine: Machine) -> Finding:
    facts = {"seconds": round(machine.start_seconds, 3)}
    if machine.start_error:
        step = "Check the limits on processes and memory (ulimit -u, the container's)."
        return wrong("processes", f"no process can be started: {machine.start_error}.", step, **facts)
    text = f"a Python process starts in {machine.start_seconds:.2f} s."
    if machine.start_seconds > SLOW_SECONDS:
        return note("processes", text, "The machine is busy or slow; replacing a runner will take long.", **facts)
    return fine("processes", text, **facts)


def _first_process(machine: Machine) -> Finding:
    facts = {"contained": machine.contained, "pid_1": machine.pid_1}
    if not machine.contained:
        return fine("container", "none: the system's own init is PID 1.", **facts)
    if machine.pid_1 in SHELLS and machine.pid != 1:
        return note(
            "container",
            f"PID 1 here is {machine.pid_1}, a shell, which does not forward SIGTERM: a worker below it is killed "
            "without grace.",
            "Start the worker as the container's command itself, or with exec.",
            **facts,
        )
    return fine("container", f"one, with PID 1 {machine.pid_1}; `holdfast work` may itself be PID 1.", **facts)


# ---------------------------------------------------------------------- probes


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _settable(get: int, put: int) -> bool:
    """Whether prctl knows an option and lets us set it: set it to its current value."""
    libc = ctypes.CDLL(None, use_errno=True)
    now = ctypes.c_int()
    if libc.prctl(get, ctypes.byref(now), 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(put, ctypes.c_ulong(now.value), 0, 0, 0) == 0)


def _has_pidfd() -> bool:
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _has_timers() -> bool:
    """Whether the guard gets both of its timers."""
    from ..worker.processes.guard import Kernel  # imported here because it only loads where such processes exist

    kernel = Kernel()
    if kernel.alarm_fd >= 0:
        os.close(kernel.alarm_fd)
    return kernel.alarm_fd >= 0 and kernel.has_fuse


def _limits() -> dict[str, int | None]:
    if sys.platform == "win32":
        return {}
    import resource

    found: dict[str, int | None] = {}
    for kind, name in LIMITS.items():
        if hasattr(resource, name):
            _, hard = resource.getrlimit(getattr(resource, name))
            found[kind] = None if hard == resource.RLIM_INFINITY else hard
    return found


def _try_start() -> tuple[str, float]:
    """Start an interpreter the way the keeper starts its guard."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", ""],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error), time.monotonic() - began
    return (f"it ended with {done.returncode}" if done.returncode else ""), time.monotonic() - began


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
