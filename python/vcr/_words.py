"""Python values as the words of command lines, so that options have the command's own rules."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from vcr._errors import InputError

#: Values of parameters.
Value = str | int | float | bool


def value(name: str, given: object, what: str = "parameter") -> str:
    """A value of a parameter or grid as the command takes it."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, float) and not math.isfinite(given):
        raise InputError(f"invalid {what} `{name}`: expected a finite number, got {given}")
    if isinstance(given, (str, int, float)):
        return str(given)
    if isinstance(given, os.PathLike):
        return os.fspath(given)
    # Numbers of NumPy and the like.
    item = getattr(given, "item", None)
    if callable(item) and getattr(given, "shape", None) == ():
        return value(name, item(), what)
    raise InputError(
        f"invalid {what} `{name}`: expected a text, a number, true or false, got {type(given).__name__}",
        "a point is sent as text; give an object by a name that the scenario knows",
    )


def parameters(given: Mapping[str, object] | None) -> list[str]:
    """``-e NAME=VALUE`` for each parameter."""
    words: list[str] = []
    for name, of in (given or {}).items():
        words += ["-e", f"{name}={value(name, of)}"]
    return words


def sweeps(grid: Mapping[str, object]) -> list[str]:
    """``--sweep NAME=VALUES`` for each name of a grid."""
    if not isinstance(grid, Mapping):
        raise InputError(f"invalid grid: expected a mapping of names to values, got {type(grid).__name__}")
    if not grid:
        raise InputError("the grid is empty: expected a name and its values, such as {\"rate\": [1, 2, 4]}")
    words: list[str] = []
    for name, values in grid.items():
        if isinstance(values, str):
            words += ["--sweep", f"{name}={values}"]
            continue
        if not isinstance(values, Iterable):
            raise InputError(f"invalid grid: invalid `{name}`: expected a list of values, or a range such as \"1..16\"")
        texts = [value(name, of, "grid: value of") for of in values]
        if not texts:
            raise InputError(f"invalid grid: `{name}` has no values")
        for text in texts:
            if not text or "," in text or ".." in text:
                raise InputError(f"invalid grid: value `{text}` of `{name}` must have neither `,` nor `..` in it")
        words += ["--sweep", f"{name}={','.join(texts)}"]
    return words


def options(given: Mapping[str, object]) -> list[str]:
    """Options by their names with underscores: true is a flag, a mapping is JSON, a list repeats."""
    words: list[str] = []
    for name, of in given.items():
        flag = "--" + name.replace("_", "-")
        if of is None or of is False:
            continue
        if of is True:
            words.append(flag)
        elif isinstance(of, Mapping):
            words.append(f"{flag}={_json(name, of)}")
        elif isinstance(of, (list, tuple)):
            words += [f"{flag}={value(name, each, 'option')}" for each in of]
        else:
            words.append(f"{flag}={value(name, of, 'option')}")
    return words


def _json(name: str, given: Any) -> str:
    try:
        return json.dumps(given, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"invalid option `{name}`: it is not JSON: {error}") from error
