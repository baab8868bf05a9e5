#!/usr/bin/env python3
"""Records what live engines decide: small models with random weights, made on the spot, on a CPU.

    live_engine.py OUT_DIR [window] [vision] [drafter] [eagle] [tenants]

A folder a model, which `vcr inspect conform` reproduces. It takes a release with a CPU build, as `run.sh` installs it:
window has two groups of layers (full attention and a sliding window), vision takes images of several sizes, drafter has
a draft model, eagle an EAGLE head, and the requests of tenants have cache salts or read no prefix cache.
"""

import asyncio
import json
import os
import random
import sys
import tempfile
import traceback
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
HERE = Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = f"{HERE}:{os.environ.get('PYTHONPATH', '')}"
sys.path.insert(0, str(HERE))

VOCABULARY = 512
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-06,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = {
    **SHAPE,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 48,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
TEXT = {
    **SHAPE,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rope_theta": 10000,
}
DRAFT = {**TEXT, "num_hidden_layers": 1}
EAGLE = {**DRAFT, "architectures": ["EagleLlamaForCausalLM"], "model_type": "llama"}
# The words of the vision model's prompts.
WORDS = ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
FIRST_WORD = VOCABULARY - len(WORDS)
PATCH = 14
VISION = {
    **SHAPE,
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "num_hidden_layers": 2,
    "hidden_act": "silu",
    "rope_theta": 1000000,
    "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
    "tie_word_embeddings": True,
    "vision_start_token_id": FIRST_WORD,
    "vision_end_token_id": FIRST_WORD + 1,
    "vision_token_id": FIRST_WORD + 2,
    "image_token_id": FIRST_WORD + 3,
    "video_token_id": FIRST_WORD + 4,
    "vision_config": {
        "model_type": "qwen2_vl",
        "depth": 1,
        "embed_dim": 64,
        "hidden_size": 64,
        "num_heads": 2,
        "mlp_ratio": 2,
        "in_channels": 3,
        "patch_size": PATCH,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
    "min_pixels": (2 * PATCH) ** 2 * 4,
    "max_pixels": (2 * PATCH) ** 2 * 36,
    "patch_size": PATCH,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
ENGINE = {
    "load_format": "dummy",
    "enforce_eager": True,
    "seed": 0,
    "block_size": 32,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "skip_tokenizer_init": True,
}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1))


def model(folder, config):
    folder.mkdir()
    write_json(folder / "config.json", config)
    return str(folder)


def vision_model(folder):
    """With a tokenizer of as many words as the model has tokens, and the settings of its images."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model(folder, VISION)
    words = [f"w{index}" for index in range(FIRST_WORD)] + WORDS
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", additional_special_tokens=WORDS)
    fast.image_token, fast.video_token = WORDS[3], WORDS[4]
    fast.save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", IMAGES)
    return str(folder)


def window(folder, rng):
    arguments = {**ENGINE, "model": model(folder / "window", WINDOW), "num_gpu_blocks_override": 44}
    return arguments, prompts(rng, 28, (20, 300), (8, 90))


def drafter(folder, rng):
    speculative = {"method": "draft_model", "model": model(folder / "draft", DRAFT), "num_speculative_tokens": 3}
    arguments = {**ENGINE, "model": model(folder / "drafter", TEXT), "num_gpu_blocks_override": 36}
    return {**arguments, "speculative_config": speculative}, prompts(rng, 24, (20, 260), (8, 60))


def eagle(folder, rng):
    speculative = {"method": "eagle", "model": model(folder / "head", EAGLE), "num_speculative_tokens": 3}
    arguments = {**ENGINE, "model": model(folder / "eagle", TEXT), "num_gpu_blocks_override": 36}
    return {**arguments, "speculative_config": speculative}, prompts(rng, 24, (20, 260), (8, 60))


def vision(folder, rng):
    arguments = {
        **ENGINE,
        "model": vision_model(folder / "vision"),
        "num_gpu_blocks_override": 30,
        "max_num_batched_tokens": 64,
        "skip_tokenizer_init": False,
        "limit_mm_per_prompt": {"image": 3, "video": 0},
    }
    requests = prompts(rng, 28, (10, 120), (4, 40))
    # Few images, so that prompts share them.
    images = [(rng.randint(2, 8), rng.randint(2, 8), seed) for seed in range(8)]
    for request in requests:
        own = [rng.choice(images) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        for image in own:
            at = rng.randint(0, len(request["prompt"]))
            # Not within another image.
            while at and request["prompt"][at - 1] in (FIRST_WORD, FIRST_WORD + 3):
                at -= 1
            request["prompt"][at:at] = [FIRST_WORD, FIRST_WORD + 3, FIRST_WORD + 1]
        request["images"] = own
    return arguments, requests


def tenants(folder, rng):
    arguments = {**ENGINE, "model": model(folder / "tenants", TEXT), "num_gpu_blocks_override": 60}
    requests = prompts(rng, 32, (1, 100), (2, 20))
    for request in requests:
        request["cache_salt"] = rng.choice([None, "red", "red", "blue"])
        request["skip_reading_prefix_cache"] = rng.choice([None, None, None, True])
    return arguments, requests


MODELS = {"window": window, "vision": vision, "drafter": drafter, "eagle": eagle, "tenants": tenants}


def prompts(rng, count, lengths, answers):
    """Requests at random times, in part with shared beginnings; some stop early, some are aborted."""
    shared = [[rng.randrange(3, FIRST_WORD) for _ in range(rng.randint(40, 160))] for _ in range(3)]
    requests, at = [], 0.0
    for number in range(count):
        at += rng.choice([0.0, 0.0, 0.02, 0.2])
        own = [rng.randrange(3, FIRST_WORD) for _ in range(rng.randint(*lengths))]
        beginning = rng.choice(shared) if rng.random() < 0.5 else []
        requests.append(
            {
                "id": f"r{number:02}",
                "at": at,
                "prompt": (beginning + own)[: ENGINE["max_model_len"] - 220],
                "max_tokens": rng.randint(*answers),
                "stop": rng.sample(range(3, FIRST_WORD), 12) if rng.random() < 0.4 else [],
                "abort_after": rng.randint(1, 6) if rng.random() < 0.1 else None,
            }
        )
    return requests


def picture(width, height, seed):
    """An image of `width` by `height` embeddings."""
    from PIL import Image

    rng = random.Random(seed)
    size = (width * 2 * PATCH, height * 2 * PATCH)
    return Image.frombytes("RGB", size, rng.randbytes(size[0] * size[1] * 3))


async def serve(arguments, requests):
    from vllm import SamplingParams
    from vllm.config import KVEventsConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    arguments = AsyncEngineArgs(scheduler_cls="live_log.LoggingScheduler", kv_events_config=events, **arguments)
    config = arguments.create_engine_config()
    # A fork of this process saves importing vLLM again.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    engine = AsyncLLM.from_vllm_config(config)
    begin = asyncio.get_running_loop().time()

    async def send(request):
        await asyncio.sleep(begin + request["at"] - asyncio.get_running_loop().time())
        params = SamplingParams(
            max_tokens=request["max_tokens"],
            ignore_eos=True,
            stop_token_ids=request["stop"],
            temperature=1.0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            skip_reading_prefix_cache=request.get("skip_reading_prefix_cache"),
        )
        prompt = {"prompt_token_ids": request["prompt"]}
        if request.get("cache_salt"):
            prompt["cache_salt"] = request["cache_salt"]
        if request.get("images"):
            prompt["multi_modal_data"] = {"image": [picture(*image) for image in request["images"]]}
        outputs = 0
        async for _ in engine.generate(prompt, params, request_id=request["id"]):
            outputs += 1
            if outputs == request["abort_after"]:
                await engine.abort(request["id"])
                return

    await asyncio.wait_for(asyncio.gather(*(send(request) for request in requests)), 900)
    await asyncio.sleep(0.5)
    engine.shutdown()


def main():
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    # Imported once, and not in each of the processes below.
    import live_log  # noqa: F401
    import vllm.v1.engine.async_llm  # noqa: F401
    import vllm.v1.executor.multiproc_executor  # noqa: F401
    import vllm.v1.worker.cpu_worker  # noqa: F401

    failed = []
    for name in names:
        process = os.fork()
        if process == 0:
            try:
                os.environ["STEP_LOG_DIR"] = str(out / name)
                with tempfile.TemporaryDirectory() as folder:
                    asyncio.run(serve(*MODELS[name](Path(folder), random.Random(name))))
                code = 0
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
            failed.append(name)
        print(f"{name}: {'failed' if name in failed else 'recorded'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
