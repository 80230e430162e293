"""One meaning of -q, `ls` everywhere, short ids on narrow terminals, completion, and suggestions for typos."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.shells import Shell

from holdfast import Holdfast, Job, State
from holdfast.cli.main import cli
from holdfast.cli.output import id_endings
from holdfast.cli.parse import tries
from holdfast.worker_status import draw


def test_q_names_a_queue_and_stands_for_query_only_where_it_cannot_be_mistaken(shell: Shell) -> None:
    job = shell.job(queue="mail")
    assert "--query 'queue:mail'" in shell.error("cancel", "-q", "mail", "--yes", code=2)["message"]
    result = shell("cancel", "-q", "queue:mail", "--yes")
    assert "-q is now --query" in result.stderr and job in result.stdout


@pytest.mark.parametrize("words", [("queues",), ("tasks",), ("workers",), ("jobs",), ("groups",), ("dead",), ("cron",)])
def test_ls_lists(shell: Shell, words: tuple[str, ...]) -> None:
    shell.job(queue="mail", group="g")
    assert shell.json(*words, "ls").keys() >= {words[0].replace("dead", "letters").replace("cron", "entries")}


def test_ls_of_jobs_and_groups_takes_what_they_take(shell: Shell) -> None:
    job = shell.job(queue="mail", group="g")
    assert [one["id"] for one in shell.json("jobs", "ls", "queue:mail")["jobs"]] == [job]
    assert [one["name"] for one in shell.json("groups", "ls", "mail")["groups"]] == ["g"]
    assert "one queue" in shell.error("groups", "mail", "pdf", code=2)["message"]


def test_ids_are_shortened_to_what_tells_them_apart_where_the_terminal_is_narrow(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [shell.job("shop.orders.send_confirmation", queue="confirmations") for _ in range(3)]
    monkeypatch.setenv("COLUMNS", "80")
    said = shell("jobs").stdout
    assert "shop.orders.send_confirmation" in said and not any(job in said for job in ids)
    assert all(job[-8:] in said for job in ids)
    assert shell.json("job", ids[0][-8:])["job"]["id"] == ids[0]
    monkeypatch.setenv("COLUMNS", "200")
    assert all(job in shell("jobs").stdout for job in ids)


def test_a_task_that_only_jobs_name_is_known(shell: Shell) -> None:
    shell.job("big.ok")
    assert "Did you mean big.ok?" in shell("jobs", "task:ok").stderr


def test_the_running_attempt_counts_among_the_tries() -> None:
    app = Holdfast("memory://")
    job = app.task(name="look")(lambda: None).enqueue()
    with app:
        app.work(drain=True)
        assert tries(job) == 0 and tries(job.refresh()) == 1
    running = replace(job._record, state=State.RUNNING)
    assert tries(Job(app, running)) == 2


def test_bench_takes_an_empty_store_and_leaves_it_empty(shell: Shell, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bench.db'}"
    figures = shell.json("bench", "--url", url, "--jobs", "100")["figures"]
    assert figures["sqlite"]["jobs_per_second"] > 0
    assert sum(shell.json("stats", "--url", url)["jobs"].values()) == 0
    shell.job()
    assert "needs a store of its own" in shell.error("bench", "--url", shell.url, code=2)["message"]


def test_only_generated_ids_are_shortened() -> None:
    one, two = "01a1e973-40c2-702f-af48-7bb54732f7ba", "01a1e973-40c2-702f-af48-7bb64732f7ba"
    assert id_endings([one, two, "welcome-ann"]) == {one: "54732f7ba", two: "64732f7ba", "welcome-ann": "welcome-ann"}


def test_what_may_have_been_meant(shell: Shell) -> None:
    shell.worker("w1", draw([], tasks=["shop.send"]))
    shell.job(queue="mail")
    assert "Did you mean dead?" in shell.error("jobs", "deda", code=2)["message"]
    assert "no live worker has a task 'sned'" in (said := shell("jobs", "task:sned", "dead").stderr)
    assert "Did you mean send?" in said
    assert "Did you mean shop.send?" in shell("pause", "--task", "shop.sedn").stderr
    assert "no live worker" not in shell("pause", "--task", "shop.send").stderr
    assert "there is no queue 'mial'. Did you mean mail?" in shell("pause", "--queue", "mial").stderr
    assert "there is no queue 'mali'. Did you mean" in shell("queues", "limit", "mali", "5").stderr
    assert "there is no queue" not in shell("queues", "limit", "mail", "5").stderr


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: Shell, name: str) -> None:
    assert f"_HOLDFAST_COMPLETE={name}_complete" in shell("completion", name).stdout


def test_values_complete(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    shell.job("shop.send", queue="mail")
    monkeypatch.setenv("HOLDFAST_URL", shell.url)
    shells = ShellComplete(cli, {}, "holdfast", "_HOLDFAST_COMPLETE")

    def complete(*words: str, incomplete: str) -> list[str]:
        return [found.value for found in shells.get_completions(list(words), incomplete)]

    assert complete(incomplete="expl") == ["explain"]
    assert complete("jobs", incomplete="de") == ["dead"]
    assert complete("jobs", incomplete="queue:m") == ["queue:mail"]
    assert complete("pause", "--queue", incomplete="m") == ["mail"]
    assert complete("dead", "ls", "--task", incomplete="shop") == ["shop.send"]
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://nobody@127.0.0.1:1/none")
    assert complete("pause", "--queue", incomplete="m") == []
