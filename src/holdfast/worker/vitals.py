"""How a runner process is, read off the system: stopped, or idle although it does not answer.

Used by the overseer for runners that do not respond. Reads /proc; on systems without it, it knows nothing. A handler
may legally hold the loop or the interpreter for long, and nobody can tell for how long; but a process that is stopped,
or whose loop waits for events and does not answer, will not get better by itself.
"""

from __future__ import annotations

from pathlib import Path

_SELECT = "selectors.py"
_LOOP_STEP = "in _run_once"


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped by a signal."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] == ["T"]


def waits_for_events(pid: int) -> bool:
    """Whether its main thread sleeps in the kernel until an event comes: it does not wait for the interpreter then."""
    try:
        return "epoll" in Path(f"/proc/{pid}/task/{pid}/wchan").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def loop_is_idle(main_stack: str) -> bool:
    """Whether a stack of the main thread, innermost first, is that of a loop without anything to do."""
    frames = [line for line in main_stack.splitlines() if line.lstrip().startswith("File ")]
    steps = sum(_LOOP_STEP in line for line in frames)
    return len(frames) > 1 and _SELECT in frames[0] and _LOOP_STEP in frames[1] and steps == 1
