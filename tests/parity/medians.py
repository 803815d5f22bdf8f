#!/usr/bin/env python3
"""Prints medians and ratios of a run of bench/compare: FOLDER/ours.N and FOLDER/peer.N hold what `mlxcel bench -o json` and `llama-bench -o json`
printed.

  medians.py FOLDER
"""
import collections
import json
import pathlib
import statistics
import sys


def read(folder, who):
    speeds = collections.defaultdict(list)
    for path in sorted(pathlib.Path(folder).glob(f"{who}.*")):
        for row in json.loads(path.read_text()):
            speeds["prefill" if row["n_prompt"] else "decode"].append(row["avg_ts"])
    return speeds


ours, peer = read(sys.argv[1], "ours"), read(sys.argv[1], "peer")
print("| | ours, tok/s | peer, tok/s | ratio | all of ours | all of the peer's |\n| --- | --- | --- | --- | --- | --- |")
for test in ("prefill", "decode"):
    mine, theirs = statistics.median(ours[test]), statistics.median(peer[test])
    shown = [" ".join(f"{value:.1f}" for value in who[test]) for who in (ours, peer)]
    print(f"| {test} | {mine:.1f} | {theirs:.1f} | {mine / theirs:.2f}x | {shown[0]} | {shown[1]} |")
