#!/usr/bin/env python3
"""Makes the wheel, the Debian package and the container image of this machine, and tries each in a clean root.

    tests/release/packages_test.py BUILD CMAKE CC DEPS              packages of the build in BUILD
    tests/release/packages_test.py BUILD CMAKE CC DEPS --made DIR   packages that ./build.sh release has made in DIR

The wheel is installed in a new virtual environment without an index. The Debian package is unpacked, and the layers of the image
are, in an empty root file system that is entered by chroot. What cannot be tried here is reported as skipped, with the reason.
"""
import base64
import ctypes
import functools
import glob
import gzip
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
import smoke_release  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD, CMAKE, CC, DEPS = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3], os.path.abspath(sys.argv[4])
del sys.argv[1:5]
MADE = os.path.abspath(sys.argv[2]) if "--made" in sys.argv else None
if MADE:
    del sys.argv[1:3]
MACHINE = os.uname().machine
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}[MACHINE]
FIXTURE = os.path.join(ROOT, "tests", "fixtures", "tiny-llama")
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
PROMPT, TOKENS = "the quick brown", [142, 218, 177, 4, 129, 92, 159, 114, 218]  # Hugging Face's
MLXCEL = os.path.join(BUILD, "bin", "mlxcel")
ABI = ".".join(subprocess.run([MLXCEL, "--version"], capture_output=True, text=True).stdout.split()[-1].split(".")[:2])
VERSION, EPOCH = "0.1.0-test.1", "1790000000"
IMAGES = "share/mlxcel/images/sm_90.images"


def run(*command, expect=0, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def make_stage(folder):
    """The folder that ./build.sh release packs, without the compiler, from this build."""
    run(CMAKE, "--install", BUILD, "--prefix", folder, "--component", "command")
    os.remove(os.path.join(folder, "bin", "mlxcel-compile"))
    shutil.copy(os.path.join(BUILD, "runtime-only", "mlxcel"), os.path.join(folder, "bin", "mlxcel"))
    shutil.copy(os.path.join(ROOT, "LICENSE"), folder)
    os.makedirs(os.path.join(folder, "share", "mlxcel", "images"))
    with open(os.path.join(folder, IMAGES), "w") as file:  # mlxcel finds it at this place relative to its own folder
        file.write("kernels")
    platform = "linux-" + MACHINE
    for name, command in {"THIRD_PARTY_NOTICES.txt": ["release/notices.sh", platform, "runtime", DEPS],
                          "sbom.spdx.json": ["release/sbom.sh", "mlxcel", platform, "runtime", VERSION, EPOCH, folder + "/bin/mlxcel", ""]}.items():
        with open(os.path.join(folder, name), "w") as file:
            file.write(run(*command, cwd=ROOT).stdout)


@functools.lru_cache(maxsize=None)
def make_package(kind, stage, out):
    os.makedirs(out, exist_ok=True)
    done = run(os.path.join(ROOT, "release", "packages.py"), kind, "--platform", "linux-" + MACHINE, "--version", VERSION, "--epoch", EPOCH, "--out", out,
               "--stage", stage, "--library", os.path.join(BUILD, "lib", "libmlxcel.so." + ABI), "--headers",
               os.path.join(BUILD, "generated", "include", "mlxcel"), expect=None)
    if done.returncode == 77:
        raise unittest.SkipTest(done.stderr.strip())
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout.strip()


def setUpModule():
    """Compiles and signs a tiny model with a chat template."""
    global folder, bundle, trusted, stage
    folder = tempfile.mkdtemp()
    unittest.addModuleCleanup(shutil.rmtree, folder)
    model = os.path.join(folder, "tiny")
    shutil.copytree(FIXTURE, model)
    with open(os.path.join(model, "tokenizer_config.json"), "w") as file:
        json.dump({"chat_template": TEMPLATE}, file)
    bundle = os.path.join(folder, "tiny.mlxb")
    run(MLXCEL, "compile", model, "--single-file", "-o", bundle)
    trusted = os.path.dirname(smoke_release.sign(MLXCEL, bundle, folder))
    stage = os.path.join(folder, "stage")
    if not MADE:
        make_stage(stage)


def made(kind, pattern):
    """The packages to try: those of a release, or one that is made here."""
    if MADE:
        found = sorted(glob.glob(os.path.join(MADE, pattern)))
        if not found:
            raise unittest.SkipTest(f"{MADE} has no {pattern}")
        return found
    return [make_package(kind, stage, os.path.join(folder, "first"))]


def check_reproducible(test, kind):
    """A second stage with other times, permissions and order of creation must give the same bytes."""
    if MADE:
        test.skipTest("the packages are given")
    first = make_package(kind, stage, os.path.join(folder, "first"))
    other = os.path.join(folder, "other-" + kind)
    before = os.umask(0o077)
    shutil.copytree(stage, other, symlinks=True, copy_function=shutil.copyfile)
    for path in glob.glob(other + "/bin/*"):
        os.chmod(path, 0o700)
    second = make_package(kind, other, os.path.join(folder, "second"))
    os.umask(before)
    test.assertEqual(os.path.basename(first), os.path.basename(second))
    test.assertEqual(digest(first), digest(second))


# ---- the wheel ------------------------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys, typing, mlxcel
typing.get_type_hints(mlxcel.load), typing.get_type_hints(mlxcel.Model.stream)
model = mlxcel.load(sys.argv[1], device="cpu")
out = {"version": mlxcel.version(), "hidden": model.info["hidden"], "ids": model.tokenize(sys.argv[2])}
out["text"] = model.generate(sys.argv[2], max_tokens=9, temperature=0).text
out["pieces"] = list(model.stream(sys.argv[2], max_tokens=9, temperature=0))
one, two = model.stream(sys.argv[2], max_tokens=9, temperature=0), model.stream("fox", max_tokens=5, temperature=0)
out["interleaved"] = [next(one), "".join(two), "".join(one), model.generate("fox", max_tokens=5, temperature=0).text]
messages = [{"role": "user", "content": "hello"}]
out["rendered"] = model.render(messages)
out["chat"] = [model.chat(messages, max_tokens=6, seed=5).token_ids, model.chat(messages, max_tokens=6, seed=5).token_ids]
out["number"] = model.generate("a number:", json_schema={"type": "integer", "minimum": 3, "maximum": 5}, max_tokens=4).text
out["stopped"] = model.generate(sys.argv[2], max_tokens=9, temperature=0, stop=[out["text"][3:5]]).text
closed = model.stream(sys.argv[2], max_tokens=50)
next(closed), closed.close()
out["embedding"], out["again"] = model.embed(sys.argv[2]), model.embed(sys.argv[2])
out["long"] = len(model.embed("the quick brown fox " * 60))
for bad in lambda: mlxcel.load("/nowhere.mlxb"), lambda: model.generate("x", heat=1), lambda: model.generate("x", grammar="root ::= ("):
    try:
        bad()
    except (mlxcel.Error, TypeError) as error:
        out.setdefault("errors", []).append(str(error))
model.close()
try:
    model.embed("x")
except ValueError as error:
    out["errors"].append(str(error))
print(json.dumps(out))
"""


def output_head():
    """The rows of lm_head.weight of the fixture."""
    with open(os.path.join(FIXTURE, "model.safetensors.index.json")) as file:
        shard = json.load(file)["weight_map"]["lm_head.weight"]
    with open(os.path.join(FIXTURE, shard), "rb") as file:
        data = file.read()
    size = struct.unpack_from("<Q", data)[0]
    tensor = json.loads(data[8:8 + size])["lm_head.weight"]
    rows, columns = tensor["shape"]
    start = 8 + size + tensor["data_offsets"][0]
    return [struct.unpack_from(f"<{columns}f", data, start + 4 * columns * row) for row in range(rows)]


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        (cls.wheel,) = made("wheel", f"mlxcel-*{MACHINE}.whl")
        cls.venv = os.path.join(folder, "venv")
        python = os.path.join(cls.venv, "bin", "python")
        run(sys.executable, "-m", "venv", "--without-pip", cls.venv)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        if run(*pip, "--python", python, "--version", expect=None).returncode == 0:  # pip 22.3 or newer
            run(*pip, "--python", python, "install", "--quiet", "--no-index", cls.wheel)
        else:
            run(sys.executable, "-m", "venv", cls.venv)
            run(python, "-m", "pip", "install", "--quiet", "--no-index", cls.wheel)
        cls.environment = {"HOME": os.path.join(folder, "home"), "MLXCEL_TRUSTED": trusted}

    def test_command_runs(self):
        command = os.path.join(self.venv, "bin", "mlxcel")
        self.assertTrue(run(command, "--version", env=self.environment).stdout.startswith("mlxcel 0."))
        done = run(command, "run", "--raw", "-m", bundle, "-p", PROMPT, "--temp", "0", "--ignore-eos", "-n", str(len(TOKENS)), "--json", env=self.environment)
        self.assertEqual(json.loads(done.stdout)["output_ids"], TOKENS)
        self.assertEqual(run(command, "frobnicate", env=self.environment, expect=None).returncode, 2)

    def test_module_generates_streams_chats_and_embeds(self):
        out = json.loads(run(os.path.join(self.venv, "bin", "python"), "-I", "-W", "error", "-c", PROGRAM, bundle, PROMPT, env=self.environment).stdout)
        text = json.loads(run(MLXCEL, "run", "--raw", "-m", bundle, "-p", PROMPT, "--temp", "0", "-n", "9", "--json").stdout)["text"]
        self.assertEqual(out["text"], text)
        self.assertEqual("".join(out["pieces"]), text)
        self.assertGreater(len(out["pieces"]), 1)
        first, other, rest, alone = out["interleaved"]
        self.assertEqual([first + rest, other], [text, alone])
        self.assertEqual(out["rendered"], "user: hello\nassistant:")
        self.assertEqual(out["chat"][0], out["chat"][1])
        self.assertIn(int(out["number"]), (3, 4, 5))
        self.assertEqual(out["stopped"], text[:text.index(text[3:5])])
        self.assertEqual(len(out["errors"]), 4, out["errors"])
        self.assertIn("/nowhere.mlxb", out["errors"][0])
        self.assertIn("unknown option 'heat'; options are: dry_allowed_length", out["errors"][1])
        self.check_embedding(out)

    def check_embedding(self, out):
        """The output head times the embedding gives the logits up to a factor: the largest belongs to Hugging Face's next token."""
        vector = out["embedding"]
        self.assertEqual(vector, out["again"])
        self.assertEqual([len(vector), out["long"]], [32, 32])
        self.assertAlmostEqual(sum(x * x for x in vector), 1, places=5)
        scores = [sum(a * b for a, b in zip(row, vector)) for row in output_head()]
        self.assertEqual(scores.index(max(scores)), TOKENS[0])

    def test_structs_have_the_layout_of_the_headers(self):
        path = glob.glob(os.path.join(self.venv, "lib", "python*", "site-packages", "mlxcel", "_abi.py"))[0]
        spec = importlib.util.spec_from_file_location("_abi", path)
        abi = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(abi)
        structs = [kind for kind in vars(abi).values() if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind is not ctypes.Structure]
        self.assertGreater(len(structs), 8)
        lines, wanted = [], []
        for kind in structs:
            lines.append(f'printf("%zu\\n", sizeof({kind.__name__}));')
            wanted.append(ctypes.sizeof(kind))
            for name, _ in kind._fields_:
                lines.append(f'printf("%zu\\n", offsetof({kind.__name__}, {name}));')
                wanted.append(getattr(kind, name).offset)
        program = os.path.join(folder, "layout")
        run(CC, "-x", "c", "-", "-o", program, "-I", os.path.join(BUILD, "generated", "include"),
            input="#include <mlxcel/mlxcel.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\n}\n")
        self.assertEqual([int(line) for line in run(program).stdout.split()], wanted)

    def test_record_and_metadata(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            info = next(name for name in names if name.endswith("/METADATA")).rsplit("/", 1)[0]
            record = archive.read(info + "/RECORD").decode().splitlines()
            self.assertEqual(sorted(line.split(",")[0] for line in record), sorted(names))
            if not MADE:
                self.assertIn("mlxcel/" + IMAGES, names)
            for line in record[:-1]:
                name, hashed, size = line.split(",")
                content = archive.read(name)
                self.assertEqual(int(size), len(content))
                self.assertEqual(hashed, "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode())
            tag = re.search(r"^Tag: (.*)$", archive.read(info + "/WHEEL").decode(), re.M).group(1)
            metadata = archive.read(info + "/METADATA").decode()
            self.assertEqual(json.loads(archive.read(info + "/sboms/sbom.spdx.json"))["spdxVersion"], "SPDX-2.3")
        self.assertTrue(self.wheel.endswith(tag + ".whl"))
        self.assertEqual(re.findall(r"^Requires-Dist: (?!.*extra ==).*$", metadata, re.M), [])  # no dependencies

    def test_wheel_is_reproducible(self):
        check_reproducible(self, "wheel")


# ---- clean roots ----------------------------------------------------------------------------------------------------------


class Chroot:
    """Runs a command in a root file system, in new namespaces."""

    def __init__(self, root, user=None):
        self.root, self.user = root, user
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": "/home/mlxcel" if user else "/tmp", "MLXCEL_TRUSTED": "/trusted"}
        for name in "proc", "dev", "tmp":
            os.makedirs(os.path.join(root, name), exist_ok=True)
        open(os.path.join(root, "dev", "null"), "w").close()
        shutil.copy(bundle, os.path.join(root, "tiny.mlxb"))
        shutil.copytree(trusted, os.path.join(root, "trusted"))
        # The trusted folder must belong to the user, and no other user may write to it.
        for path in [root + "/trusted", root + "/tiny.mlxb", *glob.glob(root + "/trusted/*")]:
            os.chmod(path, 0o755)

    def run(self, *arguments, expect=0):
        if not shutil.which("unshare"):
            raise unittest.SkipTest("unshare is not installed")
        users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        switch = f"--userspec={self.user} " if self.user and os.geteuid() == 0 else ""
        script = f'mount -t proc proc "{self.root}/proc" && mount --bind /dev/null "{self.root}/dev/null" && exec chroot {switch}"{self.root}" "$@"'
        done = run("unshare", *users, "--mount", "--pid", "--fork", "sh", "-c", script, "sh", *arguments, env={**self.environment, "PATH": os.environ["PATH"]}, expect=None)
        if "unshare: " in done.stderr or "mount: " in done.stderr:
            raise unittest.SkipTest("a new root needs root or user namespaces: " + done.stderr.strip())
        if done.returncode != expect:
            raise AssertionError(f"{arguments}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def check(self, test, program, full):
        test.assertTrue(self.run(program, "--version").startswith("mlxcel 0."))
        output = self.run(program, "run", "--raw", "-m", "/tiny.mlxb", "-p", PROMPT, "--temp", "0", "--ignore-eos", "-n", str(len(TOKENS)), "--json", "--device", "cpu")
        test.assertEqual(json.loads(output)["output_ids"], TOKENS)
        if full:
            shutil.copytree(FIXTURE, self.root + "/tiny")
            self.run(program, "compile", "/tiny", "-o", "/tmp/compiled.mlxb")


class Deb(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.packages = made("deb", f"*_{DEBIAN}.deb")

    def setUp(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("dpkg-deb is not installed")

    def test_files_and_fields_follow_debians_rules(self):
        for package in self.packages:
            fields = dict(line.split(": ", 1) for line in run("dpkg-deb", "-f", package).stdout.splitlines() if not line.startswith(" "))
            for name in "Package", "Version", "Architecture", "Maintainer", "Installed-Size", "Depends", "Section", "Priority", "Description":
                self.assertTrue(fields.get(name), name)
            self.assertRegex(fields["Version"], r"^[0-9][A-Za-z0-9.+~]*$")
            self.assertLessEqual(len(fields["Description"]), 80)
            self.assertNotRegex(fields["Description"], r"^(An?|The) |\.$")
            self.assertEqual(os.path.basename(package), "%s_%s_%s.deb" % (fields["Package"], fields["Version"], fields["Architecture"]))
            with tempfile.TemporaryDirectory() as control:
                run("dpkg-deb", "-e", package, control)
                self.assertEqual(sorted(os.listdir(control)), ["control", "md5sums"])  # no conffiles, no scripts
                with open(os.path.join(control, "md5sums")) as file:
                    sums = dict(reversed(line.rstrip("\n").split("  ", 1)) for line in file)
            data = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
            self.check_files(fields["Package"], data, sums)

    def check_files(self, package, data, sums):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = {member.name[2:]: member for member in archive}
            for name, member in members.items():
                self.assertEqual((member.uid, member.gid, member.uname), (0, 0, "root"), name)
                self.assertTrue(name.startswith("usr"), name)
                self.assertFalse(name.startswith("usr/local"), name)
                if member.issym():
                    self.assertIn(os.path.normpath(os.path.join(os.path.dirname(name), member.linkname)), members, name)
                    continue
                self.assertEqual(oct(member.mode), oct(0o755 if member.isdir() or "/bin/" in name or "/libexec/" in name else 0o644), name)
                if member.isfile():
                    self.assertEqual(sums.pop(name), hashlib.md5(archive.extractfile(member).read()).hexdigest(), name)
            self.assertEqual(sums, {})
            for name in ("usr/bin/mlxcel", "usr/share/man/man1/mlxcel.1.gz", f"usr/share/doc/{package}/copyright", f"usr/share/doc/{package}/changelog.gz",
                         "usr/share/bash-completion/completions/mlxcel", "usr/share/zsh/vendor-completions/_mlxcel", "usr/share/fish/vendor_completions.d/mlxcel.fish"):
                self.assertIn(name, members)
            if not MADE:
                self.assertIn("usr/lib/mlxcel/" + IMAGES, members)
            manual = gzip.decompress(archive.extractfile("./usr/share/man/man1/mlxcel.1.gz").read())
            self.assertIn(b".TH", manual)

    def test_runs_in_an_empty_root(self):
        for package in self.packages:
            full = "runtime" not in os.path.basename(package)
            with self.subTest(package), tempfile.TemporaryDirectory() as root:
                os.chmod(root, 0o755)
                try:
                    smoke_release.LinuxRoot(root, MACHINE, "mlxcel", full)
                except smoke_release.Skip as reason:
                    self.skipTest(str(reason))
                run("dpkg-deb", "-x", package, root)
                Chroot(root).check(self, "/usr/bin/mlxcel", full)

    def test_dpkg_installs_and_removes_it(self):
        if os.geteuid() != 0:
            self.skipTest("dpkg --root needs root")
        root = tempfile.mkdtemp(dir=folder)
        for name in "updates", "info":
            os.makedirs(os.path.join(root, "var/lib/dpkg", name))
        open(os.path.join(root, "var/lib/dpkg/status"), "w").close()
        for package in self.packages:
            name = os.path.basename(package).split("_")[0]
            run("dpkg", "--root=" + root, "--force-depends", "--force-unsafe-io", "--force-script-chrootless", "--install", package)
            self.assertIn("install ok installed", run("dpkg-query", "--admindir=" + root + "/var/lib/dpkg", "-W", "-f", "${Status}", name).stdout)
            self.assertEqual(run("dpkg", "--root=" + root, "--verify", name).stdout, "")
            run("dpkg", "--root=" + root, "--force-depends", "--purge", name)
            self.assertEqual([path for path in os.listdir(root) if path != "var"], [])

    def test_deb_is_reproducible(self):
        check_reproducible(self, "deb")


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.images = made("image", f"mlxcel-*-linux-{MACHINE}*.oci.tar")

    def read_image(self, path):
        """Checks every digest and size from the index down. Returns the configuration and the layers' tar archives."""
        with tarfile.open(path) as archive:
            files = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
        self.assertEqual(json.loads(files["oci-layout"]), {"imageLayoutVersion": "1.0.0"})

        def blob(descriptor):
            content = files["blobs/sha256/" + descriptor["digest"][7:]]
            self.assertEqual((len(content), "sha256:" + hashlib.sha256(content).hexdigest()), (descriptor["size"], descriptor["digest"]))
            return content

        (entry,) = json.loads(files["index.json"])["manifests"]
        self.assertEqual(entry["platform"], {"architecture": DEBIAN, "os": "linux"})
        manifest = json.loads(blob(entry))
        config = json.loads(blob(manifest["config"]))
        layers = [gzip.decompress(blob(layer)) for layer in manifest["layers"]]
        self.assertEqual(config["rootfs"]["diff_ids"], ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers])
        (old,) = json.loads(files["manifest.json"])
        self.assertEqual([old["Config"], *old["Layers"]], ["blobs/sha256/" + d["digest"][7:] for d in (manifest["config"], *manifest["layers"])])
        return config, layers

    def test_runs_from_its_layers_alone(self):
        for image in self.images:
            full = "runtime" not in os.path.basename(image)
            config, layers = self.read_image(image)
            self.assertEqual(config["config"]["User"], "65532:65532")
            (volume,) = config["config"]["Volumes"]  # keeps the record of compiled bundles too
            self.assertIn("MLXCEL_STATE=" + volume + "/state", config["config"]["Env"])
            with self.subTest(image), tempfile.TemporaryDirectory() as root:
                os.chmod(root, 0o755)
                for layer in layers:
                    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
                        archive.extractall(root, **({"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}))
                self.assertGreater(os.path.getsize(root + "/etc/ssl/certs/ca-certificates.crt"), 10000)
                self.check_licences(root)
                (program,) = config["config"]["Entrypoint"]
                clean = Chroot(root, config["config"]["User"])
                clean.check(self, program, full)
                self.assertIn("/home/mlxcel/.cache", clean.run(program, "cache", "path"))

    def check_licences(self, root):
        """Every Debian package in the image is in the SBOM, and its license is in the image."""
        with open(root + "/usr/share/doc/mlxcel/sbom.spdx.json") as file:
            packages = {package["name"]: package for package in json.load(file)["packages"]}
        self.assertIn("IREE", packages)
        for name in "libc6", "ca-certificates":
            self.assertTrue(packages[name]["versionInfo"])
            self.assertGreater(os.path.getsize(f"{root}/usr/share/doc/{name}/copyright"), 100)

    def test_image_is_reproducible(self):
        check_reproducible(self, "image")


class Refusals(unittest.TestCase):
    def test_platform_without_such_a_package_is_refused(self):
        for kind, part in ("deb", "there is no Debian package for windows-x86_64"), ("image", "there is no image for windows-x86_64"):
            done = run(os.path.join(ROOT, "release", "packages.py"), kind, "--platform", "windows-x86_64", "--version", "1.2.3", "--epoch", EPOCH, "--out", folder, "--stage",
                       ROOT, expect=1)
            self.assertIn(part, done.stderr)


unittest.main()
