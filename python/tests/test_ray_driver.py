"""The driver of sweeps on Ray without a cluster: a stand-in decides when tasks end, and how."""

from __future__ import annotations

import io
import json
import math
import threading

import pytest
from conftest import SMALL

import vcr
from vcr import ray as vcr_ray
from vcr import _vcr
from vcr._results import Results

WORDS = ["run", "--sweep", "rate=1..12", "--sweep", "speed=1,2", "--", "small.rhai"]
SOURCE = ("small.rhai", 'let speed = param("speed", 1);\n' + SMALL)


class RayError(Exception):
    """What Ray raises where a worker is lost."""


class RayTaskError(RayError):
    """What Ray raises where a task did."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class StandIn:
    """Ray with a number of cores. Tasks end in the order in which they were given, as ``outcome`` says."""

    class exceptions:
        RayError = RayError
        RayTaskError = RayTaskError

    def __init__(self, cores: int, outcome) -> None:
        self.cores = cores
        self.outcome = outcome
        #: Points of all tasks, in order.
        self.given: list[list[int]] = []
        self.in_flight: list[int] = []
        self.most_in_flight = 0
        self.cancelled: list[int] = []

    def cluster_resources(self):
        return {"CPU": float(self.cores)}

    def put(self, value):
        return value

    def remote(self, **options):
        assert options == {"num_cpus": 1, "max_retries": 0}

        class Task:
            @staticmethod
            def remote(bundle, header, version, points):
                self.given.append(list(points))
                self.in_flight.append(len(self.given) - 1)
                self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
                return len(self.given) - 1

        return lambda function: Task

    def wait(self, tasks, num_returns, timeout):
        assert sorted(tasks) == self.in_flight and num_returns == 1
        return [self.in_flight.pop(0)], []

    def get(self, task):
        return self.outcome(self.given[task])

    def cancel(self, task, force):
        assert force
        self.cancelled.append(task)


def result(point: int) -> str:
    return f'{{"of":{point}}}'


def ended(seconds):
    """An outcome: each point takes its time."""
    return lambda points: [(point, result(point), seconds(point)) for point in points]


def driven(stand_in, task_s=0.5, on_row=None):
    planned = _vcr.Sweep(WORDS, source=SOURCE)
    kept = Results(None, planned.header(), planned.points)
    driver = vcr_ray._Driver(stand_in, planned, WORDS, [], kept, task_s, on_row)
    driver.run()
    return planned, kept


def test_every_point_ends_once_and_few_tasks_are_in_flight():
    stand_in = StandIn(3, ended(lambda point: 0.1))
    rows = []
    planned, kept = driven(stand_in, on_row=lambda point, values: rows.append((point, values)))
    assert planned.points == 24
    assert kept.all() == [(point, result(point)) for point in range(24)]
    assert sorted(point for points in stand_in.given for point in points) == list(range(24))
    assert stand_in.most_in_flight == 6
    assert sorted(point for point, _ in rows) == list(range(24))
    assert dict(rows)[0] == {"rate": "1", "speed": "1"}


def test_tasks_have_as_many_points_as_fit_once_their_time_is_known():
    stand_in = StandIn(1, ended(lambda point: 0.1))
    driven(stand_in, task_s=0.25)
    sizes = [len(points) for points in stand_in.given]
    # One by one while nothing is known; the last ones one by one, so that no core waits for a long task.
    assert sizes[:2] == [1, 1] and max(sizes) == 2 and sizes[-1] == 1, sizes


def test_the_longest_points_go_first_once_their_time_is_known():
    # The second axis decides: 10 s or 1 s.
    planned = _vcr.Sweep(WORDS, source=SOURCE)
    is_long = [planned.values(point)[1] == "2" for point in range(24)]
    stand_in = StandIn(1, ended(lambda point: 10.0 if is_long[point] else 1.0))
    driven(stand_in)
    order = [is_long[point] for points in stand_in.given for point in points]
    # After the first ones, which tell.
    told = order.index(True) + 1
    while len({*order[:told]}) < 2:
        told += 1
    rest = order[told + 2 :]
    assert rest == sorted(rest, reverse=True), order


def test_costs_are_those_of_the_values_of_a_point():
    planned = _vcr.Sweep(WORDS, source=SOURCE)
    costs = vcr_ray.Costs(planned)
    assert costs.predicted_s(0) == math.inf
    points = {tuple(planned.values(point)): point for point in range(planned.points)}
    costs.note(points["1", "1"], 1.0)
    costs.note(points["1", "2"], 3.0)
    # The mean is 2 s; half of it with the one value, one and a half times with the other.
    assert costs.predicted_s(points["7", "1"]) == pytest.approx(1.0)
    assert costs.predicted_s(points["7", "2"]) == pytest.approx(3.0)
    order = [points["7", "2"], points["8", "1"], points["9", "2"]]
    costs.order(order)
    assert [planned.values(point)[1] for point in order] == ["1", "2", "2"]
    # Spread over the grid, each once.
    spread = costs.spread(list(range(24)))
    assert sorted(spread) == list(range(24)) and spread != sorted(spread)


def test_lost_points_rest_and_are_tried_alone(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(vcr_ray.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(vcr_ray.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    tries: dict[int, list[float]] = {}

    def outcome(points):
        for point in points:
            tries.setdefault(point, []).append(now[0])
        now[0] += 0.01
        # Twice, by the loss of its worker and by what a worker that outlives its node says.
        if 5 in points and len(tries[5]) < 3:
            raise [RayError("gone"), RayTaskError(OSError("Broken pipe"))][len(tries[5]) - 1]
        return [(point, result(point), 0.1) for point in points]

    stand_in = StandIn(2, outcome)
    _, kept = driven(stand_in)
    assert len(kept.all()) == 24
    first, second, third = tries[5]
    assert second - first >= 1 and third - second >= 4
    with_it = [points for points in stand_in.given if 5 in points]
    assert with_it[1:] == [[5], [5]]
    assert all(len(of) == 1 for point, of in tries.items() if point not in with_it[0])


def test_a_point_that_ends_its_workers_ends_the_sweep_and_is_named(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(vcr_ray.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(vcr_ray.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def outcome(points):
        now[0] += 1
        if 5 in points:
            raise RayError("The worker died\nout of memory")
        return [(point, result(point), 0.1) for point in points]

    with pytest.raises(vcr.FaultError, match="the point rate=3 speed=2 has lost its worker 5 times: out of memory"):
        driven(StandIn(1, outcome))


@pytest.mark.parametrize(
    ("cause", "raised", "text"),
    [
        (vcr.InputError("the point is wrong"), vcr.InputError, "the point is wrong"),
        (ModuleNotFoundError("no", name="vcr"), vcr.InputError, "a worker lacks the package `vcr`"),
        (ZeroDivisionError("division"), vcr.FaultError, "a task failed: division"),
        (OSError(28, "No space left on device"), vcr.FaultError, "No space left on device"),
    ],
)
def test_errors_of_points_end_the_sweep_and_its_tasks(cause, raised, text):
    def outcome(points):
        raise RayTaskError(cause)

    stand_in = StandIn(2, outcome)
    with pytest.raises(raised, match=text):
        driven(stand_in)
    assert len(stand_in.given) == 4 and sorted(stand_in.cancelled) == stand_in.in_flight == [1, 2, 3]


def test_another_version_is_refused_by_the_worker():
    with pytest.raises(vcr.InputError) as caught:
        vcr_ray._execute([None], "{}", "9.9.9", [0])
    assert f"the driver has vcr 9.9.9, a worker has vcr {vcr.__version__}" in str(caught.value)
    assert caught.value.hint == "install vcr==9.9.9 on all nodes"


def simulated(outcome, scripts):
    """The lines that a plan gets for its scripts, and the tasks that made them."""
    all_there = threading.Event()

    class Lines(list):
        def write(self, line):
            self.append(json.loads(line))
            if len(self) == len(scripts):
                all_there.set()

        def flush(self):
            pass

    def tasks():
        for number, script in enumerate(scripts):
            yield json.dumps({"number": number, "requests": 100, "script": script}).encode()
        all_there.wait()

    stand_in, lines = StandIn(2, lambda work: outcome(dict(work))), Lines()
    vcr_ray._Simulations(stand_in, b"pack", "[]", tasks(), lines).run()
    return lines, stand_in


def test_simulations_of_a_plan_are_handed_out_and_told_apart(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(vcr_ray.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(vcr_ray.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    tries: dict[int, int] = {}

    def outcome(scripts):
        now[0] += 0.1
        for number in scripts:
            tries[number] = tries.get(number, 0) + 1
        if 5 in scripts and tries[5] < 3:
            raise RayError("gone")
        return [(number, json.dumps({"of": script}), 0.01) for number, script in scripts.items()]

    lines, stand_in = simulated(outcome, [f"//! {number} GPUs: x.\nrun();" for number in range(40)])
    results = {line["number"]: line["result"]["of"] for line in lines}
    assert len(lines) == 40 and results == {number: f"//! {number} GPUs: x.\nrun();" for number in range(40)}
    # Together, once their time is known.
    assert max(len(work) for work in stand_in.given) > 1

    def ends(scripts):
        now[0] += 1
        raise RayError("out of memory")

    with pytest.raises(vcr.FaultError, match="the simulation of 2 x l4: 2 GPUs has lost its worker 5 times: out of memory"):
        simulated(ends, ["//! 2 x l4: 2 GPUs.\nrun();"])


def test_what_a_plan_no_longer_waits_for_is_cancelled():
    line = json.dumps({"number": 1, "requests": None, "script": "//! x"}).encode() + b"\n"
    stand_in = StandIn(1, lambda work: [])
    plan = vcr_ray._Simulations(stand_in, b"pack", "[]", io.BytesIO(line), io.BytesIO())
    plan.in_flight[7] = [0]
    plan.reading.join()
    plan.run()
    assert stand_in.cancelled == [7]


def test_without_ray_its_package_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"this needs ray: pip install 'ray\[client\]'"):
        vcr_ray.sweep(SMALL, {"rate": [1, 2]})
