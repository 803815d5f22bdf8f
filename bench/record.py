#!/usr/bin/env python3
"""Writes measured figures to bench/results/DATE-SUBJECT.json. Benchmarks call it for their option --save SUBJECT.

  bench/record.py SUBJECT COMMAND < LINES     a line: MODEL <tab> PROGRAM <tab> TEST <tab> VALUE; PROGRAM is mlxcel, llama.cpp or onnxruntime

A file has what a reader needs to measure again, and one result per model:

  date, machine, command   when, where and how; machine and date are those of this run
  unit                     of every test that does not name its own (default: tok/s)
  rows                     what a row is (default: model)
  note                     anything else that a reader must know
  results                  {"model": NAME, "note": TEXT, "mlxcel": {TEST: VALUE}, "llama.cpp": {TEST: VALUE}}; a value is a number or a text

Names of tests are those of `mlxcel bench` (tg128, pp512 @ d4096), and "N sequences" for decode of N sequences together. A second run of
the same command on the same day replaces the results of its models. bench/tables.py makes tables of the files.
MLXCEL_RESULTS names another folder. Standard library only.
"""
import datetime
import json
import os
import pathlib
import subprocess
import sys

RESULTS = pathlib.Path(os.environ.get("MLXCEL_RESULTS") or pathlib.Path(__file__).resolve().parent / "results")
PROGRAMS = ("mlxcel", "llama.cpp", "onnxruntime")


def machine():
    """The CPU, how many of them this process may use, and the GPU if there is one."""
    name = "unknown CPU"
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), name)
    words = "%s, %d CPUs" % (name, len(os.sched_getaffinity(0)))
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        gpus = asked.stdout.strip().splitlines() if asked.returncode == 0 else []
    except OSError:
        gpus = []
    return "; ".join([words] + ["%s, driver %s" % tuple(gpu.split(", ")) for gpu in gpus])


def text_of(record):
    """The file of a record: a line for each field and for each result, so that a diff shows what changed."""
    dump = lambda value: json.dumps(value, ensure_ascii=False)
    fields = ["  %s: %s" % (dump(key), dump(value)) for key, value in record.items() if key != "results"]
    results = ",\n".join("    " + dump(result) for result in record["results"])
    return "{\n%s,\n  \"results\": [\n%s\n  ]\n}\n" % (",\n".join(fields), results)


def merge(old, new):
    """Results of |new| replace those of the same models; the others of |old| stay."""
    names = {result["model"] for result in new}
    return [result for result in old if result["model"] not in names] + new


def result_of(results, model):
    for result in results:
        if result["model"] == model:
            return result
    results.append({"model": model})
    return results[-1]


def rounded(value):
    """Three to four digits: more is noise."""
    return value if isinstance(value, str) else round(value) if abs(value) >= 100 else float("%.3g" % value)


def save(subject, command, figures, **fields):
    """Writes |figures|, a list of (model, program, test, value). Returns the path. Exits if the file has results of another run."""
    results = []
    for model, program, test, value in figures:
        if program not in PROGRAMS:
            sys.exit("record: unknown program '%s'; expected one of: %s" % (program, ", ".join(PROGRAMS)))
        result_of(results, model).setdefault(program, {})[test] = rounded(value)
    if not results:
        sys.exit("record: there is no result to save")
    record = {"date": datetime.date.today().isoformat(), "machine": machine(), "command": command, **fields, "results": results}
    path = RESULTS / ("%s-%s.json" % (record["date"], subject))
    if path.exists():
        old = json.loads(path.read_text())
        if any(old.get(key) != record.get(key) for key in ("machine", "command")):
            sys.exit("record: %s has results of another machine or command\nhint: save these under another subject, or remove it" % path)
        record["results"] = merge(old["results"], results)
    path.write_text(text_of(record))
    print("saved %s" % os.path.relpath(path), file=sys.stderr)
    return path


def number(text):
    try:
        return float(text)
    except ValueError:
        return text


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    figures = [line.rstrip("\n").split("\t") for line in sys.stdin if line.strip()]
    if any(len(figure) != 4 for figure in figures):
        sys.exit("record: a line is not MODEL, PROGRAM, TEST and VALUE, separated by tabs")
    save(sys.argv[1], sys.argv[2], [(*figure[:3], number(figure[3])) for figure in figures])


if __name__ == "__main__":
    main()
