"""An app whose producers and workers run in processes of their own while the store under them is moved.

python load_app.py URL FOLDER produce NAME     enqueues one by one until the store is sealed; exit code 3 then
python load_app.py URL FOLDER join NAME        the same, each in a transaction of its own connection
python load_app.py URL FOLDER work | drain     runs jobs; exit code 3 when the store is sealed
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import time
from typing import Any

from holdfast import BackendUnavailable, Context, Holdfast, OutcomeUnknown, StoreSealed
from holdfast.backends import parse_url

GROUPS = 5
SEALED = 3

url, folder, mode = sys.argv[1:4]
app = Holdfast(url)


def note(book: str, **facts: object) -> None:
    fd = os.open(f"{folder}/{book}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (json.dumps(facts) + "\n").encode())
    os.close(fd)


@app.task(name="step")
def step(ctx: Context, who: str, number: int) -> int:
    note("journal", what="start", job=ctx.id, who=who, number=number, group=ctx.group, fence=ctx.fence)
    time.sleep(0.03)  # slower than the producers, so that there is always something left
    note("journal", what="end", job=ctx.id, who=who, number=number, group=ctx.group, fence=ctx.fence)
    return number


def produce(who: str) -> int:
    number = 0
    while True:
        call = step.using(group=f"{who}-{number % GROUPS}").bind(who, number)
        while True:
            try:
                app.enqueue(call)
                break
            except OutcomeUnknown:
                continue
            except StoreSealed:
                note("refused", job=call.id, who=who, number=number)
                return SEALED
        note("stored", job=call.id, who=who, number=number)
        number += 1


def collisions() -> tuple[type[Exception], ...]:
    """What the caller's own commit may be refused with, to be tried again: two serializable transactions met."""
    if parse_url(url).scheme == "sqlite":
        return ()
    import psycopg

    return (psycopg.errors.SerializationFailure,)


def connection(number: int) -> Any:
    """A connection of the caller's own, every way it may be set up."""
    address = parse_url(url)
    if address.scheme == "sqlite":
        level: Any = ("", "IMMEDIATE")[number % 2]  # "" is the driver's default; typeshed knows it as "DEFERRED"
        return sqlite3.connect(address.path, isolation_level=level, timeout=0.05)
    import psycopg

    given = psycopg.connect(address.path)
    levels = psycopg.IsolationLevel
    given.isolation_level = (levels.READ_COMMITTED, levels.REPEATABLE_READ, levels.SERIALIZABLE)[number % 3]
    given.execute("SELECT 1 FROM pg_class LIMIT 1")  # an older snapshot than the job's
    return given


def join(who: str) -> int:
    store, number = app._open_backend(), 0
    refusals: tuple[type[Exception], ...] = (BackendUnavailable, *collisions())
    while True:
        call = step.using(group=f"{who}-{number % GROUPS}").bind(who, number)
        while True:
            with contextlib.closing(connection(number)) as own:
                try:
                    store.enqueue_on(own, [call.new])
                    own.commit()
                    break
                except refusals:
                    own.rollback()
                except StoreSealed:
                    own.rollback()
                    note("refused", job=call.id, who=who, number=number)
                    return SEALED
        note("stored", job=call.id, who=who, number=number)
        number += 1


def main() -> int:
    if mode in ("produce", "join"):
        return (produce if mode == "produce" else join)(sys.argv[4])
    try:
        app.work(drain=mode == "drain", slots=4, lease=20.0, poll_every=0.1)
    except StoreSealed:
        return SEALED
    return 0


if __name__ == "__main__":
    code = main()
    app.close()
    sys.exit(code)
