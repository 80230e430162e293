"""A failover behind a moving address, seen by whole workers: the old primary lives on, demoted, and nobody stays there.

The address is a relay that passes on each new connection to the server it now stands for; connections made before stay
with the old one, as behind DNS, a virtual address or a proxy.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import BackendUnavailable, Holdfast, OutcomeUnknown
from holdfast.lifecycle import State
from tests.backends.redis.pair import Pair, set_longest_lease
from tests.chaos.scene import Scene, overlaps, until
from tests.servers import postgres, valkey
from tests.servers.relay import Relay

pytestmark = pytest.mark.chaos

SECONDS_MAX = 90.0
QUIET_SECONDS = 3.0  # after a failover nothing is handed out for as long as the longest lease there was


def make_store(url: str) -> None:
    with Holdfast(url) as app:
        app.counts()


class MoveVerbs(ABC):
    """A primary and who takes over from it, behind one address."""

    relay: Relay
    url: str

    @abstractmethod
    def move(self) -> None:
        """Demote the primary and promote the other, in order: nothing that was acknowledged is lost."""

    @abstractmethod
    def left_behind(self) -> int:
        """How many connections of ours the old primary still has."""

    @abstractmethod
    def close(self) -> None: ...


class MovingRedis(MoveVerbs):
    def __init__(self) -> None:
        valkey.shared_server()  # skips or fails where there is none
        self._pair = Pair()
        self.relay = Relay(self._pair.primary)
        self.url = f"redis://127.0.0.1:{self.relay.port}/0?prefix=holdfast"
        make_store(self.url)
        set_longest_lease(self._pair.primary, QUIET_SECONDS)

    def move(self) -> None:
        pair = self._pair
        with pair.primary.client() as old:
            old.execute_command("FAILOVER", "TO", "127.0.0.1", pair.replica.port, "TIMEOUT", 20000)
            until(lambda: old.info("replication")["role"] == "slave", what="the old primary to step down")
        self.relay.server = pair.replica

    def left_behind(self) -> int:
        with self._pair.primary.client() as old:
            return sum(one["name"] == "holdfast" for one in old.client_list())

    def close(self) -> None:
        self.relay.__exit__(None, None, None)
        self._pair.remove()


class MovingPostgres(MoveVerbs):
    def __init__(self) -> None:
        postgres.shared_server()
        self._old = postgres.Server().start()
        self._new = postgres.Server(copy_of=self._old.home).start()
        self.relay = Relay(self._old)
        self.url = f"{self.relay.conninfo()}&schema=holdfast"
        make_store(self.url)
        with psycopg.connect(self._old.conninfo, autocommit=True) as session:
            session.execute(f"UPDATE holdfast.incarnation SET lease_max = {QUIET_SECONDS}")

    def move(self) -> None:
        """As a tool does that fences the old primary: its sessions stay, and can only read from now on."""
        with psycopg.connect(self._old.conninfo, autocommit=True) as old:
            old.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            old.execute("SELECT pg_reload_conf()")
            until(lambda: self._is_read_only(), what="new sessions to be read-only")
            writing = "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
            until(lambda: old.execute(writing).fetchone() == (0,), what="the last transactions to end")
            old.execute("SET default_transaction_read_only = off")
            old.execute("CREATE TABLE public.last_word ()")
        with psycopg.connect(self._new.conninfo, autocommit=True) as new:
            told = "SELECT to_regclass('public.last_word') IS NOT NULL"
            until(lambda: new.execute(told).fetchone() == (True,), what="the standby to have everything")
            new.execute("SELECT pg_promote()")
            new.execute("ALTER SYSTEM SET default_transaction_read_only = off")
        self.relay.server = self._new

    def _is_read_only(self) -> bool:
        with psycopg.connect(self._old.conninfo, autocommit=True) as session:
            return session.execute("SHOW transaction_read_only").fetchone() == ("on",)

    def left_behind(self) -> int:
        with psycopg.connect(self._old.conninfo, autocommit=True) as session:
            text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'"
            [(count,)] = session.execute(text).fetchall()
            return int(count)

    def close(self) -> None:
        self.relay.__exit__(None, None, None)
        self._new.remove()
        self._old.remove()


ADDRESSES: dict[str, Callable[[], MoveVerbs]] = {"postgres": MovingPostgres, "redis": MovingRedis}


@pytest.fixture(params=sorted(ADDRESSES))
def moving(request: pytest.FixtureRequest) -> Iterator[MoveVerbs]:
    moving = ADDRESSES[request.param]()
    yield moving
    moving.close()


class Producer:
    """Enqueues one job after the other, each until it is acknowledged, whatever happens to the store."""

    def __init__(self, url: str) -> None:
        self.acknowledged: list[str] = []
        self._ended, self._url = threading.Event(), url
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        with Holdfast(self._url) as app:
            while not self._ended.is_set():
                number = len(self.acknowledged)
                call = app.named("step").bind(group="none", number=number)
                while True:
                    try:
                        app.enqueue(call)
                        break
                    except (OutcomeUnknown, BackendUnavailable):
                        self._ended.wait(0.05)
                self.acknowledged.append(call.id)
                self._ended.wait(0.02)

    def wait_for_more(self, number: int) -> None:
        enough = len(self.acknowledged) + number
        until(lambda: len(self.acknowledged) >= enough, SECONDS_MAX, what="the producer to go on")

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive()


def start_embedded(scene: Scene, log: Path) -> subprocess.Popen[bytes]:
    return scene.start_worker(lease=3.0, slots=8)


def start_process_worker(scene: Scene, log: Path) -> subprocess.Popen[bytes]:
    words = ["work", "scene_app:app", "--app-dir", ".", "--runners", "2", "--slots", "8", "--lease", "3s"]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *words, "--url", scene.url],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=scene.folder, start_new_session=True,
        )  # fmt: skip
    scene.processes.append(process)
    return process


FORMS = {"embedded": start_embedded, "processes": start_process_worker}


def ended(scene: Scene, ids: list[str]) -> bool:
    return set(ids) <= {line["job"] for line in scene.journal() if line["what"] == "end"}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_worker_and_a_producer_follow_the_address_and_nothing_is_lost_or_doubled(
    tmp_path: Path, moving: MoveVerbs, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCENE_URL", moving.url)
    scene = Scene(tmp_path, moving.url)
    with contextlib.closing(scene):
        worker = FORMS[form](scene, tmp_path / "worker.log")
        producer = Producer(moving.url)
        try:
            with scene.app() as app:
                across = [app.named("stuck").enqueue(group=f"g{n}", number=n).id for n in range(2)]
                once = app.named("once").enqueue(number=1).id
            until(lambda: all(scene.starts(job=job) for job in (*across, once)), SECONDS_MAX, what="all to run")
            before = list(producer.acknowledged)
            until(lambda: ended(scene, before), SECONDS_MAX, what="jobs from before the failover to run")
            moving.move()
            producer.wait_for_more(10)
            after = list(producer.acknowledged)
            until(lambda: ended(scene, after), SECONDS_MAX, what="jobs from after the failover to run")
            scene.open_gate()
            until(lambda: ended(scene, across), SECONDS_MAX, what="jobs that ran meanwhile to end")
        finally:
            producer.stop()
        until(lambda: moving.left_behind() == 0, SECONDS_MAX, what="the worker to leave the old server")
        with scene.app() as app:
            judge(scene, app, [*producer.acknowledged, *across], once)
        assert worker.poll() is None
        worker.terminate()
        assert worker.wait(SECONDS_MAX) == 0


def judge(scene: Scene, app: Holdfast, ids: list[str], once: str) -> None:
    """By the handlers' own journal: each attempt starts once, one at a time, and as often as the store counted."""
    until(lambda: not unsettled(app), SECONDS_MAX, what="all to be settled")
    journal = scene.journal()
    starts = Counter((line["job"], line["fence"]) for line in journal if line["what"] == "start")
    assert set(starts.values()) == {1}, "an attempt started twice"
    assert not overlaps([line for line in journal if "group" in line], "job")
    runs, ends = Counter(job for job, _ in starts), Counter(line["job"] for line in journal if line["what"] == "end")
    assert set(runs) == {*ids, once}
    assert runs[once] == 1, "a job that must run at most once"
    for job in ids:
        record = app.job(job)
        assert record.state is State.SUCCEEDED, record
        assert runs[job] <= record.attempts and 1 <= ends[job] <= runs[job], record


def unsettled(app: Any) -> int:
    over = (State.SUCCEEDED, State.DEAD)
    return sum(number for states in app.counts().values() for state, number in states.items() if state not in over)
