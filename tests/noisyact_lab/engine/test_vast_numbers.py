"""Records with numbers that are vast but finite: the table and the report show them without an error."""

import html
import json

import pytest
from commands import noisyact

from noisyact_lab.analysis.estimates import Estimate
from noisyact_lab.analysis.results_table import table_of
from noisyact_lab.analysis.statistics.intervals import mean_interval
from noisyact_lab.engine.folder.files import write_json, write_lines
from noisyact_lab.engine.job import folder_of
from noisyact_lab.experiments.unique import UNIQUE
from noisyact_lab.report import page as report

GREATEST = 1.7976931348623157e308
FAR = 10**400


def put(out, arm, seed, value, **timing):
    """A finished run whose every number is the value."""
    folder = folder_of(out, "unique", "smoke", arm, seed)
    record = {"status": "finished", "result": {"test_error": value}, "signature": {"device": "cpu"}}
    write_json(folder / "result.json", record)
    write_lines(folder / "metrics.jsonl", [{"update": update, "test_error": value} for update in (1, 2)])
    write_lines(folder / "timing.jsonl", [{"update": 1, "seconds": 2.0, "at": 5.0, **timing}])


def test_means_of_vast_numbers():
    assert mean_interval([1e308, 1e308, 1e308]) == (1e308, 1e308, 1e308)
    assert mean_interval([GREATEST, GREATEST]) == (GREATEST, GREATEST, GREATEST)
    assert mean_interval([GREATEST, -GREATEST]) == (0.0, None, None)  # the ends are more than a float can hold
    mean, low, high = mean_interval([1e300, 3e300])
    assert mean == pytest.approx(2e300)
    assert (low, high) == pytest.approx((-10.7062e300, 14.7062e300))
    assert mean_interval([5e-324, 0.0])[0] == 0.0


def test_they_are_written_short():
    assert str(Estimate((1e308,) * 3)) == "1e+308 ± 0"
    assert str(Estimate((GREATEST, -GREATEST, 0.0))) == "0"
    assert str(Estimate((1e300, 3e300, 2e300))) == "2e+300 ± 2.48e+300"
    assert str(Estimate((1e17,) * 3)) == "1e+17 ± 0"
    assert str(Estimate((12345.0,))) == "12345"


@pytest.mark.parametrize(
    "values", [(1e308, 1e308), (GREATEST, -GREATEST), (1e17, 1e17), (10**300, 1), (-1e308, 5e-324)]
)
def test_table_and_page_show_them(tmp_path, values):
    for arm in ("reference", "nan"):
        for seed, value in enumerate(values):
            put(tmp_path, arm, seed, value)
    table = table_of(UNIQUE, tmp_path, "smoke")
    assert [row.finished for row in table.rows[:1]] == [2]
    assert max(map(len, str(table).splitlines()[:8])) < 300
    json.dumps(table.as_json(), allow_nan=False)
    page = report.write(tmp_path, tmp_path / "report.html").read_text()
    assert "Infinity" not in page.split('type="application/json"')[1].split("</script>")[0]
    for command in (
        ["table", "unique", "--preset", "smoke", "--out", tmp_path],
        ["table", "unique", "--out", tmp_path],
    ):
        noisyact(*command)


def test_one_vast_number_has_no_place_beside_others(tmp_path):
    put(tmp_path / "sweep" / "c=1", "nan", 0, 1e17)  # 1e17 + 0.5 is 1e17
    assert "1e+17" in report.write(tmp_path, tmp_path / "report.html").read_text()


def test_what_no_float_can_hold_is_noted(tmp_path):
    put(tmp_path, "reference", 0, FAR)
    put(tmp_path, "reference", 1, 3.0)
    (row, *_), (note, *_) = (table := table_of(UNIQUE, tmp_path, "smoke")).rows, table.notes
    assert (row.finished, row.partial) == (1, 1)
    assert note.startswith("reference seed-0 cannot be read and counts as partial: its test_error is 1000")
    assert len(note) < 200
    assert note in html.unescape(report.write(tmp_path, tmp_path / "report.html").read_text())


@pytest.mark.parametrize(
    "timing", [{"seconds": FAR}, {"at": FAR}, {"seconds": 1e308, "at": -1e308}, {"seconds": -1e308}]
)
def test_times_that_cannot_be_have_no_part_in_the_speed(tmp_path, timing):
    put(tmp_path, "reference", 0, 1.0, **timing)
    table = table_of(UNIQUE, tmp_path, "smoke")
    json.dumps(table.as_json(), allow_nan=False)
    assert "inf" not in str([str(speed) for speed in table.throughput])
    report.write(tmp_path, tmp_path / "report.html")
