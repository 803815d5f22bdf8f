"""The kill sweep and the error sweep: a preloaded library (shim.c) attacks the Nth system call of a command."""
import concurrent.futures, errno, os, shutil

from harness import Fault, Skip
from scenarios import Stage

SHORT_SCENARIOS = {"kill": ("compile", "pull_file", "sign_file", "trust_add"),
                   "error": ("run_warm", "pull_folder", "sign_folder", "show_gguf")}
KILL_GROUPS = ("create", "write", "meta", "sync", "lock")  # the calls that change files
# Group -> errors. "+": every call from the Nth on fails, as on a full disk.
ERRORS = {
    "open": ("EMFILE+", "EIO", "EACCES", "ENOMEM"),
    "descriptor": ("EMFILE", "EMFILE+", "ENOMEM"),
    "create": ("EMFILE+", "ENOSPC+", "EACCES", "EINTR"),
    "write": ("ENOSPC+", "EIO", "EINTR"),
    "read": ("EIO", "EINTR"),
    "meta": ("EIO", "ENOSPC+", "EACCES"),
    "sync": ("EIO", "ENOSPC", "EINTR"),
    "stat": ("EIO", "EACCES"),
    "lock": ("EINTR", "ENOLCK"),
    "map": ("ENOMEM", "ENOMEM+"),
    "memory": ("ENOMEM", "ENOMEM+"),
    "thread": ("EAGAIN", "EAGAIN+"),
    "process": ("EAGAIN", "EINTR"),
    "network": ("ECONNRESET", "EINTR"),
}


def check_possible(world):
    if world.sanitized:
        raise Skip("a sanitizer and a preloaded library exclude each other")
    if not os.path.isfile(world.shim):
        raise Skip("%s is not built: preloading needs Linux" % world.shim)


class Sweep:
    def __init__(self, world):
        check_possible(world)
        self.world, self.stage = world, Stage(world)

    def close(self):
        self.stage.close()

    def attacked(self, scenario, work, groups, number, act, on=False):
        """Runs the command with an attack on the Nth call. Returns the result and a line about that call, None if it was not reached."""
        log = work + ".call"
        variables = dict(self.stage.variables, LD_PRELOAD=self.world.shim, ATTACK_GROUPS=groups, ATTACK_AT=str(number), ATTACK_DO=act, ATTACK_LOG=log)
        if on:
            variables["ATTACK_ON"] = "1"
        result = self.world.run(self.stage.command(scenario), work, variables=variables)
        call = None
        if os.path.exists(log):
            with open(log, encoding="utf-8", errors="replace") as file:
                call = file.read().strip().replace(work + "/", "")
            os.unlink(log)
        return result, call

    def attack(self, point):
        words = point.split(":")
        scenario = self.stage.scenarios[words[1]]
        self.stage.reference(scenario)
        work = self.stage.fresh(scenario)
        call = []
        try:
            self.hit(scenario, work, words[2:], call)
        except Fault as fault:
            raise Fault("at %s: %s" % (call[0] if call else "no call", fault)) from None
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def chosen(self, part, short):
        """The scenarios of this run, each with its number of calls."""
        found = [scenario for scenario in self.stage.scenarios.values()
                 if (scenario.kill or part != "kill") and (not short or scenario.name in SHORT_SCENARIOS[part])]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            calls = list(pool.map(lambda scenario: self.stage.reference(scenario)[1], found))
        return list(zip(found, calls))


class KillSweep(Sweep):
    """Points are kill:SCENARIO:N:HOW."""

    def points(self, random, short):
        found = []
        for scenario, calls in self.chosen("kill", short):
            total = sum(calls[group] for group in KILL_GROUPS)
            found.append(["kill:%s:%d:%s" % (scenario.name, number, how) for number in range(1, total + 1) for how in ("kill", "after", "half")])
        return interleave(found, random)

    def hit(self, scenario, work, words, call):
        number, how = int(words[0]), words[1]
        result, name = self.attacked(scenario, work, ",".join(KILL_GROUPS), number, how)
        call.append(name)
        if result.status != -9 and name:
            raise Fault("the process survived its kill\n%s" % result)
        if result.status not in (-9, 0):
            raise Fault(str(result))
        scenario.still(self.stage, work)
        self.stage.finish(scenario, work)


class ErrorSweep(Sweep):
    """Points are error:SCENARIO:GROUP:N:ERROR."""

    def points(self, random, short):
        found = []
        for scenario, calls in self.chosen("error", short):
            for group, errors in ERRORS.items():
                found.append(["error:%s:%s:%d:%s" % (scenario.name, group, number, error)
                              for number in range(1, calls[group] + 1) for error in errors])
        return interleave(found, random)

    def hit(self, scenario, work, words, call):
        group, number, error = words[0], int(words[1]), words[2]
        on = error.endswith("+")
        result, name = self.attacked(scenario, work, group, number, str(getattr(errno, error.rstrip("+"))), on)
        call.append(name)
        self.world.check_ending(result, scenario.json)
        if scenario.json and not result.status and scenario.name.startswith("run"):
            self.world.expect_tokens(result)
        if group not in ("meta", "sync") and not on and result.status:
            left = [name for at, _, names in os.walk(work) for name in names if ".tmp." in name]
            if left:
                raise Fault("left over after an error: %s\n%s" % (left[:8], result))
        scenario.still(self.stage, work)
        # A file that stat fails for counts as missing, so another model may have been compiled and cached.
        self.stage.finish(scenario, work, cache=group != "stat")


def interleave(lists, random):
    """One list, in an order in which every prefix takes about as many points from each of |lists|."""
    for points in lists:
        random.shuffle(points)
    lists = [points for points in lists if points]
    random.shuffle(lists)
    found = []
    for at in range(max((len(points) for points in lists), default=0)):
        found.extend(points[at] for points in lists if at < len(points))
    return found
