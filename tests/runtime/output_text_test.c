// The text of a generation: stop strings across token boundaries, characters, limits and callbacks.
#include "base/file.h"
#include "base/memory.h"
#include "runtime/output.h"
#include "tests/support/check.h"

#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define VOCAB 320
#define EOS 2

static mlx_tokenizer_t *open_tokenizer(void) {
  mlx_tokenizer_t *tokenizer;
  char *json;
  size_t length;
  CHECK_OK(mlx_read_file(TOKENIZER, 1 << 24, &json, &length));
  CHECK_OK(mlx_tokenizer_create(TOKENIZER, json, length, &tokenizer));
  mlx_free(json);
  return tokenizer;
}

typedef struct heard {
  mlx_text_t text;
  size_t calls, limit;  // on_text returns false in call number |limit|; 0: never
} heard_t;

static bool hear(void *user, const char *text, size_t length) {
  heard_t *heard = user;
  for (size_t i = 0; i < length;) {
    const int character = mlx_utf8_length(text + i, length - i);
    CHECK(character > 0);
    i += (size_t)character;
  }
  mlx_text_append(&heard->text, text, length);
  return ++heard->calls != heard->limit;
}

typedef struct run {
  mlx_output_t output;
  heard_t heard;
} run_t;

// Adds |ids| in groups of |group| until the output ends.
static void write_ids(run_t *run, const mlx_tokenizer_t *tokenizer, const mlx_generate_options_t *given,
                      const int32_t *ids, size_t count, size_t group) {
  static const int32_t eos[] = {EOS};
  mlx_generate_options_t options = *given;
  options.on_text = hear;
  options.user = &run->heard;
  CHECK_OK(mlx_output_initialize(&options, tokenizer, eos, 1, VOCAB, &run->output));
  for (size_t i = 0; i < count && !run->output.ended;) {
    for (size_t end = i + group; i < end && i < count && !run->output.ended; ++i)
      CHECK_OK(mlx_output_add(&run->output, ids[i], NULL));
    mlx_output_emit(&run->output);
    for (size_t s = 0; s < options.stop_count; ++s)
      CHECK(!run->heard.text.data || !strstr(run->heard.text.data, options.stops[s]));
  }
  CHECK_OK(mlx_output_finish(&run->output, MLX_FINISH_CONTEXT));
  CHECK_TEXT(run->heard.text.data ? run->heard.text.data : "", run->output.generation.text);
}

static void clear(run_t *run) {
  mlx_output_clear(&run->output);
  mlx_text_clear(&run->heard.text);
  *run = (run_t){0};
}

// Decodes one token more each time until the text contains a stop string: the definition.
static size_t first_stop(const mlx_tokenizer_t *tokenizer, const int32_t *ids, size_t count,
                         const char *const *stops, size_t stop_count, char **out_text, bool *out_stopped) {
  *out_stopped = false;
  for (size_t used = 1;; ++used) {
    char *first = NULL;
    CHECK_OK(mlx_tokenizer_decode(tokenizer, ids, used, true, out_text, NULL));
    for (size_t s = 0; s < stop_count; ++s) {
      char *found = strstr(*out_text, stops[s]);
      if (found && (!first || found < first)) first = found;
    }
    *out_stopped = first != NULL;
    if (first) *first = 0;
    if (first || used == count) return used;
    mlx_free(*out_text);
  }
}

TEST(stop_strings_end_the_text_wherever_tokens_end) {
  static const char *const stops[] = {"aab", "abaa", "b b", "the"};
  mlx_tokenizer_t *tokenizer = open_tokenizer();
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  uint32_t seed = 1, stopped_runs = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    char text[64];
    for (size_t i = 0; i < sizeof text; ++i) {
      seed = seed * 1664525u + 1013904223u;
      text[i] = "aabb the"[seed >> 24 & 7];
    }
    int32_t *ids;
    size_t count;
    CHECK_OK(mlx_tokenizer_encode(tokenizer, text, 1 + trial % sizeof text, false, &ids, &count));
    options.stops = stops + trial % 4;
    options.stop_count = (size_t)(4 - trial % 4);
    char *expected;
    bool stopped;
    const size_t used =
        first_stop(tokenizer, ids, count, options.stops, options.stop_count, &expected, &stopped);
    run_t run = {0};
    write_ids(&run, tokenizer, &options, ids, count, 1 + (size_t)trial % 5);
    CHECK_TEXT(run.output.generation.text, expected);
    CHECK_INT(run.output.generation.count, used);
    CHECK_INT(run.output.generation.finish_reason, stopped ? MLX_FINISH_STOP : MLX_FINISH_CONTEXT);
    stopped_runs += stopped;
    clear(&run);
    mlx_free(expected);
    mlx_free(ids);
  }
  fprintf(stderr, "  %u of 2000 texts stopped\n", stopped_runs);
  CHECK(stopped_runs > 500 && stopped_runs < 1900);
  mlx_tokenizer_free(tokenizer);
}

TEST(a_held_back_beginning_is_emitted_when_it_is_no_stop) {
  mlx_tokenizer_t *tokenizer = open_tokenizer();
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.stops = (const char *const[]){"xyz"};
  options.stop_count = 1;
  int32_t *ids;
  size_t count;
  CHECK_OK(mlx_tokenizer_encode(tokenizer, "axyaxy", 6, false, &ids, &count));
  CHECK_INT(count, 6);
  static const char *const after[] = {"a", "a", "a", "axya", "axya", "axya"};
  run_t run = {0};
  options.on_text = hear;
  options.user = &run.heard;
  CHECK_OK(mlx_output_initialize(&options, tokenizer, NULL, 0, VOCAB, &run.output));
  for (size_t i = 0; i < 6; ++i) {
    CHECK_OK(mlx_output_add(&run.output, ids[i], NULL));
    mlx_output_emit(&run.output);
    CHECK_TEXT(run.heard.text.data, after[i]);
  }
  CHECK_OK(mlx_output_finish(&run.output, MLX_FINISH_LENGTH));
  CHECK_TEXT(run.heard.text.data, "axyaxy");
  clear(&run);
  mlx_free(ids);
  mlx_tokenizer_free(tokenizer);
}

TEST(end_of_text_limits_and_callbacks_end_the_output) {
  mlx_tokenizer_t *tokenizer = open_tokenizer();
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  const int32_t ids[] = {68, 69, EOS, 70, 71};
  run_t run = {0};
  write_ids(&run, tokenizer, &options, ids, 5, 5);
  CHECK_INT(run.output.generation.finish_reason, MLX_FINISH_STOP);
  CHECK_INT(run.output.generation.count, 3);
  clear(&run);
  options.ignore_eos = true;
  options.max_tokens = 4;
  write_ids(&run, tokenizer, &options, ids, 5, 1);
  CHECK_INT(run.output.generation.finish_reason, MLX_FINISH_LENGTH);
  CHECK_INT(run.output.generation.count, 4);
  clear(&run);
  run.heard.limit = 2;
  write_ids(&run, tokenizer, &options, ids, 5, 1);
  CHECK_INT(run.output.generation.finish_reason, MLX_FINISH_CANCELLED);
  CHECK_INT(run.output.generation.count, 2);
  clear(&run);
  mlx_tokenizer_free(tokenizer);
}

TEST(visible_special_tokens_are_part_of_the_text) {
  mlx_tokenizer_t *tokenizer = open_tokenizer();
  static const char *const visible[] = {"<|im_start|>", "<|im_end|>", "<|unknown|>"};
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  const int32_t ids[] = {0, 1, 68, 1, EOS};
  run_t run = {0};
  write_ids(&run, tokenizer, &options, ids, 5, 1);
  CHECK(!strstr(run.output.generation.text, "<|"));
  clear(&run);
  options.visible_tokens = visible;
  options.visible_token_count = 3;
  const char *stop[] = {"art|>"};
  write_ids(&run, tokenizer, &options, ids, 5, 1);
  CHECK(!strncmp(run.output.generation.text, "<|im_start|>", 12));
  CHECK(!strcmp(run.output.generation.text + run.output.generation.text_length - 12, "<|im_start|>"));
  CHECK(!strstr(run.output.generation.text, "<|im_end|>"));  // the end of the text
  clear(&run);
  options.stops = stop;
  options.stop_count = 1;
  write_ids(&run, tokenizer, &options, ids, 5, 1);
  CHECK_TEXT(run.output.generation.text, "<|im_st");
  clear(&run);
  mlx_tokenizer_free(tokenizer);
}

TEST(an_incomplete_character_waits_for_its_rest) {
  mlx_tokenizer_t *tokenizer = open_tokenizer();
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  int32_t *ids;
  size_t count;
  CHECK_OK(mlx_tokenizer_encode(tokenizer, "\xf0\x9f\x98\x80", 4, false, &ids, &count));
  CHECK(count > 1);
  run_t run = {0};
  write_ids(&run, tokenizer, &options, ids, count, 1);  // hear checks each call
  CHECK_TEXT(run.output.generation.text, "\xf0\x9f\x98\x80");
  clear(&run);
  write_ids(&run, tokenizer, &options, ids, count - 1, 1);
  CHECK_TEXT(run.output.generation.text, "\xef\xbf\xbd");
  clear(&run);
  mlx_free(ids);
  mlx_tokenizer_free(tokenizer);
}

TEST(impossible_stop_strings_are_refused) {
  mlx_tokenizer_t *tokenizer = open_tokenizer();
  mlx_generate_options_t options;
  mlx_output_t output;
  const char *stops[MLX_MAX_STOPS + 1];
  for (size_t i = 0; i <= MLX_MAX_STOPS; ++i) stops[i] = "a";
  mlx_generate_options_initialize(&options);
  options.stops = stops;
  options.stop_count = MLX_MAX_STOPS + 1;
  CHECK_ERROR(mlx_output_initialize(&options, tokenizer, NULL, 0, VOCAB, &output), MLX_USAGE,
              "65 stop strings");
  mlx_output_clear(&output);
  stops[1] = "";
  options.stop_count = 2;
  CHECK_ERROR(mlx_output_initialize(&options, tokenizer, NULL, 0, VOCAB, &output), MLX_USAGE,
              "a stop string of 0 bytes");
  mlx_output_clear(&output);
  options.stop_count = 0;
  options.logprobs = VOCAB + 1;
  CHECK_ERROR(mlx_output_initialize(&options, tokenizer, NULL, 0, VOCAB, &output), MLX_USAGE,
              "the model has only 320 tokens");
  mlx_output_clear(&output);
  mlx_tokenizer_free(tokenizer);
}

TEST_MAIN(CASE(stop_strings_end_the_text_wherever_tokens_end),
          CASE(a_held_back_beginning_is_emitted_when_it_is_no_stop),
          CASE(end_of_text_limits_and_callbacks_end_the_output),
          CASE(visible_special_tokens_are_part_of_the_text), CASE(an_incomplete_character_waits_for_its_rest),
          CASE(impossible_stop_strings_are_refused))
