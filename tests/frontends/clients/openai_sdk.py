"""OpenAI's SDK against a server: what it makes of the answers, as one JSON object.

    openai_sdk.py URL [CHECK]

Without a CHECK all ways to ask; `tools` needs one that always calls, `items` one that stores responses, and `errors` and `retries` need a server with the faults
that the test sets, by the header X-Tenant.
"""

import asyncio
import json
import sys

import openai

url = sys.argv[1]
check = sys.argv[2] if len(sys.argv) > 2 else "answers"
turns = [{"role": "user", "content": "Hello"}]
weather = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["place", "days"],
    "additionalProperties": False,
}
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


def items():
    """Responses with tools of several types, with log probabilities, and from a store."""
    function = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    offered = [
        {"type": "web_search"},
        {"type": "local_shell"},
        {"type": "custom", "name": "patch", "description": "of files"},
        {"type": "namespace", "name": "eyes", "description": "to see", "tools": [function]},
    ]
    asked = {"model": "sim", "input": "Hello", "tools": offered, "temperature": 0, "parallel_tool_calls": False}
    named = {"type": "custom", "name": "patch"}
    whole = client.responses.create(**asked, tool_choice=named).output[0]
    with client.responses.stream(**asked, tool_choice=named) as stream:
        events = list(stream)
        final = stream.get_final_response().output[0]
    pieces = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    space = client.responses.create(**asked, tool_choice={"type": "function", "name": "look"}).output[0]
    history = [
        {"role": "user", "content": "Hello"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "custom_tool_call", "call_id": whole.call_id, "name": "patch", "input": whole.input},
        {"type": "custom_tool_call_output", "call_id": whole.call_id, "output": "done"},
    ]
    told = client.responses.create(model="sim", input=history, tools=offered, max_output_tokens=20)
    likely = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 3}
    likely = client.responses.create(model="sim", input="Hello", **likely)
    first = client.responses.create(model="sim", input="Hello", max_output_tokens=3)
    second = client.responses.create(
        model="sim", input="And then?", previous_response_id=first.id, max_output_tokens=3
    )
    stored = client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    cut = client.responses.create(**{**asked, "max_output_tokens": 2}, tool_choice="required")
    return {
        "custom": [whole.type, whole.input, final.input, "".join(pieces)],
        "numbers": [event.sequence_number for event in events if hasattr(event, "sequence_number")],
        "namespace": [space.type, space.namespace, space.name],
        "after": told.output_text,
        "top_logprobs": [len(token.top_logprobs) for token in likely.output[0].content[0].logprobs],
        "grown": second.usage.input_tokens > first.usage.input_tokens,
        "stored": stored,
        "deleted": caught(lambda: client.responses.retrieve(first.id))["class"],
        "cut": [cut.status, cut.output_text],
    }


async def many():
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    asked = [client.completions.create(model="sim", prompt=f"{n}", max_tokens=3) for n in range(20)]
    return [answer.usage.completion_tokens for answer in await asyncio.gather(*asked)]


def tools():
    """Calls of tools in chats and Responses, whole and streamed, and the answer to a result."""
    offered = [{"type": "function", "function": {"name": "weather", "parameters": weather, "strict": True}}]
    asked = {"model": "sim", "messages": turns, "tools": offered, "tool_choice": "required", "seed": 1}
    asked |= {"max_tokens": 300, "parallel_tool_calls": False}
    message = client.chat.completions.create(**asked).choices[0].message
    call = message.tool_calls[0]
    pieces = ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            pieces += delta.function.arguments or ""
    with client.chat.completions.stream(**asked) as stream:
        kinds = sorted({event.type for event in stream})
        helper = stream.get_final_completion().choices[0].message.tool_calls[0].function
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    told = client.chat.completions.create(
        model="sim", messages=[*turns, message, result], tools=offered, max_tokens=300, seed=1
    )
    flat = [{"type": "function", "name": "weather", "parameters": weather, "strict": True}]
    asked = {"model": "sim", "input": "Hello", "tools": flat, "tool_choice": "required", "temperature": 0}
    asked |= {"parallel_tool_calls": False}
    item = client.responses.create(**asked).output[0]
    with client.responses.stream(**asked) as stream:
        final = next(event.response for event in stream if event.type == "response.completed")
    return {
        "name": call.function.name,
        "whole": call.function.arguments,
        "pieces": pieces,
        "helper": helper.arguments,
        "parsed": helper.parsed_arguments,
        "kinds": kinds,
        "after": told.choices[0].message.content,
        "responses": {"type": item.type, "whole": item.arguments, "helper": final.output[0].arguments},
    }


def embeddings():
    """Vectors as the SDK reads them: it asks for base64 unless told otherwise."""
    texts = ["one", "two", "one"]
    usual = client.embeddings.create(model="sim", input=texts)
    floats = client.embeddings.create(model="sim", input=texts, encoding_format="float")
    short = client.embeddings.create(model="sim", input="one", dimensions=8)
    vectors = [entry.embedding for entry in usual.data]
    return {
        "same": [
            max(abs(a - b) for a, b in zip(one.embedding, other.embedding)) < 1e-6
            for one, other in zip(usual.data, floats.data)
        ],
        "equal texts": [vectors[0] == vectors[2], vectors[0] == vectors[1]],
        "short": len(short.data[0].embedding),
        "indexes": [entry.index for entry in usual.data],
        "tokens": usual.usage.prompt_tokens,
    }


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


CHECKS = {"answers": answers, "errors": errors, "retries": retries, "tools": tools, "items": items, "embeddings": embeddings}
print(json.dumps(CHECKS[check]()))
