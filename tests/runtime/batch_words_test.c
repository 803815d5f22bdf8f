// The words of a batch: header, tokens, segments, sampling, page table, masks and biases.
#include "runtime/batch.h"

#include "base/memory.h"
#include "tests/support/check.h"

#define SLOT_PAGES 40

static int32_t pages[3 * SLOT_PAGES];

static mlx_batch_shape_t shape(int64_t tokens, int64_t wanted) {
  for (int i = 0; i < 3 * SLOT_PAGES; ++i) pages[i] = 1 + i;
  return (mlx_batch_shape_t){.size = {.tokens = tokens, .wanted = wanted},
                             .pool_pages = 99,
                             .slot_pages = SLOT_PAGES,
                             .history_width = 656,
                             .vocab = 70,
                             .chunk_pages = 1,
                             .pages = pages};
}

static float word_float(int32_t word) {
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

// A prompt chunk of slot 2 and a decode of slot 0 whose token the host does not know.
TEST(segments_of_several_sequences_make_one_batch) {
  static const int32_t ids[] = {5, 6, 7};
  static const mlx_step_sampling_t greedy = {.flags = MLX_SAMPLE_TOKEN};
  const mlx_segment_t segments[] = {{.slot = 2, .position = 30, .count = 3, .ids = ids},
                                    {.slot = 0, .position = 400, .count = 1, .wanted = &greedy}};
  const mlx_batch_shape_t s = shape(16, 4);
  mlx_batch_t batch = {0};
  CHECK_OK(mlx_batch_build(&batch, &s, segments, 2, 0, NULL, 0));
  const int32_t *w = batch.words;
  CHECK_INT(w[MLX_STEP_TOKEN_COUNT], 4);
  CHECK_INT(w[MLX_STEP_SEGMENT_COUNT], 2);
  CHECK_INT(w[MLX_STEP_WANTED_COUNT], 1);
  CHECK_INT(w[MLX_STEP_POOL_PAGES], 99);
  CHECK_INT(w[MLX_STEP_HISTORY_WIDTH], 656);
  CHECK_INT(w[MLX_STEP_BURST_COUNT], 0);
  static const int32_t tokens[] = {5, 6, 7, MLX_TOKEN_SAMPLED}, slots[] = {2, 2, 2, 0},
                       positions[] = {30, 31, 32, 400}, rows[] = {2, 0, 3, 30, 0, 3, 1, 400};
  CHECK(!memcmp(w + w[MLX_STEP_AT_TOKENS], tokens, sizeof tokens));
  CHECK(!memcmp(w + w[MLX_STEP_AT_SLOTS], slots, sizeof slots));
  CHECK(!memcmp(w + w[MLX_STEP_AT_POSITIONS], positions, sizeof positions));
  for (int i = 4; i < 16; ++i) CHECK_INT(w[w[MLX_STEP_AT_POSITIONS] + i], -1);  // padding
  CHECK(!memcmp(w + w[MLX_STEP_AT_SEGMENTS], rows, sizeof rows));
  CHECK_INT(w[w[MLX_STEP_AT_WANTED]], 3);
  CHECK_INT(w[w[MLX_STEP_AT_SAMPLING] + MLX_SAMPLING_FLAGS], MLX_SAMPLE_TOKEN);
  CHECK_INT(w[w[MLX_STEP_AT_SAMPLING] + MLX_SAMPLING_TEMPERATURE], 0);
  CHECK(word_float(w[w[MLX_STEP_AT_SAMPLING] + MLX_SAMPLING_REPEAT]) == 1);
  CHECK_INT(w[MLX_STEP_AT_PAGES], MLX_STEP_PAGES_AT(16, 4));
  // 401 positions are 26 pages; rows have a multiple of 16 entries.
  CHECK_INT(w[MLX_STEP_SLOT_COUNT], 3);
  CHECK_INT(w[MLX_STEP_SLOT_PAGES], 32);
  for (int slot = 0; slot < 3; ++slot) {
    for (int i = 0; i < 32; ++i)
      CHECK_INT(w[w[MLX_STEP_AT_PAGES] + slot * 32 + i], 1 + slot * SLOT_PAGES + i);
  }
  CHECK_INT(batch.count, MLX_STEP_PAGES_AT(16, 4) + 3 * 32);
  CHECK_INT(w[MLX_STEP_WINDOW_POOL_PAGES], 0);
  mlx_batch_clear(&batch);
}

// The table of window pages has the same shape as the page table and follows it.
TEST(window_pages_have_their_own_table) {
  static const int32_t id = 1;
  static int32_t table[3 * SLOT_PAGES];
  const mlx_segment_t segment = {.slot = 1, .position = 40, .count = 1, .ids = &id};
  mlx_batch_shape_t s = shape(1, 1);
  mlx_batch_t batch = {0};
  for (int i = 0; i < 3 * SLOT_PAGES; ++i) table[i] = 500 + i;
  s.window_pages = 700;
  s.window_table = table;
  CHECK_OK(mlx_batch_build(&batch, &s, &segment, 1, 0, NULL, 0));
  const int32_t *w = batch.words;
  CHECK_INT(w[MLX_STEP_WINDOW_POOL_PAGES], 700);
  CHECK_INT(w[MLX_STEP_AT_WINDOW_PAGES], w[MLX_STEP_AT_PAGES] + 2 * w[MLX_STEP_SLOT_PAGES]);
  for (int i = 0; i < 16; ++i)
    CHECK_INT(w[w[MLX_STEP_AT_WINDOW_PAGES] + w[MLX_STEP_SLOT_PAGES] + i], 500 + SLOT_PAGES + i);
  mlx_batch_clear(&batch);
}

// Rows of the page table are padded past the slot's pages with page 0.
TEST(page_tables_cover_whole_chunks) {
  static const int32_t id = 1;
  const mlx_segment_t segment = {.position = SLOT_PAGES * MLX_KV_PAGE - 1, .count = 1, .ids = &id};
  mlx_batch_shape_t s = shape(1, 1);
  s.chunk_pages = 32;
  mlx_batch_t batch = {0};
  CHECK_OK(mlx_batch_build(&batch, &s, &segment, 1, 0, NULL, 0));
  CHECK_INT(batch.words[MLX_STEP_SLOT_PAGES], 64);
  CHECK_INT(batch.words[MLX_STEP_WANTED_COUNT], 0);
  for (int i = 0; i < 64; ++i)
    CHECK_INT(batch.words[batch.words[MLX_STEP_AT_PAGES] + i], i < SLOT_PAGES ? 1 + i : 0);
  mlx_batch_clear(&batch);
}

TEST(sampling_options_masks_and_biases_are_passed) {
  static const int32_t ids[] = {1, 2};
  static const uint32_t mask[] = {0x80000001u, 7, 0x3f};
  static const mlx_logit_bias_t biases[] = {{3, -1.5}, {69, 2}};
  mlx_sampling_t sampling;
  mlx_sampling_initialize(&sampling);
  sampling.biases = biases;
  sampling.bias_count = 2;
  sampling.seed = 0x123456789abcdef0;
  sampling.presence_penalty = 0.5;
  sampling.repeat_last_n = -1;
  const mlx_step_sampling_t each[2] = {{.flags = MLX_SAMPLE_SCORE, .target = 9},
                                       {.flags = MLX_SAMPLE_TOKEN | MLX_SAMPLE_LOGPROB,
                                        .sampling = &sampling,
                                        .mask = mask,
                                        .top_logprobs = 5}};
  const mlx_segment_t segment = {.count = 2, .ids = ids, .each = each};
  const mlx_batch_shape_t s = shape(16, 16);
  mlx_batch_t batch = {0};
  CHECK_OK(mlx_batch_build(&batch, &s, &segment, 1, 0, NULL, 0));
  const int32_t *w = batch.words, *first = w + w[MLX_STEP_AT_SAMPLING], *second = first + MLX_SAMPLING_WORDS;
  CHECK_INT(w[MLX_STEP_WANTED_COUNT], 2);
  CHECK_INT(w[w[MLX_STEP_AT_WANTED] + 1], 1);
  CHECK_INT(first[MLX_SAMPLING_FLAGS], MLX_SAMPLE_SCORE);
  CHECK_INT(first[MLX_SAMPLING_TARGET], 9);
  CHECK_INT(first[MLX_SAMPLING_MASK_AT], 0);
  CHECK_INT(second[MLX_SAMPLING_TOP_LOGPROBS], 5);
  CHECK(!memcmp(w + second[MLX_SAMPLING_MASK_AT], mask, sizeof mask));
  CHECK_INT(second[MLX_SAMPLING_BIAS_COUNT], 2);
  CHECK_INT(w[second[MLX_SAMPLING_BIAS_AT] + 2], 69);
  CHECK(word_float(w[second[MLX_SAMPLING_BIAS_AT] + 1]) == -1.5f);
  CHECK_INT(second[MLX_SAMPLING_WINDOW], 656);  // the whole context
  CHECK(word_float(second[MLX_SAMPLING_PRESENCE]) == 0.5f);
  CHECK_INT(second[MLX_SAMPLING_TOP_K], 40);
  CHECK(word_float(second[MLX_SAMPLING_TOP_P]) == 0.95f);
  CHECK(word_float(second[MLX_SAMPLING_TEMPERATURE]) == 0.8f);
  CHECK_INT((uint32_t)second[MLX_SAMPLING_SEED_LOW], 0x9abcdef0u);
  CHECK_INT(second[MLX_SAMPLING_SEED_HIGH], 0x12345678);
  // Nothing is wanted of the first token.
  const mlx_segment_t later = {.count = 2, .ids = ids, .unwanted = 1, .each = each};
  CHECK_OK(mlx_batch_build(&batch, &s, &later, 1, 0, NULL, 0));
  CHECK_INT(batch.words[MLX_STEP_WANTED_COUNT], 1);
  CHECK_INT(batch.words[batch.words[MLX_STEP_AT_WANTED]], 1);
  CHECK_INT(batch.words[batch.words[MLX_STEP_AT_SAMPLING] + MLX_SAMPLING_TARGET], 9);
  sampling.presence_penalty = 0;  // without penalties nothing looks back
  CHECK_OK(mlx_batch_build(&batch, &s, &segment, 1, 0, NULL, 0));
  CHECK_INT(batch.words[batch.words[MLX_STEP_AT_SAMPLING] + MLX_SAMPLING_WORDS + MLX_SAMPLING_WINDOW], 0);
  mlx_batch_clear(&batch);
}

TEST(a_burst_names_its_tokens_and_its_end) {
  static const int32_t id = 8, eos[] = {2, 0};
  static const mlx_step_sampling_t greedy = {.flags = MLX_SAMPLE_TOKEN};
  const mlx_segment_t segment = {.position = 250, .count = 1, .ids = &id, .wanted = &greedy};
  const mlx_batch_shape_t s = shape(1, 1);
  mlx_batch_t batch = {0};
  CHECK_OK(mlx_batch_build(&batch, &s, &segment, 1, 100, eos, 2));
  CHECK_INT(batch.words[MLX_STEP_BURST_COUNT], 100);
  CHECK_INT(batch.words[MLX_STEP_EOS_COUNT], 2);
  CHECK_INT(batch.words[MLX_STEP_EOS], 2);
  CHECK_INT(batch.words[MLX_STEP_EOS + 1], 0);
  CHECK_INT(batch.words[MLX_STEP_SLOT_PAGES], 32);  // 350 positions
  CHECK_INT(batch.words[64], 8);
  CHECK_INT(batch.words[66], 250);
  mlx_batch_clear(&batch);
}

TEST_MAIN(CASE(segments_of_several_sequences_make_one_batch), CASE(window_pages_have_their_own_table),
          CASE(page_tables_cover_whole_chunks), CASE(sampling_options_masks_and_biases_are_passed),
          CASE(a_burst_names_its_tokens_and_its_end))
