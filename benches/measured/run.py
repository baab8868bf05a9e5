"""Rows of the silicon sample, simulated by vcr and estimated by the package."""

import hashlib
import json
import logging
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from measured.sample import BLOCK, MODELS, model_config, num_gpu_blocks

# A limit that no row reaches.
MAX_NUM_SEQS = 1024


class Prices(NamedTuple):
    """Missing parts of the tables."""

    decodes: float = 1.0  # Time of a step that only decodes beside the sum of its operators.
    prompts: float = 1.0  # The same of a step with prompts.
    launch: float = 0.0  # Milliseconds of the host to launch a step with prompts, for each layer.
    arrival: float = 0.0  # Milliseconds from the client to the queue.
    token: float = 0.0  # Microseconds more for each token of the prompt.
    request: float = 0.0  # Milliseconds more for each request in flight.

    def overheads(self, layers, row):
        """The map that engine(...) takes, if anything in it is above zero."""
        launch = 0.0 if row["graphs"] else self.launch
        if (launch, *self[3:]) == (0.0, 0.0, 0.0, 0.0):
            return None
        launch = f"{1000 * launch * layers:.0f}us"
        arrival = self.arrival + self.request * row["concurrency"]
        return (f'#{{ prefill_launch: "{launch}", large_launch: "{launch}", '
                f'arrival: "{arrival:.3f}ms", per_prompt_token: "{self.token:.3f}us" }}')


def lengths(tokens, spread):
    """A constant, or lengths from (1 - spread) of it up to it."""
    return tokens if spread == 0 else f"uniform({max(1, round(tokens * (1 - spread)))}, {tokens})"


def scenario(args, data, group, rows, prices):
    """A script with a run for each row."""
    (name, precision, system) = group
    model, gemm, moe = MODELS[(name, precision)]
    # The benchmark's scripts ask for experts in MXFP8 there, which have tables of their own.
    moe = "w4a8_mxfp4_mxfp8" if name == "openai/gpt-oss-120b" and system == "b200_sxm" else moe
    lines, read = ["let runs = [];"], {}
    layers = model_config(data, model)["num_hidden_layers"]
    for index, (row, _) in enumerate(rows):
        overheads = args.overheads or prices.overheads(layers, row)
        overheads = f", overheads: {overheads}" if overheads else ""
        options = {"system": system, "model": model, "tensor_parallel": row["tensor"],
                   "expert_parallel": row["expert"], "data": str(args.data.resolve()),
                   "scale": prices.decodes, "prompt_scale": prices.prompts,
                   "kv_cache_dtype": row["kv_cache_dtype"]}
        options |= {key: value for key, value in (("gemm_dtype", gemm), ("moe_dtype", moe)) if value}
        tables = ", ".join(f"{key}: {json.dumps(value)}" for key, value in options.items())
        count = args.rounds * row["concurrency"]
        # Tables are read once for all rows with the same parallel sizes.
        if tables not in read:
            read[tables] = f"tables_{len(read)}"
            lines.append(f"let {read[tables]} = tables(#{{ {tables} }});")
        lines.append(
            f"runs.push(#{{ name: \"{index}\", cluster: cluster(#{{ engines: pool(#{{ engines: 1,\n"
            f"    engine: engine(#{{ num_gpu_blocks: {num_gpu_blocks(data, group, row)}, block_size: {BLOCK},\n"
            f"        max_num_seqs: {MAX_NUM_SEQS}, max_num_batched_tokens: {row['batched_tokens']},\n"
            f"        async_scheduling: {json.dumps(row['async'])}{overheads} }}),\n"
            f"    latency: {read[tables]} }}) }}),\n"
            f"  workloads: [ closed_loop(#{{ concurrency: {row['concurrency']}, count: {count},\n"
            f"    prompt_tokens: {lengths(row['isl'], args.spread)},\n"
            f"    output_tokens: {lengths(row['osl'], args.spread)} }}) ] }});")
    return "\n".join([*lines, "run_all(runs);", ""])


def simulated(args, data, group, rows, prices):
    """Means of TTFT and TPOT in milliseconds, for each row; or why there are none."""
    text = scenario(args, data, group, rows, prices)
    known = args.cache and args.cache / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
    if known and known.exists():
        return json.loads(known.read_text())
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "group.rhai"
        script.write_text(text)
        command = [str(args.vcr), "run", str(script), "--json", "--quiet", "--max-runs", "100000"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[0]
    runs = {run["name"]: run["metrics"]["trends"] for run in json.loads(done.stdout)["runs"]}
    mean = lambda run, name: run[f"{name}_ms"]["mean"]
    results = [{name: mean(runs[str(index)], name) for name in ("ttft", "tpot")} for index in range(len(rows))]
    if known:
        known.write_text(json.dumps(results))
    return results


def estimated(group, rows):
    """The package's own estimates of the same rows; none where it has none."""
    try:
        from aiconfigurator_core.sdk import config, engine
        from aiconfigurator_core.sdk.backends.factory import get_backend
        from aiconfigurator_core.sdk.config_builders import build_model_config
        from aiconfigurator_core.sdk.models import get_model
    except ImportError:
        return [None] * len(rows)
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)  # It warns of tables that it borrows.
    (name, precision, system) = group
    model, gemm, moe = MODELS[(name, precision)]
    version = engine._literal_backend_version(system, "vllm", None, None, None)
    database = engine._maybe_load_database(system, "vllm", version, None)
    estimates = []
    for row, _ in rows:
        sizes = {"tp_size": row["tensor"], "pp_size": 1, "attention_dp_size": 1}
        sizes |= {"moe_tp_size": row["tensor"] // row["expert"], "moe_ep_size": row["expert"]}
        dtypes = {"gemm_quant_mode": gemm, "moe_quant_mode": moe, "fmha_quant_mode": "bfloat16"}
        dtypes["kvcache_quant_mode"] = row["kv_cache_dtype"]
        try:
            graph = get_model(model, build_model_config(**sizes, **dtypes), "vllm")
            runtime = config.RuntimeConfig(batch_size=row["concurrency"], isl=row["isl"], osl=row["osl"])
            # It remembers results by lengths and batch alone.
            backend = get_backend("vllm")
            backend._agg_cache = {}
            found = backend.run_agg(graph, database, runtime, ctx_tokens=row["isl"]).get_summary_df().iloc[0]
            estimates.append({"ttft": float(found["ttft"]), "tpot": float(found["tpot"])})
        except Exception:  # Tables that the SDK lacks.
            estimates.append(None)
    return estimates
