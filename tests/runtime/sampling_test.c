// Sampling, log-probabilities and grammars, through `mlxcel run` and through the C API on a model with random
// weights.
#include <math.h>

#include "runtime/sequence_sampler.h"
#include "tests/support/compiled.h"
#include "tests/support/golden.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define TINY_GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.json"

static mlx_engine_t *open_tiny(void) {
  return open_compiled(TINY, &(mlx_compile_options_t){.context = 256}, NULL, 0);
}

// Generates once in a new session.
static void generate(mlx_engine_t *engine, const mlx_generate_options_t *options, mlx_generation_t *out) {
  static const int32_t prompt[] = {315, 223, 310, 302, 278, 313, 80};  // "the quick brown"
  mlx_session_t *session;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_generate(session, prompt, 7, options, out));
  mlx_session_free(session);
}

// ----------------------------------------------------------------------------------------------------------
// Through the command line

static yyjson_doc *run_json(const char *const *extra) {
  const char *argv[32] = {MLXCEL_BINARY, "run", "-m",           TINY,       "-p",  "the quick brown",
                          "-n",          "24",  "--ignore-eos", "--device", "cpu", "--json"};
  size_t count = 12;
  for (; *extra; ++extra) argv[count++] = *extra;
  command_t run;
  command_start(&run, argv);
  command_wait(&run);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  yyjson_doc *doc = yyjson_read(run.out, run.out_length, 0);
  CHECK(doc);
  command_free(&run);
  return doc;
}
#define RUN_JSON(...) run_json((const char *const[]){__VA_ARGS__, NULL})

static yyjson_val *field(yyjson_doc *doc, const char *key) {
  return yyjson_obj_get(yyjson_doc_get_root(doc), key);
}

TEST(same_seed_gives_same_text) {
  yyjson_doc *first = RUN_JSON("--seed", "11"), *again = RUN_JSON("-s", "11"),
             *other = RUN_JSON("--seed", "12"), *any = RUN_JSON("--temp", "1");
  CHECK(yyjson_equals(field(first, "output_ids"), field(again, "output_ids")));
  CHECK(!yyjson_equals(field(first, "output_ids"), field(other, "output_ids")));
  CHECK_INT(yyjson_get_sint(field(first, "seed")), 11);
  char seed[24];
  snprintf(seed, sizeof seed, "%llu", (unsigned long long)yyjson_get_uint(field(any, "seed")));
  yyjson_doc *repeated = RUN_JSON("--temp", "1", "--seed", seed);
  CHECK(yyjson_equals(field(any, "output_ids"), field(repeated, "output_ids")));
  yyjson_doc *const docs[] = {first, again, other, any, repeated};
  for (int i = 0; i < 5; ++i) yyjson_doc_free(docs[i]);
}

TEST(sampling_flags_change_the_output) {
  yyjson_doc *greedy = RUN_JSON("--temp", "0"), *top_1 = RUN_JSON("--temp", "2", "--top-k", "1"),
             *penalised = RUN_JSON("--temp", "0", "--presence-penalty", "100");
  CHECK(yyjson_equals(field(greedy, "output_ids"), field(top_1, "output_ids")));
  bool seen[320] = {false};
  for (size_t i = 0; i < 24; ++i) {  // the presence penalty forbids every token that occurred
    const int64_t id = yyjson_get_sint(yyjson_arr_get(field(penalised, "output_ids"), i));
    CHECK(!seen[id]);
    seen[id] = true;
  }
  char forbidden[32];
  const int64_t first = yyjson_get_sint(yyjson_arr_get_first(field(greedy, "output_ids")));
  snprintf(forbidden, sizeof forbidden, "%lld-inf", (long long)first);
  yyjson_doc *biased = RUN_JSON("--temp", "0", "-l", forbidden, "--logit-bias", "7+1.5");
  for (size_t i = 0; i < 24; ++i)
    CHECK(yyjson_get_sint(yyjson_arr_get(field(biased, "output_ids"), i)) != first);
  yyjson_doc *const docs[] = {greedy, top_1, penalised, biased};
  for (int i = 0; i < 4; ++i) yyjson_doc_free(docs[i]);
}

TEST(logprobs_have_the_documented_fields) {
  yyjson_doc *doc = RUN_JSON("--seed", "1", "--logprobs", "3");
  yyjson_val *content = yyjson_obj_get(field(doc, "logprobs"), "content"), *entry;
  CHECK_INT(yyjson_arr_size(content), 24);
  for (size_t i = 0; i < 24; ++i) {
    entry = yyjson_arr_get(content, i);
    CHECK(yyjson_get_sint(yyjson_obj_get(entry, "id")) ==
          yyjson_get_sint(yyjson_arr_get(field(doc, "output_ids"), i)));
    CHECK(yyjson_is_str(yyjson_obj_get(entry, "token")) && yyjson_is_arr(yyjson_obj_get(entry, "bytes")));
    CHECK(yyjson_get_num(yyjson_obj_get(entry, "logprob")) < 0);
    yyjson_val *best = yyjson_obj_get(entry, "top_logprobs");
    CHECK_INT(yyjson_arr_size(best), 3);
    const double first = yyjson_get_num(yyjson_obj_get(yyjson_arr_get(best, 0), "logprob")),
                 last = yyjson_get_num(yyjson_obj_get(yyjson_arr_get(best, 2), "logprob"));
    CHECK(first >= last && first >= yyjson_get_num(yyjson_obj_get(entry, "logprob")));
  }
  yyjson_doc_free(doc);
}

TEST(invalid_flags_fail_before_the_model_is_loaded) {
  static const struct {
    const char *flag, *value;
    int code;
    const char *part;
  } rows[] = {
      {"--temp", "-1", 2, "option --temp expects a number from 0 to 1000000, not '-1'"},
      {"--temp", "warm", 2, "option --temp expects a number"},
      {"--temp", "nan", 2, "option --temp expects a number"},
      {"--top-p", "1.5", 2, "option --top-p expects a number from 0 to 1, not '1.5'"},
      {"--repeat-penalty", "0", 2, "--repeat-penalty expects a number above 0, not 0"},
      {"--mirostat", "3", 2, "option --mirostat expects a whole number from 0 to 2"},
      {"--logit-bias", "7", 2, "option --logit-bias expects TOKEN+BIAS or TOKEN-BIAS, not '7'"},
      {"--logit-bias", "7+inf", 2, "option --logit-bias expects"},
      {"--logit-bias", "+1", 2, "option --logit-bias expects"},
      {"--logprobs", "3", 2, "--logprobs needs --json"},
      {"--grammar", "root ::= a", 3, "--grammar: line 1: rule 'a' is used but not defined"},
      {"--grammar", "root ::= root \"a\" | \"b\"", 4, "begins with itself (left recursion)"},
      {"--grammar-file", "/nowhere.gbnf", 5, "/nowhere.gbnf"},
      {"--json-schema", "{\"contains\":{}}", 4, "--json-schema: #: 'contains' is not supported"},
      {"--json-schema", "@/nowhere.json", 5, "/nowhere.json"},
      {"--json-schema", "{", 3, "--json-schema"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    command_t run;
    RUN(&run, "run", "-m", "/nowhere/model.gguf", "-p", "x", rows[i].flag, rows[i].value);
    if (run.exit_code != rows[i].code) {
      CHECK_FAIL("%s %s: exit status %d: %s", rows[i].flag, rows[i].value, run.exit_code, run.err);
    }
    CHECK_CONTAINS(run.err, rows[i].part);
    CHECK_TEXT(run.out, "");
    command_free(&run);
  }
  command_t run;
  RUN(&run, "run", "-m", TINY, "-p", "x", "--grammar", "root ::= \"a\"", "--json-schema", "{}");
  CHECK_CONTAINS(run.err, "more than one of --grammar, --grammar-file and --json-schema was given");
  command_free(&run);
}

// ----------------------------------------------------------------------------------------------------------
// Through the C API

// |reads| and |synchronous|: what the options of a request need, if the device samples.
static void check_needs(const mlx_generate_options_t *options, bool reads, bool synchronous, int64_t burst) {
  const mlx_language_t language = {.vocab = 320, .context = 256};
  mlx_sequence_sampler_t *sampler;
  CHECK_OK(mlx_sequence_sampler_create(&language, options, true, false, NULL, 0, &sampler));
  CHECK_INT(mlx_sequence_sampler_reads_logits(sampler), reads);
  CHECK_INT(mlx_sequence_sampler_is_synchronous(sampler), synchronous);
  CHECK_INT(mlx_sequence_sampler_burst_limit(sampler), burst);
  mlx_sequence_sampler_free(sampler);
}

TEST(the_device_samples_unless_an_option_needs_the_host) {
  mlx_generate_options_t options;
  mlx_sampling_t sampling;
  mlx_grammar_t *grammar;
  CHECK_OK(mlx_grammar_create("grammar", "root ::= \"a\"", 12, &grammar));
  mlx_generate_options_initialize(&options);
  check_needs(&options, false, false, MLX_BURST_TOKENS);
  mlx_sampling_initialize(&sampling);
  sampling.repeat_penalty = 1.2;
  options.sampling = &sampling;
  check_needs(&options, false, false, MLX_BURST_TOKENS);
  options.logprobs = 20;
  check_needs(&options, false, false, 0);
  options.logprobs = 21;  // more than a step reports
  check_needs(&options, true, true, 0);
  options.logprobs = -1;
  options.grammar = grammar;
  check_needs(&options, false, true, 1);
  options.grammar = NULL;
  sampling.dry_multiplier = 0.8;
  check_needs(&options, true, true, 0);
  mlx_grammar_free(grammar);
}

TEST(host_and_device_agree_at_temperature_0) {
  mlx_engine_t *engine = open_tiny();
  mlx_generate_options_t options;
  mlx_generation_t device, host;
  mlx_generate_options_initialize(&options);
  options.max_tokens = 200;
  options.ignore_eos = true;
  generate(engine, &options, &device);
  options.logprobs = 5;
  generate(engine, &options, &host);
  CHECK_INT(host.count, 200);
  CHECK(!memcmp(host.ids, device.ids, 200 * sizeof *host.ids));
  CHECK_TEXT(host.text, device.text);
  for (size_t i = 0; i < host.count; ++i) {  // the most probable token is the sampled one
    CHECK_INT(host.logprobs[i * 6].id, host.ids[i]);
    CHECK_INT(host.logprobs[i * 6 + 5].id, host.ids[i]);
  }
  CHECK(!device.logprobs);
  mlx_generation_clear(&device);
  mlx_generation_clear(&host);
  mlx_engine_close(engine);
}

TEST(logprobs_come_from_unmodified_logits) {
  mlx_engine_t *engine = open_tiny();
  mlx_session_t *session;
  mlx_sampling_t sampling;
  mlx_generate_options_t options;
  mlx_generation_t g;
  mlx_sampling_initialize(&sampling);
  sampling.seed = 4;
  sampling.repeat_penalty = 1.5;
  mlx_generate_options_initialize(&options);
  options.max_tokens = 30;
  options.ignore_eos = true;
  options.sampling = &sampling;
  options.logprobs = 2;
  generate(engine, &options, &g);
  int32_t ids[64] = {315, 223, 310, 302, 278, 313, 80}, next;
  float logits[320];
  for (size_t i = 0; i < g.count; ++i) {  // prefill the same tokens in a new session
    CHECK_OK(mlx_session_create(engine, &session));
    CHECK_OK(mlx_session_read(session, ids, 7 + i, &next));
    CHECK_OK(mlx_session_logits(session, logits, 320));
    double sum = 0;
    for (int j = 0; j < 320; ++j) sum += exp((double)logits[j]);
    for (int j = 0; j < 3; ++j) {
      const mlx_logprob_t *logprob = &g.logprobs[i * 3 + (size_t)j];
      CHECK(fabs(logprob->logprob - ((double)logits[logprob->id] - log(sum))) < 1e-4);
    }
    CHECK_INT(g.logprobs[i * 3].id, next);
    CHECK_INT(g.logprobs[i * 3 + 2].id, g.ids[i]);
    ids[7 + i] = g.ids[i];
    mlx_session_free(session);
  }
  mlx_generation_clear(&g);
  mlx_engine_close(engine);
}

// With random weights, every generated text must end by itself and match the schema.
TEST(generated_texts_match_their_json_schema) {
  static const char schema[] =
      "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":12},"
      "\"age\":{\"type\":\"integer\",\"minimum\":0,"
      "\"maximum\":120},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",\"blue\"]},"
      "\"maxItems\":3}},\"required\":[\"name\",\"age\"]}";
  mlx_engine_t *engine = open_tiny();
  mlx_grammar_t *grammar;
  mlx_sampling_t sampling;
  mlx_generate_options_t options;
  CHECK_OK(mlx_grammar_create_from_schema("schema", schema, sizeof schema - 1, &grammar));
  mlx_sampling_initialize(&sampling);
  mlx_generate_options_initialize(&options);
  options.sampling = &sampling;
  options.grammar = grammar;
  size_t tokens = 0, with_tags = 0;
  for (uint64_t seed = 0; seed < (MLXCEL_SANITIZED ? 30 : 500); ++seed) {
    mlx_generation_t g;
    sampling.seed = seed;
    sampling.temperature = seed % 4 ? 1.2 : 0;
    if (seed % 4 == 0) sampling.presence_penalty = (double)seed / 500;
    options.ignore_eos = seed % 3 == 0;
    generate(engine, &options, &g);
    if (g.finish_reason != MLX_FINISH_STOP)
      CHECK_FAIL("seed %llu: no end: %s", (unsigned long long)seed, g.text);
    yyjson_doc *doc = yyjson_read(g.text, g.text_length, 0);
    yyjson_val *root = yyjson_doc_get_root(doc), *name = yyjson_obj_get(root, "name"),
               *age = yyjson_obj_get(root, "age"), *tags = yyjson_obj_get(root, "tags"), *tag;
    size_t characters = 0, index, count;
    for (size_t i = 0; i < yyjson_get_len(name); ++i) characters += (yyjson_get_str(name)[i] & 0xc0) != 0x80;
    bool good = characters >= 1 && characters <= 12 && yyjson_is_int(age) && yyjson_get_sint(age) >= 0 &&
                yyjson_get_sint(age) <= 120;
    good = good && (!tags || (yyjson_is_arr(tags) && yyjson_arr_size(tags) <= 3)) &&
           yyjson_obj_size(root) == 2u + !!tags;
    yyjson_arr_foreach(tags, index, count, tag) {
      good = good && (yyjson_equals_str(tag, "red") || yyjson_equals_str(tag, "green") ||
                      yyjson_equals_str(tag, "blue"));
    }
    if (!good) CHECK_FAIL("seed %llu: does not match the schema: %s", (unsigned long long)seed, g.text);
    tokens += g.count;
    with_tags += tags != NULL;
    yyjson_doc_free(doc);
    mlx_generation_clear(&g);
  }
  fprintf(stderr, "  %zu tokens; %zu texts with tags\n", tokens, with_tags);
  CHECK(with_tags > 10);
  mlx_grammar_free(grammar);
  mlx_engine_close(engine);
}

TEST_MAIN(CASE(same_seed_gives_same_text), CASE(sampling_flags_change_the_output),
          CASE(logprobs_have_the_documented_fields), CASE(invalid_flags_fail_before_the_model_is_loaded),
          CASE(the_device_samples_unless_an_option_needs_the_host),
          CASE(host_and_device_agree_at_temperature_0), CASE(logprobs_come_from_unmodified_logits),
          CASE(generated_texts_match_their_json_schema))
