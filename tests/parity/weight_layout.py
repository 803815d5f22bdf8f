"""Where the decode kernel finds each weight of a network, as weights.irpa stores it. Needs no package."""
import math
import pathlib
import re

TABLES = pathlib.Path(__file__).resolve().parents[2] / "kernels" / "decode_tables.h"

SHAPES = {  # hidden, ffn, heads, KV heads, head_dim, layers, vocabulary, theta, tied
    "llama-1b": (2048, 8192, 32, 8, 64, 16, 128256, 500000.0, True),      # Llama-3.2-1B, without its rope scaling
    "llama-8b": (4096, 14336, 32, 8, 128, 32, 128256, 500000.0, False),  # Llama-3.1-8B, likewise
    "llama-test": (256, 768, 4, 2, 64, 2, 1000, 500000.0, True),  # to try the scripts with
    "odd": (200, 328, 5, 5, 48, 3, 1003, 10000.0, False),
    "grouped": (576, 1536, 9, 3, 64, 2, 4999, 10000.0, True),
}
OTHER_SHAPES = {  # of networks that differ from Llama's: FORMS
    "qwen3-0.6b": (1024, 3072, 16, 8, 128, 28, 151936, 1000000.0, True),
    "qwen3-8b": (4096, 12288, 32, 8, 128, 36, 151936, 1000000.0, False),
    "qwen2-0.5b": (896, 4864, 14, 2, 64, 24, 151936, 1000000.0, True),
    "gemma3-4b": (2560, 10240, 8, 4, 256, 34, 262208, 1000000.0, True),
    "gemma-test": (320, 768, 4, 2, 80, 3, 1000, 1000000.0, True),
    "forms": (224, 416, 6, 2, 48, 3, 1003, 10000.0, False),
}
QWEN3 = {"qk_norm": True}
GEMMA3 = {"qk_norm": True, "post_norms": True, "act": "GELU_TANH", "window": 1024, "windowed": lambda layer: layer % 6 != 5, "local_theta": 10000.0}
FORMS = {  # how a network differs from Llama's
    "qwen3-0.6b": QWEN3, "qwen3-8b": QWEN3, "qwen2-0.5b": {"qkv_bias": True},
    "gemma3-4b": {**GEMMA3, "embed_scale": 2560 ** 0.5},
    "gemma-test": {**GEMMA3, "windowed": lambda layer: layer < 2, "window": 100, "embed_scale": 320 ** 0.5, "softcap": 5.0, "logit_softcap": 9.0},
    "forms": {"qk_norm": True, "qkv_bias": True, "bias": True, "act": "GELU", "window": 37, "windowed": lambda layer: layer == 1, "rope_dims": 32,
              "adjacent": True, "rope_scale": 1.1, "embed_scale": 3.0, "residual_scale": 0.3, "logit_scale": 0.5},
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
    def __init__(self, shape, formats=(), form=None, second=None):
        self.second, self.layers = Tiles(second) if second else None, shape[5]
        hidden, ffn, heads, kv_heads, head_dim, layers, vocab, _, tied = shape
        form, self.tiles = form or {}, [Tiles(name) for name in formats]
        queries, keys, self.bytes, self.at, self.dims = heads * head_dim, kv_heads * head_dim, 0, {}, {}
        self.add("EMBED", 0, (vocab, hidden))
        for layer in range(layers):
            for name, dims in (("ATTN_NORM", (hidden,)), ("Q", (queries, hidden)), ("K", (keys, hidden)), ("V", (keys, hidden)),
                               ("O", (hidden, queries)), ("MLP_NORM", (hidden,)), ("GATE", (ffn, hidden)), ("UP", (ffn, hidden)),
                               ("DOWN", (hidden, ffn))):
                self.add(name, layer, dims)
            for feature, vectors in (("qkv_bias", {"Q_BIAS": queries, "K_BIAS": keys, "V_BIAS": keys}), ("qk_norm", {"Q_NORM": head_dim, "K_NORM": head_dim}),
                                     ("bias", {"O_BIAS": hidden, "GATE_BIAS": ffn, "UP_BIAS": ffn, "DOWN_BIAS": hidden}),
                                     ("post_norms", {"POST_ATTN_NORM": hidden, "POST_MLP_NORM": hidden})):
                for name, width in vectors.items() if form.get(feature) else ():
                    self.add(name, layer, (width,))
        self.add("FINAL_NORM", 0, (hidden,))
        if tied:
            self.at["HEAD", 0], self.dims["HEAD"] = self.at["EMBED", 0], self.dims["EMBED"]
        else:
            self.add("HEAD", 0, (vocab, hidden))

    def add(self, name, layer, dims):
        self.at[name, layer] = self.bytes = (self.bytes + 63) // 64 * 64
        self.dims[name] = dims
        tiles = self.tiles_of(name, layer)
        self.bytes += 4 * dims[0] if len(dims) == 1 else tiles.size(dims) if tiles else 2 * math.prod(dims)

    def tiles_of(self, name, layer=0):
        if self.second and name in ("V", "DOWN") and layer % 2 == 0:
            return self.second
        return self.tiles and self.tiles[-1 if name in ("EMBED", "HEAD") else 0]

    def lines(self):
        """Fields of kernels/cuda/decode_config.cuh, in its order."""
        names = [name for name in re.findall(r"X\((\w+), \w+, [01]\)", TABLES.read_text().split("MLX_DECODE_ROLE_TABLE")[0]) if name in self.dims]
        layered = [name for name in names if (name, 1) in self.at]
        for name in names:
            first = self.at[name, 0]
            nth = f",.nth={layered.index(name)}" if self.second and name in layered else ""
            yield f"{name.lower()}={{.at={first}ull,.step={self.at.get((name, 1), first) - first}ull{nth}}}"
        if not self.tiles:
            return
        for name in ("QKV", "O", "GATE", "DOWN", "HEAD", "EMBED"):
            yield f"{name.lower()}_tiles={{" + ",".join(map(str, self.tiles_of(name, 1).arguments)) + "}"
            if self.second and name in ("QKV", "DOWN"):
                yield f"{name.lower()}_tiles_2={{" + ",".join(map(str, self.second.arguments)) + "}"
        yield "packed=1"
        yield f"offsets={int(max(tiles.offset for tiles in self.tiles + [self.second or self.tiles[0]]) > 0)}"
        if self.second:
            yield "second_formats=1"
            yield "second_formats:u8=" + ",".join(str(0 if layer % 2 else 4 + 32) for layer in range(self.layers))
            yield f"layer_weights={len(layered)}"
            yield "layer_offsets:u64=" + ",".join(f"{self.at[name, layer]}ull" for layer in range(self.layers) for name in layered)

