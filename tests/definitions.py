"""Checks definitions in the whole tree: each type is defined once, and each function has a caller. Four rules, each a test case:

  types    no two headers define the same type or tag, so that a file may include any two of them; a type mlx_NAME_t is defined
           in one file
  callers  every function that is not static has a caller outside tests/, or is part of the public interface, or is in FOR_TESTS
  static   a function that only its own file uses is static
  json     no file appends members of JSON objects as text: base/json_writer.h writes them

Run: python3 tests/definitions.py [ROOT]
"""
import os
import re
import sys

from structure import COMMENT_OR_STRING, DEFINITION, OUTSIDE, read, room_of, sources

# A tag with its body; an opaque tag is found by the typedef that declares it.
TAG = re.compile(r"\b(?:struct|enum|union)\s+(\w+)\s*\{")
TYPEDEF = re.compile(r"^[ \t]*typedef\b((?:[^;{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*);", re.M)
ALTERNATIVES = re.compile(r"^kernels/cpu/vector\w*\.h$")  # one of them is compiled for each CPU level
PROTOTYPE = re.compile(r"^(?!typedef|static|return)[A-Za-z_][\w \t\*\n]*?\bmlx_\w+\([^;{}]*\)[^;{}()]*(?:\([^;{}()]*\)[^;{}()]*)*;", re.M)
PUBLIC_HEADERS = re.compile(r"^set\(public_headers ([^)]*)\)", re.M)
# Functions without a caller in the product, and why a test needs them.
FOR_TESTS = {
    "mlx_memory_set_calls": "fails the Nth allocation",
    "mlx_file_set_calls": "fails the Nth file call",
    "mlx_budget_set_clock": "lets time pass",
    "mlx_pool_check": "checks the invariants of the page pool",
    "mlx_pool_users": "counts the users of a page",
    "mlx_graph_print": "compares graphs as text",
    "mlx_launches_print": "compares lists of launches as text",
    "mlx_sampler_filter": "compares the distribution before a token is drawn",
    "mlx_matcher_restart": "matches many texts with one grammar",
    "mlx_hf_text_defaults": "compares the defaults with those of transformers",
    "mlx_weights_write": "writes the weights of a model without compiling it",
}
CALLED_BY_NAME = {
    "mlx_network_run": "modules call it by its symbol (compiler/emit_cpu.c)",
    "mlx_attend_f32_bytes": "tests/parity/packed_probe.py calls it with ctypes",
}


def check_static(texts, public=()):
    owners, users = {}, {}
    for path, text in texts.items():
        code = COMMENT_OR_STRING.sub(" ", text)
        if path.endswith(".c") and room_of(path) not in OUTSIDE and not path.startswith("base/windows/"):
            for name in DEFINITION.findall(code):
                owners.setdefault(name, set()).add(path)
        for name in set(re.findall(r"\bmlx_\w+", PROTOTYPE.sub("", code) if path.endswith(".h") else code)):
            users.setdefault(name, set()).add(path)
    return ["%s: nothing else uses %s; make it static" % (min(files), name) for name, files in sorted(owners.items())
            if len(files) == 1 and name not in public and name not in CALLED_BY_NAME and users.get(name, files) <= files]


APPENDS = re.compile(r"\b(?:mlx_text_puts|mlx_text_printf|mlx_text_append|s?n?f?printf)\s*\(([^;]*?)\);", re.S)
STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')
MEMBER = re.compile(r'(?:^|[{,\s])\\"[\w%]+\\":(?!:)')
# Files that append parts of JSON text, and why.
JSON_TEXT = {"output/output_grammar.c": "writes the head of a call as a literal of a grammar"}


def typedef_name(declaration):
    """The name that "typedef DECLARATION;" defines."""
    flat = re.sub(r"__attribute__\s*\(\(.*\)\)", "", re.sub(r"\{.*\}", " ", declaration, flags=re.S))
    found = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", flat) or re.search(r"(\w+)\s*(?:\([^()]*\)|(?:\[[^\]]*\]\s*)*)$", flat)
    return found[1]


def check_types(texts):
    owners = {}  # name -> files
    for path, text in texts.items():
        if not path.endswith((".c", ".h")) or room_of(path) in OUTSIDE:
            continue
        code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", COMMENT_OR_STRING.sub(" ", text), flags=re.M)
        typedefs = TYPEDEF.findall(code)
        names = {typedef_name(declaration) for declaration in typedefs}
        opaque = {found[1] for found in (re.match(r"\s*struct\s+(\w+)\s+\w+\s*$", declaration) for declaration in typedefs) if found}
        if path.endswith(".h"):
            names |= set(TAG.findall(code)) | opaque
        else:
            names = {name for name in names if name.startswith("mlx_")}
        for name in names:
            owners.setdefault(name, set()).add("kernels/cpu/vector.h" if ALTERNATIVES.match(path) else path)
    # A header declares an opaque type, and another header of the same room, for the room only, may define it.
    return ["%s: defined by %s; give one of them the prefix of its room" % (name, " and ".join(sorted(files)))
            for name, files in sorted(owners.items()) if len(files) > 1 and len({room_of(path) for path in files}) + name.endswith("_t") > 1]


def check_callers(texts, public=()):
    code = {path: COMMENT_OR_STRING.sub(" ", text) for path, text in texts.items()}
    owners, used = {}, {}
    for path, text in code.items():
        if path.endswith(".c") and room_of(path) not in OUTSIDE:
            for name in DEFINITION.findall(text):
                owners.setdefault(name, set()).add(path)
    for path, text in code.items():
        if room_of(path) == "tests":
            continue
        calls = PROTOTYPE.sub("", text) if path.endswith(".h") else text
        for name in re.findall(r"\bmlx_\w+", calls):
            if name in owners:
                used[name] = used.get(name, 0) + 1
    # Each definition is one use of the name.
    faults = ["%s: nothing calls %s" % (min(files), name) for name, files in sorted(owners.items())
              if used[name] <= len(files) and name not in public and name not in FOR_TESTS and name not in CALLED_BY_NAME]
    return faults + ["tests/definitions.py: FOR_TESTS has %s, which %s" % (name, "is called" if name in owners else "is not defined")
                     for name in FOR_TESTS if owners and (name not in owners or used[name] > len(owners[name]))]


def check_json(texts):
    return ["%s:%d: appends a member of a JSON object as text; use base/json_writer.h" % (path, text.count("\n", 0, match.start()) + 1)
            for path, text in sorted(texts.items())
            if path.endswith((".c", ".h")) and room_of(path) not in OUTSIDE and not path.endswith("_fuzz.c") and path not in JSON_TEXT
            for match in APPENDS.finditer(text) if MEMBER.search("".join(STRING.findall(match[1])))]


def public_functions(root, texts):
    headers = PUBLIC_HEADERS.search(read(os.path.join(root, "release/headers.cmake")))[1].split()
    return {name for path in headers for name in re.findall(r"\b(mlx_\w+)\(", COMMENT_OR_STRING.sub(" ", texts[path]))}


def check_itself():
    """The checks must find what they look for."""
    twice = {"base/a.h": "typedef struct mlx_a {\n  int b;\n} mlx_a_t;\n", "cache/a.h": "typedef struct mlx_a mlx_b_t;\n",
             "cli/a.c": "typedef int (*mlx_a_t)(void);\ntypedef struct a {\n} a_t;\n", "cli/b.c": "typedef struct a {\n} a_t;\n"}
    assert len(check_types(twice)) == 2 and not check_types({"base/a.h": twice["base/a.h"], "cli/b.c": twice["cli/b.c"]})
    lonely = {"base/a.h": "void mlx_a(void);\nint mlx_b(int c)\n    MLX_MUST_USE;\n", "base/a.c": "void mlx_a(void) {\n}\nint mlx_b(int c) {\n}\n",
              "base/b.c": "static void c(void) {\n  mlx_b(1);\n}\n", "tests/c.c": "static void d(void) {\n  mlx_a();\n}\n"}
    appends = 'mlx_text_puts(&a, "{\\"b\\":1}");\nmlx_text_printf(out, "@\\"%s\\" : %s", a, b);\nmlx_text_printf(out, ", \\"%s\\":", a);\n'
    assert len(check_json({"base/a.c": appends})) == 2 and not check_json({"tests/a.c": appends})
    assert not check_static(lonely)
    own = {"base/a.h": "void mlx_a(void);\nvoid mlx_b(void);\n", "base/a.c": "void mlx_b(void) {\n}\nvoid mlx_a(void) {\n  mlx_b();\n}\n",
           "base/c.c": "static void c(void) {\n  mlx_a();\n}\n"}
    assert check_static(own) == ["base/a.c: nothing else uses mlx_b; make it static"]
    assert [fault for fault in check_callers(lonely) if "FOR_TESTS" not in fault] == ["base/a.c: nothing calls mlx_a"]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    check_itself()
    texts = {name: read(os.path.join(root, name)) for name in sources(root)}
    failed, public = 0, public_functions(root, texts)
    for name, faults in ("types", check_types(texts)), ("callers", check_callers(texts, public)), ("static", check_static(texts, public)), ("json", check_json(texts)):
        failed += bool(faults)
        print("%s: %s" % (name, "failed" if faults else "%d files, no fault" % len(texts)))
        for fault in faults:
            print("  " + fault)
    print("%d passed, %d failed" % (4 - failed, failed))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
