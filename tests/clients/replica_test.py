"""`mlxcel serve` as one replica of a cluster: probes, names, the address file, an ordinary user with a read-only root.

    python3 tests/clients/replica_test.py MLXCEL MODEL [CASE...]
"""
import ctypes
import errno
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server import Server, memory_bytes  # noqa: E402

PROBES = ["/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"]


class Skip(Exception):
    pass


def ask(url, body=None, method=None):
    """(status, JSON or text, headers)"""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            status, text, headers = response.status, response.read().decode(), response.headers
    except urllib.error.HTTPError as error:
        status, text, headers = error.code, error.read().decode(), error.headers
    return status, json.loads(text) if headers["Content-Type"] == "application/json" and text else text, headers


def statuses(url):
    return [ask(url + path)[0] for path in PROBES]


def complete(url, **fields):
    return ask(url + "/v1/completions", {"prompt": "the quick brown fox", "max_tokens": 6, "temperature": 0, "ignore_eos": True, **fields})


def wait_for(what, found):
    for _ in range(6000):
        value = found()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within 60 s")


# A hub that accepts connections and never answers keeps the server in its start.
def a_replica_that_loads_is_live_and_not_ready(mlxcel, _):
    with socket.create_server(("127.0.0.1", 0)) as hub, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "address")
        environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}", "MLXCEL_CACHE": os.path.join(folder, "cache")}
        server = subprocess.Popen([mlxcel, "serve", "-m", "hf:org/model", "--port", "0", "--address-file", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        try:
            wait_for("the address file", lambda: os.path.exists(path))
            with open(path, encoding="ascii") as file:
                url = file.read().strip()
            assert statuses(url) == [503, 200, 503, 200, 503], statuses(url)
            assert ask(url + "/health")[1]["status"] == "loading"
            assert ask(url + "/v2/health/ready")[1] == {"ready": False} and ask(url + "/v2/health/live")[1] == {"live": True}
            assert ask(url + "/metrics")[0] == 200
            for path_of, body in (("/v1/models", None), ("/v1/models/x", None), ("/ping", None), ("/v1/completions", {"prompt": "a"}), ("/v1/responses/x", None)):
                status, answer, headers = ask(url + path_of, body)
                assert status == 503 and headers["Retry-After"] and "loading" in answer["error"]["message"], (path_of, status, answer)
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == -signal.SIGTERM
            assert server.stdout.read() == b"" and not os.path.exists(path), "the address file was left behind"
        finally:
            server.kill()
            server.wait()


def a_ready_replica_has_the_given_names(mlxcel, model):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "address")
        with Server(mlxcel, model, "--device", "cpu", "--served-model-name", "small", "--served-model-name", "org/small", "--address-file", path) as server:
            with open(path, encoding="ascii") as file:
                assert file.read() == server.url + "\n"
            assert statuses(server.url) == [200] * 5, statuses(server.url)
            assert [entry["id"] for entry in ask(server.url + "/v1/models")[1]["data"]] == ["small", "org/small"]
            for name in ("small", "org/small"):
                status, answer, _ = complete(server.url, model=name)
                assert status == 200 and answer["model"] == "small", answer
            assert 'mlxcel_steps_total{model_name="small",engine="0"}' in ask(server.url + "/metrics")[1]
            assert server.stop() == 0 and not os.path.exists(path)
    done = subprocess.run([mlxcel, "serve", model, model, "--served-model-name", "x"], capture_output=True, text=True, timeout=60)
    assert done.returncode and "--served-model-name needs exactly one model" in done.stderr, done.stderr


def a_replica_that_drains_is_live_and_not_ready(mlxcel, model):
    with Server(mlxcel, model, "--device", "cpu", "--drain", "600") as server:
        host, port = server.url.split("//")[1].split(":")
        body = json.dumps({"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True})
        with socket.create_connection((host, int(port)), 60) as stream, socket.create_connection((host, int(port)), 60) as probe:
            stream.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            assert stream.recv(1)
            probe.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: ")  # a request that has begun is still answered
            time.sleep(0.1)
            server.process.send_signal(signal.SIGTERM)
            wait_for("the note", lambda: any("shutting down" in line for line in server.lines))
            probe.sendall(b"y\r\n\r\n")
            assert b"HTTP/1.1 200" in probe.recv(1000)
            text = b""
            while chunk := stream.recv(65536):
                text += chunk
            assert b"[DONE]" in text
        assert server.process.wait(60) == 0


def metrics(url):
    """{name: [(labels, value)]} of /metrics, and {name: type}"""
    samples, types = {}, {}
    for line in ask(url + "/metrics")[1].splitlines():
        if line.startswith("# TYPE "):
            types[line.split()[2]] = line.split()[3]
        elif not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:{(.*)})? (\S+)", line).groups()
            samples.setdefault(name, []).append((dict(re.findall(r'([a-z_]+)="([^"]*)"', labels or "")), float(value)))
    return samples, types


# What vLLM's Grafana dashboard, the Gateway API's picker, llm-d and the production-stack router read.
OF_VLLM = {
    "num_requests_running": "gauge", "num_requests_waiting": "gauge", "kv_cache_usage_perc": "gauge", "gpu_cache_usage_perc": "gauge", "cache_config_info": "gauge", "prompt_tokens_total": "counter",
    "generation_tokens_total": "counter", "request_success_total": "counter", "prefix_cache_queries_total": "counter", "prefix_cache_hits_total": "counter", "gpu_prefix_cache_queries_total": "counter",
    "gpu_prefix_cache_hits_total": "counter", "num_preemptions_total": "counter", "time_to_first_token_seconds": "histogram", "inter_token_latency_seconds": "histogram",
    "time_per_output_token_seconds": "histogram", "e2e_request_latency_seconds": "histogram", "request_queue_time_seconds": "histogram", "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram", "request_prompt_tokens": "histogram", "request_generation_tokens": "histogram"}


def vllms_metrics_count_requests_and_tokens(mlxcel, model):
    with Server(mlxcel, model, "--device", "cpu", "--served-model-name", "small", "--parallel", "2") as server:
        started = time.monotonic()
        usages = [complete(server.url, prompt="one two three four five six seven eight nine ten " * 4, max_tokens=9)[1]["usage"] for _ in range(3)]
        status, answer, _ = ask(server.url + "/v1/completions", {"prompt": "a", "max_tokens": 40, "temperature": 0, "stop": ["e"], "n": 2})
        assert status == 200 and {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}, answer
        usages.append(answer["usage"])
        seconds = time.monotonic() - started
        samples, types = wait_for("the end of all requests", lambda: (lambda m: m if m[0]["vllm:num_requests_running"][0][1] == 0 and m[0]["vllm:e2e_request_latency_seconds_count"][0][1] == 5 else None)(metrics(server.url)))
        assert {name.split(":")[1]: kind for name, kind in types.items() if name.startswith("vllm:")} == OF_VLLM, types
        for name, rows in samples.items():
            if name.startswith("vllm:"):
                assert all(labels["model_name"] == "small" and labels["engine"] == "0" for labels, _ in rows), (name, rows)
        one = {name: rows[0][1] for name, rows in samples.items()}
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        generated = sum(usage["completion_tokens"] for usage in usages)
        assert one["vllm:generation_tokens_total"] == generated == one["vllm:request_generation_tokens_sum"], (one, usages)
        assert one["vllm:inter_token_latency_seconds_count"] == one["vllm:time_per_output_token_seconds_count"] == generated - 5, one
        assert one["vllm:time_to_first_token_seconds_count"] == one["vllm:request_prompt_tokens_count"] == 5, one
        assert 0 < one["vllm:time_to_first_token_seconds_sum"] + one["vllm:request_decode_time_seconds_sum"] <= one["vllm:e2e_request_latency_seconds_sum"] + 1e-6 < 2 * seconds, one
        prompts = sum(usage["prompt_tokens"] for usage in usages[:3]) + 2 * usages[3]["prompt_tokens"]
        assert one["vllm:prefix_cache_queries_total"] == one["vllm:request_prompt_tokens_sum"] == one["vllm:prompt_tokens_total"] == prompts, (one, usages)
        assert one["vllm:gpu_prefix_cache_queries_total"] == prompts and one["vllm:gpu_prefix_cache_hits_total"] == one["vllm:prefix_cache_hits_total"] >= cached > 30, (one, usages)
        assert {labels["finished_reason"]: value for labels, value in samples["vllm:request_success_total"]} == {"length": 3, "stop": 2, "abort": 0, "error": 0}, samples["vllm:request_success_total"]
        (labels, value), = samples["vllm:cache_config_info"]
        assert value == 1 and labels["block_size"] == "16" and int(labels["num_gpu_blocks"]) == one["mlxcel_kv_pages"], labels
        for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
            counts = [value for _, value in samples[f"vllm:{name}_bucket"]]
            assert counts == sorted(counts) and counts[-1] == one[f"vllm:{name}_count"], counts
        the_dashboard_reads(samples)


def the_dashboard_reads(samples):
    """Every metric and label in release/grafana.json is exported."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../release/grafana.json"), encoding="utf-8") as file:
        board = json.load(file)
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]] + [variable["definition"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    names = {name for query in queries for name in re.findall(r"(?:vllm:|mlxcel_)[a-z0-9_]+", query)}
    assert len(queries) > 25 and len(names) > 15 and names <= set(samples), names - set(samples)
    for query in queries:
        for name, selector in re.findall(r"((?:vllm:|mlxcel_)[a-z0-9_]+)(?:{([^}]*)})?", query):
            wanted = set(re.findall(r"([a-z_]+)=", selector)) | (set(re.findall(r"\b(?:finished_reason|endpoint|status|le)\b", query.split("by (")[1].split(")")[0])) if "by (" in query else set())
            assert wanted - {"instance"} <= set(samples[name][0][0]), (name, wanted, samples[name][0])  # Prometheus adds instance
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


CLONE_NEWUSER, CLONE_NEWNS, MS_BIND, MS_REC, AT_RECURSIVE, MOUNT_ATTR_RDONLY, MOUNT_SETATTR = 0x10000000, 0x20000, 0x1000, 0x4000, 0x8000, 1, 442


def enter_read_only_root(writable):
    """For a new process: user 1000, and a file system of which only |writable| can be written. Fails where the system forbids namespaces."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result):
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def set_attributes(path, recursive, on, off):
        attributes = struct.pack("QQQQ", on, off, 0, 0)
        check(libc.syscall(MOUNT_SETATTR, -100, path.encode(), AT_RECURSIVE if recursive else 0, attributes, len(attributes)))

    user, group = os.geteuid(), os.getegid()
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    for path, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        with open("/proc/self/" + path, "w", encoding="ascii") as file:
            file.write(text)
    for path in writable:
        check(libc.mount(path.encode(), path.encode(), None, MS_BIND | MS_REC, None))
    set_attributes("/", True, MOUNT_ATTR_RDONLY, 0)
    for path in writable:
        set_attributes(path, False, 0, MOUNT_ATTR_RDONLY)


def an_ordinary_user_with_a_read_only_root_compiles_and_serves(mlxcel, model):
    with tempfile.TemporaryDirectory() as folder:
        cache, state = os.path.join(folder, "cache"), os.path.join(folder, "state")
        os.mkdir(cache, 0o700)
        os.mkdir(state, 0o700)
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "MLXCEL_CACHE": cache, "MLXCEL_STATE": state}
        probe = subprocess.run([sys.executable, "-c", "import os\ntry: open('/tmp/x', 'w')\nexcept OSError as e: print(e.errno, os.getuid())"], env=environment, text=True, capture_output=True,
                               check=False, preexec_fn=lambda: enter_read_only_root([cache, state])) if namespaces_work() else None
        if not probe:
            raise Skip("this system does not allow user namespaces")
        assert probe.stdout.split() == [str(errno.EROFS), "1000"], probe.stdout + probe.stderr
        server = subprocess.Popen([mlxcel, "serve", "-m", model, "--device", "cpu", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                                  preexec_fn=lambda: enter_read_only_root([cache, state]), cwd="/")
        try:
            lines = []
            for line in server.stdout:
                lines.append(line)
                if line.startswith("listening on "):
                    break
            else:
                raise AssertionError("".join(lines))
            threading.Thread(target=server.stdout.read, daemon=True).start()
            url = lines[-1].split()[2]
            status, answer, _ = complete(url)
            assert status == 200 and answer["usage"]["completion_tokens"] == 6, answer
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
            assert os.path.isdir(os.path.join(cache, "vmfb")), "the model was not compiled into the cache"
        finally:
            server.kill()
            server.wait()


class Stream(threading.Thread):
    """A stream of 200 tokens; |text| is all of it when the thread has ended."""

    def __init__(self, url):
        super().__init__()
        body = json.dumps({"prompt": "a long story", "max_tokens": 200, "ignore_eos": True, "stream": True, "temperature": 0}).encode()
        self.response = urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"}), timeout=120)
        self.text = self.response.readline().decode()  # it runs
        self.start()

    def run(self):
        try:
            self.text += self.response.read().decode()
        except http.client.IncompleteRead as end:  # after an error, the connection is closed
            self.text += end.partial.decode()


def sleeping_models_give_memory_back_and_answer_the_same_after_waking(mlxcel, model):
    weights = os.path.getsize(model)
    with Server(mlxcel, model, "--device", "cpu", "--enable-sleep-mode", "-c", "1024") as server:
        url = server.url

        def tokens():
            status, answer, _ = complete(url, max_tokens=12, return_token_ids=True)
            assert status == 200, answer
            return answer["choices"][0]["token_ids"]

        def check(asleep):
            assert ask(url + "/is_sleeping")[1] == {"is_sleeping": asleep}
            assert statuses(url) == ([200, 200, 503, 200, 503] if asleep else [200] * 5), statuses(url)
            if asleep:
                status, answer, headers = complete(url)
                assert status == 503 and headers["Retry-After"] and "asleep" in answer["error"]["message"], answer

        expected, awake = tokens(), memory_bytes(server.process)
        assert len(expected) == 12
        check(False)
        assert [ask(url + "/sleep" + query, {})[0] for query in ("?level=3", "?level=1&mode=keep")] == [400, 400]
        assert ask(url + "/sleep?level=1", {})[0] == 200
        check(True)
        level_1 = memory_bytes(server.process)
        assert metrics(url)[0]["mlxcel_kv_pages_cached"][0][1] == 0 and level_1 > weights / 2
        assert ask(url + "/sleep?level=2", {})[0] == 200  # deeper
        level_2 = memory_bytes(server.process)
        assert level_2 < level_1 - weights / 2, (level_1, level_2, weights)
        assert ask(url + "/wake_up", {})[0] == 200
        check(False)
        assert tokens() == expected

        stream = Stream(url)
        assert ask(url + "/sleep?level=2", {})[0] == 200  # ends what runs
        stream.join()
        assert "going to sleep" in stream.text, stream.text[-300:]
        check(True)
        assert memory_bytes(server.process) < awake - weights / 2, (awake, memory_bytes(server.process), weights)
        assert metrics(url)[0]["mlxcel_models_loaded"][0][1] == 0
        assert ask(url + "/wake_up?tags=weights", {})[0] == 200
        assert memory_bytes(server.process) > level_2
        assert tokens() == expected

        stream = Stream(url)
        assert ask(url + "/sleep?level=1&mode=wait", {})[0] == 200
        stream.join()
        assert "[DONE]" in stream.text and '"error"' not in stream.text, stream.text[-300:]
        check(True)
        assert ask(url + "/wake_up", {})[0] == 200
        assert tokens() == expected
        assert ask(url + "/sleep?level=2", {})[0] == 200
        print(f"  MiB: awake {awake >> 20}, level 1 {level_1 >> 20}, level 2 {level_2 >> 20}, file {weights >> 20}")
        assert server.stop() == 0


def sleep_must_be_allowed(mlxcel, model):
    with Server(mlxcel, model, "--device", "cpu") as server:
        for path in ("/sleep", "/wake_up"):
            status, answer, _ = ask(server.url + path, {})
            assert status == 400 and "--enable-sleep-mode" in answer["error"]["message"], answer
        assert ask(server.url + "/is_sleeping")[1] == {"is_sleeping": False}


def namespaces_work():
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(["true"], check=True, preexec_fn=lambda: enter_read_only_root([folder]))
        except (subprocess.SubprocessError, OSError):
            return False
        return True


CASES = [a_replica_that_loads_is_live_and_not_ready, a_ready_replica_has_the_given_names, a_replica_that_drains_is_live_and_not_ready, vllms_metrics_count_requests_and_tokens, sleep_must_be_allowed, an_ordinary_user_with_a_read_only_root_compiles_and_serves]


# Needs a model whose weights are more than the rest of the process; only if it is named.
LARGE = [sleeping_models_give_memory_back_and_answer_the_same_after_waking]


def main():
    mlxcel, model, *names = sys.argv[1:]
    mlxcel, model = os.path.abspath(mlxcel), os.path.abspath(model)
    passed = failed = skipped = 0
    for case in CASES + LARGE:
        if case.__name__ not in names if names else case in LARGE:
            continue
        print(case.__name__, flush=True)
        try:
            case(mlxcel, model)
            passed += 1
        except Skip as reason:
            print(f"  skipped: {reason}")
            skipped += 1
        except Exception:
            print("  " + traceback.format_exc().replace("\n", "\n  ") + "FAILED", flush=True)
            failed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 77 if not passed else 0)


if __name__ == "__main__":
    main()
