#!/usr/bin/env python3
"""Compare simulated servers with measured ones: NVIDIA's silicon sample.

The package aiconfigurator-core has, in systems/silicon_sample.csv, mean TTFT and TPOT of real
servers at a concurrency. Every aggregated vLLM row whose system and model the operator tables
cover is simulated as what it was, a closed loop, with steps priced by the tables, and both means
are compared. The package's own estimate of the same rows stands beside, where this Python has the
package:

    ~/venv/bin/python benches/silicon.py --vcr target/release/vcr --data ~/venv --limit 12

Left out are rows with data-parallel attention, since it is not known on how many GPUs they ran,
saturated rows (TTFT above 5 s), parallel sizes that contradict each other, and repeats. Steps take
the plain sum of their operators and time outside of steps is zero, unless --scale and --overheads
give both, or --leave-one-out fits them: every model on a system is simulated with the numbers of
Prices, which are fitted to all other systems and to all other models. That needs numpy, which comes
with the package.
"""

import argparse
import json
import random
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from measured.run import Prices, estimated, simulated
from measured.sample import DOUBT, is_dense, is_public, machine, read_sample

# Median and 90th percentile of the absolute error in percent that are wanted.
GOALS = {("all", "tpot"): (7, 20), ("all", "ttft"): (10, 30), ("dense", "tpot"): (5, 12), ("dense", "ttft"): (7, 20)}
TITLES = {"bare": "unfitted", "vcr": "vcr", "own": "in sample", "package": "package"}


def simulate(args, data, group, lines, prices):
    """Metrics of the rows of a group; the end of the comparison if there are none."""
    results = simulated(args, data, group, [(line["row"], line["measured"]) for line in lines], prices)
    if isinstance(results, str):
        sys.exit(f"{' '.join(group)}: {results}")
    return results


def is_too_fast(line, spread):
    """Whether the server would have been much faster than the sum of its operators."""
    tokens = line["row"]["osl"] * (1 - spread / 2) - 1
    request = lambda times: times["ttft"] + tokens * times["tpot"]
    return request(line["bare"]) > DOUBT * request(line["measured"])


def leave_one_out(args, data, everything):
    """Simulate every row again with the prices of all other models and systems."""
    try:
        from measured.fit import POINTS, fitted, held_out, of_group
    except ImportError:
        sys.exit("--leave-one-out: this Python has no numpy: pip install numpy")

    groups = defaultdict(list)
    for line in everything:
        groups[line["group"]].append(line)
    some = []
    rng = random.Random(args.seed)
    for group, lines in groups.items():
        sound = [line for line in lines if not line["row"]["doubtful"]]
        picked = rng.sample(sound, args.fit_rows) if len(sound) > args.fit_rows else sound
        some += picked
        for line in picked:
            line["points"] = {}
        for prices in POINTS:
            for line, result in zip(picked, simulate(args, data, group, picked, prices)):
                line["points"][prices] = result
    for target in sorted({machine(group) for group in groups}):
        prices, weight = held_out(some, args.spread, target)
        print(f"{' '.join(target)}: siblings count {weight} times", file=sys.stderr)
        same = [line for line in some if machine(line["group"]) == target]
        own = fitted(same, args.spread, target, weight) if same and args.in_sample else None
        for group, lines in groups.items():
            if machine(group) != target:
                continue
            for line, result in zip(lines, simulate(args, data, group, lines, of_group(prices, group))):
                line["vcr"], line["fitted"] = result, of_group(prices, group)
            for line, result in zip(lines, simulate(args, data, group, lines, of_group(own, group)) if own else []):
                line["own"] = result
    for line in everything:
        line.pop("points", None)


def errors(lines, who, metric):
    """Median and 90th percentile of absolute errors, and the median of signed ones, in percent."""
    signed = [100.0 * (line[who][metric] / line["measured"][metric] - 1.0) for line in lines if line.get(who)]
    if not signed:
        return None
    sizes = sorted(abs(value) for value in signed)
    p90 = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return statistics.median(sizes), p90, statistics.median(signed)


def cell(lines, who, metric):
    """The errors of a column as text."""
    found = errors(lines, who, metric)
    return "-" if found is None else "{:.1f} / {:.1f} ({:+.1f})".format(*found)


def totals(everything):
    """Sets of rows by name: all of them, and parts with totals of their own."""
    dense = [line for line in everything if is_dense(line["group"][0])]
    sparse = [line for line in everything if not is_dense(line["group"][0])]
    sound = lambda lines: [line for line in lines if not line["row"]["doubtful"]]
    public = [line for line in everything if is_public(line["group"][0])]
    return {"dense": dense, "dense, without doubtful rows": sound(dense), "mixtures of experts": sparse,
            "public benchmark": public, "all": everything, "all, without doubtful rows": sound(everything)}


def print_table(everything, fitted):
    """A Markdown table: models by system, then totals."""
    shown = [who for who in TITLES if who in ("vcr", "package") or (fitted and who in everything[0])]
    columns = [(who, metric) for who in shown for metric in ("tpot", "ttft")]
    print("Absolute error in percent: median / 90th percentile (median signed error).\n")
    print("| system | model | rows |" + "".join(f" {TITLES[who]} {metric.upper()} |" for who, metric in columns)
          + (" decodes, prompts, launch, arrival, per token, per request |" if fitted else ""))
    print("|---" * (3 + len(columns) + fitted) + "|")
    groups = defaultdict(list)
    for line in everything:
        (name, precision, system) = line["group"]
        groups[(system, f"{name.split('/')[-1]} {precision or 'bf16'}")].append(line)
    sums = [(("all", name), lines) for name, lines in totals(everything).items()]
    for names, lines in [*sorted(groups.items()), *sums]:
        if not lines:
            continue
        cells = [*names, str(len(lines)), *(cell(lines, *column) for column in columns)]
        if fitted:
            prices = lines[0]["fitted"]
            text = "{:.2f}, {:.2f}, {:.2f} ms, {:.1f} ms, {:.1f} us, {:.2f} ms".format(*prices)
            cells.append(text if names[0] != "all" else "")
        print(f"| {' | '.join(cells)} |")


def print_goals(everything):
    """A Markdown table of the goals beside the results."""
    sums = totals(everything)
    print("\n| rows | metric | goal | vcr | without doubtful rows | package |\n|---|---|---|---|---|---|")
    for (rows, metric), goal in GOALS.items():
        found = [errors(sums[name], who, metric) for name, who in
                 ((rows, "vcr"), (f"{rows}, without doubtful rows", "vcr"), (rows, "package"))]
        cells = ["-" if one is None else "{:.1f} / {:.1f}".format(*one) for one in found]
        print(f"| {rows} | {metric.upper()} | {goal[0]} / {goal[1]} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vcr", type=Path, default=Path("target/release/vcr"), help="the binary")
    parser.add_argument("--data", type=Path, default=Path(sys.prefix), help="environment or folder with the package")
    parser.add_argument("--only", default="", help="only models, precisions and systems that contain this text")
    parser.add_argument("--limit", type=int, default=0, help="rows of each model, precision and system; 0 for all")
    parser.add_argument("--rounds", type=int, default=10, help="requests for each place of the concurrency")
    parser.add_argument("--spread", type=float, default=0.2, help="lengths vary from 1 - SPREAD of the nominal ones")
    outside = parser.add_mutually_exclusive_group()
    outside.add_argument("--overheads", metavar="MAP", help="time outside of steps, a map that engine(...) takes")
    outside.add_argument("--leave-one-out", action="store_true",
                         help="simulate each model on a system with prices fitted to all others")
    parser.add_argument("--in-sample", action="store_true",
                        help="with --leave-one-out: also with prices fitted to its own rows alone")
    parser.add_argument("--fit-rows", type=int, default=16, help="rows of each model, precision and system in a fit")
    parser.add_argument("--scale", type=float, default=1.0, help="how long steps take beside the sum of operators")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="folder of results of simulations by this binary, used again")
    parser.add_argument("--out", type=Path, help="write every row as a JSON line")
    args = parser.parse_args()
    if args.cache:
        args.cache.mkdir(parents=True, exist_ok=True)
    name = "aiconfigurator_core"
    found = [*args.data.glob(f"lib*/python3*/site-packages/{name}"), args.data / name, args.data]
    data = next((folder for folder in found if (folder / "systems").is_dir()), None)
    if data is None:
        sys.exit(f"no package aiconfigurator-core in {args.data}: pip install aiconfigurator-core==0.12.0")
    everything = []
    for group, rows in read_sample(data / "systems/silicon_sample.csv", args.seed, args.limit):
        if args.only not in " ".join(group):
            continue
        prices = Prices() if args.leave_one_out else Prices(decodes=args.scale, prompts=args.scale)
        results = simulated(args, data, group, rows, prices)
        if isinstance(results, str):
            print(f"{' '.join(group)}: {len(rows)} rows not simulated: {results}", file=sys.stderr)
            continue
        everything += [{"group": group, "row": row, "measured": measured, "bare": result, "vcr": result,
                        "package": estimate}
                       for (row, measured), result, estimate in zip(rows, results, estimated(group, rows))]
    for line in everything:
        line["row"]["doubtful"] |= is_too_fast(line, args.spread)
    if args.leave_one_out:
        if len({machine(line["group"]) for line in everything}) < 2:
            sys.exit("--leave-one-out: expected rows of two models or systems at least")
        leave_one_out(args, data, everything)
    print_table(everything, args.leave_one_out)
    print_goals(everything)
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in everything))


if __name__ == "__main__":
    main()
