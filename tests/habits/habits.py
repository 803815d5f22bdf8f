"""Runs the commands of commands.txt, and the commands of README's first screen, with a small model.

Each command must end with the expected exit status and print the expected text. A command that is refused must say in one hint line
what to type instead. Run: python3 tests/habits/habits.py BUILD MODELS [PART]   (PART: only commands that contain it)
"""
import concurrent.futures
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
LEAST = 40  # commands
# Bash functions that replace the name of a program, and nothing else.
PROGRAMS = {
    "llama-cli": "", "llama-bench": "bench", "llama-perplexity": "eval", "llama-server": "serve", "llama-tokenize": "tokenize", "ollama": "",
    "mlx_lm.generate": "generate", "mlx_lm.chat": "chat", "mlx_lm.server": "server", "mlx_lm.convert": "convert", "mlxcel": "",
}


def functions(mlxcel):
    return "".join('%s() { "%s" %s "$@"; }\n' % (name, mlxcel, verb) for name, verb in PROGRAMS.items())


def read_commands(path):
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or line.startswith("#"):
                continue
            status, expected, command = [part.strip() for part in line.split("|", 2)]
            stream, text = expected.split(":", 1)
            if stream not in ("out", "err"):
                sys.exit("%s:%d: expected out: or err:" % (path, number))
            rows.append((number, int(status), stream, text, command))
    return rows


def make_folder(folder):
    with open(os.path.join(folder, "prompt.txt"), "w", encoding="utf-8") as file:
        file.write("The quick brown fox jumps over the lazy dog.\n")
    with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as file:
        file.write("the quick brown fox jumps over the lazy dog. " * 40)
    with open(os.path.join(folder, "person.json"), "w", encoding="utf-8") as file:
        file.write('{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}\n')


def environment(models):
    more = {"M": os.path.join(models, MODEL), "BASE": os.path.join(ROOT, "tests", "fixtures", "tiny-llama"), "MLXCEL_RUN_TEMP": "0", "MLXCEL_RUN_N_PREDICT": "6",
            "MLXCEL_THREADS": "1",
            "MLXCEL_CONFIG": "/dev/null", "HF_ENDPOINT": "http://127.0.0.1:9"}
    return {**{name: value for name, value in os.environ.items() if not name.startswith("MLXCEL_") or name == "MLXCEL_CACHE"}, **more}


def fault_of(row, done):
    """Why the answer is not the expected one; None if it is."""
    _, status, stream, text, _ = row
    printed = done.stdout if stream == "out" else done.stderr
    if done.returncode != status:
        return "exit status %d, expected %d" % (done.returncode, status)
    if text not in printed or not printed.strip():
        return "std%s does not contain %r" % (stream, text)
    if status == 2:
        lines = done.stderr.splitlines()
        if len(lines) != 2 or not lines[1].startswith("hint: ") or done.stdout:
            return "a refused command must print its error and one hint"
    return None


def run_commands(mlxcel, models, part):
    rows = read_commands(os.path.join(HERE, "commands.txt"))
    if len(rows) < LEAST:
        sys.exit("commands.txt has only %d commands" % len(rows))
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        make_folder(folder)

        def run(row):
            return row, subprocess.run(["bash", "-c", functions(mlxcel) + row[4]], cwd=folder, env=environment(models), stdin=subprocess.DEVNULL,
                                       capture_output=True, encoding="utf-8", errors="replace", timeout=120)

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(run, [row for row in rows if part in row[4]]))
        for row, done in results:
            fault = fault_of(row, done)
            if fault:
                faults += 1
                print("commands.txt:%d: %s\n  %s\n  stdout: %s\n  stderr: %s" % (row[0], row[4], fault, done.stdout[:500], done.stderr[:800]))
    print("%d commands, %d faults" % (len(rows), faults))
    return faults


def check_table(mlxcel):
    """Every foreign option in cli/foreign.c is understood by run: its own option exists."""
    with open(os.path.join(ROOT, "cli", "foreign.c"), encoding="utf-8") as file:
        table = re.search(r"static const mlx_foreign_t rows\[\] = \{(.*?)\n\};", file.read(), re.S).group(1)
    names = [name for group in re.findall(r'(?:[A-Z_]+\(|\.names = )"(-[^"]+)"', table) for name in group.split(", ")]
    faults = 0
    for name in names:
        done = subprocess.run([mlxcel, "run", "-p", "x", name, "1", "/nowhere/model"], capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL,
                              env={**os.environ, "MLXCEL_CONFIG": "/dev/null"}, timeout=60)
        if not done.returncode or "unknown option" in done.stderr or "internal" in done.stderr.lower():
            faults += 1
            print("cli/foreign.c: %s: %s" % (name, done.stderr))
    print("%d foreign options, %d faults" % (len(names), faults))
    return faults + (len(names) < 100)


def first_block(text):
    """The first block of commands of the README."""
    found = re.search(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    return found.group(1) if found else ""


def run_at_terminal(script, folder, variables):
    """Runs a script at a terminal, where a chat gets one message and then Ctrl-D. Returns exit status and output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "-e", "-c", script], {**variables, "TERM": "xterm"})
    shown, steps, end = "", [(">>> ", "Hello\r"), ("the limit of -n", "\x04")], time.monotonic() + 60
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            shown += os.read(terminal, 65536).decode("utf-8", "replace")
        except OSError:  # the script ended
            break
        if steps and steps[0][0] in shown:
            os.write(terminal, steps.pop(0)[1].encode())
    else:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


def run_readme(build, models):
    """Runs README's first commands as they are, in a folder that looks like the tree. `./build.sh demo` was this build."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        lines = first_block(file.read()).splitlines()
    if not lines or not lines[0].startswith("./build.sh demo") or not any("-j @person.json" in line for line in lines):
        print("README.md: the first block must begin with ./build.sh demo and use person.json")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "build"))
        os.symlink(os.path.join(build, "bin"), os.path.join(folder, "build", "bin"))
        os.symlink(models, os.path.join(folder, "build", "models"))
        variables = {**environment(models), "XDG_STATE_HOME": folder}
        status, shown = run_at_terminal("\n".join(lines[1:]), folder, variables)
    commands = sum("bin/mlxcel " in line for line in lines)
    answers = len(re.findall(r"(?:length|stop): load", shown))
    if status or answers != commands - 1 or '"name"' not in shown or "chat with" not in shown:
        print("README.md: exit status %d, %d answers of %d commands\n%s" % (status, answers, commands, shown))
        return 1
    print("README.md: %d commands run as they are" % commands)
    return 0


def main():
    build, models = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    part = sys.argv[3] if len(sys.argv) > 3 else ""
    if not os.path.exists(os.path.join(models, MODEL)) or not shutil.which("bash"):
        print("skipped: needs %s and bash" % MODEL)
        sys.exit(77)
    faults = run_commands(os.path.join(build, "bin", "mlxcel"), models, part)
    if not part:
        faults += check_table(os.path.join(build, "bin", "mlxcel")) + run_readme(build, models)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
