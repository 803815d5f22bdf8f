#!/usr/bin/env python3
"""Tests what benchmarks save: bench/record.py, and the scripts of bench/ that call it, with programs that only print.

  record_test.py     (standard library only)
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPES = """| model | size | test | tok/s |
| --- | --- | --- | --- |
| llama-1b-q4_0 | 0.8 GiB | pp512 | 73140.2 \u00b1 80 |
| llama-1b-q4_0 | 0.8 GiB | tg128 x8 @ d128 | 2000.4 \u00b1 3 |
| llama.cpp | 0.8 GiB | pp512 | 40690.0 \u00b1 80 |
| llama.cpp |  | 8 sequences | 1000 |
"""


class Case:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def run(self, *command, stdin="", fails=False):
        env = dict(os.environ, MLXCEL_RESULTS=str(self.folder), MLXCEL=str(self.folder / "mlxcel"))
        done = subprocess.run([str(word) for word in command], input=stdin, capture_output=True, text=True, env=env, cwd=ROOT)
        assert (done.returncode != 0) == fails, (command, done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def program(self, name, script):
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        return path

    def saved(self, subject):
        found = list(self.folder.glob("*-%s.json" % subject))
        assert len(found) == 1, found
        return json.loads(found[0].read_text())


def figures(saved):
    return {(result["model"], program, test): value for result in saved["results"] for program in ("mlxcel", "llama.cpp")
            for test, value in result.get(program, {}).items()}


def record_has_machine_date_and_command(c):
    c.run(sys.executable, "bench/record.py", "one", "cmd -x", stdin="a\tmlxcel\ttg128\t1234.56\na\tllama.cpp\ttg128\t9.876\n")
    saved = c.saved("one")
    assert saved["command"] == "cmd -x" and len(saved["date"]) == 10 and "CPU" in saved["machine"], saved
    assert figures(saved) == {("a", "mlxcel", "tg128"): 1235, ("a", "llama.cpp", "tg128"): 9.88}, saved


def a_second_run_replaces_only_its_models(c):
    for line in ("a\tmlxcel\ttg128\t100\n", "b\tmlxcel\ttg128\t200\n", "a\tmlxcel\ttg128\t300\n"):
        c.run(sys.executable, "bench/record.py", "two", "cmd", stdin=line)
    assert figures(c.saved("two")) == {("a", "mlxcel", "tg128"): 300, ("b", "mlxcel", "tg128"): 200}
    refused = c.run(sys.executable, "bench/record.py", "two", "another", stdin="a\tmlxcel\ttg128\t1\n", fails=True)
    assert "another machine or command" in refused and figures(c.saved("two"))[("a", "mlxcel", "tg128")] == 300, refused


def lines_that_are_no_figures_are_refused(c):
    c.run(sys.executable, "bench/record.py", "three", "cmd", stdin="a\tmlxcel\t1\n", fails=True)
    c.run(sys.executable, "bench/record.py", "three", "cmd", stdin="a\tvllm\ttg128\t1\n", fails=True)
    c.run(sys.executable, "bench/record.py", "three", "cmd", fails=True)
    assert not list(c.folder.glob("*three*"))


def gpu_shapes_saves_what_it_printed(c):
    (c.folder / "table").write_text(SHAPES, encoding="utf-8")
    c.run("bench/gpu_shapes", "save", "shapes", c.folder / "table")
    assert figures(c.saved("shapes")) == {
        ("llama-1b-q4_0", "mlxcel", "pp512"): 73140, ("llama-1b-q4_0", "mlxcel", "8 sequences"): 2000,
        ("llama-1b-q4_0", "llama.cpp", "pp512"): 40690, ("llama-1b-q4_0", "llama.cpp", "8 sequences"): 1000}, c.saved("shapes")


def gpu_shapes_fails_if_a_row_is_slower(c):
    for name in ("llama-8b.gguf", "llama-8b.vmfb"):
        (c.folder / name).write_text("x")
    c.program("mlxcel", """case "$*" in *parallel*) tests='tg128_x8_@_d128:900' ;; *' -n 0'*) tests='pp4096:9000' ;; *) tests='pp512:8000 pp512_@_d8192:5000 tg128:300' ;; esac
for test in $tests; do echo "| llama 8B | 5 GiB | 8 B | cuda | $(echo "${test%:*}" | tr _ ' ') | ${test#*:} |"; done
""")
    peer = c.program("llama-bench", """[ "$MLXCEL_SLOW_PEER" ] && pp=4000 || pp=5001
case "$*" in *-ub*) echo '| llama | 5 GiB | 8 B | CUDA | 1 | pp4096 | 4500.00 ± 1 |' ;; *) echo "| llama | 5 GiB | 8 B | CUDA | 1 | pp512 @ d8192 | $pp.0 ± 1 |" ;; esac
""")
    c.program("llama-batched-bench", "echo '| 128 | 128 | 8 | 2048 | 1 | 1 | 1 | 450.0 | 1 | 1 |'\n")
    os.environ["WORK"] = str(c.folder)
    try:
        printed = c.run("bench/gpu_shapes", "run", c.folder, peer, fails=True)
        assert "| llama-8b | pp512 @ d8192 | 5000 | 5001 | 1.00, slower |" in printed and "| llama-8b | 8 sequences | 900 | 450 | 2.00 |" in printed, printed
        os.environ["MLXCEL_SLOW_PEER"] = "1"
        printed = c.run("bench/gpu_shapes", "run", c.folder, peer)
        assert "| llama-8b | pp512 @ d8192 | 5000 | 4000 | 1.25 |" in printed and "| llama-8b | pp4096 | 9000 | 4500 | 2.00 |" in printed, printed
    finally:
        os.environ.pop("WORK"), os.environ.pop("MLXCEL_SLOW_PEER", None)
    (c.folder / "printed").write_text(printed, encoding="utf-8")
    c.run("bench/gpu_shapes", "save", "ratios", c.folder / "printed")
    assert figures(c.saved("ratios"))[("llama-8b", "llama.cpp", "pp512 @ d8192")] == 4000, c.saved("ratios")


def gpu_shapes_compiles_a_named_shape_without_a_module(c):
    (c.folder / "llama-8b.gguf").write_text("x")
    c.program("mlxcel", """[ -z "$MLXCEL_PREBUILT" ] && echo '| llama 8B | 5 GiB | 8 B | cuda | pp512 | 8000 |'\n""")
    os.environ["WORK"] = str(c.folder)
    try:
        printed = c.run("bench/gpu_shapes", "run", c.folder, "-", "llama-8b")
    finally:
        os.environ.pop("WORK")
    assert "| llama-8b | 5 GiB | pp512 | 8000 |" in printed.replace("  ", " "), printed


SLEEPER = """#!/usr/bin/env python3
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    asleep, sleeps = False, 0
    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200), self.send_header("Content-Length", str(len(data))), self.end_headers(), self.wfile.write(data)
    def do_GET(self):
        self.answer({"is_sleeping": Handler.asleep})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            Handler.asleep = self.path.startswith("/sleep")
            Handler.sleeps += Handler.asleep
        self.answer({"choices": [{"token_ids": [Handler.sleeps * FORGETS] * asked.get("max_tokens", 0)}]})
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def wake_saves_medians_and_compares_tokens(c):
    (c.folder / "tiny.gguf").write_text("x")
    for forgets in (0, 1):
        server = c.program("server", "")
        server.write_text(SLEEPER.replace("FORGETS", str(forgets)))
        printed = c.run(sys.executable, "bench/wake", "-m", c.folder / "tiny.gguf", "--mlxcel", server, "--turns", "2", "--save", f"wake-{forgets}", fails=forgets)
        assert ("other tokens after sleep of level 1" in printed) == bool(forgets), printed
    tests = {(model[-7:], test) for model, _, test in figures(c.saved("wake-0"))}
    assert tests == {(f"level {level}", test) for level in (1, 2) for test in ("sleep, s", "wake, s", "wake and first token, s")}, tests
    assert not list(c.folder.glob("*wake-1.json"))


def start_time_saves_first_and_later_runs(c):
    c.program("mlxcel", "mkdir -p \"$MLXCEL_CACHE\"\n")
    peer = c.program("llama-bench", "exit 0\n")
    (c.folder / "tiny.gguf").write_text("x")
    c.run("bench/start_time", "--device", "cpu", "--peer", peer, "--save", "start", c.folder / "tiny.gguf")
    names = {name for name in figures(c.saved("start"))}
    assert names == {("tiny.gguf", "mlxcel", "first run, empty cache, s"), ("tiny.gguf", "mlxcel", "later runs, s"),
                     ("tiny.gguf", "llama.cpp", "later runs, s")}, names


def batched_saves_medians_and_the_longest_pause(c):
    ours = c.program("ours", """case $1 in
  bench) case "$*" in *arrival*) echo '[{"longest_pause_ms": 9.5, "step_ms": 2.5}]' ;;
    *--parallel*) echo '[{"n_parallel": 1, "avg_ts": 100}, {"n_parallel": 8, "avg_ts": 400}]' ;; *) echo '[{"avg_ts": 100}]' ;; esac ;;
  eval) echo '{"tokens_per_second": 300}' ;;
esac
""")
    peer = c.program("peer", """echo '{"pl": 8, "speed_tg": 200}'\n""")
    (c.folder / "text").write_text("words")
    c.run(sys.executable, "bench/batched", "-m", "tiny.gguf", "--mlxcel", ours, "--peer", peer, "--peer-model", "tiny.gguf", "--sequences", "1,8", "--schema", "",
          "--text", c.folder / "text", "--turns", "1", "--save", "batched")
    found = figures(c.saved("batched"))
    assert found[("tiny.gguf", "mlxcel", "8 sequences")] == 400 and found[("tiny.gguf", "llama.cpp", "8 sequences")] == 200, found
    assert found[("tiny.gguf", "mlxcel", "1 sequence")] == 100 and found[("tiny.gguf", "mlxcel", "longest pause, ms")] == 9.5, found


def compare_saves_medians(c):
    runs = c.folder / "runs"
    runs.mkdir()
    for name, speed in (("ours.1", 30.0), ("ours.2", 50.0), ("peer.1", 20.0)):
        (runs / name).write_text(json.dumps([{"n_prompt": n, "n_gen": 0 if n else 128, "avg_ts": speed} for n in (512, 0)]))
    (runs / "title").write_text("tiny")
    c.run(sys.executable, "tests/parity/medians.py", "--save", "compare", "bench/compare", runs)
    assert figures(c.saved("compare")) == {("tiny", program, test): speed for program, speed in (("mlxcel", 40.0), ("llama.cpp", 20.0))
                                           for test in ("tg128", "pp512")}, c.saved("compare")


def main():
    cases = (record_has_machine_date_and_command, a_second_run_replaces_only_its_models, lines_that_are_no_figures_are_refused,
             gpu_shapes_saves_what_it_printed, gpu_shapes_fails_if_a_row_is_slower, gpu_shapes_compiles_a_named_shape_without_a_module,
             wake_saves_medians_and_compares_tokens, start_time_saves_first_and_later_runs,
             batched_saves_medians_and_the_longest_pause, compare_saves_medians)
    failed = 0
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                case(Case(folder))
                print("%s: passed" % case.__name__)
            except AssertionError as error:
                failed += 1
                print("%s: failed\n  %s" % (case.__name__, error))
    print("%d passed, %d failed, 0 skipped" % (len(cases) - failed, failed))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
