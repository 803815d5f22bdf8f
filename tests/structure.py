"""Checks the structure of the tree: which room includes which, include cycles, file length, and names that Windows declares.

File A depends on file B if A includes B, or if A uses a function that B defines, whichever header declares it. Four rules, each
a test case:

  order    a room includes only the rooms that ORDER lists for it
  cycles   no file depends on itself through other files
  length   no hand-written file is longer than 800 lines
  names    no static function has the name of a function that base/windows/posix.h replaces or that mingw's headers declare: it would
           not compile for Windows

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
    "tokenizer": "base",
    "template": "base",
    "grammar": "base tokenizer",
    "line": "base",
    "runtime": "base kernels artifact cache shim tokenizer template grammar",
    "server": "base grammar template runtime",
    "cli": "base graph models cache artifact transfer compiler tokenizer template grammar runtime line server",
}
OUTSIDE = ("tests", "third_party", "bench", "examples", "release")  # may include anything; nothing includes them
MAX_LINES = 800
GENERATED = re.compile(r"(_tables?\.h|^tests/goldens/.*\.h)$")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
# A function defined at file scope, not static: its name follows a type at the start of a line and a brace follows its parameters.
DEFINITION = re.compile(r"^(?!static|typedef|#|extern|return|else)[A-Za-z_][\w \t\*\n]*?\b(mlx_\w+)\([^;{}]*\)\s*\{", re.M)
STATIC = re.compile(r"^static [\w \t\*]*?\b(\w+)\([^;{}]*\)\s*\{", re.M)
REPLACED = re.compile(r"^#define (\w+) mlx_posix_\w+$", re.M)
DECLARED = "access chdir chmod close creat dup dup2 eof execv getcwd getpid isatty lseek mkdir open read rmdir swab tell umask unlink write".split()
WORD = re.compile(r"\bmlx_\w+(?=\s*[(,;)\]}])")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def sources(root):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True)
    names = listed.stdout.split("\n") if listed.returncode == 0 else [
        os.path.relpath(os.path.join(folder, name), root) for folder, _, files in os.walk(root) for name in files]
    return [name for name in names
            if re.search(r"\.(c|h|cu|cuh)$", name) and not name.startswith("build/") and os.path.isfile(os.path.join(root, name))]


def room_of(path):
    return path.split("/")[0]


def check_order(texts):
    faults = []
    for path, text in texts.items():
        room = room_of(path)
        if room in OUTSIDE or "/absent/" in path:
            continue
        if room not in ORDER:
            faults.append("%s: tests/structure.py has no room '%s'" % (path, room))
            continue
        allowed = set(ORDER[room].split()) | {room}
        for include in INCLUDE.findall(text):
            if room_of(include) in ORDER and "/" in include and room_of(include) not in allowed:
                faults.append('%s: includes "%s"; %s/ may include only: %s' % (path, include, room, " ".join(sorted(allowed))))
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
    return ["%s: %d lines; split files over %d" % (path, text.count("\n"), MAX_LINES)
            for path, text in texts.items() if text.count("\n") > MAX_LINES and not GENERATED.search(path)]


def check_names(texts):
    taken = set(DECLARED) | {name for path in texts if path.startswith("base/windows/") for name in REPLACED.findall(texts[path])}
    return ["%s: %s is the name of a system function on Windows" % (path, name) for path in sorted(texts)
            if room_of(path) in ORDER and not path.startswith("base/windows/") for name in STATIC.findall(texts[path]) if name in taken]


def check_itself():
    """The checks must find what they look for."""
    bad = {"base/a.c": '#include "models/b.h"\nvoid mlx_a(void) {\n  mlx_b();\n}\n', "models/b.h": "void mlx_b(void);\n",
           "models/b.c": '#include "models/b.h"\nvoid mlx_b(void) {\n  mlx_a();\n}\n', "base/long.c": "\n" * (MAX_LINES + 1)}
    assert len(check_order(bad)) == 1 and len(check_cycles(bad)) == 1 and len(check_length(bad)) == 1
    assert len(check_names({"base/windows/posix.h": "#define open mlx_posix_open\n", "base/a.c": "static int open(int a) {\n}\n"})) == 1
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
    for name, check in (("order", check_order), ("cycles", check_cycles), ("length", check_length), ("names", check_names)):
        faults = check(texts)
        failed += bool(faults)
        print("%s: %s" % (name, "failed" if faults else "%d files, no fault" % len(texts)))
        for fault in faults:
            print("  " + fault.replace("\n", "\n  "))
    print("%d passed, %d failed" % (4 - failed, failed))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
