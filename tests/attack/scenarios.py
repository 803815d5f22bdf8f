"""The commands that the kill sweep and the error sweep attack.

Each scenario has a state before the command, the command, and two checks: what must hold right after a kill or an error, and what
must hold after the same command ran again. The files after that second run must be those of a run without an attack.
"""
import os, re, shutil, subprocess, sys, threading

from harness import FIXTURES, PROMPT, ROOT, TINY, Fault, Skip, check_json, files_below, same_bytes

TEXT = "the quick brown fox jumps over the lazy dog. " * 20
# What a scenario starts from -> how it is made: commands, and the names of other such files.
RECIPES = {
    "one.mlxb": [["compile", TINY, "-c", "64", "-o", "one.mlxb"]],
    "file.mlxb": ["alice.key", ["compile", TINY, "-c", "64", "-o", "file.mlxb", "--single-file"], ["sign", "-s", "alice.key", "-t", "first", "file.mlxb"]],
    "alice.key": [["keygen", "-W", "-o", "alice"]],
    "alice.pub": ["alice.key"],
    "store": ["one.mlxb", ["push", "one.mlxb", "oci-layout:store:one"]],
    "cache": [["run", "-m", TINY, "-c", "64"] + PROMPT],
}


def names_below(work):
    """The files that must be the same after every run: not compilation logs, known digests and empty folders of the cache."""
    return {name for name in files_below(work, ("cache/logs",))
            if not re.search(r"^cache/(digests/[0-9a-f]{64}\.json|.*/)?$", name)}


class Scenario:
    def __init__(self, name, command, before=(), still=None, after=None, again=None, output=None, served=None, json=False, kill=True):
        self.name, self.command, self.before = name, command, before
        self.again = again or command  # the command of the next run
        self.still = still or (lambda stage, work: None)  # checks right after the attack
        self.after = after or (lambda stage, work: None)  # checks after the next run
        self.output = output  # of a pull, which refuses to replace it
        self.served = served  # what the server must have
        self.json, self.kill = json, kill


class Stage:
    """Prepared files, a local server, and a fresh working folder for every attack."""

    def __init__(self, world):
        self.world, self.number = world, 0
        self.variables = {"MLXCEL_IREE_COMPILE": world.make_compiler()}
        self.making = threading.RLock()
        self.site = world.path("site")
        os.makedirs(os.path.join(self.site, "acme"))
        self.server = subprocess.Popen([sys.executable, os.path.join(ROOT, "tests", "support", "hub_server.py"), self.site],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        port = self.server.stdout.readline()
        if not port:
            raise Skip("tests/support/hub_server.py did not start")
        self.url = "http://127.0.0.1:%d" % int(port)
        self.scenarios = {scenario.name: scenario for scenario in scenarios()}
        self.references = {}

    def close(self):
        self.server.stdin.close()
        self.server.wait()

    def prepared(self, name):
        """The path of a file or folder that scenarios start from; made on first use."""
        before = self.world.path("before")
        path = os.path.join(before, name)
        with self.making:
            if not os.path.exists(path):
                os.makedirs(before, exist_ok=True)
                for step in RECIPES[name]:
                    if isinstance(step, str):
                        self.prepared(step)
                    else:
                        self.run(step, before)
            return path

    def serve(self, name):
        """Puts a prepared file on the server, and returns its path there."""
        target = os.path.join(self.site, "acme", name)
        with self.making:
            if not os.path.exists(target):
                copy(TINY if name == "tiny" else self.prepared(name), target)
        return target

    def run(self, arguments, work, **options):
        result = self.world.run(arguments, work, variables=self.variables, **options)
        if result.status:
            raise Fault(str(result))
        return result

    def tokens(self, model, work, *options):
        result = self.run(["run", "-m", model, "-c", "64"] + PROMPT + list(options), work)
        self.world.expect_tokens(result)

    def fresh(self, scenario):
        """A working folder in the state before the command."""
        with self.world.lock:
            self.number += 1
            work = self.world.path("work-%d" % self.number)
        os.makedirs(work)
        if scenario.served:
            self.serve(scenario.served)
        for name in scenario.before:
            if name == "text.txt":
                with open(os.path.join(work, name), "w", encoding="utf-8") as file:
                    file.write(TEXT)
                continue
            copy(self.prepared(name), os.path.join(work, name))
        return work

    def command(self, scenario):
        return [word.replace("{url}", self.url) for word in scenario.command]

    def reference(self, scenario):
        """The files after a run without an attack, and how often it makes the calls of each group."""
        if scenario.name not in self.references:
            work = self.fresh(scenario)
            counts = work + ".counts"
            result = self.world.must(self.command(scenario), work, variables=dict(self.variables, LD_PRELOAD=self.world.shim, ATTACK_COUNTS=counts))
            if scenario.json:
                check_json(result)
            with open(counts, encoding="utf-8") as file:
                calls = {name: int(number) for name, number in (line.split() for line in file)}
            scenario.after(self, work)
            os.unlink(counts)
            self.references[scenario.name] = names_below(work), calls, work
        return self.references[scenario.name]

    def finish(self, scenario, work, cache=True):
        """Runs the command again and compares the files, also those of the cache if |cache| is set, with the reference."""
        names, _, reference = self.reference(scenario)
        output = scenario.output and os.path.join(work, scenario.output)
        complete = output and os.path.exists(output)
        if complete and not same_bytes(output, os.path.join(reference, scenario.output)):
            raise Fault("%s exists but is not complete" % scenario.output)
        result = self.world.run([word.replace("{url}", self.url) for word in scenario.again], work, variables=self.variables)
        if result.status != (2 if complete else 0):  # 2: a pull does not replace a model
            raise Fault("the next run: %s" % result)
        scenario.after(self, work)
        left = names_below(work)
        if not cache:
            names, left = ({name for name in some if not name.startswith("cache/")} for some in (names, left))
        if left != names:
            raise Fault("after the next run: left over: %s; missing: %s" % (sorted(left - names)[:8], sorted(names - left)[:8]))


def copy(source, target):
    if os.path.isdir(source):
        shutil.copytree(source, target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(source, target)


def scenarios():
    def works(name):  # a bundle that exists gives the expected tokens
        return lambda stage, work: os.path.exists(os.path.join(work, name)) and stage.tokens(name, work, "--allow-unsigned")

    def verified(name, *statuses):
        def check(stage, work):
            result = stage.world.run(["verify", "-p", "alice.pub", name], work, variables=stage.variables)
            if result.status not in statuses:
                raise Fault(str(result))
            if name.endswith(".mlxb"):
                stage.tokens(name, work, "--allow-unsigned")
        return check

    def trusted(stage, work):
        stage.run(["trust", "list"], work)

    def keys_work(stage, work):
        stage.run(["sign", "-s", "bob.key", "text.txt", "-x", "text.sig"], work)
        stage.run(["verify", "-p", "bob.pub", "text.txt", "-x", "text.sig"], work)

    def same_as(name, source):
        def check(stage, work):
            if not same_bytes(os.path.join(work, name), stage.prepared(source)):
                raise Fault("%s is not what was served" % name)
        return check

    return [
        Scenario("compile", ["compile", TINY, "-c", "64", "-o", "out.mlxb"], still=works("out.mlxb"), after=works("out.mlxb")),
        Scenario("compile_over", ["compile", TINY, "-c", "64", "--single-file", "-o", "file.mlxb"], ["file.mlxb"], verified_or_whole, works("file.mlxb")),
        Scenario("run_cold", ["run", "-m", TINY, "-c", "64"] + PROMPT, json=True),
        Scenario("pull_folder", ["pull", "{url}/plain/acme/one.mlxb", "-o", "got.mlxb"], output="got.mlxb", served="one.mlxb",
                 after=same_as("got.mlxb", "one.mlxb")),
        Scenario("pull_file", ["pull", "{url}/plain/acme/file.mlxb", "-o", "got.mlxb"], output="got.mlxb", served="file.mlxb",
                 after=same_as("got.mlxb", "file.mlxb")),
        Scenario("pull_hub", ["pull", "hf:acme/tiny", "--endpoint", "{url}"], served="tiny"),
        Scenario("sign_folder", ["sign", "-s", "alice.key", "one.mlxb"], ["alice.key", "alice.pub", "one.mlxb"],
                 verified("one.mlxb", 0, 5), verified("one.mlxb", 0)),
        Scenario("sign_file", ["sign", "-s", "alice.key", "-t", "second", "file.mlxb"], ["alice.key", "alice.pub", "file.mlxb"],
                 verified("file.mlxb", 0), verified("file.mlxb", 0)),
        Scenario("sign_plain", ["sign", "-s", "alice.key", "text.txt"], ["alice.key", "alice.pub", "text.txt"],
                 verified("text.txt", 0, 5), verified("text.txt", 0)),
        Scenario("trust_add", ["trust", "add", "alice.pub"], ["alice.pub"], trusted, trusted),
        Scenario("keygen", ["keygen", "-W", "-o", "bob"], ["text.txt"], after=keys_work, again=["keygen", "-W", "-f", "-o", "bob"]),
        Scenario("push_layout", ["push", "one.mlxb", "oci-layout:store:two"], ["one.mlxb", "store"]),
        Scenario("pull_layout", ["pull", "oci-layout:store:one", "-o", "got.mlxb"], ["store"], output="got.mlxb",
                 after=same_as("got.mlxb", "one.mlxb")),
        Scenario("cache_clear", ["cache", "clear"], ["cache"]),
        Scenario("stablehlo", ["compile", TINY, "--emit", "stablehlo", "-o", "out.mlir"]),
        Scenario("save_logprobs", ["eval", "-m", TINY, "-f", "text.txt", "-c", "64", "--save-logprobs", "out.ref"], ["text.txt", "cache"]),
        # These write nothing that could be half-written; only the error sweep runs them.
        Scenario("run_warm", ["run", "-m", TINY, "-c", "64"] + PROMPT, ["cache"], json=True, kill=False),
        Scenario("run_bundle", ["run", "-m", "file.mlxb", "--allow-unsigned"] + PROMPT, ["file.mlxb", "cache"], json=True, kill=False),
        Scenario("eval", ["eval", "-m", TINY, "-f", "text.txt", "-c", "64", "--json"], ["text.txt", "cache"], json=True, kill=False),
        Scenario("show_folder", ["show", TINY, "--json"], json=True, kill=False),
        Scenario("show_gguf", ["show", os.path.join(FIXTURES, "tiny-llama.gguf"), "--json"], json=True, kill=False),
        Scenario("list", ["list", "--json"], ["cache"], json=True, kill=False),
        Scenario("tokenize", ["tokenize", "-m", TINY, "-p", "the quick brown fox", "--json"], json=True, kill=False),
        Scenario("verify", ["verify", "-p", "alice.pub", "file.mlxb"], ["alice.pub", "file.mlxb"], kill=False),
    ]


def verified_or_whole(stage, work):
    """A bundle that is being replaced is the old or the new one, never neither."""
    stage.tokens("file.mlxb", work, "--allow-unsigned")
