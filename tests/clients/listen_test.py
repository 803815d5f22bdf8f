"""Where `mlxcel serve` listens: Unix sockets, TLS, and the warning for a public address without a key.

    python3 tests/clients/listen_test.py MLXCEL MODEL [CASE...]
"""
import http.client
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import traceback

FOLDER = os.path.dirname(os.path.abspath(__file__))
CERTIFICATE, KEY = (os.path.join(FOLDER, "../fixtures/tls", name) for name in ("cert.pem", "key.pem"))
WARNING = "can use this server; set a key with --api-key"


class Running:
    """A server with any options. |head| is all output up to the line "listening on"."""

    def __init__(self, mlxcel, model, *flags):
        self.process = subprocess.Popen([mlxcel, "serve", "-m", model, "--device", "cpu", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.head = ""
        for line in self.process.stdout:
            self.head += line
            if line.startswith("listening on "):
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise RuntimeError("the server did not start:\n" + self.head)

    def port(self):
        return int(self.head.split("listening on ")[1].split()[0].rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def refusal(mlxcel, model, *flags):
    done = subprocess.run([mlxcel, "serve", "-m", model, "--device", "cpu", *flags], capture_output=True, text=True, timeout=120)
    assert done.returncode, "the server ended without an error"
    return done.stderr


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def ask(connection):
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "ab", "max_tokens": 4, "temperature": 0}), {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = json.load(response)
    assert response.status == 200 and body["usage"]["completion_tokens"] == 4, body
    connection.close()


def unix_sockets_serve_their_owner_and_are_removed(mlxcel, model):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        for flags in (["--unix", path], ["--host", "unix:" + path]):
            with Running(mlxcel, model, *flags) as server:
                ask(UnixConnection(path))
                assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0, oct(os.stat(path).st_mode)
                assert WARNING not in server.head, server.head
                server.process.send_signal(signal.SIGTERM)
                assert server.process.wait(60) == 0
            assert not os.path.exists(path), "the socket file was left behind"


def tls_serves_clients_that_trust_the_certificate(mlxcel, model):
    with Running(mlxcel, model, "--port", "0", "--ssl-cert", CERTIFICATE, "--ssl-key", KEY) as server:
        assert "listening on https://127.0.0.1:" in server.head, server.head
        ask(http.client.HTTPSConnection("localhost", server.port(), context=ssl.create_default_context(cafile=CERTIFICATE), timeout=60))
        try:
            ask(http.client.HTTPSConnection("localhost", server.port(), timeout=60))
        except ssl.SSLCertVerificationError:
            pass
        else:
            raise AssertionError("a client without the certificate was served")


def tls_files_that_cannot_be_used_are_errors(mlxcel, model):
    assert "--ssl-cert and --ssl-key belong together" in refusal(mlxcel, model, "--ssl-cert", CERTIFICATE)
    assert "nothing.pem" in refusal(mlxcel, model, "--port", "0", "--ssl-cert", "nothing.pem", "--ssl-key", KEY)


def a_share_that_stops_prompts_is_an_error(mlxcel, model):
    assert "--prefill-share expects a number from 0.05 to 1, not 0" in refusal(mlxcel, model, "--prefill-share", "0")


def a_public_address_without_a_key_is_a_warning(mlxcel, model):
    for flags, warned in ((["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api-key", "secret"], False), ([], False)):
        with Running(mlxcel, model, "--port", "0", *flags) as server:
            assert (WARNING in server.head) == warned, server.head


CASES = [unix_sockets_serve_their_owner_and_are_removed, tls_serves_clients_that_trust_the_certificate, tls_files_that_cannot_be_used_are_errors, a_share_that_stops_prompts_is_an_error,
         a_public_address_without_a_key_is_a_warning]


def main():
    mlxcel, model, *names = sys.argv[1:]
    failed, chosen = 0, [case for case in CASES if not names or case.__name__ in names]
    for case in chosen:
        print(case.__name__, flush=True)
        try:
            case(mlxcel, model)
        except Exception:
            print("  " + traceback.format_exc().replace("\n", "\n  ") + "FAILED", flush=True)
            failed += 1
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
