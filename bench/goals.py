"""The performance goals as numbers, and whether a report reaches them. Pure. Shown by page.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .figures import ratios
from .peers import PEERS
from .table import number

FIRST_BY = 1.5  # × the best Python peer,
OF_LIMIT = 0.9  # or this share of the limit
LIMIT_SHARE_MAX = 1.1
WORK = ("holdfast work, 1 runner", "holdfast work, 2 runners")  # one worker, either way
PREFETCHES = (16, 64)  # the better of the two counts
GROUPED = ("100 groups in turn", "100 groups, adjacent", "10,000 groups")
LATENCIES_MS = {"redis": (1.3, 4.0), "postgres": (3.0, 8.0), "sqlite": (2.0, 8.0)}
MORE_WORKERS = {"sqlite": {2: 1.0}, "redis": {2: 1.2}, "postgres": {2: 1.0, 4: 1.0, 8: 1.0}}  # at least, ÷ one
FOOTPRINT = {  # at most
    "holdfast --version, ms": {"sqlite": 60.0},
    "import and first enqueue, ms": {"sqlite": 60.0, "postgres": 150.0, "redis": 150.0},
    "start to first job done, ms": {"sqlite": 250.0, "postgres": 300.0, "redis": 350.0},
    "idle worker, MB": {"sqlite": 50.0, "postgres": 50.0, "redis": 50.0},
    "idle worker, % of a core": {"sqlite": 0.3, "postgres": 0.3, "redis": 0.3},
}
LEASE_SECONDS = 10.0
FLAT_CALLS = (
    "pause and resume a task, a claim after each",
    "limit a task and lift it",
    "declare another group limit and the old one",
    "rearrange",
    "refill",
    "first page of groups",
    "waking",
    "promote 100",
    "cancel",
)  # their cost does not depend on how much is stored
_SQL_FLOORS = ("bare reads of 20 jobs, 1,000,000 jobs", "bare writes of 20 jobs, 1,000,000 jobs")
FLAT_FLOORS = {
    "sqlite": _SQL_FLOORS,
    "postgres": _SQL_FLOORS,
    "redis": ("bare commands on 20 jobs, 1,000,000 jobs", "a script that calls no command, 1,000,000 jobs"),
}


class Goal(NamedTuple):
    store: str
    what: str
    scenario: str
    cases: tuple[str, ...]  # the best of these counts
    figure: str  # or, after "÷ ", what the ratio is relative to
    least: float | None = None
    most: float | None = None
    floors: tuple[str, ...] = ()  # the ratio is divided by the bare store's largest in these cases

    def bound(self) -> str:
        return f"≥ {number(self.least)}" if self.least is not None else f"≤ {number(self.most or 0.0)}"


class Reached(NamedTuple):
    goal: Goal
    value: float | None  # None: not measured

    @property
    def yes(self) -> bool:
        if self.value is None:
            return False
        least, most = self.goal.least, self.goal.most
        return (least is None or self.value >= least) and (most is None or self.value <= most)


class First(NamedTuple):
    """Our result in one row of jobs that do something: far enough ahead of the peers, or close enough to the limit."""

    row: str
    mine: Mapping[str, float]  # each a spread: median, min, max
    best: str  # the best Python peer, "" if none was measured
    theirs: Mapping[str, float] | None
    ratio: Mapping[str, float] | None  # taken within a round; higher is better for us
    limit: Mapping[str, float] | None  # our share of it
    cost: float | None  # processor µs of worker and server per job
    cost_of_best: float | None
    rounds: int

    @property
    def compared(self) -> bool:
        """Whether there is anything to compare it with: one peer can do it, or it has a limit."""
        return self.ratio is not None or self.limit is not None

    @property
    def yes(self) -> bool:
        """A share well above the limit is noise of a shared machine, and a contender behind a peer is not first."""
        ratio = self.ratio["median"] if self.ratio else None
        if ratio is not None and ratio >= FIRST_BY:
            return True
        return (
            self.limit is not None
            and OF_LIMIT <= self.limit["median"] <= LIMIT_SHARE_MAX
            and (ratio is None or ratio >= OF_LIMIT)
        )


def _is_python(name: str) -> bool:
    return name in PEERS and PEERS[name].language == "python"


def _cost(case: Mapping[str, Any]) -> float | None:
    parts = [case["figures"].get(name) for name in ("worker_us", "server_us")]
    return sum(one["median"] for one in parts if one) if all(parts) else None


def _first(row: str, figure: str, mine: Mapping[str, Any], others: list[Any], *, less_is_better: bool) -> First:
    compared = {}
    for one in others:
        pair = (one["rounds"], mine["rounds"]) if less_is_better else (mine["rounds"], one["rounds"])
        if ratio := ratios(*pair, figure):
            compared[one["label"]] = (ratio, one)
    peers = [name for name in compared if _is_python(name)]
    best = min(peers, key=lambda name: compared[name][0]["median"], default="")
    ratio, theirs = compared.get(best, (None, None))
    return First(
        row, mine["figures"][figure], best, theirs["figures"][figure] if theirs else None, ratio,
        compared["limit"][0] if "limit" in compared else None, _cost(mine), _cost(theirs) if theirs else None,
        sum(one is not None and figure in one for one in mine["rounds"]),
    )  # fmt: skip


def firsts(records: Mapping[str, Any]) -> list[First]:
    """Every row of one store that was measured."""
    found = []
    families: dict[str, list[Any]] = {}
    for case in records.get("real", {}).get("cases", {}).values():
        families.setdefault(case["family"], []).append(case)
    for row, cases in families.items():
        for mine in (one for one in cases if one["kind"] == "ours"):
            others = [one for one in cases if one is not mine]
            found.append(_first(row, "jobs_per_second", mine, others, less_is_better=False))
    loaded = list(records.get("load", {}).get("cases", {}).values())
    for mine in (one for one in loaded if one["kind"] == "ours"):
        others = [one for one in loaded if one is not mine]
        for figure in ("p50_ms", "p99_ms", "p999_ms"):
            row = f"half load, {figure.replace('999', '99.9').replace('_', ' ')}"
            found.append(_first(row, figure, mine, others, less_is_better=True))
    return found


def _rates() -> Iterator[Goal]:
    for store, other, least in (
        ("redis", "dramatiq", 8.0), ("redis", "huey", 8.0), ("redis", "bull", 2.0), ("redis", "bare store", 0.3),
        ("postgres", "pgqueuer", 1.5), ("postgres", "pg-boss", 1.3), ("postgres", "bare store", 0.4),
        ("sqlite", "huey", 12.0),
    ):  # fmt: skip
        yield Goal(store, f"no-op jobs, one worker, ÷ {other}", "noop", WORK, f"÷ {other}", least)
    for store in ("sqlite", "postgres", "redis"):
        yield Goal(store, "store calls per job", "noop", WORK, "calls", most=0.1)
        for shape in GROUPED:
            name = f"holdfast, {shape}"
            yield Goal(store, f"{shape}, ÷ ungrouped", "groups", (name,), "÷ holdfast, ungrouped", 0.5)
            ahead = tuple(f"{name}, group_prefetch={number}" for number in PREFETCHES)
            what = f"{shape}, group_prefetch, ÷ ungrouped"
            yield Goal(store, what, "groups", ahead, "÷ holdfast, ungrouped", 0.7)
        hot, bare = "holdfast, one hot group", "÷ bare store, a durable trip per job"
        ahead = tuple(f"{hot}, group_prefetch={number}" for number in PREFETCHES)
        yield Goal(store, "one hot group, group_prefetch, ÷ without", "groups", ahead, f"÷ {hot}", 10.0)
        yield Goal(store, "one hot group, ÷ a durable trip per job", "groups", (hot,), bare, 0.9)
        apart = "÷ bare store, handlers apart"
        yield Goal(store, "one hot group, ÷ a durable trip with handlers apart", "groups", (hot,), apart, 0.5)
    two, other = "no-op jobs, two workers, ÷ 2 × pg-boss", "÷ 2 × pg-boss"
    yield Goal("postgres", two, "noop", ("2 × holdfast work",), other, 1.2)
    one = "÷ holdfast work, 1 runner, 1 shard"
    yield Goal("cluster", "no-op jobs, 12 shards, ÷ one shard", "noop", ("holdfast work, 1 runner",), one, 0.9)
    for store, counts in MORE_WORKERS.items():
        for count, least in counts.items():
            what = f"no-op jobs, {count} workers, ÷ one"
            yield Goal(store, what, "workers", (f"{count} workers",), "÷ 1 worker", least)


def _enqueues() -> Iterator[Goal]:
    for store, peers in (("sqlite", ("huey",)), ("postgres", ("pgqueuer", "pg-boss")), ("redis", ("huey", "bull"))):
        for peer in peers:
            what, other = f"enqueue one by one, ÷ {peer}", f"÷ {peer}, one by one"
            yield Goal(store, what, "enqueue", ("holdfast, one by one",), other, 1.0)
        name = "holdfast, bulk of 1,000"
        yield Goal(store, "enqueue in bulk of 1,000, jobs/s", "enqueue", (name,), "per_second", 50_000.0)
    floor = "÷ bare store, bulk of 1,000"
    yield Goal("sqlite", "enqueue in bulk of 1,000, ÷ bare store", "enqueue", (name,), floor, 0.2)


def _times() -> Iterator[Goal]:
    for store, (half, nearly_all) in LATENCIES_MS.items():
        yield Goal(store, "enqueue to start, p50 ms", "latency", ("holdfast work",), "p50_ms", most=half)
        yield Goal(store, "enqueue to start, p99 ms", "latency", ("holdfast work",), "p99_ms", most=nearly_all)
        yield Goal(store, "claim: 10,000 groups, ÷ 100 groups", "backlog", ("10,000 groups",), "÷ 100 groups", most=1.3)
        names = ("100,000 waiting", "1,000,000 waiting", "100,000 blocked in front")
        for name in (*names, "after churn, 1,000 waiting"):
            yield Goal(store, f"claim: {name}, ÷ 1,000 waiting", "backlog", (name,), "÷ 1,000 waiting", most=1.3)
        case = "an exchange after 60 minutes of work"
        yield Goal(store, "claim: after an hour of work, ÷ in a new store", "churn", (case,), "growth", most=1.3)
        case = "holdfast, a runner killed"
        yield Goal(store, "running again, a runner killed, s", "crash", (case,), "seconds", most=1.0)
        case = "holdfast, the whole worker killed, another beside it, lease 10 s"
        yield Goal(
            store, "running again, worker killed, lease 10 s, s", "crash", (case,), "seconds", most=LEASE_SECONDS + 1
        )

    yield Goal("redis", "enqueue to start, p50, ÷ bull", "latency", ("holdfast work",), "÷ bull", most=1.0)
    case = "400,000 jobs"
    yield Goal("postgres", "a job without vacuum, last tenth ÷ first", "vacuum", (case,), "growth", most=1.3)


def _footprint() -> Iterator[Goal]:
    for case, bounds in FOOTPRINT.items():
        for store, most in bounds.items():
            yield Goal(store, case, "footprint", (case,), "value", most=most)


def _growth() -> Iterator[Goal]:
    """Relative to how much more bare statements and commands cost on a larger store: no call can grow less."""
    for store, floors in FLAT_FLOORS.items():
        for call in FLAT_CALLS:
            case, smallest = f"{call}, 1,000,000 jobs", f"{call}, 1,000 jobs"
            what = f"{call}: 1,000,000 jobs, ÷ 1,000 jobs, per bare store"
            yield Goal(store, what, "growth", (case,), f"÷ {smallest}", most=1.3, floors=floors)
        case, alone = "promote 100, four at once, 1,000,000 jobs", "promote 100, 1,000 jobs"
        what = "promote 100, four at once: 1,000,000 jobs, ÷ alone, per bare store"
        yield Goal(store, what, "growth", (case,), f"÷ {alone}", most=1.3, floors=floors)


GOALS: tuple[Goal, ...] = (*_rates(), *_enqueues(), *_times(), *_footprint(), *_growth())


def _values(goal: Goal, cases: Mapping[str, Any]) -> Iterator[float]:
    for name in goal.cases:
        one = cases.get(name, {})
        found = one.get("ratios" if goal.figure.startswith("÷ ") else "figures", {}).get(goal.figure.removeprefix("÷ "))
        if found:
            yield found["median"]


def _floor(goal: Goal, cases: Mapping[str, Any]) -> float:
    """How much more the bare store costs in these cases, each of which has one ratio."""
    ratios = [ratio["median"] for name in goal.floors for ratio in cases.get(name, {}).get("ratios", {}).values()]
    return max(1.0, *ratios) if ratios else 1.0


def reached(stores: Mapping[str, Any]) -> list[Reached]:
    """Every goal of the stores that were measured, with the median found."""
    lines = []
    for goal in GOALS:
        if goal.store not in stores:
            continue
        cases = stores[goal.store].get(goal.scenario, {}).get("cases", {})
        values = [value / _floor(goal, cases) for value in _values(goal, cases)]
        best = min if goal.least is None else max
        lines.append(Reached(goal, best(values) if values else None))
    return lines
