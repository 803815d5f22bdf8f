// Decode: the formats of the matrices of each role, and the forms of their inputs.
#pragma once

#include "decode_rows16.cuh"
#include "decode_tiles.cuh"

template <TileArguments T>
struct FormatOf {
  using Type = Tiles<T.bits, T.numbers, T.offset, T.halves, T.center>;
};
template <TileArguments T>
  requires(T.bits == MLX_DECODE_ROWS)
struct FormatOf<T> {
  using Type = Rows16;
};
// A quantized role may have a second format, which some layers or matrices use: see uses_second.
template <TileArguments FIRST, TileArguments SECOND>
using SecondFormatOf = typename FormatOf<SECOND.bits ? SECOND : FIRST>::Type;

using QkvFormat = FormatOf<config.qkv_tiles>::Type;
using OFormat = FormatOf<config.o_tiles>::Type;
using GateFormat = FormatOf<config.gate_tiles>::Type;
using DownFormat = FormatOf<config.down_tiles>::Type;
using HeadFormat = FormatOf<config.head_tiles>::Type;
using EmbedFormat = FormatOf<config.embed_tiles>::Type;
using SharedGateFormat = FormatOf<config.shared_gate_tiles>::Type;
using SharedDownFormat = FormatOf<config.shared_down_tiles>::Type;
using InFormat = FormatOf<config.recurrent_tiles>::Type;
using QkvFormat2 = SecondFormatOf<config.qkv_tiles, config.qkv_tiles_2>;
using OFormat2 = SecondFormatOf<config.o_tiles, config.o_tiles_2>;
using GateFormat2 = SecondFormatOf<config.gate_tiles, config.gate_tiles_2>;
using DownFormat2 = SecondFormatOf<config.down_tiles, config.down_tiles_2>;
using SharedGateFormat2 = SecondFormatOf<config.shared_gate_tiles, config.shared_gate_tiles_2>;
using SharedDownFormat2 = SecondFormatOf<config.shared_down_tiles, config.shared_down_tiles_2>;
using InFormat2 = SecondFormatOf<config.recurrent_tiles, config.recurrent_tiles_2>;

// Inputs of products. Their form depends on the format of the matrices.
using QkvInput = QkvFormat::Activations<HIDDEN>;
using OInput = OFormat::Activations<Q_WIDTH>;
using GateInput = GateFormat::Activations<HIDDEN>;
using DownInput = DownFormat::Activations<FFN_PARTS == 1 ? DOWN_WIDTH : part_of(FFN, 0)>;
using HeadInput = HeadFormat::Activations<HIDDEN>;
using SharedGateInput = SharedGateFormat::Activations<HIDDEN>;
using SharedDownInput = SharedDownFormat::Activations<part_of(SHARED_FFN, 0)>;
using OutInput = OFormat::Activations<RECURRENT ? OUT_WIDTH : Q_WIDTH>;  // of a recurrent layer
static_assert(!RECURRENT || Same<InFormat::Activations<HIDDEN>, QkvInput>::value,
              "compiler/plan_network.c rejects another form of the layer's input");

constexpr int SHARED_PARTS = Tiling<SHARED_FFN>::parts;
// Only tiles share a stage.
constexpr int SHARED_PAIR_ROWS = Same<SharedGateInput, GateInput>::value ? PAIR_ROWS : 1;
// The last layer computes the input of the head in the form of its own input.
constexpr bool HEAD_LIKE_QKV = Same<QkvInput, HeadInput>::value;
// Whether every block keeps the residual stream: to add norms of outputs to it; or because gate and up have
// the layer's input, but not in the form of the input of q, k and v.
constexpr bool KEEPS_ROW = POST_NORMS || (PARALLEL && (MLP_NORMS || !Same<QkvInput, GateInput>::value));
