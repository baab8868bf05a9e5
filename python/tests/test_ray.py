"""Sweeps on a real cluster of Ray: two nodes in processes of their own, one of which dies."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, SMALL
from test_urls import Server

import vcr
import vcr.ray

ray = pytest.importorskip("ray")

RAY = Path(sys.executable).with_name("ray")


class Cluster:
    """A head that computes nothing, and nodes with one core each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[subprocess.Popen] = []
        self.killed: list[subprocess.Popen] = []
        deadline = time.monotonic() + 120
        self.start_head()
        while not ray.is_initialized():
            assert time.monotonic() < deadline, f"the head does not come up:\n{self.logs()}"
            if self.head.poll() is not None:
                # Somebody else has taken a port of it meanwhile. What is left of it would be found
                # by the next.
                self.kill(self.head)
                self.start_head()
            elif self.serves_clients():
                try:
                    ray.init(self.address, log_to_driver=False, logging_level="error")
                except (ConnectionError, ValueError, RuntimeError):
                    continue
            time.sleep(0.05)

    def start_head(self) -> None:
        port, self.client_port = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        own = [f"--port={port}", f"--ray-client-server-port={self.client_port}", f"--temp-dir={self.folder}/ray"]
        self.head = self.start(["--head", "--include-dashboard=false", "--num-cpus=0", *own])

    def serves_clients(self) -> bool:
        """Whether the last of the head's processes is there; the head ends if it cannot start."""
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.client_port)) == 0

    def logs(self) -> str:
        """The nodes' output."""
        return "\n".join(f"{log.name}:\n{log.read_text()}" for log in sorted(self.folder.glob("node-*.log")))

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
        """Waits until Ray has `cpus` cores. A node starts a dozen processes, which takes long on a busy machine."""
        deadline = time.monotonic() + 150
        while ray.cluster_resources().get("CPU", 0) != cpus:
            assert time.monotonic() < deadline, f"{ray.cluster_resources()}\n{self.logs()}"
            time.sleep(0.05)

    def kill(self, node: subprocess.Popen) -> None:
        # Its number may be another's afterwards.
        if node in self.killed:
            return
        self.killed.append(node)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def end(self) -> None:
        ray.shutdown()
        for node in [*self.nodes, self.head]:
            self.kill(node)


def _free_ports(count: int) -> list[int]:
    """Free ports that neither the kernel (from 32768) nor Ray (up to 19999) gives to others by itself."""
    free: list[int] = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1_000):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            free.append(port)
        if len(free) == count:
            return free
    raise RuntimeError("no port is free")


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


def test_scenarios_in_no_file_and_those_of_the_package_are_swept(cluster, scenario, tmp_path, monkeypatch):
    monkeypatch.chdir(scenario.parent)
    s = vcr.Scenario("built")
    pool = s.pool(engines=s.param("engines", 1), engine=s.engine(num_gpu_blocks=8192), latency=s.fixed(step="10ms"))
    # Beside it, as for a file.
    s.run(cluster=s.cluster(engines=pool), workloads=[s.trace(path="chat.jsonl", block_size=32)])
    for arguments in ((s, {"engines": [1, 2, 3]}), ("thermal", {"load": ["2s", "4s"]})):
        here = written(vcr.sweep(*arguments), tmp_path / "here.csv")
        assert written(vcr.ray.sweep(*arguments), tmp_path / "there.csv") == here


def test_the_command_runs_sweeps_on_a_cluster(cluster, scenario, expected, tmp_path, binary):
    sweeps = ["--sweep", "rate=2..31", "--sweep", "speed=1,2"]
    on = ["--on", f"ray://127.0.0.1:{cluster.client_port}"]
    os.environ["VCR_PYTHON"] = sys.executable
    code, out, err = binary("run", scenario, *sweeps, *on, "--sweep-out", tmp_path / "a.csv")
    assert code == 0, err
    assert (tmp_path / "a.csv").read_bytes() == expected
    assert out == binary("run", scenario, *sweeps)[1]
    words = ["replay", scenario.with_name("chat.jsonl"), "--trace-block-size", 32, "--sweep", "num_workers=1,2"]
    code, out, err = binary(*words, *on)
    assert code == 0, err
    assert out == binary(*words)[1]


@pytest.fixture
def question(tmp_path) -> list[object]:
    """A plan about a model and a trace in files: tens of simulations."""
    folder = tmp_path / "asked"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL))
    shutil.copy(ROOT / "scenarios/traces/chat.jsonl", folder / "chat.jsonl")
    space = "{tensor_parallel: [1, 2], prefill_decode: ['1:1'], max_num_seqs: [4, 16], max_num_batched_tokens: [512, 2048]}"
    load = ["--trace", folder / "chat.jsonl", "--slo", "ttft.p95 < 400ms", "--slo", "itl.p99 < 60ms", "--scale", "1,2"]
    gpu = ["--gpu", "l4", "--price", "l4=1", "--max-gpus", 8, "--latency", "roofline"]
    return ["plan", "--model", folder / "config.json", *gpu, *load, "--space", space, "--json", "--quiet"]


MODEL = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
    "num_key_value_heads": 2, "num_hidden_layers": 24, "vocab_size": 151936, "max_position_embeddings": 32768,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}


def test_plans_have_the_bytes_of_one_machine(cluster, question, tmp_path, binary):
    on = ["--on", f"ray://127.0.0.1:{cluster.client_port}"]
    here = binary(*question)
    assert here[0] == 0, here[2]
    # Workers have their own copies: the trace is gone before any of them starts.
    trace = question[question.index("--trace") + 1]
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nmv {trace} {trace}.gone\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    os.environ["VCR_PYTHON"] = str(python)
    there = binary(*question, *on)
    os.environ["VCR_PYTHON"] = sys.executable
    trace.with_name("chat.jsonl.gone").rename(trace)
    assert there == here
    # Nothing waits for results of a process that has ended.
    os.environ["VCR_PYTHON"] = "/bin/false"
    code, _, err = binary(*question, *on)
    os.environ["VCR_PYTHON"] = sys.executable
    assert code == 2 and "the plan came to no end" in err and "install the Python package" in err


def test_plans_go_on_where_a_node_or_the_driver_died(cluster, question, tmp_path, binary):
    os.environ["VCR_PYTHON"] = sys.executable
    doomed = cluster.add()
    cluster.wait(2)
    assert binary(*question, "--out", tmp_path / "here")[0] == 0
    words = [os.environ["VCR_BINARY"], *map(str, question), "--out", "there", "--on", cluster.address]
    kept = tmp_path / "there.simulations"

    def kept_lines() -> int:
        return kept.read_bytes().count(b"\n") if kept.exists() else 0

    def until(lines: int, driver: subprocess.Popen) -> None:
        deadline = time.monotonic() + 120
        while kept_lines() < lines:
            assert time.monotonic() < deadline and driver.poll() is None, driver.communicate()
            time.sleep(0.001)

    driver = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(3, driver)
    driver.kill()
    driver.communicate()
    before = kept.read_bytes()
    driver = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(before.count(b"\n") + 3, driver)
    # What was finished is not simulated again.
    assert kept.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    cluster.kill(doomed)
    _, err = driver.communicate()
    assert driver.returncode == 0, err
    assert not kept.exists()
    files = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*") if path.is_file())
    assert files and all((tmp_path / "here" / file).read_bytes() == (tmp_path / "there" / file).read_bytes() for file in files)


def test_an_input_at_a_url_is_fetched_by_the_driver_alone(cluster, scenario, tmp_path, monkeypatch):
    monkeypatch.setenv("VCR_STORE", str(tmp_path / "copies"))
    server = Server()
    server.files["/small.rhai"] = SMALL.encode()
    there = written(vcr.ray.sweep(server.url("/small.rhai"), {"rate": [2, 4, 8]}), tmp_path / "there.csv")
    assert server.sent == ["/small.rhai"]
    assert there == written(vcr.sweep(SMALL, {"rate": [2, 4, 8]}), tmp_path / "here.csv")


def test_the_code_of_the_page_on_scale_runs(cluster, tmp_path, monkeypatch):
    page = (ROOT / "docs/how-to/sweep-on-ray.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    # Fewer seeds, and the cluster of this test.
    for shown, own in {"repeat=20": "repeat=2", "ray://head:10001": cluster.address}.items():
        assert shown in block
        block = block.replace(shown, own)
    exec(compile(block, "docs/how-to/sweep-on-ray.md", "exec"), {})
    here = vcr.sweep("scenarios/failure_drill.rhai", {"rate": range(8, 33)}, repeat=2)
    assert (tmp_path / "grid.csv").read_bytes() == written(here, tmp_path / "here.csv")


def orphaning(folder: Path, *lines: str) -> dict[str, str]:
    """The environment of a node whose workers run these lines before they ask for an object of a task."""
    shutil.copytree(Path(vcr.__file__).parent, folder / "vcr")
    module = folder / "vcr/ray.py"
    text, marker = module.read_text(), "        words, inputs = ray.get("
    assert marker in text
    module.write_text(text.replace(marker, "".join(f"        {line}\n" for line in lines) + marker))
    return {"PYTHONPATH": str(folder)}


def test_a_point_rests_while_ray_does_not_know_that_a_worker_is_lost(cluster, scenario, expected, tmp_path):
    began = tmp_path / "began"
    began.touch()
    # Longer than all tries took when points did not rest.
    fail = f"if time.time() < os.stat({str(began)!r}).st_mtime + 4: raise OSError('Broken pipe')"
    for node in cluster.nodes:
        cluster.kill(node)
    cluster.wait(0)
    cluster.add(env=orphaning(tmp_path / "failing", fail))
    cluster.wait(1)
    began.touch()
    assert written(vcr.ray.sweep(scenario, GRID, task_s=0.05), tmp_path / "a.csv") == expected


def test_a_worker_that_outlives_its_node_is_lost(cluster, scenario, expected, tmp_path):
    """What Ray raises in a task then says nothing of its points."""
    # Asked for an object at the moment when the daemon of its node dies, Ray raises this: seen with
    # 2.60, in one of three tries to hit the moment.
    die = [f"os.kill(os.getppid(), {int(signal.SIGKILL)})", "raise OSError('Broken pipe')"]
    for node in cluster.nodes:
        cluster.kill(node)
    cluster.wait(0)
    cluster.add(env=orphaning(tmp_path / "orphaning", *die))
    cluster.wait(1)
    cluster.add()
    cluster.wait(2)
    assert written(vcr.ray.sweep(scenario, GRID, task_s=0.05), tmp_path / "a.csv") == expected


def test_bad_points_and_other_versions_are_refused(cluster, scenario, tmp_path):
    with pytest.raises(vcr.InputError, match="--sweep, rate=x"):
        vcr.ray.sweep(scenario, {"rate": ["x", "y"]})
    # A worker that has another release of the package.
    other = tmp_path / "other"
    shutil.copytree(Path(vcr.__file__).parent, other / "vcr")
    with (other / "vcr/__init__.py").open("a") as file:
        file.write('\n__version__ = "9.9.9"\n')
    for node in cluster.nodes:
        cluster.kill(node)
    cluster.wait(0)
    cluster.add(env={"PYTHONPATH": str(other)})
    cluster.wait(1)
    mismatch = f"the driver has vcr {vcr.__version__}, a worker has vcr 9.9.9"
    with pytest.raises(vcr.InputError, match=mismatch):
        vcr.ray.sweep(scenario, {"rate": [1, 2]})
