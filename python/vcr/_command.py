"""The console script."""

from __future__ import annotations

import os
import signal
import sys

from vcr import _vcr


def main() -> int:
    """Carries out the command line of the process; returns its exit code."""
    # The command ends by itself at Ctrl-C, with its results so far; Python's own handler would raise
    # KeyboardInterrupt after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # `--on` starts this interpreter again, which has the package.
    os.environ.setdefault("VCR_PYTHON", sys.executable)
    sys.stdout.flush()
    return _vcr.command(["vcr", *sys.argv[1:]])
