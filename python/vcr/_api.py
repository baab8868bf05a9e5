"""The functions of the package."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from vcr import _vcr, _words
from vcr._errors import InputError
from vcr._report import JsonMapping, Progress, ReplayReport, Report
from vcr._results import Results
from vcr._scenario import Scenario, located
from vcr._shipped import scenarios
from vcr._table import Table, html_table

Path = str | os.PathLike[str]
Watch = Callable[[Progress], object]
#: Name and text of a scenario that is in no file.
Source = tuple[str, str]

#: Name of a script that is given as text.
_SOURCE_NAME = "scenario.rhai"


def run(
    scenario: Path | Scenario,
    *,
    params: Mapping[str, object] | None = None,
    seed: int | None = None,
    target: str | None = None,
    out: Path | None = None,
    plugins: Mapping[str, Callable[..., object]] | None = None,
    charts: bool = False,
    progress: Watch | None = None,
    **options: object,
) -> Report:
    """Executes a scenario once.

    Args:
        scenario: Path or URL of a script or pack, the text of a script (with a line break in it), a
            ``Scenario``, or the name of a scenario of the package, such as ``"pd_burst"``.
        params: Values for ``param(name, default)`` of the script.
        seed: In the place of the seeds of all runs.
        target: Where runs happen, instead of the script's own target: ``virtual``, ``live``, ``serve``
            or a URL.
        out: A folder or URL to write files to, as ``--out``.
        plugins: Python classes for ``plugin("name")`` of the script.
        charts: Also keep engines over time, for the charts of ``report.html``; costs a little.
        progress: Called with a ``Progress`` ten times a second at most. An exception of it ends the
            run and is raised.
        **options: Further options of ``vcr run``, with underscores: ``threads=2``,
            ``uncertainty=100``, ``memory_limit="4GiB"``, ``force=True``.

    Raises:
        InputError: The script, a file that it names or an argument is wrong.
        FaultError: A guest, a plugin or an engine failed.
        KeyboardInterrupt: At Ctrl-C, once files so far are written.
    """
    path, source = _named(scenario)
    words = ["run", *_words.parameters(params)]
    words += _words.options({"seed": seed, "target": target, "out": out, **options})
    with located(scenario):
        made = _vcr.run(
            [*words, "--", path],
            source=source,
            plugins=dict(plugins or {}),
            keeps_series=charts,
            progress=_relayed(progress),
        )
    return Report(made)


def replay(
    *traces: Path,
    progress: Watch | None = None,
    **options: object,
) -> ReplayReport:
    """Replays a trace, or a synthetic workload, as NVIDIA Dynamo's offline replay does.

    Args:
        *traces: Files; none for a synthetic workload, and a tick workload with ``engine="ticks"``.
        progress: As of ``run``.
        **options: The options of ``vcr replay``, with underscores: ``num_workers=4``,
            ``router_mode="kv_router"``, ``extra_engine_args={"num_gpu_blocks": 8192}``.
    """
    words = ["replay", *_words.options(options), "--", *(os.fspath(trace) for trace in traces)]
    return ReplayReport(_vcr.replay(words, progress=_relayed(progress)))


def sweep(
    scenario: Path | Scenario | None = None,
    grid: Mapping[str, object] | None = None,
    *,
    trace: Path | list[Path] | None = None,
    params: Mapping[str, object] | None = None,
    threads: int | None = None,
    results: Path | None = None,
    on_row: Callable[[int, dict[str, str]], object] | None = None,
    **options: object,
) -> Table:
    """Executes a scenario, or replays a trace, once for each combination of a grid's values.

    Args:
        scenario: As of ``run``; none with ``trace``.
        grid: Values by name: lists, or ranges such as ``"1..16"`` and ``"0.5..2..0.5"``.
        trace: Files to replay instead of a scenario.
        params: Parameters of all points.
        threads: Points at a time; all cores if none is given.
        results: A folder that keeps each result as it comes. A sweep of the same grid resumes
            from it; any other is refused.
        on_row: Called with the number and the values of each point as it ends.
        **options: Further options of ``vcr run`` or ``vcr replay``: ``repeat=5``,
            ``search="rate=1..64"``, ``num_workers=4``.

    Returns:
        The table of ``--sweep-out``; ``write`` writes its bytes.
    """
    words, source = sweep_words(scenario, grid, trace=trace, params=params, **options)
    with located(scenario):
        return _swept(_vcr.Sweep(words, source=source), threads, results, on_row)


def _swept(
    planned: _vcr.Sweep,
    threads: int | None,
    results: Path | None,
    on_row: Callable[[int, dict[str, str]], object] | None,
) -> Table:
    if results is not None:
        # The header has the digests of what points read.
        planned.check()
    kept = Results(results, planned.header(), planned.points)

    def done(point: int, result: str) -> None:
        kept.add(point, result)
        if on_row:
            on_row(point, dict(zip(planned.axes, planned.values(point))))

    count = threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        planned.execute(kept.missing(), threads=count, done=done)
        return Table(planned.table(kept.all()))
    finally:
        kept.close()


def sweep_words(
    scenario: Path | Scenario | None,
    grid: Mapping[str, object] | None,
    *,
    trace: Path | list[Path] | None = None,
    params: Mapping[str, object] | None = None,
    **options: object,
) -> tuple[list[str], Source | None]:
    """The command line of a sweep, and the scenario's name and text if it is in no file."""
    if (scenario is None) == (trace is None):
        raise InputError("expected either a scenario or a trace")
    words = _words.sweeps(grid or {})
    if scenario is not None:
        path, source = _named(scenario)
        return ["run", *_words.parameters(params), *words, *_words.options(options), "--", path], source
    if params:
        raise InputError("invalid argument `params`: a replay has options, which are arguments of their own")
    traces = trace if isinstance(trace, list) else [trace]
    return ["replay", *words, *_words.options(options), "--", *(os.fspath(each) for each in traces if each)], None


class Comparison(JsonMapping):
    """Two results compared: ``pairs`` of runs with their ``changes``, and ``limits``."""

    @property
    def passed(self) -> bool:
        """Whether no figure is worse than was allowed."""
        return self._dict["passed"]

    def _repr_html_(self) -> str:
        """The figures that differ as a table, for each pair of runs."""
        head = ["metric", "statistic", str(self["reference"]), str(self["compared"]), "change"]
        parts = []
        for pair in self["pairs"]:
            rows = []
            for of in pair["changes"]:
                before, after = of.get("reference"), of.get("compared")
                if before != after:
                    change = f"{(after - before) / abs(before):+.1%}" if before and after is not None else None
                    rows.append([of["metric"], of["statistic"], before, after, change])
            parts.append(f"<p>{escape(str(pair['compared_run']))}</p>{html_table(head, rows)}")
        return "".join(parts)

    def __repr__(self) -> str:
        return f"<vcr.Comparison of {self['compared']} with {self['reference']}>"


def compare(
    reference: Path,
    compared: Path,
    *,
    max_regression: Mapping[str, str] | None = None,
    **options: object,
) -> Comparison:
    """Compares two folders of ``out``, two captures, or one with the other.

    Args:
        reference: The one that counts as before.
        compared: The other.
        max_regression: Limits by metric and statistic: ``{"ttft.p99": "5%"}``.
        **options: Further options of ``vcr compare``: ``of="run"``, ``resamples=0``.
    """
    limits = [f"{name}={share}" for name, share in (max_regression or {}).items()]
    words = ["compare", *_words.options({"max_regression": limits, **options})]
    return Comparison(_vcr.compare([*words, "--", os.fspath(reference), os.fspath(compared)]))


def read_capture(path: Path) -> Table:
    """The requests of a capture, or of anything that converts to one; times in nanoseconds."""
    return Table(_vcr.read_capture(path))


def read_steps(path: Path) -> Table:
    """A row for each step of a step log: ``steps.jsonl``, a recording, or a live capture."""
    return Table(_vcr.read_steps(path))


def _named(scenario: Path | Scenario) -> tuple[str, Source | None]:
    """The path of a scenario, and its name and text if it is in no file."""
    if isinstance(scenario, Scenario):
        return scenario.name, (scenario.name, scenario.source())
    if isinstance(scenario, str) and "\n" in scenario:
        return _SOURCE_NAME, (_SOURCE_NAME, scenario)
    if isinstance(scenario, str) and scenario.isidentifier() and not os.path.exists(scenario):
        shipped = scenarios()
        if shipped and scenario not in shipped:
            raise InputError(
                f"there is no scenario `{scenario}`: expected a path, or one of {', '.join(shipped)}"
            )
        return os.fspath(shipped.get(scenario, scenario)), None
    try:
        return os.fspath(scenario), None
    except TypeError:
        kind = type(scenario).__name__
        raise InputError(f"invalid scenario: expected a path, a text or a vcr.Scenario, got {kind}") from None


def _relayed(progress: Watch | None) -> Callable[..., object] | None:
    return None if progress is None else lambda *of: progress(Progress(*of))
