"""Measures `vcr replay` and Dynamo's offline replay on the same traces; see replay.sh."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# Means that must agree within this share under round robin.
TOLERANCE = 0.01
MEANS = [
    "duration_ms",
    "mean_ttft_ms",
    "mean_ttst_ms",
    "mean_tpot_ms",
    "mean_itl_ms",
    "mean_e2e_latency_ms",
    "output_throughput_tok_s",
    "prefix_cache_reused_ratio",
]


def enlarge(trace, path, times):
    """The trace several times, one after another, each copy with ids of its own."""
    rows = [json.loads(line) for line in trace.read_text().splitlines() if line.strip()]
    span = max(row.get("timestamp", 0) for row in rows) + 1000
    ids = max((max(row["hash_ids"], default=0) for row in rows), default=0) + 1
    with path.open("w") as out:
        for copy in range(times):
            for row in rows:
                row = dict(row)
                row["timestamp"] = row.get("timestamp", 0) + copy * span
                row["hash_ids"] = [id + copy * ids for id in row["hash_ids"]]
                if "session_id" in row:
                    row["session_id"] = f"{row['session_id']}-{copy}"
                out.write(json.dumps(row) + "\n")


def measure(command, out):
    """Runs a command to its end: CPU seconds and peak memory of the process, and its report."""
    environment = {**os.environ, "DYN_LOG": "error"}
    with open(os.devnull, "w") as null:
        child = subprocess.Popen(command, stdout=null, stderr=null, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        return None
    report = json.loads(Path(out).read_text())
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss / 1024,
        "report": report.get("summary", report),
    }


class Case:
    """A cluster, as each program is told of it."""

    def __init__(self, name, router, workers=None, apart=None, ranks=1, sglang=False):
        self.name, self.router, self.workers, self.apart, self.ranks = name, router, workers, apart, ranks
        # Pages of 64 tokens: with one of each token the pool is too small for the trace.
        self.engine = {"block_size": 64} if sglang else {}

    def flags(self):
        flags = ["--router-mode", self.router]
        if self.apart is None:
            engine = {**self.engine, "engine_type": "sglang"} if self.engine else {}
            engine |= {"dp_size": self.ranks} if self.ranks > 1 else {}
            flags += ["--num-workers", str(self.workers)]
            return flags + (["--extra-engine-args", json.dumps(engine)] if engine else [])
        flags += ["--prefill-engine-args", '{"worker_type": "prefill"}']
        flags += ["--decode-engine-args", '{"worker_type": "decode"}']
        prefill, decode = self.apart
        return flags + ["--num-prefill-workers", str(prefill), "--num-decode-workers", str(decode)]

    def call(self):
        options = {"router_mode": self.router}
        if self.apart is None:
            engine = {**self.engine, "backend": "sglang"} if self.engine else {}
            ranks = {"dp_size": self.ranks} if self.ranks > 1 else {}
            extra = {"extra_engine_args": {"engine": engine, **ranks}} if engine or ranks else {}
            return {**options, "num_workers": self.workers, **extra}
        engine = lambda role: {"engine": {"worker_type": role}}
        options |= {"prefill_engine_args": engine("prefill"), "decode_engine_args": engine("decode")}
        return {**options, "num_prefill_workers": self.apart[0], "num_decode_workers": self.apart[1]}


def programs(root, case, trace, out):
    """Commands by name; the report goes to `out`."""
    peers, here = root / "target/peers", Path(__file__).resolve().parent
    ours = [root / "target/release/vcr", "replay", trace, "--quiet", "--force", "--report-json", out, *case.flags()]
    commands = {
        "vcr 1.4": [*ours, "--preset", "dynamo-1.4", "--report-format", "1.4"],
        "vcr 1.6": [*ours, "--preset", "dynamo-1.6"],
        "dynamo 1.6.1": [
            peers / "dynamo-1.6.1/bin/python", "-W", "ignore", here / "replay_1_6.py", trace, out,
            json.dumps(case.call()),
        ],
    }
    # With a single worker, 1.4.2 refuses its KV router.
    if case.router == "round_robin" or case.workers != 1:
        commands["dynamo 1.4.2"] = [
            peers / "dynamo-1.4.2/bin/python", "-W", "ignore", "-m", "dynamo.replay", trace, "--replay-mode", "offline",
            "--report-json", out, *case.flags(),
        ]
    return {name: [str(word) for word in command] for name, command in commands.items()}


def differences(ours, theirs):
    """Relative difference of each mean."""
    pairs = {key: (ours[key], theirs[key]) for key in MEANS}
    return {key: abs(a - b) / abs(b) if b else abs(a) for key, (a, b) in pairs.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", default="1,4,16")
    parser.add_argument("--sizes", default="1,3", help="how many times as large as the trace")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    cases = []
    for router in ["round_robin", "kv_router"]:
        cases += [Case(f"{n} {router}", router, workers=int(n)) for n in args.workers.split(",")]
        cases.append(Case(f"2+2 {router}", router, apart=(2, 2)))
    cases.append(Case("4x4 round_robin", "round_robin", workers=4, ranks=4))
    cases += [Case(f"{n} sglang", "round_robin", workers=n, sglang=True) for n in (1, 4)]
    rows, disagreed = [], False
    print(f"{'trace':>5} {'case':<18} {'program':<13} {'cpu s':>8} {'MB':>7} {'faster':>7} {'leaner':>7}  largest difference of a mean")
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "report.json")
        for size in map(int, args.sizes.split(",")):
            trace = Path(folder) / f"trace-{size}.jsonl"
            enlarge(args.trace, trace, size)
            for case in cases:
                found = {}
                # Programs take turns, so that what else the machine does hits all of them.
                for _ in range(args.runs):
                    for name, command in programs(args.root, case, trace, out).items():
                        Path(out).unlink(missing_ok=True)
                        if (run := measure(command, out)) is not None:
                            found.setdefault(name, []).append(run)
                of = lambda name, key: statistics.median(run[key] for run in found[name])
                for name in sorted(found):
                    row = {"size": size, "case": case.name, "program": name, "runs": len(found[name])}
                    row |= {"cpu_s": of(name, "cpu_s"), "peak_mb": of(name, "peak_mb")}
                    note = ""
                    own = {"dynamo 1.4.2": "vcr 1.4", "dynamo 1.6.1": "vcr 1.6"}.get(name)
                    if own in found:
                        row["faster"] = row["cpu_s"] / of(own, "cpu_s")
                        row["leaner"] = row["peak_mb"] / of(own, "peak_mb")
                        mean = lambda name: {key: statistics.mean(run["report"][key] for run in found[name]) for key in MEANS}
                        row["differences"] = differences(mean(own), mean(name))
                        key, worst = max(row["differences"].items(), key=lambda item: item[1])
                        agrees = worst <= TOLERANCE or case.router != "round_robin"
                        disagreed |= not agrees
                        note = f"{key} {worst:.2%}" + ("" if agrees else "  MORE THAN 1 %")
                    rows.append(row)
                    times = "".join(f"{row[key]:>6.1f}x " if key in row else " " * 8 for key in ["faster", "leaner"])
                    print(f"{size:>4}x {case.name:<18} {name:<13} {row['cpu_s']:>8.2f} {row['peak_mb']:>7.0f} {times} {note}", flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if disagreed else 0


if __name__ == "__main__":
    sys.exit(main())
