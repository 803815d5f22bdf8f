#!/usr/bin/env python3
"""Tests of the release scripts (packing, SBOM, notices, version) that need no built package.

    tests/release/release_test.py DEPS

DEPS is build/deps, which contains the licences of the pinned sources.
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPS = os.path.abspath(sys.argv.pop(1))
EPOCH = "1790000000"


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **options)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def make_package(folder, umask):
    """Creates the same files with an order, times and permissions that depend on |umask|."""
    names = ["bin/mlxcel", "LICENSE", "share/man/man1/mlxcel.1", "b", "a"]
    before = os.umask(umask)
    for name in names if umask == 0o022 else reversed(names):
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(name * 100)
        os.utime(path, (umask, umask * 1000))
    os.chmod(os.path.join(folder, "bin/mlxcel"), 0o777 & ~umask)
    os.symlink("mlxcel", os.path.join(folder, "bin/mlxcel-run"))
    os.umask(before)


class Packing(unittest.TestCase):
    def pack_twice(self, suffix):
        sums = []
        with tempfile.TemporaryDirectory() as temporary:
            for umask in 0o022, 0o077:
                folder = os.path.join(temporary, str(umask), "mlxcel-package")
                os.makedirs(folder)
                make_package(folder, umask)
                out = os.path.join(temporary, f"{umask}{suffix}")
                done = run("release/pack.sh", folder, out, EPOCH)
                self.assertEqual(done.returncode, 0, done.stderr)
                sums.append(sha256(out))
            left = sorted(os.listdir(temporary))
        self.assertEqual(len(left), 4, left)  # two folders and two archives, no temporary files
        return sums

    def test_tar_is_reproducible(self):
        first, second = self.pack_twice(".tar.gz")
        self.assertEqual(first, second)

    @unittest.skipUnless(shutil.which("zip"), "zip is not installed")
    def test_zip_is_reproducible(self):
        first, second = self.pack_twice(".zip")
        self.assertEqual(first, second)

    def test_unknown_archive_type_is_refused(self):
        done = run("release/pack.sh", ROOT + "/release", "/tmp/nothing.rar", EPOCH)
        self.assertEqual(done.returncode, 2)
        self.assertIn("expected .tar.gz or .zip", done.stderr)


class Sbom(unittest.TestCase):
    def make(self, platform, form):
        with tempfile.TemporaryDirectory() as wheels:
            for name in "iree_base_compiler-3.13.0-cp311", "nvidia_cuda_nvrtc-13.0.88-py3":
                with open(os.path.join(wheels, name + "-any.whl"), "w") as file:
                    file.write(name)
            done = run("release/sbom.sh", "mlxcel-" + platform, platform, form, "1.2.3", EPOCH, "LICENSE", wheels)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def check_document(self, sbom):
        self.assertEqual(sbom["spdxVersion"], "SPDX-2.3")
        self.assertEqual(sbom["dataLicense"], "CC0-1.0")
        self.assertEqual(sbom["SPDXID"], "SPDXRef-DOCUMENT")
        self.assertRegex(sbom["documentNamespace"], r"^urn:mlxcel:sbom:.*:[0-9a-f]{64}$")
        self.assertNotIn("#", sbom["documentNamespace"])
        self.assertRegex(sbom["creationInfo"]["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertRegex(sbom["creationInfo"]["creators"][0], r"^(Tool|Organization|Person): ")

    def check_packages(self, sbom):
        identifiers = [package["SPDXID"] for package in sbom["packages"]]
        self.assertEqual(len(identifiers), len(set(identifiers)))
        extracted = {info["licenseId"] for info in sbom["hasExtractedLicensingInfos"]}
        for package in sbom["packages"]:
            self.assertRegex(package["SPDXID"], r"^SPDXRef-[A-Za-z0-9.-]+$")
            for field in "name", "versionInfo", "downloadLocation", "licenseConcluded", "licenseDeclared", "copyrightText":
                self.assertTrue(package[field], (package["SPDXID"], field))
            for reference in re.findall(r"LicenseRef-[A-Za-z0-9.-]+", package["licenseConcluded"]):
                self.assertIn(reference, extracted)
            if package["name"] != "mlxcel":
                (checksum,) = package["checksums"]
                self.assertEqual(checksum["algorithm"], "SHA256")
                self.assertRegex(checksum["checksumValue"], r"^[0-9a-f]{64}$")
                self.assertRegex(package["externalRefs"][0]["referenceLocator"], r"^pkg:(cargo|pypi|npm)/(%40[a-z]+/)?[a-z0-9_-]+@[^+]+$")
        ends = {relation["relatedSpdxElement"] for relation in sbom["relationships"]}
        self.assertEqual(ends, set(identifiers))  # every package has a relationship, and no other element is referenced
        for relation in sbom["relationships"]:
            self.assertIn(relation["relationshipType"], {"DESCRIBES", "STATIC_LINK", "CONTAINS"})

    def test_every_platform_and_form_gives_a_valid_document(self):
        names = {}
        for platform in "linux-x86_64", "linux-aarch64", "windows-x86_64":
            for form in "runtime", "full":
                sbom = self.make(platform, form)
                self.check_document(sbom)
                self.check_packages(sbom)
                names[platform, form] = {package["name"] for package in sbom["packages"]}
        self.assertIn("Mbed TLS", names["linux-aarch64", "runtime"])
        self.assertIn("mingw-w64 runtime", names["windows-x86_64", "full"])
        self.assertNotIn("mingw-w64 runtime", names["linux-x86_64", "full"])
        self.assertNotIn("NVRTC", names["linux-x86_64", "runtime"])
        self.assertIn("NVRTC", names["linux-x86_64", "full"])

    def test_checksums_match_the_pins(self):
        pins = {}
        for name in "crates.txt", "npm.txt":
            with open(os.path.join(ROOT, "third_party", name)) as file:
                pins.update((line.split()[0], line.split()[2]) for line in file if not line.startswith("#"))
        found = {package["name"]: package["checksums"][0]["checksumValue"] for package in self.make("linux-x86_64", "runtime")["packages"]
                 if package["name"] != "mlxcel"}
        self.assertEqual(found["IREE"], pins["eerie-sys"])
        with open(os.path.join(ROOT, "third_party/python.txt")) as file:
            python_pins = file.read()
        self.assertIn(found.pop("zig compiler-rt"), python_pins)
        self.assertIn(found.pop("llhttp"), python_pins)
        self.assertEqual(set(found.values()), set(pins.values()))  # exactly the pinned crates and npm packages

    def test_full_package_without_wheels_is_refused(self):
        done = run("release/sbom.sh", "mlxcel", "linux-x86_64", "full", "1.2.3", EPOCH, "LICENSE", "/nowhere")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("has no wheel of iree-base-compiler", done.stderr)


class Notices(unittest.TestCase):
    def test_notices_contain_every_licence(self):
        done = run("release/notices.sh", "linux-x86_64", "runtime", DEPS)
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in "LLVM Exceptions to the Apache 2.0 License", "Copyright (c) 2020 YaoYuan", "Frank Denis", "Daniel Stenberg", "K.Kosako", "GPL-2.0-or-later":
            self.assertIn(part, done.stdout)

    def test_missing_licence_is_an_error_that_names_it(self):
        done = run("release/notices.sh", "linux-x86_64", "runtime", "/nowhere")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the license file of IREE, /nowhere/crates/eerie-sys/iree/LICENSE, is missing", done.stderr)


class Sizes(unittest.TestCase):
    def test_table_of_sizes_is_written_without_versions(self):
        with tempfile.TemporaryDirectory() as release:
            names = ["mlxcel-0.2.0.dev0+trial.1-py3-none-win_amd64.whl", "mlxcel_0.2.0~trial.1_amd64.deb", "mlxcel-0.2.0-trial.1-linux-x86_64.oci.tar"]
            for name in names:
                with open(os.path.join(release, name), "wb") as file:
                    file.write(bytes(1572864))
            with open(os.path.join(release, "SHA256SUMS"), "w") as file:
                file.writelines(f"{'0' * 64}  {name}\n" for name in names)
            with open(os.path.join(release, "VERSION"), "w") as file:
                file.write("0.2.0-trial.1\n")
            page = os.path.join(release, "page.md")
            shutil.copy(os.path.join(ROOT, "docs", "packages.md"), page)
            done = run("release/sizes.py", release, page)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(page) as file:
                text = file.read()
        for name in "mlxcel-VERSION-py3-none-win_amd64.whl", "mlxcel_VERSION_amd64.deb", "mlxcel-VERSION-linux-x86_64.oci.tar":
            self.assertIn(f"| `{name}` | 1.50 |\n", text)
        self.assertIn("## Containers", text)


class Version(unittest.TestCase):
    """Runs choose_version in a new git repository with build.sh and the release scripts."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copy(os.path.join(ROOT, "build.sh"), self.folder)
        shutil.copytree(os.path.join(ROOT, "release"), os.path.join(self.folder, "release"))
        with open(os.path.join(self.folder, ".gitignore"), "w") as file:
            file.write("/build/\n")
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-qm", "first")

    def git(self, *arguments):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false", *arguments], cwd=self.folder, check=True)

    def choose(self, given=""):
        script = f'build=$PWD/build; die() {{ echo "$1" >&2; exit 1; }}; need() {{ :; }}; . release/release.sh; choose_version {given}; echo "$version $epoch"'
        return subprocess.run(["bash", "-euc", script], cwd=self.folder, capture_output=True, text=True, env={**os.environ, "SOURCE_DATE_EPOCH": "7"})

    def refused(self, given, part):
        done = self.choose(given)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn(part, done.stderr)

    def test_release_needs_its_tag_and_a_clean_tree(self):
        self.refused("", "HEAD has no tag vX.Y.Z")
        self.refused("1.2.3", "HEAD is not v1.2.3 but untagged")
        self.git("tag", "v1.2.3")
        self.assertEqual(self.choose().stdout, "1.2.3 7\n")
        self.assertEqual(self.choose("1.2.3").stdout, "1.2.3 7\n")
        self.refused("1.2.4", "HEAD is not v1.2.4 but v1.2.3")
        with open(os.path.join(self.folder, "build.sh"), "a") as file:
            file.write("# changed\n")
        self.refused("", "the tree is not clean")

    def test_trial_release_needs_a_version_suffix(self):
        done = self.choose("1.2.3-trial")
        self.assertEqual(done.stdout, "1.2.3-trial 7\n")
        self.assertIn("a trial", done.stderr)
        for wrong in "1.2", "v1.2.3-x", "1.2.3-", "'1.2.3-a b'":
            self.refused(wrong, "is not a version")


unittest.main()
