"""Inputs and outputs at URLs, from a server of this machine."""

from __future__ import annotations

import hashlib
import http.server
import threading

import pytest
from conftest import SMALL

import vcr


class Server:
    """Files by their paths, with their versions; takes others by PUT."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        #: Paths of bodies that were sent.
        self.sent: list[str] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                file = server.files.get(self.path)
                self.send_response(404 if file is None else 200)
                self.send_header("Content-Length", str(len(file or b"")))
                if file is not None:
                    self.send_header("ETag", f'"{hashlib.sha256(file).hexdigest()}"')
                self.end_headers()
                if self.command == "GET" and file is not None:
                    server.sent.append(self.path)
                    self.wfile.write(file)

            do_HEAD = do_GET

            def do_PUT(self):
                server.files[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}{path}"


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("VCR_STORE", str(tmp_path / "copies"))
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_scenarios_and_folders_may_be_at_urls(server, small, tmp_path):
    server.files["/small.rhai"] = SMALL.encode()
    local = vcr.run(small, out=tmp_path / "out")
    remote = vcr.run(server.url("/small.rhai"), out=server.url("/out"))
    assert remote.fingerprint == local.fingerprint
    for name in ("report.json", "requests.jsonl"):
        assert server.files[f"/out/{name}"] == (tmp_path / "out" / name).read_bytes(), name
    assert server.sent.count("/small.rhai") == 1
    # The copy is good as long as the version is the same, and each call looks.
    vcr.run(server.url("/small.rhai"))
    assert server.sent.count("/small.rhai") == 1
    server.files["/small.rhai"] = SMALL.replace('"rate", 5', '"rate", 8').encode()
    assert vcr.run(server.url("/small.rhai")).fingerprint == vcr.run(small, params={"rate": 8}).fingerprint
    assert server.sent.count("/small.rhai") == 2


def test_captures_traces_and_tables_may_be_at_urls(server, small, tmp_path):
    vcr.run(small, out=tmp_path / "out")
    capture = tmp_path / "capture.jsonl"
    server.files["/steps.jsonl"] = (tmp_path / "out/steps.jsonl").read_bytes()
    trace = b"".join(b'{"timestamp": %d, "input_length": 500, "output_length": 9, "hash_ids": [%d]}\n' % (i, i) for i in range(9))
    server.files["/trace.jsonl"] = trace
    capture.write_bytes(trace)
    steps = vcr.read_steps(server.url("/steps.jsonl"))
    assert steps.to_pyarrow() == vcr.read_steps(tmp_path / "out/steps.jsonl").to_pyarrow()
    requests = vcr.read_capture(server.url("/trace.jsonl"))
    assert requests.to_pyarrow() == vcr.read_capture(capture).to_pyarrow()
    options = {"trace_block_size": 512}
    assert vcr.replay(server.url("/trace.jsonl"), **options).to_json() == vcr.replay(capture, **options).to_json()
    table = vcr.sweep(trace=server.url("/trace.jsonl"), grid={"num_workers": [1, 2]}, **options)
    table.write(server.url("/table.csv"))
    vcr.sweep(trace=capture, grid={"num_workers": [1, 2]}, **options).write(tmp_path / "table.csv")
    assert server.files["/table.csv"] == (tmp_path / "table.csv").read_bytes()
    with pytest.raises(vcr.InputError, match="table.csv`: the file exists"):
        table.write(server.url("/table.csv"))


def test_what_is_not_there_is_named_without_secrets(server):
    with pytest.raises(vcr.InputError, match=r"cannot read `http://127.0.0.1:\d+/none.rhai`"):
        vcr.run(server.url("/none.rhai"))
    with pytest.raises(vcr.InputError, match=r"cannot read `http://127.0.0.1:\d+/none.jsonl`"):
        vcr.read_capture(server.url("/none.jsonl"))
    with pytest.raises(vcr.InputError, match="credentials come from the environment") as caught:
        vcr.read_capture("https://me:geheim@host/a.jsonl")
    assert "geheim" not in str(caught.value)


def test_a_plan_for_other_machines_knows_inputs_by_their_urls(server, small, tmp_path, monkeypatch):
    from vcr import _vcr

    server.files["/small.rhai"] = SMALL.encode()
    url = server.url("/small.rhai")
    plans = []
    # Copies lie elsewhere on each.
    for place in ("one", "other"):
        monkeypatch.setenv("VCR_STORE", str(tmp_path / place))
        planned = _vcr.Sweep(["run", "--sweep", "rate=1,2", "--", url])
        ((word, files),) = planned.check()
        assert word == url and files[0][0].endswith(".vcr")
        plans.append(planned.header())
    assert plans[0] == plans[1] and url in plans[0] and str(tmp_path) not in plans[0]


def test_results_on_the_way_lie_on_this_machine():
    from vcr._results import Results

    with pytest.raises(vcr.InputError, match="invalid folder of results `s3://bucket/kept`: expected one of this machine"):
        Results("s3://bucket/kept", "{}", 1)
