"""Every log message Holdfast emits, one function each: on the logger "holdfast", and those about single jobs on
"holdfast.jobs".

Called by the worker engine and the app. A message never contains arguments, results or passwords. The text of a failed
handler's exception is logged with the values of its arguments masked; other exceptions are named by their class.
Messages about jobs carry their facts as fields (`extra`), for formats that show them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .errors import HoldfastError
from .names import visible

if TYPE_CHECKING:
    from .lifecycle import Failure, Settlement
    from .records import Lease


class _Visible(logging.Filter):
    """Names and exception classes come from users and handlers: escape characters that could control a terminal."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(visible(one) if isinstance(one, str) else one for one in record.args)
        return True


logger = logging.getLogger("holdfast")
jobs_logger = logging.getLogger("holdfast.jobs")
for one in (logger, jobs_logger):  # a logger's filter does not see what its children log
    one.addFilter(_Visible())


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:5])
    return f"{shown} and {len(ids) - 5} more" if len(ids) > 5 else shown


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _kind(error: BaseException) -> str:
    # Our own errors never quote arguments; for others only the class is safe to log.
    kind = visible(type(error).__name__, "")
    return f"{kind}: {error}".rstrip(".") if isinstance(error, HoldfastError) else kind


# ---------------------------------------------------------------------- worker lifecycle


def worker_started(worker: str, queues: Sequence[str], slots: int, name: str = "") -> None:
    named = f"{worker} ({name})" if name else worker
    logger.info("worker %s started: queues %s, %s", named, ", ".join(queues), _counted(slots, "slot"))


def worker_commanded(worker: str, ask: str, by: str, result: str) -> None:
    logger.info("worker %s carried out the command %s%s: %s", worker, ask, f" of {by}" if by else "", result)


def command_unanswered(worker: str, ask: str, error: Exception) -> None:
    logger.warning("worker %s could not store its answer to command %s (%s); it will try again", worker, ask, error)


def worker_stopping(worker: str, running: int, grace: float) -> None:
    jobs = _counted(running, "running job")
    wait = f": waiting up to {grace:g} s for {jobs}" if running else ""
    logger.info("worker %s is stopping%s", worker, wait)


def worker_hurried(worker: str, running: int) -> None:
    jobs = _counted(running, "running job")
    logger.warning("worker %s is stopping now: stopping and releasing %s", worker, jobs)


def worker_stopped(worker: str) -> None:
    logger.info("worker %s stopped", worker)


def rows_set_aside(rows: Sequence[tuple[str, str]]) -> None:
    for place, name in rows:
        logger.error(
            "a row of %s (%r) contains text that is not UTF-8: the whole row was moved to quarantine. "
            "`holdfast doctor` lists it",
            place,
            name,
        )


def left_running(worker: str, jobs: Sequence[str]) -> None:
    logger.error(
        "worker %s ends although %s did not stop (%s): threads cannot be killed. Their leases "
        "will expire. Check ctx.cancelled in long handlers, or give them a timeout",
        worker,
        _counted(len(jobs), "handler"),
        _some(jobs),
    )


def outcomes_unsent(worker: str, jobs: Sequence[str]) -> None:
    logger.error(
        "worker %s ends with %s (%s): their leases will expire and the jobs will run again",
        worker,
        _counted(len(jobs), "unsent outcome"),
        _some(jobs),
    )


def retire_failed(worker: str, error: BaseException) -> None:
    logger.warning("worker %s could not unregister (%s): its row will expire", worker, _kind(error))


def not_isolated(tasks: Sequence[str]) -> None:
    logger.warning(
        "the embedded worker has one process: tasks with isolation='process' (%s) run in it, without resource limits. "
        "`holdfast work` runs them in separate processes",
        _some(tasks),
    )


def keeper_failed(error: BaseException) -> None:
    logger.critical("the keeper thread failed and the worker stops", exc_info=error)


def clean_up_done(dead: Sequence[str], recovered: int) -> None:
    logger.warning("recovered %s of dead workers of this host: %s", _counted(recovered, "lease"), _some(dead))


def clean_up_failed(error: BaseException) -> None:
    logger.warning("start-up clean-up failed (%s); a sweep will recover the leases when they expire", _kind(error))


# ---------------------------------------------------------------------- the store


def part_silent(worker: str, leases: int, fence_in: float) -> None:
    logger.warning(
        "worker %s: a part of the store that has %s of this worker does not respond. Their handlers will be stopped in "
        "%.1f s unless it responds; other jobs continue",
        worker,
        _counted(leases, "lease"),
        max(0.0, fence_in),
    )


def renewal_failed(worker: str, error: BaseException, fence_in: float) -> None:
    logger.warning(
        "worker %s could not renew its leases (%s); handlers will be stopped in %.1f s", worker, _kind(error), fence_in
    )


def fence_passed(worker: str, jobs: Sequence[str]) -> None:
    number = _counted(len(jobs), "handler")
    logger.error("worker %s could not renew its leases in time: stopping %s (%s)", worker, number, _some(jobs))


def fence_lifted(worker: str) -> None:
    logger.warning("worker %s renewed its leases again and continues", worker)


def exiting_on_fence(worker: str, jobs: Sequence[str]) -> None:
    logger.critical(
        "worker %s ends this process (on_fence='exit'): %s did not stop (%s), and these jobs may soon run elsewhere",
        worker,
        _counted(len(jobs), "handler"),
        _some(jobs),
    )


def worker_forgotten(old: str, new: str, leases: int) -> None:
    lost = _counted(leases, "lease")
    logger.error("the store no longer knows worker %s, which lost %s; continuing as %s", old, lost, new)


def lease_lost(job: str, task: str) -> None:
    logger.warning("lease on job %s (%s) lost: its handler is stopped, its outcome is not recorded", job, task)


def store_blocked(seconds: float, error: str) -> None:
    logger.error("the store has not responded for %.1f s (%s)", seconds, error)


def store_sealed(worker: str, error: HoldfastError, running: int) -> None:
    jobs = _counted(running, "running job")
    logger.error("worker %s claims no more jobs and stops after its %s: %s", worker, jobs, error)


def claims_stopped(worker: str, seconds: float) -> None:
    logger.error("worker %s has free slots but has not claimed for %.0f s: waking its claim loop", worker, seconds)


def old_snapshot(text: str, advice: str) -> None:
    logger.warning("%s. %s", text, advice)


def exchange_failed(error: BaseException, tries: int, outcomes: int) -> None:
    level = logging.WARNING if tries == 1 else logging.DEBUG
    unsent = _counted(outcomes, "unsent outcome")
    logger.log(level, "settle and claim failed (%s), retrying with %s", _kind(error), unsent)


def store_quiet(seconds: float) -> None:
    logger.warning(
        "the store may have lost its latest writes in a failover or restart: no claims and no recoveries for %.1f s",
        seconds,
    )


def jobs_held_elsewhere(jobs: Sequence[str]) -> None:
    number = _counted(len(jobs), "job")
    logger.warning("another session has locked %s in the store (%s): retrying the outcomes later", number, _some(jobs))


def call_surprised(verb: str, error: BaseException) -> None:
    logger.error("%s raised an unexpected exception (a bug in the backend); the call is repeated", verb, exc_info=error)


def slow_down_failed(queue: str, seconds: float, error: BaseException) -> None:
    logger.warning("queue %s could not be slowed down for %g s: %s", queue, seconds, _kind(error))


def entry_ticked(name: str, jobs: int, skipped: bool) -> None:
    made = f"enqueued {_counted(jobs, 'job')}"
    logger.debug("cron entry %s: %s", name, "skipped, its last job is still live" if skipped else made)


def entry_unreadable(error: BaseException) -> None:
    logger.warning("a cron entry cannot be read by this version (%s); newer workers run it", _kind(error))


def sweep_failed(sweep: str, error: BaseException, tries: int = 1) -> None:
    level = logging.WARNING if tries == 1 else logging.DEBUG  # an outage is one warning, not one a second
    logger.log(level, "sweep %s failed (%s); it will be retried", sweep, _kind(error))


def declare_failed(error: BaseException, tries: int) -> None:
    level = logging.WARNING if tries == 1 else logging.DEBUG
    logger.log(level, "the rules that this code declares could not be stored (%s); retrying", _kind(error))


def record_failed(error: HoldfastError) -> None:
    logger.info("roll-ups and events could not be recorded (%s); they are kept for the next try", _kind(error))


def report_failed(error: BaseException, jobs: int) -> None:
    logger.warning("progress and log lines of %s were not stored (%s)", _counted(jobs, "job"), _kind(error))


def leases_given_back(jobs: Sequence[str]) -> None:
    logger.info("the store released jobs of a claim whose reply was lost: %s", _some(jobs))


# ---------------------------------------------------------------------- jobs


TAIL_FRAMES = 2  # of a traceback, in the log; `holdfast job` shows all of it
MASKED_ARGS_BYTES_MAX = 64 << 10  # with larger arguments an exception is logged without its text
TEXT_SHOWN_MAX = 500
_URL_PASSWORD = re.compile(r"(\w+://[^\s:/@]*:)[^\s@]+(?=@)")


def job_facts(lease: Lease) -> dict[str, Any]:
    """The fields that every message about an attempt carries."""
    return {"job_id": lease.id, "task": lease.task, "queue": lease.queue, "attempt": lease.attempt}


def _log_job(level: int, event: str, lease: Lease, text: str, *values: object, **fields: object) -> None:
    """A line about an attempt; `text` follows the job's id and task."""
    extra = {"event": event, **job_facts(lease), **fields}
    jobs_logger.log(level, f"job %s (%s) {text}", lease.id, lease.task, *values, extra=extra)


def job_started(lease: Lease, wait: float) -> None:
    text = "started, attempt %d: waited %s"
    _log_job(logging.INFO, "started", lease, text, lease.attempt, _seconds(wait), wait_seconds=round(wait, 6))


def job_succeeded(lease: Lease, wait: float, run: float) -> None:
    text, spans = "succeeded on attempt %d: waited %s, ran %s", _spans(wait, run)
    _log_job(logging.INFO, "succeeded", lease, text, lease.attempt, _seconds(wait), _seconds(run), **spans)


def job_summed_up(counts: Mapping[tuple[str, str], int], seconds: float) -> None:
    """Jobs that were not logged one by one because there were too many."""
    totals: dict[str, int] = {}
    for (what, _), number in counts.items():
        totals[what] = totals.get(what, 0) + number
    said = " and ".join(f"{number} {what}" for what, number in sorted(totals.items()))
    by_task = {f"{what} {task}": number for (what, task), number in counts.items()}
    jobs_logger.info(
        "%s more jobs in %.1f s, too many for a line each (--log-jobs all logs every one)",
        said,
        seconds,
        extra={"event": "summed_up", "counts": by_task},
    )


def job_put_off(lease: Lease, run: float, delay: float, signal: str | None = None) -> None:
    """A snooze; `signal` is the signal it waits for, if any."""
    until = "in" if signal is None else f"when signal {signal!r} arrives, or in"
    text, values = "snoozed on attempt %d: ran %s, again %s %s", (_seconds(run), until, _seconds(delay))
    spans = {"run_seconds": round(run, 6), "delay_seconds": delay}
    _log_job(logging.INFO, "snoozed", lease, text, lease.attempt, *values, **spans)


def job_released(lease: Lease) -> None:
    _log_job(logging.INFO, "released", lease, "released unfinished: attempt %d does not count", lease.attempt)


def job_cancelled(lease: Lease, run: float) -> None:
    text = "cancelled on attempt %d: ran %s"
    _log_job(logging.INFO, "cancelled", lease, text, lease.attempt, _seconds(run), run_seconds=round(run, 6))


def attempt_failed(lease: Lease, settlement: Settlement, run: float) -> None:
    error, delay = _Error(lease, settlement.failure), settlement.delay
    text, values = "failed on attempt %d after %s: %s; next try in %s%s", (error.line, _seconds(delay), error.tail)
    spans = {"run_seconds": round(run, 6), "delay_seconds": round(delay, 3)}
    _log_job(logging.WARNING, "failed", lease, text, lease.attempt, _seconds(run), *values, **error.fields, **spans)


def job_dead(lease: Lease, settlement: Settlement, run: float) -> None:
    error, reason = _Error(lease, settlement.failure), settlement.reason or ""
    text = "is dead (%s) after attempt %d, which ran %s%s%s"
    values = (reason, lease.attempt, _seconds(run), f": {error.line}" if error.line else "", error.tail)
    fields = {**error.fields, "reason": reason, "run_seconds": round(run, 6)}
    _log_job(logging.ERROR, "dead", lease, text, *values, **fields)


class _Error:
    """A failure as the log shows it: one line, then the end of its traceback and where to see more."""

    def __init__(self, lease: Lease, failure: Failure | None) -> None:
        kind = "" if failure is None else visible(failure.type or ("" if failure.text else failure.reason), "")
        text = "" if failure is None else masked(failure.text, lease.args)
        frames = [] if failure is None else list(_last_frames(failure.traceback))
        self.line = ": ".join(filter(None, (kind, text)))
        self.tail = "".join(f"\n    {frame}" for frame in (*frames, f"`holdfast job {lease.id}` shows more"))
        self.fields = {"error_type": kind, "error": text, "traceback": "\n".join(frames)}


def masked(text: str, args: bytes) -> str:
    """An exception's text in one line, without the values of the job's arguments and without passwords in URLs."""
    if not text:
        return ""
    try:
        values = _values(msgspec.json.decode(args)) if len(args) <= MASKED_ARGS_BYTES_MAX else None
    except (msgspec.DecodeError, RecursionError):
        values = None
    if values is None:
        return ""
    for value in sorted(set(values), key=len, reverse=True):
        text = text.replace(value, "…").replace(repr(value)[1:-1], "…")
    text = visible(_URL_PASSWORD.sub(r"\1***", " ".join(text.split())), "")
    return text if len(text) <= TEXT_SHOWN_MAX else f"{text[:TEXT_SHOWN_MAX]}…"


def _values(value: object) -> Iterator[str]:
    """The texts and long numbers in decoded arguments. Shorter ones would mask half of every message."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _values(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner)
    elif isinstance(value, str):
        if len(value) >= 3:
            yield value
    elif not isinstance(value, bool) and isinstance(value, int | float) and len(str(value)) >= 5:
        yield str(value)


def _last_frames(traceback: str) -> Iterator[str]:
    """The last frames of a formatted traceback, one line each, without the exception's own text."""
    lines = traceback.splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    for number in places[-TAIL_FRAMES:]:
        code = lines[number + 1].strip() if number + 1 < len(lines) else ""
        shown = f": {code}" if code and lines[number + 1].startswith("    ") else ""
        yield visible(f"{lines[number].strip()}{shown}", "")


def _spans(wait: float, run: float) -> dict[str, float]:
    return {"wait_seconds": round(wait, 6), "run_seconds": round(run, 6)}


def _seconds(value: float) -> str:
    """A duration with the digits that matter."""
    return f"{value:.3f} s" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def job_stalled(job: str, task: str, holder: str, stalls: int, shared_stalls: int, state: str) -> None:
    counts = f"{stalls} alone, {shared_stalls} among others" if shared_stalls else f"stall {stalls}"
    logger.warning("job %s (%s) stalled under worker %s (%s): now %s", job, task, holder, counts, state)


def unknown_task(job: str, task: str) -> None:
    logger.error(
        "job %s is for task %r, which is not registered here: it is released, and this worker skips the task from now "
        "on. Import the module that defines it, or run a worker that has it",
        job,
        task,
    )


def unknown_not_apart(task: str, delay: float, error: BaseException) -> None:
    logger.warning(
        "task %r is unknown here and could not get a dedicated lane (%s): its jobs are delayed by %g s",
        task,
        _kind(error),
        delay,
    )


def unknown_not_reset(task: str, error: BaseException) -> None:
    logger.warning("task %r keeps the dedicated lane that this worker gave it (%s)", task, _kind(error))


def unknown_lapsed(task: str) -> None:
    logger.info("removed the dedicated lane of task %r: the worker that did not know it is gone", task)


def thread_overran(job: str, task: str, timeout: float) -> None:
    logger.warning(
        "job %s (%s) is past its timeout of %g s in a thread: it is asked to stop and ends as timed out",
        job,
        task,
        timeout,
    )


# ---------------------------------------------------------------------- runner processes


JOBS_TOLD_MAX = 10


def runner_died(pid: int, how: str, crashed: Sequence[tuple[Lease, float, str]]) -> None:
    """A runner ended by itself: one message, with what happens to each job it ran (lease, seconds it ran, what)."""
    if not crashed:
        logger.error("runner %d %s; it was running no job", pid, how)
        return
    lines = [
        f"\n    job {lease.id} ({lease.task}), attempt {lease.attempt}, after {_seconds(run)}: {becomes}"
        for lease, run, becomes in crashed[:JOBS_TOLD_MAX]
    ]
    if len(crashed) > JOBS_TOLD_MAX:
        lines.append(f"\n    and {len(crashed) - JOBS_TOLD_MAX} more")
    logger.error(
        "runner %d %s while running %s:%s",
        pid,
        how,
        _counted(len(crashed), "job"),
        "".join(lines),
        extra={"event": "crashed", "jobs": [lease.id for lease, _, _ in crashed]},
    )


def runner_refused(text: str, wait: float) -> None:
    logger.error("a runner could not start: %s Trying again in %.1f s", text, wait)


def start_hangs(pid: int, seconds: float, stack: str) -> None:
    logger.error("runner %d is not ready after %g s and is killed. Its stack:\n%s", pid, seconds, stack)


def runner_replaced(pid: int, why: str) -> None:
    logger.info("replacing runner %d (%s): it gets no more jobs and exits when its jobs have ended", pid, why)


def runner_sent_garbage(pid: int, error: HoldfastError) -> None:
    logger.error(
        "runner %d sent data that is not a frame (%s) and is killed. One of its handlers wrote to a file descriptor "
        "that it had not opened; its jobs run again, each alone",
        pid,
        error,
    )


def health_port(host: str, port: int) -> None:
    logger.info("health: http://%s:%d/healthz and /readyz", host, port)


def metrics_port(host: str, port: int) -> None:
    logger.info("metrics: http://%s:%d/metrics", host, port)


def restarting(why: str) -> None:
    logger.info("restarting the runners one by one (%s)", why)


def restart_failed() -> None:
    logger.error("a new runner could not start: the old ones continue with the code they have")


_BLOCKS = "If a handler blocks, make it a plain def, which runs in a thread, or await what it waits for."


def runner_blocked(pid: int, seconds: float, jobs: Sequence[str], stack: str) -> None:
    logger.error(
        "runner %d has not responded for %.1f s (running: %s). %s Its stack:\n%s",
        pid,
        seconds,
        _some(jobs),
        _BLOCKS,
        stack,
    )


def not_started(job: str, task: str, error: BaseException | None) -> None:
    why = "the system refuses more threads" if error is None else _kind(error)
    logger.error("job %s (%s) could not be started here (%s) and is released", job, task, why)


def jobs_not_begun(pid: int, jobs: Sequence[str], seconds: float) -> None:
    logger.error(
        "runner %d responds but did not begin %s within %.0f s (%s): sending them elsewhere and replacing the runner",
        pid,
        _counted(len(jobs), "job"),
        seconds,
        _some(jobs),
    )


def waited_for_runner(jobs: Sequence[str], seconds: float) -> None:
    number = _counted(len(jobs), "job")
    logger.warning("releasing %s after waiting %.0f s for a runner: %s", number, seconds, _some(jobs))


def retry_limit_applied(job: str, task: str) -> None:
    logger.warning(
        "job %s (%s) was killed, and no runner is available to apply its retry policy: its number of retries applies, "
        "with the default back-off",
        job,
        task,
    )


def stray_signal(name: str) -> None:
    logger.warning("ignored %s: workers do not handle it", name)


def runner_continued(pid: int, seconds: float) -> None:
    logger.warning("runner %d was stopped (SIGSTOP) and has not responded for %.0f s: sending SIGCONT", pid, seconds)


def runner_broken(pid: int, seconds: float, why: str) -> None:
    logger.error("runner %d has not responded for %.0f s (%s): it is killed, and its jobs run again", pid, seconds, why)


def end_failed(job: str, task: str, error: BaseException) -> None:
    logger.error("the outcome of job %s (%s) could not be determined", job, task, exc_info=error)


def jobs_taken_back(pid: int, jobs: int, seconds: float) -> None:
    unbegun = _counted(jobs, "job")
    logger.warning("runner %d has not responded for %.1f s: sending %s elsewhere, not begun", pid, seconds, unbegun)


def timeout_ignored(job: str, task: str, timeout: float, pid: int) -> None:
    logger.error(
        "job %s (%s) is past its timeout of %g s and does not stop: runner %d is killed once its other jobs have ended",
        job,
        task,
        timeout,
        pid,
    )


def guard_lost(late: bool) -> None:
    why = "its deadline had passed" if late else "it was killed or does not respond"
    logger.critical("the guard is gone (%s) and its runners with it: restarting", why)


def guard_refused(error: OSError, wait: float) -> None:
    logger.critical("the guard could not be started: %s. No job can run here. Trying again in %.1f s", error, wait)


# ---------------------------------------------------------------------- the host program


def loop_blocked(seconds: float, jobs: Sequence[str], stack: str) -> None:
    logger.error(
        "the event loop of the handlers has been blocked for %.1f s (running: %s). %s Its stack:\n%s",
        seconds,
        _some(jobs),
        _BLOCKS,
        stack,
    )


def loop_gone(worker: str) -> None:
    logger.error("the event loop of worker %s was closed while it ran; its leases will expire", worker)


def callback_failed(event: str, error: BaseException) -> None:
    logger.error("a callback of event %r failed", event, exc_info=error)


def unsafe_node(error: HoldfastError) -> None:
    logger.warning(
        "%s. It is checked again every few seconds; jobs that it already has still run", str(error).rstrip(".")
    )
