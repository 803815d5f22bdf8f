"""Starts and stops `mlxcel serve` for tests in Python."""
import importlib
import re
import signal
import subprocess
import sys
import threading
import traceback


class Server:
    """A running server. |url| has no slash at its end."""

    def __init__(self, mlxcel, model, *flags):
        self.mlxcel, self.model = mlxcel, model
        self.process = subprocess.Popen([mlxcel, "serve", "-m", model, "--port", "0", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"listening on (http://[^ ]*)", line)
            if found:
                self.url = found[1].rstrip("/")
                # A reader, so that the server never waits for a full pipe.
                threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()
                return
        self.process.wait()
        raise RuntimeError("the server did not start:\n" + "".join(self.lines))

    def run(self, *arguments):
        """What `mlxcel run` prints for the same model, without its last newline."""
        done = subprocess.run([self.mlxcel, "run", "-m", self.model, "-q", *arguments], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        return done.stdout[:-1] if done.stdout.endswith("\n") else done.stdout

    def stop(self, number=signal.SIGTERM, seconds=60):
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def memory_bytes(process):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


def is_sanitized(process):
    """Whether the program was built with a sanitizer, whose own memory grows with the number of calls."""
    with open(f"/proc/{process.pid}/maps", encoding="utf-8") as file:
        return bool(re.search(r"/lib[at]san\.so", file.read()))


class Cases:
    """Test cases of one server. Each is a function of it, and may need packages: it is skipped if one is missing."""

    def __init__(self):
        self.cases = []

    def case(self, *packages):
        def add(function):
            self.cases.append((packages, function))
            return function
        return add

    def main(self, *flags):
        """SCRIPT MLXCEL MODEL [CASE...]; exit status: 0, 1 if a case failed, 77 if none ran. |flags| are more options of the server."""
        mlxcel, model, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
        passed = failed = skipped = 0
        with Server(mlxcel, model, *flags) as server:
            for packages, function in self.cases:
                if wanted and function.__name__ not in wanted:
                    continue
                print(function.__name__, flush=True)
                try:
                    for package in packages:
                        importlib.import_module(package)
                except ImportError as error:
                    print(f"  skipped: {error}")
                    skipped += 1
                    continue
                try:
                    function(server)
                    passed += 1
                except Exception:
                    print("  " + traceback.format_exc().replace("\n", "\n  ") + "FAILED")
                    failed += 1
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
        sys.exit(1 if failed else 77 if not passed else 0)
