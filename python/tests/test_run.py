"""``run``: reports as of the binary, errors with places, progress, Ctrl-C, and the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import ROOT, SMALL

import vcr


def test_reports_have_the_bytes_of_the_binary(small, binary):
    report = vcr.run(small, params={"rate": 8}, seed=7)
    code, out, _ = binary("run", small, "-e", "rate=8", "--seed", 7, "--json")
    assert (code, report.to_json().encode()) == (0, out)
    assert report.passed and report.parameters == {"rate": "8"}
    run = report.run("small")
    assert run.seed == 7 and run.value("ttft", "p99") == run.metrics["trends"]["ttft_ms"]["p99"]
    assert [made.subject for made in report.assertions] == ["ttft"]
    with pytest.raises(KeyError, match="unknown run `large`: expected small"):
        report.run("large")


def test_the_main_job_has_the_bytes_of_the_binary(binary):
    scenario = ROOT / "scenarios/pd_burst.rhai"
    _, out, _ = binary("run", scenario, "--json")
    assert vcr.run(scenario).to_json().encode() == out


def test_folders_have_the_files_of_the_binary(small, binary, tmp_path):
    report = vcr.run(small, out=tmp_path / "ours")
    binary("run", small, "--out", tmp_path / "theirs")
    names = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == names
    assert set(report.files) <= set(names)
    for name in names:
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name
    # Also those that are made later, of what is in memory.
    report = vcr.run(small, charts=True)
    assert report.file("junit") == (tmp_path / "ours/junit.xml").read_bytes()
    assert report.file("charts") == (tmp_path / "ours/charts.json").read_bytes()


def test_scenarios_and_guests_of_the_package_have_names(monkeypatch, tmp_path, binary):
    shipped, guests = vcr.scenarios(), vcr.guests()
    assert sorted(shipped) == sorted(path.stem for path in (ROOT / "scenarios").glob("*.rhai"))
    assert sorted(guests) == sorted(path.stem for path in (ROOT / "guests/dist").glob("*.wasm"))
    assert shipped["pd_burst"].with_name("traces").joinpath("chat.jsonl").exists()
    # Nothing of the checkout is near.
    monkeypatch.chdir(tmp_path)
    ours = vcr.run("thermal").to_json().encode()
    code, theirs, err = binary("run", ROOT / "scenarios/thermal.rhai", "--json")
    assert (code, ours) == (0, theirs), err
    with pytest.raises(vcr.InputError, match="no scenario `thermic`: expected a path, or one of abandoned_prefills,"):
        vcr.run("thermic")
    # A file of such a name is meant.
    (tmp_path / "thermal").write_text(SMALL)
    assert vcr.run("thermal").to_dict()["claim"] == "One engine keeps up."
    s = vcr.Scenario()
    latency = s.guest(path=guests["roofline"], config={"model": "llama-3.1-8b", "gpu": "h100-sxm"})
    pool = s.pool(engines=1, engine=s.engine(num_gpu_blocks=8192), latency=latency)
    chat = s.poisson(rate="5/s", duration="2s", prompt_tokens=200, output_tokens=20)
    s.run(cluster=s.cluster(engines=pool), workloads=[chat])
    assert vcr.run(s).passed


def test_a_text_is_a_scenario(small):
    assert vcr.run(SMALL).fingerprint == vcr.run(small).fingerprint


def test_errors_have_file_line_and_field(tmp_path, binary):
    path = tmp_path / "bad.rhai"
    path.write_text('let a = 1;\nlet engine = engine(#{ num_gpu_block: 8 });\n')
    with pytest.raises(vcr.InputError) as caught:
        vcr.run(path)
    error = caught.value
    assert (error.file, error.line, error.field) == (str(path), 2, "num_gpu_block")
    code, _, err = binary("run", path)
    assert code == error.exit_code == 2 and err.strip() == f"error: {error}"
    # Of a text the same, with its line.
    with pytest.raises(vcr.InputError) as caught:
        vcr.run(path.read_text())
    assert "num_gpu_block: 8" in str(caught.value) and caught.value.line == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"params": {"speed": 1}}, "has no parameter `speed`"),
        ({"params": {"rate": [1]}}, "invalid parameter `rate`: expected a text, a number, true or false, got list"),
        ({"params": {"rate": float("nan")}}, "expected a finite number"),
        ({"seed": "x"}, "--seed"),
        ({"target": "nowhere"}, "--target"),
        ({"sed": 1}, "--sed"),
        ({"sweep": "rate=1..2"}, "expected one execution"),
    ],
)
def test_bad_arguments_are_refused(small, arguments, text):
    with pytest.raises(vcr.InputError) as caught:
        vcr.run(small, **arguments)
    assert text in str(caught.value)


def test_a_scenario_that_is_not_there():
    with pytest.raises(vcr.InputError, match="cannot read the scenario"):
        vcr.run("nothing.rhai")
    with pytest.raises(vcr.InputError, match="expected a path, a text or a vcr.Scenario, got int"):
        vcr.run(3)


LONG = SMALL.replace('"5s"', '"100000s"')


def test_progress_reaches_a_callback_and_may_end_the_run():
    seen = []
    vcr.run(SMALL, progress=seen.append)
    assert [of.state for of in seen if of.state != "running"] == ["started", "ended"]

    def enough(progress):
        if progress.state == "running":
            raise StopIteration(progress.run)

    with pytest.raises(StopIteration, match="small"):
        vcr.run(LONG, progress=enough)


def test_ctrl_c_ends_a_run_and_other_threads_run_meanwhile():
    ran = threading.Event()

    def interrupt(progress):
        if progress.state == "running" and not ran.is_set():
            # Another thread of Python gets on although the simulator runs.
            thread = threading.Thread(target=ran.set)
            thread.start()
            thread.join()
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        vcr.run(LONG, progress=interrupt)
    assert ran.is_set()


def test_ctrl_c_ends_a_sweep_with_the_rows_that_are_there():
    # Only the first point ends by itself.
    script = SMALL.replace('"5s"', 'if rate == 1 { "5s" } else { "100000s" }')
    rows = []

    def interrupt(point, values):
        rows.append(values["rate"])
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        vcr.sweep(script, {"rate": [1, 2, 3]}, threads=1, on_row=interrupt)
    assert rows == ["1"]


def test_a_sweep_that_was_killed_resumes_from_its_folder(tmp_path):
    script = tmp_path / "small.rhai"
    script.write_text(SMALL)
    folder = tmp_path / "results"
    killed = f"""
import os, signal, vcr
vcr.sweep({str(script)!r}, {{"rate": [1, 2, 3]}}, threads=1, results={str(folder)!r},
          on_row=lambda point, values: point == 1 and os.kill(os.getpid(), signal.SIGKILL))
"""
    done = subprocess.run([sys.executable, "-c", killed], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    rows = []
    grid = {"rate": [1, 2, 3]}
    table = vcr.sweep(script, grid, results=folder, on_row=lambda point, values: rows.append(values["rate"]))
    assert rows == ["3"]
    whole = vcr.sweep(script, grid)
    columns = [{name: of[name] for name in of.column_names} for of in (table, whole)]
    assert columns[0] == columns[1]
    script.write_text(SMALL.replace("5s", "6s"))
    with pytest.raises(vcr.InputError, match="had other contents"):
        vcr.sweep(script, grid, results=folder)


def test_ctrl_c_ends_a_replay():
    seen = []

    def interrupt(progress):
        seen.append(progress)
        if len(seen) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    # They would take minutes.
    with pytest.raises(KeyboardInterrupt):
        vcr.replay(input_tokens=100, output_tokens=1000, request_count=100_000, replay_concurrency=4, progress=interrupt)


def test_a_run_on_live_engines_is_reported_as_one_in_virtual_time():
    report = vcr.run(SMALL.replace('"5s"', '"1s"'), target="live")
    simulated = vcr.run(SMALL.replace('"5s"', '"1s"'))
    completed = lambda of: of.run("small").value("completed")  # noqa: E731
    assert completed(report) == completed(simulated) > 0
    assert report.requests["output_tokens"] == simulated.requests["output_tokens"]


def test_runs_may_be_parallel(small):
    reports = []
    threads = [threading.Thread(target=lambda: reports.append(vcr.run(small).fingerprint)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 4 and len(set(reports)) == 1


def test_warnings_are_of_python(tmp_path):
    with pytest.warns(vcr.VcrWarning, match="has no intervals"):
        vcr.run(SMALL, uncertainty=2)


def test_the_console_script_is_the_command(small, binary):
    script = Path(sys.executable).with_name("vcr")
    for words in (["run", small, "--json", "--quiet"], ["--version"], ["run", "nothing.rhai"], ["run"], ["completions", "bash"]):
        ours = subprocess.run([script, *words], capture_output=True)
        theirs = binary(*words)
        assert (ours.returncode, ours.stdout, ours.stderr.decode()) == theirs, words


def test_the_import_is_light():
    code = "import sys, vcr; print([name for name in ('ray', 'numpy', 'pyarrow', 'asyncio') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
