"""A scheduler class for vLLM that writes one JSON line per engine step, and changes no decision.

Use: EngineArgs(scheduler_cls="gpu_steplog.StepLog") with this folder on PYTHONPATH and the output
path in STEPLOG. It calls the stock (asynchronous) scheduler, and puts a CUDA event before and after
each step's work on the model runner's stream, so a line holds the GPU's own times too.
"""
import collections
import json
import os
import time

from live_log import Logging
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

_clock = time.monotonic
_slots = collections.deque()  # one per executed step whose sampling is still to come


class _Marks:
    __slots__ = ("first", "last", "begin", "launched", "end")


def _patch(cls, event):
    """Marks the model runner's work: an event at its begin and one after sampling."""
    execute, sample = cls.execute_model, cls.sample_tokens

    def execute_model(self, scheduler_output, *args, **kwargs):
        if not scheduler_output.total_num_scheduled_tokens:
            return execute(self, scheduler_output, *args, **kwargs)
        marks = _Marks()
        marks.begin = _clock()
        marks.first = event()
        scheduler_output._marks = marks
        _slots.append(marks)
        out = execute(self, scheduler_output, *args, **kwargs)
        marks.launched = _clock()
        return out

    def sample_tokens(self, *args, **kwargs):
        out = sample(self, *args, **kwargs)
        if _slots:
            marks = _slots.popleft()
            marks.last = event()
            marks.end = _clock()
        return out

    cls.execute_model, cls.sample_tokens = execute_model, sample_tokens


def _patch_runners():
    import torch

    if torch.cuda.is_available():
        def event():
            e = torch.cuda.Event(enable_timing=True)
            e.record()
            return e
    else:
        def event():
            return None
    done = []
    for name in ("vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu_model_runner"):
        import importlib
        import sys

        if name in sys.modules:
            _patch(importlib.import_module(name).GPUModelRunner, event)
            done.append(name)
    return done


class _Log:
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self._file = open(os.environ["STEPLOG"], "w", buffering=1 << 20)
        self._lines = 0
        self._open = {}
        self._done = collections.deque()
        self._previous = None
        self._num_added = 0
        config = self.scheduler_config
        self._file.write(json.dumps({
            "kind": "engine",
            "marked": _patch_runners(),
            "num_gpu_blocks": self.cache_config.num_gpu_blocks,
            "block_size": self.block_size,
            "max_num_seqs": self.max_num_running_reqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "policy": config.policy,
            "chunked_prefill": config.enable_chunked_prefill,
            "long_prefill_token_threshold": config.long_prefill_token_threshold,
            "prefix_caching": self.cache_config.enable_prefix_caching,
            "async_scheduling": config.async_scheduling,
            "v2_model_runner": getattr(self, "use_v2_model_runner", None),
            "reserve_full_isl": getattr(self, "scheduler_reserve_full_isl", None),
            "watermark": getattr(config, "watermark", None),
            "free_blocks_at_start": self.kv_cache_manager.block_pool.get_num_free_blocks(),
            "t": _clock(),
        }) + "\n")
        self._file.flush()

    def add_request(self, request):
        super().add_request(request)
        self._num_added += 1

    def schedule(self, *a, **k):
        t0 = _clock()
        out = super().schedule(*a, **k)
        t1 = _clock()
        if not out.total_num_scheduled_tokens:
            return out
        counts, requests = out.num_scheduled_tokens, self.requests
        chunks, decodes, context = [], 0, 0
        for new in out.scheduled_new_reqs:
            chunks.append((counts[new.req_id], new.num_computed_tokens))
        cached = out.scheduled_cached_reqs
        for rid, computed in zip(cached.req_ids, cached.num_computed_tokens):
            n = counts[rid]
            if n == 1 and computed >= requests[rid].num_prompt_tokens:
                decodes += 1
                context += computed
            else:
                chunks.append((n, computed))
        self._open[id(out)] = {
            "t": [t0, t1],
            "pn": len(chunks),
            "pt": sum(c[0] for c in chunks),
            "pc": sum(c[1] for c in chunks),
            "dn": decodes,
            "dc": context,
            "total": out.total_num_scheduled_tokens,
            "chunks": chunks,
            "added": self._num_added,
            "running": len(self.running),
            "waiting": len(self.waiting),
            "free": self.kv_cache_manager.block_pool.get_num_free_blocks(),
            "preempted": len(out.preempted_req_ids or ()),
            "host": _clock(),
        }
        self._num_added = 0
        return out

    def update_from_output(self, scheduler_output, model_runner_output):
        record = self._open.pop(id(scheduler_output), None)
        t2 = _clock()
        result = super().update_from_output(scheduler_output, model_runner_output)
        if record is not None:
            t3 = _clock()
            marks = getattr(scheduler_output, "_marks", None)
            log = record.pop("host") - record["t"][1]
            if marks is None:
                record["t"] += [None, None, None, t2, t3]
            else:
                record["t"] += [marks.begin, marks.launched, marks.end, t2, t3]
            record["t"] = [x if x is None else round(x, 6) for x in record["t"]]
            record["log_us"] = round(log * 1e6)
            record["emitted"] = sum(
                1 for e in result.values() for o in e.outputs if o.new_token_ids)
            record["stopped"] = sum(
                1 for e in result.values() for o in e.outputs if o.finish_reason is not None)
            self._done.append((record, marks))
            self._write(False)
        return result

    def _write(self, wait):
        while self._done:
            record, marks = self._done[0]
            if marks is not None and marks.last is not None:
                if wait:
                    marks.last.synchronize()
                elif not marks.last.query():
                    return
                gap = None
                if self._previous is not None:
                    gap = round(self._previous.elapsed_time(marks.first), 4)
                record["gpu_gap_ms"] = gap
                record["gpu_ms"] = round(marks.first.elapsed_time(marks.last), 4)
                self._previous = marks.last
            self._done.popleft()
            self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
            self._lines += 1
            if self._lines % 1000 == 0 or not self.running:
                self._file.flush()

    def shutdown(self):
        try:
            self._write(True)
        finally:
            self._file.close()
        super().shutdown()


class StepLog(_Log, AsyncScheduler):
    """The stock asynchronous scheduler, logged."""


class SyncStepLog(_Log, Scheduler):
    """The stock synchronous scheduler, logged."""


class _Decisions(Logging):
    """What tests/oracle/live_log.py writes to STEP_LOG_DIR, until that folder holds a file `stop`.

    It takes longer than the log of times: capture.py makes the file before the loads that are timed.
    """

    _is_stopped = False

    def add_request(self, request):
        if not self._is_stopped and os.path.exists(os.path.join(os.environ["STEP_LOG_DIR"], "stop")):
            self._is_stopped = True
        (super(Logging, self) if self._is_stopped else super()).add_request(request)

    def finish_requests(self, *a, **k):
        return (super(Logging, self) if self._is_stopped else super()).finish_requests(*a, **k)

    def schedule(self, *a, **k):
        return (super(Logging, self) if self._is_stopped else super()).schedule(*a, **k)

    def update_from_output(self, *a, **k):
        return (super(Logging, self) if self._is_stopped else super()).update_from_output(*a, **k)


class StepAndDecisionLog(_Log, _Decisions, AsyncScheduler):
    """The stock asynchronous scheduler, its times and, of the first loads, its decisions logged."""
