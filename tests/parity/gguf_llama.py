"""Reads a Llama from a GGUF file into numpy arrays under Hugging Face's names. kl_gate.py uses it where the gguf package is not installed.

Supports F32, F16, BF16, Q8_0 and Q4_1, the types of SmolLM2's file and of our fixtures. Another type is an error that names it.

  gguf_llama.py MODEL.gguf      compares every tensor with the gguf package, bit for bit (needs that package)
"""
import math
import struct
import sys

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34), 30: ("BF16", 1, 2)}  # name, weights, bytes
LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def scalars(self, code, count=1):
        values = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{count}{code}")
        return values

    def string(self):
        length, = self.scalars("Q")
        self.at += length
        return bytes(self.data[self.at - length:self.at]).decode("utf-8", "replace")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.scalars("IQ")
            return list(self.scalars(SCALARS[inner], count)) if inner in SCALARS else [self.value(inner) for _ in range(count)]
        return self.scalars(SCALARS[kind])[0]

    def metadata(self, count):
        pairs = {}
        for _ in range(count):
            key = self.string()
            pairs[key] = self.value(self.scalars("I")[0])
        return pairs


def widen(data, name):
    """The bytes of a tensor of type |name| as float32, in the file's order."""
    if name == "F32":
        return data.view("<f4")
    if name == "F16":
        return data.view("<f2").astype(np.float32)
    if name == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if name == "Q8_0":  # f16 scale, 32 signed bytes
        blocks = data.reshape(-1, 34)
        return (blocks[:, :2].copy().view("<f2").astype(np.float32) * blocks[:, 2:].view(np.int8).astype(np.float32)).ravel()
    if name == "Q4_1":  # f16 scale, f16 minimum, 16 bytes: weight i in the low half of byte i, weight 16 + i in its high half
        blocks = data.reshape(-1, 20)
        scale, least = (blocks[:, i:i + 2].copy().view("<f2").astype(np.float32) for i in (0, 2))
        return (np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32) * scale + least).ravel()
    raise ValueError(name)


def read(path):
    """Metadata, and a list of (name, shape with rows first, type's name, bytes)."""
    data = np.memmap(path, np.uint8, "r")
    reader = Reader(data)
    if bytes(data[:4]) != b"GGUF" or struct.unpack_from("<I", data, 4)[0] not in (2, 3):
        sys.exit(f"{path} is not a GGUF file of version 2 or 3")
    reader.at = 8
    tensor_count, pair_count = reader.scalars("QQ")
    metadata = reader.metadata(pair_count)
    infos = []
    for _ in range(tensor_count):
        name = reader.string()
        shape = reader.scalars("Q", reader.scalars("I")[0])[::-1]  # the file has the fastest dimension first
        infos.append((name, shape, *reader.scalars("IQ")))
    align = metadata.get("general.alignment", 32)
    start = -(-reader.at // align) * align
    tensors = []
    for name, shape, kind, offset in infos:
        if kind not in TYPES:
            sys.exit(f"{path}: {name} has GGUF type {kind}, which this reader does not know")
        type_name, elements, width = TYPES[kind]
        size = math.prod(shape) // elements * width
        tensors.append((name, shape, type_name, data[start + offset:start + offset + size]))
    return metadata, tensors


def deinterleave(x, heads):
    """Undoes the row permutation of q and k by llama.cpp's converter (adjacent pairs instead of halves of a head)."""
    return x.reshape(heads, x.shape[0] // heads // 2, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)


def load(path):
    """LlamaConfig's arguments and the weights as float32 arrays under Hugging Face's names."""
    metadata, tensors = read(path)
    if metadata["general.architecture"] != "llama":
        sys.exit(f"{path} is a {metadata['general.architecture']}, not a llama")
    get = lambda key, default=None: metadata.get("llama." + key, default)
    if get("rope.scaling.type", "none") != "none" or any(name == "rope_freqs.weight" for name, *_ in tensors):
        sys.exit(f"{path} scales its rope, which this reader does not know")
    heads, hidden = get("attention.head_count"), get("embedding_length")
    kv_heads = get("attention.head_count_kv", heads)
    weights = {}
    for name, shape, type_name, data in tensors:
        x = widen(data, type_name).reshape(shape)
        if name in TOP:
            weights[TOP[name]] = x
            continue
        _, layer, part, _ = name.split(".")
        if part in ("attn_q", "attn_k"):
            x = deinterleave(x, heads if part == "attn_q" else kv_heads)
        weights[f"model.layers.{layer}.{LAYER[part]}.weight"] = x
    config = dict(
        hidden_size=hidden, intermediate_size=get("feed_forward_length"), num_hidden_layers=get("block_count"),
        num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=get("attention.key_length", get("rope.dimension_count", hidden // heads)),
        vocab_size=weights["model.embed_tokens.weight"].shape[0], max_position_embeddings=get("context_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": get("rope.freq_base", 10000.0)},
        tie_word_embeddings="lm_head.weight" not in weights)
    return config, weights


def check(path):
    import gguf
    theirs = {t.name: t for t in gguf.GGUFReader(path).tensors}
    metadata, tensors = read(path)
    for name, shape, type_name, data in tensors:
        right = gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type).astype(np.float32)
        mine = widen(data, type_name).reshape(shape)
        if right.shape != mine.shape or not np.array_equal(right.view(np.uint32), np.ascontiguousarray(mine).view(np.uint32)):
            sys.exit(f"{path}: {name} ({type_name}) differs from what the gguf package says")
    if len(theirs) != len(tensors):
        sys.exit(f"{path}: {len(tensors)} tensors here, {len(theirs)} in the gguf package")
    print(f"{path}: {len(tensors)} of {len(theirs)} tensors equal, bit for bit")


if __name__ == "__main__":
    check(sys.argv[1])
