#!/usr/bin/env python3
"""Writes vectors.json: what Transformers renders of the templates here.

    pip install transformers==5.23.0 jinja2==3.1.6 && tests/templates/vectors.py

A second argument names another folder of templates, a third another output: so the
templates of vLLM's source distribution can be compared, which are not kept here.
"""
import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils as library

NOW_S = 1_772_323_200  # 2026-03-01
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW_S, datetime.timezone.utc)


library.datetime = Clock

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place, \"now\" & <later>.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Name of the place"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "default": 3},
                "exact": {"type": ["boolean", "null"]},
                "spots": {"type": "array", "items": {"type": "object", "properties": {"lat": {"type": "number"}}}},
            },
            "required": ["place"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
user = lambda text: {"role": "user", "content": text}
assistant = lambda text, **more: {"role": "assistant", "content": text, **more}
system = lambda text: {"role": "system", "content": text}
call = lambda arguments, id="abcdefgh1": {"id": id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
answer = lambda text, id="abcdefgh1": {"role": "tool", "tool_call_id": id, "name": "get_weather", "content": text}

CHATS = {
    "one": [user("Hello!")],
    "system": [system("Be brief."), user("Hello,\nworld  ")],
    "turns": [system("Be brief."), user("1+1?"), assistant("2"), user("Und auf Deutsch? \u00e4\u00f6\u00fc \U0001f600 <b>&\"'")],
    "reasoning": [user("1+1?"), assistant("<think>\nadd\n</think>\n\n2"), user("2+2?"), assistant("4", reasoning_content="add again"), user("3+3?")],
    "calls": [
        user("Weather in Rome?"),
        assistant(None, tool_calls=[call({"place": "Rome", "days": 2, "exact": None})]),
        answer("{\"temperature\": 21.5}"),
        assistant("It is warm."),
        user("And tomorrow?"),
    ],
    "two calls": [
        user("Rome and Oslo?"),
        assistant("", tool_calls=[call({"place": "Rome"}), call({"place": "Oslo \u00e9"}, "abcdefgh2")]),
        answer("warm"),
        answer("cold", "abcdefgh2"),
    ],
    "last is an answer": [user("1+1?"), assistant("It is 2. ")],
    "wrong order": [assistant("I begin."), assistant("And go on."), user("So?")],
    "parts": [user([{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}])],
    "empty": [system(""), user("")],
}


def cases():
    for name, messages in CHATS.items():
        for tools, generate in [(None, True), (None, False), ([WEATHER, CLOCK], True)]:
            yield {"messages": messages, "tools": tools, "add_generation_prompt": generate}
        yield {"messages": messages, "kwargs": {"enable_thinking": False, "reasoning_effort": "high"}, "add_generation_prompt": True}
    yield {"messages": CHATS["last is an answer"], "continue_final_message": True}
    yield {"messages": CHATS["last is an answer"][:1] + [assistant("It is")], "continue_final_message": True}
    yield {"messages": CHATS["one"], "documents": [{"title": "A", "text": "B"}]}
    yield {"messages": CHATS["one"], "tools": [WEATHER], "kwargs": {"date_string": "2 Mar 2026", "tools_in_user_message": False}}


def rendered(template, case):
    options = {"add_generation_prompt": False, "continue_final_message": False} | case
    kwargs = SPECIAL | options.pop("kwargs", {})
    messages = options.pop("messages")
    try:
        texts, _ = library.render_jinja_template([messages], chat_template=template, **options, **kwargs)
        return {"text": texts[0]}
    except Exception as error:
        return {"error": str(error), "error_type": type(error).__name__}


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else here / "vectors.json"
    lines = []
    for path in sorted(folder.rglob("*.jinja")):
        template = path.read_text()
        # That one is about the language, not about chats.
        for case in list(cases())[: 12 if path.name == "python.jinja" else None]:
            line = {"template": str(path.relative_to(folder)), **case, **rendered(template, json.loads(json.dumps(case)))}
            lines.append(json.dumps(line, ensure_ascii=False))
    header = json.dumps({"now_s": NOW_S, "special": SPECIAL})
    out.write_text("[" + header + ",\n" + ",\n".join(lines) + "]\n")
    print(len(lines), "vectors in", out)


main()
