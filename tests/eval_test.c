// mlxcel eval: scoring in chunks and one step at a time gives the same perplexity and the same divergence.
#include <math.h>

#include "base/json.h"
#include "base/text.h"
#include "tests/check.h"
#include "tests/command.h"
#include "tests/folder.h"

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

TEST_MAIN(CASE(chunks_and_single_steps_give_the_same_perplexity), CASE(the_speed_is_printed_on_stderr))
