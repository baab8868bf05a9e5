"""Prefill and decode workers of other systems, as far as their bootstrap protocols go, by the standard library alone.

    rendezvous.py dynamo-decode HOST PORT ROOM       what NVIDIA Dynamo's mocker does on decode: prints its answer
    rendezvous.py dynamo-prefill ROOM...             and on prefill: prints its port, acknowledges these rooms
    rendezvous.py sglang-decode HOST PORT ROOM       what SGLang's decode worker asks, and what it is told in the room
    rendezvous.py sglang-prefill PAGE_SIZE FOLLOWS   SGLang's bootstrap server with two ranks: prints its port, and the
                                                     rooms that decode workers come to, with the rank
    rendezvous.py sglang-rank HOST PORT RANK_IP      a rank that registers: prints the status and the answer
    rendezvous.py mooncake-decode HOST PORT ENGINE ID  what vLLM's Mooncake connector asks, and what it is told
    rendezvous.py mooncake-prefill ENGINE ID...      its bootstrap server: prints its port, acknowledges these transfers
    rendezvous.py mooncake-worker HOST PORT ADDR     a worker that registers: prints the status and the answer
"""

import http.server
import json
import socket
import struct
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request


def say(value):
    print(json.dumps(value), flush=True)


def call(method, host, port, path, body=None):
    """The status and the body of an answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{host}:{port}{path}", data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def enter(host, port, room):
    """The first byte that a room answers."""
    with socket.create_connection((host, int(port)), timeout=60) as link:
        link.sendall(room)
        return link.recv(1).hex()


def number(room):
    return struct.pack("<Q", int(room))


def name(room):
    return struct.pack("<H", len(room.encode())) + room.encode()


def acknowledge(listener, read_room, wanted, seen=None):
    """Answers decode workers until all rooms have been asked for."""
    while wanted:
        link, _ = listener.accept()
        with link:
            room = read_room(link)
            if seen:
                seen(room)
            if room in wanted:
                wanted.remove(room)
                link.sendall(b"\x01")


def read_number(link):
    return struct.unpack("<Q", link.recv(8, socket.MSG_WAITALL))[0]


def read_name(link):
    (length,) = struct.unpack("<H", link.recv(2, socket.MSG_WAITALL))
    return link.recv(length, socket.MSG_WAITALL).decode()


def listen():
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


def serve(answer):
    """An HTTP server by a function of method, path, query and body to status and JSON."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def respond(self):
            url = urllib.parse.urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, value = answer(self.command, url.path, dict(urllib.parse.parse_qsl(url.query)), body)
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = respond

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def dynamo_decode(host, port, room):
    return {"answer": enter(host, port, number(room))}


def dynamo_prefill(*rooms):
    listener, port = listen()
    say({"port": port})
    acknowledge(listener, read_number, {int(room) for room in rooms})
    return {}


PLACE = "/route?prefill_dp_rank={}&prefill_cp_rank={}&target_tp_rank={}&target_pp_rank={}"


def sglang_decode(host, port, room):
    status, info = call("GET", host, port, PLACE.format(-1, -1, -1, -1))
    assert status == 200, (status, info)
    info = json.loads(info)
    ranks = {}
    while not ranks:
        status, ranks = call("POST", host, port, "/query_dp_ranks", {"bootstrap_rooms": [int(room)]})
        assert status == 200, (status, ranks)
        ranks = json.loads(ranks)
        time.sleep(0.02)
    places = []
    for tp in range(info["attn_tp_size"]):
        status, place = call("GET", host, port, PLACE.format(ranks[room], 0, tp, 0))
        assert status == 200, (status, place)
        places.append(json.loads(place))
    health = call("GET", host, port, "/health")
    missing = call("GET", host, port, PLACE.format(99, 0, 0, 0))[0]
    answer = enter(places[0]["rank_ip"], places[0]["rank_port"], number(room))
    return {"info": info, "rank": ranks[room], "places": places, "health": health, "missing": missing, "answer": answer}


def sglang_prefill(page_size, follows):
    rooms = [listen() for _ in range(2)]
    for rank, (listener, _) in enumerate(rooms):
        # Rooms below 100 are acknowledged, once.
        args = (listener, read_number, set(range(100)), lambda room, rank=rank: say({"room": room, "rank": rank}))
        threading.Thread(target=acknowledge, args=args, daemon=True).start()

    def answer(method, path, query, body):
        if (method, path) == ("POST", "/query_dp_ranks"):
            return 200, {str(room): 1 for room in json.loads(body)["bootstrap_rooms"]}
        rank = int(query["prefill_dp_rank"])
        if rank < 0:
            sizes = {"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 2, "pp_size": 1, "page_size": int(page_size)}
            return 200, sizes | {"kv_cache_dtype": "auto", "follow_bootstrap_room": follows == "yes", "more": None}
        return 200, {"rank_ip": "127.0.0.1", "rank_port": rooms[rank][1]}

    say({"port": serve(answer)})
    threading.Event().wait()


def sglang_rank(host, port, rank_ip):
    one = {f"{kind}_{what}": int(what == "size") for kind in ("attn_tp", "attn_cp", "attn_dp", "pp", "system_dp")
           for what in ("size", "rank")}
    body = one | {"rank_ip": rank_ip, "rank_port": 9, "page_size": 16, "kv_cache_dtype": "auto",
                  "load_balance_method": "round_robin", "prefill_http_port": 30000}
    status, answer = call("PUT", host, port, "/route", body)
    return {"status": status, "answer": answer}


def mooncake_decode(host, port, engine, transfer):
    status, engines = call("GET", host, port, "/query")
    assert status == 200, (status, engines)
    engines = json.loads(engines)
    (place,) = [one["worker_addr"]["0"]["0"] for one in engines.values() if one["engine_id"] == engine]
    address = urllib.parse.urlsplit(place)
    return {"engines": engines, "answer": enter(address.hostname, address.port, name(transfer))}


def mooncake_prefill(engine, *transfers):
    listener, port = listen()
    workers = {"0": {"engine_id": engine, "worker_addr": {"0": {"0": f"tcp://127.0.0.1:{port}"}}}}
    say({"port": serve(lambda *_: (200, workers))})
    acknowledge(listener, read_name, set(transfers))
    return {}


def mooncake_worker(host, port, addr):
    body = {"engine_id": "other", "dp_rank": 7, "tp_rank": 0, "pp_rank": 0, "addr": addr}
    status, answer = call("POST", host, port, "/register", body)
    return {"status": status, "answer": answer}


PARTS = {part.__name__.replace("_", "-"): part for part in (
    dynamo_decode, dynamo_prefill, sglang_decode, sglang_prefill, sglang_rank, mooncake_decode, mooncake_prefill,
    mooncake_worker)}

if __name__ == "__main__":
    say(PARTS[sys.argv[1]](*sys.argv[2:]))
