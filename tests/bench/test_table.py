"""Records as tables."""

from __future__ import annotations

from typing import Any

import pytest

from bench import table


def case(value: float, **ratios: float) -> dict[str, Any]:
    def spread(number: float) -> dict[str, float]:
        return {"median": number, "min": number / 2, "max": number * 2}

    figures = {"jobs_per_second": spread(value), "calls": spread(0.0025)}
    return {"kind": "ours", "figures": figures, "ratios": {name: spread(ratio) for name, ratio in ratios.items()}}


def record(**cases: dict[str, Any]) -> dict[str, Any]:
    known = {"figure": "jobs_per_second", "unit": "jobs/s", "columns": ["calls", "bytes"], "left_out": {}}
    return {**known, "cases": cases}


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12,346"), (12.34, "12.3"), (1.234, "1.23"), (0.0025, "0.0025"), (0.0, "0.00")]
)
def test_a_number_has_the_digits_that_mean_something(value: float, text: str) -> None:
    assert table.number(value) == text


def test_a_line_has_the_figure_with_its_range_the_columns_anybody_has_and_a_ratio_to_each_baseline() -> None:
    lines = table.rows(
        record(mine=case(20_000.0, huey=10.0, bare=0.5), huey=case(2000.0, bare=0.05), bare=case(40_000.0))
    )
    assert lines == [
        ["", "jobs/s", "store calls/job", "÷ huey", "÷ bare"],
        ["mine", "20,000 (10,000–40,000)", "0.0025", "10.0 (5.00–20.0)", "0.50 (0.25–1.00)"],
        ["huey", "2,000 (1,000–4,000)", "0.0025", "", "0.0500 (0.0250–0.10)"],
        ["bare", "40,000 (20,000–80,000)", "0.0025", "", ""],
    ]


def test_when_each_is_compared_with_its_own_baseline_there_is_one_column() -> None:
    lines = table.rows(
        record(plain=case(100.0), grouped=case(50.0, plain=0.5), hot=case(5.0, trip=0.9), trip=case(6.0))
    )
    assert [line[-1] for line in lines] == ["ratio", "", "0.50 (0.25–1.00) × plain", "0.90 (0.45–1.80) × trip", ""]


def test_who_was_left_out_is_told_with_the_reason() -> None:
    assert table.left_out({"left_out": {"bull": "left out: no node\nand more"}}) == ["bull: left out: no node"]


def test_markdown_and_plain_text() -> None:
    lines = [["", "jobs/s"], ["mine", "20"]]
    assert table.markdown(lines) == "|  | jobs/s |\n| --- | ---: |\n| mine | 20 |"
    assert table.plain(lines) == "      jobs/s\nmine      20"


def test_many_families_become_a_table_per_figure_with_a_line_per_contender() -> None:
    def one(label: str, family: str, value: float, kind: str = "peer") -> dict[str, Any]:
        return {**case(value), "kind": kind, "label": label, "family": family}

    families = ["a", "b", "a, defaults"]
    cases = {f"huey {family}": one("huey", family, 10.0) for family in families}
    cases |= {f"mine {family}": one("mine", family, 20.0, "ours") for family in families[:1]}
    tables = table.parts({**record(**cases), "columns": ["calls"]})
    assert [title for title, _ in tables] == [
        "jobs/s",
        "jobs/s, everybody as installed",
        "store calls/job",
        "store calls/job, everybody as installed",
    ]
    assert tables[0][1] == [
        ["", "a", "b"],
        ["mine", "20.0 (10.0–40.0)", ""],
        ["huey", "10.0 (5.00–20.0)", "10.0 (5.00–20.0)"],
    ]
    assert tables[1][1] == [["", "a"], ["huey", "10.0 (5.00–20.0)"]]
