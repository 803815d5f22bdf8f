"""Random matrices in every tile format of the GPU kernels (kernels/cuda/tile_format.cuh), and the values they stand for. Needs torch."""
import math

import torch

E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def bytes_of(x):
    return x.contiguous().view(torch.uint8)


def words_to_bytes(words):
    """Unsigned 32-bit words, held as int64."""
    return bytes_of((words - (words >= 1 << 31) * (1 << 32)).to(torch.int32))


def lanes(codes, rows, runs):
    """[tile row, run, lane, pair of the lane, 2]"""
    c = codes.view(rows // 8, 8, runs, 4, 2, 2, 4, 2)  # row, run, piece, half, eight columns, quad, odd
    return c.permute(0, 2, 1, 6, 3, 5, 4, 7).reshape(rows // 8, runs, 32, 16, 2)


def pack_bytes(c):
    """Signed bytes: two loads of two pieces each, a word for two pairs."""
    c = (c & 255).view(*c.shape[:3], 2, 2, 2, 2, 2)  # load, piece, word, pair, odd
    words = sum(c[..., pair, odd] << (8 * pair + 16 * odd) for pair in range(2) for odd in range(2))
    return words_to_bytes(words.permute(0, 1, 3, 2, 4, 5).contiguous())


def pack_bits(c, bits):
    each = 16 // bits
    word = [torch.zeros(c.shape[:3], dtype=torch.int64, device=c.device) for _ in range(bits)]
    for pair in range(16):
        for odd in range(2):
            code = c[..., pair, odd]
            if pair < each * bits:
                word[pair // each] |= code << (pair % each * bits + 16 * odd)
            elif bits == 6:
                left = pair - 12
                word[left] |= (code & 15) << (12 + 16 * odd)
                word[4 + left // 2] |= (code >> 4) << (12 + left % 2 * 2 + 16 * odd)
            else:
                for i in range(bits):
                    word[i] |= (code >> i & 1) << (15 + 16 * odd)
    first = 4 if bits >= 4 else 2
    flat = lambda words: words_to_bytes(torch.stack(words, -1)).reshape(*c.shape[:2], -1)
    return torch.cat([flat(word[:first])] + ([flat(word[first:])] if bits > first else []), -1)


class Numbers:
    """The scales and offsets of a matrix of [rows, runs * 128]: |scale| and |offset| as f32 per 16 columns, and |fields|, their bytes per tile."""
    def __init__(self, tiles, rows, runs, spread, offset_spread, inside):
        self.tiles, self.rows, self.runs, self.inside = tiles, rows, runs, inside
        uniform = lambda each, low, high: torch.rand(rows, runs * each, device="cuda") * (high - low) + low
        integers = lambda each, low, high: torch.randint(low, high, (rows, runs * each), device="cuda")
        # |inside| is per 32 columns; a tile pair is wholly inside or outside
        self.kind = tiles.numbers
        if self.kind == "K6":
            self.record(integers(4, 0, 64), integers(4, 0, 64), self.block(spread / 32), self.block(-offset_spread / 32))
        elif self.kind == "K4":
            sc, m, d, least = integers(8, 0, 16), integers(8, 0, 16), self.block(spread / 8), self.block(-offset_spread / 8)
            self.scale, self.offset = self.times(sc, d, 16), self.times(m, least, 16)
            self.fields = [self.by_tile((sc | m << 4).to(torch.uint8)), self.by_tile(self.alternating(d, least))]
        elif self.kind == "K8":
            each = 8 if tiles.halves else 4
            factor, d = integers(each, -128, 128), self.block(spread / 64)
            self.scale, self.offset = self.times(factor, d, 128 // each), None
            self.fields = [self.by_tile((factor + 128).to(torch.uint8)), self.by_tile(d.repeat_interleave(2, 1)[:, :runs])]
        elif self.kind == "E8M0":
            exponent = (round(math.log2(spread)) + 127 + integers(4, -1, 2)) * inside.long()
            scale = torch.exp2(exponent.double() - 127).float()  # byte 0 is 2^-127
            self.scale, self.offset, self.fields = scale.repeat_interleave(2, 1), None, [self.by_tile(exponent.to(torch.uint8))]
        else:
            kind = {"F16": torch.float16, "F32": torch.float32, "BF16": torch.bfloat16}[self.kind]
            wide = lambda each: inside.repeat_interleave(each // 4, 1)
            each = 8 if tiles.halves else 4
            scale = (uniform(each, 0.5, 1.5) * spread * wide(each) * (integers(each, 0, 2) * 2 - 1)).to(kind)
            self.scale, self.fields, self.offset = scale.float().repeat_interleave(8 // each, 1), [self.by_tile(scale)], None
            if tiles.offset:
                each = 4 * tiles.offset
                offset = (torch.randn(rows, runs * each, device="cuda") * offset_spread * wide(each)).to(kind)
                self.offset, self.fields = offset.float().repeat_interleave(8 // each, 1), self.fields + [self.by_tile(offset)]

    def block(self, size):
        """f16 numbers of 256 columns."""
        columns = (self.runs + 1) // 2
        return ((torch.rand(self.rows, columns, device="cuda") + 0.5) * size * self.inside[:, ::8]).half()

    def times(self, factor, block, columns):
        """As f32, per 16 columns."""
        wide = block.float().repeat_interleave(256 // columns, 1)[:, :factor.shape[1]] * factor.float()
        return wide.repeat_interleave(columns // 16, 1)

    def alternating(self, even, odd):
        return torch.stack([even, odd], -1).reshape(self.rows, -1)[:, :self.runs]

    def record(self, sc, m, d, least):
        self.scale, self.offset = self.times(sc, d, 32), self.times(m, least, 32)
        rows, runs = self.rows, self.runs
        six = (sc | m >> 4 << 6).to(torch.uint8).view(rows, runs, 4)
        low = (m & 15).view(rows, runs, 2, 2)
        low = (low[..., 0] | low[..., 1] << 4).to(torch.uint8)
        block = bytes_of(self.alternating(d, least)).view(rows, runs, 2)
        self.fields = [self.by_tile(torch.cat([six, low, block], -1).view(rows, -1))]

    def by_tile(self, x):
        return bytes_of(x.reshape(self.rows // 8, 8, self.runs, -1).permute(0, 2, 1, 3)).view(self.rows // 8, self.runs, -1)


def random_tiles(tiles, dims, spread):
    """The bytes of a random matrix, its exact values in f64, and its dequantized values in f32. |spread| is the size of its values."""
    if tiles.numbers in ("K6", "K4", "K8") and dims[1] % 256:
        raise ValueError(f"{tiles.name} has blocks of 256 columns")
    rows, runs = -(-dims[0] // 8) * 8, -(-dims[1] // 128)
    inside = torch.zeros(rows, runs * 4, device="cuda")
    inside[:dims[0], :dims[1] // 32] = 1
    table = {-1: E2M1, -2: IQ4}.get(tiles.center) or [i - tiles.center for i in range(1 << tiles.bits)]
    if tiles.bits == 8:
        table = [i if i < 128 else i - 256 for i in range(256)]
    table = torch.tensor(table, device="cuda", dtype=torch.float64)
    stored = torch.randint(0, len(table), (rows, runs * 128), device="cuda")
    numbers = Numbers(tiles, rows, runs, spread / float(table.std()), spread, inside)
    codes, scale = table[stored], numbers.scale.repeat_interleave(16, 1)
    exact, f32 = scale.double() * codes, scale * codes.float()
    if numbers.offset is not None:
        offset = numbers.offset.repeat_interleave(16, 1)
        exact, f32 = exact + offset, f32 + offset
    c = lanes(stored, rows, runs)
    packed = pack_bytes(c).reshape(rows // 8, runs, -1) if tiles.bits == 8 else pack_bits(c, tiles.bits)
    out = torch.cat([packed] + numbers.fields, 2)
    assert out.shape[2] == tiles.tile_bytes, (tiles.name, out.shape, tiles.tile_bytes)
    return out.reshape(-1), exact[:dims[0], :dims[1]], f32[:dims[0], :dims[1]]
