"""Shared by the package's tests: small scenarios, and the binary to compare with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SMALL = """\
//! One engine keeps up.
let rate = param("rate", 5);
let engine = engine(#{ num_gpu_blocks: 8192 });
let latency = fixed(#{ step: "10ms" });
let served = cluster(#{ engines: pool(#{ engines: 1, engine: engine, latency: latency }) });
let chat = poisson(#{ rate: rate.to_string() + "/s", duration: "5s", prompt_tokens: 200, output_tokens: 20 });
let result = run(#{ name: "small", cluster: served, workloads: [chat] });
expect(result, "ttft", "p99 < 1s");
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A scenario of a few milliseconds, in a file."""
    path = tmp_path / "small.rhai"
    path.write_text(SMALL)
    return path


@pytest.fixture
def binary():
    """The binary's answer to a command line: exit code, standard output, standard error."""

    def answer(*words: object, cwd: Path | None = None) -> tuple[int, bytes, str]:
        done = subprocess.run([os.environ["VCR_BINARY"], *map(str, words)], capture_output=True, cwd=cwd)
        return done.returncode, done.stdout, done.stderr.decode()

    return answer
