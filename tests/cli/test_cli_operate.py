"""Commands that change jobs, letters, pauses and limits."""

from __future__ import annotations

import pytest
from tests.cli.shells import Shell

from holdfast import Holdfast


def state(shell: Shell, job: str) -> str:
    found: str = shell.json("job", job)["job"]["state"]
    return found


def test_cancel_by_prefix_says_the_store_and_what_became_of_it(shell: Shell) -> None:
    shell.job(id="abc-1")
    result = shell("cancel", "abc")
    assert result.stdout == "abc-1  cancelled\n"
    assert result.stderr == f"store: {shell.url}\n"


def test_several_ids_partly_done(shell: Shell) -> None:
    shell.job(id="j1")
    shell.job(id="j2")
    document = shell.json("cancel", "j1", "nosuch", "j2", code=6)
    assert [one["id"] for one in document["changed"]] == ["j1", "j2"]
    assert [one["id"] for one in document["refused"]] == ["nosuch"]
    shell("cancel", "nosuch", code=3)


def test_a_verb_the_state_forbids_is_refused(shell: Shell) -> None:
    shell.job(id="j1")
    result = shell("run-now", "j1", code=1)
    assert "refused: cannot run-now job j1" in result.stderr
    assert state(shell, "j1") == "ready"


def test_an_ambiguous_prefix_among_several_changes_nothing(shell: Shell) -> None:
    for job in ("j1", "abc-1", "abc-2"):
        shell.job(id=job)
    shell("cancel", "j1", "abc", code=2)
    assert state(shell, "j1") == "ready"


def test_run_now_retry_and_bury(shell: Shell) -> None:
    shell.job(id="j1", delay=600)
    assert shell.json("run-now", "j1")["changed"] == [{"id": "j1", "now": "ready"}]
    assert shell.json("bury", "j1", "--reason", "not wanted")["changed"] == [{"id": "j1", "now": "dead"}]
    assert "not wanted" in shell("dead", "show", "j1").stdout
    assert shell.json("retry", "j1")["changed"] == [{"id": "j1", "now": "ready"}]


def test_bulk_needs_a_yes_where_nobody_can_be_asked(shell: Shell) -> None:
    for number in range(3):
        shell.job(id=f"j{number}", queue="mail")
    other = shell.job(queue="pdf")
    assert "no terminal to confirm" in shell.error("cancel", "--query", "queue:mail", code=2)["message"]
    assert shell.json("cancel", "--query", "queue:mail", "--dry-run")["would_change"] == ["j0", "j1", "j2"]
    assert state(shell, "j0") == "ready"
    result = shell("cancel", "--query", "queue:mail", "--yes")
    assert "cancel: 3 done, 0 refused." in result.stderr
    assert state(shell, other) == "ready"


def test_a_query_that_matches_nothing_is_not_found(shell: Shell) -> None:
    shell.error("cancel", "--query", "queue:nosuch", "--yes", code=3)
    shell.error("cancel", code=2)
    shell.error("cancel", "j1", "--query", "queue:mail", code=2)


def test_retry_by_query_means_dead_jobs_unless_it_says_otherwise(shell: Shell) -> None:
    shell.job(id="gone")
    shell("cancel", "gone")
    shell("retry", "--query", "queue:default", "--yes", code=3)
    shell("retry", "--query", "cancelled", "--yes")
    assert state(shell, "gone") == "ready"


def test_dead_letters_from_list_to_discard(shell: Shell) -> None:
    for job in ("d1", "d2"):
        shell("enqueue", "fail", "word=fly", "--id", job, *shell.app)
    shell.drain()
    assert {letter["id"] for letter in shell.json("dead", "ls")["letters"]} == {"d1", "d2"}
    assert "ValueError: cannot fly" in shell("dead", "ls", "--task", "fail").stdout
    assert shell.json("dead", "ls", "--reason", "stalled") == {"letters": []}
    assert [letter["id"] for letter in shell.json("dead", "ls", "error:cannot", "id:d2")["letters"]] == ["d2"]
    assert shell.json("dead", "ls", "error:other") == {"letters": []}
    assert "Did you mean failed?" in shell("dead", "ls", "--reason", "faild").stderr
    assert "Did you mean failed?" in shell("dead", "ls", "reason:faild").stderr
    assert "Did you mean default?" in shell("dead", "ls", "--queue", "defualt").stderr
    assert "Did you mean error:?" in shell.error("dead", "ls", "eror:x", code=2)["message"]
    assert shell.json("dead", "show", "d1")["letter"]["failure_count"] == 1
    assert shell.json("dead", "revive", "d1")["changed"] == [{"id": "d1", "now": "ready"}]
    shell.drain()
    assert shell.json("dead", "show", "d1")["letter"]["failure_count"] == 2
    shell.error("dead", "discard", "d1", code=2)
    assert shell.json("dead", "discard", "d1", "--dry-run")["would_change"] == ["d1"]
    assert shell.json("dead", "discard", "d1", "--yes")["changed"] == [{"id": "d1", "now": "discarded"}]
    assert [letter["id"] for letter in shell.json("dead", "ls")["letters"]] == ["d2"]
    shell("dead", "revive", "--all", "--task", "fail", "--yes")
    assert state(shell, "d2") == "ready"
    shell.error("dead", "revive", "--all", "--task", "nosuch", "--yes", code=3)
    shell.error("dead", "show", "d1", code=3)
    shell.error("dead", "revive", code=2)


@pytest.mark.parametrize(
    "what", [["--queue", "mail"], ["--queue", "mail", "--group", "ann"], ["--task", "send"]], ids=lambda what: what[-1]
)
def test_pause_and_resume(shell: Shell, what: list[str]) -> None:
    shell.job(id="j1", queue="mail", group="ann")
    assert shell("pause", *what, "--reason", "smtp down").stdout.startswith("paused ")
    told = shell("explain", "j1").stdout
    assert "paused by " in told
    assert "smtp down" in told
    assert shell.json("resume", *what)["resumed"] is True
    assert shell.json("resume", *what)["resumed"] is False
    assert shell.json("audit")["holds"] is True


def test_a_group_stopped_by_a_dead_job_says_so_and_goes_on_without_it(shell: Shell) -> None:
    with Holdfast(shell.url) as app:
        app.queue("mail", on_dead="stop")
        fail = app.task(name="fail", queue="mail", retry=0, group="g")(lambda: 1 / 0)
        dead, behind = fail.enqueue(), fail.enqueue()
        app.work(drain=True)
    assert f"stopped by dead job {dead.id}" in shell("groups").stdout
    assert f"{dead.id} (dead)" in shell("group", "mail", "g").stdout
    assert shell.json("group", "mail", "g")["group"]["stopped_by"] == dead.id
    assert "stops at a dead job" in shell("queues").stdout
    assert f"stopped by job {dead.id}" in shell("explain", behind.id).stdout
    told = shell("resume", "--queue", "mail", "--group", "g")
    assert "was not paused" in told.stdout
    assert "--skip-dead" in told.stderr
    assert shell.json("resume", "--queue", "mail", "--group", "g", "--skip-dead")["resumed"] is True
    assert shell.json("job", behind.id)["job"]["state"] == "ready"
    assert shell.json("audit")["holds"] is True
    shell.error("resume", "--queue", "mail", "--skip-dead", code=2)


def test_pause_must_say_what(shell: Shell) -> None:
    shell.error("pause", code=2)
    shell.error("pause", "--group", "ann", code=2)
    shell.error("resume", "--queue", "a", "--task", "b", code=2)


def test_group_limits_can_be_overridden_where_the_queue_is_relaxed(shell: Shell) -> None:
    shell("enqueue", "send", "to=ann", "--queue", "bulk", "--group", "ann", *shell.app)
    assert shell.json("group", "bulk", "ann", "--limit", "5")["group"]["override"] == 5
    assert "override 5" in shell("groups").stdout
    assert shell.json("group", "bulk", "ann", "--no-limit")["group"]["limit"] == 3
    shell.job(queue="mail", group="ann")
    assert "strict" in shell.error("group", "mail", "ann", "--limit", "5", code=2)["message"]
    shell.error("group", "mail", "ann", "--limit", "5", "--no-limit", code=2)


def test_failures_group_dead_letters_by_cause(shell: Shell) -> None:
    for number in range(3):
        shell.job(id=f"j{number}")
        shell("bury", f"j{number}", "--reason", "wrong address")
    document = shell.json("failures")
    assert (document["letters"], document["capped"]) == (3, False)
    (kind,) = document["kinds"]
    assert (kind["error"], kind["where"], kind["letters"], kind["trend"]) == ("bury", "wrong address", 3, "new")
    assert sorted(kind["ids"]) == ["j0", "j1", "j2"]
    assert "wrong address" in shell("failures").stdout
    assert "no dead letters" in shell("failures", "--task", "other").stderr


def test_a_group_gets_a_weight(shell: Shell) -> None:
    shell("enqueue", "t", "--group", "g")
    assert shell.json("group", "default", "g", "--weight", "3")["group"]["weight"] == 3
    assert "weight 3" in shell("groups").output
    assert shell.json("group", "default", "g", "--limit", "reset")["group"]["weight"] == 3
    assert shell.json("group", "default", "g", "--weight", "1")["group"]["weight"] == 1
    assert "1<=x<=100" in shell("group", "default", "g", "--weight", "101", code=2).output
