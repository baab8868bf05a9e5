"""vLLM's own scheduler, built for a case without an engine."""

import copy
import inspect
import math
import os

from vllm.config import (
    CacheConfig,
    KVEventsConfig,
    LoRAConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager, EncoderDecoderCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.structured_output import StructuredOutputManager

from scripted_connector import transfer_config

# Settings of a case that some releases do not have, by vLLM's name, and the value that means their absence.
NEWER_SETTINGS = {
    "max_num_active_seqs": ("max_num_active_seqs", None),
    "adaptive": ("long_prefill_token_threshold_adaptive", False),
}


RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"


def has_field(kind, name):
    """Whether this release has that setting."""
    return name in inspect.signature(kind).parameters


def of_release(kind, **settings):
    """`kind` with the settings that this release has."""
    return kind(**{name: value for name, value in settings.items() if has_field(kind, name)})


def without_newer_settings(config):
    """The case as it can be asked of this release."""
    absent = {key: value for key, (name, value) in NEWER_SETTINGS.items() if not has_field(SchedulerConfig, name)}
    return {**config, **absent}


def vllm_config(config, model):
    """The configuration objects a server would build from the same arguments."""
    model_config = ModelConfig(
        model=model, max_model_len=config["max_model_len"], dtype="bfloat16", skip_tokenizer_init=True
    )
    scheduler_config = of_release(
        SchedulerConfig,
        max_model_len=config["max_model_len"],
        is_encoder_decoder=False,
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_scheduled_tokens=config.get("max_num_scheduled_tokens"),
        prefill_schedule_interval=config.get("prefill_schedule_interval", 1),
        max_num_active_seqs=config["max_num_active_seqs"],
        enable_chunked_prefill=config["chunked_prefill"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=config["adaptive"],
        policy=config["policy"],
        watermark=config["watermark"],
        scheduler_reserve_full_isl=config["reserve_full_isl"],
    )
    cache_config = CacheConfig(
        block_size=config["block_size"], enable_prefix_caching=config["prefix_caching"]
    )
    parts = {}
    if config["max_loras"]:
        parts["lora_config"] = LoRAConfig(max_loras=config["max_loras"], max_cpu_loras=16)
    built = VllmConfig(
        model_config=model_config,
        scheduler_config=scheduler_config,
        cache_config=cache_config,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
        **parts,
    )
    if config["spec"]:
        built.speculative_config = speculative_config(config, built)
        built._set_max_num_scheduled_tokens()
    # The CPU platform adjusts these for its own worker, which is not used here.
    built.scheduler_config.async_scheduling = config["async_scheduling"]
    built.scheduler_config.enable_chunked_prefill = config["chunked_prefill"]
    built.cache_config.enable_prefix_caching = config["prefix_caching"]
    built.cache_config.block_size = config["block_size"]
    built.cache_config.num_gpu_blocks = config["num_blocks"]
    built.cache_config.mamba_cache_mode = mamba_cache_mode(config)
    # Here, since neither the device nor the model of these cases would be split.
    built.parallel_config.decode_context_parallel_size = config.get("dcp", 1)
    built.parallel_config.pipeline_parallel_size = config.get("pp", 1)
    if "connector" in config:
        built.kv_transfer_config = transfer_config(config["connector"])
    return built


def speculative_config(config, built):
    """The drafter. One with KV of its own gets its method afterwards: the scheduler asks for no more of it
    than its method, its number of drafts and its number of modules, and so there is no model to be read."""
    speculative = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=config["spec"],
        prompt_lookup_max=4,
        prompt_lookup_min=2,
        target_model_config=built.model_config,
        target_parallel_config=built.parallel_config,
    )
    if "spec_by_batch" in config:
        ranges = [tuple(entry) for entry in config["spec_by_batch"]]
        speculative.num_speculative_tokens_per_batch_size = ranges
    drafter = config.get("drafter")
    if drafter is None:
        return speculative
    speculative.method = "mtp" if drafter == "multi_module_mtp" else drafter
    # Releases before 0.28 withhold the slots of a draft model from every step.
    built.scheduler_config.max_num_scheduled_tokens = config.get("max_num_scheduled_tokens")
    speculative.draft_model_config = copy.copy(built.model_config)
    speculative.draft_model_config.hf_config = copy.copy(built.model_config.hf_config)
    modules = config["spec"] if drafter == "multi_module_mtp" else 1
    speculative.draft_model_config.hf_config.num_nextn_predict_layers = modules
    if hasattr(speculative, "disable_lookahead_block_hashes"):
        disabled = config.get("disable_lookahead_block_hashes", False)
        speculative.disable_lookahead_block_hashes = disabled
    return speculative


def prefill_lookahead(built):
    """vLLM's `num_prefill_lookahead_tokens`, which releases before 0.31 have in the scheduler, from 0.28 on."""
    if hasattr(built, "num_prefill_lookahead_tokens"):
        return built.num_prefill_lookahead_tokens
    speculative = built.speculative_config
    if speculative is None or not speculative.use_eagle():
        return 0
    return built.num_speculative_tokens if speculative.use_multi_module_mtp() else 1


def draft_slots(built):
    """Tokens that each scheduled request costs for its drafts; since 0.28, as is `num_lookahead_tokens`."""
    if not built.speculative_config or not hasattr(built, "num_lookahead_tokens"):
        return 0
    return built.speculative_config.max_num_new_slots_for_drafting


def mamba_cache_mode(config):
    """The mode that vLLM sets for what is asked for."""
    return config.get("mamba_cache_mode", "align") if config["prefix_caching"] else "none"


def group_block_size(config, group):
    """Without prefix caching a state is one of a whole sequence."""
    if group["kind"] == "mamba" and not config["prefix_caching"]:
        return config["max_model_len"]
    return group["block_size"]


def group_spec(config, group, built):
    """What vLLM holds of a group of layers."""
    shape = {
        "num_kv_heads": built.model_config.get_num_kv_heads(built.parallel_config),
        "head_size": built.model_config.get_head_size(),
        "dtype": built.model_config.dtype,
        "block_size": group["block_size"],
    }
    match group["kind"]:
        case "full":
            return FullAttentionSpec(**shape)
        case "mla":
            return MLAAttentionSpec(**{**shape, "num_kv_heads": 1})
        case "sliding_window":
            # As vLLM tags each of its layers.
            extra = max(0, prefill_lookahead(built) - 1)
            return of_release(
                SlidingWindowSpec, **shape, sliding_window=group["window"], extra_retained_tokens=extra
            )
        case "cross_attention":
            return CrossAttentionSpec(**shape)
        case "chunked_local":
            return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=group["window"])
        case "mamba":
            checkpoint = group.get("checkpoint")
            return of_release(
                MambaSpec,
                block_size=group_block_size(config, group),
                shapes=((1,),),
                dtypes=(built.model_config.dtype,),
                mamba_cache_mode=mamba_cache_mode(config),
                num_speculative_blocks=config["spec"],
                num_prefill_checkpoint_blocks=int(checkpoint is not None),
                prefill_checkpoint_alignment=checkpoint,
            )
    raise ValueError(f"unknown kind of group: {group['kind']}")


def resolved_block_size(config, group):
    """Tokens of a block, of which each rank of decode context parallelism has a part; states are whole on each."""
    ranks = config.get("dcp", 1) if group["kind"] in ("full", "mla") else 1
    return group_block_size(config, group) * ranks


def scheduler_block_size(config):
    """The length that prefix hits are multiples of."""
    return math.lcm(*(resolved_block_size(config, group) for group in groups_of(config)))


def hash_block_size(config):
    """The length that is hashed."""
    return config["block_size"] * config.get("dcp", 1)


def has_second_runner(config, model_runner_v2):
    """With pipeline parallelism async scheduling is that of vLLM's second model runner."""
    return model_runner_v2 or config["async_scheduling"] and config.get("pp", 1) > 1


def is_encoder_decoder(config):
    """Whether a decoder reads what an encoder makes of the input, by layers of cross attention."""
    return any(group["kind"] == "cross_attention" for group in groups_of(config))


def groups_of(config):
    """The groups of layers; one of full attention unless the case says otherwise."""
    return config.get("groups") or [{"kind": "full", "block_size": config["block_size"]}]


def new_scheduler(config, model, model_runner_v2, classes=(Scheduler, AsyncScheduler)):
    """A scheduler over the groups of layers that the case asks for, of one of two classes: without async scheduling, and
    with it."""
    built = vllm_config(config, model)
    second_runner = has_second_runner(config, model_runner_v2)
    if config.get("pp", 1) > 1:
        # It counts batches by its second model runner, which it refuses without Triton.
        built.__class__ = type("SplitConfig", (VllmConfig,), {"use_v2_model_runner": second_runner})
    layers = [f"layers.{index}" for index in range(built.model_config.get_total_num_hidden_layers())]
    groups = groups_of(config)
    # Releases before 0.29 have the interval as a variable of the environment.
    os.environ.pop(RETENTION_VARIABLE, None)
    if config.get("groups") and config["retention"] is not None:
        os.environ[RETENTION_VARIABLE] = str(config["retention"])
    kv_cache = of_release(
        KVCacheConfig,
        num_blocks=config["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec(
                layers if len(groups) == 1 else [f"{index}.{layer}" for layer in layers],
                group_spec(config, group, built),
                is_eagle_group=group.get("drafter", False),
            )
            for index, group in enumerate(groups)
        ],
        prefix_cache_retention_interval=config["retention"] if config.get("groups") else None,
    )
    if "encoder_cache_size" in config:
        # What a multimodal model's budget comes to; the small model here has none.
        built.scheduler_config.disable_chunked_mm_input = config["disable_chunked_mm_input"]
    scheduler = classes[config["async_scheduling"]](
        vllm_config=built,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(built),
        block_size=scheduler_block_size(config),
        hash_block_size=hash_block_size(config),
        log_stats=True,
    )
    # The settings refuse the second model runner where there is no Triton; all
    # the scheduler does with it is to tell of resumed requests as of new ones.
    scheduler.use_v2_model_runner = second_runner
    if "encoder_cache_size" in config:
        # What a multimodal model's budget comes to; the small model here has none.
        scheduler.max_num_encoder_input_tokens = config["max_num_encoder_input_tokens"]
        scheduler.is_encoder_decoder = is_encoder_decoder(config)
        manager = EncoderDecoderCacheManager if is_encoder_decoder(config) else EncoderCacheManager
        scheduler.encoder_cache_manager = manager(config["encoder_cache_size"])
    return scheduler


def effective(scheduler, config):
    """The settings as the scheduler holds them."""
    has_groups, has_drafter = "groups" in config, "drafter" in config
    has_media, has_connector = "encoder_cache_size" in config, "connector" in config
    coordinator = scheduler.kv_cache_manager.coordinator
    dropping = getattr(coordinator, "drop_eagle_group_ids", coordinator.eagle_group_ids)
    of_drafter = {
        "num_prefill_lookahead": getattr(scheduler, "num_prefill_lookahead", int(scheduler.use_eagle)),
        "num_hash_lookahead_tokens": getattr(scheduler, "num_hash_lookahead_tokens", 0),
        "dropping_groups": sorted(dropping),
    }
    by_group = {
        "coordinator": type(scheduler.kv_cache_manager.coordinator).__name__,
        "scheduler_block_size": scheduler.block_size,
        "hash_block_size": scheduler.hash_block_size,
        "max_in_flight_tokens": scheduler.vllm_config.max_in_flight_tokens,
    }
    of_context = {
        "scheduler_block_size": scheduler.block_size,
        "hash_block_size": scheduler.hash_block_size,
    }
    of_pipeline = {
        "decode_stagger": getattr(scheduler, "decode_stagger", getattr(scheduler, "pp_size", 1)),
        "max_in_flight_tokens": scheduler.vllm_config.max_in_flight_tokens,
    }
    of_interval = {"local_prefill_interval": getattr(scheduler, "local_prefill_interval", 1)}
    of_media = {
        "encoder_budget": scheduler.max_num_encoder_input_tokens,
        "encoder_cache_size": scheduler.encoder_cache_manager.cache_size,
        "disable_chunked_mm_input": scheduler.scheduler_config.disable_chunked_mm_input,
    }
    of_connector = {
        "recompute_kv_load_failures": scheduler.recompute_kv_load_failures,
        "defer_block_free": getattr(scheduler, "defer_block_free", False),
        "requires_kv_delivery": getattr(scheduler, "requires_kv_delivery", False),
    }
    return {
        "max_num_scheduled_tokens": scheduler.max_num_scheduled_tokens,
        "max_num_running_reqs": scheduler.max_num_running_reqs,
        "max_num_active_reqs": getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs),
        "max_num_batched_tokens": scheduler.scheduler_config.max_num_batched_tokens,
        "chunked_prefill": scheduler.scheduler_config.enable_chunked_prefill,
        "policy": scheduler.policy.value,
        "long_prefill_token_threshold": scheduler.scheduler_config.long_prefill_token_threshold,
        "adaptive": getattr(scheduler, "adaptive_long_prefill_threshold", False),
        "watermark_blocks": scheduler.kv_cache_manager.watermark_blocks,
        "reserve_full_isl": scheduler.scheduler_reserve_full_isl,
        "prefix_caching": scheduler.kv_cache_manager.enable_caching,
        "num_spec_tokens": scheduler.num_spec_tokens,
        "num_lookahead_tokens": scheduler.num_lookahead_tokens,
        "max_model_len": scheduler.max_model_len,
        "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "scheduler": (AsyncScheduler if isinstance(scheduler, AsyncScheduler) else Scheduler).__name__,
        "use_v2_model_runner": scheduler.use_v2_model_runner,
        "draft_slots": draft_slots(scheduler.vllm_config),
        **(by_group if has_groups else {}),
        **(of_drafter if has_drafter else {}),
        **(of_interval if "prefill_schedule_interval" in config else {}),
        **(of_media if has_media else {}),
        **(of_context if "dcp" in config else {}),
        **(of_pipeline if "pp" in config else {}),
        **(of_connector if has_connector else {}),
    }
