"""Prefill and decode workers of other systems, as far as their bootstrap protocols go, by the standard library alone.

    rendezvous.py dynamo-decode HOST PORT ROOM     what NVIDIA Dynamo's mocker does on decode: prints its answer
    rendezvous.py dynamo-prefill ROOM...           and on prefill: prints its port, acknowledges these rooms
"""

import json
import socket
import struct
import sys


def dynamo_decode(host, port, room):
    with socket.create_connection((host, int(port)), timeout=60) as link:
        link.sendall(struct.pack("<Q", int(room)))
        answer = link.recv(1)
    return {"answer": answer.hex()}


def dynamo_prefill(*rooms):
    wanted = {int(room) for room in rooms}
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    while wanted:
        link, _ = listener.accept()
        with link:
            (room,) = struct.unpack("<Q", link.recv(8, socket.MSG_WAITALL))
            if room in wanted:
                wanted.remove(room)
                link.sendall(b"\x01")
    return {}


PARTS = {"dynamo-decode": dynamo_decode, "dynamo-prefill": dynamo_prefill}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](*sys.argv[2:])), flush=True)
