"""What the four parts of the attack share: running mlxcel under limits, its documented exit statuses, and the report.

A part has a list of points. A point is one attack, named by a text without blanks that repeats it:
    python3 tests/attack/attack.py BUILD --repeat POINT
"""
import json, os, re, resource, shutil, signal, subprocess, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
FIXTURES = os.path.join(ROOT, "tests", "fixtures")
TINY = os.path.join(FIXTURES, "tiny-llama")
PROMPT = ["--raw", "-p", "the quick brown", "-n", "8", "--ignore-eos", "--temp", "0", "--json"]
EXPECTED = [142, 218, 177, 4, 129, 92, 159, 114]  # the tokens of tiny-llama for PROMPT
SECONDS = 120  # no command may take longer, not even on a loaded machine


def documented_statuses():
    """The exit statuses in the table of docs/errors.md."""
    with open(os.path.join(ROOT, "docs", "errors.md"), encoding="utf-8") as file:
        return {int(number) for number in re.findall(r"^\| (\d+) \|", file.read(), re.M)}


STATUSES = documented_statuses()


class Fault(Exception):
    """A promise that did not hold."""


class Skip(Exception):
    """A part that cannot run here."""


class Result:
    def __init__(self, arguments, status, out, err, seconds, peak_kib):
        self.arguments, self.status, self.out, self.err = arguments, status, out, err
        self.seconds, self.peak_kib = seconds, peak_kib

    def __str__(self):
        return "mlxcel %s: exit status %d\n%s" % (" ".join(self.arguments), self.status, self.err.decode(errors="replace")[-2000:])


class World:
    """Where a part works: the program, the preloaded library, a scratch folder, and the environment of every command."""

    def __init__(self, build):
        self.build = os.path.abspath(build)
        self.binary = os.path.join(self.build, "bin", "mlxcel")
        self.shim = os.path.join(self.build, "tests", "attack", "libattack_shim.so")
        self.folder = tempfile.mkdtemp(prefix="mlxcel-attack-")
        self.sanitized = b"__asan_init" in open(self.binary, "rb").read()
        self.lock = threading.Lock()
        self.tally = {}  # exit status of attacked commands -> how often

    def close(self):
        subprocess.run(["chmod", "-R", "u+rwx", self.folder], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def environment(self, work):
        """Nothing of the user's own settings; everything that a command writes is below |work|."""
        keep = {name: os.environ[name] for name in ("PATH", "LANG", "ASAN_OPTIONS", "UBSAN_OPTIONS") if name in os.environ}
        keep.update(HOME=work, MLXCEL_CACHE=os.path.join(work, "cache"), MLXCEL_CONFIG="/dev/null", MLXCEL_TRUSTED=os.path.join(work, "trusted"),
                    SOURCE_DATE_EPOCH="1700000000", MLXCEL_COMPILE_TIMEOUT="30", LC_ALL="C.UTF-8")
        return keep

    def run(self, arguments, work, variables=None, memory=None, cpu_seconds=None, seconds=SECONDS):
        """Runs mlxcel in the folder |work|. |memory| (bytes) and |cpu_seconds| become limits of the process."""
        environment = self.environment(work)
        environment.update(variables or {})

        def limit():
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if memory and not self.sanitized:  # sanitizers reserve terabytes of addresses
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            if cpu_seconds:
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))

        started = time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen([self.binary] + arguments, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       preexec_fn=limit)
            timer = threading.Timer(seconds, lambda: os.killpg(process.pid, signal.SIGKILL))
            timer.start()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = 0  # collected here
            late = not timer.is_alive()
            timer.cancel()
            code = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            result = Result(arguments, code, out.read(), err.read(), time.monotonic() - started, usage.ru_maxrss)
        if late:
            raise Fault("no end after %d s\n%s" % (seconds, result))
        return result

    def must(self, arguments, work, **options):
        """Runs mlxcel; it must succeed."""
        result = self.run(arguments, work, **options)
        if result.status:
            raise Fault(str(result))
        return result

    def check_ending(self, result, json_expected=False):
        """A documented exit status with a message; valid JSON. Status 1 is a bug in mlxcel, whatever the attack was."""
        with self.lock:
            self.tally[result.status] = self.tally.get(result.status, 0) + 1
        if result.status < 0:
            raise Fault("ended by signal %d\n%s" % (-result.status, result))
        if result.status not in STATUSES or result.status == 1:
            raise Fault("not a status for this\n%s" % result)
        if result.status and not re.search(rb"^mlxcel[ \w-]*: .", result.err, re.M):
            raise Fault("no error message\n%s" % result)
        if b"Sanitizer" in result.err or b"runtime error:" in result.err:
            raise Fault("sanitizer report\n%s" % result)
        if json_expected and (result.out or not result.status):
            check_json(result)

    def expect_tokens(self, result):
        if check_json(result)["output_ids"] != EXPECTED:
            raise Fault("wrong tokens\n%s\n%s" % (result, result.out.decode(errors="replace")))

    def make_compiler(self):
        """A fake iree-compile that returns tiny-llama's module, compiled once with the real one. Everything else is real."""
        real, script = self.path("real.vmfb"), self.path("iree-compile")
        cache = os.environ.get("MLXCEL_CACHE") or os.path.join(self.build, "test-cache")
        self.must(["compile", TINY, "--ctx", "64", "--emit", "vmfb", "-o", real], self.folder, seconds=900,
                  variables={"MLXCEL_CACHE": cache, "MLXCEL_COMPILE_TIMEOUT": "800"})
        with open(script, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n[ \"$1\" = --version ] && { echo 'IREE compiler version 3.13.0'; exit 0; }\n"
                       "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && out=$2; shift; done\nexec cat %s > \"$out\"\n" % real)
        os.chmod(script, 0o755)
        return script


def refuse_constant(word):
    raise ValueError("%s is not JSON" % word)


def check_json(result):
    try:
        return json.loads(result.out, parse_constant=refuse_constant)
    except ValueError as error:
        raise Fault("stdout is not valid JSON: %s\n%s\n%s" % (error, result, result.out.decode(errors="replace")[-500:])) from None


def files_below(folder, without=()):
    """The relative paths of all files and empty folders, except below the folders |without|."""
    found = set()
    for at, folders, names in os.walk(folder):
        here = os.path.relpath(at, folder)
        if here in without:
            folders.clear()
            continue
        found.update(os.path.normpath(os.path.join(here, name)) for name in names)
        if not folders and not names and at != folder:
            found.add(here + "/")
    return found


def same_bytes(one, other):
    """True if two files, or two folders with all their files, are equal."""
    if os.path.isdir(one) != os.path.isdir(other):
        return False
    if os.path.isdir(one):
        names = files_below(one)
        return names == files_below(other) and all(same_bytes(os.path.join(one, name), os.path.join(other, name)) for name in names if name[-1] != "/")
    with open(one, "rb") as first, open(other, "rb") as second:
        return first.read() == second.read()


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


class Report:
    """Counts points and prints every failure with the command that repeats it."""

    def __init__(self, build):
        self.build, self.failures, self.lock = build, [], threading.Lock()

    def attempt(self, point, attack):
        """Runs attack(point). Returns False if it found a fault."""
        try:
            attack(point)
            return True
        except Fault as fault:
            text = "%s\n  repeat: python3 tests/attack/attack.py %s --repeat '%s'" % (str(fault).rstrip(), self.build, point)
        with self.lock:
            self.failures.append(point)
            print("  FAILED %s: %s" % (point, text.replace("\n", "\n    ")), flush=True)
        return False
