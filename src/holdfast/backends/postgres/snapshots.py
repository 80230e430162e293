"""Old snapshots that keep the server from removing our dead rows (a forgotten transaction, a dump, a replica), and the
floors by which claims skip the dead index entries, also while vacuum is merely late.

Called by backend.py, for the worker's log and for its claims, and by the doctor. Reads the server's statistics views;
for other roles' sessions they show only the age in transactions, unless our role is a member of pg_read_all_stats.
Never terminates anything.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from psycopg import AsyncCursor

OLD_SECONDS, YOUNG_SECONDS = 60.0, 10.0
DEAD_ROWS_MIN, DEAD_ROWS_FEW = 10_000, 5_000  # autovacuum waits for 5,000
DEAD_JOBS_MANY = 200_000  # of 100,000 jobs that ran: to skip their entries costs a claim more than floors do
TRANSACTIONS_MIN = 1_000  # for a replica or slot, whose age in seconds is unknown
LOOK_EVERY_SECONDS = 10.0
TELL_EVERY_SECONDS = 600.0

_OLDEST = """
WITH holders(kind, name, who, state, seconds, transactions) AS (
    SELECT CASE WHEN a.xact_start IS NULL THEN 'replica' ELSE 'session' END, a.pid::text,
           concat_ws(', ', nullif(a.application_name, ''), a.usename::text), coalesce(a.state, a.backend_type),
           extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
           greatest(age(a.backend_xmin), age(a.backend_xid))
    FROM pg_stat_activity a
    WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
      AND a.backend_type <> 'autovacuum worker' AND (a.datname IS NULL OR a.datname = current_database())
    UNION ALL
    SELECT 'prepared transaction', p.gid, p.owner::text, 'prepared',
           extract(epoch FROM clock_timestamp() - p.prepared)::float8, age(p.transaction)
    FROM pg_prepared_xacts p WHERE p.database = current_database()
    UNION ALL
    SELECT 'replication slot', s.slot_name::text, s.slot_type, CASE WHEN s.active THEN 'active' ELSE 'inactive' END,
           NULL, age(s.xmin)
    FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
), dead(number) AS (
    SELECT coalesce(sum(t.n_dead_tup), 0)::bigint FROM pg_stat_user_tables t WHERE t.schemaname = %(schema)s
)
SELECT h.kind, h.name, h.who, h.state, h.seconds, h.transactions, d.number FROM holders h CROSS JOIN dead d
WHERE d.number >= %(rows)s AND CASE WHEN h.seconds IS NULL THEN h.transactions >= %(transactions)s
                                    ELSE h.seconds >= %(seconds)s END
ORDER BY h.transactions DESC, h.seconds DESC NULLS LAST LIMIT 1
"""


class OldSnapshot(Struct, frozen=True, kw_only=True):
    """Who holds the snapshot, for how long, and what it costs."""

    kind: str  # session, replica, prepared transaction, replication slot
    name: str  # pid, or the name of the transaction or slot
    who: str
    state: str
    seconds: float | None  # None: unknown
    transactions: int  # begun since
    dead_rows: int  # in the store's tables, by the server's statistics

    @property
    def is_old(self) -> bool:
        """Whether it is worth a warning."""
        return self.dead_rows >= DEAD_ROWS_MIN and (self.seconds is None or self.seconds >= OLD_SECONDS)

    @property
    def text(self) -> str:
        named = f"pid {self.name}" if self.kind in ("session", "replica") else repr(self.name)
        age = "" if self.seconds is None else f"{self.seconds:.0f} s and "
        return (
            f"{self.kind} {named} ({self.who or '?'}; {self.state}) has held a snapshot for {age}{self.transactions} "
            f"transactions: the server cannot remove rows that died since ({self.dead_rows} are dead now), and claims "
            "have to skip them"
        )

    @property
    def advice(self) -> str:
        if self.kind == "session":
            return f"End it: SELECT pg_terminate_backend({self.name}). Set idle_in_transaction_session_timeout."
        if self.kind == "prepared transaction":
            return f"COMMIT PREPARED or ROLLBACK PREPARED {self.name!r}."
        if self.kind == "replica":
            return "Look for a long query on that replica, or turn its hot_standby_feedback off."
        return "Drop the slot if nobody uses it: pg_drop_replication_slot()."


async def oldest_snapshot(cursor: AsyncCursor[Any], schema: str, *, young: bool = False) -> OldSnapshot | None:
    """The oldest one, if its age and the dead rows warrant a warning; `young`: the lower thresholds for floors."""
    given = {
        "schema": schema,
        "rows": DEAD_ROWS_FEW if young else DEAD_ROWS_MIN,
        "seconds": YOUNG_SECONDS if young else OLD_SECONDS,
        "transactions": TRANSACTIONS_MIN,
    }
    await cursor.execute(_OLDEST, given)
    row = await cursor.fetchone()
    return None if row is None else OldSnapshot(**dict(zip(OldSnapshot.__struct_fields__, row, strict=True)))


async def has_many_dead(cursor: AsyncCursor[Any], schema: str) -> bool:
    """Whether so many jobs ran since the last vacuum that floors pay, whatever keeps it from coming: the server looks
    once a minute whether a table needs one."""
    counted = "SELECT n_dead_tup >= %s FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'jobs'"
    await cursor.execute(counted, [DEAD_JOBS_MANY, schema])
    row = await cursor.fetchone()
    return row is not None and bool(row[0])


class SnapshotWatch:
    """Decides when to look again, and when to log again."""

    def __init__(self) -> None:
        self._look_at = self._tell_at = 0.0

    def wants(self, now: float) -> bool:
        """Whether it is time to look; `now` is monotonic."""
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_SECONDS
        return True

    def tells(self, now: float) -> bool:
        """Whether to log what was found; False if it was logged recently."""
        if now < self._tell_at:
            return False
        self._tell_at = now + TELL_EVERY_SECONDS
        return True


# ---------------------------------------------------------------------- floors
# Lower bounds for index scans of claims while there are many dead index entries: see statements/floors.sql. The server
# computes and applies them; here they are only remembered between calls and dropped when the entries are gone. They
# never decide what may be claimed.


FULL_EVERY_SECONDS = 0.2  # as far as floors stay behind the counter anyway
FULL_SHARE = 20.0  # full scans take at most 1/20 of the time


class Floors:
    """The floors one backend remembers. Times are monotonic."""

    def __init__(self) -> None:
        self._current: dict[str, Any] | None = None  # None: not in use
        self._full_at = 0.0

    @property
    def current(self) -> dict[str, Any] | None:
        return self._current

    def use(self, on: bool) -> None:
        if not on:
            self._current = None
        elif self._current is None:
            self._current, self._full_at = {}, 0.0

    def asked(self, now: float, *, full: bool) -> dict[str, Any] | None:
        """The floors to send with a claim, `full` if it is to ignore them; None: not in use."""
        if self._current is None:
            return None
        return {**self._current, "full": full or now >= self._full_at}

    def answered(self, said: dict[str, Any], floors: dict[str, Any] | None, began: float, now: float) -> None:
        """Remember the floors the server returned; after a full scan, schedule the next one."""
        if floors is None or self._current is None:
            return
        self._current = floors
        if said["full"]:
            self._full_at = now + max(FULL_EVERY_SECONDS, FULL_SHARE * (now - began))
