#!/usr/bin/env python3
"""JSON schemas of real packages: schemas_test.py SCHEMA_CHECK FOLDER [--update].

Collects the schemas into FOLDER, compares whether each is accepted or refused, and by which keyword, with expected.txt, and validates
random documents of every accepted grammar with the package jsonschema. --update writes expected.txt. Exit status 77: packages are missing.
"""
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys

import collect

EXPECTED = pathlib.Path(__file__).with_name("expected.txt")
DOCUMENTS = 12  # of each schema
FORMATS = ("date", "time", "date-time", "duration", "uuid", "email", "idn-email", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "json-pointer")


def without_nullable(value):
    """OpenAPI's nullable in the words of JSON schema, which the validator knows."""
    if isinstance(value, list):
        return [without_nullable(item) for item in value]
    if not isinstance(value, dict):
        return value
    value = {key: without_nullable(item) for key, item in value.items()}
    if value.get("nullable") is True:
        rest = {key: item for key, item in value.items() if key != "nullable"}
        return {"anyOf": [rest, {"type": "null"}]}
    return value


def check_one(tool, path):
    """The name of a schema, its result (accepted, or a path and a keyword), and the first document that does not satisfy the schema."""
    import jsonschema
    answer = subprocess.run([tool, str(DOCUMENTS), str(path)], capture_output=True, text=True, check=True, timeout=120)
    result = json.loads(answer.stdout)
    name = path.name.removesuffix(".json")
    if "error" in result:
        refused = re.match(r"schema: (#\S*): '([^']*)'", result["error"])
        return name, f"{refused[1]} {refused[2]}" if refused else result["error"], None
    schema = without_nullable(json.loads(path.read_text()))
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=jsonschema.FormatChecker(FORMATS))
    for document in result["documents"]:
        error = next(validator.iter_errors(json.loads(document)), None)
        if error:
            return name, "accepted", f"{document}\n  {error.message[:300]} at {list(error.absolute_path)}, by {list(error.absolute_schema_path)}"
    return name, "accepted", None


def main():
    tool, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        import jsonschema  # noqa: F401
        collect.write(folder)
    except ImportError as error:
        print(f"{error}: ./build.sh test --all fetches the packages")
        return 77
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        results = list(pool.map(check_one, [tool] * 1000, sorted(folder.glob("*.json")), chunksize=8))
    lines = [f"{name}: {result}" for name, result, _ in results]
    accepted = sum(result == "accepted" for _, result, _ in results)
    if "--update" in sys.argv:
        EXPECTED.write_text("\n".join(lines) + "\n")
    expected = EXPECTED.read_text().splitlines()
    problems = [f"expected {line}" for line in expected if line not in lines] + [f"found    {line}" for line in lines if line not in expected]
    problems += [f"{name} allows a document that its schema refuses: {wrong}" for name, _, wrong in results if wrong]
    if len(results) < 200 or accepted < 0.9 * len(results):
        problems.append(f"only {accepted} of {len(results)} schemas are accepted")
    print("\n".join(problems + [f"{accepted} of {len(results)} schemas accepted, {accepted * DOCUMENTS} documents validated"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
