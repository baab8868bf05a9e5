"""Runs traces through the offline replay of ai-dynamo 1.6.1.

    python replay_1_6.py TRACE.jsonl OUT.json '{"num_workers": 4}'
    python replay_1_6.py --serve

Served calls come as lines `{"trace": PATH, "options": {...}}`; each is answered by a line with
its `summary`, or with an `error`.
"""

import json
import sys

from dynamo.replay import run_trace_replay


def replay(trace, options):
    options = dict(options)
    if options.pop("kv_router_defaults", False):
        from dynamo.llm import KvRouterConfig

        options["router_config"] = KvRouterConfig()
    return run_trace_replay([trace], **options).summary


def serve():
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = {"summary": replay(call["trace"], call["options"])}
        except Exception as error:
            answer = {"error": " ".join(str(error).split())}
        print(json.dumps(answer), flush=True)


def main():
    if sys.argv[1:] == ["--serve"]:
        return serve()
    trace, out, options = sys.argv[1:]
    summary = replay(trace, json.loads(options))
    with open(out, "w") as file:
        json.dump(summary, file)


if __name__ == "__main__":
    main()
