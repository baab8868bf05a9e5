"""Compares `vcr replay` and the native replay of Dynamo 1.6.1 on random traces; see random.sh."""

import argparse
import json
import os
import random
import select
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from replay import MEANS

# Sums are taken in other orders.
EQUAL = 1e-6
BLOCK = 64
# Some replays of the peer never end.
LONGEST_S = 30
MORE = ["completed_requests", "total_output_tokens"]


def rows(draw, count, over_ms, longest):
    """Requests with shared prefixes, as rows of Mooncake's format."""
    groups = [draw.randrange(1, max(2, longest // BLOCK // 2)) for _ in range(draw.randrange(1, 5))]
    fresh = 10_000
    times = sorted(draw.randrange(over_ms + 1) for _ in range(count))
    for at_ms in times:
        group = draw.randrange(len(groups))
        shared = draw.randrange(groups[group] + 1) if draw.random() < 0.7 else 0
        tokens = max(1, min(longest, shared * BLOCK + draw.randrange(1, longest)))
        blocks = -(-tokens // BLOCK)
        ids = [group * 1_000 + block for block in range(min(shared, blocks))]
        while len(ids) < blocks:
            ids.append(fresh)
            fresh += 1
        output = draw.choice([1, 2, draw.randrange(1, 40), draw.randrange(1, 200)])
        yield {"timestamp": at_ms, "input_length": tokens, "output_length": output, "hash_ids": ids}


class Case:
    """A random trace with a random deployment."""

    def __init__(self, area, seed):
        self.area, self.seed = area, seed
        draw = random.Random(f"{area} {seed}")
        self.engine, self.ranks, self.workers, self.apart = {}, 1, draw.randrange(1, 4), None
        self.eviction = "lru"
        longest = draw.choice([300, 1_500, 6_000])
        blocks = draw.choice([64, 128, 512, 4_096])
        engine = self.engine
        if area == "trtllm":
            engine["backend"] = "trtllm"
        if area.startswith("sglang"):
            engine["backend"] = "sglang"
        engine["block_size"] = draw.choice([16, 32, 64])
        # The longest request fits.
        needed = (longest + 200) // engine["block_size"] + 2
        engine["num_gpu_blocks"] = max(needed, blocks)
        engine["max_num_seqs"] = draw.choice([2, 8, 256])
        if engine.get("backend") == "sglang":
            engine["sglang"] = {
                "schedule_policy": draw.choice(["fifo", "lpm"]),
                "chunked_prefill_size": draw.choice([256, 1_024, 8_192]),
            }
        else:
            engine["max_num_batched_tokens"] = draw.choice([512, 2_048, 8_192])
            engine["enable_chunked_prefill"] = True
            engine["enable_prefix_caching"] = draw.random() < 0.85
        if area == "vllm":
            engine["preemption_mode"] = draw.choice(["lifo", "fifo"])
        if area == "ranks":
            self.ranks = draw.randrange(2, 5)
            engine["prefill_schedule_interval"] = draw.choice([1, 1, 2, 4])
        if area == "sglang-ranks":
            self.ranks = draw.randrange(2, 4)
            engine["prefill_decode_interval"] = draw.choice([0, 0, 2, 5])
        if area in ("apart", "sglang-apart", "trtllm-apart"):
            if area == "trtllm-apart":
                engine["backend"] = "trtllm"
            self.apart = (draw.randrange(1, 3), draw.randrange(1, 3))
            if draw.random() < 0.7:
                engine["kv_transfer_bytes_per_token"] = draw.choice([10_000, 131_072])
                engine["kv_transfer_bandwidth"] = draw.choice([1.0, 64.0])
        if area in ("host", "host-shared"):
            engine["enable_prefix_caching"] = True
            engine["kv_cache_bytes_per_token"] = draw.choice([10_000, 131_072])
            offload = {"num_host_blocks": draw.choice([100, 1_000, 10_000])}
            offload["d2h_bandwidth_gbps"] = draw.choice([1.0, 32.0])
            offload["h2d_bandwidth_gbps"] = draw.choice([1.0, 32.0])
            if area == "host-shared":
                offload["scope"] = "cluster_shared"
                offload["shared_d2h_bandwidth_gbps"] = draw.choice([1.0, 80.0])
                offload["shared_h2d_bandwidth_gbps"] = draw.choice([1.0, 80.0])
                offload["kv_layout_id"] = "one"
                offload["latency_to_first_byte_ms"] = draw.choice([0.0, 0.5])
            engine["native_host_offload"] = offload
        if area == "belady":
            engine["enable_prefix_caching"] = True
            self.eviction = "belady"
        if area == "states":
            engine["enable_prefix_caching"] = True
            engine["kv_cache_bytes_per_token"] = 1_000
            engine["state_cache"] = {"bytes_per_request": draw.choice([1, 2, 5]) * engine["block_size"] * 1_000}
        count = draw.choice([4, 12, 30, 80])
        self.rows = list(rows(draw, count, draw.choice([0, 500, 5_000, 30_000]), longest))

    def vcr(self, binary, trace, out):
        command = [binary, "replay", trace, "--quiet", "--force", "--report-json", out]
        command += ["--trace-block-size", str(BLOCK)]
        if self.apart is None:
            policy = {"kv_eviction_policy": self.eviction} if self.eviction != "lru" else {}
            arguments = {"engine": {**self.engine, **policy}, "dp_size": self.ranks}
            return command + ["--num-workers", str(self.workers), "--extra-engine-args", json.dumps(arguments)]
        for role, workers in zip(("prefill", "decode"), self.apart):
            arguments = {"engine": {**self.engine, "worker_type": role}}
            command += [f"--{role}-engine-args", json.dumps(arguments), f"--num-{role}-workers", str(workers)]
        return command

    def peer(self, binary, trace, out):
        options = {"engine": self.engine, "ranks": self.ranks, "workers": self.workers, "trace_block_size": BLOCK}
        if self.apart is not None:
            options["prefill"], options["decode"] = self.apart
        if self.eviction != "lru":
            options["kv_eviction_policy"] = self.eviction
        return [binary, trace, out, json.dumps(options)]

    def call(self):
        """The same for the Python call of 1.6.1."""
        if self.apart is None:
            extra = {"engine": self.engine, "dp_size": self.ranks}
            return {"num_workers": self.workers, "extra_engine_args": extra, "trace_block_size": BLOCK}
        options = {"trace_block_size": BLOCK}
        for role, workers in zip(("prefill", "decode"), self.apart):
            options[f"{role}_engine_args"] = {"engine": {**self.engine, "worker_type": role}}
            options[f"num_{role}_workers"] = workers
        return options

    def describe(self):
        cluster = self.apart or self.workers
        return f"{self.area} {self.seed}: {len(self.rows)} requests, {cluster} x {self.ranks}, {json.dumps(self.engine)}"


# Most of them where most users are.
AREAS = ["vllm"] * 3 + ["ranks", "sglang", "sglang", "sglang-ranks", "trtllm", "apart", "apart", "sglang-apart",
                         "trtllm-apart", "host", "host-shared", "states", "belady"]


def summary(command, out):
    """The summary of a run, or the last line of its output."""
    Path(out).unlink(missing_ok=True)
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return None, f"no end after {LONGEST_S} s"
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return None, lines[-1] if lines else f"exit code {done.returncode}"
    report = json.loads(Path(out).read_text())
    return report.get("summary", report), ""


class Called:
    """The peer as the Python package calls it: the same crate, in a process that stays."""

    def __init__(self, python):
        self.command = [python, "-W", "ignore", Path(__file__).resolve().parent / "replay_1_6.py", "--serve"]
        self.start()

    def start(self):
        environment = {**os.environ, "DYN_LOG": "off"}
        quiet = {"stderr": subprocess.DEVNULL, "env": environment, "text": True}
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **quiet)

    def summary(self, trace, options):
        self.process.stdin.write(json.dumps({"trace": str(trace), "options": options}) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], LONGEST_S)[0]:
            self.process.kill()
            self.process.wait()
            self.start()
            return None, f"no end after {LONGEST_S} s"
        answer = json.loads(self.process.stdout.readline())
        return answer.get("summary"), answer.get("error", "")


def difference(ours, theirs):
    """The key that differs most, and by how much."""
    worst = ("", 0.0)
    for key in MEANS + MORE:
        one, other = ours.get(key) or 0, theirs.get(key) or 0
        share = abs(one - other) / max(abs(one), abs(other)) if one != other else 0.0
        worst = max(worst, (key, share), key=lambda item: item[1])
    return worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--areas", default=None, help="their names, separated by commas")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the traces that differ")
    parser.add_argument("--vcr", type=Path, default=None)
    parser.add_argument("--peer", type=Path, default=None)
    parser.add_argument("--python", type=Path, default=None, help="Python with ai-dynamo 1.6.1, in the place of --peer")
    args = parser.parse_args()
    vcr = args.vcr or args.root / "target/release/vcr"
    peer = args.peer or args.root / "target/peers/native/release/dynamo-replay"
    called = Called(args.python) if args.python is not None else None
    areas = args.areas.split(",") if args.areas else AREAS
    if unknown := set(areas) - set(AREAS):
        parser.error(f"invalid areas {', '.join(sorted(unknown))}: expected {', '.join(dict.fromkeys(AREAS))}")
    counts = Counter()
    with tempfile.TemporaryDirectory() as folder:
        trace, out = Path(folder) / "trace.jsonl", Path(folder) / "report.json"
        for number in range(args.cases):
            case = Case(areas[number % len(areas)], args.seed * 1_000_000 + number)
            trace.write_text("".join(json.dumps(row) + "\n" for row in case.rows))
            ours, our_error = summary(case.vcr(vcr, trace, out), out)
            if called is not None:
                theirs, their_error = called.summary(trace, case.call())
            else:
                theirs, their_error = summary(case.peer(peer, trace, out), out)
            if ours is None or theirs is None:
                what = "both fail" if ours is None and theirs is None else "vcr fails" if ours is None else "peer fails"
                note = our_error or their_error
            else:
                key, share = difference(ours, theirs)
                what = "equal" if share <= EQUAL else "differ"
                note = f"{key} {share:.3%}"
            counts[case.area, what] += 1
            if what != "equal":
                print(f"{what}: {note}: {case.describe()}", flush=True)
                if args.keep is not None:
                    args.keep.mkdir(parents=True, exist_ok=True)
                    (args.keep / f"{case.area}-{case.seed}.jsonl").write_text(trace.read_text())
    for area in dict.fromkeys(areas):
        found = {what: number for (of, what), number in counts.items() if of == area}
        print(f"{area:<14} {sum(found.values()):>4}  {', '.join(f'{what} {number}' for what, number in found.items())}")
    return 0 if all(what == "equal" for _, what in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
