#!/usr/bin/env python3
"""Installs mlxcel in a new prefix, and builds and runs the programs of examples/ against it.

    tests/release/install_test.py BUILD CMAKE CC

The programs are built with pkg-config and with CMake's find_package, each with the shared and with the static library. They run on a
tiny model that is compiled here. The test also compares the exported symbols with the declarations of the installed headers.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD, CMAKE, CC = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3]
del sys.argv[1:4]
FIXTURE = os.path.join(ROOT, "tests", "fixtures", "tiny-llama")
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
EXAMPLES = "complete", "chat", "embed"
ENVIRONMENT = {**os.environ, "MLXCEL_CONFIG": os.devnull}


def run(*command, expect=0, **options):
    options.setdefault("env", ENVIRONMENT)
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def declared(folder):
    """The functions that the headers in |folder| declare, found without the regular expression of release/install.cmake."""
    names = set()
    for file in os.listdir(folder):
        with open(os.path.join(folder, file)) as header:
            text = re.sub(r"//[^\n]*", "", header.read())
        text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)  # with continued lines
        while re.search(r"\{[^{}]*\}", text):  # structs and enums; then extern "C"
            inner = re.search(r"\{([^{}]*)\}", text)
            text = text.replace(inner.group(0), "" if "typedef" in text[:inner.start()].rsplit(";", 1)[-1] else inner.group(1))
        for statement in text.split(";"):
            found = re.match(r"[^(]*?\b(mlxcel_\w+)\s*\(", statement.strip(), re.S)
            if found and not statement.strip().startswith("typedef"):
                names.add(found.group(1))
    return names


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        first = os.path.join(cls.folder, "first")
        run(CMAKE, "--install", BUILD, "--prefix", first)
        cls.prefix = os.path.join(cls.folder, "moved")
        os.rename(first, cls.prefix)  # the installed tree has no absolute paths
        version = run(os.path.join(cls.prefix, "bin", "mlxcel"), "--version").stdout.split()[1]
        cls.version = ".".join(version.split(".")[:2])
        cls.library = os.path.join(cls.prefix, "lib")
        cls.headers = os.path.join(cls.prefix, "include", "mlxcel")
        model = os.path.join(cls.folder, "tiny")
        shutil.copytree(FIXTURE, model)
        with open(os.path.join(model, "tokenizer_config.json"), "w") as file:
            json.dump({"chat_template": TEMPLATE}, file)
        cls.bundle = os.path.join(cls.folder, "tiny.mlxb")
        run(os.path.join(cls.prefix, "bin", "mlxcel"), "compile", model, "-c", "256", "-o", cls.bundle)

    def check_examples(self, folder):
        environment = {"LD_LIBRARY_PATH": self.library, **ENVIRONMENT}

        def example(name, *arguments, **options):
            return run(os.path.join(folder, name), *arguments, env=environment, **options)

        wanted = run(os.path.join(self.prefix, "bin", "mlxcel"), "run", "--raw", "-m", self.bundle, "--temp", "0", "-n", "8", "--json", "-p", "the quick brown")
        done = example("complete", self.bundle, "the quick brown", "8")
        self.assertEqual(done.stdout, json.loads(wanted.stdout)["text"] + "\n")
        self.assertIn("8 tokens, stopped by: length", done.stderr)
        for source in FIXTURE, FIXTURE + ".gguf":  # compiled by the library
            self.assertEqual(example("complete", source, "the quick brown", "8").stdout, done.stdout)
        done = example("chat", self.bundle, "4", input="hello\nthe fox\n")
        self.assertGreaterEqual(done.stdout.count("\n"), 2)
        done = example("embed", self.bundle, "the quick", "the quick", "brown fox")
        same, other = done.stdout.splitlines()
        self.assertEqual(same, "1.000000  the quick")
        self.assertLess(float(other.split()[0]), 0.999)
        done = example("complete", "/nowhere.mlxb", "x", expect=5)
        self.assertIn("/nowhere.mlxb", done.stderr)

    def test_examples_with_pkg_config(self):
        environment = {**os.environ, "PKG_CONFIG_PATH": os.path.join(self.library, "pkgconfig")}
        for package in "mlxcel", "mlxcel-static":
            flags = run("pkg-config", "--cflags", "--libs", package, env=environment).stdout.split()
            folder = os.path.join(self.folder, package)
            os.mkdir(folder)
            for name in EXAMPLES:
                run(CC, "-std=c11", "-Wall", "-Wextra", "-Werror", os.path.join(ROOT, "examples", name + ".c"), "-o", os.path.join(folder, name), *flags)
            needed = run("readelf", "-d", os.path.join(folder, "complete")).stdout
            self.assertEqual(f"libmlxcel.so.{self.version}]" in needed, package == "mlxcel", needed)
            self.check_examples(folder)

    def test_program_of_the_page_compiles(self):
        with open(os.path.join(ROOT, "docs", "library.md"), encoding="utf-8") as file:
            programs = re.findall(r"^```c\n(.*?)^```", file.read(), re.M | re.S)
        self.assertEqual(len(programs), 1)
        run(CC, "-x", "c", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", os.path.join(self.prefix, "include"), "-", input=programs[0])

    def test_examples_with_cmake(self):
        for static in "OFF", "ON":
            folder = os.path.join(self.folder, "cmake-" + static)
            run(CMAKE, "-S", os.path.join(ROOT, "examples"), "-B", folder, "-DCMAKE_PREFIX_PATH=" + self.prefix, "-DMLXCEL_STATIC=" + static,
                "-DCMAKE_C_COMPILER=" + CC)
            run(CMAKE, "--build", folder)
            self.check_examples(folder)

    def test_exported_symbols_are_the_declared_functions(self):
        wanted = declared(self.headers)
        self.assertGreater(len(wanted), 80)
        lines = run("nm", "-D", "--defined-only", "--with-symbol-versions", os.path.join(self.library, "libmlxcel.so")).stdout.splitlines()
        exported = {tuple(line.split()[1:]) for line in lines if " A " not in line}
        self.assertEqual(exported, {("T", name + "@@MLXCEL_" + self.version) for name in wanted})
        lines = run("nm", "-g", "--defined-only", os.path.join(self.library, "libmlxcel.a")).stdout.splitlines()
        self.assertEqual({line.split()[2] for line in lines if len(line.split()) == 3}, wanted)

    def test_program_links_mlx_c_too(self):
        """mlx-c's functions, types and macros have the prefix mlx_, which is also that of this tree's own names."""
        source = os.path.join(ROOT, "tests", "link_mlx_c.c")
        environment = {**ENVIRONMENT, "PKG_CONFIG_PATH": os.path.join(self.library, "pkgconfig"), "LD_LIBRARY_PATH": self.library}
        wanted = run(os.path.join(self.prefix, "bin", "mlxcel"), "run", "--raw", "-m", self.bundle, "--temp", "0", "-n", "8", "--json", "-p", "the quick brown")
        for package in "mlxcel", "mlxcel-static":
            flags = run("pkg-config", "--cflags", "--libs", package, env=environment).stdout.split()
            program = os.path.join(self.folder, package + "-mlx-c")
            # -rdynamic: the shared library would find the program's functions before its own, if it exported the same names.
            run(CC, "-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-rdynamic", source, "-o", program, *flags)
            self.assertEqual(run(program, self.bundle, "the quick brown", env=environment).stdout, json.loads(wanted.stdout)["text"] + "\n")

    def test_headers_name_nothing_without_the_prefix(self):
        for name in os.listdir(self.headers):
            with open(os.path.join(self.headers, name), encoding="utf-8") as file:
                self.assertEqual(re.findall(r"\bmlx_\w+", file.read(), re.I), [], name)

    def test_headers_compile_alone_in_c_and_cpp(self):
        for name in os.listdir(self.headers):
            for language, compiler, standard in ("c", CC, "c11"), ("c++", "c++", "c++11"):
                if shutil.which(compiler):
                    run(compiler, "-x", language, "-std=" + standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", os.path.join(self.prefix, "include"), "-",
                        input=f"#include <mlxcel/{name}>\nint main() {{ return 0; }}\n")

    @unittest.skipUnless(shutil.which("c++"), "no C++ compiler is installed")
    def test_cpp_program_links(self):
        program = os.path.join(self.folder, "version")
        run("c++", "-x", "c++", "-", "-o", program, "-I", os.path.join(self.prefix, "include"), "-L", self.library, "-lmlxcel",
            input='#include <mlxcel/mlxcel.h>\n#include <cstdio>\nint main() { std::puts(mlxcel_version()); }\n')
        version = run(program, env={"LD_LIBRARY_PATH": self.library}).stdout
        self.assertEqual("mlxcel " + version, run(os.path.join(self.prefix, "bin", "mlxcel"), "--version").stdout)

    def test_command_has_its_manual_and_completions(self):
        for path in ("bin/mlxcel-run", "share/man/man1/mlxcel.1", "share/bash-completion/completions/mlxcel", "share/zsh/site-functions/_mlxcel",
                     "share/fish/vendor_completions.d/mlxcel.fish"):
            self.assertGreater(os.path.getsize(os.path.join(self.prefix, path)), 100, path)


unittest.main()
