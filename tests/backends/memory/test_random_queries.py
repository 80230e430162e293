"""Whatever is asked, a store finds exactly the jobs that match: random jobs, random queries, pages of random sizes."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.queries import continued, matches, parse_query
from holdfast.records import JobQuery, JobRecord, NewJob

NOW = 2_000_000_000.0
NAMES = st.sampled_from(["a", "ab", "A", "b_c", "x%y"])
ARGS = st.sampled_from(
    [b"{}", b'{"n":42,"s":"Ann b"}', b'{"n":42.0}', b'{"n":[1,42]}', b'{"n":{"m":"ann"}}', b'{"n":true}']
)
JOBS = st.lists(
    st.tuples(NAMES, NAMES, st.none() | NAMES, st.none() | st.floats(1.0, 9000.0), st.integers(-3, 3), ARGS),
    max_size=12,
)
CONDITIONS = st.sampled_from(
    [
        *("ready", "-ready", "live", "scheduled", "finished", "queue:a", "queue:a*", "-queue:a*", "queue:a,A"),
        *("task:*b*", "task:A", "-task:A", "task:x%y", "task:b_c", "group:*", "-group:*", "group:ab"),
        *("priority:>0", "-priority:>0", "priority:1,2", "priority:<=-1", "age:>10s", "-age:>10s", "age:<1h"),
        *("due:<1h", "due:>30m", "wait:>1s", "-wait:>1s", "attempts:0", "args.n:42", "args.n:42.0", "args.n:>41"),
        *(
            "-args.n:42",
            "args.n.m:ann",
            "args.s:Ann*",
            "args.n:true",
            "args:ANN",
            '"ann b"',
            "id:1",
            "-id:1",
            "id:j0,2",
        ),
    ]
)


async def _pages(store: MemoryBackend, query: JobQuery) -> list[JobRecord]:
    found: list[JobRecord] = []
    page = await store.page(query, now=NOW + 60)
    found += page.jobs
    while page.after is not None:
        page = await store.page(continued(query, page.after), now=NOW + 60)
        found += page.jobs
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JOBS, st.lists(CONDITIONS, max_size=3), st.integers(1, 6), st.integers(1, 9))
def test_pages_have_exactly_what_matches(
    jobs: list[tuple[str, str, str | None, float | None, int, bytes]], words: list[str], limit: int, rows: int
) -> None:
    async def run() -> None:
        store = MemoryBackend()
        await store.open()
        new = [
            NewJob(id=f"j{n:03}", task=task, queue=queue, group=group, delay=delay, priority=priority, args=args)
            for n, (task, queue, group, delay, priority, args) in enumerate(jobs)
        ]
        await store.enqueue(new, now=NOW)
        everything = await store.find(JobQuery(limit=100))
        query = parse_query(" ".join(words))
        store.scan_rows_max = rows
        wanted = [job.id for job in everything if matches(query, job, NOW + 60)]
        fields = {name: getattr(query, name) for name in JobQuery.__struct_fields__} | {"limit": limit}
        assert [job.id for job in await _pages(store, JobQuery(**fields))] == wanted
        store.scan_rows_max = 1000
        assert (await store.tally(query, "task", now=NOW + 60)).total == len(wanted)
        await store.close()

    asyncio.run(run())
