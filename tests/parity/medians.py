#!/usr/bin/env python3
"""Prints medians and ratios of runs of bench/compare, as one table.

  medians.py FOLDER...
  medians.py --run OUT COMMAND...     runs COMMAND; its stdout goes to OUT, its peak memory in bytes to OUT.peak

Each folder is one model: FOLDER/ours.N and FOLDER/peer.N hold what `mlxcel bench -o json` and `llama-bench -o json` printed, FOLDER/title its
title. Peak memory is the largest resident size of the process (VmHWM), mapped weights included.
"""
import collections
import json
import pathlib
import resource
import statistics
import subprocess
import sys


def run(out, command):
    with open(out, "wb") as file:
        status = subprocess.run(command, stdout=file, stdin=subprocess.DEVNULL).returncode
    pathlib.Path(out + ".peak").write_text(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024))
    sys.exit(status)


def read(folder, who):
    """Speeds by test, and the largest peak memory in bytes (0 if it was not measured)."""
    speeds, peak = collections.defaultdict(list), 0
    for path in sorted(pathlib.Path(folder).glob(f"{who}.*[0-9]")):
        for row in json.loads(path.read_text()):
            speeds["prefill" if row["n_prompt"] else "decode"].append(row["avg_ts"])
        measured = path.with_name(path.name + ".peak")
        peak = max(peak, int(measured.read_text()) if measured.exists() else 0)
    return speeds, peak


def main():
    if sys.argv[1] == "--run":
        run(sys.argv[2], sys.argv[3:])
    print("| model | test | ours, tok/s | peer, tok/s | ratio | peak memory: ours, peer, MiB | all of ours | all of the peer's |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for folder in sys.argv[1:]:
        (ours, our_peak), (peer, peer_peak) = read(folder, "ours"), read(folder, "peer")
        title = pathlib.Path(folder, "title")
        title = title.read_text().strip() if title.exists() else ""
        for test in ("decode", "prefill"):
            mine, theirs = statistics.median(ours[test]), statistics.median(peer[test])
            shown = [" ".join(f"{value:.1f}" for value in who[test]) for who in (ours, peer)]
            print(f"| {title} | {test} | {mine:.1f} | {theirs:.1f} | {mine / theirs:.2f}x | {our_peak >> 20}, {peer_peak >> 20} | {shown[0]} | {shown[1]} |")


if __name__ == "__main__":
    main()
