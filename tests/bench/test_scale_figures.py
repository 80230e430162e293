"""The arithmetic of docs/scale.md: lines through points, costs from measured figures, chances, tables, pictures."""

from __future__ import annotations

import os
import random
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from bench.scaling import page, paper
from bench.scaling.drawing import chart, powers, short
from bench.scaling.fits import Line, fitted, quantile, worst_error
from bench.scaling.planning import Costs
from bench.scaling.recorded import MEASURED, PREDICTED, costs_of, load
from bench.scaling.watching import Watch, moment_of, process_seconds, tree_seconds

COSTS = Costs(exchange=Line(1e-3, 2e-5), grouped=Line(1e-3, 3e-5), keeper=Line(1e-4, 5e-6), runner=1e-5, chores=1e-5)


def test_a_line_is_found_again() -> None:
    line = fitted([(size, 140 + 20.5 * size) for size in (1, 10, 100, 300)])
    assert [line.call, line.job] == pytest.approx([140, 20.5])


def test_noise_moves_it_no_more_than_the_noise() -> None:
    chance = random.Random(3)
    points = [(size, (140 + 20 * size) * chance.uniform(0.95, 1.05)) for size in (1, 10, 100, 300) for _ in range(5)]
    line = fitted(points)
    assert line.call == pytest.approx(140, rel=0.05)
    assert line.job == pytest.approx(20, rel=0.05)
    assert worst_error(line, points) < 0.1


def test_neither_part_of_a_line_is_below_nothing() -> None:
    assert fitted([(1, 1.0), (100, 300.0)]).call == 0.0
    assert fitted([(1, 100.0), (100, 50.0)]).job == 0.0


def test_a_line_through_one_size_is_refused() -> None:
    with pytest.raises(ValueError, match="two different"):
        fitted([(10, 1.0), (10, 2.0)])


def test_quantiles_are_values_that_were_there() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values, part) for part in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert quantile([], 0.5) == 0.0


def test_what_was_used_between_two_looks_is_drawn_straight() -> None:
    looks = iter([(1.0, {"store": 10.0}), (2.0, {"store": 12.0}), (4.0, {"store": 13.0})])
    watch = Watch(dict)
    watch._readings.extend(looks)
    assert watch.between(1.5, 3.0) == {"store": pytest.approx(1.5)}
    assert watch.between(0.0, 9.0) == {"store": pytest.approx(3.0)}


def test_a_moment_between_two_looks_at_the_count_is_drawn_straight() -> None:
    counts = [(1.0, 0), (2.0, 0), (3.0, 100), (4.0, 400)]
    assert [moment_of(counts, jobs) for jobs in (50, 100, 250)] == [2.5, 3.0, 3.5]
    with pytest.raises(RuntimeError, match="more than 500 jobs"):
        moment_of(counts, 500)


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_the_time_of_a_process_grows_as_it_works() -> None:
    before = process_seconds(os.getpid())
    sum(number * number for number in range(200_000))
    assert process_seconds(os.getpid()) > before
    assert tree_seconds(os.getpid()) > before
    assert process_seconds(2**22 + 1) == 0.0


def test_ceilings_are_one_over_the_cost() -> None:
    assert paper.store_ceiling(COSTS, 100, cores=2) == pytest.approx(2 / (1e-5 + 2e-5 + 1e-5))
    assert paper.worker_ceiling(COSTS, 100, runners=1) == pytest.approx(1 / 1e-5)
    assert paper.worker_ceiling(COSTS, 100, runners=4) == pytest.approx(1 / 6e-6)


def test_cores_that_share_a_part_of_the_work_are_worth_less() -> None:
    assert paper.effective_cores(1) == 1
    assert paper.effective_cores(16, serial=0.0) == 16
    assert paper.effective_cores(16) < 12
    assert paper.effective_cores(1000) <= 1 / paper.SERIAL + 1


def test_an_index_grows_by_a_level_now_and_then() -> None:
    depths = [paper.depth(10.0**power, 50) for power in range(1, 10)]
    assert depths == sorted(depths)
    assert depths[0] == 1
    assert depths[-1] <= 5


def test_the_busiest_node_is_as_chance_has_it() -> None:
    assert paper.busiest_share(1, 3) == pytest.approx(1.0)
    assert paper.busiest_share(2, 2) == pytest.approx(0.75)  # both on one node half of the time
    chance, throws = random.Random(5), 20_000
    total = 0
    for _ in range(throws):
        counts = [0, 0, 0]
        for _ in range(12):
            counts[chance.randrange(3)] += 1
        total += max(counts)
    assert paper.busiest_share(12, 3) == pytest.approx(total / throws / 12, rel=0.01)


def test_shards_are_placed_as_chance_places_them_on_average() -> None:
    placing = paper.typical_placing(12, 3)
    counts = sorted((placing.count(node) for node in range(3)), reverse=True)
    assert sum(counts) == 12
    assert counts[0] == round(12 * paper.busiest_share(12, 3)) == 6
    assert counts[1] - counts[2] <= 1
    assert paper.typical_placing(5, 1) == (0,) * 5


def test_a_hot_group_stays_in_its_shard() -> None:
    assert paper.hot_share(10, 0.0) == pytest.approx(0.1)
    assert paper.hot_share(10, 1.0) == 1.0


@pytest.mark.parametrize("store", ["postgres", "redis", "cluster", "sqlite"])
def test_the_recorded_figures_make_costs(store: str) -> None:
    costs = costs_of(store, load(MEASURED))
    for cost in (costs.exchange.job, costs.grouped.job, costs.keeper.call, costs.runner, costs.chores):
        assert 0 < cost < 0.01
    assert costs.grouped.job > costs.exchange.job
    assert bool(costs.sync) is (store in ("postgres", "sqlite"))


# ---------------------------------------------------------------------- the page


def test_the_page_says_what_the_figures_say() -> None:
    path = MEASURED.parents[2] / "docs" / "scale.md"
    text = path.read_text(encoding="utf-8")
    again = page.regenerated(text, load(MEASURED), load(PREDICTED))
    assert again == text, "docs/scale.md is behind its figures. Run: bench/scale page"


def test_the_pictures_are_those_of_the_figures() -> None:
    for name, picture in page.pictures(load(PREDICTED)).items():
        path = MEASURED.parents[2] / "docs" / "images" / name
        assert path.read_text(encoding="utf-8") == picture, f"{name} is behind its figures. Run: bench/scale page"


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(SystemExit, match="markers"):
        page.marked("# A page\n", "advice", "body")


def test_numbers_are_said_as_people_say_them() -> None:
    assert [short(number) for number in (5, 1500, 1e6, 2.5e9)] == ["5", "1.5 k", "1 M", "2.5 G"]
    assert [page.sized(number) for number in (90, 1500, 8.4e10, 2e12)] == ["90 B", "1.5 kB", "84 GB", "2 TB"]
    assert [page.rounded(number) for number in (42.4, 123, 26_412)] == ["42", "120", "26,000"]


def test_a_picture_is_sound_and_holds_every_curve() -> None:
    picture = chart("A < B", "workers", "jobs", {"one": [(1, 10), (8, 500)], "two": [(1, 20), (8, 90)]}, [1, 2, 4, 8])
    root = ElementTree.fromstring(picture)  # noqa: S314 - made a line above
    names = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"one", "two", "A < B", "workers", "jobs"} <= set(names)
    lines = [line.attrib["points"] for line in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(lines) == 2
    places = [tuple(map(float, point.split(","))) for line in lines for point in line.split()]
    assert all(0 < across < 720 and 0 < down < 400 for across, down in places)


def test_a_grid_encloses_its_values() -> None:
    assert powers(3, 4000) == [1.0, 10.0, 100.0, 1000.0, 10_000.0]
    assert powers(10, 10) == [10.0, 100.0]
