"""A simulator of the vLLM engine with scripted workloads.

``run`` executes a scenario, ``replay`` a trace, ``sweep`` a grid of either; ``Scenario`` builds a
scenario from Python values, and ``compare`` compares two results. ``scenarios`` and ``guests`` are
those that the package brings along. Reports have the bytes of the command ``vcr``, which this package
installs, too.
"""

from vcr._api import Comparison, compare, read_capture, read_steps, replay, run, sweep
from vcr._errors import FaultError, InputError, VcrError, VcrWarning
from vcr._plugins import LatencyModel, PluginContext, Router, SchedulingPolicy
from vcr._report import Assertion, Progress, ReplayReport, Report, RunReport
from vcr._scenario import Expression, Scenario
from vcr._shipped import guests, scenarios
from vcr._table import Table
from vcr._vcr import __version__

__all__ = [
    "Assertion",
    "Comparison",
    "Expression",
    "FaultError",
    "InputError",
    "LatencyModel",
    "PluginContext",
    "Progress",
    "ReplayReport",
    "Report",
    "Router",
    "RunReport",
    "Scenario",
    "SchedulingPolicy",
    "Table",
    "VcrError",
    "VcrWarning",
    "__version__",
    "compare",
    "guests",
    "read_capture",
    "read_steps",
    "replay",
    "run",
    "scenarios",
    "sweep",
]
