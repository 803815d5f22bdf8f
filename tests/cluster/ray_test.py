"""mlxcel.ray behind Ray Serve with two replicas, and the pipeline of docs/batch.md in Ray Data.

    python3 tests/cluster/ray_test.py BUILD MODEL [CASE...]

The packages of tests/cluster/requirements.txt are in BUILD/ray, which must be in PYTHONPATH.
"""
import asyncio
import concurrent.futures
import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "clients"))
from server import Server  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD, MODEL = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
CLIENTS, EACH = 32, 3

if not importlib.util.find_spec("ray"):
    print("skipped: the package ray is missing")
    sys.exit(77)


def package(folder):
    """The Python package with the library and the program of this build, as the wheel has them."""
    inside = os.path.join(folder, "mlxcel")
    shutil.copytree(os.path.join(ROOT, "python", "mlxcel"), inside, ignore=shutil.ignore_patterns("__pycache__"))
    library = next(name for name in os.listdir(os.path.join(BUILD, "lib")) if re.fullmatch(r"libmlxcel\.so\.\d+\.\d+", name))
    with open(os.path.join(inside, "_abi.py"), "w", encoding="utf-8") as file:
        subprocess.run([sys.executable, os.path.join(ROOT, "python", "abi.py"), os.path.join(BUILD, "generated", "include", "mlxcel"), library,
                        library[len("libmlxcel.so."):] + ".0"], check=True, stdout=file)
    os.mkdir(os.path.join(inside, "bin"))
    os.symlink(os.path.join(BUILD, "bin", "mlxcel"), os.path.join(inside, "bin", "mlxcel"))
    os.environ.update(MLXCEL_LIBRARY=os.path.join(BUILD, "lib", library), PYTHONPATH=folder + os.pathsep + os.environ["PYTHONPATH"], RAY_USAGE_STATS_ENABLED="0",
                      PYTHONDONTWRITEBYTECODE="1", RAY_DEDUP_LOGS="0")
    sys.path.insert(0, folder)


def post(url, path, **body):
    """(status, text)"""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def prompt_of(number):
    return f"story {number} " + " ".join(f"word{(number * 7 + i) % 23}" for i in range(20))


def fields(number, **more):
    return {"model": "small", "prompt": prompt_of(number), "max_tokens": 5 + number % 20, "temperature": 0, "ignore_eos": True, **more}


def text_of(answer):
    return json.loads(answer)["choices"][0]["text"]


def events_of(stream):
    events = [event[len("data: "):] for event in stream.split("\n\n") if event.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def wait_for(what, found, seconds=120):
    end = time.time() + seconds
    while time.time() < end:
        value = found()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds} s")


def servers(folder):
    """{process of `mlxcel serve` whose replica runs in this test: its parent}"""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if words[0] == os.path.join(folder, "mlxcel", "bin", "mlxcel").encode():
            found[int(name)] = parent
    return found


class Load:
    """Clients that repeat a request until it is answered, as clients of a service do. Every answer must be that of one server alone."""

    def __init__(self, url, expected):
        self.url, self.expected, self.attempts, self.done = url, expected, {}, 0
        self.pool = concurrent.futures.ThreadPoolExecutor(CLIENTS)
        self.futures = [self.pool.submit(self.client, number) for number in range(CLIENTS)]

    def client(self, number):
        for i in range(EACH):
            which = (number * EACH + i) % len(self.expected)
            for _ in range(300):
                try:
                    status, answer = post(self.url, "/v1/completions", **fields(which))
                except (ConnectionError, http.client.HTTPException, urllib.error.URLError):  # also in the middle of an answer
                    status, answer = 0, ""
                self.attempts[status] = self.attempts.get(status, 0) + 1
                if status == 200:
                    break
                assert status in (0, 429, 500, 502, 503, 504), (status, answer)
                time.sleep(0.1)
            assert text_of(answer) == self.expected[which], (answer, self.expected[which])
            self.done += 1

    def join(self):
        for future in self.futures:
            future.result(300)
        print(f"  attempts by status: {dict(sorted(self.attempts.items()))}")


def ray_serve_with_two_replicas(folder):
    from ray import serve
    from mlxcel.ray import LLMEngine, build_app
    options = ["--device", "cpu", "-t", "1", "--parallel", "8", "--chat-template", "chatml"]
    with Server(os.path.join(BUILD, "bin", "mlxcel"), MODEL, *options, "--served-model-name", "small") as alone:
        expected = [text_of(post(alone.url, "/v1/completions", **fields(number))[1]) for number in range(20)]
        others = [("/v1/completions", {"prompt": 5}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0}),
                  ("/v1/embeddings", {"input": "hi"})]
        answers = [post(alone.url, path, **body) for path, body in others]
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})

    def deploy(replicas):
        # The replicas are looked at more often than every 10 s, so that the test is quick.
        return serve.run(build_app(MODEL, name="small", options=options, num_replicas=replicas, ray_actor_options={"num_cpus": 0.1}, health_check_period_s=1,
                                   graceful_shutdown_timeout_s=60))

    handle = deploy(2)
    url = f"http://127.0.0.1:{port}"
    assert len(servers(folder)) == 2
    assert [post(url, "/v1/completions", **fields(number)) for number in (3, 4)][0][0] == 200
    assert json.loads(urllib.request.urlopen(url + "/v1/models").read())["data"][0]["id"] == "small"
    for (path, body), (status, answer) in zip(others, answers):
        found = post(url, path, **body)
        assert found[0] == status, (path, found, answer)
        for key in ("error", "data"):
            assert json.loads(found[1]).get(key) == json.loads(answer).get(key), (found, answer)
    assert post(url, "/v1/nothing")[0] == 404 and post(url, "/v1/chat/completions", messages=[{"role": "nobody"}])[0] == 400
    assert events_of(post(url, "/v1/completions", **fields(7, stream=True))[1]) == expected[7]
    assert [part["choices"][0]["text"] for part in handle.options(stream=True).completions.remote(fields(8))] == [expected[8]]
    parts = list(handle.options(stream=True).completions.remote(fields(9, stream=True)))
    assert len(parts) > 3 and events_of("".join(parts)) == expected[9]
    assert [part.status for part in handle.options(stream=True).completions.remote({"prompt": 5})] == [400]

    # A server, a replica with its server, and one that has to go: every attempt ends, and a client that repeats its request gets the one answer.
    load = Load(url, expected)
    wait_for("a quarter of the requests", lambda: load.done >= CLIENTS * EACH // 4)
    before = servers(folder)
    first = next(iter(before))
    os.kill(first, signal.SIGKILL)
    load.join()
    wait_for("a replica in its place", lambda: len(servers(folder)) == 2 and first not in servers(folder))
    load = Load(url, expected)
    wait_for("a quarter of the requests", lambda: load.done >= CLIENTS * EACH // 4)
    second, replica = next(iter(servers(folder).items()))
    os.kill(replica, signal.SIGKILL)
    load.join()
    wait_for("the end of the server of a killed replica", lambda: second not in servers(folder))
    wait_for("a replica in its place", lambda: len(servers(folder)) == 2)
    load = Load(url, expected)
    wait_for("a quarter of the requests", lambda: load.done >= CLIENTS * EACH // 4)
    deploy(1)
    load.join()
    wait_for("one replica less", lambda: len(servers(folder)) == 1)
    asyncio.run(engine_alone(LLMEngine, options, expected))
    serve.shutdown()
    wait_for("the end of all servers", lambda: not servers(folder))


async def engine_alone(LLMEngine, options, expected):
    engine = LLMEngine(MODEL, options=options)
    await engine.start()
    assert [text["choices"][0]["text"] async for text in engine.completions(fields(2))] == [expected[2]]
    await engine.sleep(level=2)
    assert await engine.is_sleeping() and [answer.status async for answer in engine.completions(fields(2))] == [503]
    await engine.wakeup()
    again = [answer async for answer in engine.completions(fields(2))][0]
    assert again["choices"][0]["text"] == expected[2] and again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = [answer async for answer in engine.completions(fields(2))][0]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    await engine.reset_prefix_cache()
    again = [answer async for answer in engine.completions(fields(2))][0]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    await engine.check_health()
    os.kill(engine._process.pid, signal.SIGKILL)
    await engine._process.wait()
    try:
        await engine.check_health()
        raise AssertionError("a dead server is healthy")
    except RuntimeError as error:
        assert "ended" in str(error)
    await engine.shutdown()
    broken = LLMEngine(os.path.join(MODEL, "no-model"))
    try:
        await broken.start()
        raise AssertionError("a model that does not exist was loaded")
    except RuntimeError as error:
        assert "no-model" in str(error)


def the_pipeline_of_the_documentation(folder):
    import mlxcel
    with open(os.path.join(ROOT, "docs", "batch.md"), encoding="utf-8") as file:
        code = re.search(r"^## Ray Data\n.*?```python\n(.*?)```", file.read(), re.S | re.M)[1]
    prompts = [prompt_of(number) for number in range(40)]
    with open(os.path.join(folder, "prompts.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
    for text, here in (('"qwen3:8b"', f'{MODEL!r}, device="cpu", threads=1'), ("sequences=256", "sequences=8"), ("max_tokens=200", "max_tokens=6, temperature=0"),
                       ("concurrency=8", "concurrency=1"), ("num_gpus=1", "num_cpus=0.1"), ("batch_size=1024", "batch_size=16"),
                       ('"prompts.jsonl"', repr(os.path.join(folder, "prompts.jsonl"))), ('"answers"', repr(os.path.join(folder, "answers")))):
        assert code.count(text) == 1, text
        code = code.replace(text, here)
    exec(compile(code, "docs/batch.md", "exec"), {"__name__": "pipeline"})
    found = {}
    for name in os.listdir(os.path.join(folder, "answers")):
        with open(os.path.join(folder, "answers", name), encoding="utf-8") as file:
            found.update((row["prompt"], row["answer"]) for row in map(json.loads, file))
    with mlxcel.load(MODEL, device="cpu", threads=1) as model:
        assert found == {prompt: model.generate(prompt, max_tokens=6, temperature=0).text for prompt in prompts}


CASES = [ray_serve_with_two_replicas, the_pipeline_of_the_documentation]


def main():
    import ray
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        package(folder)
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20, _temp_dir=os.path.join(folder, "r"))
        for case in CASES:
            if sys.argv[3:] and case.__name__ not in sys.argv[3:]:
                continue
            print(case.__name__, flush=True)
            start = time.time()
            try:
                case(folder)
                print(f"  {time.time() - start:.1f} s")
            except Exception:
                print("  " + traceback.format_exc().replace("\n", "\n  ") + "FAILED")
                failed += 1
        ray.shutdown()
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


main()
