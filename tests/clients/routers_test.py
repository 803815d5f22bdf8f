"""Three replicas behind HAProxy, and behind sglang-router: where prompts with a common beginning go, and what clients see when replicas end.

    python3 tests/clients/routers_test.py MLXCEL MODEL DEBIAN [CASE...]

DEBIAN is the folder of unpacked Debian packages with usr/sbin/haproxy; sglang_router is a Python package. A missing one skips its case.
"""
import contextlib
import importlib.util
import json
import os
import re
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
from server import Server  # noqa: E402

# Clients, requests of each, and beginnings of their prompts. In turns, each beginning comes to all three replicas.
CLIENTS, EACH, GROUPS = 64, 3, 13
RETRIABLE = {429, 500, 502, 503, 504}


class Skip(Exception):
    pass


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def post(url, prompt, group, timeout=60):
    """(status, text); status 0: the connection ended without a response"""
    body = json.dumps({"model": "small", "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json", "X-Prefix": str(group)})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, json.load(response)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (ConnectionError, urllib.error.URLError) as error:
        assert not isinstance(getattr(error, "reason", None), TimeoutError), "a request had no end"
        return 0, str(error)


def wait_for(what, found):
    for _ in range(3000):
        if found():
            return
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within 60 s")


def counts(replicas):
    """Tokens that were looked for in the KV caches of all replicas, and those that were found."""
    sums = [0, 0]
    for replica in replicas:
        text = urllib.request.urlopen(replica.url + "/metrics").read().decode()
        for i, name in enumerate(("queries", "hits")):
            sums[i] += float(re.search(r"^vllm:prefix_cache_%s_total{.*} (\S+)$" % name, text, re.M)[1])
    return sums


def prompt_of(group, salt):
    return f"{salt} of the story number {group}: " + " ".join(f"word{(group * 7 + i) % 23}" for i in range(30))


def hit_rate(url, replicas, salt):
    """Of prompts that begin alike, in an order in which each beginning comes back after all others."""
    before = counts(replicas)
    for turn in range(6):
        for group in range(GROUPS):
            assert post(url, prompt_of(group, salt) + f" turn {turn}", group)[0] == 200
    after = counts(replicas)
    return (after[1] - before[1]) / (after[0] - before[0])


def end_replicas_under_load(url, replicas):
    """64 clients send requests, one replica is killed and one drains: each attempt ends, and a client that repeats its request gets the one answer."""
    # What each prompt is answered, by a replica that stays.
    expected = {group: post(replicas[2].url, prompt_of(group, "load"), group) for group in range(GROUPS)}
    lock, done, attempts, problems = threading.Lock(), [0], {}, []

    def client(number):
        for i in range(EACH):
            group = (number * EACH + i) % GROUPS
            for _ in range(200):
                try:
                    status, text = post(url, prompt_of(group, "load"), group)
                except Exception as error:
                    problems.append(repr(error))
                    return
                with lock:
                    attempts[status] = attempts.get(status, 0) + 1
                    done[0] += status == 200
                if status == 200:
                    if (status, text) != expected[group]:
                        problems.append(f"{text!r} instead of {expected[group]!r}")
                    break
                if status and status not in RETRIABLE:
                    problems.append(f"{status}: {text[:300]}")
                    return
                time.sleep(0.1)
            else:
                problems.append("no answer after 200 attempts")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    wait_for("a quarter of the requests", lambda: done[0] >= CLIENTS * EACH // 4 or problems)
    replicas[0].process.kill()
    wait_for("half of the requests", lambda: done[0] >= CLIENTS * EACH // 2 or problems)
    replicas[1].process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert not problems, problems[:5]
    assert done[0] == CLIENTS * EACH and replicas[1].process.wait(60) == 0
    print(f"  attempts by status: {dict(sorted(attempts.items()))}")


def check(replicas, affine, spread):
    for url in (affine, spread):
        wait_for("the router", lambda at=url: post(at, "a", 0)[0] == 200)
    rates = hit_rate(affine, replicas, "affine"), hit_rate(spread, replicas, "spread")
    print(f"  prefix hit rate: {rates[0]:.2f} with affinity, {rates[1]:.2f} in turns")
    assert rates[0] > rates[1] + 0.1, rates
    end_replicas_under_load(affine, replicas)


@contextlib.contextmanager
def three_replicas(mlxcel, model):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Server(mlxcel, model, "--device", "cpu", "-t", "1", "--parallel", "8", "--served-model-name", "small")) for _ in range(3)]


@contextlib.contextmanager
def running(argv, environment):
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)
        try:
            yield
            assert process.poll() is None, "the router ended"
        except BaseException:
            log.seek(0)
            print("  the router's output: " + log.read().decode(errors="replace")[-1500:])
            raise
        finally:
            process.kill()
            process.wait()


HAPROXY = """
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  option httpchk GET /health/ready
  option redispatch
  retry-on conn-failure empty-response 503
  default-server check inter 200ms fall 1 rise 1
listen affine
  bind 127.0.0.1:{affine}
  balance hdr(X-Prefix)
  hash-type consistent
{servers}
listen spread
  bind 127.0.0.1:{spread}
  balance roundrobin
{servers}
"""


def haproxy(mlxcel, model, debian):
    program = os.path.join(debian, "usr/sbin/haproxy")
    if not os.path.exists(program):
        raise Skip("haproxy is not there")
    library = os.path.join(debian, "usr/lib", os.uname().machine + "-linux-gnu")
    with three_replicas(mlxcel, model) as replicas, tempfile.TemporaryDirectory() as folder:
        ports, path = {"affine": free_port(), "spread": free_port()}, os.path.join(folder, "haproxy.cfg")
        servers = "\n".join(f"  server r{i} {replica.url.split('//')[1]}" for i, replica in enumerate(replicas))
        with open(path, "w", encoding="ascii") as file:
            file.write(HAPROXY.format(servers=servers, **ports))
        environment = {**os.environ, "LD_LIBRARY_PATH": library}
        print("  " + subprocess.run([program, "-v"], env=environment, capture_output=True, text=True, check=True).stdout.splitlines()[0])
        with running([program, "-db", "-f", path], environment):
            check(replicas, *(f"http://127.0.0.1:{port}" for port in ports.values()))


ROUTER = """
import sys
from sglang_router.sglang_router_rs import PolicyType, Router
policy, port, metrics, *urls = sys.argv[1:]
Router(worker_urls=urls, policy=getattr(PolicyType, policy), host="127.0.0.1", port=int(port), prometheus_host="127.0.0.1", prometheus_port=int(metrics), log_level="warn", worker_startup_check_interval=1, health_check_interval_secs=1, health_check_timeout_secs=1,
       health_failure_threshold=1, health_success_threshold=1, health_check_endpoint="/health", retry_max_retries=3, cache_threshold=0.3, balance_abs_threshold=1000).start()
"""


def sglang_router(mlxcel, model, _):
    if not importlib.util.find_spec("sglang_router"):
        raise Skip("sglang_router is not installed")
    version = importlib.import_module("sglang_router.version").__version__
    print(f"  sglang-router {version}")
    with three_replicas(mlxcel, model) as replicas:
        ports, urls = (free_port(), free_port()), [replica.url for replica in replicas]
        start = [running([sys.executable, "-c", ROUTER, policy, str(port), str(free_port()), *urls], os.environ) for policy, port in zip(("CacheAware", "RoundRobin"), ports)]
        with start[0], start[1]:
            check(replicas, *(f"http://127.0.0.1:{port}" for port in ports))


def main():
    mlxcel, model, debian, *names = sys.argv[1:]
    passed = failed = skipped = 0
    for case in (haproxy, sglang_router):
        if names and case.__name__ not in names:
            continue
        print(case.__name__, flush=True)
        try:
            case(mlxcel, model, debian)
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
