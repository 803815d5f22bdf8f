#!/usr/bin/env bash
# Prints the SHA-256 of everything the compiler makes of every fixture: the StableHLO text, the MLIR handed to
# iree-compile for a CPU and for a GPU, with and without our kernels, the CUDA kernels, and each weight archive. Two
# trees compile alike when their lists are equal:
#
#   tests/parity/identity.sh build >before   (in one tree)
#   tests/parity/identity.sh build >after    (in the other)
#   diff before after
#
# iree-compile itself does not run: a stand-in records its input. CUDA kernels are compiled by NVRTC once per list.
# With NAME as a second argument, only fixtures whose name contains NAME are compiled.
set -euo pipefail
build=$(realpath "$1")
only=${2:-}
fixtures=$(realpath "$(dirname "$0")/../fixtures")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MLXCEL_CACHE=$work/cache
real=$build/deps/iree-base-compiler/iree/compiler/_mlir_libs/iree-compile

cat >"$work/iree-compile" <<STUB
#!/bin/sh
for word; do
  case \$word in
    --version) exec '$real' --version ;;
    --iree-hal-executable-object-search-path=*) cp "\${word#*=}"/*.fatbin '$work/images' 2>/dev/null ;;
    -o) take=1 ;;
    *) [ -z "\${take:-}" ] || { output=\$word; take=; } ;;
  esac
done
cat >>'$work/mlir'
echo stand-in >"\$output"
STUB
chmod +x "$work/iree-compile"

# A fixture without a tokenizer borrows tiny-llama's.
model_folder() {  # FIXTURE
  case $1 in *.gguf) echo "$1"; return ;; esac
  local folder=$work/models/$(basename "$1")
  mkdir -p "$folder"
  ln -sf "$1"/* "$folder"
  [ -e "$folder/tokenizer.json" ] || ln -s "$fixtures/tiny-llama/tokenizer.json" "$folder"
  echo "$folder"
}

digest() { sha256sum | cut -c1-64; }

record() {  # NAME MODEL OPTIONS...
  local name=$1 model=$2 file
  shift 2
  rm -rf "$work/mlir" "$work/images" "$work/out.mlxb" "$work/cache/vmfb"
  mkdir "$work/images"
  if ! "$build/bin/mlxcel" compile "$model" --no-config --iree-compile "$work/iree-compile" -o "$work/out.mlxb" "$@" >"$work/log" 2>&1 </dev/null; then
    echo "$name $*: exit status not 0"
    return
  fi
  case $* in *stablehlo*) echo "$name $*: $(digest <"$work/out.mlxb")" ;; esac
  [ ! -f "$work/mlir" ] || echo "$name $*: mlir $(digest <"$work/mlir")"
  [ -z "$(ls "$work/images")" ] || echo "$name $*: kernels $(cd "$work/images" && sha256sum * | digest)"
  for file in "$work/out.mlxb"/*.irpa; do [ ! -f "$file" ] || echo "$name $*: weights $(digest <"$file")"; done
}

# The fixtures are too small for the kernels: a random Llama in bf16 has a size that they take.
random_llama() {  # FOLDER
  mkdir -p "$1"
  ln -sf "$fixtures/tiny-llama/tokenizer.json" "$1"
  python3 - "$1" <<'PYTHON'
import json, random, struct, sys
folder, rng = sys.argv[1], random.Random(7)
hidden, ffn, heads, kv_heads, head_dim, layers, vocab = 512, 1024, 8, 4, 64, 2, 320
shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
for n in range(layers):
    at = "model.layers.%d." % n
    shapes |= {at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,),
               at + "self_attn.q_proj.weight": (heads * head_dim, hidden), at + "self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
               at + "self_attn.v_proj.weight": (kv_heads * head_dim, hidden), at + "self_attn.o_proj.weight": (hidden, heads * head_dim),
               at + "mlp.gate_proj.weight": (ffn, hidden), at + "mlp.up_proj.weight": (ffn, hidden), at + "mlp.down_proj.weight": (hidden, ffn)}
header, data = {}, bytearray()
for name, shape in shapes.items():
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    begin = len(data)
    # The upper half of an f32 between 2^-7 and 2^-3, of either sign, is a bf16.
    data += struct.pack("<%dH" % count, *(0x3C00 + rng.randrange(0x200) | rng.randrange(2) << 15 for _ in range(count)))
    header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(data)]}
head = json.dumps(header).encode()
open(folder + "/model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + data)
json.dump({"model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
           "head_dim": head_dim, "num_hidden_layers": layers, "vocab_size": vocab, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
           "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": 2}, open(folder + "/config.json", "w"))
PYTHON
}

if [ -z "$only" ]; then
  random_llama "$work/models/random-llama"
  for options in '--target cpu:x86-64-v3' '--target cpu:portable' '--target cpu:sapphirerapids --dtype bf16' '--target cpu:x86-64-v4 --quantize q4' \
    '--target cpu:x86-64-v3 --quantize q8' '--target cuda:sm_90' '--target cuda:sm_90 --dtype bf16' '--target cuda:sm_80 --dtype f16' \
    '--target cuda:sm_90 --quantize q4_0' '--target cuda:sm_80 --quantize q4_1' '--target cuda:sm_90 --quantize q8'; do
    record random-llama "$work/models/random-llama" $options --kernels auto
  done
  # A real quantized model, where ./build.sh fetched it.
  smollm2=$build/models/SmolLM2-135M-Instruct.Q4_1.gguf
  [ ! -f "$smollm2" ] || for target in cpu:x86-64-v3 cpu:portable cuda:sm_90 cuda:sm_75; do record smollm2 "$smollm2" --target $target; done
fi

for fixture in "$fixtures"/* "$fixtures"/gguf/*; do
  [ -f "$fixture/config.json" ] || [ "${fixture%.gguf}" != "$fixture" ] || continue
  name=${fixture#"$fixtures/"}
  case $name in *"$only"*) ;; *) continue ;; esac
  model=$(model_folder "$fixture")
  record "$name" "$model" --emit stablehlo
  [ "${name%.gguf}" = "$name" ] || continue  # most GGUF fixtures have no tokenizer, which a bundle needs
  record "$name" "$model" --target cpu:x86-64-v3
  record "$name" "$model" --target cpu:x86-64-v4 --dtype bf16 --kernels off -c 64
  record "$name" "$model" --target cuda:sm_90 --dtype f16
done
