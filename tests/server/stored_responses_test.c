// Stored responses: what is kept, and what is dropped.
#include "server/api/stored_responses.h"

#include "tests/support/check.h"

static void add(mlx_stored_responses_t *responses, const char *id, size_t length) {
  mlx_stored_response_t response = {0};
  for (size_t i = 0; i < length; ++i) mlx_text_append(&response.object, "x", 1);
  mlx_text_puts(&response.input, id);
  CHECK_OK(mlx_stored_responses_add(responses, id, &response));
  CHECK(!response.object.data && !response.input.data);
}

static bool has(mlx_stored_responses_t *responses, const char *id) {
  mlx_stored_response_t response;
  bool found;
  CHECK_OK(mlx_stored_responses_find(responses, id, &response, &found));
  if (found) CHECK_TEXT(response.input.data, id);
  mlx_stored_response_clear(&response);
  return found;
}

TEST(the_responses_that_were_not_used_for_the_longest_time_are_dropped) {
  mlx_stored_responses_t *responses;
  CHECK_OK(mlx_stored_responses_create(2, 1 << 20, &responses));
  add(responses, "a", 10);
  add(responses, "b", 10);
  CHECK(has(responses, "a"));  // now b is the oldest
  add(responses, "c", 10);
  CHECK(has(responses, "a") && !has(responses, "b") && has(responses, "c"));
  CHECK(mlx_stored_responses_remove(responses, "a"));
  CHECK(!mlx_stored_responses_remove(responses, "a") && !has(responses, "a"));
  mlx_stored_responses_free(responses);
}

TEST(their_bytes_are_limited) {
  mlx_stored_responses_t *responses;
  CHECK_OK(mlx_stored_responses_create(100, 10000, &responses));
  for (int i = 0; i < 20; ++i) {
    char id[8];
    snprintf(id, sizeof id, "r%d", i);
    add(responses, id, 2000);
  }
  CHECK(!has(responses, "r0") && !has(responses, "r14") && has(responses, "r19"));
  add(responses, "large", 20000);  // larger than all together: the others stay
  CHECK(!has(responses, "large") && has(responses, "r19"));
  mlx_stored_responses_free(responses);
}

TEST(without_a_store_there_is_no_response) { CHECK(!has(NULL, "a")); }

TEST_MAIN(CASE(the_responses_that_were_not_used_for_the_longest_time_are_dropped),
          CASE(their_bytes_are_limited), CASE(without_a_store_there_is_no_response))
