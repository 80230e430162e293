"""Inputs and outputs of the simulation: costs, the plan of a run, its outcome. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .fits import Line

SATURATED = 0.9


@dataclass(frozen=True)
class Costs:
    """Seconds of processor and disk time."""

    exchange: Line  # of the store: per call, and per job that is claimed and settled again
    grouped: Line  # the same for jobs of strict groups
    keeper: Line  # per call and per job
    runner: float  # per job
    runner_frame: float = 0.0  # per report of a runner about what has ended
    keeper_frame: float = 0.0  # per such report, in the keeper
    chores: float = 0.0  # of the store: enqueueing a job in bulk and pruning it later
    enqueue: float = 0.0  # of the store: one job enqueued by itself
    sync: float = 0.0  # until a commit is on disk; 0: nothing waits for it
    rival: float = 0.0  # per row that another claim has taken and not committed
    threads: int | None = None  # of the store; None: as many as it has cores
    one_writer: bool = False  # one transaction at a time, the wait for the disk included
    group_locks: bool = False  # exchanges with outcomes of the same group run one after the other


@dataclass(frozen=True)
class Plan:
    """One run."""

    costs: Costs
    workers: int = 1
    runners: int = 1
    slots: int = 400
    cores: int = 4  # of each node of the store
    nodes: int = 1
    shards: int = 1
    placing: tuple[int, ...] = ()  # the node of each shard; empty: round-robin
    rtt: float = 0.0005
    handler: float = 0.0  # seconds that a job waits (for I/O)
    groups: int = 0  # strict groups, each with endless jobs; 0: jobs have no group
    limited: bool = False  # the queue has a limit in force, so PostgreSQL claims one after the other
    sustained: bool = True  # the store also enqueues and prunes as many jobs as are run
    offered: float | None = None  # jobs per second that arrive one by one; None: there is always enough to do
    machine: int | None = None  # cores that store and workers share; None: each worker has its own machine
    speed: float = 1.0  # of that machine's cores: the share that other work leaves
    seconds: float = 2.0
    warm_up: float = 0.5
    seed: int = 1


@dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    jobs_per_second: float
    jobs_per_call: float
    latency_p50: float  # enqueue to start; 0 if no jobs arrive
    latency_p99: float
    held_mean: float  # jobs leased, on average
    held_seconds: float  # how long a job was leased, on average
    used: dict[str, float]  # utilisation of each part; of several alike, the busiest

    @property
    def saturated(self) -> str:
        """The saturated part; "nothing" means that jobs wait for round trips, handlers or work.

        Never the disk: it is busy as soon as two commits follow each other, but takes any number of them at once.
        """
        share, part = max((share, part) for part, share in self.used.items() if part != "disk")
        return part if share >= SATURATED else "nothing"
