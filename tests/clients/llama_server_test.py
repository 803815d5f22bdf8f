"""llama.cpp's own server tests against `mlxcel serve`.

    python3 tests/clients/llama_server_test.py MLXCEL FIXTURES TESTS [PYTEST ARGUMENTS...]

FIXTURES is tests/fixtures, TESTS the folder tools/server/tests of llama.cpp. Which cases run is listed in llama_server_cases.txt, and what is
changed in them in llama_server_plugin.py. Without the folder or the packages of requirements.txt, the test is skipped (exit status 77).
"""
import importlib.util
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NEEDED = ["pytest", "requests", "openai"]


def main():
    mlxcel, fixtures, tests = map(os.path.abspath, sys.argv[1:4])
    missing = [name for name in NEEDED if not importlib.util.find_spec(name)]
    if not os.path.isdir(os.path.join(tests, "unit")):
        missing.append(tests)
    if missing:
        print("skipped: there is no " + ", ".join(missing))
        sys.exit(77)
    environment = {**os.environ, "MLXCEL": mlxcel, "MLXCEL_FIXTURES": fixtures, "PYTHONDONTWRITEBYTECODE": "1",
                   "PYTHONPATH": os.pathsep.join([HERE, tests, os.environ.get("PYTHONPATH", "")])}
    with open(os.path.join(HERE, "llama_server_cases.txt"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    files = sorted({line.split("::")[0] for line in lines if line.startswith("unit/")})
    without = {line.split()[1] for line in lines if line.startswith("without ")}
    unlisted = {"unit/" + name for name in os.listdir(os.path.join(tests, "unit")) if name.startswith("test_")} ^ without ^ set(files)
    if unlisted:
        sys.exit("llama_server_cases.txt must name each file once: " + ", ".join(sorted(unlisted)))
    # Its own conftest.py pulls models.
    done = subprocess.run([sys.executable, "-m", "pytest", "--noconftest", "-p", "llama_server_plugin", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:anyio", "-q", "--tb=short",
                           "--show-capture=no", *sys.argv[4:], *files], cwd=tests, env=environment, timeout=600)
    sys.exit(1 if done.returncode else 0)


if __name__ == "__main__":
    main()
