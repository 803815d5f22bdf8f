// Decode: the formats of the matrices of each role, and the forms of their inputs.

template <int BITS, int... REST>
struct FormatOf {
  using Type = Tiles<BITS, REST...>;
};
template <>
struct FormatOf<16> {
  using Type = Rows16;
};
using QkvFormat = FormatOf<QKV_TILES>::Type;
using OFormat = FormatOf<O_TILES>::Type;
using GateFormat = FormatOf<GATE_TILES>::Type;
using DownFormat = FormatOf<DOWN_TILES>::Type;
using HeadFormat = FormatOf<HEAD_TILES>::Type;
using EmbedFormat = FormatOf<EMBED_TILES>::Type;

// A quantized role may have a second format, which some layers or matrices use: see uses_second.
#ifdef QKV_TILES_2
using QkvFormat2 = Tiles<QKV_TILES_2>;
#else
using QkvFormat2 = QkvFormat;
#endif
#ifdef O_TILES_2
using OFormat2 = Tiles<O_TILES_2>;
#else
using OFormat2 = OFormat;
#endif
#ifdef GATE_TILES_2
using GateFormat2 = Tiles<GATE_TILES_2>;
#else
using GateFormat2 = GateFormat;
#endif
#ifdef DOWN_TILES_2
using DownFormat2 = Tiles<DOWN_TILES_2>;
#else
using DownFormat2 = DownFormat;
#endif

// Inputs of products. Their form depends on the format of the matrices.
using QkvInput = QkvFormat::Activations<HIDDEN>;
using OInput = OFormat::Activations<Q_WIDTH>;
using GateInput = GateFormat::Activations<HIDDEN>;
using DownInput = DownFormat::Activations<FFN_PARTS == 1 ? DOWN_WIDTH : PART_OF(FFN, 0)>;
using HeadInput = HeadFormat::Activations<HIDDEN>;

#ifdef SHARED_FFN
using SharedGateFormat = FormatOf<SHARED_GATE_TILES>::Type;
using SharedDownFormat = FormatOf<SHARED_DOWN_TILES>::Type;
#ifdef SHARED_GATE_TILES_2
using SharedGateFormat2 = Tiles<SHARED_GATE_TILES_2>;
#else
using SharedGateFormat2 = SharedGateFormat;
#endif
#ifdef SHARED_DOWN_TILES_2
using SharedDownFormat2 = Tiles<SHARED_DOWN_TILES_2>;
#else
using SharedDownFormat2 = SharedDownFormat;
#endif
#define SHARED_PARTS Tiling<SHARED_FFN>::parts
using SharedGateInput = SharedGateFormat::Activations<HIDDEN>;
using SharedDownInput = SharedDownFormat::Activations<PART_OF(SHARED_FFN, 0)>;
#define SHARED_LIKE_GATE Same<SharedGateInput, GateInput>::value
#define SHARED_PAIR_ROWS (SHARED_LIKE_GATE ? PAIR_ROWS : 1)  // only tiles share a stage
#endif
