"""What each feature of the engine costs: CPU time per step and memory, relative to the plain engine.

    python3 benches/features.py [--vcr PATH] [--rounds N] [--rows NAME,...] [--markdown]

Each row is a scenario of one engine under a closed load, run by `vcr run` as a whole process. Rows take turns with the
plain engine in every round, so that whatever else the machine does affects both. A run of no requests is subtracted, so
that the start of the process does not count. Prints medians, with the range of the ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LOAD = "concurrency: 64, count: COUNT, prompt_tokens: 600, output_tokens: 200"
ENGINE = "num_gpu_blocks: 16_000, max_num_batched_tokens: 2048"
SCENARIO = """
let p = pool(#{{ engine: engine(#{{ {engine} }}), latency: {latency} }});
run(#{{ cluster: cluster(#{{ {cluster} }}), {run}workloads: [closed_loop(#{{ {load} }})] }});
"""
FIXED = 'fixed(#{ prefill: "40ms", decode: "8ms" })'


class Row:
    """A feature: options of the engine, of the load and of the run, and arguments of the command.

    `against` is the row that it is compared with; `load` and `engine` say what both have."""

    def __init__(self, name, engine="", load="", latency=FIXED, run="", arguments=(), against="plain",
                 cluster="engines: p"):
        self.name, self.engine, self.load, self.latency, self.run = name, engine, load, latency, run
        self.arguments, self.against, self.cluster = list(arguments), against, cluster

    def scenario(self, count):
        joined = lambda *parts: ", ".join(part for part in parts if part)
        load = joined(LOAD.replace("COUNT", str(count)), self.load)
        return SCENARIO.format(engine=joined(ENGINE, self.engine), load=load, latency=self.latency, run=self.run,
                               cluster=self.cluster)


def all_rows():
    tiers = 'kv_tiers: kv_tiers(#{ host_blocks: 50_000, kv_bytes_per_token: "128KiB"'
    guest = lambda name: f'guest(#{{ path: "{ROOT}/guests/dist/{name}.wasm" }})'
    drafts = "num_speculative_tokens: 3, acceptance_rates: [0.8, 0.6, 0.4]"
    return [
        Row("plain"),
        Row("two KV groups", 'kv_cache_groups: ["full", "sliding_window:128"]'),
        Row("three KV groups", 'kv_cache_groups: ["full", "sliding_window:128", "sliding_window:256"]'),
        Row("Mamba states", 'kv_cache_groups: ["mamba", "full"], block_size: 64'),
        Row("n-gram drafts", f'drafter: "ngram", {drafts}'),
        Row("EAGLE drafts", f'drafter: "eagle3", {drafts}'),
        Row("MTP drafts", f'drafter: "mtp", {drafts}'),
        Row("adapters", "max_loras: 8", "adapters: #{ count: 16 }"),
        Row("encoder inputs", load="images: #{ tokens: 256, distinct: 1_000 }"),
        Row("structured outputs", load='structured_outputs: #{ share: 1.0, compile: "10ms" }'),
        Row("host tier", f"{tiers} }})"),
        Row("host tier by Dynamo's rules", f'{tiers}, rules: "dynamo-1.6" }})'),
        Row("disaggregated prefill (NIXL)", cluster="prefill: p, decode: p"),
        Row("async scheduling", "async_scheduling: true"),
        Row("pipeline stages", "pipeline_parallel_size: 2, async_scheduling: true", against="async scheduling"),
        Row("context parallelism", "decode_context_parallel_size: 2"),
        Row("priorities", 'policy: "priority"', "priority: 1"),
        Row("native policy", 'policy: "shortest-prompt-first"'),
        Row("guest policy", f'policy: {guest("shortest-prompt-first")}'),
        Row("overheads", 'overheads: #{ arrival: "8ms", prefill_launch: "5ms", launch_spread: 0.3, output: "0.5ms" }'),
        Row("noise", latency='knobs(#{ ttft: "40ms", itl: normal("8ms", "1ms") })'),
        Row("latency guest", latency=f'guest(#{{ path: "{ROOT}/guests/dist/roofline.wasm", config: #{{ model: "llama-3.1-8b", gpu: "h100-sxm" }} }})',
            against="native roofline"),
        Row("native roofline", latency='roofline(#{ model: "llama-3.1-8b", gpu: "h100-sxm" })'),
        Row("requests file", arguments=["--out", "OUT", "--files", "requests"]),
        Row("report page", arguments=["--out", "OUT", "--files", "html"]),
        Row("step log", arguments=["--out", "OUT", "--files", "steps"]),
    ]


def run(vcr, folder, row, count):
    """CPU seconds and MB of a run, and its number of steps."""
    path = folder / "row.rhai"
    path.write_text(row.scenario(count))
    out = folder / "out"
    arguments = [str(out) if word == "OUT" else word for word in row.arguments]
    printed = folder / "printed.json"
    with printed.open("wb") as stdout:
        process = subprocess.Popen([vcr, "run", path, "--json", "--quiet", "--force", *arguments], stdout=stdout)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{row.name}: exit code {process.returncode}\n{path.read_text()}")
    report = json.loads(printed.read_text())["runs"][0]
    steps = sum(engine["steps"] for engine in report["engines"])
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vcr", type=Path, default=ROOT / "target/release/vcr")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000, help="requests of a run")
    parser.add_argument("--rows", default=None, help="their names, separated by commas")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    rows = {row.name: row for row in all_rows()}
    wanted = list(rows) if args.rows is None else args.rows.split(",")
    if unknown := set(wanted) - set(rows):
        parser.error(f"invalid rows {', '.join(sorted(unknown))}: expected {', '.join(rows)}")
    header = ("feature", "steps", "us a step", "MB", "CPU", "range", "memory")
    if args.markdown:
        print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    else:
        print("{:<30} {:>9} {:>10} {:>7} {:>7} {:>12} {:>7}".format(*header))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name in wanted:
            row, base = rows[name], rows[rows[name].against]
            found = {row.name: [], base.name: []}
            for _ in range(args.rounds):
                for each in {base.name: base, row.name: row}.values():
                    idle_s, _, _ = run(args.vcr, folder, each, 1)
                    cpu_s, peak_mb, steps = run(args.vcr, folder, each, args.count)
                    found[each.name].append(((cpu_s - idle_s) / steps * 1e6, peak_mb, steps))
            ratios = [own[0] / plain[0] for own, plain in zip(found[row.name], found[base.name], strict=True)]
            step_us, peak_mb, steps = (statistics.median(column) for column in zip(*found[row.name], strict=True))
            memory = peak_mb / statistics.median(plain[1] for plain in found[base.name])
            cells = (name, f"{steps:.0f}", f"{step_us:.2f}", f"{peak_mb:.0f}", f"{statistics.median(ratios):.2f}",
                     f"{min(ratios):.2f} to {max(ratios):.2f}", f"{memory:.2f}")
            line = "| " + " | ".join(cells) + " |" if args.markdown else "{:<30} {:>9} {:>10} {:>7} {:>7} {:>12} {:>7}".format(*cells)
            print(line, flush=True)


if __name__ == "__main__":
    main()
