// Quantized linear layers (packed_linear.cuh): weights that are tiles of codes with scales and offsets.
#pragma once

#include "packed_linear_shape.cuh"
#include "packed_operands.cuh"
#include "packed_tiles.cuh"
#include "parts.cuh"

struct TileProduct {
  // ---- a lane's share of the weights ----

  static constexpr int FACTORS = (1 + HALVES) * (OFFSET == 2 ? 2 : 1);  // factors of a piece's sums
  static_assert(OFFSET < 2 || HALVES, "offsets of 16 columns come with scales of 16 columns");

  struct Weights {
    const u8 *tile[GROUPS];  // tile of rows 0..7 of each group, in the run that is loaded next
    u32 below[GROUPS];       // bytes to the tile of rows 8..15
    int run;                 // the first one
    u32 words[GROUPS][2][Format::words];
    Format::Scale scale[GROUPS][2];
    Format::Offset offset[GROUPS][2];  // only with OFFSET 2
    float factor[GROUPS][2][FACTORS];  // of the current run: scales, then with OFFSET 2 offsets
  };

  static __device__ __forceinline__ void begin_weights(Weights &v, int group, const u8 *w, int row, int run,
                                                       int rows) {
    const int last = (rows + 7) / 8 - 1, at = row / 8 < last ? row / 8 : last;  // past the end: not stored
    v.tile[group] = w + ((u64)at * run_count() + run) * TILE_BYTES;
    v.below[group] = at < last ? run_count() * TILE_BYTES : 0;
    v.run = run;
  }

  static __device__ __forceinline__ void load_group(Weights &v, int group,
                                                    int nth) {  // load number nth of the codes
    load_codes(v.words[group][0], v.tile[group], nth);
    load_codes(v.words[group][1], v.tile[group] + v.below[group], nth);
  }

  static __device__ __forceinline__ void load_numbers(Weights &v, int group, int run) {
#pragma unroll
    for (int t = 0; t < 2; t++) {
      const u8 *tile = v.tile[group] + (t ? v.below[group] : 0);
      load_scale(v.scale[group][t], tile, run);
      if (OFFSET == 2) load_offset(v.offset[group][t], tile, run);
    }
  }

  // Called when a run begins. Numbers that are stored as they are need no register more: see factor_of.
  static __device__ __forceinline__ void convert_numbers(Weights &v, int group) {
    if (!Format::grouped) return;
#pragma unroll
    for (int i = 0; i < 2 * FACTORS; i++) {
      const int t = i / FACTORS, h = i % FACTORS;
      v.factor[group][t][h] =
          h > HALVES ? offset_of(v.offset[group][t], h - 1 - HALVES) : scale_of(v.scale[group][t], h);
    }
  }

  // Factor |nth| of tile |t| in `piece`.
  static __device__ __forceinline__ float factor_of(const Weights &v, int group, int t, int nth, int piece) {
    if constexpr (Format::grouped) return broadcast_number(v.factor[group][t][nth], piece);
    const u32 stored =
        nth > HALVES ? v.offset[group][t].stored[nth - 1 - HALVES] : v.scale[group][t].stored[nth];
    return Format::to_float(__shfl_sync(~0u, stored, threadIdx.x % 32 / 4 * 4 + piece));
  }

  // Called after the codes of a piece are unpacked. If they were the last of their load, starts the next
  // load, which is used a few hundred cycles later at the earliest. The run after that is prefetched into L2,
  // so that this distance is enough. `next` is the index of the next run, `left` the number of runs after
  // this one.
  static __device__ __forceinline__ void advance(Weights &v, int group, int piece, int next, int left) {
    if (piece % PIECES != PIECES - 1) return;
    if (piece < 3) {
      load_group(v, group, 1);
      return;
    }
    v.tile[group] += TILE_BYTES;
    if (left <= 0) return;
    load_group(v, group, 0);
    load_numbers(v, group, next);
    if (left > 1 && threadIdx.x % 32 < (TILE_BYTES + 127) / 128) {
      const u8 *ahead = v.tile[group] + TILE_BYTES + threadIdx.x % 32 * 128;
      prefetch_l2(ahead);
      prefetch_l2(ahead + v.below[group]);
    }
  }

  // acc += scale * d for one fragment: `upper` scales rows 0..7, `lower` rows 8..15.
  static __device__ __forceinline__ void scale_into(float (&acc)[4], const float (&d)[4], float upper,
                                                    float lower) {
    acc[0] = fmaf(upper, d[0], acc[0]);
    acc[1] = fmaf(upper, d[1], acc[1]);
    acc[2] = fmaf(lower, d[2], acc[2]);
    acc[3] = fmaf(lower, d[3], acc[3]);
  }

  static __device__ __forceinline__ void preload(Weights &v, int group) {  // the first codes and scales
    load_group(v, group, 0);
    load_numbers(v, group, v.run);
  }

  // ---- offsets ----
  // Offsets of 32 columns are added as a separate product: all offsets of a row times the sums of the blocks
  // of x. 16 columns are the 4 blocks of 4 runs, ordered so that a lane uses the offsets it loads. These 16
  // offsets of a row are multiplied by a power of two and split into two f16 parts, or into one if they are
  // f16 or bf16 numbers. Offsets of 16 columns (OFFSET 2) are factors of the sums of x, which are products
  // with ones: a rare format, so it may cost more products.

  static constexpr int OFFSET_PARTS = NUMBERS == NUMBERS_BF16 || NUMBERS == NUMBERS_F16 ? 1 : 2;

  // The f16 parts of 16 offsets of the rows of a lane, and the factors of their products.
  struct Offsets {
    u32 a[2][4];
    float upper, lower;
  };

  // Loads the offsets of the four runs from `run` on; offsets of runs outside [from, to) are zero. v.tile
  // points to run `from`.
  static __device__ __forceinline__ void load_offsets(Format::Offset (&offset)[4][2], const Weights &v,
                                                      int group, int run, int from, int to) {
#pragma unroll
    for (int i = 0; i < 8; i++) {  // order as in unpack: rows 0..7 and 8..15, then 8 columns later
      const int r = run + i / 4 * 2 + i % 2;
      const u8 *tile = v.tile[group] + (i / 2 % 2 ? v.below[group] : 0) + (long long)(r - from) * TILE_BYTES;
      offset[i / 2][i % 2] = Format::Offset{};  // its value is 0
      if (r >= from && r < to) load_offset(offset[i / 2][i % 2], tile, r);
    }
  }

  static __device__ __forceinline__ void split_offsets(Offsets &out, const Format::Offset (&offset)[4][2]) {
    float value[4][2], scale[2];
#pragma unroll
    for (int i = 0; i < 8; i++) value[i / 2][i % 2] = offset_of(offset[i / 2][i % 2], 0);
#pragma unroll
    for (int t = 0; t < 2; t++) {  // the four lanes of a row have the same scale
      float largest =
          largest_of(largest_of(value[t][0], value[t][1]), largest_of(value[t + 2][0], value[t + 2][1]));
      largest = largest_of(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = largest_of(largest, __shfl_xor_sync(~0u, largest, 2));
      scale[t] = scale_below(largest);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
      split_f16(out.a[0][i], out.a[1][i], value[i][0] * scale[i % 2], value[i][1] * scale[i % 2]);
    out.upper = inverse_of(scale[0]) / SUM_SCALE, out.lower = inverse_of(scale[1]) / SUM_SCALE;
  }

  // ---- wgmma ----

  // A unit of work is the product of one group with one block of columns: 32, or 16 with HALVES. With OFFSET
  // 2 a piece has two more units, whose weights are ones. While a warpgroup scales one unit and unpacks the
  // next, the products of the other warpgroups run.
  static constexpr int UNITS = FACTORS;  // units of a piece
  static constexpr int RUN_UNITS = 4 * GROUPS * UNITS;
  // With up to 64 tokens, the next unit is unpacked while the products of this one run. With 128 they take
  // long enough for another warpgroup to unpack and scale, and registers are short.
  static constexpr int OPERANDS = BM <= 64 ? 2 : 1;

  // With 16 tokens the parts of x have a sum each, because one instruction multiplies all of them. That costs
  // registers: experts have large blocks, of which fewer would be resident.
  static constexpr int UNIT_PARTS = BM == 16 && !MIXTURE ? PARTS : 1;

  struct Operand {
    u32 a[2][4];
    float scale[2];
  };

  // Unit |nth| of a run.
  static constexpr __device__ int group_of(int nth) { return nth / UNITS % GROUPS; }
  static constexpr __device__ int piece_of(int nth) { return nth / (GROUPS * UNITS); }

  static __device__ __forceinline__ void prepare(Operand &o, Weights &v, int nth, int next, int left) {
    const int group = group_of(nth), piece = piece_of(nth), factor = nth % UNITS,
              half = factor % (1 + HALVES);
    if (piece == 0 && factor == 0) convert_numbers(v, group);
#pragma unroll
    for (int k = 0; k < 2; k++) {
      if (HALVES && k != half) continue;
      if (factor > HALVES)
        o.a[k][0] = o.a[k][1] = o.a[k][2] = o.a[k][3] = Format::ones;
      else
        Format::unpack(o.a[k], v.words[group][0], v.words[group][1], piece, k);
    }
#pragma unroll
    for (int t = 0; t < 2; t++) o.scale[t] = factor_of(v, group, t, factor, piece);
    if (factor == UNITS - 1) advance(v, group, piece, next, left);
  }

  static __device__ __forceinline__ void start_unit(float (&d)[UNIT_PARTS * FT][4], const Operand &o, int nth,
                                                    u32 stage) {
    const int half = nth % UNITS % (1 + HALVES);
    const u64 tile = matrix_descriptor(stage) + piece_of(nth) % 2 * 4;  // 32 columns: 4 chunks of 16 bytes
    wgmma_fence();
    bool add = false;
#pragma unroll
    for (int p = PARTS - UNIT_PARTS; p >= 0; p--)  // smallest parts first, for accuracy
#pragma unroll
      for (int k = 0; k < 2; k++)
        if (!HALVES || k == half) {
          multiply(d, o.a[k], tile + p * (PLANE / 16) + k * 2, add);
          add = true;
        }
    wgmma_commit();
  }

  static __device__ __forceinline__ void finish_unit(float (&acc)[FT][4],
                                                     const float (&d)[UNIT_PARTS * FT][4],
                                                     const float (&scale)[2]) {
#pragma unroll
    for (int j = 0; j < FT; j++) {
      float sum[4];
#pragma unroll
      for (int e = 0; e < 4; e++)
        sum[e] = UNIT_PARTS == 1 ? d[j][e] : d[(UNIT_PARTS - 1) * FT + j][e] + d[j][e];
      scale_into(acc[j], sum, scale[0], scale[1]);
    }
  }

  // The products of four runs have their own sum, which is then added, because tensor cores do not round sums
  // to nearest.
  static __device__ __forceinline__ void add_offsets_wgmma(float (&acc)[GROUPS][FT][4], const Weights &v,
                                                           u32 stage, int run, int from, int to) {
    float d[FT][4] = {};
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      Format::Offset offset[4][2];
      load_offsets(offset, v, g, run, from, to);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        if (run + k * 4 >= to) break;  // the sums of later runs were never written
        Offsets o;
        split_offsets(o, offset);
        if (k < 3) load_offsets(offset, v, g, run + k * 4 + 4, from, to);
        wgmma_fence();
#pragma unroll
        for (int i = 2 * OFFSET_PARTS - 1; i >= 0; i--)  // smallest parts first
          multiply(d, o.a[i / 2], matrix_descriptor(stage + i % 2 * PLANE) + k * 2, i < 2 * OFFSET_PARTS - 1);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < FT; j++) scale_into(acc[g][j], d[j], o.upper, o.lower);
      }
    }
  }

  template <typename Enter>
  static __device__ __forceinline__ void multiply_chunks_wgmma(float (&acc)[GROUPS][FT][4], Weights &v,
                                                               Chunks chunks, Enter enter) {
    float d[UNIT_PARTS * FT][4];
#pragma unroll
    for (int i = 0; i < UNIT_PARTS * FT * 4; i++) d[i / 4][i % 4] = 0;
    if (SUMS)
      for (int chunk = 0; chunk < chunks.lead(); chunk++)
        add_offsets_wgmma(acc, v, enter(chunk), (chunks.first / 16 + chunk) * 16, chunks.first,
                          chunks.first + chunks.runs);
    Operand operands[OPERANDS];
    Operand &last = operands[OPERANDS - 1];  // of the unit before the first one of a run
    last.scale[0] = last.scale[1] = 0;       // the first finish_unit() adds nothing
    auto prepare_unit = [&](int run, int nth) {
      prepare(operands[nth % OPERANDS], v, nth, chunks.first + run + 1, chunks.runs - 1 - run);
    };
    if (OPERANDS == 2 && chunks.runs > 0) prepare_unit(0, 0);
    u32 stage = 0;
    for (int run = 0; run < chunks.runs; run++)
#pragma unroll
      for (int nth = 0; nth < RUN_UNITS; nth++) {
        wgmma_wait<0>();
        finish_unit(acc[group_of(nth + RUN_UNITS - 1)], d, operands[(nth + OPERANDS - 1) % OPERANDS].scale);
        if (nth % (RUN_UNITS / 2) == 0) stage = enter(chunks.lead() + run * 2 + nth / (RUN_UNITS / 2));
        if (OPERANDS == 1) prepare_unit(run, nth);
        start_unit(d, operands[nth % OPERANDS], nth, stage);
        if (OPERANDS == 1) continue;
        if (nth + 1 < RUN_UNITS)
          prepare_unit(run, nth + 1);
        else if (run + 1 < chunks.runs)
          prepare_unit(run + 1, 0);
      }
    wgmma_wait<0>();
    finish_unit(acc[GROUPS - 1], d, last.scale);
  }

  // ---- mma.sync ----

  // Multiplies one piece of a run, for all groups.
  static __device__ __forceinline__ void multiply_piece(float (&acc)[GROUPS][FT][4], Weights &v, u32 stage,
                                                        int column, int piece, int next, int left) {
    u32 a[GROUPS][2][4];
    float factor[GROUPS][2][FACTORS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      if (piece == 0) convert_numbers(v, g);
#pragma unroll
      for (int k = 0; k < 2; k++) {
        Format::unpack(a[g][k], v.words[g][0], v.words[g][1], piece, k);
#pragma unroll
        for (int h = 0; h < FACTORS; h++) factor[g][k][h] = factor_of(v, g, k, h, piece);
      }
      advance(v, g, piece, next, left);
    }
#pragma unroll
    for (int j = 0; j < FT; j += 2) {  // two fragments of 8 tokens at a time
      u32 b[2][PARTS][4];
#pragma unroll
      for (int i = 0; i < 2 * PARTS; i++)
        load_tokens(b[i / PARTS][i % PARTS], stage + i % PARTS * PLANE, column + j * 8,
                    piece % 2 * 4 + i / PARTS * 2);
#pragma unroll
      for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
          float d[2][4] = {};
#pragma unroll
          for (int p = PARTS - 1; p >= 0; p--)  // smallest parts first, for accuracy
#pragma unroll
            for (int k = 0; k < 2; k++)
              mma_f16(d[HALVES ? k : 0], a[g][k], b[k][p][n * 2], b[k][p][n * 2 + 1]);
#pragma unroll
          for (int h = 0; h <= HALVES; h++) scale_into(acc[g][j + n], d[h], factor[g][0][h], factor[g][1][h]);
#pragma unroll
          for (int h = 1 + HALVES; h < FACTORS; h++) {  // offsets of 16 columns
            const int k = h - 1 - HALVES;
            float sum[4] = {};
#pragma unroll
            for (int p = PARTS - 1; p >= 0; p--)
              mma_f16(sum, {Format::ones, Format::ones, Format::ones, Format::ones}, b[k][p][n * 2],
                      b[k][p][n * 2 + 1]);
            scale_into(acc[g][j + n], sum, factor[g][0][h], factor[g][1][h]);
          }
        }
    }
  }

  static __device__ __forceinline__ void add_offsets(float (&acc)[GROUPS][FT][4], const Weights &v, u32 stage,
                                                     int column, int run, int from, int to) {
    for (int k = 0; k < 4 && run + k * 4 < to; k++)  // the sums of later runs were never written
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        Format::Offset offset[4][2];
        Offsets o;
        load_offsets(offset, v, g, run + k * 4, from, to);
        split_offsets(o, offset);
#pragma unroll
        for (int j = 0; j < FT; j += 2) {
          u32 b[PARTS][4];
          float d[2][4] = {};  // a separate sum: tensor cores do not round sums to nearest
#pragma unroll
          for (int p = 0; p < PARTS; p++) load_tokens(b[p], stage + p * PLANE, column + j * 8, k * 2);
#pragma unroll
          for (int i = 2 * OFFSET_PARTS - 1; i >= 0; i--) {  // smallest parts first
            mma_f16(d[0], o.a[i / 2], b[i % 2][0], b[i % 2][1]);
            mma_f16(d[1], o.a[i / 2], b[i % 2][2], b[i % 2][3]);
          }
#pragma unroll
          for (int n = 0; n < 2; n++) scale_into(acc[g][j + n], d[n], o.upper, o.lower);
        }
      }
  }

  template <typename Enter>
  static __device__ __forceinline__ void multiply_chunks(float (&acc)[GROUPS][FT][4], Weights &v, int column,
                                                         Chunks chunks, Enter enter) {
    if (SUMS)
      for (int chunk = 0; chunk < chunks.lead(); chunk++)
        add_offsets(acc, v, enter(chunk), column, (chunks.first / 16 + chunk) * 16, chunks.first,
                    chunks.first + chunks.runs);
    u32 stage = 0;
    for (int run = 0; run < chunks.runs; run++)
#pragma unroll
      for (int piece = 0; piece < 4; piece++) {
        if (piece % 2 == 0) stage = enter(chunks.lead() + run * 2 + piece / 2);
        multiply_piece(acc, v, stage, column, piece, chunks.first + run + 1, chunks.runs - 1 - run);
      }
  }
};
