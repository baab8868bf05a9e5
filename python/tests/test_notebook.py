"""The example notebook, executed as Jupyter does."""

from __future__ import annotations

import json
import subprocess
import sys

from conftest import ROOT


def test_the_example_notebook_runs(tmp_path):
    notebook = ROOT / "python/examples/first_steps.ipynb"
    words = ["--to", "notebook", "--execute", "--output-dir", tmp_path, "--output", "done.ipynb", notebook]
    # A kernel may start late on a machine that is busy with something else.
    words += ["--ExecutePreprocessor.startup_timeout=300"]
    subprocess.run([sys.executable, "-m", "nbconvert", "--log-level=ERROR", *words], check=True, cwd=tmp_path)
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    pages = ["".join(out["data"].get("text/html", "")) for cell in cells for out in cell.get("outputs", []) if "data" in out]
    # The report with its assertions and its page, then two data frames.
    assert len(pages) == 3 and "<iframe" in pages[0] and "✓" in pages[0] and "ttft" in pages[0]
