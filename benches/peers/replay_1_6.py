"""Runs a trace through the offline replay of ai-dynamo 1.6.1.

    python replay_1_6.py TRACE.jsonl OUT.json '{"num_workers": 4}'
"""

import json
import sys

from dynamo.replay import run_trace_replay

trace, out, options = sys.argv[1:]
options = json.loads(options)
if options.pop("kv_router_defaults", False):
    from dynamo.llm import KvRouterConfig

    options["router_config"] = KvRouterConfig()
report = run_trace_replay([trace], **options)
with open(out, "w") as file:
    json.dump(report.summary, file)
