// mlxcel rerank: the ranking of sentence-transformers, formats, and errors. Also that other verbs refuse a
// cross-encoder.
#include <math.h>
#include <unistd.h>

#include "base/json.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"

#define CLASSIFIERS MLXCEL_SOURCE_DIR "/tests/fixtures/classifiers/"
#define BERT CLASSIFIERS "bert"
#define QWEN3 CLASSIFIERS "qwen3"
#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define PAIRS 9  // of the golden, which have the same query

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-rerank-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void write_text(const char *name, const char *text) {
  CHECK_OK(mlx_write_file(in_folder(name), text, strlen(text)));
}

static yyjson_doc *read_list(command_t *run, size_t count) {
  if (run->exit_code) CHECK_FAIL("exit status %d: %s", run->exit_code, run->err);
  yyjson_doc *doc = yyjson_read(run->out, run->out_length, 0);
  CHECK_INT(yyjson_arr_size(yyjson_doc_get_root(doc)), count);
  command_free(run);
  return doc;
}

static yyjson_val *item(yyjson_doc *doc, size_t index, const char *name) {
  return yyjson_obj_get(yyjson_arr_get(yyjson_doc_get_root(doc), index), name);
}

static yyjson_val *golden_item(const golden_t *golden, size_t index, const char *name) {
  return yyjson_obj_get(yyjson_arr_get(golden->results, index), name);
}

static void check_refused(command_t *run, int code, const char *message) {
  CHECK_INT(run->exit_code, code);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, message);
  command_free(run);
}

// Checks that |doc| has the golden's documents, best first, with the scores |key|.
static void check_ranking(yyjson_doc *doc, const golden_t *golden, const char *key) {
  double last = INFINITY;
  bool seen[PAIRS] = {0};
  for (size_t i = 0; i < PAIRS; ++i) {
    const size_t index = (size_t)yyjson_get_uint(item(doc, i, "index"));
    const double score = yyjson_get_num(item(doc, i, "score"));
    CHECK(index < PAIRS && !seen[index]);
    seen[index] = true;
    CHECK_TEXT(yyjson_get_str(item(doc, i, "text")), yyjson_get_str(golden_item(golden, index, "second")));
    CHECK(fabs(score - yyjson_get_num(yyjson_arr_get(golden_item(golden, index, key), 0))) < 1e-5);
    CHECK(score <= last);
    last = score;
  }
}

TEST(documents_have_the_order_and_scores_of_sentence_transformers) {
  static const char *const names[] = {"bert", "xlm-roberta", "qwen3-prompt"};
  for (int i = 0; i < 3; ++i) {
    char path[512], model[256];
    mlx_text_t lines = {0};
    command_t run;
    make_folder();
    snprintf(model, sizeof model, CLASSIFIERS "%s", names[i]);
    snprintf(path, sizeof path, "%s/golden.json", model);
    golden_t golden = golden_open(path);
    for (size_t k = 0; k < PAIRS; ++k)
      mlx_text_printf(&lines, "%s\n", yyjson_get_str(golden_item(&golden, k, "second")));
    write_text("lines.txt", lines.data);
    mlx_text_clear(&lines);
    const char *query = yyjson_get_str(golden_item(&golden, 0, "first"));
    RUN(&run, "rerank", model, query, "-f", in_folder("lines.txt"), "--format", "json");
    yyjson_doc *doc = read_list(&run, PAIRS);
    check_ranking(doc, &golden, "scores");
    yyjson_doc_free(doc);
    RUN(&run, "rerank", model, query, "-f", in_folder("lines.txt"), "--format", "json", "--raw");
    doc = read_list(&run, PAIRS);
    check_ranking(doc, &golden, "logits");
    yyjson_doc_free(doc);
    golden_close(&golden);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST(top_keeps_the_best_and_ids_are_printed) {
  command_t run;
  char *piped;
  make_folder();
  write_text("d.jsonl",
             "{\"id\": \"x\", \"text\": \"many people\"}\n{\"text\": \"a river\"}\n{\"id\": 7, \"text\": "
             "\"end\"}\n");
  RUN(&run, "rerank", BERT, "people", "-f", in_folder("d.jsonl"), "--format", "json");
  yyjson_doc *doc = read_list(&run, 3);
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t index = yyjson_get_uint(item(doc, i, "index"));
    const char *id = yyjson_get_str(item(doc, i, "id"));
    CHECK(index == 1 ? !id : !strcmp(id, index ? "7" : "x"));
  }
  RUN(&run, "rerank", BERT, "people", "many people", "a river", "end", "--format", "json", "--top", "1", "-o",
      in_folder("best.json"));
  command_done(&run);
  CHECK_OK(mlx_read_file(in_folder("best.json"), 1 << 20, &piped, NULL));
  yyjson_doc *best = yyjson_read(piped, strlen(piped), 0);
  CHECK_INT(yyjson_arr_size(yyjson_doc_get_root(best)), 1);
  CHECK_INT(yyjson_get_uint(item(best, 0, "index")), yyjson_get_uint(item(doc, 0, "index")));
  CHECK(yyjson_get_num(item(best, 0, "score")) == yyjson_get_num(item(doc, 0, "score")));
  yyjson_doc_free(best);
  yyjson_doc_free(doc);
  mlx_free(piped);
  command_shell(folder, "printf 'many people\\n\\nend' | " MLXCEL_BINARY " rerank " BERT " people >piped");
  RUN(&run, "rerank", BERT, "people", "many people", "end");
  CHECK_OK(mlx_read_file(in_folder("piped"), 1 << 20, &piped, NULL));
  CHECK_TEXT(piped, run.out);
  CHECK_CONTAINS(run.out, "score      index  text\n0.");
  mlx_free(piped);
  command_free(&run);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(a_bundle_gives_the_same_scores) {
  static const char *const models[] = {BERT, QWEN3};
  for (int i = 0; i < 2; ++i) {
    command_t run, source;
    make_folder();
    RUN(&run, "compile", models[i], "-o", in_folder("a.mlxb"));
    command_done(&run);
    RUN(&run, "rerank", in_folder("a.mlxb"), "people", "many people", "a river", "--format", "json");
    RUN(&source, "rerank", models[i], "people", "many people", "a river", "--format", "json");
    CHECK_CONTAINS(run.out, "\"score\": 0.");
    CHECK_TEXT(run.out, source.out);
    command_free(&run);
    command_free(&source);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

// The default of the fixture's template is "retrieve passages".
TEST(an_instruction_changes_the_scores_of_a_decoder) {
  command_t usual, same, other;
  RUN(&usual, "rerank", QWEN3, "people", "many people", "a river");
  RUN(&same, "rerank", QWEN3, "people", "many people", "a river", "--instruction", "retrieve passages");
  RUN(&other, "rerank", QWEN3, "people", "many people", "a river", "--instruction", "find the opposite");
  CHECK_CONTAINS(usual.out, "many people");
  CHECK_TEXT(same.out, usual.out);
  CHECK(!other.exit_code && strcmp(other.out, usual.out));
  command_free(&usual);
  command_free(&same);
  command_free(&other);
  RUN(&other, "rerank", BERT, "a query", "a text", "--instruction", "x");
  check_refused(&other, MLX_UNSUPPORTED, "is an encoder and takes no instruction");
}

// ----------------------------------------------------------------------------------------------------------
// Errors

TEST(wrong_input_is_named) {
  command_t run;
  make_folder();
  write_text("empty", "\n\n");
  RUN(&run, "rerank", BERT);
  check_refused(&run, MLX_USAGE, "no query was given");
  RUN(&run, "rerank");
  check_refused(&run, MLX_USAGE, "no model was given");
  RUN(&run, "rerank", BERT, "a query", "-f", in_folder("empty"));
  check_refused(&run, MLX_USAGE, "there is no document to rank");
  RUN(&run, "rerank", BERT, "a query", "a text", "-f", in_folder("empty"));
  check_refused(&run, MLX_USAGE, "the documents are given twice: as words and with --file");
  RUN(&run, "rerank", BERT, "a query", "a text", "--format", "xml");
  check_refused(&run, MLX_USAGE, "option --format expects table or json, not 'xml'");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(a_model_that_is_no_reranker_is_refused_with_a_hint) {
  command_t run;
  RUN(&run, "rerank", TINY, "a query", "a text", "--device", "cpu");
  check_refused(&run, MLX_UNSUPPORTED, "use a cross-encoder: a directory whose config.json names a class");
  RUN(&run, "rerank", CLASSIFIERS "roberta", "a query", "a text");
  check_refused(&run, MLX_UNSUPPORTED, "the model gives a text 3 scores");
}

TEST(other_verbs_say_what_a_cross_encoder_is_for) {
  command_t run;
  RUN(&run, "embed", BERT, "a text");
  check_refused(&run, MLX_UNSUPPORTED, "mlxcel rerank MODEL QUERY DOCUMENT...");
  RUN(&run, "embed", QWEN3, "a text");
  check_refused(&run, MLX_UNSUPPORTED, "mlxcel rerank MODEL QUERY DOCUMENT...");
  RUN(&run, "run", CLASSIFIERS "qwen3-class", "a text");
  check_refused(&run, MLX_UNSUPPORTED, "mlxcel rerank MODEL QUERY DOCUMENT...");
  RUN(&run, "run", BERT, "a text");
  check_refused(&run, MLX_UNSUPPORTED, "mlxcel rerank MODEL QUERY DOCUMENT...");
}

TEST_MAIN(CASE(documents_have_the_order_and_scores_of_sentence_transformers),
          CASE(top_keeps_the_best_and_ids_are_printed), CASE(a_bundle_gives_the_same_scores),
          CASE(an_instruction_changes_the_scores_of_a_decoder), CASE(wrong_input_is_named),
          CASE(a_model_that_is_no_reranker_is_refused_with_a_hint),
          CASE(other_verbs_say_what_a_cross_encoder_is_for))
