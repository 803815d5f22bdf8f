// mlxcel embed: equal to sentence-transformers on a real model, the same numbers in each format, and errors.
#include <math.h>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define MINILM MLXCEL_MODELS "/all-MiniLM-L6-v2"
#define GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/all-minilm-l6-v2.json"
#define SIZE 384

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-embed-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void write_text(const char *name, const char *text) {
  CHECK_OK(mlx_write_file(in_folder(name), text, strlen(text)));
}

// The vectors of a NumPy file [count][SIZE]; release with mlx_free.
static float *read_npy(const char *path, size_t count) {
  char *bytes, shape[64];
  float *vectors;
  size_t length;
  CHECK_OK(mlx_read_file(path, 1 << 24, &bytes, &length));
  const size_t header = 10 + (unsigned char)bytes[8] + 256 * (size_t)(unsigned char)bytes[9];
  CHECK(!memcmp(bytes, "\x93NUMPY\x01\x00", 8));
  CHECK_INT(header % 64, 0);
  CHECK_INT(bytes[header - 1], '\n');
  bytes[header - 1] = 0;
  snprintf(shape, sizeof shape, "'shape': (%zu, %d)", count, SIZE);
  CHECK_CONTAINS(bytes + 10, "'descr': '<f4', 'fortran_order': False");
  CHECK_CONTAINS(bytes + 10, shape);
  CHECK_INT(length, header + count * SIZE * sizeof *vectors);
  CHECK_OK(mlx_alloc(count * SIZE, sizeof *vectors, &vectors));
  memcpy(vectors, bytes + header, count * SIZE * sizeof *vectors);
  mlx_free(bytes);
  return vectors;
}

static double cosine(const float *a, const float *b) {
  double ab = 0, aa = 0, bb = 0;
  for (int i = 0; i < SIZE; ++i)
    ab += (double)a[i] * b[i], aa += (double)a[i] * a[i], bb += (double)b[i] * b[i];
  return ab / sqrt(aa * bb);
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

// ----------------------------------------------------------------------------------------------------------
// Numbers

static void write_golden_texts(const golden_t *golden) {
  mlx_text_t lines = {0};
  size_t index, count;
  yyjson_val *result;
  yyjson_arr_foreach(golden->results, index, count, result) {
    mlx_json_writer_t json = {.out = &lines};
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_text(&json, "text", yyjson_get_str(yyjson_obj_get(result, "text")));
    mlx_json_end(&json);
    mlx_text_puts(&lines, "\n");
  }
  CHECK_OK(mlx_text_finish(&lines));
  write_text("texts.jsonl", lines.data);
  mlx_text_clear(&lines);
}

TEST(a_real_model_equals_sentence_transformers_in_fp32) {
  golden_t golden = golden_open(GOLDENS);
  const size_t count = yyjson_arr_size(golden.results);
  command_t run;
  make_folder();
  write_golden_texts(&golden);
  RUN(&run, "embed", MINILM, "-f", in_folder("texts.jsonl"), "--format", "npy", "-o", in_folder("v.npy"));
  command_done(&run);
  float *vectors = read_npy(in_folder("v.npy"), count);
  for (size_t i = 0; i < count; ++i) {
    yyjson_val *numbers = yyjson_obj_get(yyjson_arr_get(golden.results, i), "embedding");
    float expected[SIZE];
    CHECK_INT(yyjson_arr_size(numbers), SIZE);
    for (size_t k = 0; k < SIZE; ++k) {
      expected[k] = (float)yyjson_get_num(yyjson_arr_get(numbers, k));
      const double difference = fabs((double)vectors[i * SIZE + k] - expected[k]);
      if (difference > 1e-5) CHECK_FAIL("text %zu, number %zu differs by %g", i, k, difference);
    }
    CHECK(cosine(vectors + i * SIZE, expected) >= 1 - 1e-6);
  }
  // A text alone has the bits that it has among others.
  RUN(&run, "embed", MINILM, yyjson_get_str(yyjson_obj_get(yyjson_arr_get(golden.results, 4), "text")),
      "--format", "npy", "-o", in_folder("one.npy"));
  command_done(&run);
  float *one = read_npy(in_folder("one.npy"), 1);
  CHECK(!memcmp(one, vectors + 4 * SIZE, SIZE * sizeof *one));
  mlx_free(one);
  mlx_free(vectors);
  golden_close(&golden);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(each_format_has_the_same_numbers) {
  command_t run;
  make_folder();
  write_text("t.jsonl",
             "{\"id\": \"a,\\\"b\\\"\", \"text\": \"one text\"}\r\n\n{\"id\": 7, \"input\": \"another\"}\n");
  RUN(&run, "embed", MINILM, "-f", in_folder("t.jsonl"), "--format", "npy", "-o", in_folder("v.npy"));
  command_done(&run);
  float *vectors = read_npy(in_folder("v.npy"), 2);
  RUN(&run, "embed", MINILM, "-f", in_folder("t.jsonl"));
  yyjson_doc *doc = read_list(&run, 2);
  CHECK_TEXT(yyjson_get_str(item(doc, 0, "id")), "a,\"b\"");
  CHECK_TEXT(yyjson_get_str(item(doc, 1, "id")), "7");
  CHECK_INT(yyjson_get_sint(item(doc, 1, "tokens")), 3);  // [CLS] another [SEP]
  for (size_t i = 0; i < 2 * SIZE; ++i) {
    yyjson_val *number = yyjson_arr_get(item(doc, i / SIZE, "embedding"), i % SIZE);
    CHECK((float)yyjson_get_num(number) == vectors[i]);
  }
  yyjson_doc_free(doc);
  RUN(&run, "embed", MINILM, "-f", in_folder("t.jsonl"), "--format", "csv");
  CHECK(!strncmp(run.out, "\"a,\"\"b\"\"\",", 10));
  const char *at = strstr(run.out, "\n7,");
  CHECK(at);
  at += 2;
  for (size_t i = 0; i < SIZE; ++i) CHECK(strtof(at + 1, (char **)(uintptr_t)&at) == vectors[SIZE + i]);
  CHECK_TEXT(at, "\n");
  command_free(&run);
  mlx_free(vectors);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(fewer_dimensions_have_the_norm_1) {
  command_t run;
  double square = 0;
  RUN(&run, "embed", MINILM, "one text");
  yyjson_doc *all = read_list(&run, 1);
  RUN(&run, "embed", MINILM, "one text", "--dimensions", "64");
  yyjson_doc *some = read_list(&run, 1);
  yyjson_val *long_one = item(all, 0, "embedding"), *short_one = item(some, 0, "embedding");
  CHECK_INT(yyjson_arr_size(short_one), 64);
  for (size_t i = 0; i < 64; ++i) {
    const double number = yyjson_get_num(yyjson_arr_get(short_one, i));
    square += number * number;
    CHECK(number * yyjson_get_num(yyjson_arr_get(long_one, i)) >= 0);
  }
  CHECK(fabs(square - 1) < 1e-5);
  yyjson_doc_free(all);
  yyjson_doc_free(some);
}

TEST(similarity_prints_the_cosine_of_each_text) {
  command_t run;
  RUN(&run, "embed", MINILM, "He drove to the stadium.", "It's sunny outside.",
      "The weather is lovely today.", "--similarity", "The weather is lovely today.");
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.out,
             "cosine    text\n0.104584  He drove to the stadium.\n0.634576  It's sunny outside.\n"
             "1.000000  The weather is lovely today.\n");
  command_free(&run);
}

// The folder gets the files of MiniLM, but not its prompts.
static void link_model(void) {
  static const char *const files[] = {"config.json", "model.safetensors", "modules.json", "1_Pooling",
                                      "tokenizer.json"};
  char from[512];
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    snprintf(from, sizeof from, MINILM "/%s", files[i]);
    CHECK(!symlink(from, in_folder(files[i])));
  }
}

TEST(prompts_of_the_model_are_put_before_texts) {
  command_t run, same;
  make_folder();
  link_model();
  write_text("config_sentence_transformers.json",
             "{\"prompts\": {\"query\": \"query: \", \"passage\": \"passage: \", \"STS\": \"compare: \"}, "
             "\"default_prompt_name\": \"STS\", \"similarity_fn_name\": \"euclidean\"}");
  static const char *const pairs[][3] = {{"--query", NULL, "query: text"},
                                         {"--document", NULL, "passage: text"},
                                         {"--prompt-name", "document", "passage: text"},
                                         {"--prompt-name", "passage", "passage: text"},
                                         {"--prompt-name", "STS", "compare: text"},
                                         {NULL, NULL, "compare: text"},  // the default
                                         {"--prompt-name", "", "text"}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
    RUN(&run, "embed", folder, "text", pairs[i][0], pairs[i][1]);
    RUN(&same, "embed", folder, pairs[i][2], "--prompt-name", "");
    if (run.exit_code) CHECK_FAIL("%s", run.err);
    CHECK_TEXT(run.out, same.out);
    command_free(&run);
    command_free(&same);
  }
  RUN(&run, "embed", folder, "text", "--prompt-name", "sts");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "the model has no prompt 'sts'");
  CHECK_CONTAINS(run.err, "its prompts: query, passage, STS");
  command_free(&run);
  RUN(&run, "embed", folder, "text", "--similarity", "text");
  CHECK_TEXT(run.out, "euclidean text\n-0.000000  text\n");
  command_free(&run);
  write_text("config_sentence_transformers.json", "{\"prompts\": {}, \"default_prompt_name\": \"none\"}");
  RUN(&run, "embed", folder, "text");
  CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
  CHECK_CONTAINS(run.err,
                 "config_sentence_transformers.json: field 'default_prompt_name' is not a name in 'prompts'");
  command_free(&run);
  CHECK_OK(mlx_remove_tree(folder));
}

// The golden values of |how| are those of numpy on the vectors that `embed` prints.
TEST(similarity_is_what_the_model_says) {
  static const char *const names[] = {"dot", "euclidean", "manhattan"};
  char settings[80];
  command_t run;
  make_folder();
  link_model();
  RUN(&run, "embed", MINILM, "It's sunny outside.", "The weather is lovely today.", "--format", "npy", "-o",
      in_folder("v.npy"));
  command_done(&run);
  float *v = read_npy(in_folder("v.npy"), 2);
  double expected[3] = {0};
  for (int i = 0; i < SIZE; ++i) {
    const double difference = (double)v[i] - v[SIZE + i];
    expected[0] += (double)v[i] * v[SIZE + i];
    expected[1] += difference * difference;
    expected[2] -= fabs(difference);
  }
  expected[1] = -sqrt(expected[1]);
  for (int i = 0; i < 3; ++i) {
    char row[32];
    snprintf(settings, sizeof settings, "{\"similarity_fn_name\": \"%s\"}", names[i]);
    write_text("config_sentence_transformers.json", settings);
    RUN(&run, "embed", folder, "It's sunny outside.", "--similarity", "The weather is lovely today.");
    snprintf(row, sizeof row, "\n%8.6f  It's", expected[i]);
    CHECK(!strncmp(run.out, names[i], strlen(names[i])));
    CHECK_CONTAINS(run.out, row);
    command_free(&run);
  }
  write_text("config_sentence_transformers.json", "{\"similarity_fn_name\": \"jaccard\"}");
  RUN(&run, "embed", folder, "text");
  CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
  CHECK_CONTAINS(run.err, "field 'similarity_fn_name' must be cosine, dot, euclidean or manhattan");
  command_free(&run);
  mlx_free(v);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(lines_of_stdin_are_texts) {
  command_t run;
  char *piped;
  make_folder();
  command_shell(folder, "printf 'one\\n\\ntwo' | " MLXCEL_BINARY " embed " MINILM " --format csv >piped");
  RUN(&run, "embed", MINILM, "one", "two", "--format", "csv");
  CHECK_OK(mlx_read_file(in_folder("piped"), 1 << 20, &piped, NULL));
  CHECK_TEXT(piped, run.out);
  mlx_free(piped);
  command_free(&run);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(lines_of_stdin_are_json_if_asked_for) {
  command_t run;
  char *piped;
  make_folder();
  write_text("in", "\"one\\ntwo\"\n\n{\"id\": \"b\", \"text\": \"three\"}\n");
  command_shell(folder, MLXCEL_BINARY " embed " MINILM " --jsonl --format csv <in >piped");
  RUN(&run, "embed", MINILM, "one\ntwo", "three", "--format", "csv");
  CHECK_INT(run.exit_code, 0);
  CHECK_OK(mlx_read_file(in_folder("piped"), 1 << 20, &piped, NULL));
  const char *second = strstr(piped, "\nb,"), *expected = strstr(run.out, "\n1,");
  CHECK(second && expected && second - piped == expected - run.out);
  CHECK(!strncmp(piped, run.out, (size_t)(second - piped)));
  CHECK_TEXT(second + 3, expected + 3);
  mlx_free(piped);
  command_free(&run);
  write_text("in", "\"one\"\n[7]\n");
  command_shell(folder, "! " MLXCEL_BINARY " embed " MINILM " --jsonl -f - <in 2>errors");
  CHECK_OK(mlx_read_file(in_folder("errors"), 1 << 20, &piped, NULL));
  CHECK_CONTAINS(piped, "stdin:2: expected a string, or an object with the string 'text'");
  mlx_free(piped);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(a_note_says_once_how_many_texts_were_cut) {
  mlx_text_t text = {0};
  command_t run;
  for (int i = 0; i < 300; ++i) mlx_text_puts(&text, "dog ");
  CHECK_OK(mlx_text_finish(&text));
  RUN(&run, "embed", MINILM, text.data, "short", text.data, "--format", "csv");
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.err, "note: 2 of 3 texts were cut after 256 tokens, the model's limit\n");
  command_free(&run);
  text.data[4 * 254] = 0;  // 254 tokens, [CLS] and [SEP]: it fits
  RUN(&run, "embed", MINILM, text.data, "--format", "csv");
  CHECK_TEXT(run.err, "");
  command_free(&run);
  mlx_text_clear(&text);
}

// ----------------------------------------------------------------------------------------------------------
// Errors

static void check_refused(command_t *run, int code, const char *message) {
  CHECK_INT(run->exit_code, code);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, message);
  command_free(run);
}

TEST(wrong_input_is_named) {
  command_t run;
  make_folder();
  write_text("bad.jsonl", "{\"text\": \"fine\"}\n{\"txet\": \"wrong\"}\n");
  write_text("broken.jsonl", "{\"text\": \"fine\"}\n{\"text\": \n");
  write_text("empty", "\n\n");
  RUN(&run, "embed", MINILM, "-f", in_folder("bad.jsonl"));
  check_refused(&run, MLX_INVALID_INPUT,
                "bad.jsonl:2: expected a string, or an object with the string 'text'");
  RUN(&run, "embed", MINILM, "-f", in_folder("broken.jsonl"));
  check_refused(&run, MLX_INVALID_INPUT, "broken.jsonl:2");
  RUN(&run, "embed", MINILM, "-f", in_folder("empty"));
  check_refused(&run, MLX_USAGE, "there is no text to embed");
  RUN(&run, "embed", MINILM, "-f", in_folder("none"));
  check_refused(&run, MLX_NOT_FOUND, in_folder("none"));
  RUN(&run, "embed", MINILM, "a text", "-f", in_folder("empty"));
  check_refused(&run, MLX_USAGE, "the texts are given twice: as words and with --file");
  RUN(&run, "embed", MINILM, "a text", "--format", "xml");
  check_refused(&run, MLX_USAGE, "option --format expects json, csv or npy, not 'xml'");
  RUN(&run, "embed", MINILM, "a text", "--query", "--document");
  check_refused(&run, MLX_USAGE, "--query and --document exclude each other");
  RUN(&run, "embed", MINILM, "a text", "--dimensions", "385");
  check_refused(&run, MLX_USAGE, "--dimensions 385: an embedding of this model has 384 numbers");
  RUN(&run, "embed", MINILM, "a text", "--query", "--prompt-name", "query");
  check_refused(&run, MLX_USAGE, "--prompt-name and --query exclude each other");
  RUN(&run, "embed");
  check_refused(&run, MLX_USAGE, "no model was given");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(an_encoder_generates_no_text) {
  command_t run;
  RUN(&run, "run", MINILM, "a text");
  check_refused(&run, MLX_UNSUPPORTED,
                "the model is an encoder: it computes embeddings and generates no text");
}

TEST(a_decoder_embeds_too) {
  command_t run;
  RUN(&run, "embed", TINY, "the quick", "the quick brown", "--device", "cpu");
  yyjson_doc *doc = read_list(&run, 2);
  CHECK_INT(yyjson_arr_size(item(doc, 0, "embedding")), 32);
  yyjson_doc_free(doc);
}

TEST_MAIN(CASE(a_real_model_equals_sentence_transformers_in_fp32), CASE(each_format_has_the_same_numbers),
          CASE(fewer_dimensions_have_the_norm_1), CASE(similarity_prints_the_cosine_of_each_text),
          CASE(prompts_of_the_model_are_put_before_texts), CASE(similarity_is_what_the_model_says),
          CASE(lines_of_stdin_are_texts), CASE(lines_of_stdin_are_json_if_asked_for),
          CASE(a_note_says_once_how_many_texts_were_cut),

          CASE(wrong_input_is_named), CASE(an_encoder_generates_no_text), CASE(a_decoder_embeds_too))
