#!/usr/bin/env python3
"""Drives vLLM's AsyncLLM (engine in its own process) through the workloads of a plan, and writes
one requests file a workload, a steps file for the whole run and the engine's settings.

usage: capture.py PLAN.json MODEL_DIR OUT_DIR
"""
import asyncio
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ORACLE = os.environ.get("ORACLE", os.path.join(HERE, "../../../oracle"))
os.environ["PYTHONPATH"] = ":".join([HERE, ORACLE, os.environ.get("PYTHONPATH", "")])
sys.path[:0] = [HERE, ORACLE]
import workloads  # noqa: E402


def say(*a):
    print(f"[{time.monotonic() - BEGIN:7.1f}]", *a, flush=True)


BEGIN = time.monotonic()


class Recorder:
    def __init__(self, engine, vocab, f):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.engine, self.vocab, self.file = engine, vocab, f
        self.params = lambda n: SamplingParams(
            max_tokens=n, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA)
        self.completed = []

    async def one(self, rid, wave, spec, tokens, t0):
        delay = t0 + spec["at"] - time.monotonic()
        if delay > 0:
            await asyncio.sleep(delay)
        sent = time.monotonic()
        first = last = None
        got, longest, final = 0, 0.0, None
        error = None
        try:
            async for out in self.engine.generate(
                    {"prompt_token_ids": tokens}, self.params(spec["max_tokens"]), rid):
                now = time.monotonic()
                n = len(out.outputs[0].token_ids) if out.outputs else 0
                if n:
                    if first is None:
                        first = now
                    else:
                        longest = max(longest, now - last)
                    last = now
                    got += n
                final = out
        except Exception as e:  # noqa: BLE001
            error = repr(e)[:300]
        end = time.monotonic()
        ms = lambda x: None if x is None else round(x * 1000, 3)
        rec = {"id": rid, "wave": wave, "planned_ms": round(spec["at"] * 1000, 1), "arrival_ms": ms(sent - t0),
               "prompt_tokens": len(tokens), "output_tokens": got,
               "ttft_ms": ms(first - sent) if first else None, "e2e_ms": ms(end - sent),
               "mean_itl_ms": ms((last - first) / (got - 1)) if got > 1 else None,
               "max_itl_ms": ms(longest) if got > 1 else None,
               "cached_tokens": getattr(final, "num_cached_tokens", None),
               "parts": spec["parts"]}
        m = getattr(final, "metrics", None)
        if m is not None and m.scheduled_ts:
            rec["queue_ms"] = ms(m.scheduled_ts - m.queued_ts)
            rec["queued_ms"] = ms(m.queued_ts - t0)
            rec["engine_ttft_ms"] = ms(m.first_token_ts - m.queued_ts)
            rec["engine_e2e_ms"] = ms(m.last_token_ts - m.queued_ts)
        if error:
            rec["error"] = error
        self.completed.append(end - t0)
        self.file.write(json.dumps(rec, separators=(",", ":")) + "\n")

    async def run(self, name, waves):
        spans = []
        for w, wave in enumerate(waves):
            prompts = [workloads.prompt_tokens(r["parts"], self.vocab) for r in wave]
            t0 = time.monotonic() + 0.05
            await asyncio.gather(*[
                self.one(f"{name}.{w}.{i}", w, r, p, t0) for i, (r, p) in enumerate(zip(wave, prompts))])
            spans.append([round(t0, 6), round(time.monotonic(), 6)])
        return spans


async def main():
    plan = json.load(open(sys.argv[1]))
    model, out = sys.argv[2], sys.argv[3]
    os.makedirs(out, exist_ok=True)
    os.environ["STEPLOG"] = os.path.join(out, "steps.jsonl")
    decisions = os.environ["STEP_LOG_DIR"] = os.path.join(out, "decisions")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM
    import vllm

    args = AsyncEngineArgs(model=model, load_format="dummy", skip_tokenizer_init=True,
                           scheduler_cls="gpu_steplog." + plan.get("scheduler", "StepLog"),
                           enable_log_requests=False, **plan.get("engine", {}))
    say("vllm", vllm.__version__, "starting")
    t = time.monotonic()
    engine = AsyncLLM.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER)
    start = time.monotonic() - t
    say(f"engine up in {start:.1f} s")
    vocab = json.load(open(os.path.join(model, "config.json")))["vocab_size"]
    config = engine.vllm_config
    info = {"vllm": vllm.__version__, "start_s": round(start, 1), "plan": plan,
            "model": json.load(open(os.path.join(model, "config.json"))),
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "async_scheduling": config.scheduler_config.async_scheduling,
            "max_model_len": config.model_config.max_model_len,
            "dtype": str(config.model_config.dtype),
            "block_size": config.cache_config.block_size,
            "num_gpu_blocks": config.cache_config.num_gpu_blocks,
            "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
            "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
            "cudagraph_capture_sizes": list(config.compilation_config.cudagraph_capture_sizes or []),
            "compilation_mode": str(config.compilation_config.mode),
            "workloads": []}
    try:
        import torch
        info["torch"] = torch.__version__
        import subprocess
        info["gpu"] = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit", "--format=csv,noheader"],
            capture_output=True, text=True).stdout.strip()
    except Exception as e:  # noqa: BLE001
        info["gpu"] = repr(e)
    capacity = plan.get("capacity")
    for k, spec in enumerate(plan["workloads"]):
        name = spec["name"]
        if time.monotonic() - BEGIN + spec.get("cost", 0) > plan["deadline"]:
            say("out of time, left out:", name)
            continue
        if not spec.get("decisions"):
            await engine.reset_prefix_cache()
            if os.path.isdir(decisions):
                open(os.path.join(decisions, "stop"), "w").close()
        waves = workloads.build(spec, (k + 1) * 1_000_000, capacity)
        n = sum(len(w) for w in waves)
        say("begin", name, n, "requests")
        path = os.path.join(out, f"requests-{name}.jsonl")
        with open(path + ".part", "w") as f:
            rec = Recorder(engine, vocab, f)
            try:
                spans = await asyncio.wait_for(rec.run(name, waves), spec.get("limit_s", 200))
            except asyncio.TimeoutError:
                spans = []
                say("cut", name)
        os.rename(path + ".part", path)
        rows = [json.loads(x) for x in open(path)]
        done = sorted(rec.completed)
        if spec.get("measures_capacity") and len(done) > 10:
            # the burst's start and drain are slower than its middle: a tenth more than its mean
            capacity = 1.1 * len(done) / done[-1]
            info["capacity_rps"] = round(capacity, 3)
            info["capacity_mean_rps"] = round(len(done) / done[-1], 3)
        info["workloads"].append({"name": name, "spec": spec, "spans": spans, "requests": n,
                                  "rate_base_rps": capacity})
        json.dump(info, open(os.path.join(out, "engine.json"), "w"), indent=1)
        q = lambda key, p: (lambda v: round(v[min(len(v) - 1, int(p * len(v)))], 1) if v else None)(
            sorted(r[key] for r in rows if r.get(key) is not None))
        secs = spans[-1][1] - spans[0][0] if spans else float("nan")
        say("end", name, f"{secs:.1f} s, {len(rows)} done, {len(rows) / secs:.2f} req/s,",
            f"{sum(r['output_tokens'] for r in rows) / secs:.0f} out tok/s,",
            f"{sum(r['prompt_tokens'] for r in rows) / secs:.0f} in tok/s,",
            f"ttft p50 {q('ttft_ms', .5)} p90 {q('ttft_ms', .9)} p99 {q('ttft_ms', .99)},",
            f"itl p50 {q('mean_itl_ms', .5)} p99 {q('mean_itl_ms', .99)}, queue p90 {q('queue_ms', .9)},",
            f"capacity {capacity and round(capacity, 2)}",
            f"errors {sum('error' in r for r in rows)}")
    say("shutdown")
    engine.shutdown()
    say("done")


if __name__ == "__main__":
    asyncio.run(main())
