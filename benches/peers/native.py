"""Measures `vcr replay` and the native replay of Dynamo 1.6.1 on the same traces; see native.sh."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from replay import MEANS, TOLERANCE, differences, enlarge


class Row:
    """A cluster and a trace, as each program reads them."""

    def __init__(self, name, workers=1, apart=None, router="round_robin", ranks=1, engine=None, size=1, trace="given",
                 exact=False):
        self.name, self.workers, self.apart, self.router, self.ranks = name, workers, apart, router, ranks
        # The peer's router always hears of KV when the pass is over.
        self.engine, self.size, self.trace, self.exact = engine or {}, size, trace, exact

    def vcr(self, binary, trace, out):
        command = [binary, "replay", trace, "--quiet", "--force", "--report-json", out, "--router-mode", self.router]
        command += ["--exact-kv-events"] if self.exact else []
        if self.apart is not None:
            for role, workers in zip(("prefill", "decode"), self.apart):
                engine = {"engine": {**self.engine, "worker_type": role}, "dp_size": self.ranks}
                command += [f"--{role}-engine-args", json.dumps(engine), f"--num-{role}-workers", str(workers)]
            return command
        command += ["--num-workers", str(self.workers)]
        if self.engine or self.ranks > 1:
            command += ["--extra-engine-args", json.dumps({"engine": self.engine, "dp_size": self.ranks})]
        return command

    def peer(self, binary, trace, out):
        options = {"engine": self.engine, "ranks": self.ranks, "workers": self.workers, "router": self.router}
        if self.apart is not None:
            options["prefill"], options["decode"] = self.apart
        return [binary, trace, out, json.dumps(options)]


def all_rows():
    return [
        *(Row(f"workers-{workers}", workers=workers) for workers in (1, 4, 16)),
        Row("2+2", apart=(2, 2)),
        *(Row(f"kv-{workers}", workers=workers, router="kv_router") for workers in (1, 4, 16)),
        Row("kv-2+2", apart=(2, 2), router="kv_router"),
        *(Row(f"exact-{workers}", workers=workers, router="kv_router", exact=True) for workers in (1, 4, 16)),
        Row("exact-2+2", apart=(2, 2), router="kv_router", exact=True),
        Row("six-times", workers=8, engine={"block_size": 512}, size=6),
        Row("ranks-4x4", workers=4, ranks=4),
        Row("mtp", workers=4, engine={"aic_nextn": 3}),
        *(Row(f"sglang-{n}", workers=n, engine={"backend": "sglang", "block_size": 64}) for n in (1, 4)),
        Row("pools-2500", workers=4, engine={"num_gpu_blocks": 2500}),
        Row("three-requests", trace="three"),
    ]


def measure(launcher, command, out):
    """The cost of a run, and its report; none if it failed."""
    Path(out).unlink(missing_ok=True)
    printed = subprocess.run([launcher, *map(str, command)], stdout=subprocess.PIPE, check=True).stdout
    took = json.loads(printed)
    if took["code"] != 0:
        return None
    report = json.loads(Path(out).read_text())
    return {"cpu_s": took["cpu_s"], "peak_mb": took["peak_kb"] / 1024, "report": report.get("summary", report)}


def spread(runs, key, digits):
    values = [run[key] for run in runs]
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rows", default=None, help="their names, separated by commas")
    parser.add_argument("--vcr", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    binaries = args.root / "target/peers/native/release"
    peer, launcher = binaries / "dynamo-replay", binaries / "measure"
    vcr = args.vcr or args.root / "target/release/vcr"
    rows = all_rows()
    if args.rows is not None:
        wanted = args.rows.split(",")
        if unknown := set(wanted) - {row.name for row in rows}:
            parser.error(f"invalid rows {', '.join(sorted(unknown))}: expected {', '.join(row.name for row in rows)}")
        rows = [row for row in rows if row.name in wanted]
    results, disagreed = [], False
    print(f"{'row':<15} {'program':<9} {'CPU s':>24} {'MB':>20} {'CPU':>6} {'memory':>7}  largest difference of a mean")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        out = str(folder / "report.json")
        traces = {}
        for row in rows:
            if (key := (row.trace, row.size)) not in traces:
                path = folder / f"{row.trace}-{row.size}.jsonl"
                if row.trace == "three":
                    lines = [line for line in args.trace.read_text().splitlines() if line.strip()]
                    path.write_text("\n".join(lines[:3]) + "\n")
                else:
                    enlarge(args.trace, path, row.size)
                traces[key] = path
            trace = traces[key]
            commands = {"vcr": row.vcr(vcr, trace, out), "peer": row.peer(peer, trace, out)}
            found = {}
            # One run that does not count, and then all in turns, so that what else the
            # machine does hits all of them.
            for run in range(args.runs + 1):
                for name, command in commands.items():
                    if (took := measure(launcher, command, out)) is not None and run > 0:
                        found.setdefault(name, []).append(took)
            ours = found.get("vcr")
            for name, runs in found.items():
                result = {"row": row.name, "program": name, "runs": len(runs)}
                result |= {key: [run[key] for run in runs] for key in ["cpu_s", "peak_mb"]}
                times, note = " " * 14, ""
                if name != "vcr" and ours:
                    ratio = lambda key: statistics.median(result[key]) / statistics.median(run[key] for run in ours)
                    result |= {"faster": ratio("cpu_s"), "leaner": ratio("peak_mb")}
                    times = f"{result['faster']:>5.1f}x {result['leaner']:>6.1f}x"
                    mean = lambda runs: {key: statistics.mean(run["report"][key] or 0 for run in runs) for key in MEANS}
                    result["differences"] = differences(mean(ours), mean(runs))
                    key, worst = max(result["differences"].items(), key=lambda item: item[1])
                    # Accepted drafts are drawn, and so are the peer's ties of the KV router.
                    agrees = worst <= TOLERANCE or "aic_nextn" in row.engine or row.router == "kv_router"
                    disagreed |= not agrees
                    note = f"{key} {worst:.2%}" + ("" if agrees else "  MORE THAN 1 %")
                results.append(result)
                print(f"{row.name:<15} {name:<9} {spread(runs, 'cpu_s', 3):>24} {spread(runs, 'peak_mb', 1):>20} {times}  {note}",
                      flush=True)
            for name in commands.keys() - found.keys():
                print(f"{row.name:<15} {name:<9} failed", flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if disagreed else 0


if __name__ == "__main__":
    sys.exit(main())
