"""Drives vLLM's own V1 scheduler without an engine, and writes down what it decides.

The model is pretended: the j-th output token of request r is
(100000 + r) * 4096 + j, or the stop token at `stop_at`. How many tokens a step
returns and how many drafts follow is asked of an object given to `Drive`.
"""

import heapq
from collections import Counter, deque
from importlib.metadata import version

import torch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from event_numbers import EventNumbers, WindowFrees
from session_parts import SessionParts
from scripted_connector import OneByOne, connector_output, transfer_params
from structured.grammars import PretendedGrammars
from vllm_scheduler import effective, hash_block_size, is_encoder_decoder, new_scheduler

STOP_TOKEN = 7
PLACEHOLDER_TOKEN = 5
TOKENS_PER_SEGMENT = 4096
FIRST_OUTPUT_SEGMENT = 100_000
# Less the local part, which names the build.
VLLM_VERSION = version("vllm").split("+")[0]


class DidNotFinish(Exception):
    """The scheduler makes no progress, or the case is longer than allowed."""


def feature(identity, offset, length, runs=None):
    """A multimodal item; `runs` are the placeholders that embeddings replace, if not all are."""
    is_embed = None
    if runs is not None:
        is_embed = torch.zeros(length, dtype=torch.bool)
        for start, end in runs:
            is_embed[start:end] = True
    position = PlaceholderRange(offset=offset, length=length, is_embed=is_embed)
    name = str(identity)
    # Of one letter there is one object, as in an engine that reads its requests from a socket; pickles tell it.
    name = chr(ord(name)) if len(name) == 1 else name
    return MultiModalFeatureSpec(data=None, modality="image", identifier=name, mm_position=position)


def counters_of(cache):
    """The counters of lookups, and those of requests back after a preemption."""
    own = [cache.requests, cache.queries, cache.hits]
    return [*own, cache.preempted_requests, cache.preempted_queries, cache.preempted_hits]


class Drive:
    """One run of one case, an iteration of the engine's loop at a time.

    `answers` is the pretended model: `sampled(schedule, request, drafts, outputs)`
    says how many tokens a request gets that already has `outputs` (it may be
    asked after the request has finished), `proposed(schedule, request, outputs)`
    how many drafts its next step is offered, and `fitting(schedule, request, drafts, outputs)`
    how many of them its grammar takes, if it has structured outputs.

    `requests` are the dictionaries of requests.jsonl. A request without `at`
    waits for `after`; `abort_on` (an event) and `abort_in` (iterations after
    it) become `abort_at` when the event happens. All three are filled in, and so is `at` of the parts of a resumable
    request.
    """

    def __init__(
        self,
        config,
        requests,
        model,
        answers,
        iterations_max,
        add_order=None,
        model_runner_v2=False,
        transfers=None,
        pauses=(),
        **classes,
    ):
        self.config = config
        self.scheduler = new_scheduler(config, model, model_runner_v2, **classes)
        self._has_groups = "groups" in config
        self.effective = effective(self.scheduler, config)
        self.batch_queue_size = self.scheduler.vllm_config.max_concurrent_batches
        self.steps = []
        self._requests = {request["id"]: request for request in requests}
        self._answers = answers
        self._iterations_max = iterations_max
        self._events = EventNumbers(self._has_groups)
        self.scheduler.kv_event_publisher = self._events
        if hasattr(self.scheduler, "start_log"):
            self.scheduler.start_log()
        self._connector = None
        self._transfers = transfers
        self._pauses = deque(transfers.pauses if transfers else pauses)
        self._pause = None
        if "connector" in config:
            self._connector = self.scheduler.connector
            self._connector.script = transfers
        self._has_grammars = any("grammar" in request for request in requests)
        if self._connector or self._has_grammars:
            OneByOne(self.scheduler)
        self._window_frees = None
        if self._has_groups:
            managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
            self._window_frees = WindowFrees(managers)
        self._hasher = self._block_hasher()
        self._iteration = 0
        self._added = 0
        self._schedules = 0
        self._idle_schedules = 0
        self._in_flight = deque()
        self._outputs = Counter()
        self._grammars = PretendedGrammars(answers, self._outputs)
        # Of the latest step that computes anything: the requests that it samples, and how many drafts they get.
        self._drafted = (set(), 0)
        self._done = set()
        self._to_add = []
        self._to_abort = {}
        self._followers = {}
        self._parts = SessionParts(requests)
        order = {identity: index for index, identity in enumerate(add_order or ())}
        for request in requests:
            identity = request["id"]
            if "at" in request:
                heapq.heappush(self._to_add, (request["at"], order.get(identity, identity), identity))
            else:
                self._followers.setdefault(request["after"], []).append(identity)
            if "abort_at" in request:
                self._to_abort.setdefault(request["abort_at"], []).append(identity)

    def run(self):
        """Yields the lines of steps.jsonl."""
        while self._to_add or self._parts.due or self._in_flight or self._pauses or self.scheduler.has_requests():
            if self._iteration >= self._iterations_max:
                raise DidNotFinish(f"not finished after {self._iterations_max} iterations")
            line = {"i": self._iteration}
            if self._connector:
                self._transfers.iteration = self._iteration
            while self._pauses and self._pauses[0][0] <= self._iteration:
                self._pause = self._pauses.popleft()[1]
                self.scheduler.set_pause_state(PauseState[self._pause])
            if self._pause:
                line["pause"] = self._pause
            self._add(line)
            self._send_parts(line)
            self._abort(line)
            if compiled := self._grammars.end_due(self._iteration, self.scheduler.requests):
                line["gram"] = compiled
            self._step(line)
            # A pause alone is written into the next line that has more.
            if len(line) > 1 + ("pause" in line):
                self._pause = None
                self.steps.append(line)
                yield line
            self._iteration += 1

    def stats(self):
        """Totals over the run; the last iteration is the one that finds nothing to do."""
        counters = [line["pc"] for line in self.steps if "pc" in line]
        events = [event for line in self.steps for event in line.get("ev", ())]
        return {
            "iterations": self._iteration + 1,
            "schedules": self._schedules,
            "preemptions": sum(len(line.get("pre", ())) for line in self.steps),
            "tokens": sum(tokens for line in self.steps for _, tokens in line.get("out", ())),
            "hits": sum(counter[2] for counter in counters),
            "queries": sum(counter[1] for counter in counters),
            "aborted": sum(len(line.get("abort", ())) for line in self.steps),
            "max_running": max((len(line.get("run", ())) for line in self.steps), default=0),
            "evicted": sum(len(event[1]) for event in events if event[0] == "R"),
        }

    def _block_hasher(self):
        # As vLLM's engine core: connectors know blocks by their hashes, too.
        if not self.config["prefix_caching"] and "connector" not in self.config:
            return None
        hash_function = get_hash_fn_by_name(
            self.scheduler.cache_config.prefix_caching_hash_algo
        )
        init_none_hash(hash_function)
        # Since 0.33 a hash may cover tokens after its block.
        ahead = getattr(self.scheduler, "num_hash_lookahead_tokens", 0)
        more = [ahead] if ahead else []
        return get_request_block_hasher(hash_block_size(self.config), hash_function, *more)

    def _add(self, line):
        added = []
        while self._to_add and self._to_add[0][0] <= self._iteration:
            identity = heapq.heappop(self._to_add)[2]
            made = self._new_request(self._requests[identity])
            self._grammars.begin(self._requests[identity], made, self._iteration)
            self.scheduler.add_request(made)
            added.append(identity)
            self._parts.sent(identity, self._iteration)
        if added:
            line["add"] = added
        self._happened("add", added)

    def _send_parts(self, line):
        """Further parts of resumable requests, and their ends."""
        more = []
        for identity, part in self._parts.take_due(self._iteration):
            name = str(identity)
            if name not in self.scheduler.requests:
                continue
            request = {**self._requests[identity], "prompt": [[1, 1]], "max_tokens": 1, **part}
            self.scheduler.add_request(self._new_request(request, "prompt" in part))
            more.append(identity)
            self._parts.sent(identity, self._iteration)
            if name not in self.scheduler.requests:
                self._finished([identity])
        if more:
            line["more"] = more

    def _new_request(self, request, resumable=None):
        prompt = [
            segment * TOKENS_PER_SEGMENT + index
            for segment, length in request["prompt"]
            for index in range(length)
        ]
        features = []
        for item in request.get("media", ()):
            _, offset, length, *_ = item
            if not is_encoder_decoder(self.config):
                prompt[offset : offset + length] = [PLACEHOLDER_TOKEN] * length
            features.append(feature(*item))
        lora = request.get("lora")
        self._added += 1
        params = transfer_params(request.get("remote"), request["id"])
        return Request(
            request_id=str(request["id"]),
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(
                max_tokens=request["max_tokens"],
                ignore_eos=True,
                stop_token_ids=[STOP_TOKEN],
                extra_args={"kv_transfer_params": params} if params else None,
                structured_outputs=self._grammars.params(request),
                skip_reading_prefix_cache=request.get("skip_reading_prefix_cache"),
            ),
            pooling_params=None,
            arrival_time=float(self._added),
            lora_request=LoRARequest(f"lora-{lora}", lora, f"lora-{lora}") if lora else None,
            priority=request["prio"],
            cache_salt=request.get("cache_salt"),
            mm_features=features,
            block_hasher=self._hasher,
            resumable="parts" in request if resumable is None else resumable,
        )

    def _abort(self, line):
        aborted = []
        # One call each: a call with several ids frees them in the order of a set.
        for identity in sorted(self._to_abort.pop(self._iteration, ())):
            if self.scheduler.finish_requests(str(identity), RequestStatus.FINISHED_ABORTED):
                aborted.append(identity)
        if aborted:
            line["abort"] = aborted
        self._finished(aborted)

    def _step(self, line):
        """One turn of the engine's loop, with or without a queue of batches."""
        scheduler = self.scheduler
        if scheduler.has_requests():
            if self._connector:
                self._transfers.schedule = self._schedules
            if self._window_frees:
                # With a connector ends of requests free blocks, too.
                self._window_frees.take()
            output = scheduler.schedule()
            returns = {
                name
                for name in output.num_scheduled_tokens
                if not scheduler.requests[name].is_prefill_chunk
            }
            self._in_flight.append((self._schedules, output, returns))
            self._write_schedule(line, output)
            self._schedules += 1
            self._watch_progress(output)
            executed = output.total_num_scheduled_tokens > 0
            drafted = self._drafted
            if executed:
                self._drafted = (returns, output.num_spec_tokens_to_schedule)
            if executed and output.pending_structured_output_tokens:
                # It samples once the tokens of the step before are known.
                self._update(line, *self._in_flight.popleft())
                if self.config["spec"]:
                    self._grammars.check_drafts(scheduler, output, self._schedules - 1, *drafted)
                return
            if len(self._in_flight) < self.batch_queue_size and (
                executed or scheduler.has_requests()
            ):
                return
        if self._in_flight:
            self._update(line, *self._in_flight.popleft())

    def _watch_progress(self, output):
        idle = not output.num_scheduled_tokens and not self._to_add and not self._to_abort
        idle = idle and not self._parts.due and not self._grammars.pending() and not (self._connector and self._transfers.pending()) and not self._pauses
        self._idle_schedules = self._idle_schedules + 1 if idle else 0
        if self._idle_schedules > 20:
            raise DidNotFinish(
                f"stalled in iteration {self._iteration}: nothing is scheduled, "
                f"{len(self.scheduler.running)} running, {len(self.scheduler.waiting)} waiting"
            )

    def _write_schedule(self, line, output):
        scheduler = self.scheduler
        new = {request.req_id: request for request in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        place = {name: index for index, name in enumerate(cached.req_ids)}
        scheduled = []
        for name, tokens in output.num_scheduled_tokens.items():
            if name in new:
                kind, computed, blocks = "n", new[name].num_computed_tokens, new[name].block_ids
            else:
                kind = "p" if name in cached.resumed_req_ids else "r"
                computed = cached.num_computed_tokens[place[name]]
                blocks = cached.new_block_ids[place[name]]
            entry = [int(name), tokens, computed, kind, self._block_ids(blocks)]
            drafts = output.scheduled_spec_decode_tokens.get(name)
            scheduled.append(entry + [len(drafts)] if drafts else entry)
        line["s"] = self._schedules
        line["sched"] = scheduled
        line["tot"] = output.total_num_scheduled_tokens
        preempted = sorted(map(int, output.preempted_req_ids or ()))
        if preempted:
            line["pre"] = preempted
        if output.finished_req_ids:
            line["flush"] = sorted(map(int, output.finished_req_ids))
        line["run"] = [int(request.request_id) for request in scheduler.running]
        line["wait"] = scheduler.get_request_counts()[1]
        line["free"] = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        if self._has_grammars:
            line["skip"] = len(scheduler.deferred_waiting if hasattr(scheduler, "deferred_waiting") else scheduler.skipped_waiting)
        if self._window_frees and (frees := self._window_frees.take()):
            line["win"] = frees
        if self._connector:
            seen = ("look", self._connector.lookups), ("moves", getattr(self._connector, "moves", None))
            line.update(pair for pair in (*seen, ("sync", bool(output.has_sync_kv_loads))) if pair[1])
            self._connector.lookups, self._connector.moves = [], {}
        if output.scheduled_encoder_inputs:
            line["enc"] = [[int(name), list(items)] for name, items in output.scheduled_encoder_inputs.items()]
        if output.free_encoder_mm_hashes:
            line["encf"] = [int(identity) for identity in output.free_encoder_mm_hashes]
        self._happened("schedule", [entry[0] for entry in scheduled])
        self._happened("preempt", preempted)

    def _block_ids(self, blocks):
        """New blocks; a list for each group where the case has groups."""
        if not blocks:
            return []
        return [list(group) for group in blocks] if self._has_groups else list(blocks[0])

    def _update(self, line, number, output, returns):
        """Answers the schedule `number` and applies the answer."""
        names = list(output.num_scheduled_tokens)
        tokens = []
        sampled = {}
        invalid = output.num_invalid_spec_tokens or {}
        for name in names:
            count = 0
            if name in returns:
                drafts = len(output.scheduled_spec_decode_tokens.get(name, ())) - invalid.get(name, 0)
                count = self._answers.sampled(number, int(name), drafts, self._outputs[int(name)])
                if count != 1:
                    sampled[name] = count
            tokens.append(self._tokens(int(name), count))
        answer = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
        )
        if self._connector and (report := self._transfers.report(number, output.kv_connector_metadata)):
            line["kv"] = report
            answer.kv_connector_output = connector_output(report)
        results = self.scheduler.update_from_output(output, answer)
        outputs = [result for client in results.values() for result in client.outputs]
        self._write_counters(line, results)
        line["u"] = number
        if sampled:
            line["sampled"] = sampled
        line["out"] = [[int(one.request_id), len(one.new_token_ids)] for one in outputs]
        for identity, count in line["out"]:
            self._outputs[identity] += count
        if self.config["spec"] and not self.config["async_scheduling"]:
            self._propose(line, number, output.num_spec_tokens_to_schedule)
        if self._has_grammars:
            self._grammars.write_invalid(line, invalid if self.config["async_scheduling"] else None)
        finished = [one for one in outputs if one.finish_reason is not None]
        if finished:
            line["fin"] = [[int(one.request_id), str(one.finish_reason)] for one in finished]
        events = self._events.take()
        if events:
            line["ev"] = events
        self._happened("output", [identity for identity, _ in line["out"]])
        self._finished([int(one.request_id) for one in finished if not self._goes_on(int(one.request_id))])

    def _tokens(self, identity, count):
        first = self._outputs[identity]
        stop_at = self._parts.stop_at(identity)
        segment = (FIRST_OUTPUT_SEGMENT + identity) * TOKENS_PER_SEGMENT
        return [
            STOP_TOKEN if index == stop_at else segment + index
            for index in range(first, first + count)
        ]

    def _write_counters(self, line, results):
        stats = next(one.scheduler_stats for one in results.values() if one.scheduler_stats)
        counters = counters_of(stats.prefix_cache_stats)
        if any(counters):
            line["pc"] = counters
        drafting = stats.spec_decoding_stats
        if self._has_grammars and drafting:
            line["sd"] = [drafting.num_drafts, drafting.num_draft_tokens, drafting.num_accepted_tokens]
        if self._connector:
            self._write_external_counters(line, stats.connector_prefix_cache_stats)

    def _write_external_counters(self, line, cache):
        """Lookups beyond the engine's own cache: as the other counters, and the KV that is held."""
        counters = counters_of(cache)
        if any(counters):
            line["xc"] = counters

    def _propose(self, line, number, most):
        """Without async scheduling the drafts are handed over after the step; at most as many as its batch size allows."""
        self._grammars.schedule = number
        drafts = [
            [identity, min(most, self._answers.proposed(number, identity, self._outputs[identity]))]
            for identity, tokens in line["out"]
            if tokens
        ]
        # A drafter proposes for chunks of prompts, too, and the scheduler forgets what it has for them.
        chunks = [[identity, 0] for identity in self._parts.chunks(self.scheduler)]
        if drafts:
            line["drafts"] = drafts
        if proposed := drafts + chunks:
            names, counts = zip(*proposed)
            tokens = [[0] * count for count in counts]
            self.scheduler.update_draft_token_ids(DraftTokenIds([str(name) for name in names], tokens))

    def _goes_on(self, identity):
        """Whether a resumable request goes on after its outputs have ended; the next ones count from 0 again."""
        if not self._parts.has(identity) or str(identity) not in self.scheduler.requests:
            return False
        request = self.scheduler.requests[str(identity)]
        if request not in self.scheduler.waiting and request not in self.scheduler.kv_holding_waiting:
            raise DidNotFinish(f"request {identity} ended a part while it was preempted, and is in no queue any more")
        self._outputs[identity] = 0
        self._parts.ended(identity, self._iteration)
        return True

    def _happened(self, event, identities):
        """Sets the iteration of the aborts that wait for this event."""
        for identity in identities:
            request = self._requests[identity]
            if request.get("abort_on") != event:
                continue
            del request["abort_on"]
            at = self._iteration + request.pop("abort_in")
            multiple = request.pop("abort_multiple", 1)
            at = (at + multiple - 1) // multiple * multiple
            if at == self._iteration and event != "add":
                at += multiple
            request["abort_at"] = at
            self._to_abort.setdefault(at, []).append(identity)

    def _finished(self, identities):
        for identity in identities:
            if identity in self._done:
                continue
            self._done.add(identity)
            for follower in self._followers.pop(identity, ()):
                self._follow(self._requests[follower], self._requests[identity])

    def _follow(self, request, earlier):
        """A further turn repeats the earlier prompt and its answer, less the stop token."""
        identity = earlier["id"]
        answer = self._outputs[identity]
        if "stop_at" in earlier:
            answer = min(answer, earlier["stop_at"])
        prompt = list(earlier["prompt"])
        if answer:
            prompt.append([FIRST_OUTPUT_SEGMENT + identity, answer])
        before = sum(length for _, length in prompt)
        request["prompt"] = prompt + request["prompt"]
        if not is_encoder_decoder(self.config) and ("media" in request or "media" in earlier):
            own = [[kind, before + offset, *rest] for kind, offset, *rest in request.get("media", ())]
            request["media"] = earlier.get("media", []) + own
        if "cache_salt" in earlier:
            request["cache_salt"] = earlier["cache_salt"]
        request["at"] = self._iteration + request["gap"]
        entry = (request["at"], len(self._requests) + request["id"], request["id"])
        heapq.heappush(self._to_add, entry)
