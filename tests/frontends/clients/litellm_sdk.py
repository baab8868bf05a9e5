"""LiteLLM against a server: what it makes of the answers, as one JSON object.

    litellm_sdk.py URL
"""

import asyncio
import json
import os
import sys

# Prices of models, which it would fetch.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

litellm.suppress_debug_info = True
url = sys.argv[1]
turns = [{"role": "user", "content": "Hello"}]


def asked(provider, **more):
    base = url if provider == "anthropic" else f"{url}/v1"
    return {
        "model": f"{provider}/sim",
        "messages": turns,
        "api_base": base,
        "api_key": "none",
        "max_tokens": 9,
        "temperature": 0,
        "num_retries": 0,
    } | more


def answers(provider):
    whole = litellm.completion(**asked(provider))
    pieces = [
        chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked(provider, stream=True))
    ]
    return {
        "whole": whole.choices[0].message.content,
        "finish_reason": whole.choices[0].finish_reason,
        "usage": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
        "pieces": "".join(pieces),
    }


def tools(provider):
    """A call of a tool, whole and streamed."""
    parameters = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
    offered = [{"type": "function", "function": {"name": "weather", "description": "", "parameters": parameters}}]
    more = {"tools": offered, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300}
    whole = litellm.completion(**asked(provider, **more))
    call = whole.choices[0].message.tool_calls[0].function
    pieces = ""
    for chunk in litellm.completion(**asked(provider, stream=True, **more)):
        for delta in chunk.choices[0].delta.tool_calls or []:
            pieces += delta.function.arguments or ""
    return {
        "name": call.name,
        "whole": json.loads(call.arguments),
        "pieces": json.loads(pieces),
        "finish_reason": whole.choices[0].finish_reason,
    }


def caught(provider, **more):
    try:
        litellm.completion(**asked(provider, **more))
    except Exception as error:  # its classes come from OpenAI's
        return type(error).__name__
    return None


async def text():
    answer = await litellm.atext_completion(
        model="text-completion-openai/sim", prompt="Once", api_base=f"{url}/v1", api_key="none", max_tokens=4
    )
    return answer.usage.completion_tokens


print(
    json.dumps(
        {
            "providers": {provider: answers(provider) for provider in ("openai", "hosted_vllm", "anthropic")},
            "tools": {provider: tools(provider) for provider in ("openai", "hosted_vllm", "anthropic")},
            "text": asyncio.run(text()),
            "errors": {
                "unknown": caught("hosted_vllm", model="hosted_vllm/nope"),
                "range": caught("hosted_vllm", temperature=9),
                "busy": caught("hosted_vllm", extra_headers={"X-Return-Error": "429"}),
                "failed": caught("hosted_vllm", extra_headers={"X-Return-Error": "500"}),
                "key": caught("hosted_vllm", extra_headers={"X-Return-Error": "401"}),
            },
        }
    )
)
