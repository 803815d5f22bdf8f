"""Runs `mlxcel serve` of the aarch64 or Windows build under qemu or Wine, and compares its answers with this machine's build.

tests/foreign.py calls run(). The model is a fixture of 160 KB, so an emulated server answers within a second.
"""
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CERTIFICATE, KEY = (os.path.join(ROOT, "tests/fixtures/tls", name) for name in ("cert.pem", "key.pem"))
FLAGS = ["--device", "cpu", "--port", "0", "--chat-template", "chatml", "--drain", "20"]
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24, "temperature": 0, "ignore_eos": True}


class Server:
    def __init__(self, command, environment):
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"listening on (https?)://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[2])
                self.address = f"{found[1]}://localhost:{self.port}"
                self.context = ssl.create_default_context(cafile=CERTIFICATE) if found[1] == "https" else None
                threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()
                return
        sys.exit("the server did not start:\n" + "".join(self.lines))

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=60, context=self.context) as response:
            return response.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120, context=self.context) as response:
            return response.read().decode()

    def metric(self, name):
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.get("/metrics").splitlines() if line.startswith(name + "{"))

    def begin(self, **fields):
        """A connection with a running stream."""
        body = json.dumps({**CHAT, "stream": True, **fields}).encode()
        sock = socket.create_connection(("127.0.0.1", self.port), 120)
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return sock, sock.recv(1000)


def wait_until(condition, message):
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"serve: {message}")
        time.sleep(0.1)


def check(condition, message):
    if not condition:
        sys.exit(f"serve: {message}")


def streamed(text):
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


def check_answers(server, native):
    check(json.loads(server.get("/health"))["status"] == "ok", "/health is not ok")
    check("<!doctype html>" in server.get("/").lower(), "/ is not the chat page")
    answer, expected = (json.loads(each.post("/v1/chat/completions", CHAT))["choices"][0]["message"]["content"] for each in (server, native))
    check(answer == expected, f"the answer is {answer!r}, expected {expected!r}")
    text = server.post("/v1/chat/completions", {**CHAT, "stream": True})
    check(text.endswith("data: [DONE]\n\n") and streamed(text) == expected, f"the stream is {text!r}")
    body = {key: value for key, value in CHAT.items() if key != "ignore_eos"} | {"model": "x"}
    messages = [json.loads(each.post("/v1/messages", body))["content"] for each in (server, native)]
    check(messages[0] == messages[1], f"Anthropic's answer is {messages[0]}, expected {messages[1]}")


def check_tls(server, native):
    check(server.address.startswith("https:"), f"the address is {server.address}")
    answer, expected = (each.post("/v1/chat/completions", {**CHAT, "stream": True}) for each in (server, native))
    check(streamed(answer) == streamed(expected), f"over TLS the stream is {answer!r}")


def check_disconnect(server):
    sock, _ = server.begin(max_tokens=1900)
    # The server counts running requests at the end of a step, and may send a step's tokens before.
    wait_until(lambda: server.metric("mlxcel_requests_running") == 1, "the stream does not run")
    sock.close()
    wait_until(lambda: not server.metric("mlxcel_requests_running") and not server.metric("mlxcel_kv_pages_used"), "a client that left keeps its pages")


def check_interrupt(server):
    """Ctrl-C under Wine: Wine makes a console event of SIGINT."""
    sock, data = server.begin(max_tokens=400)
    server.process.send_signal(signal.SIGINT)
    while piece := sock.recv(65536):
        data += piece
    check(b"data: [DONE]" in data, "an interrupt ended a running stream")
    check(server.process.wait(60) == 0, f"exit status {server.process.returncode} after an interrupt: {''.join(server.lines)}")


def check_kill(command, environment, server):
    """A server that was killed can be started again on its port."""
    sock, _ = server.begin(max_tokens=1900)
    server.process.kill()
    server.process.wait(60)
    sock.close()
    again = Server([str(server.port) if before == "--port" else word for before, word in zip([""] + command, command)], environment)
    check(json.loads(again.get("/health"))["status"] == "ok", "the server did not start again")
    return again


def run(runner, path, environment, native):
    """|runner|: the command of the other machine's build; |path|: makes a path for it; |native|: this machine's build."""
    with tempfile.TemporaryDirectory() as temporary:
        bundle = os.path.join(temporary, "tiny.mlxb")
        subprocess.run([native, "compile", os.path.join(ROOT, "tests/fixtures/tiny-llama"), "--target", "cpu:portable", "-o", bundle, "-q"], check=True)
        command = runner + ["serve", path(bundle)] + FLAGS
        servers = [Server(command, environment), Server([native, "serve", bundle] + FLAGS, None)]
        try:
            check_answers(*servers)
            servers.append(Server(command + ["--ssl-cert", path(CERTIFICATE), "--ssl-key", path(KEY)], environment))
            check_tls(servers[2], servers[1])
            check_disconnect(servers[0])
            servers[0] = check_kill(command, environment, servers[0])
            check_interrupt(servers[0])
        finally:
            for server in servers:
                server.process.kill()
                server.process.wait()
    print("serve: passed: health, page, answers, stream, TLS, disconnect, kill and restart, interrupt", flush=True)


if __name__ == "__main__":
    sys.exit("usage: tests/foreign.py aarch64|windows BUILD MODELS --serve")
