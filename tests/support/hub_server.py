"""Test server with the Hugging Face hub's API and fault injection. Uses only the standard library.

    python3 hub_server.py ROOT [CERT KEY]

Prints its port and exits when its stdin closes. ROOT/ORG/NAME/ holds the files of a model. A file over 1000 bytes counts as
LFS: its listing has a SHA-256, and /resolve/ redirects to another host name. All files below ROOT are also served at /plain/.

PUT /_control sets the faults, as a JSON object, and clears the log. A list has one item per request. Keys:
    "FILE": {...}        faults of every file with this base name:
        "status": [500]  answer with this status
        "cut": [100]     close the connection after this byte of the file
        "stall": [200]   stop sending after this byte of the file, for "seconds" (30) or until the next /_control
        "corrupt": true  change the last byte
        "no_range": true ignore Range headers
        "etag": "\\"x\\""  send this ETag; "weak": true makes it a weak one
        "claim": 10      send this Content-Length
        "endless": "x"   send no Content-Length, and repeat this text forever after the file
        "drip": [1, 0.2] send this many bytes at a time, with this pause in seconds
        "location": URL  redirect there
    "listing": {...}     answer every listing request with this object
    "token": "secret"    require this bearer token
    "missing": 403       status for a missing plain file
    "page": "<html>"     answer a missing plain file with 200 and this page
    "head": 405          status for every HEAD request of a plain file
    "store": true        a PUT of a plain file stores it
GET /_log returns the requests since the last /_control.
"""
import hashlib, json, os, re, ssl, sys, threading, time, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

root = sys.argv[1]
lock = threading.Lock()
control, log = {}, []


def take(fault, key):
    with lock:
        value = fault.get(key)
        return value.pop(0) if isinstance(value, list) and value else None


def commit_of(repo):
    return hashlib.sha1(repo.encode()).hexdigest()


def sibling(folder, name):
    data = open(os.path.join(folder, name), "rb").read()
    out = {"rfilename": name, "size": len(data)}
    if len(data) > 1000:
        out["blobId"] = "0" * 40
        out["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    else:
        out["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return out


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # without this, each response waits 40 ms for an acknowledgement

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self):
        global control
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/_control":
            with lock:
                control = json.loads(body)
                log.clear()
            return self.answer(200)
        self.log_request_headers()
        if control.get("store") and self.path.startswith("/plain/") and ".." not in self.path:
            path = os.path.join(root, self.path[len("/plain/"):])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(body)
            return self.answer(201)
        self.answer(201, body)

    do_POST = do_PATCH = do_PUT

    def log_request_headers(self):
        with lock:
            log.append({"method": self.command, "path": self.path, "host": self.headers["Host"].split(":")[0],
                        **{key: self.headers[key] for key in ("Range", "If-Range", "Authorization") if self.headers[key]}})

    def do_GET(self):
        if self.path == "/_log":
            with lock:
                return self.answer(200, json.dumps({"requests": log}).encode())
        self.log_request_headers()
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)  # a client of a proxy sends a full URL
        fault = control.get(os.path.basename(path), {})
        status = take(fault, "status")
        if status:
            return self.answer(status, b'{"error": "asked for"}', [("Retry-After", "0")] if status == 429 else [])
        if "location" in fault:
            return self.answer(302, b"", [("Location", fault["location"])])
        if path.startswith("/loop"):
            return self.answer(302, b"", [("Location", "/loop" + path[5:] + "x")])
        token = control.get("token")
        if token and not path.startswith("/cdn/") and self.headers["Authorization"] != "Bearer " + token:
            return self.answer(401, b"", [("X-Error-Message", "Invalid username or password.")])
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path)
        if match:
            return self.listing(match[1], match[2])
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if match:
            return self.resolve(match[1], match[2], match[3])
        for prefix in ("/cdn/", "/plain/"):
            if path.startswith(prefix):
                return self.file(os.path.join(root, path[len(prefix):]), fault)
        self.answer(404)

    do_HEAD = do_GET

    def listing(self, repo, revision):
        folder = os.path.join(root, repo)
        if "listing" in control:
            return self.answer(200, json.dumps(control["listing"]).encode())
        if not os.path.isdir(folder) or revision not in ("main", commit_of(repo)):
            return self.answer(404, b'{"error": "Repository not found"}')
        names = sorted(os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names)
        self.answer(200, json.dumps({"id": repo, "sha": commit_of(repo), "siblings": [sibling(folder, name) for name in names]}).encode())

    def resolve(self, repo, revision, name):
        path = os.path.join(root, repo, name)
        if not os.path.isfile(path):
            return self.answer(404)
        if os.path.getsize(path) > 1000:
            port = self.server.server_address[1]
            scheme = "https" if len(sys.argv) > 3 else "http"
            where = "%s://localhost:%d/cdn/%s?signature=secret" % (scheme, port, urllib.parse.quote("%s/%s" % (repo, name)))
            return self.answer(302, b"", [("Location", where), ("X-Repo-Commit", revision), ("X-Linked-Size", str(os.path.getsize(path)))])
        self.file(path, control.get(os.path.basename(name), {}))

    def file(self, path, fault):
        if self.command == "HEAD" and "head" in control:
            return self.answer(control["head"])
        if not os.path.isfile(path):
            return self.answer(200, control["page"].encode()) if "page" in control else self.answer(control.get("missing", 404))
        data = open(path, "rb").read()
        if "endless" in fault:
            return self.endless(data, fault["endless"].encode() * 65536)
        etag = fault.get("etag", '"%s"' % hashlib.md5(data).hexdigest())
        if fault.get("corrupt"):
            data = data[:-1] + bytes([data[-1] ^ 1])
        first, requested = 0, re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if requested and not fault.get("no_range") and self.headers["If-Range"] in (None, etag):
            first = int(requested[1])
            if first >= len(data):
                return self.answer(416, b"", [("Content-Range", "bytes */%d" % len(data))])
            whole = len(data)
            data = data[:int(requested[2]) + 1] if requested[2] else data
            self.send_response(206)
            self.send_header("Content-Range", "bytes %d-%d/%d" % (first, len(data) - 1, whole))
        else:
            self.send_response(200)
        self.send_header("ETag", "W/" + etag if fault.get("weak") else etag)
        self.send_header("Content-Length", str(fault.get("claim", len(data) - first)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.body(data[first:], first, fault)

    def endless(self, data, more):
        self.close_connection = True
        self.send_response(200)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data)
        while more:  # until the client closes the connection
            self.wfile.write(more)

    def body(self, data, first, fault):
        """Sends the data, or only up to the byte of a "cut" or "stall" fault."""
        if "drip" in fault:
            count, seconds = fault["drip"]
            for at in range(0, len(data), count):
                self.wfile.write(data[at:at + count])
                time.sleep(seconds)
            return
        cut, stall = take(fault, "cut"), take(fault, "stall")
        end = cut if cut is not None else stall
        self.wfile.write(data if end is None else data[:max(0, end - first)])
        self.wfile.flush()
        if end is None:
            return
        if stall is not None:
            present, end = control, time.monotonic() + fault.get("seconds", 30)
            while control is present and time.monotonic() < end:  # the next control ends it
                time.sleep(0.02)
        self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        pass  # tests close connections at any time


server = Server(("", 0), Handler)
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()  # exit with the test
server.serve_forever()
