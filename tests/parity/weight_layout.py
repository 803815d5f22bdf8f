"""Where the decode kernel finds each weight of a Llama, as weights.irpa stores it. Needs no package."""
import math

SHAPES = {  # hidden, ffn, heads, KV heads, head_dim, layers, vocabulary, theta, tied
    "llama-1b": (2048, 8192, 32, 8, 64, 16, 128256, 500000.0, True),      # Llama-3.2-1B, without its rope scaling
    "llama-8b": (4096, 14336, 32, 8, 128, 32, 128256, 500000.0, False),  # Llama-3.1-8B, likewise
    "llama-test": (256, 768, 4, 2, 64, 2, 1000, 500000.0, True),  # to try the scripts with
    "odd": (200, 328, 5, 5, 48, 3, 1003, 10000.0, False),
    "grouped": (576, 1536, 9, 3, 64, 2, 4999, 10000.0, True),
}
NUMBERS = ("F16", "F32", "BF16", "E8M0", "K6", "K4", "K8")  # TileNumbers of kernels/cuda/tile_format.cuh
TILES = {  # bits, numbers, offsets, a scale for each 16 columns, center (-1, -2: a table)
    "q4_0": (4, "F16", 0, 0, 8), "q4_1": (4, "F16", 1, 0, 0), "q5_0": (5, "F16", 0, 0, 16), "q5_1": (5, "F16", 1, 0, 0), "q8_0": (8, "F16", 0, 0, 0),
    "q2_k": (2, "K4", 2, 1, 0), "q3_k": (3, "K8", 0, 1, 4), "q4_k": (4, "K6", 1, 0, 0), "q5_k": (5, "K6", 1, 0, 0), "q6_k": (6, "K8", 0, 1, 32),
    "iq4_nl": (4, "F16", 0, 0, -2), "iq4_xs": (4, "K8", 0, 0, -2), "mxfp4": (4, "E8M0", 0, 0, -1), "mlx4": (4, "BF16", 1, 0, 0), "mlx6": (6, "BF16", 1, 0, 0),
    "gptq": (4, "F32", 1, 0, 0), "mlx8": (8, "F32", 1, 0, 0), "mixed": (8, "F32", 1, 1, 0), "mixed2": (8, "F32", 2, 1, 0)}


class Tiles:
    """Matrices as kernels/cuda/tile_format.cuh has them."""
    def __init__(self, name):
        self.name = name
        self.bits, self.numbers, self.offset, self.halves, self.center = TILES[name]
        self.arguments = (self.bits, NUMBERS.index(self.numbers)) + TILES[name][2:]
        number = {"F16": 2, "F32": 4, "BF16": 2}.get(self.numbers, 1)
        scales = 64 if self.numbers == "K6" else 32 * number * (1 + self.halves)
        more = {"K6": 0, "K4": 16, "K8": 16}.get(self.numbers, 32 * number * self.offset)
        self.tile_bytes = 128 * self.bits + scales + more

    def size(self, dims):
        return -(-dims[0] // 8) * -(-dims[1] // 128) * self.tile_bytes


class Layout:
    """Where the weights are, as weights.irpa has them."""
    def __init__(self, shape, formats=()):
        hidden, ffn, heads, kv_heads, head_dim, layers, vocab, _, tied = shape
        self.tiles = [Tiles(name) for name in formats]
        queries, keys, self.bytes, self.at, self.dims = heads * head_dim, kv_heads * head_dim, 0, {}, {}
        self.add("EMBED", 0, (vocab, hidden))
        for layer in range(layers):
            for name, dims in (("ATTN_NORM", (hidden,)), ("Q", (queries, hidden)), ("K", (keys, hidden)), ("V", (keys, hidden)),
                               ("O", (hidden, queries)), ("MLP_NORM", (hidden,)), ("GATE", (ffn, hidden)), ("UP", (ffn, hidden)),
                               ("DOWN", (hidden, ffn))):
                self.add(name, layer, dims)
        self.add("FINAL_NORM", 0, (hidden,))
        if tied:
            self.at["HEAD", 0], self.dims["HEAD"] = self.at["EMBED", 0], self.dims["EMBED"]
        else:
            self.add("HEAD", 0, (vocab, hidden))

    def add(self, name, layer, dims):
        self.at[name, layer] = self.bytes = (self.bytes + 63) // 64 * 64
        self.dims[name] = dims
        tiles = self.tiles_of(name)
        self.bytes += 4 * dims[0] if len(dims) == 1 else tiles.size(dims) if tiles else 2 * math.prod(dims)

    def tiles_of(self, name):
        return self.tiles and self.tiles[-1 if name in ("EMBED", "HEAD") else 0]

    def definitions(self):
        for name in ("QKV", "O", "GATE", "DOWN", "HEAD", "EMBED") if self.tiles else ():
            yield f"{name}_TILES=" + ",".join(map(str, self.tiles_of(name).arguments))
        if self.tiles:
            yield "PACKED=1"
            yield "KV_F32=1"
            yield f"OFFSETS={max(tiles.offset for tiles in self.tiles)}"
        for name in self.dims:
            first = self.at[name, 0]
            yield f"{name}_AT={first}ull"
            yield f"{name}_STEP={self.at.get((name, 1), first) - first}ull"
