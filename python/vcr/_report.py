"""Results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vcr._table import Table, html_table

if TYPE_CHECKING:
    from vcr import _vcr

#: Height of a report in a notebook.
_HEIGHT_PX = 720


class Progress(NamedTuple):
    """How far a run has come."""

    #: Name of the run.
    run: str
    #: ``started``, ``running`` or ``ended``.
    state: str
    #: Virtual time.
    now_ns: int
    #: Requests that have arrived.
    arrived: int
    #: Requests that have ended.
    ended: int
    #: Requests in running lists.
    running: int
    #: Requests that wait in engines.
    waiting: int
    #: Steps of engines.
    steps: int


class Assertion(NamedTuple):
    """An assertion of a scenario."""

    #: Name of the run; none for one of several runs.
    run: str | None
    #: The metric, or the condition.
    subject: str
    #: The condition; none for a plain check.
    condition: str | None
    #: Whether it holds.
    passed: bool
    #: The compared value, as a number if it is one.
    observed: float | None


class RunReport:
    """A run of a scenario: its part of the report."""

    def __init__(self, report: dict[str, Any]) -> None:
        self._report = report

    @property
    def name(self) -> str:
        """Its name."""
        return self._report["name"]

    @property
    def seed(self) -> int:
        """The seed it ran with."""
        return self._report["seed"]

    @property
    def duration_ms(self) -> float:
        """Virtual time until the last request ended."""
        return self._report["duration_ms"]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over every step and every request."""
        return self._report["fingerprint"]

    @property
    def metrics(self) -> dict[str, Any]:
        """All metrics: ``counters``, ``gauges``, ``rates_per_s`` and ``trends``."""
        return self._report["metrics"]

    def value(self, metric: str, statistic: str | None = None) -> float:
        """A metric by its name in the report or without its unit: ``value("ttft", "p99")``."""
        for part in ("trends", "counters", "gauges", "rates_per_s"):
            found = self.metrics.get(part, {})
            for name in (metric, f"{metric}_ms"):
                if name not in found:
                    continue
                of = found[name]
                if not isinstance(of, dict):
                    return of
                if statistic in of:
                    return of[statistic]
                raise KeyError(f"`{metric}` has no statistic `{statistic}`: it has {', '.join(of)}")
        raise KeyError(f"run `{self.name}` has no metric `{metric}`")

    def to_dict(self) -> dict[str, Any]:
        """Its part of the report."""
        return self._report

    def _repr_html_(self) -> str:
        """The distributions as a table."""
        statistics = ["count", "mean", "p50", "p90", "p99", "max"]
        trends = self.metrics.get("trends", {}).items()
        return html_table(["metric", *statistics], ([name, *map(of.get, statistics)] for name, of in trends))

    def __repr__(self) -> str:
        return f"<vcr.RunReport {self.name!r}, seed {self.seed}, {self.duration_ms:.0f} ms of virtual time>"


class Report:
    """The results of a scenario: what ``vcr run --json`` prints, and the requests."""

    def __init__(self, run: _vcr.Run) -> None:
        self._run = run
        self._json: str | None = None
        self._dict: dict[str, Any] | None = None

    @property
    def passed(self) -> bool:
        """Whether every assertion holds."""
        return self._run.passed

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the fingerprints of all runs."""
        return self._run.fingerprint

    @property
    def files(self) -> list[str]:
        """Names of the files that were written to ``out``."""
        return self._run.files

    @property
    def runs(self) -> list[RunReport]:
        """The runs, in order."""
        return [RunReport(run) for run in self.to_dict()["runs"]]

    def run(self, name: str) -> RunReport:
        """The run of this name."""
        runs = self.runs
        for run in runs:
            if run.name == name:
                return run
        raise KeyError(f"unknown run `{name}`: expected {', '.join(run.name for run in runs)}")

    def __iter__(self) -> Iterator[RunReport]:
        return iter(self.runs)

    @property
    def assertions(self) -> list[Assertion]:
        """The assertions, in order."""
        return [
            Assertion(made.get("run"), made["subject"], made.get("condition"), made["passed"], made.get("observed"))
            for made in self.to_dict()["assertions"]
        ]

    @property
    def parameters(self) -> Mapping[str, str]:
        """Parameters of the scenario, with their values."""
        return self.to_dict()["parameters"]

    @property
    def requests(self) -> Table:
        """The requests of all runs, with the columns of ``requests.csv``."""
        return Table(self._run.requests())

    def to_json(self) -> str:
        """The report, with the bytes of ``vcr run --json``."""
        if self._json is None:
            self._json = self._run.file("report").decode()
        return self._json

    def to_dict(self) -> dict[str, Any]:
        """The report as Python's values."""
        if self._dict is None:
            self._dict = json.loads(self.to_json())
        return self._dict

    def file(self, name: str) -> bytes:
        """The contents of a file of ``--out``: report, requests, charts, html, junit, summary,
        openmetrics, csv or parquet."""
        return self._run.file(name)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the page with its charts."""
        Path(path).write_bytes(self.file("html"))

    def __repr__(self) -> str:
        kept = sum(made.passed for made in self.assertions)
        names = ", ".join(run.name for run in self.runs)
        return f"<vcr.Report of {names}: {kept} of {len(self.assertions)} assertions passed>"

    def _repr_html_(self) -> str:
        """Assertions as a table, then the page with its charts."""
        rows = "".join(
            f"<tr><td>{'✓' if made.passed else '✗'}</td><td>{escape(made.run or '')}</td>"
            f"<td>{escape(made.subject)}</td><td>{escape(made.condition or '')}</td>"
            f"<td>{'' if made.observed is None else f'{made.observed:.6g}'}</td></tr>"
            for made in self.assertions
        )
        page = escape(self.file("html").decode(), quote=True)
        return (
            f"<table><tbody>{rows}</tbody></table>"
            f'<iframe srcdoc="{page}" style="width:100%;height:{_HEIGHT_PX}px;border:0" '
            'sandbox="allow-scripts"></iframe>'
        )


class JsonMapping(Mapping[str, Any]):
    """A JSON document, with its text and its values."""

    def __init__(self, text: str) -> None:
        self._json = text
        self._dict: dict[str, Any] = json.loads(text)

    def to_json(self) -> str:
        """The document, with the bytes of the command's ``--json``."""
        return self._json

    def to_dict(self) -> dict[str, Any]:
        """The document as Python's values."""
        return self._dict

    def __getitem__(self, key: str) -> Any:
        return self._dict[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)


class ReplayReport(JsonMapping):
    """The report of a replay, in Dynamo's terms."""

    def _repr_html_(self) -> str:
        """The summary as a table."""
        return html_table(["metric", "value"], self.get("summary", {}).items())

    def __repr__(self) -> str:
        return f"<vcr.ReplayReport: {', '.join(self._dict)}>"
