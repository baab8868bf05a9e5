"""Latency models, routers and scheduling policies as Python classes, for experiments.

They are slow: each call takes Python's lock and makes Python's values, so that a run takes a
hundred times as long as with a native model or a guest. Pass classes to ``vcr.run`` with
``plugins={"name": Class}`` and name them in the scenario: ``latency: plugin("name")``. Each engine,
or pool for a router, gets an object of its own, made with a ``PluginContext``. For equal results
from equal seeds, take randomness from ``context.seed`` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class PluginContext(NamedTuple):
    """The place of a plugin."""

    #: Name of the run.
    run: str
    #: Name of the pool.
    pool: str
    #: Index of the engine in its pool; none for a router.
    engine: int | None
    #: Source of its randomness, its own in every run, pool, engine and restart.
    seed: int


class LatencyModel:
    """The duration of steps."""

    def __init__(self, context: PluginContext) -> None:
        self.context = context

    def step_ns(self, shape: Mapping[str, int]) -> int:
        """The duration of a step in nanoseconds; ``shape`` has what it computes, with the names
        of the guest interface: ``prefill_tokens``, ``decode_requests``, ``decode_context_tokens``
        and so on."""
        raise NotImplementedError


class Router:
    """The engine of a pool that takes a request.

    A method ``ended(id, worker, output_tokens, failed)``, if there is one, is called for each
    request that has ended on an engine.
    """

    def __init__(self, context: PluginContext) -> None:
        self.context = context

    def route(self, query: Mapping[str, Any], workers: list[Mapping[str, int]]) -> int | None:
        """The index in ``workers`` of the one that takes the request; none to shed it, where
        ``query["may_refuse"]``. A worker has ``running_requests``, ``waiting_requests``,
        ``cached_prompt_blocks`` (blocks of the prompt in its cache) and so on."""
        raise NotImplementedError


class SchedulingPolicy:
    """The order of admission, preemption victims and chunk sizes of one engine."""

    def __init__(self, context: PluginContext) -> None:
        self.context = context

    def rank(self, request: Mapping[str, Any]) -> int:
        """The admission rank of a request that has arrived, with ``prompt_tokens``, ``priority``,
        ``tenant``, ``arrival_ns`` and so on; the lowest is admitted first."""
        raise NotImplementedError

    def decide(self, batch: Mapping[str, Any]) -> Iterable[tuple[str, int, int]]:
        """Preferences that change: (``admission_rank``, slot, rank), (``eviction_rank``, slot,
        rank) or (``chunk_cap``, slot, tokens). As it is, it ranks each new request once."""
        arrived = (event for event in batch["events"] if event["event"] == "arrived")
        return [("admission_rank", event["slot"], self.rank(event)) for event in arrived]
