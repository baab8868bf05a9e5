"""A collector of traces by OTLP over gRPC, as grpcio serves it.

    otlp_collector.py [CERTIFICATE KEY]

A line of JSON with its port, then one for each message, whose bytes stand in hexadecimal digits.
"""

import json
import pathlib
import sys
import threading
from concurrent import futures

import grpc

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


def say(**line):
    print(json.dumps(line), flush=True)


def export(message, _context):
    say(message=message.hex())
    return b""


server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
handler = grpc.method_handlers_generic_handler(SERVICE, {"Export": grpc.unary_unary_rpc_method_handler(export)})
server.add_generic_rpc_handlers((handler,))
if len(sys.argv) > 2:
    certificate, key = (pathlib.Path(path).read_bytes() for path in sys.argv[1:3])
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, certificate)]))
else:
    port = server.add_insecure_port("localhost:0")
server.start()
say(port=port)
threading.Event().wait()
