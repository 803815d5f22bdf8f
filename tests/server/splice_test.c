// Prompts with remembered answers: their tokens are those that the model sampled.
#include "server/tools/splice.h"

#include "tests/support/compiled.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static const char before[] = "<|im_start|>user\nthe quick brown<|im_end|>\n<|im_start|>assistant\n";
static const char answer[] = "the quick brown fox";
static const char after[] = "<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n";

// The tokens of the answer's bytes one by one, which the tokenizer never gives.
static size_t byte_tokens(const mlx_engine_t *engine, const char *text, int32_t *out) {
  size_t count = 0;
  for (; *text; ++text, ++count) {
    int32_t *ids;
    size_t length;
    CHECK_OK(mlx_engine_tokenize_chat(engine, text, 1, &ids, &length));
    CHECK_INT(length, 1);
    out[count] = ids[0];
    mlx_engine_free_ids(ids);
  }
  return count;
}

TEST(remembered_tokens_are_part_of_the_prompt) {
  mlx_engine_t *engine = open_parallel(TINY, &(mlx_compile_options_t){0}, NULL, 0, 1);
  mlx_text_t text = {0};
  int32_t tokens[64], *head, *plain, *ids;
  size_t head_count, plain_count, count;
  mlx_text_printf(&text, "%s%s%s", before, answer, after);
  CHECK_OK(mlx_engine_tokenize_chat(engine, before, sizeof before - 1, &head, &head_count));
  CHECK_OK(mlx_engine_tokenize_chat(engine, text.data, text.length, &plain, &plain_count));
  const size_t token_count = byte_tokens(engine, answer, tokens);
  mlx_answer_span_t span = {sizeof before - 1, sizeof answer - 1, tokens, token_count};
  CHECK_OK(mlx_splice_tokenize(engine, text.data, text.length, &(mlx_answer_spans_t){&span, 1}, SIZE_MAX,
                               &ids, &count));
  CHECK(count > plain_count && count > head_count + token_count);
  CHECK(!memcmp(ids, head, head_count * sizeof *ids));
  CHECK(!memcmp(ids + head_count, tokens, token_count * sizeof *ids));
  const size_t rest =
      count - head_count - token_count;  // as in the plain tokens: it begins with a special one
  CHECK(!memcmp(ids + count - rest, plain + plain_count - rest, rest * sizeof *ids));
  mlx_engine_free_ids(ids);

  --span.token_count;  // as if a stop string had cut the text: the tokens have another text
  CHECK_OK(mlx_splice_tokenize(engine, text.data, text.length, &(mlx_answer_spans_t){&span, 1}, SIZE_MAX,
                               &ids, &count));
  CHECK(count == plain_count && !memcmp(ids, plain, count * sizeof *ids));
  mlx_engine_free_ids(ids);
  CHECK_OK(
      mlx_splice_tokenize(engine, text.data, text.length, &(mlx_answer_spans_t){0}, SIZE_MAX, &ids, &count));
  CHECK(count == plain_count && !memcmp(ids, plain, count * sizeof *ids));
  mlx_engine_free_ids(ids);
  span.at = text.length;
  CHECK_ERROR(mlx_splice_tokenize(engine, text.data, text.length, &(mlx_answer_spans_t){&span, 1}, SIZE_MAX,
                                  &ids, &count),
              MLX_INTERNAL, "not part of its prompt");
  mlx_engine_free_ids(head);
  mlx_engine_free_ids(plain);
  mlx_text_clear(&text);
  mlx_engine_close(engine);
}

TEST_MAIN(CASE(remembered_tokens_are_part_of_the_prompt))
