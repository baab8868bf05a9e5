"""Scenarios from Python values, and Python classes in scenarios."""

from __future__ import annotations

import datetime
import inspect

import pytest
from conftest import SMALL

import vcr


def built(engine_options=None) -> tuple[vcr.Scenario, vcr.Expression]:
    s = vcr.Scenario("small", claim="One engine keeps up.")
    rate = s.param("rate", 5)
    engine = s.engine(**(engine_options or {"num_gpu_blocks": 8192}))
    pool = s.pool(engines=1, engine=engine, latency=s.fixed(step=datetime.timedelta(milliseconds=10)))
    chat = s.poisson(
        rate=s.code('{}.to_string() + "/s"', rate), duration="5s", prompt_tokens=200, output_tokens=20
    )
    return s, s.run(name="small", cluster=s.cluster(engines=pool), workloads=[chat])


def test_the_results_are_those_of_the_script():
    s, result = built()
    s.expect(result, "ttft", "p99 < 1s")
    s.validate()
    ours, theirs = vcr.run(s, params={"rate": 8}), vcr.run(SMALL, params={"rate": 8})
    assert (ours.fingerprint, ours.passed) == (theirs.fingerprint, True)
    assert ours.to_dict()["scenario"] == "small.rhai" and ours.to_dict()["claim"] == "One engine keeps up."


def test_one_is_swept_as_its_file_is(tmp_path, monkeypatch):
    s, _ = built()
    monkeypatch.chdir(tmp_path)
    for arguments in ({"grid": {"rate": [1, 2]}}, {"grid": {"rate": [1, 2]}, "repeat": 2}):
        vcr.sweep(s, **arguments).write("unsaved.csv", force=True)
        s.save(s.name)
        vcr.sweep(s.name, **arguments).write("saved.csv", force=True)
        # A file of that name does not matter.
        (tmp_path / s.name).write_text("let broken = ;")
        vcr.sweep(s, **arguments).write("beside.csv", force=True)
        (tmp_path / s.name).unlink()
        written = [(tmp_path / f"{name}.csv").read_bytes() for name in ("unsaved", "saved", "beside")]
        assert written[0] == written[1] == written[2]
    # So is a text.
    table = vcr.sweep(SMALL, {"rate": [1, 2]})
    assert table.num_rows == 2


def test_a_bad_one_is_refused_with_the_line_of_python_when_swept():
    s, _ = built({"num_gpu_block": 8})
    with pytest.raises(vcr.InputError, match="num_gpu_block") as caught:
        vcr.sweep(s, {"rate": [1, 2]})
    assert caught.value.caller and caught.value.caller[0] == __file__
    with pytest.raises(vcr.InputError, match="no parameter `rat`"):
        vcr.sweep(built()[0], {"rat": [1]})


def test_errors_are_those_of_scripts_with_the_line_of_python(tmp_path):
    with pytest.raises(vcr.InputError) as caught:
        vcr.run(built({"num_gpu_block": 8})[0])
    error = caught.value
    path = tmp_path / "bad.rhai"
    path.write_text("let engine = engine(#{ num_gpu_block: 8 });\n")
    with pytest.raises(vcr.InputError) as caught:
        vcr.run(path)
    message = lambda of: of.message.splitlines()[0].split(": ", 1)[1]  # noqa: E731
    assert message(error) == message(caught.value) and error.hint == caught.value.hint
    lines, first = inspect.getsourcelines(built)
    assert error.caller == (__file__, first + next(i for i, line in enumerate(lines) if "s.engine(" in line))


@pytest.mark.parametrize("value", [float("inf"), 2**63, object(), {1}])
def test_values_that_scripts_lack_are_refused(value):
    with pytest.raises(vcr.InputError, match="invalid"):
        vcr.Scenario().engine(num_gpu_blocks=value)


def test_texts_keep_their_characters():
    text = 'a "quoted" \\ {} \n line\té ✓'
    s, result = built()
    s.check(text, True)
    assert vcr.run(s).assertions[0].subject == text


def test_names_are_those_of_scripts():
    s = vcr.Scenario()
    assert "poisson" in dir(s) and "poisson(" in s.poisson.__doc__
    with pytest.raises(AttributeError, match="no function `poison`"):
        s.poison(rate=1)


class Slow(vcr.LatencyModel):
    """Ten milliseconds a step."""

    def step_ns(self, shape):
        assert shape["prefill_requests"] + shape["decode_requests"] > 0
        return 10_000_000


class First(vcr.Router):
    """The engine with the lowest index that has room."""

    def route(self, query, workers):
        assert query["prompt_tokens"] == 200
        return min(range(len(workers)), key=lambda index: (workers[index]["waiting_requests"], index))


class LongestFirst(vcr.SchedulingPolicy):
    def rank(self, request):
        return -request["prompt_tokens"]


def test_python_latency_models_price_as_native_ones():
    script = SMALL.replace('fixed(#{ step: "10ms" })', 'plugin("slow")')
    report = vcr.run(script, plugins={"slow": Slow})
    assert report.run("small").fingerprint == vcr.run(SMALL).run("small").fingerprint


def test_python_routers_and_policies_decide():
    script = SMALL.replace("engines: 1,", 'engines: 3, router: plugin("first"),')
    engines = vcr.run(script, plugins={"first": First}).to_dict()["runs"][0]["engines"]
    assert engines[0]["steps"] > engines[1]["steps"]
    script = SMALL.replace("num_gpu_blocks: 8192", 'num_gpu_blocks: 8192, policy: plugin("longest")')
    assert vcr.run(script, plugins={"longest": LongestFirst}).passed


def test_a_failing_class_is_named_with_its_line():
    class Wrong(vcr.LatencyModel):
        def step_ns(self, shape):
            raise ZeroDivisionError("no")

    script = SMALL.replace('fixed(#{ step: "10ms" })', 'plugin("wrong")')
    with pytest.raises(vcr.FaultError, match=r"`wrong` failed: ZeroDivisionError: no \(.*test_scenario.py:\d+\)") as caught:
        vcr.run(script, plugins={"wrong": Wrong})
    assert caught.value.exit_code == 3
    with pytest.raises(TypeError, match="invalid plugin `wrong`"):
        vcr.run(script, plugins={"wrong": int})
    with pytest.raises(vcr.InputError, match="unknown plugin `wrong`"):
        vcr.run(script)
