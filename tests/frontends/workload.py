"""A mixed workload for an OpenAI-compatible server, and what it answered.

    python3 tests/frontends/workload.py URL [--again] > answers.json

With --again whoever goes away in the middle of an answer reads to its end, as
behind a replay, and only what was read the first time is printed. Needs
nothing but Python.
"""

import json
import sys
import threading
import urllib.request

URL = sys.argv[1].rstrip("/")
AGAIN = "--again" in sys.argv[2:]


def post(path, body):
    body = {"model": "sim", **body}
    request = urllib.request.Request(
        URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=300)


def complete(prompt, **more):
    choice = json.load(post("/v1/completions", {"prompt": prompt, "max_tokens": 16, **more}))["choices"][0]
    return [choice["text"], choice["finish_reason"]]


def conversation():
    """What was answered goes into the next prompt."""
    messages, said = [], []
    for turn in range(4):
        messages.append({"role": "user", "content": f"Part {turn} of the long story of a lighthouse and its keeper. " * 12})
        answer = json.load(post("/v1/chat/completions", {"messages": messages, "max_tokens": 24, "seed": turn}))
        content = answer["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": content})
        said.append(content)
    return said


def interrupted():
    """Goes away after some tokens."""
    stream = post("/v1/completions", {"prompt": "Interrupted", "max_tokens": 1500, "ignore_eos": True, "stream": True})
    read = []
    for line in stream:
        if len(read) < 8 and line.startswith(b"data: {"):
            read.append(json.loads(line[6:])["choices"][0]["text"])
        if len(read) == 8 and not AGAIN:
            stream.close()
            break
    return "".join(read)


def at_once(count):
    answers = [None] * count

    def ask(number):
        # Two and two are the same.
        answers[number] = complete(f"At once, number {number // 2}. " * 20, seed=number // 2, max_tokens=40)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


prefix = "The same beginning of everything that follows here. " * 40
answers = {
    "plain": complete("Hello world"),
    "seeded": [complete("Hello world", seed=seed) for seed in (1, 2, 1)],
    "shared prefix": [complete(prefix + str(number), temperature=0) for number in range(6)],
    "logprobs": complete("Probable", logprobs=2, temperature=0),
    "stop text": complete("Stop here", max_tokens=64, stop=["e"], seed=5),
    "conversation": conversation(),
    "interrupted": interrupted(),
    "at once": at_once(12),
}
json.dump(answers, sys.stdout, indent=1)
