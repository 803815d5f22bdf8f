#!/usr/bin/env python3
"""Checks the documentation against the tree. Each rule is a test case:

  links      every relative link in a Markdown file leads to a file, and its anchor to a heading
  paths      every path of this tree that a Markdown file names in backticks exists
  kernels    the map in kernels/README.md has every source of kernels/cpu/ and every CUDA file with an entry point
  mentions   every docs/*.md page that a source file names exists
  names      every function, type, macro, variable and file that a page of the code names in backticks exists in the tree
  messages   every error and hint that a page quotes shares four words in a row with a string of the source
  examples   every C block of docs/internals/adding-a-model.md is part of models/exaone4.c
  rooms      the table of rooms in docs/architecture.md is ORDER of tests/structure.py
  pictures   docs/images/*.svg are what bench/chart.py and bench/chat_picture.py draw
  lines      text lines of README.md, CONTRIBUTING.md, CHANGELOG.md, kernels/README.md and docs/ have at most 120 characters
  lengths    a page of docs/internals/ has at most 150 lines
  index      docs/README.md links to every page of docs/; those of docs/lab/ begin with a date
  tables     tables of figures in README.md and docs/ are what bench/tables.py writes from bench/results/
  versions   package names and container tags have the version of CMakeLists.txt
  changelog  CHANGELOG.md has one section per version, newest first; the newest is the version of CMakeLists.txt
  sizes      the size of the binary in README.md is that of BINARY without its symbols, within 5%

Run: python3 tests/docs_links.py [ROOT [BINARY]]   (standard library only; without BINARY, sizes is left out)
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)
import docs_wrap  # noqa: E402
import structure  # noqa: E402

FENCE = re.compile(r"^(```|~~~).*?^\1[^\S\n]*$", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.M)
PATH = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+/?")
MENTION = re.compile(r"\bdocs/[A-Za-z0-9_./-]+\.md\b")
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
QUOTE = re.compile(r"^(?:mlxcel \w+|hint): (.*)$", re.M)  # an error or a hint in a code block
MESSAGES = re.compile(r"^\| message \|.*\n(?:\|.*\n)*", re.M)  # a table of messages
WORDS = re.compile(r"[A-Za-z]+")
PROJECT = re.compile(r"^project\(mlxcel VERSION (\d+\.\d+\.\d+)", re.M)
PACKAGE = re.compile(r"\bmlxcel(?:-runtime)?[-_:](\d+\.\d+\.\d+)")  # mlxcel_1.2.3_amd64.deb, mlxcel:1.2.3
BINARY_SIZE = re.compile(r"\bone binary of ([\d.]+) MB\b")
RELEASE = re.compile(r"(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)")  # a heading of CHANGELOG.md
PLACEHOLDER = re.compile(r"\*|\bNAME|NAME_|_NAME|_VERSION_|\bXXX|SUBJECT|EXAMPLE|\.\.\.")
MOST_LINES = 150
FILE_NAME = re.compile(r"(?<![\w/.*-])[A-Za-z_][\w-]*\.(?:c|h|cu|cuh|py|sh|cmake|mlir)(?![\w/])")
OUR_NAME = re.compile(r"\b(?:mlx|mlxcel|MLX|MLXCEL)_\w+")
IDENTIFIER = re.compile(r"`([A-Za-z]\w*_\w*)(?:\(\))?`")  # a whole code span; on pages of internals/, which have no fields of APIs
OTHERS_NAMES = {  # of systems and of other programs
    "pthread.h", "stdatomic.h", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "MLXCEL_KEY",  # a variable that the example of docs/agents.md defines
}
NOT_OURS = ("tests/docs_links.py", "tests/transfer/modelpack_test.c")  # they name pages that need not exist


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
        return file.read()


def tracked(root):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True)
    names = listed.stdout.split("\n") if listed.returncode == 0 else [
        os.path.relpath(os.path.join(folder, name), root) for folder, _, files in os.walk(root) for name in files]
    return [name for name in names if name and not name.startswith(("build/", ".git/")) and os.path.isfile(os.path.join(root, name))]


def anchor(heading):
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def anchors(text):
    seen, found = {}, set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        name = anchor(heading)
        count = seen.get(name, 0)
        seen[name] = count + 1
        found.add(name if not count else "%s-%d" % (name, count))
    return found


def check_links(pages, exists):
    faults = []
    for page, text in pages.items():
        for target in LINK.findall(CODE.sub("", FENCE.sub("", text))):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, fragment = target.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(page), name)) if name else page
            if not exists(path):
                faults.append("%s: link to %s, which does not exist" % (page, target))
            elif fragment and path in pages and fragment not in anchors(pages[path]):
                faults.append("%s: link to %s, and %s has no such heading" % (page, target, path))
    return faults


def check_paths(pages, exists, rooms):
    """A path counts as one of this tree when it starts with a folder of the tree."""
    faults = []
    for page, text in pages.items():
        for code in CODE.findall(FENCE.sub("", text)):
            for path in PATH.findall(code):
                if path.split("/")[0] in rooms and not PLACEHOLDER.search(code) and not exists(path.rstrip("/.")):
                    faults.append("%s: names %s, which does not exist" % (page, path))
    return faults


def check_mentions(sources, exists):
    return ["%s: names %s, which does not exist" % (name, path)
            for name, text in sources.items() for path in sorted(set(MENTION.findall(text))) if not exists(path)]


def check_kernels(page, sources):
    return ["kernels/README.md: has no row for %s" % name for name, text in sorted(sources.items())
            if (re.fullmatch(r"kernels/cpu/\w+\.c", name) or name.startswith("kernels/cuda/") and 'extern "C" __global__' in text)
            and "| `%s`" % os.path.basename(name) not in page]


def is_history(page):
    return page == "CHANGELOG.md" or page.startswith("docs/lab/")


def check_names(pages, sources, names):
    """A name exists if a source file has it as a word; mlxcel_NAME also as mlx_NAME (release/headers.cmake renames it)."""
    text = "\n".join(sources.values())
    words = set(re.findall(r"\w+", text)) | {os.path.splitext(os.path.basename(name))[0] for name in names} | OTHERS_NAMES
    words |= {"attack_" + part for part in re.findall(r"^PARTS = .*", text, re.M) for part in re.findall(r"\w+", part)}
    options = {name.upper().replace("-", "_") for name in re.findall(r'(?:"|--)([a-z][a-z-]+)\b', text)}
    files = {os.path.basename(name) for name in names} | OTHERS_NAMES
    faults = []

    def is_known(name):
        if name.startswith("MLXCEL_") and re.sub("^MLXCEL_", "", name) in options or re.sub("^MLXCEL_[A-Z]+_", "", name) in options:
            return True  # MLXCEL_OPTION, MLXCEL_VERB_OPTION
        return name in words or re.sub("^mlxcel", "mlx", re.sub("^MLXCEL", "MLX", name)) in words

    for page, body in pages.items():
        for code in CODE.findall(FENCE.sub("", body)) if not is_history(page) else ():
            if PLACEHOLDER.search(code):
                continue
            missing = {name for name in FILE_NAME.findall(code) if name not in files}
            ours = [name for name in OUR_NAME.findall(code) if not name.endswith("_")]
            missing |= {name for name in ours + (IDENTIFIER.findall(code) if page.startswith("docs/internals/") else []) if not is_known(name)}
            faults += ["%s: names %s, which is not in the tree" % (page, name) for name in sorted(missing)]
    return faults


def literals(text):
    """The string literals of a C file, adjacent ones joined, without printf's conversions."""
    joined = re.sub(r'"\s*"', "", text)
    return [re.sub(r"%[-+#0-9.*]*[a-z]+", " ", found.replace('\\"', '"')) for found in LITERAL.findall(joined)]


def check_messages(pages, strings):
    runs = {tuple(words[i:i + 4]) for words in map(WORDS.findall, strings) for i in range(len(words) - 3)}
    faults = []
    for page, text in pages.items():
        quotes = [line for fence in FENCE.finditer(text) for line in QUOTE.findall(fence.group(0))]
        for table in MESSAGES.findall(text):
            quotes += re.findall(r"^\| `([^`]*)`", table, re.M)
        for quote in quotes:
            words = WORDS.findall(quote)
            if len(words) > 3 and not any(tuple(words[i:i + 4]) in runs for i in range(len(words) - 3)):
                faults.append("%s: quotes '%s', which no source file prints" % (page, quote))
    return faults


def check_examples(page, source):
    flat = " ".join(re.sub(r"// clang-format o\w+", "", source).split())
    return ["docs/internals/adding-a-model.md: '%s …' is not in models/exaone4.c" % block.strip().split("\n")[0]
            for block in re.findall(r"^```c\n(.*?)^```$", page, re.M | re.S) if " ".join(block.split()) not in flat]


def check_rooms(text):
    rows = dict(re.findall(r"^\| `(\w+)/` \|[^|\n]*\| ([^|\n]*?) \|$", text, re.M))
    drawn = {room: set() if words == "nothing" else set(words.replace(",", " ").split()) for room, words in rows.items()}
    ordered = {room: set(words.split()) for room, words in structure.ORDER.items()}
    return ["docs/architecture.md: %s/ may include: %s; tests/structure.py says: %s"
            % (room, " ".join(sorted(drawn.get(room, ["(no row)"]))), " ".join(sorted(ordered.get(room, ["(no room)"]))))
            for room in sorted(set(drawn) | set(ordered)) if drawn.get(room) != ordered.get(room)]


def check_generated(root, scripts):
    faults = []
    for script in scripts:
        result = subprocess.run([sys.executable, os.path.join(root, "bench", script), "--check"], capture_output=True, text=True)
        if result.returncode:
            faults.append("bench/%s --check: %s" % (script, (result.stderr or result.stdout).strip()))
    return faults


def check_lines(pages):
    return ["%s:%d: a text line of more than %d characters: run python3 tests/docs_wrap.py" % (name, line, docs_wrap.WIDTH)
            for name, text in sorted(pages.items()) if docs_wrap.is_wrapped(name) for line in docs_wrap.long_lines(text)]


def check_lengths(pages):
    return ["%s: has %d lines; a page of docs/internals/ has at most %d: move history to docs/lab/, or split it" % (name, text.count("\n"), MOST_LINES)
            for name, text in sorted(pages.items()) if name.startswith("docs/internals/") and text.count("\n") > MOST_LINES]


def check_index(pages):
    linked = {os.path.normpath(os.path.join("docs", target.partition("#")[0])) for target in LINK.findall(pages["docs/README.md"])}
    faults = ["docs/README.md: has no link to %s" % name for name in sorted(pages)
              if name.startswith("docs/") and name != "docs/README.md" and name not in linked]
    return faults + ["%s: a page of docs/lab/ is named DATE-SUBJECT.md" % name for name in sorted(pages)
                     if name.startswith("docs/lab/") and not re.fullmatch(r"docs/lab/\d{4}-\d\d-\d\d-[a-z0-9-]+\.md", name)]


def check_versions(pages, version):
    return ["%s: names version %s; CMakeLists.txt has %s" % (name, found, version)
            for name, text in sorted(pages.items()) for found in PACKAGE.findall(text)
            if found != version and not name.startswith("CHANGELOG")]


def check_changelog(text, version):
    headings = re.findall(r"^## (.*)$", text, re.M)
    found = [RELEASE.fullmatch(heading) for heading in headings if heading != "Unreleased"]
    numbers = [tuple(map(int, one[1].split("."))) for one in found if one]
    faults = []
    if not all(found) or "Unreleased" in headings[1:]:
        faults.append("CHANGELOG.md: headings are %s; expected 'Unreleased' at most once, first, then 'X.Y.Z (YYYY-MM-DD)'" % headings)
    if numbers != sorted(set(numbers), reverse=True):
        faults.append("CHANGELOG.md: versions are not newest first: %s" % headings)
    if numbers and found[0] and found[0][1] != version:
        faults.append("CHANGELOG.md: the newest version is %s; CMakeLists.txt has %s" % (found[0][1], version))
    return faults


def check_sizes(readme, size):
    found = BINARY_SIZE.search(readme)
    if not found:
        return ["README.md: does not say 'one binary of N MB'"]
    if abs(float(found[1]) * 1e6 - size) > 0.05 * size:
        return ["README.md: says %s MB; the stripped binary has %.2f MB" % (found[1], size / 1e6)]
    return []


def stripped_size(binary):
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(binary, folder)
        subprocess.run(["strip", copy], check=True)
        return os.path.getsize(copy)


def check_itself():
    """Each check must find a fault."""
    pages = {"a.md": "# One\n[x](b.md) [y](#two) `base/gone.c` `base/NAME.c`\n```\n[z](gone.md)\n```\n"}
    exists = {"a.md", "base/here.c"}.__contains__
    assert len(check_links(pages, exists)) == 2 and len(check_paths(pages, exists, {"base"})) == 1
    kernels = {"kernels/cpu/a.c": "", "kernels/cpu/b.c": "", "kernels/cuda/c.cuh": 'extern "C" __global__ void', "kernels/cuda/d.cuh": ""}
    assert len(check_kernels("| `a.c` | x |", kernels)) == 2
    named = {"docs/internals/a.md": "`mlx_gone(3)` `mlx_here` `mlxcel_here_t` `gone.c` `here.c` `left_over` `MLXCEL_TOP_K` `mlx_NAME` `nodes_test`",
             "docs/b.md": "`some_field` `mlx_gone_t`", "docs/lab/c.md": "`mlx_gone`"}
    assert len(check_names(named, {"a.c": 'mlx_here mlx_here_t "top-k"'}, ["base/here.c", "tests/graph/nodes_test.c"])) == 4
    assert check_mentions({"base/a.c": "// docs/gone.md"}, exists) and check_rooms("| `base/` | x | graph |")
    assert len(check_lines({"docs/a.md": "a " * 70, "a.md": "a " * 70, "README.md": "| %s |" % ("a " * 70)})) == 1
    assert len(check_lengths({"docs/internals/a.md": "a\n" * 151, "docs/b.md": "a\n" * 151, "docs/internals/c.md": "a\n" * 150})) == 1
    assert len(check_index({"docs/README.md": "[a](a.md)", "docs/a.md": "", "docs/lab/b.md": "", "docs/lab/2026-01-01-b.md": "", "c.md": ""})) == 3
    quoted = {"a.md": "```\nhint: run it in another folder\nmlxcel run: x: there is no such file 3\n```\n"}
    assert check_examples("```c\nint x;\n```\n", "int y;") and not check_examples("```c\nint x;\n```\n", "int  x;")
    assert len(check_messages(quoted, literals('f("%s: there is no such" " file %d")'))) == 1
    assert len(check_versions({"a.md": "mlxcel_0.2.0_amd64.deb mlxcel:0.1.0 mlxcel-0.3.0-linux"}, "0.1.0")) == 2
    good = "## Unreleased\n## 0.2.0 (2026-01-02)\n## 0.1.0 (2026-01-01)\n"
    assert not check_changelog(good, "0.2.0") and check_changelog(good, "0.3.0")
    assert check_changelog("## 0.2.0\n", "0.2.0") and check_changelog("## 0.1.0 (2026-01-01)\n" + good, "0.1.0")
    assert check_sizes("one binary of 7 MB", 8.1e6) and not check_sizes("one binary of 8 MB", 8.1e6)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..")
    check_itself()
    names = tracked(root)
    pages = {name: read(root, name) for name in names if name.endswith(".md")}
    sources = {name: read(root, name) for name in names
               if re.search(r"\.(c|h|cu|cuh|py|sh|txt|cmake)$|^\.ci/", name) and name not in NOT_OURS}
    ours = set(names)
    folders = {os.path.dirname(name)[:end] for name in names
               for end in [i for i, letter in enumerate(os.path.dirname(name) + "/") if letter == "/"]}
    rooms = {folder.split("/")[0] for folder in folders} - {""}

    def exists(path):
        return path in ours or path in folders

    failed = 0
    version = PROJECT.search(sources["CMakeLists.txt"])[1]
    checks = (("links", check_links(pages, exists)), ("paths", check_paths(pages, exists, rooms)),
              ("kernels", check_kernels(pages["kernels/README.md"], sources)), ("mentions", check_mentions(sources, exists)),
              ("names", check_names(pages, {name: text for name, text in sources.items() if not name.endswith(".txt") or "CMakeLists" in name}, names)),
              ("messages", check_messages(pages, [string for name, text in sources.items() if name.endswith(".c")
                                                                   for string in literals(text)])),
              ("examples", check_examples(pages["docs/internals/adding-a-model.md"], sources["models/exaone4.c"])),
              ("rooms", check_rooms(pages["docs/architecture.md"])), ("pictures", check_generated(root, ("chart.py", "chat_picture.py"))),
              ("lines", check_lines(pages)), ("lengths", check_lengths(pages)), ("index", check_index(pages)),
              ("tables", check_generated(root, ("tables.py",))),
              ("versions", check_versions(pages, version)), ("changelog", check_changelog(pages["CHANGELOG.md"], version)))
    if len(sys.argv) > 2:
        checks += (("sizes", check_sizes(pages["README.md"], stripped_size(sys.argv[2]))),)
    for name, faults in checks:
        failed += bool(faults)
        print("%s: %s" % (name, "failed" if faults else "%d pages, no fault" % len(pages)))
        for fault in faults:
            print("  " + fault)
    print("%d passed, %d failed, 0 skipped" % (len(checks) - failed, failed))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
