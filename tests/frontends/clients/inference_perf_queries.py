"""Prints the PromQL that inference-perf asks of a server of vLLM, as JSON: queries by the metric that they are of.

    venv/bin/python inference_perf_queries.py MODEL

The names are those of its client of vLLM, and the queries those of its classes of metrics. Its other packages, which
send requests and read data sets, are not needed.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path

PACKAGE = Path(importlib.util.find_spec("inference_perf").submodule_search_locations[0])
CLASSES = {"CounterMetric": "counter", "GaugeMetric": "gauge", "HistogramMetric": "histogram"}


def metric_classes() -> dict[str, type]:
    """Its classes of metrics, without what the packages above them import."""
    for name in ("inference_perf", "inference_perf.client", "inference_perf.client.modelserver"):
        module = types.ModuleType(name)
        module.__path__ = [str(PACKAGE.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    module = "inference_perf.client.modelserver.metrics.{}.base"
    return {name: getattr(importlib.import_module(module.format(part)), name) for name, part in CLASSES.items()}


def main() -> None:
    classes = metric_classes()
    source = (PACKAGE / "client" / "modelserver" / "vllm_client.py").read_text()
    queries = {}
    for node in ast.walk(ast.parse(source)):
        name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        if name in classes:
            metric = ast.literal_eval(node.args[0])
            queries[metric] = classes[name](metric).get_queries(60, f"model_name='{sys.argv[1]}'")
    print(json.dumps(queries))


if __name__ == "__main__":
    main()
