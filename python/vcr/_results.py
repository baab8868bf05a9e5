"""The file of a sweep's results: resumed where it ends, and refused for another grid."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

from vcr._errors import InputError

#: Its name in the folder; ``vcr merge`` reads it as the file of the only shard.
NAME = "results.shard"


class Results:
    """Results by the numbers of their points, each written to the file at once."""

    def __init__(self, folder: str | os.PathLike[str] | None, header: str, points: int) -> None:
        self._points = points
        self._done: dict[int, str] = {}
        self._file: IO[bytes] | None = None
        if folder is None:
            return
        if "://" in os.fspath(folder):
            raise InputError(
                f"invalid folder of results `{os.fspath(folder)}`: expected one of this machine",
                "the table of a sweep may be written to a URL",
            )
        path = Path(folder) / NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        end = self._read(path, header) if path.exists() else 0
        self._file = path.open("r+b" if end else "wb")
        # An incomplete line of a dead driver is written again.
        self._file.truncate(end)
        self._file.seek(end)
        if not end:
            self._file.write(header.encode() + b"\n")
            self._file.flush()

    def _read(self, path: Path, header: str) -> int:
        """Reads whole lines; returns where they end."""
        lines = path.read_bytes().split(b"\n")
        if not lines[0] or len(lines) == 1:
            # The driver died before it had written the first line.
            return 0
        _same_grid(path, lines[0].decode(errors="replace"), header)
        end = len(lines[0]) + 1
        for number, line in enumerate(lines[1:-1], start=2):
            # JSON of a result has no line breaks: a whole line is a whole result.
            try:
                point = json.loads(line)["point"]
                prefix = f'{{"point":{point},"result":'
                text = line.decode()
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{path}:{number}: invalid result", "remove the line to have it made again") from None
            if not isinstance(point, int) or not 0 <= point < self._points or not text.startswith(prefix):
                raise InputError(f"{path}:{number}: invalid result", "remove the line to have it made again")
            self._done[point] = text[len(prefix) : -1]
            end += len(line) + 1
        return end

    def add(self, point: int, result: str) -> bool:
        """Keeps a result; false if the point has one."""
        if point in self._done:
            return False
        self._done[point] = result
        if self._file:
            self._file.write(f'{{"point":{point},"result":{result}}}\n'.encode())
            self._file.flush()
        return True

    def missing(self) -> list[int]:
        """Points without a result."""
        return [point for point in range(self._points) if point not in self._done]

    def all(self) -> list[tuple[int, str]]:
        """The results in the order of the grid."""
        return sorted(self._done.items())

    def close(self) -> None:
        """Closes the file."""
        if self._file:
            self._file.close()


def _same_grid(path: Path, found: str, header: str) -> None:
    try:
        of: dict[str, Any] = json.loads(found)
        version, grid, inputs = of["vcr_version"], of["grid"], of["inputs"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: invalid first line: expected that of a sweep's results") from None
    expected = json.loads(header)
    if version != expected["vcr_version"]:
        raise InputError(f"`{path}` is of vcr {version}, and this is vcr {expected['vcr_version']}")
    if grid != expected["grid"]:
        raise InputError(
            f"`{path}` is of another grid, {grid[:16]}: expected {expected['grid'][:16]}",
            "name another folder, or sweep the same scenario, parameters, seed and values again",
        )
    for name in sorted({*inputs, *expected["inputs"]}):
        if inputs.get(name) != expected["inputs"].get(name):
            raise InputError(f"`{name}` had other contents for `{path}`", "name another folder")
    if found != header:
        raise InputError(f"`{path}` is of another sweep", "name another folder")
