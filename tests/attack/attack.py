#!/usr/bin/env python3
"""Attacks mlxcel: kills and system errors at every call, hostile HTTP servers, damaged files (docs/internals/testing.md).

    attack.py BUILD --minutes MINUTES [--parts A,B]  random points until the time is over; the seed is printed
    attack.py BUILD --short [--parts A,B]          a few points with a fixed seed, for ./build.sh test
    attack.py BUILD --repeat POINT                 one point again
    --seed N                                       another seed

BUILD is the build folder. Parts: kill, error, http, mutate. Exit status: 0 no failure, 1 failures, 77 all parts skipped.
"""
import argparse, concurrent.futures, os, random, sys, time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Fault, Report, Skip, World  # noqa: E402


def part_class(name):
    if name in ("kill", "error"):
        import sweeps
        return sweeps.KillSweep if name == "kill" else sweeps.ErrorSweep
    if name == "http":
        import hostile
        return hostile.HostileServer
    import mutate
    return mutate.Mutants


PARTS = ("kill", "error", "http", "mutate")
SHORT_SEED = 20261116
SHORT_POINTS = {"kill": 20, "error": 50, "http": 24, "mutate": 80}
WORKERS = {"kill": 2, "error": 2, "http": 12, "mutate": 2}  # a hostile server mostly waits


def run_part(name, options, report, end):
    """Attacks until |end| (monotonic seconds). Returns (points that ran, points that exist or None)."""
    world = World(options.build)
    part = None
    try:
        part = part_class(name)(world)
        if options.repeat:
            report.attempt(options.repeat, part.attack)
            return 1, 1
        points = part.points(random.Random("%s:%s" % (name, options.seed)), options.short)
        limit = SHORT_POINTS[name] if options.short else None
        total = len(points) if isinstance(points, list) else None
        ran = 0
        with concurrent.futures.ThreadPoolExecutor(WORKERS[name]) as pool:
            running = set()
            for point in points:
                if (limit and ran >= limit) or (end and time.monotonic() >= end):
                    break
                running.add(pool.submit(report.attempt, point, part.attack))
                ran += 1
                if len(running) >= WORKERS[name]:
                    done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                    for future in done:
                        future.result()
            for future in running:
                future.result()
        if world.tally:
            print("  exit statuses: %s" % ", ".join("%d x %d" % (count, status) for status, count in sorted(world.tally.items())), flush=True)
        return ran, total
    finally:
        if part:
            part.close()
        world.close()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--repeat")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    if not (options.minutes or options.short or options.repeat):
        parser.error("needs --minutes, --short or --repeat")
    options.parts = options.parts.split(",")
    if set(options.parts) - set(PARTS):
        parser.error("parts are %s" % ", ".join(PARTS))
    if options.seed is None:
        options.seed = SHORT_SEED if options.short else random.SystemRandom().randrange(1 << 32)
    parts = [options.repeat.split(":")[0]] if options.repeat else options.parts
    print("seed %d" % options.seed, flush=True)
    report = Report(options.build)
    passed = failed = skipped = 0
    stop = options.minutes and time.monotonic() + options.minutes * 60
    for at, name in enumerate(parts):
        print("attack_%s" % name, flush=True)
        before, started = len(report.failures), time.monotonic()
        end = stop and started + (stop - started) / (len(parts) - at)  # time that a part leaves goes to the next ones
        try:
            ran, total = run_part(name, options, report, end)
        except Skip as reason:
            print("  skipped: %s" % reason, flush=True)
            skipped += 1
            continue
        except Fault as fault:
            print("  FAILED before the first attack: %s" % fault, flush=True)
            failed += 1
            continue
        found = len(report.failures) - before
        print("  %d attacks%s, %d failures, %d s" % (ran, " of %d" % total if total else "", found, time.monotonic() - started), flush=True)
        failed, passed = failed + (found > 0), passed + (found == 0)
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return 1 if failed else 77 if not passed else 0


if __name__ == "__main__":
    sys.exit(main())
