"""The public API on PostgreSQL: the same code, another URL."""

from __future__ import annotations

from holdfast import Holdfast

from ...servers.postgres import Server


def test_ten_lines_of_code_run_on_postgresql_too(server: Server, schema: str) -> None:
    app = Holdfast(server.url(schema))
    seen: list[int] = []

    @app.task(name="note", group=lambda n: f"g{n % 2}")
    def note(n: int) -> int:
        seen.append(n)
        return n * 2

    jobs = [note.enqueue(n) for n in range(10)]
    drained = app.work(drain=True)
    assert drained.succeeded == 10
    assert [job.result(timeout=5) for job in jobs] == [n * 2 for n in range(10)]
    assert [n for n in seen if n % 2 == 0] == [0, 2, 4, 6, 8]
    app.close()
