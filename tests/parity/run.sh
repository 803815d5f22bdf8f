#!/usr/bin/env bash
# Checks against implementations that are not ours; ./build.sh parity calls it with MLXCEL_BUILD and MLXCEL_MODEL set.
#   stablehlo   the emitted module in jaxlib's StableHLO reference interpreter
#   tokenizer   100,000 lines against Hugging Face's tokenizers, with SmolLM2's vocabulary (--variants: other families)
#   kinds       100,000 lines for each kind of tokenizer, trained here: BPE of bytes, of characters, Unigram, WordPiece
set -euo pipefail
cd "$(dirname "$0")"
python=$MLXCEL_BUILD/parity
export MLXCEL_CACHE=$MLXCEL_BUILD/test-cache
python3 smoke.py "$MLXCEL_BUILD" --install
export PYTHONPATH=$python
python3 stablehlo.py "$MLXCEL_BUILD/bin/mlxcel"
"$MLXCEL_BUILD/bin/mlxcel" compile "$MLXCEL_MODEL" -o "$MLXCEL_BUILD/parity-smollm2.mlxb"
python3 tokenizer_lines.py "$MLXCEL_BUILD/tests/tokenizer_dump" "$MLXCEL_BUILD/parity-smollm2.mlxb/tokenizer.json" --lines 100000 "$@"
python3 tokenizer_kinds.py "$MLXCEL_BUILD/tests/tokenizer_dump" --lines 100000
