"""Commands that read: jobs, job, explain, workers, stats, queues, groups, group."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.shells import Shell

from holdfast.worker_status import RunnerView, draw


def test_jobs_lists_the_newest_first_in_both_forms(shell: Shell) -> None:
    first, second = shell.job(), shell.job(delay=60)
    told = shell("jobs").stdout
    assert told.index(second) < told.index(first)
    assert "scheduled" in told
    document = shell.json("jobs")
    assert [job["id"] for job in document["jobs"]] == [second, first]
    assert document["jobs"][1]["state"] == "ready"
    assert document["jobs"][1]["args"] == {"to": "ann"}


def test_jobs_obeys_its_query_and_limit(shell: Shell) -> None:
    mail, _ = shell.job(queue="mail"), shell.job(queue="pdf")
    late = shell.job(queue="mail", delay=60)
    assert [job["id"] for job in shell.json("jobs", "queue:mail")["jobs"]] == [late, mail]
    assert [job["id"] for job in shell.json("jobs", "ready", "queue:mail")["jobs"]] == [mail]
    assert [job["id"] for job in shell.json("jobs", "live", "--limit", "1")["jobs"]] == [late]
    assert shell("jobs", "dead").stderr == "no jobs match.\n"
    assert shell.error("jobs", "colour:red", code=2)["code"] == "usage"


def test_jobs_are_counted_sorted_and_continued(shell: Shell) -> None:
    first, second = shell.job(queue="mail", priority=1), shell.job(queue="pdf", priority=7)
    third = shell.job(queue="mail", delay=60)
    assert shell("jobs", "queue:mail", "--count").stdout == "2\n"
    assert shell.json("jobs", "--count") == {"total": 3, "scanned": 3, "complete": True}
    assert shell.json("jobs", "--group-by", "queue")["groups"] == {"mail": 2, "pdf": 1}
    assert "mail" in shell("jobs", "--group-by", "queue").stdout
    by_priority = shell.json("jobs", "--sort", "priority")["jobs"]
    assert [job["id"] for job in by_priority] == [second, first, third]
    page = shell.json("jobs", "--limit", "2")
    assert [job["id"] for job in page["jobs"]] == [third, second]
    assert f"--after {page['after']} the next" in shell("jobs", "--limit", "2").stderr
    rest = shell.json("jobs", "--after", page["after"])
    assert ([job["id"] for job in rest["jobs"]], rest["after"]) == ([first], None)


def test_jobs_show_the_columns_asked_for(shell: Shell) -> None:
    shell.job(queue="mail", key="k1")
    told = shell("jobs", "--columns", "task,key,args").stdout
    assert "k1" in told and '{"to": "ann"}' in told and "mail" not in told
    assert "Did you mean queue?" in shell.error("jobs", "--columns", "quue", code=2)["message"]


def test_a_typo_in_a_query_is_answered_with_what_was_meant(shell: Shell) -> None:
    shell.job(queue="mail")
    assert "Did you mean dead?" in shell.error("jobs", "state:daed", code=2)["message"]
    assert "Did you mean queue:?" in shell.error("jobs", "quue:mail", code=2)["message"]
    assert "(column 6)" in shell.error("jobs", "live quue:mail", code=2)["message"]
    assert "Did you mean priority?" in shell.error("jobs", "--sort", "prio", code=2)["message"]
    assert "Did you mean task?" in shell.error("jobs", "--group-by", "tsk", code=2)["message"]
    assert "there is no queue 'mial'. Did you mean mail?" in shell("jobs", "queue:mial").stderr


def test_a_job_is_found_by_the_end_of_its_id(shell: Shell) -> None:
    shell.job(id="018f-0000-aaaa1111")
    shell.job(id="018f-0000-aaaa2222")
    assert shell.json("job", "1111")["job"]["id"] == "018f-0000-aaaa1111"
    assert [job["id"] for job in shell.json("jobs", "aaaa2222")["jobs"]] == ["018f-0000-aaaa2222"]
    assert "several ids" in shell.error("job", "018f", code=2)["message"]
    assert shell.json("cancel", "2222")["changed"][0]["id"] == "018f-0000-aaaa2222"
    assert shell.json("bury", "1111")["changed"][0]["id"] == "018f-0000-aaaa1111"
    assert shell.json("dead", "show", "1111")["letter"]["id"] == "018f-0000-aaaa1111"


def test_job_shows_one_by_prefix(shell: Shell) -> None:
    with_id = shell.job(id="abc-1", key="k", priority=3)
    told = shell("job", "ab").stdout
    assert with_id in told
    assert '{"to": "ann"}' in told
    assert shell.json("job", "abc")["job"]["key"] == "k"


def test_job_shows_a_suspect(shell: Shell) -> None:
    shell.job(id="abc-1")
    shell.crash("abc-1")
    told = shell("job", "abc-1").stdout
    assert "its process died; it runs alone next" in told
    assert "shared stalls 1" in told
    document = shell.json("job", "abc-1")["job"]
    assert (document["suspect"], document["shared_stalls"], document["stalls"]) == (True, 1, 0)
    assert any("suspect" in sentence for sentence in shell.json("explain", "abc-1")["explanation"]["reasons"])


def test_an_ambiguous_prefix_is_refused_with_some_of_the_ids(shell: Shell) -> None:
    for number in range(8):
        shell.job(id=f"abc-{number}")
    error = shell.error("job", "abc", code=2)
    assert "'abc' is the beginning or end of several ids" in error["message"]
    assert "abc-7" in error["message"]
    assert "…" in error["message"]


def test_a_whole_id_is_never_ambiguous(shell: Shell) -> None:
    shell.job(id="abc")
    shell.job(id="abcd")
    assert shell.json("job", "abc")["job"]["id"] == "abc"


def test_an_unknown_job_is_not_found(shell: Shell) -> None:
    assert shell.error("job", "nosuch", code=3)["code"] == "not_found"
    assert shell("explain", "nosuch", code=3).stdout == ""


def test_job_shows_logs_errors_and_tracebacks(shell: Shell) -> None:
    shell("enqueue", "send", "to=ann", "times=2", "--id", "good", *shell.app)
    shell("enqueue", "fail", "word=fly", "--id", "bad", *shell.app)
    shell.drain()
    assert "sending times=2" in shell("job", "good").stdout
    assert shell.json("job", "good")["job"]["value"] == "2 to ann"
    assert "ValueError: cannot fly" in shell("job", "bad").stdout
    told = shell("job", "bad", "--traceback").stdout
    assert "raise ValueError" in told


def test_explain_in_both_forms(shell: Shell) -> None:
    shell.job(id="j1", group="ann")
    shell.job(id="j2", group="ann")
    assert "It is behind job j1 of its group 'ann'" in shell("explain", "j2").stdout
    document = shell.json("explain", "j2")["explanation"]
    assert document["state"] == "waiting"
    assert document["summary"].startswith("It is behind job j1")


def test_explain_knows_the_apps_tasks(shell: Shell) -> None:
    shell.job("nobodys", id="j1")
    assert "The app has no task 'nobodys'" in shell("explain", "j1", *shell.app).stdout
    assert "The app has no task" not in shell("explain", "j1").stdout


def test_queues_groups_and_group(shell: Shell) -> None:
    shell.job(id="j1", queue="mail", group="ann")
    shell.job(id="j2", queue="mail", group="ann")
    assert "mail" in shell("queues").stdout
    [queue] = shell.json("queues")["queues"]
    assert queue["counts"] == {"ready": 1, "waiting": 1}
    assert "ann" in shell("groups").stdout
    [group] = shell.json("groups", "mail")["groups"]
    assert (group["head"], group["limit"]) == ("j1", 1)
    assert "j2" in shell("group", "mail", "ann").stdout
    assert len(shell.json("group", "mail", "ann")["jobs"]) == 2


def test_a_mistyped_queue_is_met_with_a_proposal(shell: Shell) -> None:
    shell.job(queue="mail")
    assert "Did you mean mail?" in shell.error("groups", "mial", code=3)["message"]
    assert "Did you mean mail?" in shell.error("group", "mial", "ann", code=3)["message"]


def test_stats_and_workers(shell: Shell) -> None:
    shell.job()
    document = shell.json("stats")
    assert document["jobs"]["ready"] == 1
    assert document["workers"] == 0
    assert document["oldest_ready_seconds"] >= 0
    assert "ready" in shell("stats").stdout
    assert shell.json("workers") == {"workers": []}
    assert "no worker is registered" in shell("workers").stderr


def test_workers_lists_each_workers_runners_below_it(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # room for three ids, however long ago the worker was seen
    jobs = tuple(f"0190a5d2-0000-7000-8000-00000000000{n}" for n in range(5))
    facts: dict[str, Any] = {"slots": 5, "running": 0, "done": 7, "memory_bytes": 48 << 20, "alone": False}
    blocked = RunnerView(pid=1001, state="ready", responds=False, jobs=jobs, **{**facts, "running": 5})
    alone = RunnerView(pid=1002, state="leaving", responds=True, **{**facts, "alone": True, "slots": 1})
    shell.worker("keeper", draw([blocked, alone]))
    shell.worker("embedded", None)
    shell.worker("newer", b'{"runners": "of another version"}')
    lines = [line.split() for line in shell("workers").stdout.splitlines()[2:]]
    assert [line[0] for line in lines] == ["keeper", "runner", "runner", "embedded", "newer"]
    assert lines[1] == ["runner", "1001", "5/5", "48M", "blocked", *jobs[:3], "+2"]
    assert lines[2] == ["runner", "1002", "0/1", "48M", "leaving,", "alone"]
    keeper, *others = shell.json("workers")["workers"]
    assert [one["jobs"] for one in keeper["runners"]] == [list(jobs), []]
    assert [one["runners"] for one in others] == [[], []]


def test_workers_says_how_many_runners_had_no_room(shell: Shell) -> None:
    many = [
        RunnerView(pid=n, state="ready", alone=False, slots=1, running=0, done=0, memory_bytes=0, responds=True)
        for n in range(1, 501)
    ]
    shell.worker("large", draw(many))
    [worker] = shell.json("workers")["workers"]
    assert len(worker["runners"]) + worker["runners_left_out"] == 500
    assert f"and {worker['runners_left_out']} runners more" in shell("workers").stdout


def test_looking_with_an_app_declares_nothing(shell: Shell) -> None:
    assert shell.json("queues", *shell.app) == {"queues": []}


def test_tables_are_whole_and_plain_in_a_pipe(shell: Shell) -> None:
    job = shell.job("a_task_with_quite_a_long_name_that_must_not_be_cut_off_in_a_pipe", queue="a-long-queue")
    told = shell("jobs").stdout
    assert job in told
    assert "a_task_with_quite_a_long_name_that_must_not_be_cut_off_in_a_pipe" in told
    assert "\x1b[" not in told


def test_a_job_that_waits_for_others_shows_them(shell: Shell) -> None:
    parent = shell.job()
    child = shell.job(after=(parent,))
    told = shell("job", child).stdout
    assert "after its parents" in told
    assert parent in told.partition("parents\n")[2]
    assert child in shell("job", parent).stdout.partition("children\n")[2]
    document = shell.json("job", child)
    [shown] = document["parents"]
    assert (shown["id"], shown["state"], shown["status"]) == (parent, "ready", "open")
    assert (document["parents_pending"], document["children"]) == (1, [])
    assert "waits for its parents" in shell("jobs").stdout
    explained = shell.json("explain", child)["explanation"]
    assert explained["summary"] == "It waits until 1 other job has succeeded (after=)."
    assert explained["reasons"][0].startswith(f"Parent {parent} ")
    shell("bury", parent, "--yes")
    assert "a job that it waited for died or was cancelled" in shell("explain", child).stdout
