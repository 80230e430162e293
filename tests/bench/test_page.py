"""The page of results is made from the files of bench/run."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from bench.drawing import Bar
from bench.scenarios import ALL

from bench import drawing, page


def case(figure: str, value: float, kind: str = "ours", **ratios: float) -> dict[str, Any]:
    def spread(number: float) -> dict[str, float]:
        return {"median": number, "min": number, "max": number}

    figures = {figure: spread(value)}
    return {"kind": kind, "figures": figures, "ratios": {name: spread(ratio) for name, ratio in ratios.items()}}


def report(store: str, rate: float) -> dict[str, Any]:
    record = {
        "title": "No-op jobs",
        "figure": "jobs_per_second",
        "unit": "jobs/s",
        "columns": [],
        "store": "a store",
        "made_on": "2030-01-01",
        "cores_of_others": 0.25,
        "rounds": 5,
        "cases": {
            "holdfast work, 1 runner": case("jobs_per_second", rate, huey=13.0),
            "huey": case("jobs_per_second", 100.0, "peer"),
        },
        "left_out": {"bull": "left out: no node"},
    }
    return {
        "made_at": "2030-01-01T00:00:00+00:00",
        "machine": {"cores": "2"},
        "versions": {"huey": "huey==1", "bull": "bull@1"},
        "settings": {"rounds": 5, "jobs": 1000},
        "stores": {store: {"noop": record}},
    }


def test_a_later_file_replaces_what_an_earlier_one_says_of_the_same_scenario() -> None:
    merged = page.merged([report("sqlite", 1.0), report("redis", 2.0), report("sqlite", 3.0)])
    rates = {
        store: records["noop"]["cases"]["holdfast work, 1 runner"]["figures"]["jobs_per_second"]["median"]
        for store, records in merged["stores"].items()
    }
    assert rates == {"sqlite": 3.0, "redis": 2.0}


def test_the_page_has_a_place_for_every_scenario_and_takes_a_report() -> None:
    text = page.regenerated(page.PAGE.read_text(), report("sqlite", 1300.0))
    assert "| holdfast work, 1 runner | 1,300 | 13.0 |" in text
    assert "| no-op jobs, one worker, ÷ huey | SQLite | ≥ 12.0 | 13.0 | yes | 2030-01-01 |" in text
    assert "| store calls per job | SQLite | ≤ 0.10 | not measured | **no** | 2030-01-01 |" in text
    assert "| enqueue in bulk of 1,000, jobs/s | SQLite |" not in text.partition("generated: goals")[2]  # did not run
    assert "* bull: left out: no node" in text
    assert "![bench-noop-sqlite.svg](images/bench-noop-sqlite.svg)" in text
    assert "huey==1" in text
    assert "bull@1" not in text
    for scenario in ALL:
        assert f"<!-- generated: {scenario} (bench/report) -->" in text


def test_the_page_opens_with_where_we_stand_and_keeps_what_was_not_measured_again() -> None:
    found = report("redis", 30.0)
    record = found["stores"]["redis"].pop("noop")
    labels = {"ours": "holdfast", "peer": "huey"}
    for one in record["cases"].values():
        value = one["figures"]["jobs_per_second"]["median"]
        one |= {"family": "5 ms", "label": labels[one["kind"]], "rounds": [{"jobs_per_second": value}]}
    found["stores"]["redis"]["real"] = record
    before = page.PAGE.read_text()
    text = page.regenerated(before, found)
    assert "**Redis**: `real` on 2030-01-01, cores that others used: 0.2" in text
    assert "| 5 ms | 1 | 30.0 |  | huey | 100 | 0.30 |  |  | **no** |" in text
    assert text[text.index("## No-op jobs") :] == before[before.index("## No-op jobs") :]


def test_what_is_kept_gives_the_same_page_and_survives_the_next_report() -> None:
    whole = report("sqlite", 1300.123456)
    for one in whole["stores"]["sqlite"]["noop"]["cases"].values():
        one["rounds"] = [{"jobs_per_second": 1.0}]
    kept = json.loads(page.written(page.kept(whole)))
    assert "rounds" not in kept["stores"]["sqlite"]["noop"]["cases"]["huey"]
    before = page.PAGE.read_text()
    assert page.regenerated(before, kept) == page.regenerated(before, whole)
    later = page.merged([kept, report("redis", 2.0)])
    assert "| holdfast work, 1 runner | 1,300 | 13.0 |" in page.regenerated(before, later)


def test_writing_the_page_twice_changes_nothing() -> None:
    once = page.regenerated(page.PAGE.read_text(), report("sqlite", 1300.0))
    assert page.regenerated(once, report("sqlite", 1300.0)) == once


def test_plots_are_sound_xml_with_every_label() -> None:
    bars = drawing.bars("Rates <1>", [Bar("ours & theirs", 10.0, "ours"), Bar("none", 0.0, "peer")], limit=12.0)
    lines = drawing.lines("Memory", "jobs", {"SQLite": [(1.0, 50.0), (2.0, 51.0)]})
    shown = [[one.text for one in ElementTree.fromstring(text).iter() if one.text] for text in (bars, lines)]  # noqa: S314
    assert {"Rates <1>", "ours & theirs", "10.0", "none", "0.00"} <= set(shown[0])
    assert {"Memory", "jobs", "SQLite", "51.0"} <= set(shown[1])


@pytest.mark.parametrize("text", [None, "no json", "[]", '{"made_at": 1}'])
def test_a_file_that_is_no_report_is_named_and_nothing_is_written(tmp_path: Path, text: str | None) -> None:
    file, before = tmp_path / "found.json", page.PAGE.read_text()
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit, match=r"found\.json"):
        page.main([str(file)])
    assert page.PAGE.read_text() == before
