// Bodies of requests for embeddings: what is refused, and under which path.
#include "server/api/embeddings.h"

#include <string.h>

#include "tests/support/check.h"

static mlx_status_t parse_as(const mlx_embeddings_api_t *api, const char *body, mlx_embeddings_input_t *out) {
  return mlx_embeddings_parse(api, body, strlen(body), NULL, out);
}

static mlx_status_t parse(const char *body, bool ollama, mlx_embeddings_input_t *out) {
  return parse_as(ollama ? &mlx_embeddings_ollama : &mlx_embeddings_openai, body, out);
}

TEST(inputs_are_texts_or_lists_of_token_ids) {
  mlx_embeddings_input_t input;
  int32_t ids[3];
  CHECK_OK(parse("{\"input\":[\"a\",[1,2,9]],\"encoding_format\":\"base64\"}", false, &input));
  CHECK(input.count == 2 && input.base64 && input.dimensions == -1);
  CHECK_OK(mlx_embeddings_ids(&input, 1, 10, ids));
  CHECK(ids[0] == 1 && ids[1] == 2 && ids[2] == 9);
  mlx_embeddings_input_clear(&input);
  CHECK_OK(parse("{\"input\":[1,2]}", true, &input));
  CHECK_INT((int64_t)input.count, 1);
  mlx_embeddings_input_clear(&input);
}

TEST(a_bad_token_id_is_named_by_its_path) {
  mlx_embeddings_input_t input;
  int32_t ids[3];
  CHECK_OK(parse("{\"input\":[1,-2]}", false, &input));
  CHECK_ERROR(mlx_embeddings_ids(&input, 0, 10, ids), MLX_INVALID_INPUT, "input[1]: expected a token id");
  mlx_embeddings_input_clear(&input);
  CHECK_OK(parse("{\"input\":[\"a\",[1,2,\"b\"]]}", false, &input));
  CHECK_ERROR(mlx_embeddings_ids(&input, 1, 10, ids), MLX_INVALID_INPUT, "input[1][2]: expected a token id");
  mlx_embeddings_input_clear(&input);
}

TEST(a_body_that_is_not_a_request_is_refused_by_path) {
  static const struct {
    const char *body, *error;
    bool ollama;
  } cases[] = {{"{}", "input", false},
               {"{\"input\":[]}", "input", false},
               {"{\"input\":[\"a\",\"\"]}", "input[1]: the input is empty", false},
               {"{\"input\":\"a\",\"dimensions\":0}", "dimensions", false},
               {"{\"input\":\"a\",\"encoding_format\":\"hex\"}", "encoding_format", false},
               {"{\"input\":\"a\",\"encoding_format\":\"float\"}", "encoding_format", true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_embeddings_input_t input;
    mlx_status_t status = parse(cases[i].body, cases[i].ollama, &input);
    CHECK(status && strstr(mlx_status_message(status), cases[i].error));
    mlx_status_free(status);
    mlx_embeddings_input_clear(&input);
  }
}

TEST(long_texts_are_cut_as_the_api_says) {
  static const struct {
    const mlx_embeddings_api_t *api;
    const char *body;
    bool cut;
    int64_t most;
  } cases[] = {{&mlx_embeddings_openai, "{\"input\":\"a\"}", false, -1},
               {&mlx_embeddings_openai, "{\"input\":\"a\",\"truncate_prompt_tokens\":7}", true, 7},
               {&mlx_embeddings_openai, "{\"input\":\"a\",\"truncate_prompt_tokens\":null}", false, -1},
               {&mlx_embeddings_ollama, "{\"input\":\"a\"}", true, -1},
               {&mlx_embeddings_ollama, "{\"input\":\"a\",\"truncate\":false}", false, -1},
               {&mlx_embeddings_ollama_prompt, "{\"prompt\":\"a\"}", true, -1},
               {&mlx_embeddings_tei, "{\"inputs\":\"a\",\"truncate\":null}", true, -1},
               {&mlx_embeddings_tei, "{\"inputs\":[\"a\"],\"truncate\":false}", false, -1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_embeddings_input_t input;
    CHECK_OK(parse_as(cases[i].api, cases[i].body, &input));
    CHECK(input.cut == cases[i].cut && input.most == cases[i].most && input.count == 1);
    mlx_embeddings_input_clear(&input);
  }
}

TEST(tei_has_prompts_norms_and_directions) {
  mlx_embeddings_input_t input;
  CHECK_OK(parse_as(&mlx_embeddings_tei,
                    "{\"inputs\":\"a\",\"prompt_name\":\"query\",\"truncation_direction\":\"Right\"}",
                    &input));
  CHECK_TEXT(input.prompt, "query");
  CHECK_INT(input.normalize, 1);
  mlx_embeddings_input_clear(&input);
  CHECK_OK(parse_as(&mlx_embeddings_tei, "{\"inputs\":\"a\",\"normalize\":false}", &input));
  CHECK(!input.prompt && input.normalize == 0);
  mlx_embeddings_input_clear(&input);
  CHECK_ERROR(parse_as(&mlx_embeddings_tei, "{\"inputs\":\"a\",\"prompt_name\":7}", &input),
              MLX_INVALID_INPUT, "prompt_name: expected");
  mlx_embeddings_input_clear(&input);
  CHECK_ERROR(parse_as(&mlx_embeddings_tei, "{\"inputs\":\"a\",\"truncation_direction\":\"Left\"}", &input),
              MLX_UNSUPPORTED, "truncation_direction: expected");
  mlx_embeddings_input_clear(&input);
  CHECK_ERROR(parse_as(&mlx_embeddings_tei, "{\"inputs\":[]}", &input), MLX_INVALID_INPUT, "inputs: ");
  mlx_embeddings_input_clear(&input);
}

TEST_MAIN(CASE(long_texts_are_cut_as_the_api_says), CASE(tei_has_prompts_norms_and_directions),
          CASE(inputs_are_texts_or_lists_of_token_ids), CASE(a_bad_token_id_is_named_by_its_path),
          CASE(a_body_that_is_not_a_request_is_refused_by_path))
