// Memory layout of the CPU network kernel (network.c). Plain C, because compiler/ includes it to write the
// data that the kernel reads: weight panels, the KV pool, the scratch tensor and the program.
//
// A matrix is stored as panels of 16 rows. The 16 values of one column, or the codes of one block of 32
// columns, are contiguous, so that one vector register holds one column of 16 rows. Rows past the last row of
// the matrix are zero. Contents of a panel, per column or per block of 32 columns:
//
//   F32, F16        one column: 16 values
//   BF16            two columns: 16 pairs of neighbouring values, as an AMX tile needs them. The last pair
//                   of an odd number of columns ends with zero
//   Q4_0            16 scales (f16), then 4 times 16 u32: 8 codes of 4 bits of one row, first column lowest
//   Q4_1            16 scales and 16 offsets (f16), then codes as in Q4_0
//   Q5_0            16 scales (f16), then codes of 5 bits: the low four bits as in Q4_0, then 16 u32 with
//                   the highest bit of the 32 codes of a row. Column c of octet o, of 8 columns, has bit
//                   8 * (c / 2) + 2 * o + c % 2
//   Q5_1            16 scales and 16 offsets (f16), then codes as in Q5_0
//   Q8_0            16 scales (f16), then per column 16 signed bytes
//   Q4_WIDE         as Q4_1, with scales and offsets in f32
//   Q8_WIDE         16 scales and 16 offsets (f32), then per column 16 unsigned bytes
//   Q8_HALVES       16 scales (f32) for columns 0-15, 16 scales for columns 16-31, then codes as in Q8_0
//   Q8_1            as Q8_WIDE, with scales and offsets in f16
//   Q4_BF16         as Q4_1, with scales and offsets in bf16
//   Q8_BF16         as Q8_WIDE, with scales and offsets in bf16
//   IQ4_NL          as Q4_0; a code is an index of a table
//   MXFP4           16 exponents of scales (u8), then codes as in IQ4_NL
//
// The K formats have super-blocks of 256 columns, which are 8 blocks. A super-block starts with f16 factors.
// The bytes in its blocks multiply these factors to give the scales and offsets of the block:
//
//   Q4_K            super-block: 16 scale and 16 offset factors; block: 16 scale bytes, 16 offset bytes, then
//                   codes as in Q4_1
//   Q5_K            as Q4_K, with codes as in Q5_0
//   Q6_K            super-block: 16 scale factors; block: 16 signed scale bytes for columns 0-15, 16 for
//                   columns 16-31, then codes of 6 bits: the low four bits as in Q4_0, then two times 16
//                   u32 with the two highest bits of the codes of two octets. Column c of octet o has the
//                   bits 8 * (c / 2) + 4 * (o % 2) + 2 * (c % 2) and up
//   Q2_K            as Q4_K, with separate scale bytes and offset bytes for columns 0-15 and columns 16-31
//   Q3_K            as Q6_K, with codes as in Q4_0
//   IQ4_XS          super-block: 16 scale factors; block: 16 signed scale bytes, then codes as in IQ4_NL
//
// panel_format.h has the same formats as a table; graph/dtype.c maps each file type to a format.
//
// KV pool: [pool pages][layers that store keys and values][KV heads of the layer], then states (step.h). A
// head has the keys and the values of a page. Padded: head_dim of the layer rounded up to 16.
//   F32, F16, BF16  keys [head_dim][16 positions]; values [16 positions][padded]
//   Q8              keys and values as signed bytes in that order, each followed by 16 scales (f32), one per
//                   position
// A layer with latent attention has one head and no values: keys [16 positions][padded], whose padding is
// zero.
#ifndef MLXCEL_KERNELS_CPU_LAYOUT_H_
#define MLXCEL_KERNELS_CPU_LAYOUT_H_

#include <stdint.h>

#include "../activations.h"
#include "panel_format.h"

#define MLX_CPU_PAGE 16          // positions in a KV page; equals the vector width of the kernel
#define MLX_CPU_STEP_TOKENS 512  // most tokens of a step, except of a longer text that an encoder reads
#define MLX_CPU_MAX_WANTED 256   // wanted tokens of a step
#define MLX_CPU_WORKGROUPS 64    // workgroups of one call: the maximum number of threads
#define MLX_CPU_MAX_COLUMNS 65536
#define MLX_CPU_MAX_HEAD_DIM 512
#define MLX_CPU_MAX_LATENT 640  // numbers of a key of latent attention
#define MLX_CPU_MAX_TAPS 8      // of a convolution
#define MLX_CPU_MAX_EXPERTS 1024
#define MLX_CPU_MAX_USED 64           // experts per token
#define MLX_CPU_CONTROL_WORDS 128     // 32-bit words at the start of the scratch tensor, for control_t
#define MLX_CPU_MIN_LONG 8            // tokens of a long segment (products.h)
#define MLX_CPU_SAMPLERS 8            // wanted tokens that are sampled at the same time
#define MLX_CPU_SAMPLING_WORDS 11264  // words of mlx_sample_scratch_t (sample_row.h)

static inline int64_t mlx_round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

typedef enum mlx_kv_format { MLX_KV_F32, MLX_KV_F16, MLX_KV_BF16, MLX_KV_Q8 } mlx_kv_format_t;

// Bytes of the keys, or of the values, of one head in one page.
static inline int64_t mlx_kv_head_bytes(int32_t format, int64_t head_dim) {
  const int64_t values = MLX_CPU_PAGE * mlx_round_up(head_dim, 16);
  if (format == MLX_KV_Q8) return values + MLX_CPU_PAGE * 4;
  return values * (format == MLX_KV_F32 ? 4 : 2);
}
static inline int64_t mlx_kv_page_bytes(int32_t format, int64_t kv_heads, int64_t head_dim) {
  return 2 * kv_heads * mlx_kv_head_bytes(format, head_dim);
}

// ----------------------------------------------------------------------------------------------------------
// The program: mlx_program_t, mlx_phase_t[phases], mlx_instruction_t[instructions], float[floats].

#define MLX_NO_WEIGHT UINT64_MAX

// A weight: byte offset in the archive and, for a matrix, its panel format. Vectors are plain f32, column
// orders i32.
typedef struct mlx_program_weight {
  uint64_t at;  // MLX_NO_WEIGHT: none
  int32_t format, padding;
} mlx_program_weight_t;

// A value in the scratch tensor: f32 [rows][stride], and the same as bf16 parts (tile_amx.h) if a product
// reads it on AMX tiles. Offsets are in 32-bit words.
typedef struct mlx_program_buffer {
  int64_t at;      // column 0 of row 0
  int64_t parts;   // 0: no parts
  int32_t stride;  // from one row to the next
  int32_t stores;  // MLX_STORE_*; 0: as MLX_STORE_PLAIN
} mlx_program_buffer_t;
// What is stored of a row, which depends on its segment (products.h).
enum {
  MLX_STORE_LONG_PARTS = 1,   // parts of rows of long segments
  MLX_STORE_SHORT_PARTS = 2,  // parts of the other rows
  MLX_STORE_LONG_PLAIN = 4,   // f32 values of rows of long segments
  MLX_STORE_SHORT_PLAIN = 8,
  MLX_STORE_PARTS = MLX_STORE_LONG_PARTS | MLX_STORE_SHORT_PARTS,
  MLX_STORE_PLAIN = MLX_STORE_LONG_PLAIN | MLX_STORE_SHORT_PLAIN
};

typedef enum mlx_instruction_kind {
  // One item.
  MLX_RUN_LIST,    // lists the tokens of the step
  MLX_RUN_GROUP,   // mixture of experts: sorts the pairs of token and expert by expert
  MLX_RUN_SPREAD,  // out [heads][mlx_distances()] = |weight| [..][heads] by distance: the row of distance
                   // number k is number k of the floats at |floats|
  // One item per row. Neighbouring instructions of this group share a phase.
  MLX_RUN_EMBED,       // out = row of the table |weight|; op: MLX_INDEX_*
  MLX_RUN_ROPE_TABLE,  // out = cosines, then sines of the |dims| / 2 frequencies at |floats|, times
                       // numbers[0]
  MLX_RUN_NORM,        // out = norm of each of |heads| groups of |width| values of a; op: MLX_NORM_*;
                       // numbers[0]: eps. MLX_NORM_MATCH: a with the mean of squares of b; numbers[0]: least.
                       // MLX_NORM_SPARSIFY: what is above the mean; numbers[0]: standard deviations
  MLX_RUN_MAP,         // out = op(a, b), element by element; op: MLX_MAP_*
  MLX_RUN_PERMUTE,     // out = a with its columns in the order |weight|
  MLX_RUN_PICK,        // out = |width| columns from |dims| on of each of |heads| heads of |head_dim| columns;
                       // heads of the result are |out_rows| columns apart
  MLX_RUN_ROPE,        // out = a with |dims| values of each head rotated; b: the table; op: 1: adjacent pairs
  MLX_RUN_APPEND,  // stores the keys a and the values b in the KV pool; op: 1: the latent keys a (latent.c)
  MLX_RUN_ROUTE,   // chooses the experts of a token from the scores a; op: MLX_ROUTE_*; |bias|: of the
                   // choice; |up|: factors of the experts; heads, kv_heads: groups of experts, and those
                   // of a token; numbers: sum_eps, weight_scale, spread; |dims|: where its experts are among
                   // the |width| routes of a token (step.h)
  MLX_RUN_EXPERT_SUM,  // out = weighted sum of the expert outputs a
  MLX_RUN_POOL,        // out = row |row| of the pool of the rows a of a text; op: MLX_POOL_OF_*
  MLX_RUN_SUM_RANKS,   // out = a plus the same value of the other ranks; |heads|: ranks; |kv_heads|: own rank
  MLX_RUN_HIDDEN,      // copies a to the argument |hidden|
  MLX_RUN_SAMPLE,      // samples a token, and fills a row of |results|
  // Many items.
  MLX_RUN_ATTEND,          // out = attention of the queries a
  MLX_RUN_CONVOLVE,        // out = convolution of a with |weight| [width][dims taps] and |bias|; op: 1: SiLU
  MLX_RUN_DELTA,           // out = gated delta rule of a; b: steps, c: betas; see delta.c
  MLX_RUN_SCAN,            // out = selective scan of a; b: steps; see scan.c
  MLX_RUN_PRODUCT,         // out = weight times a, with an epilogue. Products with equal |a| share a phase
  MLX_RUN_EXPERT_PRODUCT,  // the same for each pair of token and expert; op: 1: row i of a is pair i
  MLX_RUN_HEAD_PRODUCT,    // out = a product of its own for each of |heads| groups of |width| columns of a
  MLX_RUN_ATTEND_LATENT,   // out = latent attention of the queries a; |width|: numbers of a value
} mlx_instruction_kind_t;

typedef enum mlx_rows {
  MLX_ROWS_TOKENS,  // all tokens of the step
  MLX_ROWS_SELECT,  // reads the rows of the wanted tokens, writes row 0, 1, ...
  MLX_ROWS_WANTED,  // one row per wanted token
} mlx_rows_t;

enum { MLX_INDEX_TOKENS, MLX_INDEX_POSITIONS, MLX_INDEX_TYPES };
enum { MLX_POOL_OF_MEAN, MLX_POOL_OF_FIRST, MLX_POOL_OF_LAST, MLX_POOL_OF_MAX };
enum { MLX_NORM_RMS, MLX_NORM_LAYER, MLX_NORM_MATCH, MLX_NORM_SPARSIFY };
enum { MLX_SCAN_LOG_RATE = 1, MLX_SCAN_STATE_RATES = 2 };
enum { MLX_ROUTE_SIGMOID = 1, MLX_ROUTE_GROUPS_BY_BEST = 2 };
typedef enum mlx_map_op {
  MLX_MAP_COPY,
  MLX_MAP_ADD,
  MLX_MAP_MULTIPLY,
  MLX_MAP_SCALE,    // a * numbers[0]
  MLX_MAP_SOFTCAP,  // numbers[0] * tanh(a / numbers[0])
  MLX_MAP_CLIP,     // to [-numbers[0], numbers[0]]
  MLX_MAP_GROW,     // a * (1 + numbers[0] * log(1 + floor(position / period))); period: |dims|
  MLX_MAP_SIGMOID,
  MLX_MAP_SCALE_ROWS,                     // a * b[0]
  MLX_MAP_BIAS,                           // a + the vector |weight|
  MLX_MAP_GAIN,                           // a * the vector |weight|
  MLX_MAP_ACTIVATE,                       // act(a); MLX_MAP_ACTIVATE + act
  MLX_MAP_GATED = MLX_MAP_ACTIVATE + 32,  // act(a) * b; MLX_MAP_GATED + act
} mlx_map_op_t;
#define MLX_RUN_ENUMERATOR(name, text) MLX_RUN_##name,
enum { MLX_ACTIVATION_TABLE(MLX_RUN_ENUMERATOR) MLX_RUN_NO_ACT };
#undef MLX_RUN_ENUMERATOR

// Epilogue of a product, applied in this order: + bias, clip to [-clip, clip], act (with |up|: act(value) *
// (up + up_bias)), * factor, softcap, + b. Numbers that are 0 have no effect.
typedef struct mlx_instruction {
  int32_t kind, rows, op;
  int32_t width;  // columns of a (product, norm, map); of the table (embed)
  mlx_program_buffer_t a, b, c, out;
  mlx_program_weight_t weight, up, bias, up_bias;
  float numbers[MLX_ACT_NUMBERS];  // attention: scale, softcap; product: of |act|
  // Products.
  int32_t out_rows;  // of the matrix
  int32_t act;
  int32_t adds;                    // 1: adds b
  int32_t logits;                  // 1: the output is the logits, not |out|
  float clip, factor, cap, slope;  // experts with a slope: see epilogue.c; |clip| is the limit
  // Attention, RoPE, experts.
  int32_t heads, kv_heads, head_dim, dims;
  int32_t window;  // 0: none
  int32_t pages;   // 1: the layer is in the window pages
  int32_t whole;   // 1: attention of whole texts: see attention.c
  int32_t span;    // of it: positions before and after that a token sees; 0: all
  int32_t padding;
  int32_t experts, used, sum_to_one;
  int64_t kv_at;    // byte offset of the layer in its page; of a recurrent op in a state
  int64_t floats;   // index of its floats
  int64_t routing;  // word offset of the arrays of experts.h
} mlx_instruction_t;

typedef struct mlx_phase {
  int32_t first, count;  // instructions
} mlx_phase_t;

typedef struct mlx_program {
  int32_t phases, instructions, floats, vocab;
  int32_t hidden;     // columns of |hidden|
  int32_t kv_format;  // mlx_kv_format_t
  int32_t tiles;      // 1: use AMX tiles
  int32_t types;      // of tokens: ID |vocab| + i is token i with type 1, if there are two
  int32_t capacity;   // most tokens of a step
  // 1: multiply quantized weights row by row in segments of any length. A KV cache with fewer bits than f32
  // would amplify the small differences between the ways to multiply.
  int32_t row_by_row;
  int64_t page_bytes;         // of a page of the KV pool
  int64_t window_page_bytes;  // of a window page; 0: there are none
  int64_t state_bytes;        // of a state; 0: there are none
  // Offsets into the scratch tensor.
  int64_t tokens;    // arrays of call.h: mlx_token_words()
  int64_t best;      // [MLX_CPU_MAX_WANTED][panels of the output head] largest logit of the panel
  int64_t sampling;  // [MLX_CPU_SAMPLERS] of mlx_sampling_words(vocab)
  int64_t words;     // size of the scratch tensor
} mlx_program_t;
_Static_assert(sizeof(mlx_program_t) % 8 == 0 && sizeof(mlx_instruction_t) % 8 == 0, "the parts are aligned");

// Size of activations split into three bf16 parts, in 32-bit words: 768 per block of 16 tokens x 32 columns.
static inline int64_t mlx_parts_words(int64_t tokens, int64_t columns) {
  return mlx_round_up(tokens, 32) / 16 * (mlx_round_up(columns, MLX_PANEL_BLOCK) / MLX_PANEL_BLOCK) * 768;
}

// The size of |kv| is a multiple of this number of bytes. The kernel gets it as a 32-bit number of such
// units.
static inline int64_t mlx_kv_common(int64_t a, int64_t b) {
  while (b) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}
static inline int64_t mlx_kv_unit(int64_t page_bytes, int64_t window_page_bytes, int64_t state_bytes) {
  return mlx_kv_common(mlx_kv_common(page_bytes, window_page_bytes), state_bytes);
}

// Words of the arrays that describe the tokens of a step (call.h).
static inline int64_t mlx_token_words(int64_t capacity) { return 10 * capacity + MLX_CPU_MAX_WANTED; }

// Distances of a key and a query, from -(capacity - 1) on, and room for a vector after the last.
static inline int64_t mlx_distances(int64_t capacity) { return 2 * capacity + 32; }

// Words of the scratch memory of sample_row.h.
static inline int64_t mlx_sampling_words(int64_t vocab) {
  return mlx_round_up(MLX_CPU_SAMPLING_WORDS + 2 * vocab, 16);
}

// The exchange of ranks (ranks.c), in 32-bit words: a word that ends all waiting, a counter for each rank and
// row, and two parts of each rank and row: while a rank reads one, the others may store the next.
#define MLX_EXCHANGE_COUNTERS 16  // word offset of the counters
#define MLX_MOST_EXCHANGED 8      // ranks
static inline int64_t mlx_exchange_parts(int64_t ranks) {
  return MLX_EXCHANGE_COUNTERS + ranks * MLX_CPU_STEP_TOKENS;
}
static inline int64_t mlx_exchange_words(int64_t ranks, int64_t width) {
  return mlx_exchange_parts(ranks) + 2 * ranks * MLX_CPU_STEP_TOKENS * width;
}

// Words of the arrays of a mixture of experts (experts.h).
static inline int64_t mlx_routing_words(int64_t capacity, int64_t used, int64_t experts) {
  return mlx_round_up(3 * capacity * used + experts + 1, 16);
}

#endif  // MLXCEL_KERNELS_CPU_LAYOUT_H_
