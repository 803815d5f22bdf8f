// Which tokens the rules of a request exclude.
#include "runtime/token_rules.h"

#include "tests/support/check.h"

#define VOCAB 130  // three words of a mask

static bool allows(const mlx_token_rules_t *rules, int32_t id) {
  uint64_t mask[3] = {~(uint64_t)0, ~(uint64_t)0, ~(uint64_t)0};
  mlx_token_rules_filter(rules, mask);
  return mask[id / 64] >> id % 64 & 1;
}

TEST(only_allowed_ids_remain) {
  static const int32_t ids[] = {3, 129};
  mlx_token_rules_t rules;
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.allowed_ids = ids;
  options.allowed_id_count = 2;
  CHECK_OK(mlx_token_rules_initialize(&options, NULL, 0, VOCAB, &rules));
  CHECK(mlx_token_rules_apply_next(&rules));
  for (int32_t id = 0; id < VOCAB; ++id) CHECK(allows(&rules, id) == (id == 3 || id == 129));
  mlx_token_rules_clear(&rules);
}

TEST(tokens_that_end_the_text_are_excluded_until_there_are_enough_tokens) {
  static const int32_t stops[] = {7}, eos[] = {2, 500};
  mlx_token_rules_t rules;
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.stop_ids = stops;
  options.stop_id_count = 1;
  options.min_tokens = 2;
  CHECK_OK(mlx_token_rules_initialize(&options, eos, 2, VOCAB, &rules));
  for (int i = 0; i < 2; ++i) {
    CHECK(mlx_token_rules_apply_next(&rules) && !allows(&rules, 2) && !allows(&rules, 7));
    CHECK(allows(&rules, 8));
    mlx_token_rules_accept(&rules, 8);
  }
  CHECK(!mlx_token_rules_apply_next(&rules) && allows(&rules, 2) && allows(&rules, 7));
  mlx_token_rules_clear(&rules);
  options.ignore_eos = true;  // such a token ends nothing
  CHECK_OK(mlx_token_rules_initialize(&options, eos, 2, VOCAB, &rules));
  CHECK(allows(&rules, 2) && !allows(&rules, 7));
  mlx_token_rules_clear(&rules);
}

TEST(the_last_token_of_a_banned_sequence_is_excluded_after_the_others) {
  static const int32_t one[] = {5}, three[] = {10, 11, 12}, twice[] = {20, 20};
  const mlx_token_list_t banned[] = {{one, 1}, {three, 3}, {twice, 2}};
  mlx_token_rules_t rules;
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.banned = banned;
  options.banned_count = 3;
  CHECK_OK(mlx_token_rules_initialize(&options, NULL, 0, VOCAB, &rules));
  static const int32_t generated[] = {10, 11, 11, 10, 11, 20, 19, 20};
  static const bool allows_12[] = {true, true, false, true, true, false, true, true, true};
  static const bool allows_20[] = {true, true, true, true, true, true, false, true, false};
  for (size_t i = 0; i <= 8; ++i) {
    CHECK(!allows(&rules, 5));
    if (allows(&rules, 12) != allows_12[i] || allows(&rules, 20) != allows_20[i])
      CHECK_FAIL("after %zu tokens", i);
    if (i < 8) mlx_token_rules_accept(&rules, generated[i]);
  }
  mlx_token_rules_clear(&rules);
}

TEST(ids_outside_the_vocabulary_are_refused) {
  static const int32_t ids[] = {VOCAB};
  const mlx_token_list_t banned[] = {{ids, 1}};
  mlx_token_rules_t rules;
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.allowed_ids = ids;
  options.allowed_id_count = 1;
  CHECK_ERROR(mlx_token_rules_initialize(&options, NULL, 0, VOCAB, &rules), MLX_USAGE, "token id 130");
  mlx_token_rules_clear(&rules);
  options.allowed_id_count = 0;
  options.banned = banned;
  options.banned_count = 1;
  CHECK_ERROR(mlx_token_rules_initialize(&options, NULL, 0, VOCAB, &rules), MLX_USAGE, "token id 130");
  mlx_token_rules_clear(&rules);
}

TEST_MAIN(CASE(only_allowed_ids_remain),
          CASE(tokens_that_end_the_text_are_excluded_until_there_are_enough_tokens),
          CASE(the_last_token_of_a_banned_sequence_is_excluded_after_the_others),
          CASE(ids_outside_the_vocabulary_are_refused))
