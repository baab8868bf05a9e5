"""OpenAI's SDK against a server: what it makes of the answers, as one JSON object.

    openai_sdk.py URL [CHECK]

Without a CHECK all ways to ask; `errors` and `retries` need a server with the faults
that the test sets, by the header X-Tenant.
"""

import asyncio
import json
import sys

import openai

url = sys.argv[1]
check = sys.argv[2] if len(sys.argv) > 2 else "answers"
turns = [{"role": "user", "content": "Hello"}]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def chats():
    whole = client.chat.completions.create(model="sim", messages=turns, max_tokens=50, seed=1)
    chunks = list(
        client.chat.completions.create(
            model="sim", messages=turns, max_tokens=50, seed=1, stream=True, stream_options={"include_usage": True}
        )
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    with client.chat.completions.stream(model="sim", messages=turns, max_tokens=50, seed=1) as stream:
        kinds = sorted({event.type for event in stream})
        final = stream.get_final_completion()
    likely = client.chat.completions.create(
        model="sim", messages=turns, max_tokens=2, seed=1, logprobs=True, top_logprobs=2
    )
    return {
        "whole": whole.choices[0].message.content,
        "finish_reason": whole.choices[0].finish_reason,
        "usage": whole.usage.model_dump(),
        "pieces": "".join(pieces),
        "chunk_usage": chunks[-1].usage.model_dump(),
        "helper": final.choices[0].message.content,
        "kinds": kinds,
        "top_logprobs": [len(position.top_logprobs) for position in likely.choices[0].logprobs.content],
    }


def texts():
    whole = client.completions.create(model="sim", prompt="Once", max_tokens=50, seed=1, logprobs=1)
    chunks = client.completions.create(model="sim", prompt="Once", max_tokens=50, seed=1, stream=True)
    return {
        "whole": whole.choices[0].text,
        "pieces": "".join(chunk.choices[0].text for chunk in chunks if chunk.choices),
        "logprobs": len(whole.choices[0].logprobs.token_logprobs),
        "tokens": whole.usage.completion_tokens,
    }


def responses():
    whole = client.responses.create(model="sim", input="Hello", max_output_tokens=50, temperature=0)
    with client.responses.stream(model="sim", input="Hello", max_output_tokens=50, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    return {
        "whole": whole.output_text,
        "status": whole.status,
        "usage": whole.usage.total_tokens,
        "kinds": list(dict.fromkeys(kinds)),
        "helper": final.output_text,
    }


async def many():
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    asked = [client.completions.create(model="sim", prompt=f"{n}", max_tokens=3) for n in range(20)]
    return [answer.usage.completion_tokens for answer in await asyncio.gather(*asked)]


def caught(call):
    try:
        call()
    except openai.APIStatusError as error:
        return {"class": type(error).__name__, "status": error.status_code, "type": error.type, "text": error.message}
    except openai.APIError as error:
        return {"class": type(error).__name__, "text": error.message}
    return {}


def errors():
    def chat(**more):
        return caught(lambda: client.chat.completions.create(**{"model": "sim", "messages": turns, "max_tokens": 3} | more))

    def header(status):
        return chat(extra_headers={"X-Return-Error": str(status)})

    def streamed(tenant):
        stream = client.chat.completions.create(
            model="sim", messages=turns, max_tokens=9, stream=True, extra_headers={"X-Tenant": tenant}
        )
        for _ in stream:
            pass

    return {
        "unknown": chat(model="nope"),
        "range": chat(temperature=9),
        "long": chat(messages=[{"role": "user", "content": "word " * 9000}]),
        "injected": {status: header(status) for status in (400, 401, 403, 404, 409, 422, 429, 500, 503)},
        "error event": caught(lambda: streamed("error-event")),
        "reset": chat(extra_headers={"X-Tenant": "reset"}),
    }


def retries():
    """The server refuses the first two calls of each tenant."""
    patient = client.with_options(max_retries=3)

    def ask(tenant):
        raw = patient.chat.completions.with_raw_response.create(
            model="sim", messages=turns, max_tokens=3, extra_headers={"X-Tenant": tenant}
        )
        return {"retries": raw.retries_taken, "text": raw.parse().choices[0].message.content}

    return {tenant: ask(tenant) for tenant in ("busy", "down")}


def answers():
    return {
        "chats": chats(),
        "texts": texts(),
        "responses": responses(),
        "many": asyncio.run(many()),
        "models": [model.id for model in client.models.list()],
    }


print(json.dumps({"answers": answers, "errors": errors, "retries": retries}[check]()))
