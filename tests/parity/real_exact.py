#!/usr/bin/env python3
"""Compares greedy tokens of a real GGUF model with a numpy forward in float32 over its dequantized weights.

  real_exact.py MLXCEL MODEL.gguf [--tokens 32] [--prompts 8] [more options of mlxcel run, such as --device cuda]

Supports llama, qwen2 and gemma3 files. `mlxcel run` continues each prompt; then numpy computes the logits of prompt and answer at once, and the token at
every position of the answer must be the most likely one. Prints one line per prompt, with the smallest margin between the two best logits
relative to the largest. Exit status 1 if a token differs. Needs numpy and the gguf package; the weights take 4 bytes each.
"""
import argparse
import json
import subprocess
import sys

import numpy as np

STORY = ("The mill stood at the bend of the river, where the water was slow and brown. Every morning the miller opened the gate, and the wheel began "
         "to turn. He ground wheat for the village, rye for the monastery and oats for the horses of the inn. ")
PROMPTS = ("The capital of France is", "def add(a, b):\n    return", "Once upon a time there was", "1, 2, 3, 4,", "import numpy as np\n\ndef softmax(x):\n",
           "Water boils at", "SELECT name FROM users WHERE", STORY * 14 + "One day")


class Model:
    def __init__(self, path):
        import gguf
        reader = gguf.GGUFReader(path)
        self.kind = reader.fields["general.architecture"].contents()
        if self.kind not in ("llama", "qwen2", "gemma3"):
            sys.exit(f"{path} is a {self.kind}, which this forward does not know")
        self.fields = {name[len(self.kind) + 1:]: field.contents() for name, field in reader.fields.items() if name.startswith(self.kind + ".")}
        self.w = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
        if "rope_freqs.weight" in self.w or self.fields.get("rope.scaling.type", "none") != "none":
            sys.exit(f"{path} scales its rope, which this forward does not know")
        self.heads = self.fields["attention.head_count"]
        self.kv_heads = self.fields.get("attention.head_count_kv", self.heads)
        self.hidden, self.layers = self.fields["embedding_length"], self.fields["block_count"]
        self.head_dim = self.fields.get("attention.key_length", self.hidden // self.heads)
        self.eps = np.float32(self.fields["attention.layer_norm_rms_epsilon"])

    def linear(self, name, x):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, name, x):
        """GGUF files of gemma3 store gain + 1."""
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name + ".weight"]

    def window(self, layer):
        """gemma3: five layers of six see a window and have their own rope base."""
        return self.fields["attention.sliding_window"] if self.kind == "gemma3" and (layer + 1) % 6 else None

    def rope(self, x, theta):
        """x [T, heads, head_dim]. llama rotates adjacent pairs, the others halves of a head."""
        d = self.head_dim
        angles = np.outer(np.arange(len(x)), 1 / np.float64(theta) ** (np.arange(0, d, 2) / d)).astype(np.float32)[:, None]
        cos, sin = np.cos(angles), np.sin(angles)
        if self.kind == "llama":
            a, b = x[..., 0::2], x[..., 1::2]
            return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, p, layer, x):
        count, window = len(x), self.window(layer)
        q, k, v = (self.linear(f"{p}attn_{n}", x).reshape(count, -1, self.head_dim) for n in "qkv")
        if self.kind == "gemma3":
            q, k = self.norm(p + "attn_q_norm", q), self.norm(p + "attn_k_norm", k)
        theta = 10000.0 if window else self.fields.get("rope.freq_base", 10000.0)
        q, k = self.rope(q, theta), self.rope(k, theta)
        back = np.arange(count)[:, None] - np.arange(count)[None]
        seen = (back >= 0) & (back < window) if window else back >= 0
        out = np.empty_like(q)
        for h in range(self.heads):
            group = h // (self.heads // self.kv_heads)
            scores = np.where(seen, q[:, h] @ k[:, group].T / np.float32(self.head_dim ** 0.5), -np.inf)
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, h] = powers / powers.sum(-1, keepdims=True) @ v[:, group]
        return self.linear(p + "attn_output", out.reshape(count, -1))

    def mlp(self, p, x):
        gate, up = self.linear(p + "ffn_gate", x), self.linear(p + "ffn_up", x)
        if self.kind == "gemma3":
            act = gate / 2 * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (gate + np.float32(0.044715) * gate ** 3)))
        else:
            act = gate / (1 + np.exp(-gate))
        return self.linear(p + "ffn_down", act * up)

    def logits(self, ids, first):
        """Logits after each token from number |first| on."""
        gemma = self.kind == "gemma3"
        x = self.w["token_embd.weight"][ids] * np.float32(self.hidden ** 0.5 if gemma else 1)
        for layer in range(self.layers):
            p = f"blk.{layer}."
            h = self.attention(p, layer, self.norm(p + "attn_norm", x))
            x = x + (self.norm(p + "post_attention_norm", h) if gemma else h)
            h = self.mlp(p, self.norm(p + "ffn_norm", x))
            x = x + (self.norm(p + "post_ffw_norm", h) if gemma else h)
        head = self.w.get("output.weight", self.w["token_embd.weight"])
        return self.norm("output_norm", x[first:]) @ head.T


def check(model, answer):
    """(tokens that are the most likely ones, the smallest margin)"""
    prompt, out = answer["prompt_ids"], answer["output_ids"]
    logits = model.logits(prompt + out[:-1], len(prompt) - 1)
    assert logits.dtype == np.float32 and len(logits) == len(out)
    two = np.partition(logits, -2)[:, -2:]
    margin = float(((two[:, 1] - two[:, 0]) / np.abs(logits).max(-1)).min())
    return int((logits.argmax(-1) == out).sum()), margin


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mlxcel")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="the first of them")
    words, options = parser.parse_known_args()
    model, failed = Model(words.model), 0
    for prompt in PROMPTS[:words.prompts]:
        command = [words.mlxcel, "run", "--raw", "--no-escape", "-m", words.model, "-p", prompt, "-n", str(words.tokens), "--temp", "0", "--ignore-eos",
                   "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
        answer = json.loads(done.stdout)
        equal, margin = check(model, answer)
        failed += equal != len(answer["output_ids"])
        print(f"{equal} of {len(answer['output_ids'])} tokens equal after {len(answer['prompt_ids'])}, smallest margin {margin:.1e}: {prompt[-40:]!r}", flush=True)
    print(f"{words.prompts - failed} prompts equal, {failed} different")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
