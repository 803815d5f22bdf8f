"""A hostile HTTP server, and pulls from it: each must end in bounded time, with success or with an error that names the server.

Points are http:KIND:DOCUMENT:BEHAVIOUR. The server answers every request of a pull as it should, except those for DOCUMENT.
"""
import gzip, hashlib, json, os, re, shutil, socket, struct, threading, time

from harness import TINY, Fault, files_below, same_bytes
from scenarios import Stage
from sweeps import interleave

# Kind -> documents of a pull: a bundle as a folder and as one file, a hub, a registry.
DOCUMENTS = {
    "folder": ("manifest.json", "model.vmfb", "weights.irpa", "manifest.json.minisig"),
    "file": ("file.mlxb",),
    "hub": ("listing", "config.json", "model-00001-of-00002.safetensors"),
    "oci": ("index", "referrers", "module", "weights"),
}
STALL_SECONDS = 1
LIMIT_SECONDS = 120  # five tries of a document, the pauses between them, and a loaded machine
LIMIT_KIB = 400 << 10
LIMIT_DISK = 96 << 20
TOKEN = "hf_secret"
ZEROS = bytes(1 << 16)


class Exchange:
    """One request and the connection for its answer."""

    def __init__(self, connection, port, method, path, headers, body):
        self.connection, self.port, self.method, self.path, self.headers, self.body = connection, port, method, path, headers, body

    def send(self, *pieces):
        for piece in pieces:
            self.connection.sendall(piece if isinstance(piece, bytes) else piece.encode())

    def head(self, *lines, status="200 OK"):
        self.send("HTTP/1.1 %s\r\n" % status, *[line + "\r\n" for line in lines], "Connection: close\r\n\r\n")

    def answer(self, body, *lines, status="200 OK"):
        self.head("Content-Length: %d" % len(body), *lines, status=status)
        if self.method != "HEAD":
            self.send(body)

    def redirect(self, to, status="302 Found"):
        self.answer(b"", "Location: " + to, status=status)

    def forever(self, piece, pause=0):
        """Sends |piece| until the client closes the connection."""
        while True:
            self.send(piece)
            if pause:
                time.sleep(pause)

    def wait(self):
        """Sends nothing more; returns when the client closes the connection."""
        self.connection.settimeout(2 * LIMIT_SECONDS)
        while self.connection.recv(4096):
            pass

    def chunks(self, *chunks):
        self.head("Transfer-Encoding: chunked")
        self.send(*chunks)


def flip(body, at):
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1:]


def claim(length):
    return lambda e: (e.head("Content-Length: %s" % length), e.send(e.body))


def status(line, *lines):
    return lambda e: e.answer(b"asked for", *lines, status=line)


def redirect(to):
    return lambda e: e.redirect(to)


def raw(text):
    return lambda e: e.send(text)


def slow_bytes(e, data, pause=0.3):
    for at in range(len(data)):
        e.send(data[at:at + 1])
        time.sleep(pause)


def reset(e):
    e.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


BOMB = gzip.compress(bytes(16 << 20), 9)  # each member expands to 16 MiB
BEHAVIOURS = {
    "good": lambda e: e.answer(e.body),
    # bodies without an end, or without content
    "endless": lambda e: (e.head(), e.forever(ZEROS)),
    "endless_after_body": lambda e: (e.head(), e.send(e.body), e.forever(ZEROS)),
    "endless_text": lambda e: (e.head(), e.forever(b"[" * 65536)),
    "endless_chunks": lambda e: (e.chunks(), e.forever(b"10000\r\n" + ZEROS + b"\r\n")),
    "drip": lambda e: (e.head("Content-Length: %d" % len(e.body)), slow_bytes(e, e.body)),
    "drip_endless": lambda e: (e.head(), e.forever(b"{", 0.3)),
    "drip_head": lambda e: slow_bytes(e, b"HTTP/1.1 200 OK\r\nX: " + b"y" * 4000),
    "silent": lambda e: e.wait(),
    "stall": lambda e: (e.head("Content-Length: %d" % len(e.body)), e.send(e.body[:len(e.body) // 2]), e.wait()),
    "stall_at_end": lambda e: (e.head("Content-Length: %d" % len(e.body)), e.send(e.body[:-1]), e.wait()),
    "truncated": lambda e: (e.head("Content-Length: %d" % len(e.body)), e.send(e.body[:len(e.body) // 2])),
    "truncated_unclaimed": lambda e: (e.head(), e.send(e.body[:len(e.body) // 2])),
    "empty": lambda e: e.answer(b""),
    "no_answer": lambda e: None,
    "reset": reset,
    # wrong lengths
    "claim_less": lambda e: (e.head("Content-Length: %d" % (len(e.body) // 2)), e.send(e.body)),
    "claim_more": lambda e: (e.head("Content-Length: %d" % (len(e.body) * 2)), e.send(e.body)),
    "claim_huge": claim(2**63 - 1),
    "claim_overflow": claim(10**30),
    "claim_negative": claim(-1),
    "claim_word": claim("many"),
    "claim_twice": lambda e: (e.head("Content-Length: %d" % len(e.body), "Content-Length: 1"), e.send(e.body)),
    # redirects
    "loop": lambda e: e.redirect(e.path),
    "chain": lambda e: e.redirect(e.path + "?" if "?" not in e.path else e.path + "x"),
    "to_file": redirect("file:///etc/passwd"),
    "to_ftp": redirect("ftp://127.0.0.1/x"),
    "to_gopher": redirect("gopher://127.0.0.1:1/x"),
    "to_nothing": redirect(""),
    "to_no_host": redirect("http:///etc/passwd"),
    "to_closed_port": redirect("http://127.0.0.1:1/x"),
    "to_bad_port": redirect("http://127.0.0.1:99999999/x"),
    "to_long": redirect("/" + "x" * 70000),
    "to_other_host": lambda e: e.redirect("http://localhost:%d%s" % (e.port, good_path(e.path))),
    "to_user": lambda e: e.redirect("http://a:b@localhost:%d%s" % (e.port, good_path(e.path))),
    "no_location": status("302 Found"),
    # compression that the client did not ask for
    "gzip_bomb": lambda e: (e.head("Content-Encoding: gzip"), e.forever(BOMB)),
    "gzip_lie": lambda e: e.answer(e.body, "Content-Encoding: gzip"),
    "gzip_body": lambda e: e.answer(gzip.compress(e.body), "Content-Encoding: gzip"),
    "encoding_unknown": lambda e: e.answer(e.body, "Content-Encoding: mystery"),
    "transfer_unknown": lambda e: e.answer(e.body, "Transfer-Encoding: mystery"),
    # chunked framing
    "chunk_word": lambda e: e.chunks(b"ZZZ\r\n", e.body),
    "chunk_overflow": lambda e: e.chunks(b"F" * 40 + b"\r\n", e.body),
    "chunk_huge": lambda e: e.chunks(b"7FFFFFFFFFFFFFFF\r\n", e.body),
    "chunk_negative": lambda e: e.chunks(b"-1\r\n", e.body),
    "chunk_no_end": lambda e: e.chunks(b"%x\r\n" % len(e.body), e.body),
    "chunk_and_length": lambda e: (e.head("Content-Length: 3", "Transfer-Encoding: chunked"), e.send(b"%x\r\n" % len(e.body), e.body, b"\r\n0\r\n\r\n")),
    "chunk_extension": lambda e: (e.chunks(b"1;"), e.forever(b"x" * 65536)),
    "chunk_trailers": lambda e: (e.chunks(b"%x\r\n" % len(e.body), e.body, b"\r\n0\r\n"), e.forever(b"X: y\r\n" * 4096)),
    # headers
    "head_huge": lambda e: (e.send("HTTP/1.1 200 OK\r\nX: "), e.send(b"y" * (32 << 20)), e.send("\r\n\r\n")),
    "head_endless": lambda e: (e.send("HTTP/1.1 200 OK\r\n"), e.forever(b"X: y\r\n" * 4096)),
    "head_many": lambda e: (e.send("HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 4000, "Content-Length: %d\r\n\r\n" % len(e.body), e.body)),
    "head_no_colon": lambda e: e.answer(e.body, "nonsense"),
    "head_nul": lambda e: e.send(b"HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: %d\r\n\r\n" % len(e.body), e.body),
    "head_bare_lf": lambda e: e.send(b"HTTP/1.1 200 OK\nContent-Length: %d\n\n" % len(e.body), e.body),
    "head_folded": lambda e: e.answer(e.body, "X: y", " folded"),
    "etag_huge": lambda e: e.answer(e.body, 'ETag: "%s"' % ("e" * 60000)),
    "etag_lines": lambda e: e.answer(e.body, 'ETag: "a\tb\\"'),
    # status lines
    "status_word": raw("HTTP/1.1 abc OK\r\n\r\n"),
    "status_zero": raw("HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n"),
    "status_999": status("999 Unheard"),
    "status_long": lambda e: (e.send("HTTP/1.1 200 "), e.forever(b"x" * 65536)),
    "http_09": lambda e: e.send(e.body),
    "http_9": raw("HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n"),
    "http_2": raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64)),
    "tls_alert": raw(b"\x15\x03\x01\x00\x02\x02\x28"),
    "continue_endless": lambda e: e.forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.01),
    "hints": lambda e: (e.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50), e.answer(e.body)),
    "switching": raw("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
    "no_content": raw("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"),
    "not_modified": raw("HTTP/1.1 304 Not Modified\r\nConnection: close\r\n\r\n"),
    "partial_unasked": lambda e: e.answer(e.body[:10], "Content-Range: bytes 0-9/10", status="206 Partial Content"),
    "partial_wrong": lambda e: e.answer(e.body, "Content-Range: bytes 99-%d/7" % len(e.body), status="206 Partial Content"),
    "partial_word": lambda e: e.answer(e.body, "Content-Range: bytes many", status="206 Partial Content"),
    "range_416": status("416 Range Not Satisfiable", "Content-Range: bytes */1"),
    "unauthorized": status("401 Unauthorized", 'WWW-Authenticate: Basic realm="x"'),
    "challenge_self": lambda e: e.answer(b"", 'WWW-Authenticate: Bearer realm="http://127.0.0.1:%d%s",service="x"' % (e.port, e.path), status="401 Unauthorized"),
    "challenge_file": status("401 Unauthorized", 'WWW-Authenticate: Bearer realm="file:///etc/passwd"'),
    "challenge_open": status("401 Unauthorized", 'WWW-Authenticate: Bearer realm="http://'),
    "challenge_long": status("401 Unauthorized", 'WWW-Authenticate: Bearer realm="%s"' % ("r" * 60000)),
    "proxy_auth": status("407 Proxy Authentication Required", 'Proxy-Authenticate: Basic realm="x"'),
    "too_many": status("429 Too Many Requests", "Retry-After: 2"),  # a longer one is honored, up to a minute for each of four retries
    "too_many_overflow": status("429 Too Many Requests", "Retry-After: -99999999999999999999999"),
    "too_many_negative": status("429 Too Many Requests", "Retry-After: -1"),
    "too_many_date": status("503 Service Unavailable", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"),
    "server_error": status("500 Internal Server Error"),
    "legal": status("451 Unavailable For Legal Reasons"),
    # bodies of the right form with wrong content
    "flip_first": lambda e: e.answer(flip(e.body, 0)),
    "flip_middle": lambda e: e.answer(flip(e.body, len(e.body) // 2)),
    "flip_last": lambda e: e.answer(flip(e.body, len(e.body) - 1)),
    "longer": lambda e: e.answer(e.body + b"x"),
    "shorter": lambda e: e.answer(e.body[:-1]),
    "html": lambda e: e.answer(b"<!doctype html><title>welcome</title>", "Content-Type: text/html"),
    "json_deep": lambda e: e.answer(b"[" * 500000),
    "json_blank": lambda e: e.answer(b" " * (8 << 20) + e.body),
    "json_nul": lambda e: e.answer(e.body.replace(b"{", b"{\0", 1)),
    "json_infinite": lambda e: e.answer(re.sub(rb"(?<=: )\d+", b"1e999", e.body, count=1)),
    "extra_answer": lambda e: (e.send("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(e.body), e.body), e.answer(b"second")),
}
# The client tries these again, with pauses; they take seconds and are not in the short part.
RETRIED = ("drip", "silent", "stall", "truncated", "no_answer", "reset", "claim_more", "claim_huge", "chunk_no_end", "chunk_huge", "to_closed_port", "too_many",
           "server_error", "continue_endless", "switching", "gzip_bomb", "endless", "status_long", "head_endless", "chunk_", "partial_")


def good_path(path):
    """The same document on the same server, without the behaviour."""
    words = path.split("/")
    words[words.index("attack") + 2] = "good"
    return "/".join(words)


class Site:
    """Listens on a free port; every connection has a thread. Paths contain attack/DOCUMENT/BEHAVIOUR."""

    def __init__(self, stage):
        self.stage, self.leaked = stage, set()
        self.store = os.path.join(stage.prepared("store"), "blobs", "sha256")
        self.manifests = {}
        with open(os.path.join(stage.prepared("store"), "index.json"), encoding="utf-8") as file:
            self.index = json.load(file)
        self.read_store()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.listen, daemon=True).start()

    def close(self):
        self.listener.close()

    def blob(self, digest):
        with open(os.path.join(self.store, digest.replace("sha256:", "")), "rb") as file:
            return file.read()

    def read_store(self):
        """Finds the model's manifest, by its tag, and the modules that refer to it."""
        for name in os.listdir(self.store):
            data = self.blob(name)
            if data[:1] == b"{" and b"schemaVersion" in data:
                self.manifests["sha256:" + name] = json.loads(data)
        self.modules = {digest for digest, manifest in self.manifests.items() if "subject" in manifest}
        self.model = next(self.manifests[digest]["subject"]["digest"] for digest in self.modules)

    def listen(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.handle, args=(connection,), daemon=True).start()

    def handle(self, connection):
        with connection:
            try:
                connection.settimeout(2 * LIMIT_SECONDS)
                request = b""
                while b"\r\n\r\n" not in request and len(request) < 1 << 20:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    request += piece
                lines = request.split(b"\r\n\r\n")[0].decode(errors="replace").split("\r\n")
                method, path = lines[0].split(" ")[:2]
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
                self.answer(connection, method, path, headers)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(1)
                connection.recv(65536)
            except (OSError, ValueError, IndexError):
                pass  # the client closed the connection

    def answer(self, connection, method, path, headers):
        words = path.split("?")[0].split("/")
        document, behaviour = words[words.index("attack") + 1:][:2]
        if TOKEN in headers.get("authorization", "") and not headers.get("host", "").startswith("127.0.0.1:"):
            self.leaked.add((document, behaviour))
        name, body = self.document(words)
        exchange = Exchange(connection, self.port, method, path, headers, body)
        if body is None:
            exchange.answer(b"", status="404 Not Found")
        elif name == document:
            BEHAVIOURS[behaviour](exchange)
        else:
            exchange.answer(body)

    def document(self, words):
        """The name and bytes of what a path means; the bytes are None if there is no such thing."""
        rest = words[words.index("attack") + 3:]
        if words[1] == "v2":
            return self.registry(rest)
        if words[1] == "hub":
            return self.hub(rest)
        path = os.path.join(self.stage.site, "acme", *rest)
        if rest[-1:] == ["manifest.json.minisig"] and os.path.isdir(os.path.dirname(path)):
            return rest[-1], b"untrusted comment: none\n"  # not signed: a well-formed answer would be 404
        if not os.path.isfile(path):
            return rest[-1] if rest else "", None
        with open(path, "rb") as file:
            return rest[-1], file.read()

    def hub(self, rest):
        if rest[0] == "api":
            siblings = []
            for name in sorted(os.listdir(TINY)):
                with open(os.path.join(TINY, name), "rb") as file:
                    data = file.read()
                siblings.append({"rfilename": name, "size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
                                 "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}})
            return "listing", json.dumps({"id": "acme/tiny", "sha": "1" * 40, "siblings": siblings}).encode()
        path = os.path.join(TINY, rest[-1])
        if not os.path.isfile(path):
            return rest[-1], None
        with open(path, "rb") as file:
            return rest[-1], file.read()

    def registry(self, rest):
        if rest[0] == "referrers":
            found = []
            for digest in sorted(self.modules):
                manifest = self.manifests[digest]
                found.append({"mediaType": manifest["mediaType"], "digest": digest, "size": len(self.blob(digest)),
                              "artifactType": manifest["artifactType"], "annotations": manifest.get("annotations", {})})
            return "referrers", json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": found}).encode()
        if rest[0] == "manifests":
            digest = self.model if rest[1] == "one" else rest[1]
            if digest not in self.manifests:
                return "manifest", None
            return "index" if digest == self.model else "module", self.blob(digest)
        digest = rest[1].replace("sha256:", "")
        if not os.path.isfile(os.path.join(self.store, digest)):
            return "blob", None
        largest = max(os.listdir(self.store), key=lambda name: os.path.getsize(os.path.join(self.store, name)))
        return "weights" if digest == largest else "blob", self.blob(digest)


class HostileServer:
    def __init__(self, world):
        self.world, self.stage = world, Stage(world)
        for name in ("one.mlxb", "file.mlxb"):
            self.stage.serve(name)
        self.site = Site(self.stage)

    def close(self):
        self.site.close()
        self.stage.close()

    def points(self, random, short):
        found = [["http:%s:%s:%s" % (kind, document, behaviour) for behaviour in BEHAVIOURS if not short or not behaviour.startswith(RETRIED)]
                 for kind, documents in DOCUMENTS.items() for document in documents]
        good = ["http:%s:%s:good" % (kind, documents[0]) for kind, documents in DOCUMENTS.items()]
        return good + [point for point in interleave(found, random) if not point.endswith(":good")]

    def command(self, kind, document, behaviour):
        here = "127.0.0.1:%d" % self.site.port
        source = {"folder": "http://%s/web/attack/%s/%s/one.mlxb", "file": "http://%s/web/attack/%s/%s/file.mlxb",
                  "hub": "http://%s/hub/attack/%s/%s", "oci": "oci://%s/attack/%s/%s:one"}[kind] % (here, document, behaviour)
        arguments = ["pull", "hf:acme/tiny", "--endpoint", source] if kind == "hub" else ["pull", source]
        return arguments + ["-o", "got", "--stall-timeout", str(STALL_SECONDS)]

    def attack(self, point):
        _, kind, document, behaviour = point.split(":")
        with self.world.lock:
            self.stage.number += 1
            work = self.world.path("work-%d" % self.stage.number)
        os.makedirs(work)
        try:
            result = self.world.run(self.command(kind, document, behaviour), work, seconds=LIMIT_SECONDS,
                                    variables=dict(self.stage.variables, HF_TOKEN=TOKEN))
            self.check(result, work, kind, document, behaviour)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def check(self, result, work, kind, document, behaviour):
        self.world.check_ending(result)
        if result.peak_kib > LIMIT_KIB and not self.world.sanitized:
            raise Fault("peak memory %d KiB\n%s" % (result.peak_kib, result))
        size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(work) for name in names)
        if size > LIMIT_DISK:
            raise Fault("%d bytes on disk\n%s" % (size, result))
        if (document, behaviour) in self.site.leaked:
            raise Fault("the token was sent to another host\n%s" % result)
        if b"root:" in result.out + result.err:
            raise Fault("a local file was read\n%s" % result)
        got = os.path.join(work, "got")
        if result.status == 0:
            return self.check_model(got, kind, result)
        if behaviour == "good" or result.status == 2:
            raise Fault("not the user's fault\n%s" % result)
        if not re.search(rb"(127\.0\.0\.1|localhost):%d|%s|not enough disk space" % (self.site.port, re.escape(document.encode())), result.err):
            raise Fault("the message names neither the server nor the file\n%s" % result)
        left = [name for name in files_below(work) if not name.startswith("cache/") and ".part" not in name]
        if left or os.path.exists(got):
            raise Fault("left over: %s\n%s" % (left[:8], result))

    def check_model(self, got, kind, result):
        source = TINY if kind == "hub" else os.path.join(self.stage.site, "acme", "file.mlxb" if kind == "file" else "one.mlxb")
        if kind == "hub":
            same = same_bytes(got, source)
        elif kind == "file":  # its manifest does not cover the padding at the end of the archive
            same = same_bytes(got, source) or not self.world.run(["verify", "-p", self.stage.prepared("alice.pub"), got], os.path.dirname(got)).status
        else:  # a signature beside it is the server's own
            same = all(same_bytes(os.path.join(got, name), os.path.join(source, name)) for name in files_below(source))
        if not same:
            raise Fault("the pulled model is not the served one\n%s" % result)
