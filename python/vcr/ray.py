"""Sweeps, and simulations of plans, as tasks of Ray. Needs ``pip install 'ray[client]'``.

``sweep`` runs the points of a grid on the cluster that ``ray.init`` finds, with the table, and the
bytes, that one machine makes. What points read is put into the object store once. A task takes as
many points as fit into about half a second, so that Ray's own cost per task is small against them;
how long points take is learned from those that have ended, and the longest go first. Results are
in a folder at once, and an interrupted sweep continues from it.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import math
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from vcr import _vcr
from vcr._api import Source, sweep_words
from vcr._errors import FaultError, InputError, VcrError
from vcr._results import Results
from vcr._scenario import Scenario, located
from vcr._table import Table, _imported

#: What a file of the command line is called there, and the files that lie beside it.
Inputs = Sequence[tuple[str, Sequence[tuple[str, bytes]]]]

#: Tasks in flight for each core: one that runs, one that waits.
_TASKS_PER_CORE = 2

#: Seconds after which a point that has lost a worker is tried again, by its losses; one more, and it
#: is not: it may be what ends them. Ray notices after ten to twenty seconds that a node is gone, on a
#: busy machine after forty, and hands out tasks to a worker that outlives it until then.
_REST_S = (1.0, 4.0, 16.0, 32.0)

#: Seconds after which a plan is asked for further simulations while others are in flight.
_LOOK_EVERY_S = 0.02

#: Time that the points of a task are to take together.
_TASK_S = 0.5


def sweep(
    scenario: str | os.PathLike[str] | Scenario | None = None,
    grid: Mapping[str, object] | None = None,
    *,
    trace: str | os.PathLike[str] | list[str | os.PathLike[str]] | None = None,
    params: Mapping[str, object] | None = None,
    address: str | None = None,
    results: str | os.PathLike[str] | None = None,
    task_s: float = _TASK_S,
    on_row: Callable[[int, dict[str, str]], object] | None = None,
    **options: object,
) -> Table:
    """Runs the points of a grid as tasks of Ray; see ``vcr.sweep`` for what it shares with it.

    Args:
        address: The cluster, as of ``ray.init``: ``ray://host:10001``, ``host:6379``; the one that
            this process is connected to, or a local one, if none is given.
        results: A folder that keeps each result as it comes. A sweep of the same grid continues from
            it; any other is refused.
        task_s: Time that the points of a task are to take together.
        on_row: Called with the number and the values of each point as its result comes.

    Raises:
        ImportError: Ray is not installed.
        InputError: A point is wrong, a worker has another version, the folder is of another grid.
        FaultError: A point has lost its worker several times, or failed.
    """
    words, source = sweep_words(scenario, grid, trace=trace, params=params, **options)
    with located(scenario):
        return _sweep(words, source, address=address, results=results, task_s=task_s, on_row=on_row)


def _sweep(
    words: list[str],
    source: Source | None = None,
    *,
    address: str | None,
    results: str | os.PathLike[str] | None,
    task_s: float = _TASK_S,
    on_row: Callable[[int, dict[str, str]], object] | None = None,
) -> Table:
    ray = _imported("ray", "'ray[client]'")
    planned = _vcr.Sweep(words, source=source)
    # Each point, before any of them costs a task.
    inputs = planned.check()
    kept = Results(results, planned.header(), planned.points)
    try:
        if kept.missing():
            _connect(ray, address)
            _Driver(ray, planned, words, inputs, kept, task_s, on_row).run()
        return Table(planned.table(kept.all()))
    finally:
        kept.close()


def _connect(ray: Any, address: str | None) -> None:
    if not ray.is_initialized() or address:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="error")


class _Tasks(ABC):
    """Hands out points and takes results."""

    #: Where results are that were made before an error.
    kept_in: str

    def __init__(self, ray: Any, execute: Callable[..., object], shared: object, costs: Costs | CostsOfParts, task_s: float) -> None:
        self.ray = ray
        self.costs = costs
        self.task_s = task_s
        #: The next one last.
        self.pending: list[int] = []
        self.losses: dict[int, int] = {}
        #: Points that have lost a worker, and when they are tried again.
        self.resting: list[tuple[float, int]] = []
        #: By task.
        self.in_flight: dict[Any, list[int]] = {}
        # Not an argument itself: Ray would read it again for each task.
        self.bundle = [ray.put(shared)]
        self.task = ray.remote(num_cpus=1, max_retries=0)(execute)

    @abstractmethod
    def header(self) -> str:
        """What all tasks have in common, as one text."""

    @abstractmethod
    def ended(self, point: int, result: str) -> None:
        """A point has a result."""

    @abstractmethod
    def label(self, point: int) -> str:
        """A point in words."""

    def work(self, point: int) -> object:
        """A point as workers get it."""
        return point

    def goes_on(self) -> bool:
        """Whether there is something to do."""
        return bool(self.pending or self.in_flight or self.resting)

    def patience_s(self, rest_s: float | None) -> float | None:
        """How long to wait for a result, at most, where a point rests so long."""
        return rest_s

    def run(self) -> None:
        try:
            while self.goes_on():
                wait_s = self.patience_s(self.wake())
                self.submit()
                if not self.in_flight:
                    time.sleep(wait_s or 0)
                    continue
                done, _ = self.ray.wait(list(self.in_flight), num_returns=1, timeout=wait_s)
                for task in done:
                    self.take(task)
        finally:
            for task in self.in_flight:
                self.ray.cancel(task, force=True)

    def wake(self) -> float | None:
        """Has points that have rested long enough tried again. Seconds until the next has; none if none rests."""
        now = time.monotonic()
        self.pending += [point for at, point in self.resting if at <= now]
        self.resting = [rest for rest in self.resting if rest[0] > now]
        return min(self.resting)[0] - now if self.resting else None

    def submit(self) -> None:
        """Keeps all cores busy, and no more tasks in flight than that takes."""
        if not self.pending:
            return
        cores = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        while self.pending and len(self.in_flight) < cores * _TASKS_PER_CORE:
            points = self.next_points(cores)
            work = [self.work(point) for point in points]
            task = self.task.remote(self.bundle, self.header(), _vcr.__version__, work)
            self.in_flight[task] = points

    def next_points(self, cores: int) -> list[int]:
        """The longest points first, as many as fit into a task; fewer towards the end."""
        self.costs.order(self.pending)
        share = math.ceil(len(self.pending) / (cores * _TASKS_PER_CORE))
        points: list[int] = []
        left_s = self.task_s
        while self.pending and len(points) < share:
            # A point that has lost a worker goes alone, so that it can be told from its neighbours.
            if points and (self.losses.get(self.pending[-1]) or self.losses.get(points[-1])):
                break
            left_s -= self.costs.predicted_s(self.pending[-1])
            if points and left_s < 0:
                break
            points.append(self.pending.pop())
        return points

    def take(self, task: Any) -> None:
        """The results of a task that has ended, or its points again."""
        points = self.in_flight.pop(task)
        exceptions = self.ray.exceptions
        try:
            results = self.ray.get(task)
        except exceptions.RayTaskError as error:
            if not self.is_loss(error.cause):
                raise _cause(error) from None
            self.lose(points, error.cause)
            return
        except exceptions.RayError as error:
            self.lose(points, error)
            return
        for point, result, seconds in results:
            self.costs.note(point, seconds)
            self.ended(point, result)

    def is_loss(self, cause: BaseException) -> bool:
        """Whether a task raised what Ray raises in workers that outlive their node for a moment: an
        error of its own, or one of the connection to its daemon, which unlike the system's has no
        number."""
        return isinstance(cause, self.ray.exceptions.RayError) or (isinstance(cause, OSError) and cause.errno is None)

    def lose(self, points: list[int], error: BaseException) -> None:
        """Has points again whose worker is lost."""
        for point in points:
            losses = self.losses[point] = self.losses.get(point, 0) + 1
            if losses > len(_REST_S):
                raise FaultError(
                    f"{self.label(point)} has lost its worker {losses} times: {_line(error)}",
                    f"look at the memory of the nodes; results so far are in {self.kept_in}",
                ) from None
            self.resting.append((time.monotonic() + _REST_S[losses - 1], point))


class _Driver(_Tasks):
    """The points of a sweep."""

    kept_in = "the folder of `results`"

    def __init__(
        self,
        ray: Any,
        planned: _vcr.Sweep,
        words: list[str],
        inputs: Inputs,
        kept: Results,
        task_s: float,
        on_row: Callable[[int, dict[str, str]], object] | None,
    ) -> None:
        costs = Costs(planned)
        super().__init__(ray, _execute, (words, inputs), costs, task_s)
        self.planned = planned
        self.kept = kept
        self.on_row = on_row
        self.pending = costs.spread(kept.missing())

    def header(self) -> str:
        return self.planned.header()

    def ended(self, point: int, result: str) -> None:
        if self.kept.add(point, result) and self.on_row:
            self.on_row(point, dict(zip(self.planned.axes, self.planned.values(point))))

    def label(self, point: int) -> str:
        values = zip(self.planned.axes, self.planned.values(point))
        return "the point " + " ".join(f"{name}={of}" for name, of in values)


class _Simulations(_Tasks):
    """The simulations of a plan that ``vcr plan --on`` searches: one for each line of its input, in JSON. It ends with
    that input."""

    kept_in = "the file of simulations beside --out"

    def __init__(self, ray: Any, pack: bytes, objectives: str, tasks: IO[bytes], results: IO[bytes]) -> None:
        self.of_part = CostsOfParts()
        super().__init__(ray, _simulate, (pack, objectives), self.of_part, _TASK_S)
        self.digest = hashlib.sha256(pack + objectives.encode()).hexdigest()
        self.scripts: dict[int, str] = {}
        self.results = results
        #: The plan's lines as they come; none at their end.
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.reading = threading.Thread(target=self.read, args=(tasks,), daemon=True)
        self.reading.start()

    def read(self, tasks: IO[bytes]) -> None:
        for line in tasks:
            self.lines.put(line)
        self.lines.put(None)

    def goes_on(self) -> bool:
        while True:
            try:
                line = self.lines.get(block=not super().goes_on())
            except queue.Empty:
                return True
            if line is None:
                return False
            task = json.loads(line)
            self.scripts[task["number"]] = task["script"]
            self.of_part.requests[task["number"]] = task["requests"]
            self.pending.append(task["number"])

    def patience_s(self, rest_s: float | None) -> float:
        return min(rest_s or math.inf, _LOOK_EVERY_S)

    def header(self) -> str:
        return self.digest

    def work(self, point: int) -> tuple[int, str]:
        return point, self.scripts[point]

    def ended(self, point: int, result: str) -> None:
        del self.scripts[point]
        self.results.write(f'{{"number":{point},"result":{result}}}\n'.encode())
        self.results.flush()

    def label(self, point: int) -> str:
        return "the simulation of " + self.scripts[point].partition("\n")[0].removeprefix("//! ").rstrip(".")


class CostsOfParts:
    """How long simulations take: the mean of all that have as many requests."""

    def __init__(self) -> None:
        #: Of each simulation; none for the whole load.
        self.requests: dict[int, int | None] = {}
        self._of_part: dict[int | None, list[float]] = {}

    def note(self, point: int, seconds: float) -> None:
        of = self._of_part.setdefault(self.requests[point], [0, 0.0])
        of[0] += 1
        of[1] += seconds

    def predicted_s(self, point: int) -> float:
        count, total_s = self._of_part.get(self.requests[point], (0, math.inf))
        return total_s / count if count else math.inf

    def order(self, points: list[int]) -> None:
        points.sort(key=lambda point: (self.predicted_s(point), -point))


class Costs:
    """How long points take: the mean of all, times how much longer than it those with the same
    value on an axis took, for each axis."""

    def __init__(self, planned: _vcr.Sweep) -> None:
        self._planned = planned
        self._all = [0, 0.0]
        self._of_value: list[dict[str, list[float]]] = [{} for _ in planned.axes]
        self._next_order = 1

    def note(self, point: int, seconds: float) -> None:
        """A point that has ended."""
        self._all[0] += 1
        self._all[1] += seconds
        for values, value in zip(self._of_value, self._planned.values(point)):
            of = values.setdefault(value, [0, 0.0])
            of[0] += 1
            of[1] += seconds

    def predicted_s(self, point: int) -> float:
        """The time that a point will take; a task's whole time while nothing is known."""
        count, total = self._all
        if not count or not total:
            return math.inf
        mean = total / count
        predicted = mean
        for values, value in zip(self._of_value, self._planned.values(point)):
            if value in values:
                of = values[value]
                predicted *= of[1] / of[0] / mean
        return predicted

    def order(self, points: list[int]) -> None:
        """Sorts points, the longest last; again only once twice as many have ended."""
        if self._all[0] >= self._next_order:
            self._next_order = 2 * self._all[0]
            points.sort(key=lambda point: (self.predicted_s(point), -point))

    def spread(self, points: list[int]) -> list[int]:
        """Points in an order whose end is spread over the grid, so that the first ones that are
        taken tell most of the rest."""
        stride = max(1, int(len(points) * 0.618))
        while math.gcd(stride, max(1, len(points))) > 1:
            stride += 1
        return [points[(index * stride) % len(points)] for index in range(len(points))][::-1]


def _check_version(version: str) -> None:
    import vcr

    if vcr.__version__ != version:
        raise InputError(
            f"version mismatch: the driver has vcr {version}, a worker has vcr {vcr.__version__}",
            f"install vcr=={version} on all nodes",
        )


# The sweeps that this worker knows, by their headers: planned once, for all tasks that it gets.
_known: dict[str, _vcr.Sweep] = {}


def _execute(bundle: list[Any], header: str, version: str, points: list[int]) -> list[tuple[int, str, float]]:
    """A task: executes points on a worker."""
    _check_version(version)
    planned = _known.get(header)
    if planned is None:
        import ray

        words, inputs = ray.get(bundle[0])
        planned = _known[header] = _vcr.Sweep(_with_files(words, inputs))
    results: list[tuple[int, str, float]] = []
    began = time.perf_counter()

    def done(point: int, result: str) -> None:
        nonlocal began
        now = time.perf_counter()
        results.append((point, result, now - began))
        began = now

    # All in one call, one after the other: each call starts threads.
    planned.execute(points, threads=1, done=done)
    return results


# The plans that this worker knows, by their digests.
_plans: dict[str, _vcr.Simulations] = {}


def _simulate(
    bundle: list[Any], header: str, version: str, scripts: list[tuple[int, str]]
) -> list[tuple[int, str, float]]:
    """A task: executes simulations of a plan on a worker."""
    _check_version(version)
    plan = _plans.get(header)
    if plan is None:
        import ray

        pack, objectives = ray.get(bundle[0])
        with tempfile.NamedTemporaryFile(suffix=".vcr") as file:
            file.write(pack)
            file.flush()
            plan = _plans[header] = _vcr.Simulations(file.name, objectives)
    results: list[tuple[int, str, float]] = []
    for number, script in scripts:
        began = time.perf_counter()
        results.append((number, plan.execute(script), time.perf_counter() - began))
    return results


def _with_files(words: list[str], inputs: Inputs) -> list[str]:
    """The command line with files of this machine instead of the driver's."""
    places: dict[str, str] = {}
    folder = tempfile.mkdtemp(prefix="vcr-ray-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number, (word, files) in enumerate(inputs):
        own = Path(folder) / str(number)
        own.mkdir()
        for name, contents in files:
            (own / name).write_bytes(contents)
        places[word] = str(own / files[0][0])

    def placed(word: str) -> str:
        start, equals, end = word.partition("=")
        if equals and start.startswith("--"):
            return start + equals + placed(end)
        if word.startswith("@"):
            return "@" + places.get(word[1:], word[1:])
        return places.get(word, word)

    return [placed(word) for word in words]


def _cause(error: Any) -> BaseException:
    """A task's exception, as if raised here."""
    cause = error.cause
    if isinstance(cause, VcrError):
        return cause
    if isinstance(cause, ModuleNotFoundError):
        return InputError(
            f"a worker lacks the package `{cause.name}`", f"install vcr=={_vcr.__version__} on all nodes"
        )
    return FaultError(f"a task failed: {_line(error)}")


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _plan(address: str, pack: str, objectives: str) -> None:
    """Simulates what the plan writes to standard input; the results go to standard output, which is no one else's."""
    tasks, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    ray = _imported("ray", "'ray[client]'")
    _connect(ray, address)
    _Simulations(ray, Path(pack).read_bytes(), objectives, tasks, results).run()


def main() -> int:
    """``python -m vcr.ray``: what ``--on`` of ``vcr run``, ``vcr replay`` and ``vcr plan`` starts."""
    parser = argparse.ArgumentParser(prog="python -m vcr.ray", description="Runs a sweep or a plan as tasks of Ray.")
    parser.add_argument("--address", required=True, help="the cluster, as of ray.init")
    parser.add_argument("--results", help="folder that keeps the results of a sweep")
    parser.add_argument("--pack", help="pack of a plan, whose simulations are lines of standard input")
    parser.add_argument("--objectives", help="objectives of the plan")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="-- and the words of vcr run or vcr replay")
    args = parser.parse_args()
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    try:
        if args.pack:
            _plan(args.address, args.pack, args.objectives)
        else:
            _sweep(words, address=args.address, results=args.results)
    except VcrError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, FaultError) else 2
    except (ImportError, ConnectionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    # Workers know functions by the module's name, which `__main__` is not.
    from vcr.ray import main as imported_main

    sys.exit(imported_main())
