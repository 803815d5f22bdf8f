"""Checks the structure of the tree: which room includes which, include cycles, file length, names that Windows declares, and places of tests.

File A depends on file B if A includes B, or if A uses a function that B defines, whichever header declares it. Eight rules, each
a test case:

  order    a room includes only the rooms that ORDER lists for it, a folder of FOLDERS only what that table lists
  cycles   no file depends on itself through other files
  length   no hand-written file is longer than 800 lines, and no comment wider than 110 columns: the formatter leaves comments as they are
  functions  no function is longer than 60 lines, in CUDA 100
  names    no static function has the name of a function that base/windows/posix.h replaces or that mingw's headers declare: it would
           not compile for Windows
  tests    a program NAME_test.c lies in tests/ROOM, where the build finds it; no two have the same name
  comments   a comment line of a shell script or of CMake has at most 120 columns
  state    no file of server/ has a variable that all servers of the process share

Run: python3 tests/structure.py [ROOT]   ("--graph" prints the dependencies of each file)
"""
import os
import re
import subprocess
import sys

# Room -> rooms it may include. A room may always include itself. docs/architecture.md draws this table.
ORDER = {
    "base": "",
    "kernels": "",
    "graph": "base kernels",
    "models": "base graph",
    "cache": "base",
    "artifact": "base kernels cache",
    "transfer": "base cache artifact",
    "compiler": "base graph models kernels cache artifact",
    "shim": "base",
    "unicode": "base",
    "tokenizer": "base cache unicode",
    "template": "base unicode",
    "grammar": "base tokenizer",
    "output": "base grammar",
    "line": "base unicode",
    "runtime": "base kernels artifact cache shim tokenizer template grammar output",
    "open": "base cache artifact transfer compiler tokenizer template runtime",
    "server": "base grammar template output runtime open",
    "cli": "base unicode graph models cache artifact transfer compiler tokenizer template grammar output runtime open line server",
}
# Folder of a room -> rooms and folders of its own room that it may include. A folder may always include itself.
FOLDERS = {
    "server/http": "base",
    "server/api": "base grammar output runtime",
    "server/tools": "base output runtime",
    "server/page": "",
    "server/events": "base runtime server/http",
    "server/core": "base grammar template output runtime open server/http server/api server/tools server/events server/page",
}
OUTSIDE = ("tests", "third_party", "bench", "examples", "release")  # may include anything; nothing includes them
MAX_LINES = 800
MAX_COLUMNS = 110
MAX_SCRIPT_COLUMNS = 120
MAX_FUNCTION_LINES = {"c": 60, "h": 60, "cu": 100, "cuh": 100}
GENERATED = re.compile(r"(_tables?\.h|^unicode/tables\.c|^tests/goldens/.*\.h)$")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
# A function defined at file scope, not static: its name follows a type at the start of a line and a brace follows its parameters.
DEFINITION = re.compile(r"^(?!static|typedef|#|extern|return|else)[A-Za-z_][\w \t\*\n]*?\b(mlx_\w+)\([^;{}]*\)\s*\{", re.M)
# A function definition at file scope, or two columns to the right in a struct. Preprocessor lines, comments and strings are blank.
FUNCTION = re.compile(r"^(  )?(?!struct|enum|union|typedef|namespace|else|if|for|while|switch|return|do)[A-Za-z_](?:[^;{}=]|[<>=!]=)*\)[ \w]*(?: : [^;{}]*)?\{\n", re.M)
STATIC = re.compile(r"^static [\w \t\*]*?\b(\w+)\([^;{}]*\)\s*\{", re.M)
# A variable at file scope that is not constant.
VARIABLE = re.compile(r"^(?!typedef|struct|enum|union|extern|return|const|static const)(?:\w+ )+\**\w+(?:\[\w*\])?(?: =[^;]*)?;", re.M)
REPLACED = re.compile(r"^#define (\w+) mlx_posix_\w+$", re.M)
DECLARED = "access chdir chmod close creat dup dup2 eof execv getcwd getpid isatty lseek mkdir open read rmdir swab tell umask unlink write".split()
WORD = re.compile(r"\bmlx_\w+(?=\s*[(,;)\]}])")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def tracked(root):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True)
    names = listed.stdout.split("\n") if listed.returncode == 0 else [
        os.path.relpath(os.path.join(folder, name), root) for folder, _, files in os.walk(root) for name in files]
    return [name for name in names if name and not name.startswith(("build/", ".git/")) and os.path.isfile(os.path.join(root, name))]


def sources(root):
    return [name for name in tracked(root) if re.search(r"\.(c|h|cu|cuh)$", name)]


def room_of(path):
    return path.split("/")[0]


def folder_of(path):
    """The folder of FOLDERS that has the file, or else its room."""
    folder = "/".join(path.split("/")[:2])
    return folder if folder in FOLDERS else room_of(path)


def check_order(texts):
    faults = []
    for path, text in texts.items():
        room = room_of(path)
        if room in OUTSIDE or "/absent/" in path:
            continue
        if room not in ORDER:
            faults.append("%s: tests/structure.py has no room '%s'" % (path, room))
            continue
        folder = folder_of(path)
        allowed = set(FOLDERS[folder].split() if folder in FOLDERS else ORDER[room].split()) | {folder}
        for include in INCLUDE.findall(text):
            included = folder_of(include) if room_of(include) == room else room_of(include)
            if room_of(include) in ORDER and "/" in include and included not in allowed:
                faults.append('%s: includes "%s"; %s/ may include only: %s' % (path, include, folder, " ".join(sorted(allowed))))
            if include.startswith("iree/") and room != "shim":
                faults.append("%s: includes IREE's %s outside shim/" % (path, include))
    return faults


def dependencies(texts):
    """File -> {file it depends on: why}."""
    texts = {path: text for path, text in texts.items() if room_of(path) not in OUTSIDE and "/absent/" not in path}
    code = {path: COMMENT_OR_STRING.sub(" ", text) for path, text in texts.items()}
    owners = {}
    for path, text in code.items():
        for name in DEFINITION.findall(text) if path.endswith(".c") else ():
            owners.setdefault(name, set()).add(path)
    edges = {}
    for path, text in texts.items():
        to = edges.setdefault(path, {})
        for include in INCLUDE.findall(text):
            beside = os.path.normpath(os.path.join(os.path.dirname(path), include))
            target = include if include in texts else beside if beside in texts else None
            if target:
                to.setdefault(target, "includes it")
        for name in sorted(set(WORD.findall(code[path]))) if path.endswith(".c") else ():
            for owner in owners.get(name, ()):
                if owner != path and len(owners[name]) == 1:  # several owners: one per operating system
                    to.setdefault(owner, "uses %s" % name)
    return edges


def cycles(edges):
    """Strongly connected components of more than one file (Tarjan)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        work = [(node, iter(edges.get(node, ())))]
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        while work:
            current, successors = work[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(edges.get(successor, ()))))
                    break
                if successor in on_stack:
                    low[current] = min(low[current], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[current])
                if low[current] == index[current]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == current:
                            break
                    if len(component) > 1:
                        found.append(sorted(component))

    for node in list(edges):
        if node not in index:
            visit(node)
    return found


def check_cycles(texts):
    edges = dependencies(texts)
    faults = []
    for component in cycles(edges):
        lines = ["cycle of %d files: %s" % (len(component), " ".join(component))]
        for path in component:
            for target, why in sorted(edges[path].items()):
                if target in component:
                    lines.append("  %s -> %s: %s" % (path, target, why))
        faults.append("\n".join(lines))
    return faults


def check_length(texts):
    texts = {path: text for path, text in texts.items() if not GENERATED.search(path)}
    faults = ["%s: %d lines; split files over %d" % (path, text.count("\n"), MAX_LINES)
              for path, text in texts.items() if text.count("\n") > MAX_LINES]
    return faults + ["%s:%d: a comment of more than %d columns" % (path, number, MAX_COLUMNS) for path, text in texts.items()
                     for number, line in enumerate(text.split("\n"), 1) if len(line) > MAX_COLUMNS and line.lstrip().startswith("//")]


def check_functions(texts):
    faults = []
    for path, text in texts.items():
        most = MAX_FUNCTION_LINES[path.rsplit(".", 1)[1]]
        if room_of(path) in OUTSIDE or GENERATED.search(path) or text.count("\n") <= most:
            continue
        blank = lambda match: re.sub(r"[^\n]", " ", match[0])
        code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, COMMENT_OR_STRING.sub(blank, text), flags=re.M)
        for match in FUNCTION.finditer(code):
            end = code.find("\n%s}" % (match[1] or ""), match.end() - 1)
            lines = code.count("\n", match.start(), end) + 2 if end >= 0 else 0
            if lines > most:
                faults.append("%s:%d: a function of %d lines; split those over %d" % (path, code.count("\n", 0, match.start()) + 1, lines, most))
    return faults


def check_names(texts):
    taken = set(DECLARED) | {name for path in texts if path.startswith("base/windows/") for name in REPLACED.findall(texts[path])}
    return ["%s: %s is the name of a system function on Windows" % (path, name) for path in sorted(texts)
            if room_of(path) in ORDER and not path.startswith("base/windows/") for name in STATIC.findall(texts[path]) if name in taken]


def check_tests(texts):
    faults, seen = [], {}
    for path in sorted(path for path in texts if path.startswith("tests/") and path.endswith("_test.c")):
        parts = path.split("/")
        if len(parts) != 3 or parts[1] not in ORDER:
            faults.append("%s: a test lies in tests/ROOM; the rooms are: %s" % (path, " ".join(ORDER)))
        if seen.setdefault(parts[-1], path) != path:
            faults.append("%s: %s has the same name" % (path, seen[parts[-1]]))
    return faults


def check_state(texts):
    return ["%s: '%s' is shared by all servers of the process; put it into the object that it belongs to" % (path, match[0].split("\n")[0])
            for path in sorted(texts) if path.startswith("server/") and path.endswith(".c")
            for match in VARIABLE.finditer(COMMENT_OR_STRING.sub(" ", texts[path])) if " const" not in match[0]]


def check_cuda(texts):
    """PTX is in one header of kernels/cuda/, and so are the types of integers."""
    faults = []
    for path in sorted(path for path in texts if path.startswith("kernels/cuda/") and path.count("/") == 2):
        name, code = path.split("/")[2], COMMENT_OR_STRING.sub(" ", texts[path])
        if re.search(r"\basm\b", code) and name not in ("ptx.cuh", "packed_sizes.cuh"):
            faults.append("%s: inline assembly belongs to kernels/cuda/ptx.cuh" % path)
        if re.search(r"\btypedef\b", code) and name != "types.cuh":
            faults.append("%s: types of integers belong to kernels/cuda/types.cuh" % path)
    return faults


def scripts(root):
    return [name for name in tracked(root) if re.search(r"(\.sh|\.cmake|(^|/)CMakeLists\.txt)$|^\.ci/", name)]


def check_comments(texts):
    return ["%s:%d: a comment of more than %d columns" % (path, number, MAX_SCRIPT_COLUMNS) for path, text in sorted(texts.items())
            for number, line in enumerate(text.split("\n"), 1) if len(line) > MAX_SCRIPT_COLUMNS and line.lstrip().startswith("#")]


def check_itself():
    """The checks must find what they look for."""
    bad = {"base/a.c": '#include "models/b.h"\nvoid mlx_a(void) {\n  mlx_b();\n}\n', "models/b.h": "void mlx_b(void);\n",
           "models/b.c": '#include "models/b.h"\nvoid mlx_b(void) {\n  mlx_a();\n}\n', "base/long.c": "\n" * (MAX_LINES + 1)}
    assert len(check_order({"server/http/a.c": '#include "server/http/b.h"\n#include "server/core/b.h"\n#include "runtime/b.h"\n'})) == 2
    assert not check_order({"server/core/a.c": '#include "server/http/b.h"\n#include "runtime/b.h"\n', "cli/a.c": '#include "server/core/b.h"\n'})
    assert len(check_order(bad)) == 1 and len(check_cycles(bad)) == 1 and len(check_length(bad)) == 1
    for name, lines in (("base/a.c", 60), ("kernels/a.cuh", 100)):
        function = "__device__ void a(int b,\n#if A == 2\n  int c\n#endif\n) {\n" + "  b();\n" * (lines - 6) + "}\n"
        assert not check_functions({name: "struct a {\n};\n" + function})
        assert len(check_functions({name: function.replace("{\n", "{\n  b();\n", 1)})) == 1
        assert len(check_functions({name: "struct a {\n" + re.sub("^", "  ", function, flags=re.M).replace("{\n", "{\n  b();\n", 1) + "};\n"})) == 1
    assert len(check_names({"base/windows/posix.h": "#define open mlx_posix_open\n", "base/a.c": "static int open(int a) {\n}\n"})) == 1
    assert len(check_tests({"tests/a_test.c": "", "tests/base/b_test.c": "", "tests/cli/b_test.c": "", "tests/support/c_test.c": ""})) == 3
    assert len(check_state({"server/core/a.c": "static uv_mutex_t mutex;\nint count = 0;\nstatic const int a = 1;\nstatic int f(void) {\n  int b;\n}\n"})) == 2
    assert len(check_cuda({"kernels/cuda/a.cuh": 'asm("a");\ntypedef int b;\n', "kernels/cuda/ptx.cuh": 'asm("a");', "kernels/cuda/types.cuh": "typedef int b;"})) == 2
    assert len(check_length({"base/a.c": "// %s\n" % ("a" * 107) + "  // %s\n" % ("a" * 106)})) == 1
    assert len(check_comments({"a.sh": "  # %s\necho %s # a\n# %s\n" % ("a" * 120, "a" * 130, "a" * 118)})) == 1
    good = dict(bad, **{"base/a.c": "void mlx_a(void) {\n}\n", "base/long.c": "\n"})
    assert not check_order(good) and not check_cycles(good) and not check_length(good)


def main():
    arguments = [word for word in sys.argv[1:] if word != "--graph"]
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    check_itself()
    texts = {name: read(os.path.join(root, name)) for name in sources(root)}
    if "--graph" in sys.argv:
        for path, to in sorted(dependencies(texts).items()):
            print("%s: %s" % (path, " ".join(sorted(to))))
        return 0
    failed = 0
    checks = [("comments", lambda _: check_comments({name: read(os.path.join(root, name)) for name in scripts(root)}))]
    for name, check in checks + [("order", check_order), ("cycles", check_cycles), ("length", check_length), ("functions", check_functions), ("names", check_names), ("tests", check_tests), ("state", check_state), ("cuda", check_cuda)]:
        faults = check(texts)
        failed += bool(faults)
        print("%s: %s" % (name, "failed" if faults else "%d files, no fault" % len(texts)))
        for fault in faults:
            print("  " + fault.replace("\n", "\n  "))
    print("%d passed, %d failed" % (9 - failed, failed))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
