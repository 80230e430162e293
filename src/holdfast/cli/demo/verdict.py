"""The demo's verdict: did everything hold? A pure function of the store's dump, the journal and what was enqueued.

Called by the stage at the end, and by tests with forged inputs. Uses the store's account (by audit) and the handlers'
own (the journal), and trusts neither alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ...inspection import judge
from ...records import Dump
from .journal import Entry


class Plan(Struct, frozen=True, kw_only=True):
    """What was enqueued."""

    ships: Mapping[str, tuple[str, ...]]  # ship → ids of its steps' jobs, in order
    repeated: str  # id of the call that was enqueued several times
    poison: str  # id of the job that cannot succeed
    deaths: int  # how often the poison job died


class Check(Struct, frozen=True, kw_only=True):
    """One guarantee, whether it held, and the evidence."""

    name: str
    held: bool
    detail: str


class Verdict(Struct, frozen=True, kw_only=True):
    """All checks of a run."""

    checks: tuple[Check, ...]

    @property
    def held(self) -> bool:
        return all(check.held for check in self.checks)


class Run(Struct, frozen=True, kw_only=True):
    """One attempt as its handler recorded it; a killed one ends when its process was killed."""

    job: str
    start: float
    end: float | None
    fence: int
    finished: bool


def verdict_of(dump: Dump, journal: Sequence[Entry], plan: Plan) -> Verdict:
    """Judge a run of the demo."""
    runs = runs_of(journal)
    return Verdict(
        checks=(
            nothing_lost(dump, runs, plan),
            nothing_overlapped(runs, plan),
            order_kept(runs, plan),
            repeated_made_one(dump, runs, plan),
            one_dead_letter(dump, plan),
            audit_holds(dump),
        )
    )


def runs_of(journal: Sequence[Entry]) -> dict[str, list[Run]]:
    """The journal's runs by job, in the order they began."""
    killed = {entry.pid: entry.at for entry in journal if entry.event == "killed"}
    ends = {(entry.job, entry.fence): entry.at for entry in journal if entry.event == "end"}
    runs: dict[str, list[Run]] = {}
    for entry in journal:
        if entry.event == "start":
            end = ends.get((entry.job, entry.fence))
            known = end if end is not None else killed.get(entry.pid)
            run = Run(job=entry.job, start=entry.at, end=known, fence=entry.fence, finished=end is not None)
            runs.setdefault(entry.job, []).append(run)
    return runs


def nothing_lost(dump: Dump, runs: Mapping[str, Sequence[Run]], plan: Plan) -> Check:
    """Every step succeeded according to the store and was finished according to its handler."""
    state = {row["id"]: str(row["state"]) for row in dump.tables["jobs"]}
    wanted = [job for jobs in plan.ships.values() for job in jobs] + [plan.repeated]
    lost = [job for job in wanted if state.get(job) != "succeeded" or not any(r.finished for r in runs.get(job, ()))]
    detail = f"{len(wanted)} enqueued, {len(wanted) - len(lost)} done"
    return Check(name="nothing lost", held=not lost, detail=detail + _such_as(lost))


def nothing_overlapped(runs: Mapping[str, Sequence[Run]], plan: Plan) -> Check:
    """No two runs of one ship, nor of one job, at the same time."""
    bad: list[str] = []
    total = 0
    for lane in _lanes(plan):
        ordered = sorted((run for job in lane for run in runs.get(job, ())), key=lambda run: run.start)
        total += len(ordered)
        for place, run in enumerate(ordered):
            following = ordered[place + 1].start if place + 1 < len(ordered) else None
            if following is not None and (run.end is None or run.end > following):
                bad.append(run.job)
    return Check(name="nothing overlapped", held=not bad, detail=f"{total} runs compared{_such_as(bad)}")


def order_kept(runs: Mapping[str, Sequence[Run]], plan: Plan) -> Check:
    """Each ship's steps ran in the order they were enqueued, with increasing fences."""
    bad: list[str] = []
    for jobs in plan.ships.values():
        ordered = sorted((run for job in jobs for run in runs.get(job, ())), key=lambda run: run.start)
        places = [jobs.index(run.job) for run in ordered]
        fences = [run.fence for run in ordered]
        bad += [run.job for run, before, place in zip(ordered[1:], places, places[1:], strict=False) if place < before]
        bad += [run.job for run, before, fence in zip(ordered[1:], fences, fences[1:], strict=False) if fence <= before]
    return Check(name="order kept", held=not bad, detail=f"{len(plan.ships)} groups{_such_as(bad)}")


def repeated_made_one(dump: Dump, runs: Mapping[str, Sequence[Run]], plan: Plan) -> Check:
    """The call enqueued several times is one job and was finished once."""
    rows = sum(row["task"] == "roll_call" for row in dump.tables["jobs"])
    done = sum(run.finished for run in runs.get(plan.repeated, ()))
    return Check(name="repeats made one job", held=rows == 1 and done == 1, detail=f"{rows} job, finished {done}×")


def one_dead_letter(dump: Dump, plan: Plan) -> Check:
    """The poison job has one letter that counts all its deaths; no other job has one."""
    letters = dump.tables["letters"]
    counts = {row["id"]: row["failure_count"] for row in letters}
    held = len(letters) == 1 and counts.get(plan.poison) == plan.deaths
    counted = ", ".join(f"count {count}" for count in counts.values()) or "none"
    detail = f"{len(letters)} letter{'' if len(letters) == 1 else 's'}, {counted}; died {plan.deaths}×"
    return Check(name="one dead letter", held=held, detail=detail)


def audit_holds(dump: Dump) -> Check:
    """The store's own audit finds nothing."""
    audit = judge(dump)
    first = f": {audit.violations[0].text}" if audit.violations else ""
    detail = f"{audit.checked['rules']} rules, {audit.checked['jobs']} jobs, {len(audit.violations)} violations{first}"
    return Check(name="audit holds", held=audit.holds, detail=detail)


def _lanes(plan: Plan) -> Iterator[tuple[str, ...]]:
    """What must never run at the same time: a ship's steps; a job's own attempts."""
    yield from plan.ships.values()
    yield (plan.repeated,)
    yield (plan.poison,)


def _such_as(jobs: Sequence[str]) -> str:
    return f"; not so: {', '.join(jobs[:3])}" if jobs else ""
