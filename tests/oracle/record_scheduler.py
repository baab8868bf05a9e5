#!/usr/bin/env python3
"""Records what vLLM's V1 scheduler decides on random cases, or re-drives recorded ones.

    record_scheduler.py MODEL_DIR OUT_DIR [--cases N] [--seed S] [--only NAME...] [--groups KIND]
        [--drafter KIND] [--media] [--parallel KIND] [--by-batch] [--connector KIND] [--budget] [--interval]
        [--sessions] [--structured] [--model-runner-v2] [--live-log]
    record_scheduler.py MODEL_DIR --redrive CASE_DIR...
"""

import argparse
import json
import logging
import os
import random
import shutil
import sys
import traceback
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# Of the CPU, of torch, of settings that are drawn to be unusual and of loads that fail.
logging.disable(logging.ERROR)

from random_cases import DRAFTERS, PARALLEL, Hashed, draw  # noqa: E402
from random_groups import GROUP_KINDS  # noqa: E402
from scripted_connector import CONNECTORS, RecordedTransfers, drawn_transfers  # noqa: E402
from vllm_driver import VLLM_VERSION, Drive  # noqa: E402
from vllm_scheduler import without_newer_settings  # noqa: E402

ITERATIONS_MAX = 2500
REDRIVE_ITERATIONS_MAX = 100_000
REQUEST_KEYS = ["id", "at", "prompt", "max_tokens", "prio", "lora", "stop_at", "abort_at", "after", "gap", "media", "hold", "remote", "parts", "grammar", "cache_salt", "skip_reading_prefix_cache"]


class Recorded:
    """Answers as a recording has them: one token, unless it says otherwise."""

    def __init__(self, steps):
        self._sampled = {}
        self._drafts = {}
        self._invalid = {}
        for line in steps:
            if "u" in line:
                self._sampled[line["u"]] = line.get("sampled", {})
                self._drafts[line["u"]] = dict(line.get("drafts", ()))
                self._invalid[line["u"]] = dict(line.get("inv", ()))

    def sampled(self, schedule, request, drafts, outputs):
        return self._sampled.get(schedule, {}).get(str(request), 1)

    def proposed(self, schedule, request, outputs):
        return self._drafts.get(schedule, {}).get(request, 0)

    def fitting(self, schedule, request, drafts, outputs):
        return drafts - self._invalid.get(schedule, {}).get(request, 0)


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def difference(recorded, now):
    """The keys of two lines that differ, as text."""
    keys = [key for key in {**recorded, **now} if recorded.get(key) != now.get(key)]
    return "\n".join(f"  {key}: recorded {recorded.get(key)}\n  {key}: now      {now.get(key)}" for key in keys)


def redrive(case, model):
    """Drives the requests of a recorded case again; true if every line is the same."""
    recorded = json.loads((case / "config.json").read_text(encoding="utf-8"))
    requests = read_lines(case / "requests.jsonl")
    steps = read_lines(case / "steps.jsonl")
    config = {key: value for key, value in recorded["config"].items() if key != "effective"}
    add_order = [identity for line in steps for identity in line.get("add", ())]
    v2 = recorded["config"]["effective"]["use_v2_model_runner"]
    transfers = RecordedTransfers(steps, requests) if "connector" in config else None
    pauses = [(line["i"], line["pause"]) for line in steps if "pause" in line]
    drive = Drive(config, requests, model, Recorded(steps), REDRIVE_ITERATIONS_MAX, add_order, v2, transfers, pauses)
    if drive.effective != recorded["config"]["effective"]:
        print(f"{case.name}: the effective settings differ")
        print(difference(recorded["config"]["effective"], drive.effective))
        return False
    lines = drive.run()
    for number, expected in enumerate(steps, start=1):
        line = next(lines, {})
        if line != expected:
            print(f"{case.name}: line {number} differs (iteration {expected['i']})")
            print(difference(expected, line))
            return False
    if "refused" in recorded:
        print(f"{case.name}: {len(steps)} lines are equal, up to what vLLM does not survive")
        return True
    extra = next(lines, None)
    if extra is not None:
        print(f"{case.name}: {len(steps)} lines are equal, but there is one more: {extra}")
        return False
    if drive.stats() != recorded["stats"] or drive.batch_queue_size != recorded["batch_queue"]:
        print(f"{case.name}: the totals differ")
        print(difference(recorded["stats"], drive.stats()))
        return False
    print(f"{case.name}: {len(steps)} lines are equal")
    return True


def logging_classes(folder):
    """Scheduler classes that also write what they decide as those of a live engine do."""
    import live_log

    os.environ["STEP_LOG_DIR"] = str(folder)
    return {"classes": (live_log.LoggingScheduler, live_log.LoggingAsyncScheduler)}


def record(out, name, seed, number, model, model_runner_v2, kinds, live_log=False):
    """Drives one random case. What vLLM itself does not survive goes to refused.jsonl, and the case is kept up to there.
    `kinds` are the further arguments of `draw`."""
    config, requests, pauses = draw(seed, number, **kinds)
    config = without_newer_settings(config)
    drive, refused = None, None
    live = out / "live" / name
    classes = logging_classes(live) if live_log else {}
    try:
        answers = Hashed(seed, number, config["spec"])
        transfers = None
        if "connector" in config:
            transfers = drawn_transfers(seed, number, config)
            transfers.draw_remotes(config["connector"], requests, random.Random(f"remotes/{seed}/{number}"))
        drive = Drive(config, requests, model, answers, ITERATIONS_MAX, None, model_runner_v2, transfers, pauses, **classes)
        for _ in drive.run():
            pass
    except Exception as error:
        refused = {
            "name": name,
            "vllm": VLLM_VERSION,
            "config": config,
            "lines": len(drive.steps) if drive else None,
            "error": last_frames(error),
        }
        with open(out / "refused.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(refused) + "\n")
        shutil.rmtree(live, ignore_errors=True)
        print(f"{name}: refused: {type(error).__name__}: {error}", flush=True)
        if drive is None or not any("s" in line for line in drive.steps):
            return
    write_case(out / name, name, drive, requests, config, refused and refused["error"][-1])
    print(f"{name}: {len(requests)} requests, {len(drive.steps)} lines", flush=True)


def last_frames(error):
    """Where an error came from, innermost last, without the place of installation."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}: {frame.line}" for frame in frames]
    return [*places, f"{type(error).__name__}: {error}"]


def write_case(folder, name, drive, requests, config, refused=None):
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "name": name,
        "vllm": VLLM_VERSION,
        "config": {**config, "effective": drive.effective},
        "stats": drive.stats(),
        "batch_queue": drive.batch_queue_size,
        **({"refused": refused} if refused else {}),
    }
    (folder / "config.json").write_text(json.dumps(head, indent=1) + "\n", encoding="utf-8")
    requests = [{key: one[key] for key in REQUEST_KEYS if key in one} for one in requests]
    for file, lines in [("requests.jsonl", requests), ("steps.jsonl", drive.steps)]:
        with open(folder / file, "w", encoding="utf-8") as stream:
            for line in lines:
                stream.write(json.dumps(line, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="a folder with the configuration of a small model")
    parser.add_argument("out", nargs="?", type=Path, help="where the cases are written, a folder each")
    parser.add_argument("--cases", type=int, default=40, help="how many cases are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of these, record only the named")
    parser.add_argument("--groups", choices=GROUP_KINDS, help="draw cases with groups of layers of this kind")
    parser.add_argument("--drafter", choices=[*DRAFTERS, "any"], help="draw cases with this drafter, which has KV of its own")
    parser.add_argument("--media", action="store_true", help="draw cases whose prompts have images")
    parser.add_argument("--parallel", choices=PARALLEL, help="draw cases with context or pipeline parallelism")
    parser.add_argument("--by-batch", action="store_true", help="draw cases with drafts by the size of the batch")
    parser.add_argument("--connector", choices=list(CONNECTORS), help="draw cases with this KV connector")
    parser.add_argument("--budget", action="store_true", help="draw cases with a budget below the room of the model's input")
    parser.add_argument("--interval", action="store_true", help="draw cases with steps between those that compute prompts")
    parser.add_argument("--sessions", action="store_true", help="draw cases with resumable requests (streaming inputs)")
    parser.add_argument("--structured", action="store_true", help="draw cases with structured outputs, whose requests wait for their grammar")
    parser.add_argument("--model-runner-v2", action="store_true", help="schedule for vLLM's second model runner")
    parser.add_argument("--live-log", action="store_true", help="also write what live_log.py would, in OUT_DIR/live")
    parser.add_argument("--redrive", nargs="+", type=Path, metavar="CASE_DIR", help="compare with recorded cases")
    arguments = parser.parse_args()
    if arguments.redrive:
        equal = [redrive(case, arguments.model) for case in arguments.redrive]
        return 0 if all(equal) else 1
    if arguments.out is None:
        parser.error("OUT_DIR is missing")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.only:
        (arguments.out / "refused.jsonl").write_text("", encoding="utf-8")
    kinds = {
        "groups": arguments.groups,
        "drafter": arguments.drafter,
        "media": arguments.media,
        "parallel": arguments.parallel,
        "by_batch": arguments.by_batch,
        "connector": arguments.connector,
        "budget": arguments.budget,
        "interval": arguments.interval,
        "sessions": arguments.sessions,
        "structured": arguments.structured,
    }
    named = ["structured" if arguments.structured else None, "sessions" if arguments.sessions else None, "interval" if arguments.interval else None, "budget" if arguments.budget else None]
    named += [arguments.connector, "by-batch" if arguments.by_batch else None, arguments.parallel]
    named += ["media" if arguments.media else None, arguments.drafter, arguments.groups]
    prefix = "-".join(kind for kind in named if kind) or "random"
    for number in range(arguments.cases):
        name = f"{prefix}-{arguments.seed}-{number:03}"
        if not arguments.only or name in arguments.only:
            record(
                arguments.out,
                name,
                arguments.seed,
                number,
                arguments.model,
                arguments.model_runner_v2,
                kinds,
                arguments.live_log,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
