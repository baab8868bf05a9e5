"""Requests as SGLang's own benchmark of servers sends them, by its request functions.

    sglang_bench.py URL

Prints for each function what it measured of a request, as JSON. Of the package it needs the benchmark alone: the
modules that it loads for data sets and GPUs are left out.
"""

import argparse
import asyncio
import importlib
import importlib.util
import json
import pathlib
import sys
import types

OUTPUT_TOKENS = 12
ABSENT = {
    "transformers": ["AutoTokenizer", "PreTrainedTokenizerBase"],
    "sglang.benchmark.datasets": ["DatasetRow", "get_dataset"],
    "sglang.benchmark.datasets.mooncake": ["get_mooncake_request_over_time"],
    "sglang.benchmark.utils": ["get_tokenizer", "parse_custom_headers", "set_ulimit"],
    "sglang.srt.disaggregation.utils": ["FAKE_BOOTSTRAP_HOST"],
    "sglang.srt.utils.network": ["resolve_base_url", "resolve_host_port"],
}


def benchmark():
    (place,) = importlib.util.find_spec("sglang").submodule_search_locations
    package = sys.modules["sglang"] = types.ModuleType("sglang")
    package.__path__ = [place]
    for name, contents in ABSENT.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        for content in contents:
            setattr(module, content, None)
    sys.modules["sglang.benchmark.utils"].remove_prefix = str.removeprefix
    file = pathlib.Path(place, "benchmark", "serving.py")
    spec = importlib.util.spec_from_file_location("sglang.benchmark.serving", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def main(url):
    bench = benchmark()
    bench.set_global_args(argparse.Namespace(
        temperature=0.0, top_p=1.0, disable_ignore_eos=False, disable_stream=False, return_logprob=False,
        return_routed_experts=False, logprob_start_len=-1, top_logprobs_num=0, token_ids_logprob=None,
        cache_report=False, header=None, backend="sglang"))
    calls = {
        "generate": (bench.async_request_sglang_generate, "/generate", "Tell me of the sea"),
        "generate_ids": (bench.async_request_sglang_generate, "/generate", list(range(100, 140))),
        "completions": (bench.async_request_openai_completions, "/v1/completions", "Tell me of the sea"),
        "chat": (bench.async_request_openai_chat_completions, "/v1/chat/completions", "Tell me of the sea"),
    }
    for name, (function, path, prompt) in calls.items():
        request = bench.RequestFuncInput(
            prompt=prompt, api_url=url + path, prompt_len=7, output_len=OUTPUT_TOKENS, model="sim", lora_name="",
            image_data=None, extra_request_body={})
        output = await function(request)
        print(json.dumps({
            "name": name, "success": output.success, "error": output.error, "text": output.generated_text,
            "ttft": output.ttft, "latency": output.latency, "gaps": len(output.itl), "output_len": output.output_len,
            "prompt_len": output.prompt_len,
        }), flush=True)


asyncio.run(main(sys.argv[1]))
