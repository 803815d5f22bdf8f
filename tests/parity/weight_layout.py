"""Where the decode kernel finds each weight of a Llama, as weights.irpa stores it. Needs no package."""
import math

SHAPES = {  # hidden, ffn, heads, KV heads, head_dim, layers, vocabulary, theta, tied
    "llama-1b": (2048, 8192, 32, 8, 64, 16, 128256, 500000.0, True),      # Llama-3.2-1B, without its rope scaling
    "llama-8b": (4096, 14336, 32, 8, 128, 32, 128256, 500000.0, False),  # Llama-3.1-8B, likewise
    "llama-test": (256, 768, 4, 2, 64, 2, 1000, 500000.0, True),  # to try the scripts with
    "odd": (200, 328, 5, 5, 48, 3, 1003, 10000.0, False),
    "grouped": (576, 1536, 9, 3, 64, 2, 4999, 10000.0, True),
}
TILES = {  # bits, f32 numbers, offsets, scales of half a block, what is taken from a code
    "q4_0": (4, 0, 0, 0, 8), "q4_1": (4, 0, 1, 0, 0), "q8_0": (8, 0, 0, 0, 0), "q4_k": (4, 1, 1, 0, 0), "q5_k": (8, 1, 1, 0, 0),
    "q6_k": (8, 1, 0, 1, 0), "mixed": (8, 1, 1, 1, 0)}


class Tiles:
    """Matrices as kernels/cuda/decode_tiles.cuh has them."""
    def __init__(self, name):
        self.bits, self.wide, self.offset, self.halves, self.center = self.arguments = TILES[name]
        self.number = 4 if self.wide else 2
        self.tile_bytes = 128 * self.bits + 32 * self.number * (1 + self.halves + self.offset)

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
