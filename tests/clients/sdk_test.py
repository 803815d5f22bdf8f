"""The API tests of the `openai` and `anthropic` source archives against `mlxcel serve`.

    python3 tests/clients/sdk_test.py MLXCEL MODEL SDISTS [PACKAGE [PYTEST ARGUMENTS...]]

SDISTS has the unpacked archives of sdists.txt, one folder for each package. Which tests run, and with which changes: sdk_plugin.py. If the
archives or the packages of requirements.txt are missing, the test is skipped (exit status 77).
"""
import importlib.util
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from server import Server  # noqa: E402

# Package: path of its base URL, files with tests.
PACKAGES = {
    "openai": ("/v1", ["chat/test_completions.py", "test_completions.py", "test_embeddings.py", "test_models.py", "test_responses.py"]),
    "anthropic": ("", ["beta/test_messages.py", "beta/test_models.py", "test_messages.py", "test_models.py"]),
}
# Names of models that the tests retrieve.
ALIASES = ["gpt-4o-mini", "model_id"]
NEEDED = ["pytest", "pytest_asyncio", "respx", "inline_snapshot", "http_snapshot", "httpx_aiohttp", "openai", "anthropic"]


def run(package, server, sdists, extra):
    base, files = PACKAGES[package]
    environment = {**os.environ, "TEST_API_BASE_URL": server.url + base, "SDK_PACKAGE": package,
                   "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])}
    # The options of the archive's own pyproject.toml that its tests need.
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "sdk_plugin", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto",
                           "-o", "asyncio_default_fixture_loop_scope=session",
                           "-q", "--tb=short", "--show-capture=no", *extra, *("tests/api_resources/" + file for file in files)],
                          cwd=os.path.join(sdists, package), env=environment, timeout=600)
    return done.returncode == 0


def main():
    mlxcel, model, sdists = sys.argv[1:4]
    chosen = sys.argv[4:5] or list(PACKAGES)
    missing = [name for name in NEEDED if not importlib.util.find_spec(name)]
    missing += [path for path in (os.path.join(sdists, name, "tests") for name in PACKAGES) if not os.path.isdir(path)]
    if missing:
        print("skipped: there is no " + ", ".join(missing))
        sys.exit(77)
    name = os.path.basename(os.path.normpath(model))
    aliases = [word for alias in ALIASES for word in ("--alias", f"{alias}={name}")]
    failed = []
    with Server(mlxcel, model, "-c", "256", "--chat-template", "chatml", *aliases) as server:
        for package in chosen:
            print(package, flush=True)
            if not run(package, server, sdists, sys.argv[5:]):
                failed.append(package)
        assert server.process.poll() is None, "the server ended"
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed, 0 skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
