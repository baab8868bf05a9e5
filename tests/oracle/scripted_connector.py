"""KV connectors in the role of the scheduler: one that answers as a script says, and vLLM's own ones for NIXL and offloading.

vLLM's scheduler builds them as it builds any connector, by name and module. Nothing is moved: what workers would report is
drawn by `DrawnTransfers`, or taken from a recording by `RecordedTransfers`, and so is what the scripted one answers.
"""

import random
from hashlib import blake2b

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlConnector
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

# Loads of one request that find something, unless the connector always hits; vLLM asks for ever for a prompt of one token
# that is found each time.
LOADS_MAX = 6
# Settings of the connector for offloading.
OFFLOADING_SETTINGS = ["eviction_policy", "store_threshold", "max_tracker_size", "offload_prompt_only", "blocks_per_chunk"]
# Ends of requests whose KV another engine may still read.
ENDS_WITH_KV = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


def transfer_config(connector):
    """The configuration of a case's connector."""
    return KVTransferConfig(
        kv_connector=CONNECTORS[connector["kind"]],
        kv_connector_module_path="scripted_connector",
        kv_role=connector["role"],
        kv_load_failure_policy=connector["load_failures"],
        kv_connector_extra_config={
            "delivery": connector["delivery"],
            "chunks": connector.get("chunks"),
            # Of the connector for offloading; what follows from it is set to `chunks`.
            "cpu_bytes_to_use": 1 << 30,
            **{name: connector[name] for name in OFFLOADING_SETTINGS if name in connector},
        },
    )


class Watched:
    """Goes before a connector in the list of base classes, and notes what it answers; `script` is set by the driver."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        groups = kv_cache_config.kv_cache_groups
        self._tokens_per_block = groups[0].kv_cache_spec.block_size * vllm_config.parallel_config.decode_context_parallel_size
        self._has_groups = len(groups) > 1
        self.script = None
        # Lookups of the schedule being made: [request, cached here, found, whether it is loaded while the request waits].
        self.lookups = []

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        found, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        self.lookups.append([int(request.request_id), num_computed_tokens, found, is_async])
        return found, is_async

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if not num_external_tokens:
            return
        _, local, _, is_async = next(one for one in reversed(self.lookups) if one[0] == int(request.request_id))
        first, end = local // self._tokens_per_block, -(-(local + num_external_tokens) // self._tokens_per_block)
        # vLLM knows blocks that failed of one group alone, and a window may have none.
        written = [] if self._has_groups else [block for block in blocks.get_block_ids()[0][first:end] if block]
        self.script.loads(int(request.request_id), is_async, written)

    def request_finished_all_groups(self, request, block_ids):
        is_held, params = super().request_finished_all_groups(request, block_ids)
        if is_held:
            self.script.held(int(request.request_id))
        return is_held, params


class ScriptedAnswers(KVConnectorBase_V1, SupportsHMA):
    """A connector whose answers are those of a script."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._delivery = vllm_config.kv_transfer_config.kv_connector_extra_config["delivery"]

    @property
    def requires_kv_delivery(self):
        return self._delivery

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.script.find(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        pass

    def request_finished_all_groups(self, request, block_ids):
        has_kv = request.status in ENDS_WITH_KV and any(block_ids)
        return has_kv and self.script.holds(int(request.request_id)), None

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context, **kwargs):
        raise NotImplementedError("there is no worker")

    def wait_for_layer_load(self, layer_name):
        raise NotImplementedError("there is no worker")

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        raise NotImplementedError("there is no worker")

    def wait_for_save(self):
        raise NotImplementedError("there is no worker")


class ScriptedConnector(Watched, ScriptedAnswers):
    """Named in the configuration of cases of the kind `scripted`."""


class WatchedNixlConnector(Watched, NixlConnector):
    """Named in the configuration of cases of the kind `nixl`: vLLM's `NixlConnector` as it is."""


class WatchedOffloadingConnector(Watched, OffloadingConnector):
    """Named in the configuration of cases of the kind `offloading`: vLLM's `OffloadingConnector` with the CPU's memory."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        own = vllm_config.kv_transfer_config.kv_connector_extra_config
        # The pages of the small model would be rounded up to those of the memory.
        self.connector_scheduler.manager = CPUOffloadingManager(
            num_chunks=own["chunks"],
            cache_policy=own.get("eviction_policy", "lru"),
            store_threshold=own.get("store_threshold", 0),
            max_tracker_size=own.get("max_tracker_size", 64_000),
        )
        # What the latest schedule has copied: [job, request, [places in the memory]] of loads and stores, and jobs waited for.
        self.moves = {}

    def build_connector_meta(self, scheduler_output):
        # vLLM goes through a set.
        ended = scheduler_output.finished_req_ids
        scheduler_output.finished_req_ids = sorted(ended, key=int)
        metadata = super().build_connector_meta(scheduler_output)
        scheduler_output.finished_req_ids = ended
        moves = {
            "load": [[job, int(one.req_id), places(one.src_spec)] for job, one in metadata.load_jobs.items()],
            "store": [[job, int(one.req_id), places(one.dst_spec)] for job, one in metadata.store_jobs.items()],
            "flush": sorted(metadata.jobs_to_flush or ()),
        }
        self.moves = {kind: jobs for kind, jobs in moves.items() if jobs}
        return metadata


def places(spec):
    """The places in the CPU's memory that a copy reads or writes."""
    return [int(place) for place in spec.chunk_ids]


CONNECTORS = {
    "scripted": "ScriptedConnector",
    "nixl": "WatchedNixlConnector",
    "offloading": "WatchedOffloadingConnector",
}


def transfer_params(remote, identity):
    """What a router says of a request that another engine has a part in; None if no other has."""
    match remote:
        case "decode":
            return {"do_remote_decode": True, "do_remote_prefill": False}
        case "prefill":
            return {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [[1]],
                "remote_engine_id": "prefill",
                "remote_request_id": f"remote-{identity}",
                "remote_host": "localhost",
                "remote_port": 1,
                "tp_size": 1,
            }
    return None


class DrawnTransfers:
    """Transfers drawn by a hash of the request and what happened to it, so that they do not depend on order."""

    def __init__(self, seed, number, config):
        rng = random.Random(f"transfers/{seed}/{number}")
        self._key = f"{seed}/{number}"
        self._block_size = config["block_size"]
        self._has_found = rng.choice([0.3, 0.6, 0.9])
        self._is_async = rng.choice([0.0, 0.5, 1.0, 1.0])
        self._extents = rng.choice([["blocks"], ["blocks", "all"], ["blocks", "all", "any"], ["all"]])
        self._undecided = rng.choice([0.0, 0.0, 0.2])
        self._loads_max = LOADS_MAX
        self._latency = rng.choice([1, 2, 5, 20])
        self._fails = rng.choice([0.0, 0.15, 0.5])
        self._fails_by_request = rng.choice([0.0, 0.3])
        self._held_for = rng.choice([1, 5, 30])
        self._hold = set()
        # Loads that go on: request, iteration of the report, blocks of the failure, whether it is named by request.
        self._loads = {}
        # Failures of loads in steps: blocks by number of the schedule.
        self._failures = {}
        self._sends = {}
        self._lookups = {}
        # Iterations at which the scheduler is paused and goes on, and its state from then on.
        self.pauses = self._draw_pauses(rng)
        if random.Random(f"hits/{seed}/{number}").random() < 0.2:
            # It finds all that it is asked for, each time.
            self._has_found, self._extents, self._loads_max = 2.0, ["all"], 1 << 30
        self.iteration = 0
        self.schedule = 0

    @staticmethod
    def _draw_pauses(rng):
        pauses = []
        at = 0
        for _ in range(rng.choice([0, 0, 0, 1, 3, 8])):
            at += rng.randint(3, 80)
            pauses.append((at, rng.choice(["PAUSED_NEW", "PAUSED_NEW", "PAUSED_ALL"])))
            at += rng.randint(1, 15)
            pauses.append((at, "UNPAUSED"))
        return pauses

    def holds(self, identity):
        return identity in self._hold

    def held(self, identity):
        """The KV of a request that has ended is read some iterations later, or its lease ends then."""
        self._sends[identity] = self.iteration + 1 + self._hash("held", identity) % self._held_for

    def draw_remotes(self, connector, requests, rng):
        """The part of other engines in requests: prefill before, or decode after."""
        if connector["kind"] == "offloading":
            return
        share = rng.choice([0.0, 0.3, 1.0]) if connector["kind"] == "scripted" else rng.choice([0.5, 0.8, 1.0])
        parts = {"kv_producer": ["decode"], "kv_consumer": ["prefill"], "kv_both": ["prefill", "decode"]}
        for request in requests:
            if rng.random() >= share:
                continue
            if connector["kind"] == "scripted":
                request["hold"] = True
                self._hold.add(request["id"])
            else:
                request["remote"] = rng.choice(parts[connector["role"]])

    def find(self, request, local):
        identity = request.request_id
        if self._share("undecided", identity, self.schedule) < self._undecided:
            return None, False
        turn = request.num_preemptions
        if self._lookups.get(int(identity), 0) >= self._loads_max:
            return 0, False
        is_async = self._share("async", identity) < self._is_async
        if self._share("found", identity, turn) >= self._has_found:
            return 0, False
        # Not more than the prompt before the first preemption, as no other engine has seen more.
        known = request.num_tokens if request.num_preemptions else request.num_prompt_tokens
        match self._extents[self._hash("extent", identity, turn) % len(self._extents)]:
            case "blocks":
                kept = self._hash("kept", identity, turn) % (known // self._block_size + 1) * self._block_size
            case "all":
                kept = known
            case _:
                kept = self._hash("kept", identity, turn) % (known + 1)
        if not is_async:
            kept = min(kept, request.num_tokens - 1)
        found = max(0, kept - local)
        return found, is_async and found > 0

    def loads(self, identity, is_async, blocks):
        turn = self._lookups[identity] = self._lookups.get(identity, 0) + 1
        failed, by_request = [], False
        if self._share("fails", identity, turn) < self._fails:
            if blocks:
                first = self._hash("first", identity, turn) % len(blocks)
                failed = [one for index, one in enumerate(blocks[first:]) if self._hash("bad", identity, turn, index) % 3 < 2]
            by_request = not blocks
        if is_async:
            by_request |= bool(failed) and self._share("by request", identity, turn) < self._fails_by_request
            due = self.iteration + self._hash("due", identity, turn) % self._latency
            self._loads[identity] = (due, failed, by_request)
        elif failed:
            self._failures.setdefault(self.schedule, []).extend(failed)

    def pending(self):
        return bool(self._loads or self._sends)

    def report(self, number, metadata):
        """What the workers report with the result of this schedule, whose connector gave them this."""
        received = sorted(one for one, (due, *_) in self._loads.items() if due <= self.iteration)
        bad = self._failures.pop(number, [])
        failed = []
        for identity in received:
            _, blocks, by_request = self._loads.pop(identity)  # Blocks of the failure, unless it is named by request.
            if by_request:
                failed.append(identity)
            else:
                bad += blocks
        sent = sorted(one for one, due in self._sends.items() if due <= self.iteration)
        for identity in sent:
            del self._sends[identity]
        report = {"recv": received, "send": sent, "bad": sorted(set(bad)), "failed": failed}
        return {kind: entries for kind, entries in report.items() if entries}

    def _hash(self, *parts):
        text = f"{self._key}/{'/'.join(map(str, parts))}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")

    def _share(self, *parts):
        return self._hash(*parts) / 2**64


class OffloadTransfers(DrawnTransfers):
    """A worker of the connector for offloading that copies nothing, and takes its time."""

    def __init__(self, seed, number, config):
        super().__init__(seed, number, config)
        # Jobs by number: iteration of their end, and the request that waits for it.
        self._jobs = {}
        self._stores_of_next_step = []

    def loads(self, identity, is_async, blocks):
        pass

    def pending(self):
        return bool(self._jobs or self._stores_of_next_step)

    def report(self, number, metadata):
        flushed = metadata.jobs_to_flush or set()
        self._stores_of_next_step += [job for job in metadata.store_jobs if job in flushed]
        for job in self._stores_of_next_step:
            self._jobs[job] = (self._due(job), None)
        for job in flushed:
            if job in self._jobs:
                self._jobs[job] = (self.iteration, None)
        for job, load in metadata.load_jobs.items():
            self._jobs[job] = (self._due(job), int(load.req_id))
        # A store begins with the next step, so that it delays no output.
        self._stores_of_next_step = [job for job in metadata.store_jobs if job not in flushed]
        done = sorted(job for job, (due, _) in self._jobs.items() if due <= self.iteration)
        received = sorted(one for one in (self._jobs.pop(job)[1] for job in done) if one is not None)
        return {kind: entries for kind, entries in {"recv": received, "jobs": done}.items() if entries}

    def _due(self, job):
        return self.iteration + self._hash("due", job) % self._latency


def drawn_transfers(seed, number, config):
    """The transfers of a case's connector."""
    kind = OffloadTransfers if config["connector"]["kind"] == "offloading" else DrawnTransfers
    return kind(seed, number, config)


class RecordedTransfers:
    """Transfers as a recording has them."""

    def __init__(self, steps, requests):
        self._found = {(line["s"], one[0]): one[2:] for line in steps for one in line.get("look", ())}
        self._reports = {line["u"]: line["kv"] for line in steps if "kv" in line}
        self._holds = {request["id"] for request in requests if request.get("hold")}
        self.pauses = [(line["i"], line["pause"]) for line in steps if "pause" in line]
        self.iteration = 0
        self.schedule = 0

    def find(self, request, local):
        found, is_async = self._found.get((self.schedule, int(request.request_id)), (0, False))
        return found, is_async

    def loads(self, identity, is_async, blocks):
        pass

    def holds(self, identity):
        return identity in self._holds

    def held(self, identity):
        pass

    def pending(self):
        return bool(self._reports)

    def report(self, number, metadata):
        return self._reports.pop(number, {})


def connector_output(report):
    """A report as the scheduler gets it. Lists, where vLLM has sets: they are gone through in order."""
    return KVConnectorOutput(
        finished_recving=list(map(str, report.get("recv", ()))),
        finished_sending=list(map(str, report.get("send", ()))),
        invalid_block_ids=set(report.get("bad", ())),
        failed_recving=set(map(str, report.get("failed", ()))),
        kv_connector_worker_meta=(
            OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(report["jobs"], 1)) if "jobs" in report else None
        ),
    )


def draw_connector(rng, config, kind):
    """Adds a connector to a configuration."""
    role = rng.choice(["kv_both", "kv_both", "kv_consumer", "kv_producer"])
    # Connectors that hand KV over need it to arrive, caches do not.
    delivery = role != "kv_consumer" and (kind == "nixl" or rng.random() < 0.5)
    failures = rng.choice(["recompute", "recompute", "fail"])
    if kind == "offloading":
        # As for a cache that is not handed over; vLLM sets no other role.
        role, delivery = "kv_both", False
    config["connector"] = {"kind": kind, "role": role, "load_failures": failures, "delivery": delivery}
    if kind == "offloading":
        config["connector"]["chunks"] = rng.choice([8, 30, 100, 400])
        config["connector"]["eviction_policy"] = rng.choice(["lru", "lru", "lru", "arc"])
        config["connector"]["store_threshold"] = rng.choice([0, 0, 0, 0, 2, 3])
        config["connector"]["max_tracker_size"] = rng.choice([64_000, 10, 50])
        config["connector"]["offload_prompt_only"] = rng.random() < 0.6
        config["connector"]["blocks_per_chunk"] = rng.choice([1, 1, 1, 2, 3])


class OneByOne:
    """Has the scheduler end and forget in the order of numbers, where it goes through sets otherwise."""

    def __init__(self, scheduler):
        self._finish = scheduler.finish_requests
        self._evict = scheduler.kv_cache_manager.evict_blocks
        scheduler.finish_requests = self._finish_requests
        scheduler.kv_cache_manager.evict_blocks = lambda blocks: self._evict(sorted(blocks))

    def _finish_requests(self, names, status):
        names = [names] if isinstance(names, str) else sorted(names, key=int)
        return [request for name in names for request in self._finish(name, status)]
