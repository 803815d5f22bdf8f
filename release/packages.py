#!/usr/bin/env python3
"""Makes the wheel, the Debian package and the container image of a platform from built files. Uses no network and no other program.

    release/packages.py wheel --platform P --version V --epoch E --out FOLDER --stage STAGE --library FILE --headers FOLDER
    release/packages.py deb   --platform P --version V --epoch E --out FOLDER --stage STAGE
    release/packages.py image --platform P --version V --epoch E --out FOLDER --stage STAGE

STAGE is an unpacked package of release/release.sh: bin/, share/, LICENSE, THIRD_PARTY_NOTICES.txt, sbom.spdx.json, and with the
compiler libexec/ and lib/. The same input gives the same bytes: names are sorted, and every time is E. Each command prints the path of its output.
"""
import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import time
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUMMARY = "An ahead-of-time compiler and a small runtime for language models"
MAINTAINER = "mlxcel developers <packages@mlxcel.invalid>"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # the names of Debian and of container images


class PackageError(Exception):
    pass


class Unavailable(PackageError):
    """The package exists, but this machine cannot make it. Exit status 77."""


def read(path):
    with open(path, "rb") as file:
        return file.read()


def walk(folder):
    """Every file and symbolic link below |folder| as (name, path), sorted."""
    found = []
    for base, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        found += [os.path.join(base, name) for name in files + links]
    return sorted((os.path.relpath(path, folder).replace(os.sep, "/"), path) for path in found)


def is_full(stage):
    return os.path.isdir(os.path.join(stage, "libexec"))


# ---- tar ------------------------------------------------------------------------------------------------------------------


class Tree:
    """Files of a package, in memory: name -> content, or a link's target as str. Modes are 0755 and 0644."""

    def __init__(self):
        self.files, self.executable, self.owners, self.folders = {}, set(), {}, {}

    def add(self, name, content, executable=False):
        self.files[name] = content
        if executable:
            self.executable.add(name)

    def add_path(self, name, path):
        if os.path.islink(path):
            self.add(name, os.readlink(path))
        else:
            self.add(name, read(path), bool(os.stat(path).st_mode & stat.S_IXUSR))

    def add_folder(self, name, mode=0o755, owner=0):
        self.folders[name], self.owners[name] = mode, owner

    def size(self):
        return sum(len(content) for content in self.files.values() if isinstance(content, bytes))

    def entry(self, name, prefix, epoch):
        info = tarfile.TarInfo(prefix + name)
        info.mtime, info.uid, info.gid = epoch, self.owners.get(name, 0), self.owners.get(name, 0)
        info.uname = info.gname = "root" if info.uid == 0 else ""
        content = self.files.get(name)
        if content is None:
            info.type, info.mode = tarfile.DIRTYPE, self.folders.get(name, 0o755)
        elif isinstance(content, str):
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, content, 0o777
        else:
            info.size, info.mode = len(content), 0o755 if name in self.executable else 0o644
        return info, io.BytesIO(content) if isinstance(content, bytes) else None

    def tar(self, epoch, prefix=""):
        """The bytes of an uncompressed tar archive. Every folder has an entry, before what it contains."""
        names = set(self.files) | set(self.folders)
        for name in list(names):
            while "/" in name:
                name = name.rsplit("/", 1)[0]
                names.add(name)
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name in sorted(names, key=lambda name: name.split("/")):
                archive.addfile(*self.entry(name, prefix, epoch))
        return out.getvalue()


def compress(content, level=6):
    out = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=level, mtime=0) as file:
        file.write(content)
    return out.getvalue()


# ---- the wheel ------------------------------------------------------------------------------------------------------------


def python_version(version):
    """A version by PEP 440: 0.2.0-trial.1 becomes 0.2.0.dev0+trial.1."""
    number, _, suffix = version.partition("-")
    return f"{number}.dev0+{re.sub(r'[^a-z0-9]+', '.', suffix.lower()).strip('.')}" if suffix else number


def needed_glibc(paths):
    """The newest GLIBC_2.N that the files need, as (2, N)."""
    newest = (2, 17)
    for path in paths:
        for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", read(path)):
            newest = max(newest, (int(major), int(minor)))
    return newest


def wheel_tag(platform, paths):
    if platform == "windows-x86_64":
        return "py3-none-win_amd64"
    return "py3-none-manylinux_%d_%d_%s" % (*needed_glibc(paths), platform.split("-")[1])


def pinned(name):
    with open(os.path.join(ROOT, "third_party", "python.txt"), encoding="utf-8") as file:
        return re.search(rf"^{re.escape(name)}==([^\s\\]+)", file.read(), re.M).group(1)


def metadata(version):
    compiler = "".join(f'Requires-Dist: {name}=={pinned(name)}; extra == "compiler"\n' for name in ("iree-base-compiler", "nvidia-cuda-nvrtc"))
    with open(os.path.join(ROOT, "python", "README.md"), encoding="utf-8") as file:
        readme = file.read()
    return (f"Metadata-Version: 2.4\nName: mlxcel\nVersion: {version}\nSummary: {SUMMARY}\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n"
            f"License-File: THIRD_PARTY_NOTICES.txt\nRequires-Python: >=3.9\nClassifier: Typing :: Typed\n"
            f"Provides-Extra: compiler\n{compiler}Description-Content-Type: text/markdown\n\n{readme}")


def wheel_files(arguments, version, tag):
    """The files of the wheel, in the order in which they are written: RECORD comes last."""
    suffix = ".exe" if arguments.platform.startswith("windows") else ""
    files, info = Tree(), f"mlxcel-{version}.dist-info"
    for name, path in walk(os.path.join(ROOT, "python", "mlxcel")):
        if not name.startswith("__pycache__"):
            files.add("mlxcel/" + name, read(path))
    library = os.path.basename(arguments.library)
    abi = subprocess.run([sys.executable, os.path.join(ROOT, "python", "abi.py"), arguments.headers, library, arguments.version.partition("-")[0]], check=True,
                         capture_output=True)
    files.add("mlxcel/_abi.py", abi.stdout)
    files.add("mlxcel/bin/mlxcel" + suffix, read(os.path.join(arguments.stage, "bin", "mlxcel" + suffix)), True)
    files.add("mlxcel/lib/" + library, read(arguments.library), True)
    for name, path in walk(arguments.stage):
        if name.startswith("share/mlxcel/"):
            files.add("mlxcel/" + name, read(path))
    files.add(info + "/METADATA", metadata(version).encode())
    files.add(info + "/WHEEL", f"Wheel-Version: 1.0\nGenerator: mlxcel release/packages.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    files.add(info + "/entry_points.txt", b"[console_scripts]\nmlxcel = mlxcel.__main__:main\n")
    files.add(info + "/sboms/sbom.spdx.json", read(os.path.join(arguments.stage, "sbom.spdx.json")))
    for name in "LICENSE", "THIRD_PARTY_NOTICES.txt":
        files.add(f"{info}/licenses/{name}", read(os.path.join(arguments.stage, name)))
    lines = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}\n"
             for name, content in sorted(files.files.items())]
    files.add(info + "/RECORD", ("".join(lines) + f"{info}/RECORD,,\n").encode())
    return files


def make_wheel(arguments):
    program = os.path.join(arguments.stage, "bin", "mlxcel" + (".exe" if arguments.platform.startswith("windows") else ""))
    version, tag = python_version(arguments.version), wheel_tag(arguments.platform, [program, arguments.library])
    files = wheel_files(arguments, version, tag)
    out = os.path.join(arguments.out, f"mlxcel-{version}-{tag}.whl")
    moment = time.gmtime(max(arguments.epoch, 315532800))[:6]  # zip's first time is 1980
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(files.files, key=lambda name: (name.endswith("/RECORD"), name)):
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (stat.S_IFREG | (0o755 if name in files.executable else 0o644)) << 16
            archive.writestr(entry, files.files[name])
    return out


# ---- the Debian package ---------------------------------------------------------------------------------------------------


def debian_version(version):
    return version.replace("-", "~", 1)  # a trial sorts before its release


def debian_tree(arguments, package):
    """The package's files. The program and the compiler stay together in /usr/lib/mlxcel, because mlxcel searches beside itself."""
    tree, home, document = Tree(), "usr/lib/mlxcel/", f"usr/share/doc/{package}/"
    places = {"share/zsh/site-functions/": "usr/share/zsh/vendor-completions/", "share/mlxcel/": home + "share/mlxcel/", "share/": "usr/share/", "bin/": home + "bin/", "libexec/": home + "libexec/",
              "lib/": home + "lib/"}
    for name, path in walk(arguments.stage):
        place = next((place for place in places if name.startswith(place)), None)
        if name.startswith("share/man/"):
            tree.add(f"usr/{name}.gz", compress(read(path), 9))
        elif place:
            tree.add_path(places[place] + name[len(place):], path)
            if place == "bin/":
                tree.add("usr/bin/" + os.path.basename(name), "../lib/mlxcel/bin/" + os.path.basename(name))
    tree.add(document + "copyright", b"On Debian systems the Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0.\n\n" + read(os.path.join(arguments.stage, "THIRD_PARTY_NOTICES.txt")))
    tree.add(document + "sbom.spdx.json", read(os.path.join(arguments.stage, "sbom.spdx.json")))
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(arguments.epoch))
    changes = f"{package} ({debian_version(arguments.version)}) unstable; urgency=medium\n\n  * Release {arguments.version}.\n\n -- {MAINTAINER}  {date}\n"
    tree.add(document + "changelog.gz", compress(changes.encode(), 9))
    return tree


def debian_control(arguments, package, tree):
    full = is_full(arguments.stage)
    glibc = "%d.%d" % needed_glibc([os.path.join(arguments.stage, "bin", "mlxcel")])
    other = "mlxcel-runtime" if full else "mlxcel"
    fields = {"Package": package, "Version": debian_version(arguments.version), "Architecture": ARCHITECTURES[arguments.platform.split("-")[1]],
              "Maintainer": MAINTAINER, "Installed-Size": str(-(-tree.size() // 1024)),
              "Depends": f"libc6 (>= {glibc})" + (", libstdc++6" if full else ""), "Recommends": "ca-certificates",
              "Conflicts": other, "Replaces": other, "Provides": "mlxcel-runtime" if full else None,
              "Section": "science", "Priority": "optional",
              "Description": f"{SUMMARY[3].lower()}{SUMMARY[4:]}\n "
              + ("Compiles GGUF files and Hugging Face directories, and runs them." if full else "Runs compiled models (.mlxb). The package mlxcel also compiles them.")
              + "\n A GPU needs only NVIDIA's driver."}
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value).encode()


def archive_member(name, content, epoch):
    """A file of an ar archive."""
    return f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2)


def make_deb(arguments):
    if not arguments.platform.startswith("linux-"):
        raise PackageError(f"there is no Debian package for {arguments.platform}")
    package = "mlxcel" if is_full(arguments.stage) else "mlxcel-runtime"
    tree, control = debian_tree(arguments, package), Tree()
    control.add("control", debian_control(arguments, package, tree))
    sums = [f"{hashlib.md5(content).hexdigest()}  {name}\n" for name, content in sorted(tree.files.items()) if isinstance(content, bytes)]
    control.add("md5sums", "".join(sums).encode())
    out = os.path.join(arguments.out, f"{package}_{debian_version(arguments.version)}_{ARCHITECTURES[arguments.platform.split('-')[1]]}.deb")
    with open(out, "wb") as file:
        file.write(b"!<arch>\n" + archive_member("debian-binary", b"2.0\n", arguments.epoch)
                   + archive_member("control.tar.gz", compress(control.tar(arguments.epoch, "./")), arguments.epoch)
                   + archive_member("data.tar.gz", compress(tree.tar(arguments.epoch, "./")), arguments.epoch))
    return out


# ---- the container image --------------------------------------------------------------------------------------------------
# Two layers: the C library and certificates of the Debian machine that makes the release, and mlxcel. An image index with one manifest, as
# an OCI layout in a tar archive; manifest.json lets older versions of docker load it too.

LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
LIBRARIES = ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"]
RESOLVER = ["libresolv.so.2", "libnss_dns.so.2", "libnss_files.so.2"]  # part of libc.so.6 since glibc 2.34
CPP_LIBRARIES = ["libstdc++.so.6", "libgcc_s.so.1"]
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
USER = 65532


class System:
    """Files of this machine, or of a cross-compiling package, and the Debian packages that they belong to."""

    def __init__(self, machine):
        self.machine, self.packages = machine, {}
        here = machine == os.uname().machine
        self.folders = [f"/lib/{machine}-linux-gnu", f"/usr/lib/{machine}-linux-gnu"] if here else []
        self.folders.append(f"/usr/{machine}-linux-gnu/lib")

    def find(self, name):
        path = next((path for path in (os.path.join(folder, name) for folder in self.folders) if os.path.exists(path)), None)
        if not path:
            raise Unavailable(f"{name} for {self.machine} is not installed here (Debian: libc6, for another machine libc6-arm64-cross)")
        return self.record(os.path.realpath(path))

    def record(self, path):
        """Notes the Debian package of |path|: its version and license are part of the image."""
        for candidate in path, path[4:] if path.startswith("/usr/") else "/usr" + path:  # /lib may be a link to /usr/lib
            done = subprocess.run(["dpkg-query", "-S", candidate], capture_output=True, text=True)
            if done.returncode == 0:
                package = done.stdout.split(": ")[0]
                version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=True).stdout
                self.packages[package.split(":")[0]] = version
                return path
        raise Unavailable(f"{path} belongs to no Debian package: the license of what an image contains must be known")


def base_layer(machine, full):
    """The C library, certificates, an unprivileged user with a home; for the compiler also the C++ library and a shell."""
    tree, system, folder = Tree(), System(machine), f"usr/lib/{machine}-linux-gnu/"
    loader = LOADERS[machine]
    tree.add(f"usr{loader}", read(system.find(os.path.basename(loader))), True)
    optional = [name for name in LIBRARIES[2:] + RESOLVER if any(os.path.exists(os.path.join(folder, name)) for folder in system.folders)]
    for name in LIBRARIES[:2] + optional + (CPP_LIBRARIES if full else []):
        tree.add(folder + name, read(system.find(name)))
    if full:
        if machine != os.uname().machine:
            raise Unavailable(f"the image with the compiler for {machine} must be made on such a machine: it contains /bin/sh")
        tree.add("usr/bin/sh", read(system.record(os.path.realpath("/bin/sh"))), True)
    for name in "bin", "lib", "lib64":
        tree.add(name, "usr/" + name)
    tree.add_folder("usr/lib64")
    if not os.path.exists(CERTIFICATES):
        raise Unavailable("ca-certificates is not installed here: an image needs certificates to pull models")
    tree.add(CERTIFICATES[1:], read(CERTIFICATES))
    system.record("/usr/share/ca-certificates/mozilla")
    tree.add("etc/passwd", f"root:x:0:0:root:/root:/sbin/nologin\nmlxcel:x:{USER}:{USER}:mlxcel:/home/mlxcel:/sbin/nologin\n".encode())
    tree.add("etc/group", f"root:x:0:\nmlxcel:x:{USER}:\n".encode())
    tree.add("etc/nsswitch.conf", b"hosts: files dns\n")
    tree.add_folder("tmp", 0o1777)
    for name in "home/mlxcel", "home/mlxcel/.cache":
        tree.add_folder(name, 0o700, USER)
    tree.add_folder("models")
    for name in "dev", "proc", "sys":
        tree.add_folder(name)
    for package in system.packages:
        tree.add(f"usr/share/doc/{package}/copyright", read(f"/usr/share/doc/{package}/copyright"))
    return tree, system.packages


def image_sbom(stage, packages, machine):
    """The package's SBOM with the Debian packages of the base layer."""
    sbom = json.loads(read(os.path.join(stage, "sbom.spdx.json")))
    for name, version in sorted(packages.items()):
        identifier = "SPDXRef-deb-" + re.sub(r"[^A-Za-z0-9.]+", "-", name)
        sbom["packages"].append({
            "SPDXID": identifier, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
            "comment": f"the license is in /usr/share/doc/{name}/copyright of the image",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:deb/debian/{name}@{version}?arch={ARCHITECTURES[machine]}"}]})
        sbom["relationships"].append({"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": identifier})
        sbom["documentDescribes"].append(identifier)
    return json.dumps(sbom, indent=2).encode() + b"\n"


def mlxcel_layer(stage, sbom):
    tree = Tree()
    for name, path in walk(stage):
        if name.split("/")[0] in ("bin", "libexec", "lib") or name.startswith("share/mlxcel/"):
            tree.add_path("opt/mlxcel/" + name, path)
    tree.add("usr/bin/mlxcel", "../../opt/mlxcel/bin/mlxcel")
    for name in "LICENSE", "THIRD_PARTY_NOTICES.txt":
        tree.add("usr/share/doc/mlxcel/" + name, read(os.path.join(stage, name)))
    tree.add("usr/share/doc/mlxcel/sbom.spdx.json", sbom)
    return tree


def digest_of(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def dump(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class Layout:
    """An OCI image layout in a tar archive."""

    def __init__(self):
        self.tree = Tree()
        self.tree.add("oci-layout", dump({"imageLayoutVersion": "1.0.0"}))

    def add(self, kind, content):
        digest = digest_of(content)
        self.tree.add("blobs/sha256/" + digest[7:], content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": len(content)}


def image_config(arguments, machine, layers):
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(arguments.epoch))
    environment = ["PATH=/usr/bin", "HOME=/home/mlxcel", "MLXCEL_STATE=/home/mlxcel/.cache/state", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    return {"architecture": ARCHITECTURES[machine], "os": "linux", "created": created,
            "config": {"Entrypoint": ["/usr/bin/mlxcel"], "Cmd": ["--help"], "Env": environment, "User": f"{USER}:{USER}", "WorkingDir": "/models",
                       "Volumes": {"/home/mlxcel/.cache": {}},
                       "Labels": {"org.opencontainers.image.title": "mlxcel", "org.opencontainers.image.version": arguments.version,
                                  "org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.description": SUMMARY}},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]},
            "history": [{"created": created, "created_by": "mlxcel release/packages.py", "comment": comment} for comment in ("C library and certificates", "mlxcel")]}


def make_image(arguments):
    if not arguments.platform.startswith("linux-"):
        raise PackageError(f"there is no image for {arguments.platform}")
    machine, full = arguments.platform.split("-")[1], is_full(arguments.stage)
    base, packages = base_layer(machine, full)
    own = mlxcel_layer(arguments.stage, image_sbom(arguments.stage, packages, machine))
    layers = [tree.tar(arguments.epoch) for tree in (base, own)]
    layout = Layout()
    config = layout.add("config.v1+json", dump(image_config(arguments, machine, layers)))
    entries = [layout.add("layer.v1.tar+gzip", compress(layer)) for layer in layers]
    manifest = layout.add("manifest.v1+json", dump({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": entries}))
    manifest.update(platform={"architecture": ARCHITECTURES[machine], "os": "linux"}, annotations={"org.opencontainers.image.ref.name": arguments.version})
    layout.tree.add("index.json", dump({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}))
    paths = ["blobs/sha256/" + entry["digest"][7:] for entry in (config, *entries)]
    layout.tree.add("manifest.json", dump([{"Config": paths[0], "RepoTags": ["mlxcel:" + arguments.version], "Layers": paths[1:]}]))
    out = os.path.join(arguments.out, f"mlxcel-{arguments.version}-{arguments.platform}{'' if full else '-runtime'}.oci.tar")
    with open(out, "wb") as file:
        file.write(layout.tree.tar(arguments.epoch))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["wheel", "deb", "image"])
    parser.add_argument("--platform", required=True, choices=["linux-x86_64", "linux-aarch64", "windows-x86_64"])
    parser.add_argument("--version", required=True)
    parser.add_argument("--epoch", required=True, type=int)
    parser.add_argument("--out", required=True)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--library")
    parser.add_argument("--headers")
    arguments = parser.parse_args()
    if arguments.kind == "wheel" and not (arguments.library and arguments.headers):
        parser.error("a wheel needs --library and --headers")
    try:
        print({"wheel": make_wheel, "deb": make_deb, "image": make_image}[arguments.kind](arguments))
    except PackageError as error:
        print(f"release/packages.py: {error}", file=sys.stderr)
        sys.exit(77 if isinstance(error, Unavailable) else 1)


if __name__ == "__main__":
    main()
