#!/usr/bin/env python3
"""Smoke test of release packages: unpacks each one in an empty root file system and runs it there.

    tests/release/smoke_release.py MLXCEL MODEL RELEASE PACKAGE...

MLXCEL is a native build with compiler; it compiles and signs MODEL, SmolLM2 in 4 bits. RELEASE is the folder of the packages.

The root for a Linux package contains only the dynamic loader and the C library, and for a package with compiler also the C++
library and a shell, which iree-compile needs. A package for another architecture runs under qemu, which is copied into the root.
A Windows package runs in a new Wine prefix. In each, mlxcel must print its version, run doctor, verify the bundle, and generate
Hugging Face's first 10 tokens. A package with compiler must also compile a small model. Packages that cannot run on this machine
are skipped with the reason.
"""
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOADERS = {"x86_64": ("/lib64/ld-linux-x86-64.so.2", ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"]),
           "aarch64": ("/lib/ld-linux-aarch64.so.1", ["/usr/aarch64-linux-gnu/lib", "/lib/aarch64-linux-gnu"])}
C_LIBRARY = ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"]
CPP_LIBRARY = ["libstdc++.so.6", "libgcc_s.so.1"]
# Wrapper that starts a tool of another architecture through qemu, because the kernel can only execute native programs.
WRAPPER = """#include <unistd.h>
int main(int argc, char **argv) {
  (void)argc;
  const char *all[256] = {"/qemu", "%s"};
  for (int i = 1; argv[i] && i < 250; ++i) all[i + 1] = argv[i];
  execv(all[0], (char *const *)all);
  return 127;
}
"""


class Skip(Exception):
    pass


def find(name, folders):
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return os.path.realpath(path)
    raise Skip(f"{name} is not installed")


class LinuxRoot:
    """An empty root file system, entered by chroot in new namespaces."""

    def __init__(self, folder, arch, name, full):
        self.folder, self.package, self.full, self.emulator = folder, f"/opt/{name}", full, []
        self.environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp"}
        loader, libraries = LOADERS[arch]
        for inside in "opt", "tmp", "proc", "dev", "lib", "bin", os.path.dirname(loader)[1:]:
            os.makedirs(os.path.join(folder, inside), exist_ok=True)
        self.add(find(os.path.basename(loader), libraries + [os.path.dirname(loader)]), loader)
        for library in C_LIBRARY + (CPP_LIBRARY if full else []):
            self.add(find(library, libraries), "/lib/" + library)
        open(os.path.join(folder, "dev", "null"), "w").close()
        if arch != os.uname().machine:
            self.emulate(arch)
        if full:
            self.add_shell()

    def add(self, path, inside):
        shutil.copy(path, self.folder + inside)

    def emulate(self, arch):
        qemu = shutil.which(f"qemu-{arch}-static")
        if not qemu:
            raise Skip(f"qemu-{arch}-static is not installed (Debian: qemu-user-static)")
        self.add(qemu, "/qemu")
        self.emulator = ["/qemu"]

    def add_shell(self):
        """Adds the native shell, through which iree-compile starts its linker, and the libraries of the shell."""
        loader, libraries = LOADERS[os.uname().machine]
        self.add(os.path.realpath("/bin/sh"), "/bin/sh")
        if self.emulator:
            os.makedirs(self.folder + libraries[0])
            os.makedirs(self.folder + os.path.dirname(loader), exist_ok=True)
            self.add(find(os.path.basename(loader), libraries), loader)
            self.add(find("libc.so.6", libraries), libraries[0] + "/libc.so.6")

    def unpacked(self):
        for tool in ("iree-compile", "iree-lld") if self.full and self.emulator else ():
            inside = f"{self.package}/libexec/iree/{tool}"
            os.rename(self.folder + inside, self.folder + inside + ".real")
            with open(self.folder + "/wrapper.c", "w") as file:
                file.write(WRAPPER % (inside + ".real"))
            subprocess.run(["cc", "-static", "-o", self.folder + inside, self.folder + "/wrapper.c"], check=True)

    def put(self, path):
        inside = "/tmp/" + os.path.basename(path)
        if os.path.isdir(path):
            shutil.copytree(path, self.folder + inside)
        else:
            self.add(path, inside)
        return inside

    def scratch(self, name):
        return "/tmp/" + name

    def run(self, arguments):
        script = f'mount -t proc proc "{self.folder}/proc" && mount --bind /dev/null "{self.folder}/dev/null" && exec chroot "{self.folder}" "$@"'
        users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        command = ["unshare", *users, "--mount", "--pid", "--fork", "sh", "-c", script, "sh", *self.emulator, self.package + "/bin/mlxcel", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment)


class WinePrefix:
    """A new Wine prefix."""

    def __init__(self, folder, name):
        self.folder, self.package = folder, os.path.join(folder, name)
        self.wine = shutil.which("wine64") or shutil.which("wine") or next((p for p in ["/usr/lib/wine/wine64"] if os.path.exists(p)), None)
        if not self.wine:
            raise Skip("wine is not installed")
        self.environment = {"PATH": os.environ["PATH"], "HOME": folder, "WINEPREFIX": os.path.join(folder, "prefix"), "WINEDEBUG": "-all",
                            "WINEDLLOVERRIDES": "mscoree,mshtml="}

    def unpacked(self):
        pass

    def put(self, path):
        inside = os.path.join(self.folder, os.path.basename(path))
        (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, inside)
        return "Z:" + inside

    def scratch(self, name):
        return "Z:" + os.path.join(self.folder, name)

    def run(self, arguments):
        return subprocess.run([self.wine, os.path.join(self.package, "bin", "mlxcel.exe"), *arguments], capture_output=True, text=True, env=self.environment)


def unpack(archive, folder):
    if archive.endswith(".zip"):
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
    else:
        with tarfile.open(archive) as file:
            file.extractall(folder)


def check(root, title, arguments, *parts):
    start = time.monotonic()
    done = root.run(arguments)
    if done.returncode:
        sys.exit(f"{title}: exit status {done.returncode}: {done.stdout}{done.stderr}")
    for part in parts:
        if part not in done.stdout:
            sys.exit(f"{title}: output does not contain '{part}': {done.stdout}{done.stderr}")
    print(f"  {title}: {time.monotonic() - start:.1f} s", flush=True)
    return done.stdout


def check_tokens(root, title, model, prompt, expected):
    arguments = ["run", "--raw", "--no-escape", "-m", model, "-p", prompt, "--temp", "0", "--ignore-eos", "-n", str(len(expected)), "--json", "--device", "cpu"]
    output = json.loads(check(root, title, arguments))
    if output["output_ids"] != expected:
        sys.exit(f"{title}: tokens {output['output_ids']}, expected {expected}")


def sign(mlxcel, bundle, folder):
    """Signs the bundle with a new key pair, and returns the path of the public key."""
    pair = os.path.join(folder, "keys", "smoke")
    os.mkdir(os.path.dirname(pair))
    subprocess.run([mlxcel, "keygen", "-W", "-o", pair], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([mlxcel, "sign", "-s", pair + ".key", bundle], check=True, stdout=subprocess.DEVNULL)
    os.remove(pair + ".key")
    return pair + ".pub"


def try_package(root, full, version, bundle, key):
    root.unpacked()
    check(root, "--version", ["--version"], "mlxcel " + version)
    check(root, "doctor", ["doctor"], *(["iree-compile", "OK    cpu runs", "OK    nvrtc"] if full else ["not in this package"]))
    model = root.put(bundle)
    root.environment["MLXCEL_TRUSTED"] = root.put(os.path.dirname(key))
    check(root, "verify", ["verify", model], "signed by")
    with open(os.path.join(TESTS, "goldens", "smollm2-135m-instruct.hf-fp32.json")) as file:
        golden = json.load(file)["results"][0]
    check_tokens(root, "10 tokens of SmolLM2 Q4_1", model, golden["rendered"], golden["output_ids"][:10])
    if full:
        tiny = root.put(os.path.join(TESTS, "fixtures", "tiny-llama"))
        check(root, "compile", ["compile", tiny, "-c", "64", "-o", root.scratch("tiny.mlxb")])
        check_tokens(root, "tokens of the compiled model", root.scratch("tiny.mlxb"), "the quick brown", [142, 218, 177, 4, 129, 92, 159, 114, 218])


def smoke(archive, version, bundle, key):
    name = os.path.basename(archive).replace(".tar.gz", "").replace(".zip", "")
    system, arch = name.split("-")[1:3]
    full = not name.endswith("-runtime")
    print(os.path.basename(archive), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            root = LinuxRoot(folder, arch, name, full) if system == "linux" else WinePrefix(folder, name)
        except Skip as reason:
            print("  skipped:", reason)
            return False
        unpack(archive, os.path.join(folder, "opt") if system == "linux" else folder)
        try_package(root, full, version, bundle, key)
    return True


def main():
    mlxcel, model, release = sys.argv[1:4]
    archives, tried = sys.argv[4:], 0
    with open(os.path.join(release, "VERSION")) as file:
        version = file.read().strip()
    with tempfile.TemporaryDirectory() as temporary:
        bundle = os.path.join(temporary, "smollm2.mlxb")
        subprocess.run([mlxcel, "compile", model, "--target", "cpu:portable", "-c", "256", "-o", bundle], check=True)
        key = sign(mlxcel, bundle, temporary)
        for archive in archives:
            tried += smoke(os.path.join(release, archive), version, bundle, key)
    print(f"{tried} of {len(archives)} packages tested and passed")


if __name__ == "__main__":
    main()
