"""Anthropic's SDK against a server: what it makes of the answers, as one JSON object.

    anthropic_sdk.py URL [CHECK]

Without a CHECK all ways to ask; `tools` calls tools, `parse` asks for answers of a type, and `errors` needs a server with the faults that the test sets.
"""

import json
import sys

import anthropic
import pydantic

url = sys.argv[1]
check = sys.argv[2] if len(sys.argv) > 2 else "answers"
turns = [{"role": "user", "content": "Hello"}]
weather = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["place", "days"],
    "additionalProperties": False,
}
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def answers():
    # The SDK knows no seed, and its models no temperature: both are passed on as they are.
    asked = {"model": "sim", "messages": turns, "max_tokens": 9, "system": "Be brief."}
    asked["extra_body"] = {"temperature": 0}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        pieces = "".join(stream.text_stream)
        final = stream.get_final_message()
    events = [event.type for event in client.messages.create(**asked, stream=True)]
    counted = client.messages.count_tokens(model="sim", messages=turns, system="Be brief.")
    return {
        "whole": whole.content[0].text,
        "stop_reason": whole.stop_reason,
        "usage": [whole.usage.input_tokens, whole.usage.output_tokens],
        "pieces": pieces,
        "final": final.content[0].text,
        "final_usage": [final.usage.input_tokens, final.usage.output_tokens],
        "events": list(dict.fromkeys(events)),
        "counted": counted.input_tokens,
        "models": [model.id for model in client.models.list()],
    }


def tools():
    """A call, whole and streamed, and the answer to a result with an image."""
    offered = [{"name": "weather", "description": "of a place", "input_schema": weather}]
    asked = {"model": "sim", "messages": turns, "max_tokens": 300, "tools": offered}
    asked |= {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**asked)
    used = whole.content[0]
    with client.messages.stream(**asked) as stream:
        pieces = "".join(event.partial_json for event in stream if event.type == "input_json")
        final = stream.get_final_message()
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/rain.png"}}
    result = {"type": "tool_result", "tool_use_id": used.id, "content": [{"type": "text", "text": "rain"}, image]}
    answered = [*turns, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    told = client.messages.create(model="sim", messages=answered, max_tokens=9, tools=offered)
    return {
        "stop_reason": whole.stop_reason,
        "name": used.name,
        "whole": used.input,
        "pieces": json.loads(pieces),
        "final": final.content[0].input,
        "after": told.content[0].text,
        "after_tokens": told.usage.input_tokens,
    }


class Forecast(pydantic.BaseModel):
    place: str
    days: int
    rain: bool


def parse():
    """Answers of a type, whole and streamed; a schema of its own; and requests that the protocol refuses."""
    asked = {"model": "sim", "messages": turns, "max_tokens": 2000}
    greedy = {"extra_body": {"temperature": 0}}
    whole = client.messages.parse(**asked, output_format=Forecast, **greedy)
    with client.messages.stream(**asked, output_format=Forecast, **greedy) as stream:
        streamed = stream.get_final_message()
    format = {"type": "json_schema", "schema": weather}
    plain = client.messages.create(**asked, output_config={"effort": "low", "format": format}, **greedy)

    def refused(**more):
        return caught(lambda: client.messages.create(**asked, **more)).get("status")

    return {
        "whole": whole.parsed_output.model_dump(),
        "streamed": streamed.parsed_output.model_dump(),
        "plain": json.loads(plain.content[0].text),
        "refused": [
            refused(tools=[{"name": "weather"}]),
            refused(thinking={"type": "enabled", "budget_tokens": 1000}),
            refused(output_config={"effort": "huge"}),
        ],
    }


def caught(call):
    try:
        call()
    except anthropic.APIStatusError as error:
        return {"class": type(error).__name__, "status": error.status_code, "body": error.body}
    except anthropic.APIError as error:
        return {"class": type(error).__name__, "text": error.message}
    return {}


def errors():
    def ask(**more):
        return caught(lambda: client.messages.create(**{"model": "sim", "messages": turns, "max_tokens": 3} | more))

    def streamed(tenant):
        with client.messages.stream(
            model="sim", messages=turns, max_tokens=9, extra_headers={"X-Tenant": tenant}
        ) as stream:
            for _ in stream:
                pass

    patient = client.with_options(max_retries=3)
    raw = patient.messages.with_raw_response.create(
        model="sim", messages=turns, max_tokens=3, extra_headers={"X-Tenant": "busy"}
    )
    return {
        "unknown": ask(model="nope"),
        "no turns": ask(messages=[]),
        "long": ask(messages=[{"role": "user", "content": "word " * 9000}]),
        "injected": {
            status: ask(extra_headers={"X-Return-Error": str(status)}) for status in (401, 403, 404, 429, 500, 529)
        },
        "error event": caught(lambda: streamed("error-event")),
        "retries": raw.retries_taken,
    }


print(json.dumps({"answers": answers, "errors": errors, "parse": parse, "tools": tools}[check]()))
