"""`holdfast flow`: the tree, the graph, and what is done with all jobs of a flow."""

from __future__ import annotations

from tests.cli.shells import Shell

from holdfast import Context, Holdfast, chain, group_of


def test_a_flow_is_shown_cancelled_and_retried(shell: Shell) -> None:
    app = Holdfast(shell.url)

    @app.task(name="fetch", retry=0)
    def fetch(page: int) -> int:
        return page

    @app.task(name="add", retry=0)
    def add(ctx: Context) -> int:
        return sum(ctx.parents.values())

    with app:
        flow = chain(group_of(fetch.bind(1), fetch.bind(2)), add.bind())
        run = app.enqueue_flow(flow)
        lines = shell("flow", flow.last.id[-8:]).stdout.splitlines()
        assert [line.split()[0] for line in lines[:3]] == ["fetch", "fetch", "add"]
        assert lines[2].startswith("  add ")
        assert "3 jobs, 0% finished: 2 ready, 1 scheduled" in lines[-1]
        assert shell("flow", run.id, "--dot").stdout.count("->") == 2
        drawing = shell("flow", run.id, "--svg").stdout
        assert (drawing.count("<path"), drawing.count("<rect")) == (2, 3)
        assert drawing.rstrip().endswith("</svg>")
        document = shell.json("flow", run.id)
        assert (document["progress"], document["counts"]) == (0.0, {"ready": 2, "scheduled": 1})
        assert sorted(document["jobs"][2]["after"]) == sorted(call.id for call in flow.calls[:2])
        assert "3 cancelled" in shell("flow", run.id, "--cancel").stdout
        assert shell.json("flow", run.id, "--retry-failed")["done"] == 3
        app.work(drain=True)
        assert run.result(timeout=10) == 3
    assert shell.error("flow", "nobody", code=3)["code"] == "not_found"
    assert shell.error("flow", run.id, "--dot", "--cancel", code=2)["code"] == "usage"


def test_a_batch_is_shown_closed_and_cancelled(shell: Shell) -> None:
    app = Holdfast(shell.url)

    @app.task(name="fetch")
    def fetch(page: int) -> int:
        return page

    with app:
        batch = app.batch(name="pages")
        batch.enqueue_many(fetch.bind(page) for page in range(3))
        lines = shell("batch", batch.id).stdout.splitlines()
        assert lines[-2:] == [f"pages  {batch.id}  open", "3 jobs, 0% finished: 3 ready"]
        assert shell.json("batch", batch.id, "--close")["open"] is False
        assert shell.json("batch", batch.id, "--cancel")["cancelled"] == 3
        app.work(drain=True)
        document = shell.json("batch", batch.id)
        assert (document["finished"], document["counts"], document["progress"]) == (True, {"cancelled": 3}, 1.0)
        other = fetch.enqueue(1)
    assert shell.error("batch", other.id, code=3)["code"] == "not_found"
    assert shell.error("batch", batch.id, "--close", "--cancel", code=2)["code"] == "usage"
