"""Prints what an engine publishes of its KV cache, a JSON line for each batch.

    python3 kv_subscriber.py ENDPOINT

Shares no code with vcr: pyzmq reads the frames, msgspec the MessagePack, as in
vLLM's own example of a subscriber.
"""

import json
import sys

import msgspec
import zmq


def main(endpoint: str) -> None:
    socket = zmq.Context().socket(zmq.SUB)
    socket.setsockopt_string(zmq.SUBSCRIBE, "")
    socket.connect(endpoint)
    decoder = msgspec.msgpack.Decoder()
    while True:
        topic, sequence, payload = socket.recv_multipart()
        timestamp, events, rank = decoder.decode(payload)
        batch = {
            "topic": topic.decode(),
            "sequence": int.from_bytes(sequence, "big"),
            "timestamp": timestamp,
            "events": events,
            "rank": rank,
        }
        print(json.dumps(batch), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
