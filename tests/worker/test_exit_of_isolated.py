"""An isolated attempt that ends its own process: a crash, or by choice a failure."""

from __future__ import annotations

import signal

import pytest
from tests.worker.test_worker_ahead import Nobody, begin, lease

from holdfast.context import OutcomeKind
from holdfast.errors import ConfigurationError
from holdfast.lifecycle import Ending, Settlement
from holdfast.options import TaskOptions
from holdfast.worker.processes.exit_outcomes import outcomes_after_exit
from holdfast.worker.processes.runner_process import RunnerProcess, Stage


async def ended(wait_status: int, exit_fails: set[str], *, dedicated: bool = True) -> tuple[list[object], list[str]]:
    """The result for one job of task t whose process ended like this: settlements, and texts of failures."""
    runner = RunnerProcess(Nobody(), 1, 1, dedicated=dedicated)
    runner.handed_over()
    runner.stage = Stage.READY
    try:
        runner.give([lease(1, "t")])
        begin(runner, 1)
        found = outcomes_after_exit(runner, wait_status, 0, 5.0, exit_fails)
    finally:
        runner.close()
    assert all(outcome.kind is OutcomeKind.FAILED for _, outcome in found.failed_by_kill)
    texts = [outcome.failure.text for _, outcome in found.failed_by_kill if outcome.failure is not None]
    return [end.ending for end in found.ended if isinstance(end, Settlement)], texts


@pytest.mark.parametrize("code", [0, 3])
async def test_by_default_an_exit_is_a_crash_and_by_choice_a_failure(code: int) -> None:
    assert await ended(code << 8, set()) == ([Ending.STALLED], [])
    endings, [text] = await ended(code << 8, {"t"})
    assert endings == [] and f"ended with exit code {code}" in text


async def test_a_kill_stays_a_crash_and_so_does_an_exit_of_a_shared_process() -> None:
    assert await ended(signal.SIGSEGV, {"t"}) == ([Ending.STALLED], [])
    assert await ended(0, {"t"}, dedicated=False) == ([Ending.STALLED], [])


def test_it_needs_a_process_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="isolation="):
        TaskOptions.make(on_exit="failure")
    with pytest.raises(ConfigurationError, match="on_exit="):
        TaskOptions.make(isolation="process", on_exit="retry")
    assert TaskOptions.make(isolation="process", on_exit="failure").on_exit == "failure"
