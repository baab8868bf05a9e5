"""The recorder of HTTP and the playback of its captures: what they cost, and how well they keep times.

    python3 benches/http_tape.py [--vcr target/release/vcr] [--streams 64] [--rate 100] [--tokens 200] [--ranks 1]

Streams go through two recorders, one behind the other: the second sees each chunk later than the first, by what one of
them adds. Where HAProxy is installed, the same streams go through it as well, between the two recorders: the difference
is what HAProxy adds on this machine. Then `vcr serve --playback` answers the same requests through a recorder, whose capture has the times of the
playback as a client on this machine sees them. Needs two cores without other work.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


HAPROXY = """
global
  nbthread 1
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend clients
  bind 127.0.0.1:{port}
  default_backend servers
backend servers
  server one 127.0.0.1:{upstream}
"""


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class HaProxy:
    """HAProxy in front of a server, with one thread, as the recorder has."""

    def __init__(self, upstream: str, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = folder / "haproxy.cfg"
        config.write_text(HAPROXY.format(port=port, upstream=upstream.rsplit(":", 1)[1]))
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(["haproxy", "-q", "-f", str(config)])
        time.sleep(1)

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Process:
    """A server of `vcr`, its address and its processor time."""

    def __init__(self, vcr: str, *words: str) -> None:
        self.begun = time.monotonic()
        self.process = subprocess.Popen([vcr, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if " on http" not in line:
            raise SystemExit(f"`vcr {' '.join(words)}` does not serve: {line}")
        self.url = line.split()[-1]

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()


def body(number: int, tokens: int) -> bytes:
    asked = {"model": "sim", "prompt": f"stream {number}", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return json.dumps(asked | {"stream_options": {"include_usage": True}}).encode()


async def stream(url: str, asked: bytes) -> None:
    """Sends a request and reads its answer to the end of the connection."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(asked)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + asked)
    while await reader.read(1 << 16):
        pass
    writer.close()


async def load(url: str, streams: int, tokens: int) -> None:
    await asyncio.gather(*(stream(url, body(number, tokens)) for number in range(streams)))


def chunks(path: Path) -> dict[str, tuple[list[int], list[int]]]:
    """By request: where each chunk of its answer ends, and when it came."""
    found = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "http":
            ends, times, end = [], [], 0
            for at_ns, text in record["chunks"]:
                end += len(text.encode())
                ends.append(end)
                times.append(at_ns)
            found[record["request_body"]] = (ends, times)
    return found


def pairs(one: Path, other: Path) -> list[list[tuple[int, int]]]:
    """By stream: when the chunks of one capture came there, and in the other."""
    first, second = chunks(one), chunks(other)
    assert first.keys() == second.keys(), "the captures have other requests"
    joined = []
    for request, (ends, times) in first.items():
        other_ends, other_times = second[request]
        assert ends[-1] == other_ends[-1], "an answer differs"
        joined.append([(at, other_times[bisect.bisect_left(other_ends, end)]) for end, at in zip(ends, times)])
    return joined


def show(name: str, values_ns: list[int]) -> None:
    values = sorted(values_ns)
    at = {share: values[min(len(values) - 1, int(share * len(values)))] / 1e6 for share in (0.5, 0.99, 1.0)}
    print(f"{name:44} {at[0.5]:8.3f} {at[0.99]:8.3f} {at[1.0]:8.3f}  of {len(values)}")


def through(args: argparse.Namespace, inner: Path, outer: Path, between: Callable[[str], HaProxy] | None) -> list[int]:
    """Sends the streams through two recorders: by how many ns each chunk comes later at the second. Prints the cores
    that the second takes, or what stands between them."""
    serve = Process(args.vcr, "serve", "--port", "0", "--quiet", "--inter-token-latency", f"{1000 / args.rate}ms",
                    "--data-parallel-size", str(args.ranks))
    first = Process(args.vcr, "record", "--port", "0", "--quiet", "--upstream", serve.url, "--out", str(inner))
    proxy = between(first.url) if between else None
    upstream = proxy.url if proxy else first.url
    second = Process(args.vcr, "record", "--port", "0", "--quiet", "--upstream", upstream, "--out", str(outer))
    measured = proxy or second
    before, begun = measured.cpu_s(), time.monotonic()
    asyncio.run(load(second.url, args.streams, args.tokens))
    share = (measured.cpu_s() - before) / (time.monotonic() - begun)
    for process in filter(None, (second, proxy, first, serve)):
        process.end()
    print(f"{'HAProxy' if proxy else 'the recorder'} takes {share:.2f} of a core")
    return [late - at for one in pairs(inner, outer) for at, late in one]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vcr", default="target/release/vcr")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=100.0, help="tokens of a stream in a second")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=1,
                        help="engines of the server; the streams of one engine get their tokens at the same time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        inner, outer, played = (Path(folder) / f"{name}.jsonl" for name in ("inner", "outer", "played"))
        print(f"{args.streams} streams of {args.rate:g} tokens/s from {args.ranks} engines")
        print(f"{'ms':44} {'p50':>8} {'p99':>8} {'max':>8}")
        if shutil.which("haproxy"):
            late = through(args, inner, outer, lambda url: HaProxy(url, Path(folder)))
            show("a chunk is later by, with HAProxy between", late)
            inner.unlink()
            outer.unlink()
        show("a chunk is later by", through(args, inner, outer, None))
        serve = Process(args.vcr, "serve", "--port", "0", "--quiet", "--playback", str(inner), "--strict")
        record = Process(args.vcr, "record", "--port", "0", "--quiet", "--upstream", serve.url, "--out", str(played))
        asyncio.run(load(record.url, args.streams, args.tokens))
        for process in (record, serve):
            process.end()
        replayed = pairs(inner, played)
        show("a played chunk comes late by", [late - at for one in replayed for at, late in one])
        gaps = [abs(b[1] - a[1] - (b[0] - a[0])) for one in replayed for a, b in zip(one, one[1:])]
        show("a played gap differs by", gaps)


if __name__ == "__main__":
    main()
