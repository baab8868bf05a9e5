"""Measures the package: import, run against the binary, a sweep on Ray against one machine.

    target/frontends/clients/ray/bin/python python/benches/measure.py [POINTS]

The cluster is a local one with a node of two cores, in processes of its own. Its CPU time is that of
all of its processes, from before the sweep to after it, with its driver's; idle processes count, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("VCR_BINARY", str(ROOT / "target/release/vcr"))

#: Seconds in which the cluster does nothing, to measure what that costs.
IDLE_S = 10

SCENARIO = """\
let rate = param("rate", 5);
let engine = engine(#{ num_gpu_blocks: 8192 });
let served = cluster(#{ engines: pool(#{ engines: 4, engine: engine, latency: fixed(#{ step: "10ms" }) }) });
let chat = poisson(#{ rate: rate.to_string() + "/s", duration: "60s", prompt_tokens: 200, output_tokens: 100 });
run(#{ cluster: served, workloads: [chat], seed: param("number", 1) });
"""


def best(times: int, work) -> float:
    """The shortest of some times, in milliseconds."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found) * 1e3


def cpu_s(root: int) -> float:
    """CPU time of a process and of all below it."""
    ticks = os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(folder.name))
            # With the children that have ended.
            used[int(folder.name)] = sum(map(int, fields[11:15])) / ticks
    total, waiting = 0.0, [root]
    while waiting:
        process = waiting.pop()
        total += used.get(process, 0.0)
        waiting += children.get(process, [])
    return total


def main() -> None:
    import vcr

    points = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    found: dict[str, float] = {}
    python = [sys.executable, "-c"]
    bare = best(20, lambda: subprocess.run([*python, "pass"], check=True))
    found["import_ms"] = best(20, lambda: subprocess.run([*python, "import vcr"], check=True)) - bare
    with tempfile.TemporaryDirectory() as name:
        scenario = Path(name) / "small.rhai"
        scenario.write_text(SCENARIO)
        found["run_ms"] = best(30, lambda: vcr.run(scenario).to_json())
        command = [BINARY, "run", str(scenario), "--json", "--quiet"]
        found["binary_ms"] = best(30, lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        grid = {"number": range(1, points // 2 + 1), "rate": [4, 8]}
        measure_sweeps(scenario, grid, Path(name), found)
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=2))


def measure_sweeps(scenario: Path, grid: dict, folder: Path, found: dict[str, float]) -> None:
    import ray

    import vcr.ray

    command = [BINARY, "run", str(scenario), "--threads", "2", "--sweep", f"number=1..{len(grid['number'])}",
               "--sweep", "rate=4,8", "--sweep-out", str(folder / "here.csv"), "--quiet"]
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found["here_s"] = time.perf_counter() - began
    after = os.times()
    found["here_cpu_s"] = after[2] + after[3] - before[2] - before[3]
    start = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--port=0", "--num-cpus=2",
             "--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=80000000",
             f"--temp-dir={folder}/ray"]
    log = folder / "log"
    cluster = subprocess.Popen(start, stdout=log.open("w"), stderr=subprocess.STDOUT)
    address = folder / "ray/ray_current_cluster"
    try:
        # Not `auto`, which also finds a cluster that is being stopped, and waits for it for minutes.
        while not address.exists() or not address.read_text().strip():
            time.sleep(0.2)
        while True:
            try:
                ray.init(address.read_text().strip(), log_to_driver=False, logging_level="error")
                break
            except (ConnectionError, ValueError, RuntimeError):
                time.sleep(0.2)
        # The workers' first start, and nothing to execute.
        vcr.ray.sweep(scenario, {"number": [1, 2], "rate": [4, 8]})
        used = cpu_s(os.getpid())
        time.sleep(IDLE_S)
        found["idle_cpu_per_s"] = (cpu_s(os.getpid()) - used) / IDLE_S
        no_op = ray.remote(lambda: None)
        ray.get([no_op.remote() for _ in range(100)])
        used, began = cpu_s(os.getpid()), time.perf_counter()
        ray.get([no_op.remote() for _ in range(1000)])
        found["task_overhead_ms"] = time.perf_counter() - began
        found["task_overhead_cpu_ms"] = cpu_s(os.getpid()) - used
        used, began = cpu_s(os.getpid()), time.perf_counter()
        table = vcr.ray.sweep(scenario, grid)
        found["ray_s"] = time.perf_counter() - began
        found["ray_cpu_s"] = cpu_s(os.getpid()) - used
        table.write(folder / "there.csv")
        assert (folder / "there.csv").read_bytes() == (folder / "here.csv").read_bytes()
    finally:
        ray.shutdown()
        cluster.terminate()
        cluster.wait()


if __name__ == "__main__":
    main()
