#!/usr/bin/env python3
"""Writes the tables of figures in README.md and docs/ from the recorded results in bench/results/.

  bench/tables.py            write the tables
  bench/tables.py --check    exit 1 if a page differs from what the results give

A table stands between two comments; what is between them is generated:

  <!-- table: FILE: TEST; TEST -->  a row for each result of bench/results/FILE.json that has one of the tests, then date, machine and command
  <!-- table: speed -->             the table of README.md: the rows of SPEED
  <!-- end -->

A test that llama.cpp ran too takes three columns. A ratio is mlxcel's figure divided by llama.cpp's. "ratio TEST" is a column with the
ratio alone. SENTENCES are sentences with figures outside tables; they are checked, not written. Standard library only.
"""
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 120  # characters of a text line
BLOCK = re.compile(r"(<!-- table: ([^\n]*?) -->\n)(.*?)(<!-- end -->)", re.S)
H200, CPU, SERVE = "2026-11-18-h200", "2026-11-18-cpu", "2026-11-17-serve-cpu"
TILES = "2026-11-19-h200"  # with two f16 parts, and attention in wgmma
SPEED = (  # what a user runs, with no flags; FILE, MODEL and TEST of its figures
    ("Llama-3.2-1B, bf16 directory, on an H200", H200, "Llama-3.2-1B bf16 directory, exact", "tg128"),
    ("Llama-3.2-1B Q4_0 on an H200", H200, "Llama-3.2-1B Q4_0", "tg128"),
    ("Llama-8B Q4_K_M on an H200", TILES, "Llama-8B Q4_K_M", "tg128"),
    ("gpt-oss-20b on an H200", H200, "gpt-oss-20b", "tg128"),
    ("Qwen3-30B-A3B Q4_0 on an H200", H200, "Qwen3-30B-A3B Q4_0", "tg128"),
    ("Llama-8B Q4_K_M on an H200, a prompt of 512 tokens", TILES, "Llama-8B Q4_K_M", "pp512"),
    ("Llama-8B Q4_K_M on an H200, 64 sequences together", TILES, "Llama-8B Q4_K_M", "64 sequences"),
    ("gpt-oss-20b on an H200, 64 sequences together", H200, "gpt-oss-20b", "64 sequences"),
    ("SmolLM2-135M Q4_1 on two CPU cores", CPU, "SmolLM2-135M Q4_1", "tg128"),
    ("SmolLM2-135M Q4_1 on two CPU cores, a server with 32 users", SERVE, "32 clients", "tok/s"),
)
START = ("2026-11-18-start", "Qwen3-30B-A3B Q4_0")
SENTENCES = (  # page, sentence, figures: FILE, MODEL, PROGRAM, TEST
    ("README.md", "gives its first token {:.0f} s after its first `mlxcel run` on an H200, compilation included, and {:.1f} s after later "
     "ones (llama.cpp: {:.1f} s)",
     ((*START, "mlxcel", "first run, 16 CPUs"), (*START, "mlxcel", "later runs, 16 CPUs"), (*START, "llama.cpp", "later runs, 16 CPUs"))),
    ("README.md", "Llama-8B Q4_K_M reads a prompt of 32,768 tokens at {:,} tok/s on an H200, llama.cpp at {:,}",
     ((TILES, "Llama-8B Q4_K_M", "mlxcel", "pp32768"), (TILES, "Llama-8B Q4_K_M", "llama.cpp", "pp32768"))),
)


def load(name):
    path = ROOT / "bench" / "results" / (name + ".json")
    if not path.exists():
        sys.exit("tables: there is no %s" % path.relative_to(ROOT))
    return json.loads(path.read_text())


def figure(result, program, test):
    return result.get(program, {}).get(test)


def cell(value):
    return "-" if value is None else format(value, ",") if isinstance(value, int) else str(value)


def ratio(result, test):
    """As it was recorded (of unrounded figures, or where only the ratio was kept), or computed."""
    ours, peer, found = (figure(result, name, test) for name in ("mlxcel", "llama.cpp", "ratio"))
    if found is None and ours and peer:
        found = ours / peer
    return "-" if found is None else "%.2fx" % found


def columns(record, tests):
    """Of each column: its title, and the function that gives its cell for a result."""
    for test in tests:
        if test.startswith("ratio "):
            test = test[len("ratio "):]
            yield test, lambda result, test=test: ratio(result, test)
            continue
        programs = [program for program in ("mlxcel", "llama.cpp")
                    if any(figure(result, program, test) is not None for result in record["results"])]
        for program in programs:
            title = test if len(programs) == 1 else "%s: %s" % (test, program)
            yield title, lambda result, test=test, program=program: cell(figure(result, program, test))
        if len(programs) == 2 or any(figure(result, "ratio", test) for result in record["results"]):
            yield "ratio", lambda result, test=test: ratio(result, test)


def lines(rows):
    return "".join("| %s |\n" % " | ".join(row) for row in rows)


def table_of(record, tests, name):
    shown = list(columns(record, tests))
    rows = [[record.get("rows", "model")] + [title for title, _ in shown], ["---"] * (len(shown) + 1)]
    for result in record["results"]:
        cells = [show(result) for _, show in shown]
        if any(one != "-" for one in cells):
            rows.append(["%s (%s)" % (result["model"], result["note"]) if result.get("note") else result["model"]] + cells)
    if len(rows) == 2:
        sys.exit("tables: bench/results/%s.json has no figure for: %s" % (name, ", ".join(tests)))
    return lines(rows)


def caption(record, tests, name, again):
    """Date, machine and command of a table; |again|: the page has a table of the same file before."""
    has_unit = "unit" in record and any("," not in test for test in tests)  # "peak memory, MiB" names its own
    words = "In %s; " % record["unit"] if has_unit else ""
    if again:
        words += "the same runs of %s: `bench/results/%s.json`." % (record["date"], name)
    else:
        words += "%s, %s: `%s`." % (record["date"], record["machine"], record["command"])
        words += " " + record["note"] if record.get("note") else ""
    words = re.sub(r"`[^`]{1,100}`", lambda span: span[0].replace(" ", "\0"), words[0].upper() + words[1:])  # short commands are not broken
    return "\n" + textwrap.fill(words, WIDTH, break_long_words=False, break_on_hyphens=False).replace("\0", " ") + "\n"


def speed_table():
    rows = [["what you run", "mlxcel, tok/s", "llama.cpp, tok/s", "ratio"], ["---"] * 4]
    for title, file, model, test in SPEED:
        found = [result for result in load(file)["results"] if result["model"] == model]
        if not found or figure(found[0], "mlxcel", test) is None or figure(found[0], "llama.cpp", test) is None:
            sys.exit("tables: bench/results/%s.json has no %s of '%s'" % (file, test, model))
        rows.append([title, cell(figure(found[0], "mlxcel", test)), cell(figure(found[0], "llama.cpp", test)), ratio(found[0], test)])
    return lines(rows)


def generated(marker, seen):
    if marker == "speed":
        return speed_table()
    name, _, tests = marker.partition(": ")
    record, again = load(name), name in seen
    seen.add(name)
    tests = tests.split("; ")
    return table_of(record, tests, name) + caption(record, tests, name, again)


def fill(text):
    seen = set()
    return BLOCK.sub(lambda block: block[1] + generated(block[2], seen) + block[4], text)


def sentence_faults(read):
    for page, sentence, figures in SENTENCES:
        values = []
        for file, model, program, test in figures:
            values.append(figure(next(result for result in load(file)["results"] if result["model"] == model), program, test))
        wanted = sentence.format(*values)
        if wanted not in " ".join(read(page).split()):
            yield "%s: does not say '%s'" % (page, wanted)


def record_faults(name, record):
    """What a file of bench/results/ lacks: a figure without its date, machine and command cannot be measured again."""
    missing = [key for key in ("date", "machine", "command", "results") if not record.get(key)]
    if missing:
        return "bench/results/%s: has no %s" % (name, ", ".join(missing))
    return None if name.startswith(record["date"] + "-") else "bench/results/%s: its date is %s" % (name, record["date"])


def pages():
    return [ROOT / "README.md"] + sorted((ROOT / "docs").rglob("*.md"))


def loose_tables(text):
    """Tables that are not generated. docs/measurements.md has one, of commands."""
    return len(re.findall(r"^\| ---", BLOCK.sub("", text), re.M))


def check_itself():
    record = {"date": "D", "machine": "M", "command": "C", "unit": "tok/s", "results": [
        {"model": "a", "mlxcel": {"tg": 3000, "pp": 1}, "llama.cpp": {"tg": 2000}}, {"model": "b", "mlxcel": {"pp": 2.5}}]}
    assert table_of(record, ["tg"], "x") == ("| model | tg: mlxcel | tg: llama.cpp | ratio |\n| --- | --- | --- | --- |\n"
                                             "| a | 3,000 | 2,000 | 1.50x |\n")
    assert caption(record, ["tg"], "x", False) == "\nIn tok/s; D, M: `C`.\n" and "x.json" in caption(record, ["tg"], "x", True)
    assert caption(record, ["memory, MiB"], "x", False) == "\nD, M: `C`.\n"
    assert "| b | 2.5 |" in table_of(record, ["pp"], "x") and "| a | 1.50x |" in table_of(record, ["ratio tg"], "x")
    assert loose_tables("| a |\n| --- |\n<!-- table: x -->\n| --- |\n<!-- end -->\n") == 1
    assert record_faults("D-x.json", record) is None and record_faults("E-x.json", record) and record_faults("D-x.json", dict(record, command=""))
    empty = "<!-- table: speed -->\n<!-- end -->"
    assert fill(empty) != empty and fill(fill(empty)) == fill(empty)


def main():
    check_itself()
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    faults = list(sentence_faults(lambda page: (ROOT / page).read_text()))
    results = sorted((ROOT / "bench" / "results").glob("*.json"))
    faults += filter(None, (record_faults(path.name, json.loads(path.read_text())) for path in results))
    if len(SPEED) > 10:
        faults.append("README.md: the table of speeds has %d rows; at most 10" % len(SPEED))
    if loose_tables((ROOT / "docs" / "measurements.md").read_text()) != 1:
        faults.append("docs/measurements.md: a table of figures is not between <!-- table: FILE: TEST --> and <!-- end -->")
    for page in pages():
        text = page.read_text()
        wanted = fill(text)
        if text.count("<!-- table: ") != len(BLOCK.findall(text)):
            faults.append("%s: a table without <!-- end -->" % page.relative_to(ROOT))
        if wanted != text and sys.argv[1:]:
            faults.append("%s does not match bench/results/: run bench/tables.py" % page.relative_to(ROOT))
        elif wanted != text:
            page.write_text(wanted)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
