"""Writes what vLLM and the libraries behind it say of schemas.

    verdicts.py TOKENIZER_FOLDER FILE... > schemas.jsonl

Run with the Python of an environment that has vLLM for CPUs. FILEs have a line of JSON for each schema, with its `name`
and its `schema`. Of equal schemas the first is kept, without descriptions. `xgrammar` and `llguidance` say whether they take it, `vllm`
whether a request with it passes the checks of vLLM, whose backend is `auto`, and why not.
"""

import importlib.metadata
import json
import sys
import types

import llguidance
import xgrammar
from transformers import AutoTokenizer
from vllm.sampling_params import SamplingParams, StructuredOutputsParams


def without_descriptions(schema: object) -> object:
    if isinstance(schema, list):
        return [without_descriptions(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    is_description = lambda key, value: key == "description" and isinstance(value, str)
    return {key: without_descriptions(value) for key, value in schema.items() if not is_description(key, value)}


def of_xgrammar(schema: object) -> bool:
    try:
        xgrammar.Grammar.from_json_schema(json.dumps(schema))
    except Exception:
        return False
    return True


def of_llguidance(schema: object) -> bool:
    try:
        options = {"whitespace_flexible": True}
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=options)
    except ValueError:
        return False
    return not llguidance.LLMatcher.validate_grammar(grammar, None)


def of_vllm(schema: object, tokenizer: object) -> str:
    """Nothing where it is taken, or else the reason."""
    config = types.SimpleNamespace(backend="auto", disable_any_whitespace=False, disable_additional_properties=False)
    model = types.SimpleNamespace(is_diffusion=False)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))
    try:
        params._validate_structured_outputs(model, config, tokenizer)
    except Exception as error:
        return str(error).splitlines()[0][:120] or type(error).__name__
    return ""


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    versions = {name: importlib.metadata.version(name) for name in ("xgrammar", "llguidance")}
    versions["vllm"] = importlib.metadata.version("vllm").split("+")[0]
    print(json.dumps({"versions": versions}))
    seen = set()
    for file in sys.argv[2:]:
        for line in open(file, encoding="utf-8"):
            entry = json.loads(line)
            schema = without_descriptions(entry["schema"])
            known = json.dumps({key: value for key, value in schema.items() if key != "$schema"})
            if known in seen:
                continue
            seen.add(known)
            verdict = {"xgrammar": of_xgrammar(schema), "llguidance": of_llguidance(schema)}
            refused = of_vllm(schema, tokenizer)
            verdict |= {"vllm": not refused} | ({"reason": refused} if refused else {})
            print(json.dumps({"name": entry["name"], "schema": schema} | verdict, ensure_ascii=False))


main()
