"""Adds to schemas.jsonl what vLLM's Rust frontend says of each schema.

    rust_verdicts.py URL MODEL VERSION FILE

URL is that of a `vllm-rs serve` of VERSION that serves MODEL, over `vcr play`. `rust` says whether it takes a request with
the schema.
"""

import json
import sys
import urllib.error
import urllib.request


def is_taken(url: str, model: str, schema: object) -> bool:
    chat = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(chat).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60):
            return True
    except urllib.error.HTTPError as error:
        if error.code != 400:
            raise
        return False


def main() -> None:
    url, model, version, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        if "versions" in line:
            line["versions"]["vllm-rs"] = version
        else:
            line["rust"] = is_taken(url, model, line["schema"])
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


main()
