"""The pytest plugin, in test runs of its own: it is loaded from its file, so that no wheel is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parents[1] / "vcr" / "pytest_plugin.py"

CONFTEST = f"""\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("vcr_pytest_plugin", {str(PLUGIN)!r})
module = importlib.util.module_from_spec(spec)
sys.modules["vcr_pytest_plugin"] = module
spec.loader.exec_module(module)
pytest_plugins = ["vcr_pytest_plugin"]
"""

ASK = """\
import json, urllib.error, urllib.request
import pytest

def chat(server, text):
    body = {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 5, "tools": []}
    body = json.dumps({key: value for key, value in body.items() if value != []}).encode()
    asked = urllib.request.Request(server.base_url + "/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""


def outcome(folder: Path, test: str, **variables: str) -> tuple[int, str]:
    """Exit code and output of a run of pytest."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(ASK + test)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:vcr", "-rA"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def upstream():
    """The address of a server to record, and the process."""
    words = [os.environ["VCR_BINARY"], "serve", "--port", "0", "--quiet"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process
        process.kill()


def test_a_server_for_each_test(tmp_path):
    code, said = outcome(
        tmp_path,
        """
@pytest.mark.vllm_server("--max-model-len", "100", faults="status:code=503,call=2")
def test_requests_and_faults(vllm_server):
    assert chat(vllm_server, "Hello")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        chat(vllm_server, "again")
    assert vllm_server.requests[0].json["messages"][0]["content"] == "Hello"
    assert [request.answered_by for request in vllm_server.requests] == ["server", "fault"]
    assert vllm_server.requests[1].json["messages"][0]["content"] == "again"
    vllm_server.forget_requests()
    assert vllm_server.requests == []

def test_another(vllm_server):
    assert vllm_server.requests == []

@pytest.mark.vllm_server("--api-key", "key")
def test_a_key(vllm_server):
    assert vllm_server.requests == []

@pytest.mark.vllm_server("--no-such-option")
def test_wrong(vllm_server):
    pass

@pytest.mark.vllm_server(fault="reset")
def test_misspelt(vllm_server):
    pass
""",
    )
    assert code == 1 and "3 passed" in said and "no-such-option" in said, said
    assert "unknown argument 'fault' of vllm_server" in said, said


def test_cassettes_have_the_modes_of_vcrpy(tmp_path, upstream):
    url, server = upstream
    test = """
@pytest.mark.vcr_cassette("talk", mode="{mode}")
def test_talk(vllm_server):
    for text in {texts}:
        print("said", chat(vllm_server, text))
    print("by", [request.answered_by for request in vllm_server.requests])
"""

    def run(mode: str, texts: list[str], **variables: str) -> tuple[int, str, list[str]]:
        code, said = outcome(tmp_path, test.format(mode=mode, texts=texts), **variables)
        return code, said, [line for line in said.splitlines() if line.startswith("said ")]

    code, said, _ = run("none", ["one"])
    assert code == 1 and "no cassette" in said, said
    code, said, _ = run("once", ["one"])
    assert code == 1 and "VCR_UPSTREAM" in said, said
    code, said, first = run("once", ["one"], VCR_UPSTREAM=url)
    assert code == 0 and "['upstream']" in said, said
    code, said, again = run("once", ["one"])
    assert code == 0 and "['tape']" in said and again == first, said
    code, said, _ = run("none", ["two"])
    assert code == 1 and "404" in said, said
    code, said, both = run("new_episodes", ["one", "two"], VCR_UPSTREAM=url)
    assert code == 0 and "['tape', 'upstream']" in said and both[0] == first[0], said
    code, said, anew = run("all", ["two"], VCR_UPSTREAM=url)
    assert code == 0 and "['upstream']" in said, said
    server.kill()
    code, said, last = run("none", ["two"])
    assert code == 0 and last == anew, said
    code, said, _ = run("none", ["one"])
    assert code == 1, "`all` has recorded anew"
    code, said, _ = run("never", ["one"])
    assert code == 1 and "invalid mode 'never'" in said, said


def test_cassettes_take_rules_for_finding_recordings(tmp_path, upstream):
    url, process = upstream
    (tmp_path / "rules.yaml").write_text("ignore_text: ['[0-9]{4}-[0-9]{2}-[0-9]{2}']\n")
    talk = """
@pytest.mark.vcr_cassette("talk", match="rules.yaml")
def test_talk(vllm_server):
    assert chat(vllm_server, "today is %s")
"""
    assert outcome(tmp_path, talk % "2026-01-31", VCR_UPSTREAM=url)[0] == 0
    process.kill()
    code, said = outcome(tmp_path, talk % "2027-12-01")
    assert code == 0, said
