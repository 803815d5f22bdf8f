"""Checks server/page/openapi.json against the server: every documented path answers, every path of server/core/route.c is documented, and
schemathesis finds no answer that the file does not describe. docs/server.md names the metrics of the server and no others.

    python3 tests/clients/schema_test.py MLXCEL MODEL ROUTE_C [--examples 8]
"""
import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server import Server  # noqa: E402

# positive_data_acceptance is left out: a schema cannot say which messages a chat template accepts, or which names are models.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection,unsupported_method"


def check_metrics(server):
    text = urllib.request.urlopen(server.url + "/metrics").read().decode()
    served = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE ")}
    with open(os.path.join(os.path.dirname(__file__), "../../docs/server.md"), encoding="utf-8") as file:
        tables = file.read().split("\n## Metrics\n")[1].split("\n## ")[0]
    described = set(re.findall(r"`([a-z_]+:?[a-z0-9_]+)`", "\n".join(line.split("|")[1] for line in tables.splitlines() if line.startswith("| `"))))
    assert set(served) == described, f"only in /metrics or only in docs/server.md: {set(served) ^ described}"
    for name, kind in served.items():  # Prometheus reserves the suffix for counters
        if name == "llamacpp:n_tokens_max":  # llama-server's name
            continue
        assert name.endswith("_total") == (kind == "counter"), f"{name} is a {kind}"
    print("every_metric_is_described")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mlxcel")
    parser.add_argument("model")
    parser.add_argument("routes")
    parser.add_argument("--examples", default="8")
    args = parser.parse_args()
    with Server(args.mlxcel, args.model) as server:
        document = json.load(urllib.request.urlopen(server.url + "/openapi.json"))
        with open(args.routes, encoding="utf-8") as file:
            routes = re.findall(r'\{"(GET|POST|DELETE)", "([^"]+)"', file.read())
        documented = {(method.upper(), re.sub("^/v1", "", path)) for path, methods in document["paths"].items() for method in methods}
        missing = set(routes) - documented
        assert routes and not missing, f"openapi.json does not describe {missing}"
        print("every_route_is_described")
        check_metrics(server)
        if not importlib.util.find_spec("schemathesis"):
            print("schemathesis_finds_no_undocumented_answer\n  skipped: schemathesis is not installed\n2 passed, 0 failed, 1 skipped")
            return
        # too_slow: making a request takes long on a busy machine, whatever its schema is.
        done = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json", "--checks", CHECKS, "--max-examples", args.examples,
                               "--phases", "examples,fuzzing", "--request-timeout", "120", "--seed", "1", "--suppress-health-check", "too_slow", "--no-color"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout[-6000:] + done.stderr[-2000:])
        print("schemathesis_finds_no_undocumented_answer")
        assert server.process.poll() is None, "the server ended"
    print("3 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
