// Pairs of texts: the template for them, token types, and how they are cut. tests/models/classifier_test.c
// compares pairs with Hugging Face.
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/check.h"
#include "tokenizer/tokenizer.h"

#define PAIR(pair) \
  "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}}],\"pair\":" pair "}"

// Two letters as texts of ids 0 and 1; the template has no special token.
static mlx_status_t encode_pair(const char *pair, int32_t type_step, size_t limit, int32_t **out_ids,
                                size_t *out_count) {
  char json[1024];
  mlx_tokenizer_t *tokenizer;
  *out_ids = NULL;
  snprintf(json, sizeof json,
           "{\"post_processor\":%s,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
           "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},"
           "\"merges\":[]}}",
           pair);
  MLX_TRY(mlx_tokenizer_create("tokenizer.json", json, strlen(json), &tokenizer));
  mlx_status_t status =
      mlx_tokenizer_encode_pair(tokenizer, (mlx_text_view_t){"aab", 3}, (mlx_text_view_t){"bbbbba", 6}, limit,
                                type_step, out_ids, out_count);
  mlx_tokenizer_free(tokenizer);
  return status;
}

TEST(pairs_have_types_and_the_longer_text_is_cut_first) {
  static const char both[] =
      PAIR("[{\"Sequence\":{\"id\":\"A\"}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}]");
  static const int32_t expected[] = {0, 0, 1, 101, 101, 101}, even[] = {0, 0, 101, 101};
  int32_t *ids;
  size_t count;
  CHECK_OK(encode_pair(both, 100, 6, &ids, &count));
  CHECK_INT((int64_t)count, 6);
  CHECK(!memcmp(ids, expected, sizeof expected));
  mlx_free(ids);
  CHECK_OK(encode_pair(both, 100, 4, &ids, &count));
  CHECK_INT((int64_t)count, 4);
  CHECK(!memcmp(ids, even, sizeof even));
  mlx_free(ids);
  CHECK_OK(encode_pair(both, 0, 100, &ids, &count));
  CHECK_INT((int64_t)count, 9);
  CHECK(ids[8] == 0 && ids[7] == 1);
  mlx_free(ids);
  CHECK_ERROR(encode_pair(both, 1, 100, &ids, &count), MLX_INVALID_INPUT,
              "the tokenizer produced token 1, but the model has only 1 tokens");
  CHECK_ERROR(encode_pair("null", 100, 100, &ids, &count), MLX_UNSUPPORTED, "no template for pairs");
  CHECK_ERROR(encode_pair(PAIR("[{\"Sequence\":{\"id\":\"A\",\"type_id\":2}}]"), 100, 100, &ids, &count),
              MLX_UNSUPPORTED, "the type 2; at most 1 is supported");
}

TEST(bad_templates_for_pairs_are_refused) {
  int32_t *ids;
  size_t count;
  CHECK_ERROR(encode_pair(PAIR("[{\"Sequence\":{\"id\":\"C\"}}]"), 0, 9, &ids, &count), MLX_UNSUPPORTED,
              "field 'post_processor.pair[0]' is sequence 'C'; only A and B are supported");
  CHECK_ERROR(encode_pair(PAIR("[{\"Sequence\":{\"id\":\"B\",\"type_id\":-1}}]"), 0, 9, &ids, &count),
              MLX_INVALID_INPUT, "field 'post_processor.pair[0]' has a type_id");
  CHECK_ERROR(encode_pair(PAIR("7"), 0, 9, &ids, &count), MLX_INVALID_INPUT,
              "field 'post_processor.pair' must be an array");
}

TEST_MAIN(CASE(pairs_have_types_and_the_longer_text_is_cut_first), CASE(bad_templates_for_pairs_are_refused))
