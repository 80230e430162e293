"""The numbers the guarantees name are the code's numbers."""

from __future__ import annotations

import pytest
from tests.docs.doc_pages import DOCS, rows, section

from holdfast.backends.sqlite.connection import REQUESTS_PER_COMMIT_MAX
from holdfast.backends.sqlite.schema import SQLITE_VERSION_MIN
from holdfast.codec import DEPTH_MAX
from holdfast.context import LOG_LINE_CHARS_MAX, TEXT_CHARS_MAX, TRACEBACK_CHARS_MAX, UNKNOWN_TASK_DELAY_SECONDS
from holdfast.cron.api import BACKFILL_MAX
from holdfast.cron.tick import JOBS_PER_TICK_MAX
from holdfast.names import NAME_LENGTH_MAX
from holdfast.options import ARGS_BYTES_MAX, RESULT_BYTES_MAX, WorkerOptions
from holdfast.producer import CHUNK_BYTES_MAX, CHUNK_JOBS_MAX
from holdfast.records import (
    CLAIM_SWEEP_MAX,
    ERRORS_KEPT_MAX,
    EVENTS_KEPT_MAX,
    HISTORY_KEPT_MAX,
    LOGS_KEPT_MAX,
    MARKS_KEPT_MAX,
    READY_PER_GROUP_MAX,
    REMEMBER_SECONDS_MIN,
)
from holdfast.worker.keeper.lease_renewal import EXIT_CODE
from holdfast.worker.keeper.recorder import HOURS_KEPT_SECONDS
from holdfast.worker.keeper.runners import CELLS_MAX, EVENTS_MAX
from holdfast.worker.keeper.shutdown import STOP_WITHIN_SECONDS

GUARANTEES = DOCS / "guarantees.md"

BOUNDS = {
    "arguments, result": f"{ARGS_BYTES_MAX >> 20} MiB each",
    "nesting of JSON": f"{DEPTH_MAX} levels",
    "names of queues, groups, keys, tasks, ids": f"{NAME_LENGTH_MAX} characters",
    "failures and stalls kept per job": f"the newest {ERRORS_KEPT_MAX}",
    "earlier deaths kept per dead letter": f"the newest {HISTORY_KEPT_MAX}",
    "log lines kept per job": f"the newest {LOGS_KEPT_MAX}, {LOG_LINE_CHARS_MAX:,} characters each",
    "marks in a job's timeline": f"{MARKS_KEPT_MAX}: the first and the newest",
    "roll-ups": f"by the minute for a day, by the hour for {HOURS_KEPT_SECONDS / 86400:g} days; {CELLS_MAX} queues",
    "events kept": f"the newest {EVENTS_KEPT_MAX:,}; at most {EVENTS_MAX} a second",
    "traceback, error text": f"{TRACEBACK_CHARS_MAX:,} and {TEXT_CHARS_MAX:,} characters",
    "an id is remembered after the job finished": f"at least {REMEMBER_SECONDS_MIN / 60:g} minutes",
    "ticks of a cron entry fired in one step": f"{JOBS_PER_TICK_MAX}",
    "ticks in one `backfill`": f"{BACKFILL_MAX:,}",
    "jobs of a group that are ready at once": f"{READY_PER_GROUP_MAX}",
    "jobs in one step of `enqueue_many`": f"{CHUNK_JOBS_MAX:,}, with {CHUNK_BYTES_MAX >> 20} MiB of arguments",
}


def test_the_bounds_are_the_codes() -> None:
    told = {row[0]: row[1] for row in rows(section(GUARANTEES, "Bounds"))[1:]}
    assert sorted(told) == sorted(BOUNDS)
    assert [what for what, bound in BOUNDS.items() if not told[what].startswith(bound)] == []
    assert ARGS_BYTES_MAX == RESULT_BYTES_MAX


def test_the_lease_arithmetic_is_the_codes() -> None:
    told = {row[1].strip("`"): row[2] for row in rows(section(GUARANTEES, "Lease arithmetic"))[1:]}
    options = WorkerOptions()
    assert told == {name: f"{getattr(options, name):g} s" for name in told}
    fence = options.lease - options.fence_margin
    assert f"{fence:g} seconds by default" in section(GUARANTEES, "Lease arithmetic")


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("internals/sqlite.md", f"SQLite {SQLITE_VERSION_MIN[0]}.{SQLITE_VERSION_MIN[1]} or newer is needed"),
        ("internals/sqlite.md", f"up to {REQUESTS_PER_COMMIT_MAX} of them"),
        ("internals/walk-of-a-job.md", f"at most {CLAIM_SWEEP_MAX // 2} leases"),
        ("internals/walk-of-a-job.md", f"at most {CLAIM_SWEEP_MAX} jobs"),
        ("internals/walk-of-a-job.md", f"a delay of {UNKNOWN_TASK_DELAY_SECONDS:g} seconds"),
        ("guarantees.md", f"ends itself with code {EXIT_CODE}"),
        ("how-to/shutdown.md", f"They have {STOP_WITHIN_SECONDS:g} seconds."),
    ],
)
def test_the_sentence_has_the_codes_number(page: str, sentence: str) -> None:
    assert sentence in " ".join((DOCS / page).read_text(encoding="utf-8").split())
