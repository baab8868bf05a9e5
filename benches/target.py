#!/usr/bin/env python3
"""What it costs to measure a server by `vcr run --target http`, and how well it keeps to its schedule.

Starts `vcr serve`, whose answers have times of their own, and drives it by `vcr run`, and by
guidellm and aiperf if they are installed (`tests/frontends/clients.sh`):

    cargo build --release --features full
    python3 benches/target.py
    python3 benches/target.py --parts rate,streams --core 1

* `rate`: 1,000 requests a second of eight tokens; how late they are sent.
* `streams`: 5,000 open streams with gaps of 50 ms, on one core; the gaps that the client sees.
* `clients`: the same closed loop for each client; processor time of the client alone, of the
  requests and of start and report together.

Processor time is the system's own account of the client's process and its children. With one core
for all, `streams` measures the server as well: give the client a core of its own.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "target" / "frontends" / "clients"
MODEL = ROOT / "target" / "frontends" / "model"

SCENARIO = """
let c = cluster(#{ engines: pool(#{ engine: engine(#{}), latency: fixed(#{ step: "1ms" }) }) });
let r = run(#{ cluster: c, workloads: [ %s ] });
expect(r, "completed_ratio", "value == 100%%");
"""
RATE = 'constant(#{ rate: "%d/s", duration: "%ds", prompt_tokens: 32, output_tokens: 8 })'
STREAMS = 'burst(#{ count: %d, over: "%ds", prompt_tokens: 32, output_tokens: %d })'
LOOP = "closed_loop(#{ concurrency: %d, count: %d, prompt_tokens: %d, output_tokens: %d })"


class Server:
    """`vcr serve` with the same times for every request."""

    def __init__(self, args, ttft, itl):
        times = f'per_request(#{{ ttft: "{ttft}", itl: "{itl}" }})'
        model = [str(MODEL)] if MODEL.exists() else []
        words = [args.vcr, "serve", *model, "--port", "0", "--served-model-name", "sim", "--tokens", "random"]
        words += ["--num-gpu-blocks", "200000", "--max-num-seqs", "8192", "--max-model-len", "8192"]
        words += ["--latency", times, "--http-timeout-keep-alive", "600"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found = re.search(r"http://(\S+)", self.process.stdout.readline())
        if not found:
            raise SystemExit("vcr serve does not start")
        self.url = f"http://{found[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def timed(words, core=None):
    """Runs a command; its seconds of processor time and of the clock."""
    pinned = ["taskset", "-c", str(core)] if core is not None else []
    before, began = os.times(), time.monotonic()
    done = subprocess.run([*pinned, *words], capture_output=True, text=True)
    after = os.times()
    if done.returncode != 0:
        raise SystemExit(f"{words[0]} failed:\n{done.stdout}{done.stderr}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.monotonic() - began


def measured(args, server, workload, core=None):
    """Runs a workload by vcr; its report, processor time and duration."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "load.rhai"
        script.write_text(SCENARIO % workload)
        out = Path(folder) / "out"
        words = [args.vcr, "run", str(script), "--target", server.url, "-q", "--out", str(out), "--files", "report"]
        cpu, wall = timed(words, core)
        return json.loads((out / "report.json").read_text())["runs"][0], cpu, wall


def rate(args):
    with Server(args, "20ms", "5ms") as server:
        report, cpu, _ = measured(args, server, RATE % (args.rate, args.seconds), args.core)
    delay, requests = report["target"]["send_delay_ms"], report["metrics"]["counters"]["requests"]
    print(f"rate      {args.rate} requests/s for {args.seconds} s: {requests} requests")
    print(f"          sent late by {delay['p50']:.3f} ms (p50), {delay['p99']:.3f} ms (p99), {delay['max']:.3f} ms (max)")
    print(f"          {cpu / requests * 1e6:.0f} us of processor time for each request")


def streams(args):
    spread_s = 2
    with Server(args, "50ms", "50ms") as server:
        workload = STREAMS % (args.streams, spread_s, args.seconds * 20)
        report, cpu, wall = measured(args, server, workload, args.core)
    metrics = report["metrics"]
    gap, tokens = metrics["trends"]["itl_ms"], metrics["counters"]["output_tokens"]
    print(f"streams   {metrics['counters']['completed']} streams with gaps of 50 ms, {args.seconds} s each")
    print(f"          gaps {gap['p50']:.2f} ms (p50), {gap['p99']:.2f} ms (p99), {gap['max']:.1f} ms (max)")
    print(f"          {cpu / tokens * 1e6:.2f} us of processor time for each token, {cpu / wall * 100:.0f} % of a core")


def clients(args):
    count, at_once, prompt, output = args.requests, 16, 128, 64
    found = []
    with Server(args, "20ms", "5ms") as server:
        workload = LOOP % (at_once, count, prompt, output)
        found.append(("vcr run", *measured(args, server, workload)[1:]))
        for name, words in others(server.url, count, at_once, prompt, output):
            with tempfile.TemporaryDirectory() as folder:
                found.append((name, *timed([word.replace("{out}", folder) for word in words])))
    print(f"clients   {count} requests of {prompt} and {output} tokens, {at_once} at a time")
    ours = found[0][1]
    for name, cpu, wall in found:
        print(f"          {name:10} {cpu:8.2f} s of processor time, {wall:7.2f} s, {cpu / ours:6.1f} times vcr's")


def others(url, count, at_once, prompt, output):
    """The commands of other installed clients, for the same load."""
    data = f"prompt_tokens={prompt},output_tokens={output}"
    guidellm = [CLIENTS / "guidellm" / "bin" / "python", "-m", "guidellm", "benchmark", "run", "--target", url]
    guidellm += ["--rate-type", "concurrent", "--rate", at_once, "--max-requests", count, "--data", data]
    guidellm += ["--processor", MODEL, "--disable-console-outputs", "--disable-progress", "--output-path", "{out}/r.json"]
    aiperf = [CLIENTS / "aiperf" / "bin" / "python", "-m", "aiperf", "profile", "--model", "sim", "--url", url]
    aiperf += ["--endpoint-type", "completions", "--streaming", "--tokenizer", MODEL, "--use-server-token-count"]
    aiperf += ["--request-count", count, "--concurrency", at_once, "--isl", prompt, "--osl", output]
    aiperf += ["--extra-inputs", "ignore_eos:true", "--ui", "none", "--no-gpu-telemetry", "--artifact-dir", "{out}"]
    for name, words in [("guidellm", guidellm), ("aiperf", aiperf)]:
        if words[0].exists() and MODEL.exists():
            yield name, [str(word) for word in words]
        else:
            print(f"          {name} is not there")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vcr", default=str(ROOT / "target" / "release" / "vcr"))
    parser.add_argument("--parts", default="rate,streams,clients")
    parser.add_argument("--core", type=int, help="run vcr's client on this core alone")
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=10)
    args = parser.parse_args()
    for part in args.parts.split(","):
        {"rate": rate, "streams": streams, "clients": clients}[part](args)


if __name__ == "__main__":
    main()
