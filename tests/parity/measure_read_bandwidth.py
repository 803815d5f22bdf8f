#!/usr/bin/env python3
"""Measures the read bandwidth of this GPU, the upper bound of decoding speed.

  measure_read_bandwidth.py [GIB]       (default 8)

Sums GIB of random numbers with torch's reduction and with a Triton kernel of 16-byte loads in several shapes. Each sum is checked.
Reports the fastest median of 20 runs. Needs torch and Triton.
"""
import statistics
import sys

import torch
import triton
import triton.language as tl

RUNS = 20


@triton.jit
def read_kernel(x, out, tiles, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    at = program * tiles * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.int32)
    for tile in range(tiles):
        total += tl.load(x + at + tile * BLOCK)
    tl.store(out + program, tl.sum(total, axis=0))


def median_seconds(work):
    times = []
    for run in range(RUNS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[3:])


def main():
    size = int(sys.argv[1] if len(sys.argv) > 1 else 8) << 30
    x = torch.empty(size // 4, dtype=torch.int32, device="cuda").random_()
    right = sum(part.sum(dtype=torch.int64).item() for part in x.split(1 << 28)) & 0xFFFFFFFF
    results = []

    def measure(name, work):
        seconds = median_seconds(work)
        results.append((size / seconds / 1e9, name))
        print(f"{name}: {results[-1][0]:.0f} GB/s", flush=True)
    measure("torch, float32 sum", lambda f=x.view(torch.float32): f.sum())
    measure("torch, int64 sum", lambda n=x.view(torch.int64): n.sum())
    for block, warps in ((2048, 4), (4096, 4), (4096, 8), (8192, 8)):
        for tiles in (1, 4, 16, 64):
            programs = x.numel() // (block * tiles)
            out = torch.empty(programs, dtype=torch.int32, device="cuda")
            work = lambda: read_kernel[(programs,)](x, out, tiles, BLOCK=block, num_warps=warps)
            work()
            if out.sum(dtype=torch.int64).item() & 0xFFFFFFFF != right:
                sys.exit(f"measure_read_bandwidth.py: blocks of {block}, {tiles} each: the sum is wrong")
            measure(f"Triton, blocks of {4 * block} bytes, {tiles} a program, {warps} warps", work)
    rate, name = max(results)
    print(f"read bandwidth: {rate:.0f} GB/s (median of {RUNS}, {size / 2**30:.0f} GiB, {torch.cuda.get_device_name()}; {name})")


if __name__ == "__main__":
    main()
