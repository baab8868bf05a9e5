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
        folder = Path(os.environ["STEP_LOG_DIR"])
        folder.mkdir(parents=True, exist_ok=True)
        self._steps = _Lines(folder / "steps.jsonl")
        self._prompts = _Lines(folder / "requests.jsonl")
        self._answers = _Lines(folder / "tokens.jsonl")
        self._num_steps = 0
        self._added = []
        self._aborted = []
        self._tokens = {}
        self._names = {}
        self._taken = set()
        # Steps that wait for their result, by the identity of their plan.
        self._in_flight = {}
        if self.kv_events_config and self.kv_events_config.enable_kv_cache_events:
            self._log_events(_Lines(folder / "kv_events.jsonl"))
        settings = {
            "vllm": vllm.__version__.split("+")[0],
            "engine_args": {
                "prefix_caching_hash_algo": self.cache_config.prefix_caching_hash_algo,
                "long_prefill_token_threshold_adaptive": getattr(
                    self.scheduler_config, "long_prefill_token_threshold_adaptive", False
                ),
            },
        }
        (folder / "engine.json").write_text(json.dumps(settings, indent=1))
        self._steps.write(self._settings())

    def _settings(self):
        config = self.scheduler_config
        return {
            "kind": "engine",
            "num_gpu_blocks": self.cache_config.num_gpu_blocks,
            "block_size": self.block_size,
            "max_num_seqs": self.max_num_running_reqs,
            "max_num_active_reqs": self.max_num_active_reqs,
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
        }

    def _log_events(self, lines):
        publish = self.kv_event_publisher.publish
        num_batches = 0

        def publish_and_log(batch):
            nonlocal num_batches
            lines.write({"seq": num_batches, "batch": msgspec.to_builtins(batch)})
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
            }
        )

    def finish_requests(self, request_ids, finished_status):
        finished = super().finish_requests(request_ids, finished_status)
        for request in finished:
            name = self._name(request.request_id)
            self._aborted.append(name)
            self._answered(name)
        return finished

    def schedule(self, *args, **kwargs):
        begin = time.monotonic()
        plan = super().schedule(*args, **kwargs)
        end = time.monotonic()
        if not (plan.num_scheduled_tokens or plan.finished_req_ids or self._added or self._aborted):
            return plan
        self._in_flight[id(plan)] = {
            "kind": "step",
            "step": self._num_steps,
            "added": self._added,
            "aborted": self._aborted,
            "finished": self._named(plan.finished_req_ids),
            "preempted": self._named(plan.preempted_req_ids),
            "sched": self._rows(plan),
            "total": plan.total_num_scheduled_tokens,
            "running": len(self.running),
            "waiting": len(self.waiting),
            "free_blocks": self.kv_cache_manager.block_pool.get_num_free_blocks(),
            "usage": round(self.kv_cache_manager.usage, 6),
            "t": [begin, end],
        }
        self._num_steps += 1
        self._added, self._aborted = [], []
        return plan

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
            # Of several groups of layers only the first is told; the replay knows one.
            row = [self._name(request_id), num_tokens, computed, kind, list(blocks[0]) if blocks else []]
            drafts = plan.scheduled_spec_decode_tokens.get(request_id)
            rows.append(row + [len(drafts)] if drafts else row)
        return rows

    def _answered(self, name):
        tokens = self._tokens.pop(name, None)
        if tokens is not None:
            self._answers.write({"id": name, "tokens": tokens})


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
