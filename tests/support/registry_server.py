"""Test OCI registry with tokens, the referrers API and fault injection. Uses only the standard library.

    python3 registry_server.py [ADDRESS [CERTIFICATE KEY]]

Prints its port and exits when its stdin closes. PUT /_control sets the faults, as a JSON object, and clears the log. Keys:
    "users": {"NAME": "PASSWORD"}  require tokens from the token server, which runs on the same port
    "identities": ["TOKEN"]        identity tokens that the token server also accepts
    "expire": N                    expire all tokens at the Nth blob download
    "realm": URL                   address of the token server in challenges
    "fail_patch": N, "fail_put": N break the Nth PATCH or PUT of over 1000 bytes in the middle
    "break_pieces": true           break every PATCH of over 1000 bytes in the middle
    "upload_to": URL               host for uploads
    "corrupt": true                change the last byte of every downloaded blob over 1000 bytes
    "slow": SECONDS                delay every blob download
    "stall": N                     stop sending after N bytes of a blob
    "page": N                      return lists in pages of N items
    "link": KIND                   form of the next-page link: "path" (default), "query", "absolute", "loop", "endless", or
                                   a literal URL
    "no_referrers": true           behave like a registry without the referrers API; or a status to answer with
    "bare": true                   leave optional fields out of referrer lists
GET /_log returns the requests since the last /_control, whether each had an Authorization header, and in "most" the maximum
number of parallel blob downloads.
"""
import base64, hashlib, json, os, re, ssl, sys, threading, time, urllib.parse, uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
control, log, blobs, manifests, uploads = {}, [], {}, {}, {}
busy = most = 0  # parallel blob downloads: now and maximum
serial = 0  # part of every token; an increment expires all older tokens


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_nth(key):
    with lock:
        if control.get(key):
            control[key] -= 1
            return control[key] == 0
    return False


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

    def handle_any(self):
        global control, most
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/_log":
            with lock:
                return self.answer(200, json.dumps({"requests": log, "most": most}).encode())
        if url.path == "/_control":
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                control = json.loads(body)
                log.clear()
                most = 0
            return self.answer(200)
        with lock:
            log.append({"method": self.command, "path": url.path, "authorized": "Authorization" in self.headers, "Range": self.headers["Range"]})
        if url.path == "/token":
            return self.token(query)
        if url.path == "/v2/":
            return self.answer(200, b"{}")
        length = int(self.headers["Content-Length"] or 0)
        cut = length > 1000 and is_nth("fail_patch" if self.command == "PATCH" else "fail_put") if self.command in ("PATCH", "PUT") else False
        cut = cut or (length > 1000 and self.command == "PATCH" and bool(control.get("break_pieces")))
        self.body = self.rfile.read(length // 2 if cut else length)
        self.cut = cut
        match = re.fullmatch(r"/v2/(.+)/(manifests|blobs|referrers|tags)/(.*)", url.path)
        if not match:
            return self.answer(404)
        name = match[1]
        if name.endswith("/blobs"):  # .../blobs/uploads/ID
            name, kind, what = name[:-6], "blobs", "uploads/" + match[3]
        else:
            kind, what = match[2], match[3]
        action = "pull" if self.command in ("GET", "HEAD") else "pull,push"
        if not self.allowed(name, action):
            realm = control.get("realm", "http://127.0.0.1:%d/token" % self.server.server_address[1])
            return self.answer(401, b"", [("WWW-Authenticate", 'Bearer realm="%s",service="tests",scope="repository:%s:%s"' % (realm, name, action))])
        getattr(self, kind)(name, what, query)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = handle_any

    def allowed(self, name, action):
        global serial
        if not control.get("users"):
            return True
        if self.command == "GET" and "/blobs/" in self.path and is_nth("expire"):
            serial += 1
        return self.headers["Authorization"] in ("Bearer %s %s %d" % (name, action, serial), "Bearer %s pull,push %d" % (name, serial))

    def token(self, query):
        if self.command == "POST":
            query = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            if query["grant_type"] != "refresh_token" or query["refresh_token"] not in control.get("identities", ()):
                return self.answer(401, b'{"errors": [{"code": "DENIED"}]}')
            _, name, action = query["scope"].split(":")
            return self.answer(200, json.dumps({"access_token": "%s %s %d" % (name, action, serial)}).encode())
        given = base64.b64decode((self.headers["Authorization"] or "Basic Og==")[6:]).decode().split(":", 1)
        if control["users"].get(given[0]) != given[1]:
            return self.answer(401, b'{"errors": [{"code": "DENIED"}]}')
        _, name, action = query["scope"].split(":")
        self.answer(200, json.dumps({"token": "%s %s %d" % (name, action, serial)}).encode())

    def manifests(self, name, reference, query):
        if self.command == "PUT":
            document = json.loads(self.body)
            kind, digest = self.headers["Content-Type"], digest_of(self.body)
            for blob in [document.get("config")] + document.get("layers", []):
                if blob and blob["digest"] not in blobs:
                    return self.answer(404, b'{"errors": [{"code": "MANIFEST_BLOB_UNKNOWN"}]}')
            for key in (reference, digest):
                manifests[name, key] = (kind, self.body)
            subject = document.get("subject")
            return self.answer(201, b"", [("OCI-Subject", subject["digest"])] if subject and not control.get("no_referrers") else [])
        if (name, reference) not in manifests:
            return self.answer(404)
        kind, body = manifests[name, reference]
        self.answer(200, body, [("Content-Type", kind), ("Docker-Content-Digest", digest_of(body))])

    def page(self, items, query):
        """Returns one page of a list, and the Link header for the next page."""
        size, start = control.get("page") or len(items), int(query.get("from", 0))
        if start + size >= len(items) and control.get("link") not in ("loop", "endless"):
            return items[start:], []
        path, link = urllib.parse.urlparse(self.path).path, control.get("link", "path")
        query = "?from=%d" % (start if link == "loop" else start + size)
        host = "http://127.0.0.1:%d" % self.server.server_address[1]
        links = {"path": path + query, "query": query, "absolute": host + path + query, "loop": path + query, "endless": path + query}
        return items[start:start + size], [("Link", '<%s>; rel="next"' % links.get(link, link))]

    def tags(self, name, what, query):
        if not any(where == name for where, _ in manifests):
            return self.answer(404, b'{"errors": [{"code": "NAME_UNKNOWN"}]}')
        tags, links = self.page(sorted({key for where, key in manifests if where == name and ":" not in key}), query)
        self.answer(200, json.dumps({"name": name, "tags": tags}).encode(), links)

    def referrers(self, name, digest, query):
        if control.get("no_referrers"):
            return self.answer(404 if control["no_referrers"] is True else control["no_referrers"])
        found = {}
        for (where, _), (kind, body) in list(manifests.items()):
            document = json.loads(body)
            if where == name and (document.get("subject") or {}).get("digest") == digest:
                found[digest_of(body)] = {"mediaType": kind, "digest": digest_of(body), "size": len(body), "artifactType": document["artifactType"],
                                          "annotations": document.get("annotations", {})}
        items, links = self.page(list(found.values()), query)
        if control.get("bare"):
            items = [{key: item[key] for key in ("mediaType", "digest", "size")} for item in items]
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": items}
        self.answer(200, json.dumps(index).encode(), [("Content-Type", index["mediaType"])] + links)

    def blobs(self, name, what, query):
        if self.command == "POST":
            upload = str(uuid.uuid4())
            uploads[upload] = b""
            return self.answer(202, b"", [("Location", control.get("upload_to", "") + "/v2/%s/blobs/uploads/%s" % (name, upload))])
        if what.startswith("uploads/"):
            return self.upload(name, what[8:], query)
        if what not in blobs:
            return self.answer(404)
        data = blobs[what]
        self.delay()
        first = int((re.match(r"bytes=(\d+)-", self.headers["Range"] or "") or [0, 0])[1])
        if control.get("corrupt") and len(data) > 1000:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if control.get("stall") is not None and self.command == "GET" and len(data) > 1000:
            return self.stall(data)
        if first:
            return self.answer(206, data[first:], [("Content-Range", "bytes %d-%d/%d" % (first, len(data) - 1, len(data)))])
        self.answer(200, data)

    def stall(self, data):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:control["stall"]])
        time.sleep(30)
        self.close_connection = True

    def delay(self):
        global busy, most
        if self.command == "GET" and control.get("slow"):
            with lock:
                busy += 1
                most = max(most, busy)
            time.sleep(control["slow"])
            with lock:
                busy -= 1

    def upload(self, name, upload, query):
        if upload not in uploads:
            return self.answer(404)
        where = [("Location", "/v2/%s/blobs/uploads/%s" % (name, upload))]
        if self.command == "PATCH":
            start, _ = self.headers["Content-Range"].split("-")
            if int(start) != len(uploads[upload]):
                return self.answer(416)
        if self.command in ("PATCH", "PUT"):
            uploads[upload] += self.body
        if self.cut:
            self.close_connection = True
            return
        end = [("Range", "0-%d" % max(0, len(uploads[upload]) - 1))]
        if self.command == "GET":
            return self.answer(204, b"", where + end)
        if self.command == "PATCH":
            return self.answer(202, b"", where + end)
        data = uploads.pop(upload)
        if digest_of(data) != query["digest"]:
            return self.answer(400, b'{"errors": [{"code": "DIGEST_INVALID"}]}')
        blobs[query["digest"]] = data
        self.answer(201)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        pass


server = Server((sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1", 0), Handler)
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()  # exit with the test
server.serve_forever()
