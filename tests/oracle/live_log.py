"""vLLM scheduler classes that write down what a live engine decides.

    PYTHONPATH=tests/oracle STEP_LOG_DIR=captures/mine vllm serve MODEL \\
        --scheduler-cls live_log.LoggingScheduler

They change no decision: the stock scheduler is called, and what came out is
written to the folder STEP_LOG_DIR, which `vcr inspect conform` then replays.
Prompts and answers are written as token ids, since prefix hits depend on them.
"""

import json
import os
import re
import time
from pathlib import Path

import msgspec
import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

_RANDOM_END = re.compile("-[0-9a-f]{8}$")


class Logging:
    """Goes before a scheduler in the list of base classes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.start_log()

    def start_log(self):
        """To be called again where settings or the publisher of KV events are replaced before the first request."""
        folder = Path(os.environ["STEP_LOG_DIR"])
        folder.mkdir(parents=True, exist_ok=True)
        self._steps = _Lines(folder / "steps.jsonl")
        self._prompts = _Lines(folder / "requests.jsonl")
        self._answers = _Lines(folder / "tokens.jsonl")
        self._num_steps = 0
        self._added = []
        self._aborted = []
        # When each was, which may be while a step is in flight.
        self._aborted_at = []
        # Drafts that requests take into their next step, where the model hands them over after a step.
        self._drafts = {}
        self._tokens = {}
        self._names = {}
        self._taken = set()
        # Steps that wait for their result, by the identity of their plan.
        self._in_flight = {}
        self._events = None
        if self.kv_events_config and self.kv_events_config.enable_kv_cache_events:
            self._events = _Lines(folder / "kv_events.jsonl")
            self._log_events()
        settings = {
            "vllm": vllm.__version__.split("+")[0],
            "engine_args": self._engine_args(),
        }
        (folder / "engine.json").write_text(json.dumps(settings, indent=1))
        self._steps.write(self._settings())

    def _engine_args(self):
        """What is not said in the first line of steps.jsonl; what is not followed is refused by name."""
        parallel, transfer = self.vllm_config.parallel_config, self.vllm_config.kv_transfer_config
        config = self.scheduler_config
        args = {
            "prefix_caching_hash_algo": self.cache_config.prefix_caching_hash_algo,
            "long_prefill_token_threshold_adaptive": getattr(config, "long_prefill_token_threshold_adaptive", False),
        }
        for name in ("data_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size"):
            if getattr(parallel, name, 1) > 1:
                args[name] = getattr(parallel, name)
        if getattr(config, "prefill_schedule_interval", 1) > 1:
            args["prefill_schedule_interval"] = config.prefill_schedule_interval
        if transfer is not None:
            args["kv_transfer_config"] = {"kv_connector": transfer.kv_connector}
        return args

    def _settings(self):
        config = self.scheduler_config
        groups = [_group(group) for group in self.kv_cache_config.kv_cache_groups]
        # One of full attention is told of as before there were others.
        self._has_groups = len(groups) > 1 or groups[0]["kind"] not in ("full", "mla")
        self._has_media = self.encoder_cache_manager.cache_size > 0
        return {
            "kind": "engine",
            "num_gpu_blocks": self.cache_config.num_gpu_blocks,
            "block_size": self.block_size,
            "max_num_seqs": self.max_num_running_reqs,
            "max_num_active_reqs": self.max_num_active_reqs,
            "max_num_scheduled_tokens": config.max_num_scheduled_tokens,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "policy": config.policy,
            "chunked_prefill": config.enable_chunked_prefill,
            "long_prefill_token_threshold": config.long_prefill_token_threshold,
            "prefix_caching": self.cache_config.enable_prefix_caching,
            "async_scheduling": isinstance(self, AsyncScheduler) and config.async_scheduling,
            "reserve_full_isl": self.scheduler_reserve_full_isl,
            "watermark": config.watermark,
            "max_loras": self.lora_config.max_loras if self.lora_config else None,
            "num_spec_tokens": self.num_spec_tokens,
            "use_v2_model_runner": getattr(self, "use_v2_model_runner", False),
            **(self._settings_of_groups(groups) if self._has_groups else {}),
            **(self._settings_of_drafter() if self.num_spec_tokens else {}),
            **(self._settings_of_encoder() if self._has_media else {}),
        }

    def _settings_of_groups(self, groups):
        retention = getattr(self.kv_cache_config, "prefix_cache_retention_interval", None)
        if retention is None:
            # Releases before 0.29 have it as a variable of the environment.
            retention = getattr(vllm.envs, "VLLM_PREFIX_CACHE_RETENTION_INTERVAL", None)
        return {"hash_block_size": self.hash_block_size, "groups": groups, "retention": retention}

    def _settings_of_drafter(self):
        config = self.vllm_config.speculative_config
        several = config.method == "mtp" and hasattr(config, "use_multi_module_mtp") and config.use_multi_module_mtp()
        ranges = config.num_speculative_tokens_per_batch_size
        return {
            "drafter": "multi_module_mtp" if several else config.method,
            "disable_lookahead_block_hashes": getattr(config, "disable_lookahead_block_hashes", False),
            "num_lookahead_tokens": self.num_lookahead_tokens,
            "num_hash_lookahead_tokens": getattr(self, "num_hash_lookahead_tokens", 0),
            **({"spec_by_batch": [list(entry) for entry in ranges]} if ranges else {}),
        }

    def _settings_of_encoder(self):
        return {
            "max_num_encoder_input_tokens": self.max_num_encoder_input_tokens,
            "encoder_cache_size": self.encoder_cache_manager.cache_size,
            "disable_chunked_mm_input": self.scheduler_config.disable_chunked_mm_input,
        }

    def _log_events(self):
        publish = self.kv_event_publisher.publish
        num_batches = 0

        def publish_and_log(batch):
            nonlocal num_batches
            self._events.write({"seq": num_batches, "batch": msgspec.to_builtins(batch)})
            num_batches += 1
            publish(batch)

        self.kv_event_publisher.publish = publish_and_log

    def _name(self, request_id):
        """The caller's id, without the random end that the frontend adds; it differs from run to run."""
        if request_id not in self._names:
            name = _RANDOM_END.sub("", request_id)
            self._names[request_id] = request_id if name in self._taken else name
            self._taken.add(name)
        return self._names[request_id]

    def _named(self, request_ids):
        return sorted(self._name(request_id) for request_id in request_ids or ())

    def add_request(self, request):
        super().add_request(request)
        name = self._name(request.request_id)
        self._prompts.write({"id": name, "prompt": list(request.prompt_token_ids)})
        self._tokens[name] = []
        self._added.append(
            {
                "id": name,
                "prompt": request.num_prompt_tokens,
                "max_tokens": request.max_tokens,
                "prio": request.priority,
                "arrival": request.arrival_time,
                "lora": request.lora_request.lora_int_id if request.lora_request else None,
                **({"media": [_item(feature) for feature in request.mm_features]} if request.mm_features else {}),
                **({"resumable": True} if getattr(request, "resumable", False) else {}),
                **({"cache_salt": request.cache_salt} if request.cache_salt else {}),
                **({"skip_reading_prefix_cache": True} if request.skip_reading_prefix_cache else {}),
            }
        )

    def finish_requests(self, request_ids, finished_status):
        finished = super().finish_requests(request_ids, finished_status)
        for request in finished:
            name = self._name(request.request_id)
            self._aborted.append(name)
            self._aborted_at.append(time.monotonic())
            self._answered(name)
        return finished

    def schedule(self, *args, **kwargs):
        begin = time.monotonic()
        plan = super().schedule(*args, **kwargs)
        end = time.monotonic()
        changed = plan.finished_req_ids or plan.preempted_req_ids or plan.free_encoder_mm_hashes
        # An empty one has its place among those in flight: what follows is published with its result.
        if not (plan.num_scheduled_tokens or changed or self._added or self._aborted or self._in_flight):
            return plan
        self._in_flight[id(plan)] = {
            "kind": "step",
            "step": self._num_steps,
            "added": self._added,
            "aborted": self._aborted,
            **({"aborted_at": self._aborted_at} if self._aborted else {}),
            "finished": self._named(plan.finished_req_ids),
            "preempted": self._named(plan.preempted_req_ids),
            "sched": self._rows(plan),
            **self._encoder_inputs(plan),
            **({"drafts": self._drafts} if self._drafts else {}),
            "total": plan.total_num_scheduled_tokens,
            "running": len(self.running),
            "waiting": self.get_request_counts()[1],
            "free_blocks": self.kv_cache_manager.block_pool.get_num_free_blocks(),
            "usage": round(self.kv_cache_manager.usage, 6),
            "t": [begin, end],
        }
        self._num_steps += 1
        self._added, self._aborted, self._aborted_at, self._drafts = [], [], [], {}
        return plan

    def update_draft_token_ids(self, draft_token_ids):
        super().update_draft_token_ids(draft_token_ids)
        for request_id in draft_token_ids.req_ids:
            if request := self.requests.get(request_id):
                self._drafts[self._name(request_id)] = len(request.spec_token_ids)

    def update_from_output(self, scheduler_output, model_runner_output):
        begin = time.monotonic()
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        end = time.monotonic()
        emitted, stopped = {}, []
        for output in (output for client in outputs.values() for output in client.outputs):
            name = self._name(output.request_id)
            if output.new_token_ids:
                emitted[name] = len(output.new_token_ids)
                self._tokens[name] += output.new_token_ids
            if output.finish_reason is not None:
                stopped.append([name, str(output.finish_reason)])
                self._answered(name)
        step = self._in_flight.pop(id(scheduler_output), None)
        if step is not None:
            step["t"] += [begin, end]
            step["emitted"] = emitted
            step["stopped"] = stopped
            step["free_blocks_after"] = self.kv_cache_manager.block_pool.get_num_free_blocks()
            self._steps.write(step)
        return outputs

    def _rows(self, plan):
        """The scheduled requests in order: [id, tokens, computed before, kind, blocks, drafts if any]."""
        new = {request.req_id: request for request in plan.scheduled_new_reqs}
        cached = plan.scheduled_cached_reqs
        index_of = {request_id: index for index, request_id in enumerate(cached.req_ids)}
        rows = []
        for request_id, num_tokens in plan.num_scheduled_tokens.items():
            if request_id in new:
                kind, computed, blocks = "n", new[request_id].num_computed_tokens, new[request_id].block_ids
            else:
                index = index_of[request_id]
                kind = "p" if request_id in cached.resumed_req_ids else "r"
                computed, blocks = cached.num_computed_tokens[index], cached.new_block_ids[index]
            row = [self._name(request_id), num_tokens, computed, kind, self._block_ids(blocks)]
            drafts = plan.scheduled_spec_decode_tokens.get(request_id)
            rows.append(row + [len(drafts)] if drafts else row)
        return rows

    def _block_ids(self, blocks):
        """New blocks; a list for each group where there are several."""
        if not blocks:
            return []
        return [list(group) for group in blocks] if self._has_groups else list(blocks[0])

    def _encoder_inputs(self, plan):
        """Items that the encoder computes, and identifiers of those that left its cache."""
        if not self._has_media:
            return {}
        computed = [[self._name(one), list(items)] for one, items in plan.scheduled_encoder_inputs.items()]
        freed = list(plan.free_encoder_mm_hashes)
        return {**({"enc": computed} if computed else {}), **({"encf": freed} if freed else {})}

    def _answered(self, name):
        tokens = self._tokens.pop(name, None)
        if tokens is not None:
            self._answers.write({"id": name, "tokens": tokens})


def _group(group):
    """A group of layers, in the words of `config.json` of recordings of the scheduler."""
    spec = group.kv_cache_spec
    # Layers of one type that differ in their pages alone.
    layers = getattr(spec, "kv_cache_specs", None)
    spec = next(iter(layers.values())) if layers else spec
    kind, more = type(spec).__name__, {}
    match kind:
        case "FullAttentionSpec":
            kind = "full"
        case "MLAAttentionSpec":
            kind = "mla"
        case "SlidingWindowSpec" | "SlidingWindowMLASpec":
            kind, more = "sliding_window", {"window": spec.sliding_window}
        case "ChunkedLocalAttentionSpec":
            kind, more = "chunked_local", {"window": spec.attention_chunk_size}
        case "MambaSpec":
            # Releases before 0.29 leave no states within chunks.
            leaves = getattr(spec, "num_prefill_checkpoint_blocks", 0)
            more = {"checkpoint": spec.prefill_checkpoint_alignment} if leaves else {}
            kind = "mamba"
    drafter = {"drafter": True} if group.is_eagle_group else {}
    return {"kind": kind, "block_size": spec.block_size, **more, **drafter}


def _item(feature):
    """A multimodal item: [identifier, offset, length], and the runs of embeddings if not all places take one."""
    place = feature.mm_position
    item = [feature.identifier, place.offset, place.length]
    if place.is_embed is None:
        return item
    runs, start = [], None
    for index, is_embed in enumerate([*place.is_embed.tolist(), False]):
        if is_embed and start is None:
            start = index
        elif not is_embed and start is not None:
            runs.append([start, index])
            start = None
    return [*item, runs]


class LoggingScheduler(Logging, Scheduler):
    """For engines without async scheduling."""


class LoggingAsyncScheduler(Logging, AsyncScheduler):
    """For engines with async scheduling."""


class _Lines:
    """A file of JSON lines, whole after each line: engines are often killed."""

    def __init__(self, path):
        self._file = path.open("w", buffering=1)

    def write(self, value):
        self._file.write(json.dumps(value, separators=(",", ":")) + "\n")
