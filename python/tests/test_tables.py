"""Tables: Arrow without copies, captures and step logs, sweeps, comparisons, replays."""

from __future__ import annotations

import json

import pandas
import polars
import pyarrow
import pytest
from conftest import ROOT, SMALL

import vcr

TRACE = ROOT / "scenarios/traces/chat.jsonl"


def test_requests_are_those_of_the_binary(small, binary, tmp_path):
    requests = vcr.run(small).requests
    binary("run", small, "--requests", tmp_path / "requests.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert requests.num_rows == len(lines) > 10
    assert requests["prompt_tokens"] == [line["prompt_tokens"] for line in lines]
    assert requests["arrival_ms"] == [line["arrival_ms"] for line in lines]
    table = requests.to_pyarrow()
    assert table.schema.field("prompt_tokens").type == pyarrow.uint64()
    assert table.schema.field("ttft_ms").type == pyarrow.float64()
    assert table.column_names == requests.column_names
    # Both have the memory of the table, not copies of it.
    address = lambda of: of.column("prompt_tokens").chunk(0).buffers()[1].address  # noqa: E731
    assert address(table) == address(requests.to_pyarrow())
    assert isinstance(requests.to_pandas(), pandas.DataFrame)
    frame = requests.to_polars()
    assert isinstance(frame, polars.DataFrame) and frame.height == requests.num_rows
    assert "more rows" in requests._repr_html_()
    with pytest.raises(KeyError, match="expected of, id"):
        requests["nothing"]


def test_tables_have_the_bytes_of_the_binary(small, binary, tmp_path):
    grid = {"rate": [2, 4, 8]}
    rows = []
    table = vcr.sweep(small, grid, on_row=lambda point, values: rows.append((point, values["rate"])))
    assert sorted(rows) == [(0, "2"), (1, "4"), (2, "8")]
    for name in ("a.csv", "a.json", "a.parquet"):
        table.write(tmp_path / name)
        binary("run", small, "--sweep", "rate=2,4,8", "--sweep-out", tmp_path / f"theirs-{name}", "--quiet")
        assert (tmp_path / name).read_bytes() == (tmp_path / f"theirs-{name}").read_bytes()
    with pytest.raises(vcr.InputError, match="exists"):
        table.write(tmp_path / "a.csv")
    with pytest.raises(vcr.InputError, match="must end in"):
        table.write(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repeat": 3}, ["--repeat", 3]),
        ({"search": "seconds=1..8"}, ["--search", "seconds=1..8"]),
    ],
)
def test_sweeps_of_seeds_and_searches(small, binary, tmp_path, options, words):
    small.write_text(SMALL.replace('duration: "5s"', 'duration: param("seconds", 5).to_string() + "s"'))
    vcr.sweep(small, {"rate": "2..4..2"}, **options).write(tmp_path / "ours.csv")
    binary("run", small, "--sweep", "rate=2..4..2", *words, "--sweep-out", tmp_path / "theirs.csv", "--quiet")
    assert (tmp_path / "ours.csv").read_bytes() == (tmp_path / "theirs.csv").read_bytes()


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        ({}, "the grid is empty"),
        ({"rate": []}, "`rate` has no values"),
        ({"rate": [object()]}, "expected a text, a number, true or false, got object"),
        ({"rate": ["1,2"]}, "must have neither"),
        ({"rate": 3}, "expected a list of values"),
        ({"rat": [1]}, "has no parameter `rat`"),
        ({"rate": [1, 1]}, "is given twice"),
        ([1], "expected a mapping"),
    ],
)
def test_bad_grids_are_refused(small, grid, text):
    with pytest.raises(vcr.InputError) as caught:
        vcr.sweep(small, grid)
    assert text in str(caught.value)


def test_a_bad_point_is_named(small):
    with pytest.raises(vcr.InputError, match="--sweep, rate=x: .*invalid parameter `rate`: expected a whole number"):
        vcr.sweep(small, {"rate": [1, "x"]})


def test_replays_have_the_bytes_of_the_binary(binary, tmp_path):
    options = {"num_workers": 2, "router_mode": "kv_router", "extra_engine_args": {"num_gpu_blocks": 4096}}
    report = vcr.replay(TRACE, trace_block_size=32, **options)
    words = ["--num-workers", 2, "--router-mode", "kv_router", "--extra-engine-args", '{"num_gpu_blocks": 4096}']
    code, out, err = binary("replay", TRACE, "--trace-block-size", 32, *words, "--json", "--quiet")
    assert (code, report.to_json().encode()) == (0, out), err
    table = vcr.sweep(trace=TRACE, grid={"num_workers": [1, 2], "max_num_seqs": [8, 16]}, trace_block_size=32)
    table.write(tmp_path / "ours.csv")
    sweeps = ["--sweep", "num_workers=1,2", "--sweep", "max_num_seqs=8,16", "--sweep-out", tmp_path / "theirs.csv"]
    assert binary("replay", TRACE, "--trace-block-size", 32, *sweeps)[0] == 0
    assert (tmp_path / "ours.csv").read_bytes() == (tmp_path / "theirs.csv").read_bytes()
    with pytest.raises(vcr.InputError, match="give either a trace"):
        vcr.replay()
    with pytest.raises(vcr.InputError, match="--num-workers"):
        vcr.replay(TRACE, num_workers="x")


def test_replays_in_ticks_have_the_bytes_of_the_binary(binary, tmp_path):
    path = tmp_path / "ticks.json"
    config = {"total_kv_pages": 10, "page_size_tokens": 16, "max_active": 2, "prefill_tokens_per_tick": 64}
    request = {"id": "a", "prompt_tokens": 60, "max_output_tokens": 4, "priority": 0, "arrival_tick": 2}
    path.write_text(json.dumps({"config": {**config, "decode_width": 1}, "requests": [request]}))
    report = vcr.replay(path, engine="ticks", max_active=3, report_json=tmp_path / "report.json")
    code, out, err = binary("replay", path, "--engine", "ticks", "--max-active", 3, "--json")
    assert (code, report.to_json().encode()) == (0, out), err
    assert (tmp_path / "report.json").read_bytes() == out
    assert report["summary"]["completed"] == 1
    with pytest.raises(vcr.InputError, match="expected one tick workload"):
        vcr.replay(path, path, engine="ticks")


def test_comparisons_have_the_bytes_of_the_binary(small, binary, tmp_path):
    vcr.run(small, out=tmp_path / "before")
    vcr.run(small, params={"rate": 20}, out=tmp_path / "after")
    limit = {"ttft.p99": "5%"}
    comparison = vcr.compare(tmp_path / "before", tmp_path / "after", max_regression=limit)
    words = ["compare", tmp_path / "before", tmp_path / "after", "--max-regression", "ttft.p99=5%", "--json"]
    code, out, _ = binary(*words)
    assert comparison.to_json().encode() == out and comparison.passed == (code == 0)
    assert comparison["pairs"][0]["changes"]
    with pytest.raises(vcr.InputError, match="unknown metric `tft`"):
        vcr.compare(tmp_path / "before", tmp_path / "after", max_regression={"tft.p99": "5%"})


def test_notebooks_show_figures_as_tables(small, tmp_path):
    report = vcr.run(small, out=tmp_path / "before")
    run = report.run("small")
    assert f"<td>ttft_ms</td><td>{run.metrics['trends']['ttft_ms']['count']:.6g}</td>" in run._repr_html_()
    vcr.run(small, params={"rate": 20}, out=tmp_path / "after")
    shown = vcr.compare(tmp_path / "before", tmp_path / "after")._repr_html_()
    assert "<p>small</p>" in shown and "<td>ttft</td><td>p99</td>" in shown and "%</td>" in shown
    # What is equal is not there.
    assert "<tr>" not in vcr.compare(tmp_path / "before", tmp_path / "before")._repr_html_().partition("<tbody>")[2]
    replayed = vcr.replay(TRACE, trace_block_size=32)
    assert f"<td>completed_requests</td><td>{replayed['summary']['completed_requests']}</td>" in replayed._repr_html_()


def test_texts_of_others_are_no_markup(small):
    small.write_text(SMALL.replace('name: "small"', 'name: "<script>x</script>"'))
    report = vcr.run(small)
    shown = report._repr_html_()
    assert "<script>x" not in shown.partition("<iframe")[0] and "&lt;script&gt;x" in shown
    assert "<script>" not in report.requests._repr_html_()


def test_step_logs_and_captures_are_tables(small, tmp_path, binary):
    vcr.run(small, out=tmp_path / "out")
    steps = vcr.read_steps(tmp_path / "out")
    lines = (tmp_path / "out/steps.jsonl").read_text().splitlines()
    assert 0 < steps.num_rows <= len(lines)
    assert sum(steps.to_polars()["emitted_tokens"]) == sum(vcr.run(small).requests["output_tokens"])
    capture = vcr.read_capture(tmp_path / "out")
    assert binary("inspect", "convert", tmp_path / "out", "-o", tmp_path / "theirs.parquet")[0] == 0
    capture.write(tmp_path / "ours.parquet")
    assert (tmp_path / "ours.parquet").read_bytes() == (tmp_path / "theirs.parquet").read_bytes()
    with pytest.raises(vcr.InputError, match="nothing"):
        vcr.read_steps(tmp_path / "nothing")
