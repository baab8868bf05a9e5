"""The scenarios and guests that the package brings along."""

from __future__ import annotations

from pathlib import Path

#: As in the repository, so that scenarios find their guests and traces.
_FOLDER = Path(__file__).with_name("shipped")


def scenarios() -> dict[str, Path]:
    """The scenarios of the package by name, with their traces beside them.

    ``vcr.run("pd_burst")`` runs one of them; its file can be read and copied.
    """
    return _named("scenarios", ".rhai")


def guests() -> dict[str, Path]:
    """The guests of the package by name: components for ``guest(#{ path: ... })`` of scripts,
    ``s.guest(path=vcr.guests()["roofline"])`` and options such as ``latency``."""
    return _named("guests/dist", ".wasm")


def _named(folder: str, suffix: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted((_FOLDER / folder).glob(f"*{suffix}"))}
