"""What a run costs beside its requests: 1,000 runs of 400 requests, against one run of 400,000.

    python3 benches/many_runs.py [--vcr PATH] [--rounds N]

Whole processes take turns: one run, repetitions with other seeds, and a sweep. Prints medians of the CPU seconds
(user and system), the milliseconds that a run adds to 1.1 times the CPU time of its requests, and requests per CPU second.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS, REQUESTS = 1000, 400
SCENARIO = """
let draw = param("draw", 0);
let count = param("count", 400);
let gpu = roofline(#{ model: "llama-3.1-8b", gpu: "h100-sxm" });
run(#{
    cluster: cluster(#{ engines: pool(#{ engines: 1, latency: gpu }) }),
    workloads: [poisson(#{ rate: 10, count: count, prompt_tokens: lognormal(512, 300), output_tokens: 128 })],
});
"""


def cpu_s(command):
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed: expected exit code 0, got wait status {status}")
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vcr", default=str(ROOT / "target/release/vcr"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.rhai"
        path.write_text(SCENARIO)
        run = [options.vcr, "run", str(path)]
        commands = {
            f"one run of {RUNS * REQUESTS} requests": [*run, "-e", f"count={RUNS * REQUESTS}"],
            f"--repeat {RUNS}": [*run, "--repeat", str(RUNS)],
            f"--sweep draw=1..{RUNS}": [*run, "--sweep", f"draw=1..{RUNS}"],
        }
        rounds = [{name: cpu_s(command) for name, command in commands.items()} for _ in range(options.rounds)]
    medians = {name: statistics.median(seconds[name] for seconds in rounds) for name in commands}
    one = next(iter(medians.values()))
    for name, seconds in medians.items():
        added_ms = "" if seconds == one else f"{(seconds - 1.1 * one) / RUNS * 1e3:8.2f} ms a run"
        print(f"{name:32} {seconds:6.2f} s {RUNS * REQUESTS / seconds:10,.0f} requests/s{added_ms}")


if __name__ == "__main__":
    main()
