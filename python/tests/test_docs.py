"""The Python code of the documentation, executed block after block of a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SMALL

import vcr

#: Pages whose blocks are run here; those of ``docs/how-to/sweep-on-ray.md`` need a cluster: ``test_ray.py``.
PAGES = ["docs/reference/python.md", "python/README.md"]

#: Blocks that something else runs.
ELSEWHERE = [
    "docs/how-to/pytest.md",
    "docs/how-to/sweep-on-ray.md",
    "docs/reference/guests/python.md",
    "docs/tutorials/write-a-guest-in-python.md",
]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_every_page_with_python_is_known():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "python/README.md"]
    found = [str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text()]
    assert sorted(found) == sorted([*PAGES, *ELSEWHERE])


@pytest.mark.parametrize("page", PAGES)
def test_code_of_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # As in a checkout, or beside one's own scenarios.
    for name in ("scenarios", "guests"):
        (tmp_path / name).symlink_to(ROOT / name)
    names = {"script": SMALL.replace('fixed(#{ step: "10ms" })', 'plugin("slow")')}
    run = blocks(page)
    assert run
    for block in run:
        exec(compile(block, page, "exec"), names)
    assert isinstance(names["report"], vcr.Report)


def test_the_guest_of_the_page_prices_a_step(monkeypatch):
    """What componentize-py builds, as it is outside of a component."""
    monkeypatch.syspath_prepend(str(ROOT / "guest-sdk/python"))
    import vcr_guest

    (block,) = blocks("docs/reference/guests/python.md")
    names: dict[str, object] = {}
    exec(compile(block, "docs/reference/guests/python.md", "exec"), names)
    model = names["PerToken"]({"ns_per_token": 3}, 0)
    assert model.price(vcr_guest.StepShape(start_ns=0, prefill_tokens=4, decode_tokens=1)) == 15
    with pytest.raises(vcr_guest.GuestError, match="ns_per_tokens"):
        names["PerToken"]({"ns_per_tokens": 3}, 0)


def test_the_tests_of_the_page_about_pytest_pass(tmp_path):
    (tests,) = blocks("docs/how-to/pytest.md")
    (tmp_path / "test_client.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0 and "2 passed" in said.stdout, said.stdout + said.stderr
