"""A worker of NVIDIA Dynamo whose engine is `vcr serve`.

It does what `dynamo.vllm` does around an engine: registers a model, takes tokens from Dynamo's frontend,
passes `kv_transfer_params` from the prefill worker to the decode worker, and relays KV events.

    dynamo_worker.py ROLE MODEL URL [KV_EVENTS]

ROLE is prefill, decode or aggregated; URL is that of `vcr serve`; KV_EVENTS is the ZeroMQ address at which
it publishes events.
"""

import asyncio
import json
import sys

import aiohttp
import uvloop
from dynamo.llm import (
    KvEventPublisher,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    register_model,
)
from dynamo.runtime import DistributedRuntime

BLOCK_SIZE = 16


def handler(role, url, session):
    async def generate(request, context):
        stop = request.get("stop_conditions") or {}
        sampling = {"max_tokens": stop.get("max_tokens") or 16, "ignore_eos": True}
        body = {"token_ids": request["token_ids"], "sampling_params": sampling, "stream": role != "prefill"}
        if role == "prefill":
            sampling["max_tokens"] = 1
            body["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
        elif (before := request.get("prefill_result")) is not None:
            body["kv_transfer_params"] = before["disaggregated_params"]["kv_transfer_params"]
        async with session.post(f"{url}/inference/v1/generate", json=body) as answer:
            if answer.status != 200:
                raise RuntimeError(await answer.text())
            if role == "prefill":
                whole = await answer.json()
                yield {
                    "token_ids": whole["choices"][0]["token_ids"],
                    "finish_reason": "length",
                    "disaggregated_params": {"kv_transfer_params": whole["kv_transfer_params"]},
                }
                return
            async for line in answer.content:
                data = line.decode().removeprefix("data:").strip()
                if not line.startswith(b"data:") or data == "[DONE]":
                    continue
                for choice in json.loads(data)["choices"]:
                    chunk = {"token_ids": choice["token_ids"]}
                    if choice.get("finish_reason"):
                        chunk["finish_reason"] = choice["finish_reason"]
                    yield chunk

    return generate


async def main(role, model, url, kv_events=None):
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    # A prefill worker serves the same model in a component of its own.
    component = "prefill" if role == "prefill" else "backend"
    endpoint = runtime.endpoint(f"vcr.{component}.generate")
    config = ModelRuntimeConfig()
    config.total_kv_blocks, config.max_num_seqs, config.max_num_batched_tokens = 4096, 256, 8192
    config.kv_event_publishing_enabled = kv_events is not None
    publisher = None
    if kv_events is not None:
        config.enable_local_indexer = True
        publisher = KvEventPublisher(
            endpoint, kv_block_size=BLOCK_SIZE, zmq_endpoint=kv_events, zmq_topic="", enable_local_indexer=True
        )
    worker_type = {"prefill": WorkerType.Prefill, "decode": WorkerType.Decode}.get(role, WorkerType.Aggregated)
    needs = {"prefill": [[WorkerType.Decode]], "decode": [[WorkerType.Prefill]]}.get(role, [])
    model_type = ModelType.Prefill if role == "prefill" else ModelType.Chat | ModelType.Completions
    await register_model(
        ModelInput.Tokens,
        model_type,
        endpoint,
        model,
        "sim",
        worker_type=worker_type,
        needs=needs,
        kv_cache_block_size=BLOCK_SIZE,
        runtime_config=config,
    )
    print(f"registered as {role}", flush=True)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        await endpoint.serve_endpoint(handler(role, url, session))
    del publisher


uvloop.run(main(*sys.argv[1:]))
