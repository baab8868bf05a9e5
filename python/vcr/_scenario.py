"""Scenarios from Python values.

A ``Scenario`` writes the script that its calls describe and has it executed, so that names, units
and rules are those of scripts, and errors are theirs: with the Python line that made the value.
"""

from __future__ import annotations

import datetime
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vcr import _vcr
from vcr._errors import InputError, VcrError


class Expression:
    """A value of the script."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __repr__(self) -> str:
        return f"<vcr.Expression {self.code}>"


class Scenario:
    """A scenario, built by calling the functions of scripts as methods.

    Options are keyword arguments: ``s.engine(num_gpu_blocks=8192)`` is ``engine(#{ num_gpu_blocks:
    8192 })`` of a script. ``docs/reference/scenarios`` describes the functions.

    >>> s = vcr.Scenario("small", claim="One engine keeps up with five requests a second.")
    >>> engine = s.engine(num_gpu_blocks=8192)
    >>> pool = s.pool(engines=1, engine=engine, latency=s.fixed(step="10ms"))
    >>> chat = s.poisson(rate="5/s", duration="10s", prompt_tokens=512, output_tokens=64)
    >>> result = s.run(cluster=s.cluster(engines=pool), workloads=[chat])
    >>> s.expect(result, "ttft", "p99 < 1s")
    >>> vcr.run(s).passed
    """

    def __init__(self, name: str = "scenario", *, claim: str | None = None) -> None:
        #: File name in results and errors.
        self.name = name if name.endswith(".rhai") else f"{name}.rhai"
        self._lines: list[str] = [f"//! {line}" for line in (claim or "").splitlines()]
        self._callers: list[tuple[str, int] | None] = [None] * len(self._lines)
        self._count = 0

    def __getattr__(self, name: str) -> Callable[..., Expression]:
        if name.startswith("_"):
            raise AttributeError(name)
        known = _functions()
        if name not in known:
            raise AttributeError(f"scripts have no function `{name}`")

        def call(*arguments: object, **options: object) -> Expression:
            return self._add(name, arguments, options)

        call.__name__ = name
        call.__doc__ = known[name]
        return call

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_functions()})

    def code(self, text: str, *values: object) -> Expression:
        """An expression of the script's language; ``{}`` in it stands for values."""
        return self._assign(_filled(text, values), _caller())

    def source(self) -> str:
        """The script."""
        return "\n".join(self._lines) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the script to a file, for the command or for a sweep."""
        Path(path).write_text(self.source())

    def validate(self) -> None:
        """Checks it without making its runs.

        Raises:
            InputError: The problem, and the line that made the value.
        """
        with located(self):
            _vcr.check(["run", "--", self.name], source=(self.name, self.source()))

    def __repr__(self) -> str:
        return f"<vcr.Scenario {self.name} of {len(self._lines)} lines>"

    def _add(self, name: str, arguments: Sequence[object], options: Mapping[str, object]) -> Expression:
        texts = [literal(argument) for argument in arguments]
        if options or not arguments:
            texts.append(literal(dict(options)))
        return self._assign(f"{name}({', '.join(texts)})", _caller())

    def _assign(self, code: str, caller: tuple[str, int] | None) -> Expression:
        self._count += 1
        variable = f"value_{self._count}"
        self._lines.append(f"let {variable} = {code};")
        self._callers.append(caller)
        return Expression(variable)

    def _caller_of(self, line: int) -> tuple[str, int] | None:
        return self._callers[line - 1] if 0 < line <= len(self._callers) else None


def literal(value: object) -> str:
    """A Python value as the script's language writes it."""
    if isinstance(value, Expression):
        return value.code
    if value is None:
        return "()"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InputError(f"invalid number {value}: expected one of 64 bits")
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"invalid number {value}: expected a finite one")
        # The language has no exponents without a fraction.
        text = repr(value)
        return text if "e" not in text else f"{value:.20f}".rstrip("0") + "0"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, os.PathLike):
        return _quoted(os.fspath(value))
    if isinstance(value, datetime.timedelta):
        return _quoted(f"{value // datetime.timedelta(microseconds=1)}us")
    if isinstance(value, Mapping):
        return "#{ " + ", ".join(f"{_quoted(str(name))}: {literal(of)}" for name, of in value.items()) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(literal(of) for of in value) + "]"
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return literal(item())
    raise InputError(f"invalid value: expected a number, a text, a list or a mapping, got {type(value).__name__}")


def _quoted(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(char, char) for char in text) + '"'


def _filled(text: str, values: Sequence[object]) -> str:
    parts = text.split("{}")
    if len(parts) != len(values) + 1:
        raise InputError(f"invalid code: it has {len(parts) - 1} places, but {len(values)} values were given")
    return parts[0] + "".join(literal(value) + part for value, part in zip(values, parts[1:]))


def _functions() -> dict[str, str]:
    return dict(_vcr.functions())


def _caller() -> tuple[str, int] | None:
    """The line outside of this file that made a value."""
    frame: Any = sys._getframe(1)
    while frame and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else None


@contextmanager
def located(scenario: object) -> Iterator[None]:
    """Adds to errors where in Python their value was made."""
    try:
        yield
    except VcrError as error:
        if isinstance(scenario, Scenario) and error.file == scenario.name and error.line:
            error.caller = scenario._caller_of(error.line)
        raise
