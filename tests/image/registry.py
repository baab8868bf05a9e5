"""An OCI registry with TLS that has one guest: registry.py CERTIFICATE KEY HOST COMPONENT.

Prints the reference of the guest once it serves, and serves until it is killed.
"""

import hashlib
import http.server
import json
import ssl
import sys

certificate, key, host, component = sys.argv[1:]
with open(component, "rb") as file:
    blob = file.read()


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def descriptor(kind, content):
    return {"mediaType": kind, "digest": digest(content), "size": len(content)}


MANIFEST = "application/vnd.oci.image.manifest.v1+json"
config = json.dumps({"architecture": "wasm", "os": "wasip2", "layerDigests": [digest(blob)]}).encode()
manifest = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor("application/vnd.wasm.config.v0+json", config),
        "layers": [descriptor("application/wasm", blob)],
    }
).encode()
contents = {f"/v2/guests/one/blobs/{digest(part)}": part for part in (blob, config)}
contents[f"/v2/guests/one/manifests/{digest(manifest)}"] = manifest
contents["/v2/"] = b"{}"


class Registry(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        content = contents.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Type", MANIFEST if "/manifests/" in self.path else "application/octet-stream")
        self.send_header("Content-Length", str(len(content or b"")))
        if content is not None:
            self.send_header("Docker-Content-Digest", digest(content))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server = http.server.ThreadingHTTPServer((host, 0), Registry)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(f"oci://{host}:{server.server_address[1]}/guests/one@{digest(manifest)}", flush=True)
server.serve_forever()
