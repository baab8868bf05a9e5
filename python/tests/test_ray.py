"""Sweeps on a real cluster of Ray: two nodes in processes of their own, one of which dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import SMALL

import vcr
import vcr.ray

ray = pytest.importorskip("ray")

RAY = Path(sys.executable).with_name("ray")


class Cluster:
    """A head that computes nothing, and nodes with one core each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[subprocess.Popen] = []
        self.port = _free_port()
        self.client_port = _free_port()
        self.head = self.start(["--head", f"--temp-dir={folder}/ray", f"--port={self.port}", f"--ray-client-server-port={self.client_port}",
                                "--include-dashboard=false", "--num-cpus=0"])
        self.address = f"127.0.0.1:{self.port}"
        deadline = time.monotonic() + 60
        while not ray.is_initialized():
            try:
                ray.init(self.address, log_to_driver=False, logging_level="error")
            except (ConnectionError, ValueError, RuntimeError):
                assert time.monotonic() < deadline and self.head.poll() is None, "the head does not come up"

    def start(self, words: list[str], env: dict[str, str] | None = None) -> subprocess.Popen:
        # One that blocks is the parent of all processes of its node.
        log = self.folder / f"node-{len(self.nodes)}.log"
        return subprocess.Popen(
            [RAY, "start", "--block", "--disable-usage-stats", "--object-store-memory=80000000", *words],
            env={**os.environ, "RAY_raylet_start_wait_time_s": "120", **(env or {})},
            stdout=log.open("a"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def add(self, cpus: int = 1, env: dict[str, str] | None = None) -> subprocess.Popen:
        node = self.start([f"--address={self.address}", f"--num-cpus={cpus}"], env)
        self.nodes.append(node)
        return node

    def wait(self, cpus: int) -> None:
        """Until so many cores are there."""
        deadline = time.monotonic() + 60
        while ray.cluster_resources().get("CPU", 0) != cpus:
            assert time.monotonic() < deadline, ray.cluster_resources()
            time.sleep(0.05)

    def kill(self, node: subprocess.Popen) -> None:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def end(self) -> None:
        ray.shutdown()
        for node in [*self.nodes, self.head]:
            if node.poll() is None:
                self.kill(node)


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("ray"))
    yield cluster
    cluster.end()


GRID = {"rate": list(range(2, 32)), "speed": [1, 2]}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory) -> Path:
    """Points of some ten milliseconds, which read a file beside the script."""
    folder = tmp_path_factory.mktemp("scenario")
    trace = Path(__file__).resolve().parents[2] / "scenarios/traces/chat.jsonl"
    shutil.copy(trace, folder / "chat.jsonl")
    script = SMALL.replace("workloads: [chat]", 'workloads: [chat, trace(#{ path: "chat.jsonl", block_size: 32 })]')
    path = folder / "small.rhai"
    path.write_text('let speed = param("speed", 1);\n' + script.replace('"5s"', '(speed * 5).to_string() + "s"'))
    return path


def written(table: vcr.Table, path: Path) -> bytes:
    table.write(path, force=True)
    return path.read_bytes()


@pytest.fixture(scope="module")
def expected(scenario, tmp_path_factory) -> bytes:
    return written(vcr.sweep(scenario, GRID), tmp_path_factory.mktemp("expected") / "a.csv")


def test_a_cluster_whose_node_dies_gives_the_bytes_of_one_machine(cluster, scenario, expected, tmp_path):
    cluster.add()
    cluster.wait(1)
    # Two that come up at the same time may take each other's place.
    doomed = cluster.add()
    cluster.wait(2)
    points = []

    def row(point, values):
        points.append(point)
        # In the middle: the other node has tasks of it to do again.
        if len(points) == 10:
            cluster.kill(doomed)

    table = vcr.ray.sweep(scenario, GRID, on_row=row, results=tmp_path / "kept", task_s=0.05)
    assert written(table, tmp_path / "a.csv") == expected
    assert sorted(points) == list(range(60))


def test_a_sweep_goes_on_where_its_driver_died(cluster, scenario, expected, tmp_path):
    class Died(Exception):
        pass

    def die(point, values):
        raise Died

    with pytest.raises(Died):
        vcr.ray.sweep(scenario, GRID, on_row=die, results=tmp_path, task_s=0.05)
    kept = tmp_path / "results.shard"
    first, *lines = kept.read_bytes().splitlines(keepends=True)
    assert 0 < len(lines) < 60
    # The last line may be half a line.
    kept.write_bytes(b"".join([first, *lines, lines[0][:20]]))
    points = []
    table = vcr.ray.sweep(scenario, GRID, on_row=lambda point, _: points.append(point), results=tmp_path)
    assert written(table, tmp_path / "a.csv") == expected
    assert sorted([*points, *(json.loads(line)["point"] for line in lines)]) == list(range(60))
    # All of it is there: no task is made.
    assert written(vcr.ray.sweep(scenario, GRID, results=tmp_path), tmp_path / "a.csv") == expected
    with pytest.raises(vcr.InputError, match="is of another grid"):
        vcr.ray.sweep(scenario, {"rate": [1, 2]}, results=tmp_path)
    contents = scenario.read_text()
    scenario.write_text(contents.replace("10ms", "11ms"))
    with pytest.raises(vcr.InputError, match="had other contents"):
        vcr.ray.sweep(scenario, GRID, results=tmp_path)
    scenario.write_text(contents)


def test_seeds_searches_and_replays_are_points_too(cluster, scenario, tmp_path):
    trace = scenario.with_name("chat.jsonl")
    for arguments in (
        {"scenario": scenario, "grid": {"rate": [2, 4]}, "repeat": 3},
        {"scenario": scenario, "grid": {"rate": [2, 4]}, "search": "speed=1..4"},
        {"trace": trace, "grid": {"num_workers": [1, 2]}, "trace_block_size": 32},
    ):
        here = written(vcr.sweep(**arguments), tmp_path / "here.csv")
        assert written(vcr.ray.sweep(**arguments), tmp_path / "there.csv") == here


def test_the_command_runs_sweeps_on_a_cluster(cluster, scenario, expected, tmp_path, binary):
    sweeps = ["--sweep", "rate=2..31", "--sweep", "speed=1,2"]
    on = ["--on", f"ray://127.0.0.1:{cluster.client_port}"]
    os.environ["VCR_PYTHON"] = sys.executable
    code, out, err = binary("run", scenario, *sweeps, *on, "--sweep-out", tmp_path / "a.csv")
    assert code == 0, err
    assert (tmp_path / "a.csv").read_bytes() == expected
    assert out == binary("run", scenario, *sweeps)[1]
    words = ["replay", scenario.with_name("chat.jsonl"), "--trace-block-size", 32, "--sweep", "num_workers=1,2"]
    assert binary(*words, *on)[1] == binary(*words)[1]


def test_bad_points_and_other_versions_are_refused(cluster, scenario, tmp_path):
    with pytest.raises(vcr.InputError, match="--sweep, rate=x"):
        vcr.ray.sweep(scenario, {"rate": [1, "x"]})
    # A worker that has another release of the package.
    other = tmp_path / "other"
    shutil.copytree(Path(vcr.__file__).parent, other / "vcr")
    with (other / "vcr/__init__.py").open("a") as file:
        file.write('\n__version__ = "9.9.9"\n')
    for node in cluster.nodes:
        if node.poll() is None:
            cluster.kill(node)
    cluster.add(env={"PYTHONPATH": str(other)})
    cluster.wait(1)
    mismatch = f"the driver has vcr {vcr.__version__}, a worker has vcr 9.9.9"
    with pytest.raises(vcr.InputError, match=mismatch):
        vcr.ray.sweep(scenario, {"rate": [1, 2]})
