"""The pytest plugin: a simulated vLLM server for a test, and cassettes of real ones.

The fixture ``vllm_server`` starts ``vcr serve`` on a free port. The marker ``vllm_server`` gives it options,
``vcr_cassette`` a recording to answer from, as VCR.py has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MODES = ("once", "none", "new_episodes", "all")
KEPT_REQUESTS = 10_000
STOP_TIMEOUT_S = 60


@dataclass(frozen=True)
class SeenRequest:
    """A request that the server got. Values of secret headers are ``[redacted]``."""

    method: str
    path: str
    query: str | None
    headers: dict[str, str]
    body: str
    #: ``tape``, ``server`` (simulated), ``upstream`` (recorded now), ``nobody`` (refused) or ``fault`` (a client fault).
    answered_by: str

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Server:
    """A running ``vcr serve``."""

    def __init__(self, url: str, key: str | None = None) -> None:
        #: Such as ``http://127.0.0.1:41234``.
        self.url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    @property
    def base_url(self) -> str:
        """The base URL of OpenAI's SDK; Anthropic's takes ``url``."""
        return f"{self.url}/v1"

    @property
    def requests(self) -> list[SeenRequest]:
        """The requests so far, in order of arrival."""
        with self._ask("GET") as answer:
            return [SeenRequest(**request) for request in json.load(answer)["requests"]]

    def forget_requests(self) -> None:
        """Empties ``requests``."""
        self._ask("DELETE").close()

    def _ask(self, method: str) -> Any:
        request = urllib.request.Request(f"{self.url}/_vcr/requests", headers=self._headers, method=method)
        return urllib.request.urlopen(request)


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers."""
    config.addinivalue_line("markers", "vllm_server(*options, faults=()): options of `vcr serve` for `vllm_server`")
    config.addinivalue_line(
        "markers",
        "vcr_cassette(name, mode='once', upstream=None, match=None): answer from cassettes/NAME.jsonl beside the test; "
        "mode is once, none, new_episodes or all; match is a file of rules beside the test",
    )


def command() -> list[str]:
    """The command line of ``vcr``: the package's, or the binary that VCR_BINARY names."""
    binary = os.environ.get("VCR_BINARY")
    return [binary] if binary else [sys.executable, "-m", "vcr"]


def cassette_options(
    folder: Path, name: str, mode: str = "once", upstream: str | None = None, match: str | None = None
) -> list[str]:
    """The options of ``vcr serve`` for a cassette in ``folder``."""
    if mode not in MODES:
        raise pytest.UsageError(f"invalid mode {mode!r} of vcr_cassette: expected {', '.join(MODES)}")
    path = folder / "cassettes" / f"{name}.jsonl"
    rules = ["--match", str(folder / match)] if match else []
    if mode == "none" or (mode == "once" and path.exists()):
        if not path.exists():
            raise pytest.UsageError(f"no cassette {path}: record it with mode 'once'")
        return ["--playback", str(path), *rules]
    upstream = upstream or os.environ.get("VCR_UPSTREAM")
    if not upstream:
        raise pytest.UsageError(f"cannot record {path}: expected upstream='http://...', or VCR_UPSTREAM")
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == "all":
        path.unlink(missing_ok=True)
    return ["--playback", str(path), "--playback-unmatched", "record", "--upstream", upstream, *rules]


def options_of(node: pytest.Item) -> list[str]:
    """The options that a test's markers ask for."""
    options: list[str] = []
    # The nearest marker is the first; its options come last, and so win.
    for marker in reversed(list(node.iter_markers("vllm_server"))):
        options += map(str, marker.args)
        unknown = marker.kwargs.keys() - {"faults"}
        if unknown:
            raise pytest.UsageError(f"unknown argument {unknown.pop()!r} of vllm_server: expected options, or faults=")
        faults = marker.kwargs.get("faults", ())
        for fault in [faults] if isinstance(faults, str) else faults:
            options += ["--client-fault", fault]
    cassette = node.get_closest_marker("vcr_cassette")
    if cassette is not None:
        options += cassette_options(node.path.parent, *cassette.args, **cassette.kwargs)
    return options


@pytest.fixture
def vllm_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server on a free port of this machine, for one test."""
    words = ["serve", "--port", "0", "--quiet", "--keep-requests", str(KEPT_REQUESTS), *options_of(request.node)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([*command(), *words], stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            # `serving sim on http://127.0.0.1:PORT` comes when the engines are ready.
            line = process.stdout.readline()
            if " on http" not in line:
                process.wait(STOP_TIMEOUT_S)
                errors.seek(0)
                pytest.fail(f"`vcr {' '.join(words)}` does not serve:\n{errors.read()}", pytrace=False)
            key = words[words.index("--api-key") + 1] if "--api-key" in words else os.environ.get("VCR_API_KEY")
            yield Server(line.split()[-1], key)
            process.terminate()
            code = process.wait(STOP_TIMEOUT_S)
            if code != 0:
                errors.seek(0)
                pytest.fail(f"`vcr serve` ended with exit code {code}:\n{errors.read()}", pytrace=False)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
