"""Hostile and unlucky clients of `mlxcel serve`: the server keeps serving, and its memory returns to where it was.

    python3 tests/clients/faults_test.py MLXCEL MODEL [CASE...] [--requests N]

The model is a tiny one without a chat template. There are 10,000 random requests; with a sanitizer, 1,000 unless N is given.
"""
import argparse
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server import Server, is_sanitized, memory_bytes  # noqa: E402

MB = 1 << 20


def address(server):
    return "127.0.0.1", int(server.url.rsplit(":", 1)[1])


def connect(server, seconds=60):
    return socket.create_connection(address(server), seconds)


def request_bytes(path, body, extra=""):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


def read_response(sock):
    """Status and body of one response with Content-Length or until the connection closes."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return (0, b"") if not data else (int(data.split()[1]), b"")
        data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    while length and len(body) < int(length[1]):
        piece = sock.recv(65536)
        if not piece:
            raise ConnectionError("the connection closed in the body of a response")
        body += piece
    return int(head.split()[1]), body


def complete(server, **fields):
    body = {"prompt": "ab", "max_tokens": 4, "temperature": 0, **fields}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)["choices"][0]["text"]


def metric(server, name):
    text = urllib.request.urlopen(server.url + "/metrics", timeout=60).read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(re.escape(name) + r"[ {]", line))


def wait_until_idle(server, seconds=60):
    for end in (time.time() + seconds,):
        while metric(server, "vllm:num_requests_running") or metric(server, "vllm:num_requests_waiting"):
            assert time.time() < end, "requests of clients that left are still running"
            time.sleep(0.05)


BROKEN_BODIES = [b"", b"{", b"null", b"[]", b"\xff\xfe{}", b'{"prompt": "\xc3"}', b'{"prompt": "a", "prompt": "b"}', b"[" * 100000, b'{"a":' * 5000]
WRONG_BODIES = [  # those that are right for another API have unknown fields, which --strict refuses
    b'{"prompt": "a", "max_tokens": -5}', b'{"prompt": "a", "max_tokens": 1e400}', b'{"prompt": "a", "max_tokens": 99999999999999999999999}',
    b'{"prompt": "a", "temperature": -1}', b'{"prompt": "a", "temperature": "hot"}', b'{"prompt": "a", "n": 100000}', b'{"prompt": [1, 2, 999999999]}',
    b'{"prompt": [-1]}', b'{"prompt": {}}', b'{"prompt": "a", "stop": [""]}', b'{"prompt": "a", "logit_bias": {"x": "y"}}', b'{"prompt": "a", "seed": {}}',
    b'{"prompt": "a", "no_such_field": 1}', b'{"prompt": "a", "top_p": 7}', b'{"prompt": "\\ud800"}', b'{"prompt": "a", "grammar": "root ::= ("}',
]


def refuse_bodies(server, paths, bodies):
    for path in paths:
        for body in bodies:
            if path == "/tokenize" and b"prompt" in body:
                continue
            with connect(server) as sock:
                sock.sendall(request_bytes(path, body))
                status, answer = read_response(sock)
            assert 400 <= status < 500, (path, body[:80], status, answer[:200])
            assert "error" in json.loads(answer), (path, body[:80], answer[:200])


def bad_bodies_get_400_with_an_error_object(server, args):
    paths = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate", "/v1/embeddings", "/tokenize"
    refuse_bodies(server, paths, BROKEN_BODIES)
    refuse_bodies(server, paths[:1], [body for body in WRONG_BODIES if b"no_such_field" not in body])
    with Server(args.mlxcel, args.model, "--strict") as strict:
        refuse_bodies(strict, paths, WRONG_BODIES)


def random_client(server, generator):
    kind = generator.randrange(6)
    with connect(server) as sock:
        if kind == 0:  # leaves while tokens arrive
            sock.sendall(request_bytes("/v1/completions", {"prompt": "ab" * generator.randrange(1, 20), "max_tokens": 200, "stream": True, "ignore_eos": True}))
            for _ in range(generator.randrange(4)):
                sock.recv(generator.randrange(1, 2000))
        elif kind == 1:  # leaves before the request is complete
            data = request_bytes("/v1/completions", {"prompt": "ab", "max_tokens": 4})
            sock.sendall(data[:generator.randrange(len(data))])
        elif kind == 2:
            sock.sendall(request_bytes("/v1/completions", generator.choice(BROKEN_BODIES + WRONG_BODIES)))
            read_response(sock)
        elif kind == 3:  # pipelining
            sock.sendall(request_bytes("/v1/completions", {"prompt": "ab", "max_tokens": 2}) * 3 + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            read_response(sock)
        elif kind == 4:
            sock.sendall(bytes(generator.randrange(256) for _ in range(generator.randrange(400))) + b"\r\n\r\n")
        else:
            sock.sendall(request_bytes("/v1/completions", {"prompt": "ab", "max_tokens": generator.randrange(1, 8)}))
            status, _ = read_response(sock)
            assert status in (200, 429), status
        if generator.randrange(2):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close sends a reset


def random_disconnects_leave_nothing_behind(server, args):
    expected = complete(server)
    errors = []

    def work(seed, count):
        generator = random.Random(seed)
        for _ in range(count):
            try:
                random_client(server, generator)
            except (ConnectionError, socket.timeout):
                pass
            except Exception as error:
                errors.append(error)
                return

    def crowd(count):
        threads = [threading.Thread(target=work, args=(seed, count // 8)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    crowd(args.requests // 4)  # buffers and caches reach their size
    wait_until_idle(server)
    before = memory_bytes(server.process)
    crowd(args.requests)
    assert not errors, errors[0]
    wait_until_idle(server)
    after = memory_bytes(server.process)
    print(f"  {before / MB:.1f} MiB before, {after / MB:.1f} MiB after {args.requests} requests")
    assert after - before < 12 * MB or is_sanitized(server.process), (before, after)
    assert complete(server) == expected


def large_bodies_are_refused_before_they_arrive(server, args):
    with connect(server) as sock:
        sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {100 * MB}\r\n\r\n".encode())
        assert read_response(sock)[0] == 413
    with connect(server) as sock:  # chunked, without a length
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(100):
                sock.sendall(b"100000\r\n" + b"x" * MB + b"\r\n")
        except ConnectionError:
            pass
        else:
            assert read_response(sock)[0] == 413


def slow_and_idle_clients_cost_only_a_socket(server, args):
    idle = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= 2048:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        for _ in range(1000):
            idle.append(connect(server))
        for sock in idle[:200]:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        started = time.time()
        for _ in range(5):
            complete(server)
        assert time.time() - started < 30
        with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
            threads = next(int(line.split()[1]) for line in file if line.startswith("Threads"))
        assert threads < 40, threads
    finally:
        for sock in idle:
            sock.close()


def a_client_that_does_not_read_is_disconnected(server, args):
    with connect(server) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(request_bytes("/v1/completions", {"prompt": "ab", "max_tokens": 2000, "stream": True, "ignore_eos": True}))
        complete(server)
    wait_until_idle(server)


HOSTILE_TEMPLATE = """{% if messages[0].content == 'slow' %}{% for i in range(3000) %}{% for j in range(3000) %}{{ 'x' * 3000 == 'y' * 3000 }}{% endfor %}{% endfor %}
{% endif %}{{ messages[0].content }}"""


def hostile_work_ends_and_other_requests_proceed(server, args):
    """Templates, texts and schemas that would take long get an error that names a limit.

    Which limit comes first depends on the machine: a fast one meets those of steps and memory before that of time,
    which tests/base/work_limit_test.c reaches with a clock of its own.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(HOSTILE_TEMPLATE)
        template.flush()
        schema = {"type": "object", "properties": {f"p{i}": {"type": "string", "enum": [f"a{i}", f"b{i}"]} for i in range(20000)}}
        bodies = [("/v1/chat/completions", {"messages": [{"role": "user", "content": "slow"}], "max_tokens": 1}),
                  ("/v1/completions", {"prompt": "the quick brown fox " * 1500000, "max_tokens": 1}),
                  ("/v1/completions", {"prompt": "ab", "max_tokens": 1, "json_schema": schema})]
        with Server(args.mlxcel, args.model, "--work", "1", "--chat-template", template.name) as other:
            results = []

            def ask(path, body):
                started = time.time()
                with connect(other) as sock:
                    sock.sendall(request_bytes(path, body))
                    sent = time.time()
                    results.append((path, *read_response(sock), time.time() - sent, sent - started))
            threads = [threading.Thread(target=ask, args=body) for body in bodies]
            for thread in threads:
                thread.start()
            started = time.time()
            for _ in range(5):
                complete(other)
            assert time.time() - started < 30  # four workers: these requests do not wait for the others
            for thread in threads:
                thread.join()
            for path, status, body, seconds, _ in results:
                assert status == 400 and seconds < 30, (path, status, seconds, body[:200])
            messages = sorted(json.loads(body)["error"]["message"] for _, _, body, _, _ in results)
            limits = re.compile("limit of 1 s|too many (ways|steps)|more than [0-9]+ bytes of memory|the context holds 2048")
            assert all(limits.search(message) for message in messages), messages
            complete(other)


def cpu_seconds(process):
    with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prompts_that_cannot_fit_are_refused_by_their_length(server, args):
    """40 requests with prompts of 2 MB cost far less than reading their tokens, and a short request is answered meanwhile."""
    generator = random.Random(7)
    text = "".join(generator.choices("abcdefghijklmnop  ", k=2 * MB))
    before = cpu_seconds(server.process)
    request = urllib.request.Request(server.url + "/tokenize", json.dumps({"content": text}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        assert len(json.load(response)["tokens"]) > 100000
    tokenizing = cpu_seconds(server.process) - before
    results, waits = [], []

    def ask():
        with connect(server) as sock:
            sock.sendall(request_bytes("/v1/completions", {"prompt": text, "max_tokens": 1}))
            results.append(read_response(sock))
    threads = [threading.Thread(target=ask) for _ in range(40)]
    before = cpu_seconds(server.process)
    for thread in threads:
        thread.start()
    while not waits or any(thread.is_alive() for thread in threads):
        started = time.time()
        complete(server)
        waits.append(time.time() - started)
        time.sleep(0.02)
    spent = cpu_seconds(server.process) - before
    assert len(results) == 40 and all(status == 400 and b"the context holds 2048" in body for status, body in results), results[:2]
    print(f"  2 MB: {tokenizing:.2f} s to tokenize, {spent / 40:.3f} s to refuse; short requests waited up to {max(waits):.2f} s")
    assert spent < 40 * tokenizing / 3, (spent, tokenizing)
    assert max(waits) < 20, max(waits)


def kill_and_restart_use_the_same_port(server, args):
    for tries in range(3):
        with Server(args.mlxcel, args.model, "--port", "0") as other:
            busy = connect(other)
            busy.sendall(request_bytes("/v1/completions", {"prompt": "ab", "max_tokens": 1000, "stream": True, "ignore_eos": True}))
            busy.recv(100)
            port = address(other)[1]
            other.stop(signal.SIGKILL)
        try:
            with Server(args.mlxcel, args.model, "--port", str(port)) as again:
                complete(again)
            return
        except RuntimeError:  # another test's connection may have got the port in between
            if tries == 2:
                raise


def full_disk_for_the_log_does_not_stop_the_server(server, args):
    if not os.path.exists("/dev/full"):
        return
    with Server(args.mlxcel, args.model, "--log", "/dev/full") as other:
        for _ in range(20):
            complete(other)


def drain_finishes_streams_and_refuses_new_work(server, args):
    with Server(args.mlxcel, args.model, "--drain", "60") as other:
        sock = connect(other)
        sock.sendall(request_bytes("/v1/completions", {"prompt": "ab", "max_tokens": 60, "stream": True, "ignore_eos": True}))
        data = sock.recv(100)
        other.process.send_signal(signal.SIGTERM)
        while piece := sock.recv(65536):
            data += piece
        assert b"data: [DONE]" in data
        assert other.process.wait(60) == 0


def bench_serve_prints_its_table_or_the_reason(server, args):
    bench = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "serve")
    command = [sys.executable, bench, "-m", args.model, "--mlxcel", args.mlxcel, "--clients", "1,2", "--requests", "1", "--turns", "1", "--words", "4", "--tokens", "4"]
    done = subprocess.run(command + ["--options=--chat-template chatml"], capture_output=True, text=True, timeout=300)
    assert not done.returncode and "| 2 | tok/s | " in done.stdout, done.stdout + done.stderr
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)  # the load generator waited for a stream that an error is not
    assert done.returncode and "the model has no chat template" in done.stderr, done.stdout + done.stderr
    done = subprocess.run(command + ["--words", "4000"], capture_output=True, text=True, timeout=300)
    assert done.returncode and "refused a request" in done.stderr, done.stdout + done.stderr


CASES = [bad_bodies_get_400_with_an_error_object, large_bodies_are_refused_before_they_arrive, slow_and_idle_clients_cost_only_a_socket,
         a_client_that_does_not_read_is_disconnected, hostile_work_ends_and_other_requests_proceed,
         prompts_that_cannot_fit_are_refused_by_their_length, random_disconnects_leave_nothing_behind, kill_and_restart_use_the_same_port,
         full_disk_for_the_log_does_not_stop_the_server, bench_serve_prints_its_table_or_the_reason, drain_finishes_streams_and_refuses_new_work]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mlxcel")
    parser.add_argument("model")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--requests", type=int)
    args = parser.parse_args()
    failed = 0
    chosen = [case for case in CASES if not args.cases or case.__name__ in args.cases]
    with Server(args.mlxcel, args.model, "--memory", "2M") as server:  # a KV cache that is soon full: its pages are taken as they are used
        args.requests = args.requests or (1000 if is_sanitized(server.process) else 10000)
        for case in chosen:
            print(case.__name__, flush=True)
            try:
                case(server, args)
                assert server.process.poll() is None, "the server ended"
            except Exception:
                print("  " + traceback.format_exc().replace("\n", "\n  ") + "FAILED", flush=True)
                failed += 1
        if server.process.poll() is None:
            assert server.stop() == 0, "the server did not stop cleanly"
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
