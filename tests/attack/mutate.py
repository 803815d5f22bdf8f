"""Damaged files: mutants of committed fixtures and of bundles made from them, read by show, tokenize, compile, verify and run.

Points are mutate:KIND:SEED:NUMBER; SEED and NUMBER determine fixture, mutations and command. Each command must end with a documented
exit status, in bounded time and memory.
"""
import base64, glob, hashlib, json, os, random, shutil, struct

from harness import FIXTURES, TINY, Fault, Skip
from scenarios import Stage, copy

LIMIT_SECONDS = 60
CPU_SECONDS = 40  # the longest time budget of a foreign file (docs/formats.md), and what the command needs besides
MEMORY = 8 << 30  # addresses; the runtime reserves more than it uses
PEAK_KIB = 900 << 10  # resident; the memory budget of a foreign file, and what the command needs besides
CHUNK = 4 << 20  # of the tree digest of weights

INTEGERS = [0, 1, 2, 3, 7, 16, 255, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64]
TEXTS = ["", "a", "a" * 70000, "../../../etc/passwd", "/dev/zero", "\0", "\n", "%s%n%d", "\ud83d\ude00", "\u202e", "nan", "-1", "{{", "(a*)*b", "\\p{L}+",
         "llama", "gpt2"]


# ---- mutators --------------------------------------------------------------------------------------------------------------


def mutate_bytes(rng, data, region=None):
    """One random change of bytes; |region| limits where it starts."""
    data = bytearray(data)
    end = min(region or len(data), len(data)) or 1
    at = rng.randrange(end)
    how = rng.randrange(7)
    if not data:
        return bytes([rng.randrange(256)])
    if how == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif how == 1:
        data[at] = rng.choice((0, 1, 10, 32, 34, 127, 128, 255))
    elif how == 2:
        del data[at:]
    elif how == 3:
        del data[at:at + rng.choice((1, 4, 8, 100))]
    elif how == 4:
        data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 8, 100))))
    elif how == 5:
        data[at:at] = data[at:at + rng.choice((8, 64, 4096))] * rng.choice((1, 2, 50))
    else:
        size = rng.choice((1, 2, 4, 8))
        data[at:at + size] = (rng.choice(INTEGERS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return bytes(data)


def places(value, path=()):
    """The paths of all values in a JSON document, to a depth of 20."""
    yield path
    if len(path) > 20:
        return
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], path + (key,))
    elif isinstance(value, list):
        for at in list(range(min(len(value), 8))) + ([len(value) - 1] if len(value) > 8 else []):
            yield from places(value[at], path + (at,))


def strange(rng, value):
    """Another value for a place."""
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None, 0, "true", []))
    if isinstance(value, (int, float)) and rng.random() < 0.8:
        near = [value + 1, value - 1, -value, value * 2, value * 1000, value / 3, 1e308, -1e308, 1e-320, 0.5]
        return rng.choice(near + INTEGERS)
    if isinstance(value, list) and rng.random() < 0.7:
        return rng.choice(([], value[:-1], value + value, value * 100 if len(value) < 1000 else value[1:], value[::-1], [value], [None] * 3))
    if isinstance(value, dict) and rng.random() < 0.5:
        return rng.choice(({}, [value], {key: None for key in value}, {key: value for key in list(value)[:1]}))
    deep = {}
    for _ in range(rng.choice((5, 200, 2000))):
        deep = {"a": deep} if rng.random() < 0.5 else [deep]
    return rng.choice(TEXTS + INTEGERS[:6] + [None, True, [], {}, deep])


def mutate_json(rng, data):
    """Changes values, keys or the text of a JSON document."""
    if rng.random() < 0.15:
        return mutate_bytes(rng, data)
    value = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(list(places(value)))
        if not path:
            continue
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        how = rng.randrange(8)
        if how == 0:
            del holder[path[-1]]
        elif how == 1 and isinstance(holder, dict):
            holder[rng.choice(TEXTS + list(holder))] = holder.pop(path[-1])
        elif how == 2 and isinstance(holder, dict):
            holder[path[-1]] = holder[rng.choice(list(holder))]
        else:
            holder[path[-1]] = strange(rng, holder[path[-1]])
    text = dump(value)
    if rng.random() < 0.05:
        text = text.replace("{", '{"%s": %s, ' % (rng.choice(TEXTS[:2]), rng.choice(("1e999", "NaN", "-0", "01", '"x"'))), 1)
    return text.encode("utf-8", "surrogatepass")


def dump(value):
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * 100000


def gguf_fields(data):
    """(offset, bytes) of every number in the header of a GGUF file: counts, lengths, types, values, shapes and offsets."""
    found = [(4, 4), (8, 8), (16, 8)]
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    tensors, pairs = struct.unpack_from("<QQ", data, 8)
    at = 24

    def text():
        nonlocal at
        found.append((at, 8))
        length = struct.unpack_from("<Q", data, at)[0]
        at += 8 + length

    def value(kind):
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            found.extend([(at, 4), (at + 4, 8)])
            inner, count = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(count):
                value(inner)
        else:
            found.append((at, sizes[kind]))
            at += sizes[kind]

    for _ in range(pairs):
        text()
        found.append((at, 4))
        kind = struct.unpack_from("<I", data, at)[0]
        at += 4
        value(kind)
    for _ in range(tensors):
        text()
        dims = struct.unpack_from("<I", data, at)[0]
        found.append((at, 4))
        found.extend((at + 4 + 8 * dim, 8) for dim in range(dims))
        found.extend([(at + 4 + 8 * dims, 4), (at + 8 + 8 * dims, 8)])
        at += 16 + 8 * dims
    return found, at


def mutate_gguf(rng, data):
    fields, end = gguf_fields(data)
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        # Most fields are lengths of the vocabulary; the interesting ones are before and after it.
        at, size = rng.choice(fields[:20] + fields[-80:] + rng.sample(fields, min(50, len(fields))))
        old = int.from_bytes(mutant[at:at + size], "little")
        new = rng.choice(INTEGERS + [old + 1, old - 1, old * 2, old ^ 1, old + 4, old + 8])
        mutant[at:at + size] = (new & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if rng.random() < 0.3:
        return mutate_bytes(rng, bytes(mutant), rng.choice((end, len(mutant))))
    return bytes(mutant)


def mutate_safetensors(rng, data):
    length = struct.unpack_from("<Q", data)[0]
    how = rng.randrange(4)
    if how == 0:
        return struct.pack("<Q", rng.choice(INTEGERS + [length + 1, length - 1, length + 8]) & ((1 << 64) - 1)) + data[8:]
    if how == 1:
        return mutate_bytes(rng, data, rng.choice((8 + length, len(data))))
    header = mutate_json(rng, data[8:8 + length])
    return struct.pack("<Q", len(header)) + header + data[8 + length:]


def mutate_text(rng, data):
    """Changes one line of a signature or key."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, data)
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    how = rng.randrange(4)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines[at] = rng.choice(lines)
    elif how == 2:
        lines[at] = mutate_bytes(rng, lines[at])
    else:
        lines[at] = rng.choice(TEXTS).encode("utf-8", "surrogatepass") + lines[at]
    return b"\n".join(lines)


# ---- what is damaged, and what reads it ------------------------------------------------------------------------------------


class Mutants:
    KINDS = ("gguf", "safetensors", "config", "tokenizer", "index", "manifest", "signature", "key", "archive", "weights")

    def __init__(self, world):
        self.world, self.stage, self.number = world, Stage(world), 0
        self.compiler = self.make_honest_compiler()
        self.ggufs = sorted(glob.glob(os.path.join(FIXTURES, "*.gguf")) + glob.glob(os.path.join(FIXTURES, "gguf", "*.gguf")))
        self.folders = sorted(os.path.dirname(name) for name in glob.glob(os.path.join(FIXTURES, "*", "config.json")))
        if not self.ggufs or not self.folders:
            raise Skip("no fixtures in %s" % FIXTURES)

    def close(self):
        self.stage.close()

    def make_honest_compiler(self):
        """A fake iree-compile that returns tiny-llama's module for tiny-llama's MLIR, and fails for any other."""
        script, seen = self.world.path("honest-compile"), self.world.path("seen")
        with open(script, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n[ \"$1\" = --version ] && { echo 'IREE compiler version 3.13.0'; exit 0; }\n"
                       "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && out=$2; shift; done\nsum=$(sha256sum)\n"
                       "[ -f %s ] || echo \"$sum\" > %s\n[ \"$sum\" = \"$(cat %s)\" ] || { echo 'error: another model' >&2; exit 1; }\n"
                       "exec cat %s > \"$out\"\n" % (seen, seen, seen, self.world.path("real.vmfb")))
        os.chmod(script, 0o755)
        work = self.world.path("honest")
        os.makedirs(work)
        self.world.must(["compile", TINY, "-c", "64", "-o", "tiny.mlxb"], work, variables={"MLXCEL_IREE_COMPILE": script})
        return script

    def points(self, rng, short):
        seed = rng.randrange(1 << 32)
        return ("mutate:%s:%d:%d" % (kind, seed, number) for number in range(1 << 40) for kind in self.KINDS)

    def attack(self, point):
        rng = random.Random(point)
        with self.world.lock:
            self.number += 1
            work = self.world.path("mutant-%d" % self.number)
        os.makedirs(work)
        try:
            kind = point.split(":")[1]
            command = getattr(self, "make_" + kind)(rng, work)
            result = self.world.run(command, work, variables={"MLXCEL_IREE_COMPILE": self.compiler}, seconds=LIMIT_SECONDS, cpu_seconds=CPU_SECONDS,
                                    memory=MEMORY)
            self.world.check_ending(result, "--json" in command)
            if result.peak_kib > PEAK_KIB and not self.world.sanitized:
                raise Fault("peak memory %d KiB\n%s" % (result.peak_kib, result))
            if command[0] == "verify" and not result.status and kind in ("manifest", "signature"):
                self.check_verified(kind, work, result)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def model_command(self, rng, model, tokenizer):
        commands = [["show", model, "--json"], ["compile", model, "-c", "64", "--emit", "stablehlo", "-o", "out.mlir"],
                    ["run", "-m", model, "-c", "64", "-p", "the quick", "-n", "4", "--temp", "0", "--json"]]
        if tokenizer:
            commands.append(["tokenize", "-m", model, "-p", "the quick brown fox \u00e9\n  42", "--json"])
        return rng.choice(commands)

    def check_verified(self, kind, work, result):
        """A signature that is accepted covers every signed byte; the untrusted comment is not signed."""
        name = "manifest.json" + ".minisig" * (kind == "signature")
        with open(os.path.join(work, "original"), "rb") as old, open(os.path.join(work, "one.mlxb", name), "rb") as new:
            old, new = old.read(), new.read()
        if kind == "signature":
            old, new = ([base64.b64decode(line) if at % 2 else line.rstrip() for at, line in enumerate(text.split(b"\n")[:4])][1:] for text in (old, new))
        if old != new:
            raise Fault("a changed %s was accepted\n%s" % (kind, result))

    def change(self, rng, path, mutator):
        with open(path, "rb") as file:
            data = file.read()
        folder, bundle, _ = path.partition("/one.mlxb/")
        if bundle:
            with open(os.path.join(folder, "original"), "wb") as file:
                file.write(data)
        with open(path, "wb") as file:
            file.write(mutator(rng, data))

    def make_gguf(self, rng, work):
        copy(rng.choice(self.ggufs), os.path.join(work, "model.gguf"))
        self.change(rng, os.path.join(work, "model.gguf"), mutate_gguf)
        return self.model_command(rng, "model.gguf", True)

    def make_folder(self, rng, work, names, mutator, source=None):
        copy(source or rng.choice(self.folders), os.path.join(work, "model"))
        found = sorted(name for name in os.listdir(os.path.join(work, "model")) if name.endswith(names))
        self.change(rng, os.path.join(work, "model", rng.choice(found)), mutator)
        return self.model_command(rng, "model", os.path.exists(os.path.join(work, "model", "tokenizer.json")))

    def make_safetensors(self, rng, work):
        return self.make_folder(rng, work, (".safetensors",), mutate_safetensors, rng.choice((TINY, None)))

    def make_config(self, rng, work):
        return self.make_folder(rng, work, ("config.json",), mutate_json)

    def make_tokenizer(self, rng, work):
        return self.make_folder(rng, work, ("tokenizer.json",), mutate_json, TINY)

    def make_index(self, rng, work):
        return self.make_folder(rng, work, (".index.json",), mutate_json, TINY)

    def bundle_command(self, rng, name):
        return rng.choice([["show", name, "--json"], ["verify", "-p", "alice.pub", name], ["tokenize", "-m", name, "-p", "the quick", "--json"],
                           ["run", "-m", name, "--allow-unsigned", "-p", "the quick", "-n", "4", "--temp", "0", "--json"]])

    def take(self, work, *names):
        for name in names:
            copy(self.stage.prepared(name), os.path.join(work, name))

    def take_signed(self, work):
        self.take(work, "alice.pub", "alice.key")
        signed = self.world.path("signed.mlxb")
        with self.stage.making:
            if not os.path.exists(signed):
                copy(self.stage.prepared("one.mlxb"), signed)
                self.stage.run(["sign", "-s", "alice.key", signed], work)
        copy(signed, os.path.join(work, "one.mlxb"))

    def make_manifest(self, rng, work):
        self.take_signed(work)
        self.change(rng, os.path.join(work, "one.mlxb", "manifest.json"), mutate_json)
        if rng.random() < 0.5:
            os.unlink(os.path.join(work, "one.mlxb", "manifest.json.minisig"))
        return self.bundle_command(rng, "one.mlxb")

    def make_signature(self, rng, work):
        self.take_signed(work)
        self.change(rng, os.path.join(work, "one.mlxb", "manifest.json.minisig"), mutate_text)
        return self.bundle_command(rng, "one.mlxb")

    def make_key(self, rng, work):
        self.take(work, "file.mlxb", "alice.pub", "alice.key")
        name = rng.choice(("alice.pub", "alice.key"))
        self.change(rng, os.path.join(work, name), mutate_text)
        if name == "alice.key":
            return ["sign", "-s", "alice.key", "file.mlxb"]
        return rng.choice((["verify", "-p", "alice.pub", "file.mlxb"], ["trust", "add", "alice.pub"]))

    def make_archive(self, rng, work):
        self.take(work, "file.mlxb", "alice.pub")
        self.change(rng, os.path.join(work, "file.mlxb"), lambda rng, data: mutate_bytes(rng, data, rng.choice((2048, 8192, len(data)))))
        return self.bundle_command(rng, "file.mlxb")

    def make_weights(self, rng, work):
        """A damaged weights archive with the digests that fit it."""
        self.take(work, "one.mlxb", "alice.pub")
        weights, path = os.path.join(work, "one.mlxb", "weights.irpa"), os.path.join(work, "one.mlxb", "manifest.json")
        self.change(rng, weights, lambda rng, data: mutate_bytes(rng, data, rng.choice((256, 4096, len(data)))))
        with open(weights, "rb") as file:
            data = file.read()
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        tree = hashlib.sha256(b"".join(hashlib.sha256(data[at:at + CHUNK]).digest() for at in range(0, len(data), CHUNK))).hexdigest()
        fit_digests(manifest, "weights.irpa", len(data), hashlib.sha256(data).hexdigest(), tree)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(manifest, file)
        return ["run", "-m", "one.mlxb", "--allow-unsigned", "-p", "the quick", "-n", "4", "--temp", "0", "--json"]


def fit_digests(value, name, size, sha256, tree):
    """Sets size and digests of a file wherever the manifest describes it."""
    if isinstance(value, list):
        for item in value:
            fit_digests(item, name, size, sha256, tree)
    elif isinstance(value, dict):
        for key, item in value.items():
            fit_digests(item, name, size, sha256, tree)
        about = value.get(name) if isinstance(value.get(name), dict) else value if name in (value.get("name"), value.get("path"), value.get("file")) else None
        for key, new in (("size", size), ("sha256", sha256), ("tree", tree)):
            if about is not None and key in about:
                about[key] = new
