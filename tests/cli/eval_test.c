// mlxcel eval: scoring in chunks and one step at a time gives the same perplexity and the same divergence.
#include <math.h>

#include "base/json.h"
#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/fixture_copy.h"
#include "tests/support/folder.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define EVAL "eval", "-m", TINY, "-f", in_folder("text"), "-c", "200", "--chunks", "2", "--device", "cpu"

static void write_text(void) {
  mlx_text_t text = {0};
  for (int i = 0; i < 400; ++i) mlx_text_printf(&text, "%c%d ", 'a' + i * 7 % 26, i * i % 97);
  CHECK_OK(mlx_write_file(in_folder("text"), text.data, text.length));
  mlx_text_clear(&text);
}

static yyjson_doc *read_result(command_t *run) {
  if (run->exit_code) CHECK_FAIL("exit status %d: %s", run->exit_code, run->err);
  yyjson_doc *doc = yyjson_read(run->out, run->out_length, 0);
  CHECK(doc);
  command_free(run);
  return doc;
}

static double number(yyjson_doc *doc, const char *name) {
  return yyjson_get_num(yyjson_obj_get(yyjson_doc_get_root(doc), name));
}

TEST(chunks_and_single_steps_give_the_same_perplexity) {
  strcpy(folder, "/tmp/mlxcel-eval-XXXXXX");
  CHECK(mkdtemp(folder));
  write_text();
  command_t run;
  RUN(&run, EVAL, "--json");
  yyjson_doc *chunks = read_result(&run);
  RUN(&run, EVAL, "--json", "--decode-path", "--save-logprobs", in_folder("ref"));
  yyjson_doc *steps = read_result(&run);
  RUN(&run, EVAL, "--json", "--kl", in_folder("ref"));
  yyjson_doc *compared = read_result(&run);
  CHECK_INT(number(chunks, "tokens"), 2 * 99);
  CHECK(number(chunks, "tokens_per_second") > 0 && number(steps, "tokens_per_second") > 0);
  CHECK(fabs(number(chunks, "perplexity") / number(steps, "perplexity") - 1) < 1e-4);
  CHECK(fabs(number(chunks, "perplexity") / number(compared, "perplexity") - 1) < 1e-6);
  yyjson_val *kl = yyjson_obj_get(yyjson_doc_get_root(compared), "kl");
  CHECK(yyjson_get_num(yyjson_obj_get(kl, "max")) < 1e-6);
  CHECK(number(compared, "same_best") == 1.0);
  yyjson_doc_free(chunks);
  yyjson_doc_free(steps);
  yyjson_doc_free(compared);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(the_speed_is_printed_on_stderr) {
  strcpy(folder, "/tmp/mlxcel-eval-XXXXXX");
  CHECK(mkdtemp(folder));
  write_text();
  command_t run;
  RUN(&run, EVAL);
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, "read 2 chunks of 200 tokens in ");
  CHECK_CONTAINS(run.err, " tok/s\n");
  command_free(&run);
  RUN(&run, EVAL, "--decode-path");
  CHECK_CONTAINS(run.err, " tok/s (decode path)\n");
  command_free(&run);
  CHECK_OK(mlx_remove_tree(folder));
}

// Makes the logits 2^32 times as large: adds to the exponents of the last norm of a model with bf16 weights.
static void enlarge_logits(const char *path) {
  char *bytes;
  size_t length;
  uint64_t header;
  CHECK_OK(mlx_read_file(path, SIZE_MAX, &bytes, &length));
  memcpy(&header, bytes, sizeof header);
  yyjson_doc *doc = yyjson_read(bytes + 8, (size_t)header, 0);
  yyjson_val *offsets = yyjson_doc_ptr_get(doc, "/model.norm.weight/data_offsets");
  CHECK(offsets && yyjson_equals_str(yyjson_doc_ptr_get(doc, "/model.norm.weight/dtype"), "BF16"));
  char *at = bytes + 8 + header + yyjson_get_uint(yyjson_arr_get_first(offsets));
  const char *end = bytes + 8 + header + yyjson_get_uint(yyjson_arr_get_last(offsets));
  for (uint16_t value; at < end; at += 2) {
    memcpy(&value, at, 2);
    value = (uint16_t)(value + (32 << 7));
    memcpy(at, &value, 2);
  }
  CHECK_OK(mlx_write_file(path, bytes, length));
  yyjson_doc_free(doc);
  mlx_free(bytes);
}

TEST(a_perplexity_that_is_not_finite_is_an_error) {
  strcpy(folder, "/tmp/mlxcel-eval-XXXXXX");
  CHECK(mkdtemp(folder));
  write_text();
  copy_fixture("qwen2");
  enlarge_logits(in_folder("model.safetensors"));
  command_t run;
  for (int json = 0; json < 2; ++json) {
    RUN(&run, "eval", "-m", folder, "-f", in_folder("text"), "-c", "64", "--chunks", "1", "--device", "cpu",
        json ? "--json" : "--quiet");
    CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
    CHECK_TEXT(run.out, "");
    CHECK_CONTAINS(run.err, "the perplexity is not finite: a token of the text has the log-probability -");
    command_free(&run);
  }
  CHECK_OK(mlx_write_file(in_folder("text"), "a", 1));  // nothing to score
  RUN(&run, "eval", "-m", TINY, "-f", in_folder("text"), "-c", "64", "--device", "cpu", "--json");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "less than one chunk of 64");
  command_free(&run);
  CHECK_OK(mlx_remove_tree(folder));
}

// The fixture's context length is the chunk length.
TEST(a_chunk_of_exactly_the_context_length_is_scored) {
  strcpy(folder, "/tmp/mlxcel-eval-XXXXXX");
  CHECK(mkdtemp(folder));
  write_text();
  copy_fixture("qwen2");
  command_t run;
  RUN(&run, "eval", "-m", folder, "-f", in_folder("text"), "-c", "512", "--chunks", "1", "--device", "cpu",
      "--json");
  yyjson_doc *doc = read_result(&run);
  CHECK_INT(number(doc, "tokens"), 512 - 256 - 1);
  CHECK_INT(number(doc, "chunk"), 512);
  yyjson_doc_free(doc);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(chunks_and_single_steps_give_the_same_perplexity), CASE(the_speed_is_printed_on_stderr),
          CASE(a_perplexity_that_is_not_finite_is_an_error),
          CASE(a_chunk_of_exactly_the_context_length_is_scored))
