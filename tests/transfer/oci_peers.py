#!/usr/bin/env python3
"""Tests that other OCI tools (oras, skopeo, crane, regctl) can pull what mlxcel pushes, and the reverse.

    tests/transfer/oci_peers.py BUILD

Runs BUILD/bin/mlxcel and every installed tool against each registry: tests/support/registry_server.py, which has the referrers API, and
Debian's docker-registry, which does not and stores the list of referrers under a tag. oras is built into BUILD/peers at the
version pinned in tests/peers/go.mod, through the Go module proxy. Without go or network, the oras on the PATH is used.
Exit status 77 (skipped): no tool is available.
"""
import contextlib
import filecmp
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TINY = os.path.join(TESTS, "fixtures", "tiny-llama")
MODEL = "application/vnd.cncf.model.manifest.v1+json"
MODULE = "application/vnd.mlxcel.module.v1+json"
BUILD_SECONDS = 400


def run(*command, cwd=None, expect=0):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != expect:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build_oras(folder):
    """Returns the path of the pinned oras, else of the installed one, else None."""
    program, log = os.path.join(folder, "oras"), os.path.join(folder, "oras.log")
    if os.path.exists(program):
        return program
    if shutil.which("go"):
        os.makedirs(folder, exist_ok=True)
        with open(log, "w") as out, contextlib.suppress(subprocess.TimeoutExpired):
            command = ["go", "build", "-trimpath", "-o", program + ".new", "oras.land/oras/cmd/oras"]
            caches = {"GOMODCACHE": os.path.join(folder, "go", "mod"), "GOCACHE": os.path.join(folder, "go", "build")}
            environment = dict(os.environ, GOFLAGS="-mod=readonly -modcacherw -buildvcs=false", GOTOOLCHAIN="local", **caches)
            if not subprocess.run(command, cwd=os.path.join(TESTS, "peers"), env=environment, stdout=out, stderr=out, timeout=BUILD_SECONDS).returncode:
                os.rename(program + ".new", program)
                return program
        print(f"cannot build oras: see {log}")
    return shutil.which("oras")


def digest_of(path):
    with open(path, "rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else "sha256:" + hashlib.sha256(file.read()).hexdigest()


def check_same(folder, expected):
    """Fails unless both folders have the same files with the same bytes."""
    def names(root):
        return sorted(os.path.relpath(os.path.join(at, name), root) for at, _, files in os.walk(root) for name in files)
    if names(folder) != names(expected):
        sys.exit(f"{folder} has {names(folder)}, expected {names(expected)}")
    for name in names(expected):
        if not filecmp.cmp(os.path.join(folder, name), os.path.join(expected, name), shallow=False):
            sys.exit(f"{name} differs between {folder} and {expected}")


# ---- registries ------------------------------------------------------------------------------------------------------

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def debian_registry(folder):
    port = free_port()
    config = os.path.join(folder, "registry.yml")
    with open(config, "w") as file:
        file.write("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %s/registry}}\nhttp: {addr: 127.0.0.1:%d}\n" % (folder, port))
    server = subprocess.Popen(["docker-registry", "serve", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                urllib.request.build_opener(urllib.request.ProxyHandler({})).open("http://127.0.0.1:%d/v2/" % port)
                break
            time.sleep(0.05)
        yield "127.0.0.1:%d" % port
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def own_registry(folder):
    server = subprocess.Popen([sys.executable, os.path.join(TESTS, "support", "registry_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield "127.0.0.1:%d" % int(server.stdout.readline())
    finally:
        server.stdin.close()
        server.wait()


# ---- peers -----------------------------------------------------------------------------------------------------------

class Case:
    """A registry with the test bundle pushed to it."""

    def __init__(self, mlxcel, registry, folder, bundle):
        self.mlxcel, self.registry, self.folder, self.bundle = mlxcel, registry, folder, bundle
        self.count = 0
        self.digest = run(mlxcel, "push", bundle, self.ref("acme/tiny:v1")).strip()

    def ref(self, name):
        return f"oci://{self.registry}/{name}"

    def new(self):
        self.count += 1
        return os.path.join(self.folder, "%d" % self.count)

    def pull(self, ref):
        out = self.new()
        run(self.mlxcel, "pull", ref, "-o", out)
        return out

    def check_pulled(self, ref):
        check_same(self.pull(ref), self.bundle)


def oras_pulls_what_we_pushed(oras, case):
    """oras pulls the model, finds the module through the referrers list, and gets every file of the bundle."""
    ref, out = f"{case.registry}/acme/tiny", case.new()
    got = run(oras, "resolve", "--plain-http", ref + ":v1").strip()
    if got != case.digest:
        sys.exit(f"oras resolves {got}, we pushed {case.digest}")
    run(oras, "pull", "--plain-http", f"{ref}:v1", "-o", out)
    listed = json.loads(run(oras, "discover", "--plain-http", "--format", "json", "--artifact-type", MODULE, f"{ref}:v1"))
    for module in listed.get("referrers") or listed["manifests"]:
        run(oras, "pull", "--plain-http", f"{ref}@{module['digest']}", "-o", out)
    check_same(out, case.bundle)


def layers_of(oras, case, reference):
    """Returns a manifest, and its layers as arguments for oras push. Checks the layer digests against the bundle."""
    manifest = json.loads(run(oras, "manifest", "fetch", "--plain-http", f"{case.registry}/acme/{reference}"))
    for layer in manifest["layers"]:
        name = layer["annotations"]["org.opencontainers.image.title"]
        if digest_of(os.path.join(case.bundle, name)) != layer["digest"]:
            sys.exit(f"{name} is not {layer['digest']}")
    return manifest, [f"{layer['annotations']['org.opencontainers.image.title']}:{layer['mediaType']}" for layer in manifest["layers"]]


def oras_pushes_what_we_pulled(oras, case):
    pulled = case.pull(case.ref("acme/tiny:v1"))
    config = os.path.join(case.folder, "config.json")
    with open(config, "w") as file:
        file.write("{}")
    ref = f"{case.registry}/acme/by-oras:v1"
    manifest, layers = layers_of(oras, case, "tiny:v1")
    run(oras, "push", "--plain-http", "--disable-path-validation", ref, "--artifact-type", MODEL, "--config", f"{config}:{manifest['config']['mediaType']}", *layers, cwd=pulled)
    listed = json.loads(run(oras, "discover", "--plain-http", "--format", "json", f"{case.registry}/acme/tiny:v1"))
    for module in listed.get("referrers") or listed["manifests"]:
        manifest, layers = layers_of(oras, case, "tiny@" + module["digest"])
        annotations = [word for pair in manifest["annotations"].items() for word in ("--annotation", "=".join(pair))]
        run(oras, "attach", "--plain-http", ref, "--artifact-type", MODULE, *annotations, *layers, cwd=pulled)
    case.check_pulled("oci://" + ref)


def oras_copies_through_folders(oras, case):
    by_oras, by_mlxcel = case.new(), case.new()
    run(oras, "cp", "-r", "--from-plain-http", f"{case.registry}/acme/tiny:v1", "--to-oci-layout", by_oras + ":v1")
    case.check_pulled(f"oci-layout:{by_oras}:v1")
    run(case.mlxcel, "push", case.bundle, f"oci-layout:{by_mlxcel}:v1")
    run(oras, "cp", "-r", "--from-oci-layout", by_mlxcel + ":v1", "--to-plain-http", f"{case.registry}/acme/by-folder:v1")
    case.check_pulled(case.ref("acme/by-folder:v1"))


def oras_pushes_a_model_that_we_open(oras, case):
    """oras pushes a ModelPack model without compiled code, and mlxcel pulls it."""
    kinds = {".safetensors": "weight.v1.raw", ".json": "weight.config.v1.raw"}
    layers = [f"{name}:application/vnd.cncf.model.{kinds[os.path.splitext(name)[1]]}" for name in sorted(os.listdir(TINY))]
    run(oras, "push", "--plain-http", f"{case.registry}/acme/plain:v1", "--artifact-type", MODEL, *layers, cwd=TINY)
    check_same(case.pull(case.ref("acme/plain:v1")), TINY)


def tags_of(case):
    return ["v1", case.digest.replace(":", "-")]


def skopeo_copies(skopeo, case):
    """skopeo copies the model and its referrers tag to a layout and back."""
    layout = case.new()
    for tag in tags_of(case):
        run(skopeo, "--insecure-policy", "copy", "--all", "--src-tls-verify=false", f"docker://{case.registry}/acme/tiny:{tag}", f"oci:{layout}:{tag}")
        run(skopeo, "--insecure-policy", "copy", "--all", "--dest-tls-verify=false", f"oci:{layout}:{tag}", f"docker://{case.registry}/acme/by-skopeo:{tag}")
    case.check_pulled(f"oci-layout:{layout}:v1")
    case.check_pulled(case.ref("acme/by-skopeo:v1"))


def crane_copies(crane, case):
    for tag in tags_of(case):
        run(crane, "copy", "--insecure", f"{case.registry}/acme/tiny:{tag}", f"{case.registry}/acme/by-crane:{tag}")
    case.check_pulled(case.ref("acme/by-crane:v1"))


def regctl_copies(regctl, case):
    layout = case.new()
    run(regctl, "registry", "set", case.registry, "--tls", "disabled")
    run(regctl, "image", "copy", "--referrers", f"{case.registry}/acme/tiny:v1", f"ocidir://{layout}:v1")
    run(regctl, "image", "copy", "--referrers", f"ocidir://{layout}:v1", f"{case.registry}/acme/by-regctl:v1")
    case.check_pulled(f"oci-layout:{layout}:v1")
    case.check_pulled(case.ref("acme/by-regctl:v1"))


def main():
    build = os.path.abspath(sys.argv[1])
    mlxcel = os.path.join(build, "bin", "mlxcel")
    peers = {"oras": (build_oras(os.path.join(build, "peers")), [oras_pulls_what_we_pushed, oras_pushes_what_we_pulled, oras_copies_through_folders, oras_pushes_a_model_that_we_open]),
             "skopeo": (shutil.which("skopeo"), [skopeo_copies]), "crane": (shutil.which("crane"), [crane_copies]), "regctl": (shutil.which("regctl"), [regctl_copies])}
    for name, (program, _) in peers.items():
        if not program:
            print(f"skipped: {name} is not installed")
    if not any(program for program, _ in peers.values()):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(HOME=folder, DOCKER_CONFIG=folder, no_proxy="127.0.0.1")
        bundle = os.path.join(folder, "tiny.mlxb")
        run(mlxcel, "compile", TINY, "-o", bundle, "-c", "128", "--target", "cpu:x86-64-v3")
        registries = {"registry_server.py": own_registry}
        if shutil.which("docker-registry"):
            registries["docker-registry"] = debian_registry
        else:
            print("skipped: docker-registry is not installed")
        done = 0
        for kind, start in registries.items():
            home = os.path.join(folder, kind)
            os.makedirs(home)
            with start(home) as registry:
                case = Case(mlxcel, registry, home, bundle)
                for name, (program, checks) in peers.items():
                    for check in checks if program else []:
                        if name in ("skopeo", "crane") and start == own_registry:
                            continue  # they copy only tags, and this registry has no referrers tag
                        began = time.monotonic()
                        check(program, case)
                        done += 1
                        print(f"{kind}: {check.__name__}: {time.monotonic() - began:.1f} s", flush=True)
    sys.exit(0 if done else 77)


main()
