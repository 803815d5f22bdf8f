#!/usr/bin/env python3
"""Prints medians and ratios of runs of bench/compare, as one table.

  medians.py [--save SUBJECT COMMAND] FOLDER...
  medians.py --run OUT COMMAND...     runs COMMAND; its stdout goes to OUT, its peak memory in bytes to OUT.peak

Each folder is one model: FOLDER/ours.N and FOLDER/peer.N hold what `mlxcel bench -o json` and `llama-bench -o json` printed, FOLDER/title its
title. --save writes the medians to bench/results/ (bench/record.py). Peak memory is the largest resident size of the process (VmHWM), mapped weights included.
"""
import collections
import json
import pathlib
import resource
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(out, command):
    with open(out, "wb") as file:
        status = subprocess.run(command, stdout=file, stdin=subprocess.DEVNULL).returncode
    pathlib.Path(out + ".peak").write_text(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024))
    sys.exit(status)


def read(folder, who):
    """Speeds by test, their names in `mlxcel bench`, and the largest peak memory in bytes (0 if it was not measured)."""
    speeds, names, peak = collections.defaultdict(list), {}, 0
    for path in sorted(pathlib.Path(folder).glob(f"{who}.*[0-9]")):
        for row in json.loads(path.read_text()):
            test = "prefill" if row["n_prompt"] else "decode"
            speeds[test].append(row["avg_ts"])
            names[test] = "pp%d" % row["n_prompt"] if row["n_prompt"] else "tg%d" % row["n_gen"]
        measured = path.with_name(path.name + ".peak")
        peak = max(peak, int(measured.read_text()) if measured.exists() else 0)
    return speeds, names, peak


def main():
    if sys.argv[1] == "--run":
        run(sys.argv[2], sys.argv[3:])
    folders, figures = sys.argv[1:], []
    if folders[0] == "--save":
        subject, command, folders = folders[1], folders[2], folders[3:]
    print("| model | test | ours, tok/s | peer, tok/s | ratio | peak memory: ours, peer, MiB | all of ours | all of the peer's |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for folder in folders:
        (ours, names, our_peak), (peer, _, peer_peak) = read(folder, "ours"), read(folder, "peer")
        title = pathlib.Path(folder, "title")
        title = title.read_text().strip() if title.exists() else ""
        for test in ("decode", "prefill"):
            mine, theirs = statistics.median(ours[test]), statistics.median(peer[test])
            shown = [" ".join(f"{value:.1f}" for value in who[test]) for who in (ours, peer)]
            print(f"| {title} | {test} | {mine:.1f} | {theirs:.1f} | {mine / theirs:.2f}x | {our_peak >> 20}, {peer_peak >> 20} | {shown[0]} | {shown[1]} |")
            figures += [(title, "mlxcel", names[test], mine), (title, "llama.cpp", names[test], theirs)]
        if our_peak:
            figures += [(title, program, "peak memory, MiB", peak >> 20) for program, peak in (("mlxcel", our_peak), ("llama.cpp", peer_peak))]
    if len(folders) != len(sys.argv) - 1:
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(ROOT / "bench"))
        import record
        record.save(subject, command, figures, unit="tok/s")


if __name__ == "__main__":
    main()
