// Launch shapes satisfy the assertions of packed.cu and attention_f32.cu and the limits of each GPU, for all
// shapes.
#include "compiler/cuda_launch.h"

#include "tests/support/check.h"

static const int64_t sizes[] = {1, 3, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 512, 2048, 4096};
static const int64_t widths[] = {8, 49, 64, 512, 576, 2048, 3072, 8192, 14336, 28672, 128256};
static const int64_t depths[] = {32, 96, 256, 512, 576, 1536, 2048, 4096, 8192, 14336};
static const int64_t gpus[] = {20, 84, 108, 114, 132, 148};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static void check_tile(int64_t m, int64_t n, int64_t k, bool pair, bool rows16, bool hopper,
                       int64_t processors) {
  const mlx_quantized_tile_t t = mlx_quantized_tile(m, n, k, pair, rows16, hopper, processors);
  const int64_t weights = pair ? 2 : 1, threads = 32 * t.warps,
                shared = mlx_quantized_tile_shared_bytes(t, rows16);
  CHECK(t.m == 16 || t.m == 32 || t.m == 64 || t.m == 128);
  CHECK(t.stages >= 3 && t.split >= 1 && t.split <= 8 && t.split <= ceil_div(k, 128));
  CHECK(hopper || t.split == 1);
  CHECK_INT(t.n % (16 * t.warps), 0);           // each warp of a warpgroup has 16 rows
  CHECK(t.m * t.n * weights <= 128 * threads);  // accumulators in registers: at most 128 per thread
  CHECK(t.m * t.n * weights / threads + t.m / 2 <= (threads > 256 ? 128 : 192));
  CHECK(t.split == 1 || t.m * t.n * weights * 4 <= t.stages * t.m * (rows16 ? 384 : 256));
  CHECK(shared <= (hopper ? 227 : 99) * 1024);
}

TEST(tile_is_supported_by_the_kernel_and_fits_the_gpu) {
  for (size_t m = 0; m < COUNT(sizes); ++m)
    for (size_t n = 0; n < COUNT(widths); ++n)
      for (size_t k = 0; k < COUNT(depths); ++k)
        for (size_t gpu = 0; gpu < COUNT(gpus); ++gpu)
          for (int kind = 0; kind < 8; ++kind)
            check_tile(sizes[m], widths[n], depths[k], kind & 1, kind & 2, kind & 4, gpus[gpu]);
}

TEST(prefill_of_512_tokens_fills_an_h200) {
  const struct {
    int64_t n, k;
    bool pair;
  } products[] = {{3072, 2048, false}, {2048, 2048, false}, {8192, 2048, true}, {2048, 8192, false}};
  for (size_t i = 0; i < COUNT(products); ++i) {
    const mlx_quantized_tile_t t =
        mlx_quantized_tile(512, products[i].n, products[i].k, products[i].pair, false, true, 132);
    const int64_t blocks = ceil_div(512, t.m) * ceil_div(products[i].n, t.n) * t.split;
    CHECK(blocks * 100 / (ceil_div(blocks, 132) * 132) >= 95);
  }
}

// The fastest split of Qwen3-8B's, StarCoder2-7B's and Command R7B's products in Q4_0 on an H200, measured
// with tests/parity/packed_probe.py --only speed --m M --shape SHAPE --tile BM,BN,SPLIT,4,WARPS.
TEST(few_tokens_have_the_split_that_was_fastest) {
  const struct {
    int64_t m, n, k;
    bool pair;
    int64_t split;
  } products[] = {{16, 12288, 4096, true, 2},  {16, 14336, 4096, true, 2},  {16, 4096, 4096, false, 8},
                  {16, 4608, 4608, false, 8},  {16, 5632, 4608, false, 4},  {16, 6144, 4096, false, 4},
                  {16, 18432, 4608, false, 2}, {16, 4096, 12288, false, 8}, {16, 4608, 18432, false, 8},
                  {64, 18432, 4608, false, 4}, {64, 4608, 4608, false, 4},  {64, 5632, 4608, false, 4},
                  {64, 4608, 18432, false, 8}, {64, 4096, 12288, false, 8}, {64, 1024, 4096, false, 8}};
  for (size_t i = 0; i < COUNT(products); ++i)
    CHECK_INT(
        mlx_quantized_tile(products[i].m, products[i].n, products[i].k, products[i].pair, false, true, 132)
            .split,
        products[i].split);
}

TEST(parts_buffer_holds_every_chunk_and_the_sums) {
  CHECK_INT(mlx_quantized_parts_bytes(1, 32), (2 + 1) * 8 * 384);
  CHECK_INT(mlx_quantized_parts_bytes(512, 2048), (32 + 1) * 512 * 384);
  CHECK_INT(mlx_quantized_parts_bytes(17, 2176), (34 + 2) * 24 * 384);
}

TEST(gemv_launch_fits_any_gpu) {
  for (int64_t m = 1; m <= 8; ++m)
    for (size_t n = 0; n < COUNT(widths); ++n)
      for (size_t k = 0; k < COUNT(depths); ++k) {
        const mlx_quantized_gemv_t s = mlx_quantized_gemv(m, widths[n], depths[k], 132);
        CHECK(s.blocks >= 1 && s.blocks <= ceil_div(widths[n], 16 * s.groups * 8 / s.warps));
        CHECK(s.groups <= s.warps && s.shared_bytes <= 99 * 1024);
      }
}

TEST(attention_launch_fits_every_head_size_and_gpu) {
  for (size_t m = 0; m < COUNT(sizes); ++m)
    for (int64_t head_dim = 8; head_dim <= MLX_ATTEND_MOST; head_dim += head_dim < MLX_ATTEND_WHOLE ? 8 : 64)
      for (int64_t group = 1; group <= 32; group *= 2)
        for (int kind = 0; kind < 12; ++kind) {
          const bool hopper = kind & 1, is_long = kind & 2;
          const int64_t kv_bytes = kind / 4 == 2 ? 4 : kind / 4 + 1;
          const mlx_attend_f32_tile_t t =
              mlx_attend_f32_tile(is_long, sizes[m], 4 * group, 4, head_dim, 0, kv_bytes, hopper, 132);
          const int64_t warps = t.queries <= 16 ? 1 : t.queries / 16;  // that have different queries
          CHECK(t.shared_bytes <= (hopper ? 227 : 99) * 1024);
          CHECK_INT(t.warpgroups, hopper && is_long && head_dim <= 128 && kv_bytes == 4);
          if (t.warpgroups) {
            // Without wgmma, the functions of attention_f32.cu run this launch with one stage.
            const mlx_attend_f32_tile_t plain = {
                .queries = 128, .step = 64, .split = 1, .stages = 1, .threads = 256};
            CHECK(t.queries == 128 && t.step == 64 && t.threads == 512 && t.split == 1);
            CHECK(mlx_attend_f32_bytes(plain, head_dim, 0, kv_bytes) <= t.shared_bytes);
            continue;
          }
          CHECK(t.queries == 8 || t.queries == 16 * warps);
          CHECK(t.threads >= 32 * warps && t.threads % (32 * warps) == 0);
          CHECK_INT(t.step % 16, 0);                                        // whole pages
          CHECK(t.stages == 1 || t.split * t.threads / (32 * warps) == 1);  // parts replace values
          CHECK(t.stages >= 1 && t.split >= 1 && t.split <= 8 && (hopper || t.split == 1));
          CHECK(t.split == 1 || t.queries <= 16);
          // Warps that share queries merge pieces.
          CHECK(head_dim <= MLX_ATTEND_WHOLE || (warps == 1 && t.threads * t.split > 32 && t.stages == 1));
          CHECK(t.threads % (t.queries / t.split) == 0);
        }
}

// The order in which a query's keys are added depends on the step size.
TEST(all_attention_launches_of_a_head_size_have_the_same_step_except_those_with_warpgroups) {
  for (int64_t head_dim = 8; head_dim <= MLX_ATTEND_MOST; head_dim += head_dim < MLX_ATTEND_WHOLE ? 8 : 64)
    for (size_t m = 0; m < COUNT(sizes); ++m)
      for (int kind = 0; kind < 4; ++kind) {
        const mlx_attend_f32_tile_t t =
            mlx_attend_f32_tile(kind & 1, sizes[m], 8, 2, head_dim, 0, 4, kind & 2, 132);
        CHECK_INT(t.step,
                  t.warpgroups ? 64 : mlx_attend_f32_tile(false, 1, 8, 2, head_dim, 0, 2, true, 132).step);
      }
}

// Rows of one KV head that all queries of a token share. The sums of a query have the same order in every
// launch: warpgroups would have another one.
TEST(latent_attention_launch_fits_every_gpu_with_the_same_order_of_sums) {
  static const int64_t rows[][2] = {{576, 512}, {320, 256}, {288, 256}, {640, 512}, {144, 128}, {48, 32}};
  for (size_t i = 0; i < COUNT(rows); ++i)
    for (size_t m = 0; m < COUNT(sizes); ++m)
      for (int64_t heads = 1; heads <= 128; heads += heads < 8 ? 1 : 20)
        for (int kind = 0; kind < 12; ++kind) {
          const bool hopper = kind & 1, is_long = kind & 2, cut = rows[i][0] > MLX_ATTEND_WHOLE;
          const int64_t kv_bytes = kind / 4 == 2 ? 4 : kind / 4 + 1;
          const mlx_attend_f32_tile_t t =
              mlx_attend_f32_tile(is_long, sizes[m], heads, 1, rows[i][0], rows[i][1], kv_bytes, hopper, 132);
          const int64_t warps = t.queries <= 16 ? 1 : t.queries / 16;
          CHECK(mlx_attend_has(rows[i][0], rows[i][1]));
          CHECK(t.shared_bytes <= (hopper ? 227 : 99) * 1024 && !t.warpgroups);
          CHECK_INT(t.step, rows[i][0] <= 128 ? 32 : 16);
          CHECK(t.threads >= 32 * warps && t.threads % (32 * warps) == 0 && t.threads % t.queries == 0);
          CHECK(!cut || (warps == 1 && t.threads * t.split > 32 && t.stages == 1));
          CHECK(t.stages == 1 || t.split * t.threads / (32 * warps) == 1);
          CHECK(hopper || t.split == 1);
        }
  CHECK(!mlx_attend_has(580, 512) && !mlx_attend_has(768, 512) && !mlx_attend_has(512, 512));
}

static int64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)(*state >> 33);
}

// The grid has a block for each tile of any batch, and short tiles leave a block for each padding token.
TEST(attention_grid_holds_every_batch) {
  uint64_t state = 1;
  CHECK_INT(mlx_attend_tiles(16, 1, 4, 8), 16);    // one token per sequence
  CHECK_INT(mlx_attend_tiles(512, 8, 1, 64), 64);  // segments of 8 tokens
  CHECK_INT(mlx_attend_tiles(512, 8, 4, 64), 64);
  for (int round = 0; round < 2000; ++round) {
    const int64_t shortest = next_random(&state) % 2 ? 1 : 8, share = 1 + next_random(&state) % 20,
                  queries = 8 << next_random(&state) % 4, tokens = 64 << next_random(&state) % 4;
    const int64_t most = mlx_attend_tiles(tokens, shortest, share, queries);
    int64_t left = tokens, tiles = 0;
    while (left >= shortest && next_random(&state) % 50) {
      int64_t count = shortest + next_random(&state) % (next_random(&state) % 2 ? 4 : left);
      if (count > left) count = left;
      tiles += ceil_div(count * share, queries);
      left -= count;
    }
    CHECK(tiles <= most);
    if (shortest == 1) CHECK(tiles + left <= most);
  }
}

TEST_MAIN(CASE(tile_is_supported_by_the_kernel_and_fits_the_gpu), CASE(prefill_of_512_tokens_fills_an_h200),
          CASE(few_tokens_have_the_split_that_was_fastest), CASE(parts_buffer_holds_every_chunk_and_the_sums),
          CASE(gemv_launch_fits_any_gpu), CASE(attention_launch_fits_every_head_size_and_gpu),
          CASE(all_attention_launches_of_a_head_size_have_the_same_step_except_those_with_warpgroups),
          CASE(latent_attention_launch_fits_every_gpu_with_the_same_order_of_sums),
          CASE(attention_grid_holds_every_batch))
