// Calls, answers and the fields of request bodies.
#include "server/api/fields.h"

#include <math.h>

#include "base/memory.h"
#include "output/answer.h"
#include "server/api/api.h"
#include "tests/support/check.h"

static yyjson_doc *parse_body(const char *body) {
  yyjson_doc *doc;
  CHECK_OK(mlx_fields_parse(body, strlen(body), &doc));
  return doc;
}

TEST(a_body_that_is_not_an_object_of_unique_keys_is_refused) {
  yyjson_doc *doc;
  static const struct {
    const char *body, *message;
  } cases[] = {
      {"", "not valid JSON at byte 0"},
      {"[]", "must be a JSON object, not a list"},
      {"{\"a\": nan}", "not valid JSON at byte 6"},
      {"{\"a\": 1e999}", "not valid JSON"},
      {"{\"a\": \"\xff\"}", "not valid JSON"},
      {"{\"a\": \"\\ud800\"}", "not valid JSON"},
      {"{\"a\": 1} x", "not valid JSON"},
      {"{\"a\": 1, \"a\": 2}", "a: the key is given twice"},
      {"{\"m\": [{}, {\"b c\": 1, \"b c\": 2}]}", "m[1][\"b\\u0020c\"]: the key is given twice"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
    CHECK_ERROR(mlx_fields_parse(cases[i].body, strlen(cases[i].body), &doc), MLX_INVALID_INPUT,
                cases[i].message);
}

TEST(a_deeply_nested_body_is_refused_and_the_limit_is_accepted) {
  yyjson_doc *doc;
  static char body[200000];
  for (int depth = 64; depth <= 65; ++depth) {
    mlx_text_t text = {0};
    mlx_text_puts(&text, "{\"a\":");
    for (int i = 1; i < depth; ++i) mlx_text_puts(&text, "[");
    for (int i = 1; i < depth; ++i) mlx_text_puts(&text, "]");
    mlx_text_puts(&text, "}");
    if (depth == 64) {
      CHECK_OK(mlx_fields_parse(text.data, text.length, &doc));
      yyjson_doc_free(doc);
    } else {
      CHECK_ERROR(mlx_fields_parse(text.data, text.length, &doc), MLX_INVALID_INPUT, "deeper than 64");
    }
    mlx_text_clear(&text);
  }
  memcpy(body, "{\"a\":", 5);
  memset(body + 5, '[', sizeof body - 5);
  CHECK_ERROR(mlx_fields_parse(body, sizeof body, &doc), MLX_INVALID_INPUT, "not valid JSON");
}

TEST(values_have_types_and_ranges_and_errors_name_the_path) {
  yyjson_doc *doc = parse_body(
      "{\"o\": [{\"i\": 3, \"f\": 3.0, \"h\": 3.5, \"big\": 18446744073709551615, \"huge\": 1e300, \"b\": "
      "true, "
      "\"s\": \"text\", \"nul\": \"a\\u0000b\", \"null\": null}]}");
  const mlx_place_t root = mlx_place_root(doc, NULL);
  const mlx_place_t list = mlx_place_key(&root, "o");
  const mlx_place_t o = mlx_place_item(&list, 0, yyjson_arr_get(list.value, 0));
  int64_t i = 7;
  double d = 7;
  bool b = false;
  const char *s = NULL;
  CHECK_OK(mlx_field_int(&o, "missing", 0, 1, &i));
  CHECK_OK(mlx_field_int(&o, "null", 0, 1, &i));
  CHECK_INT(i, 7);
  CHECK_OK(mlx_field_int(&o, "f", 0, 3, &i));
  CHECK_INT(i, 3);
  CHECK_ERROR(mlx_field_int(&o, "i", 0, 2, &i), MLX_INVALID_INPUT,
              "o[0].i: expected an integer from 0 to 2, not 3");
  CHECK_ERROR(mlx_field_int(&o, "h", 0, 9, &i), MLX_INVALID_INPUT, "o[0].h: expected an integer, not 3.5");
  CHECK_ERROR(mlx_field_int(&o, "big", 0, INT64_MAX, &i), MLX_INVALID_INPUT, "o[0].big: expected");
  CHECK_ERROR(mlx_field_int(&o, "huge", 0, INT64_MAX, &i), MLX_INVALID_INPUT, "o[0].huge: expected");
  CHECK_ERROR(mlx_field_int(&o, "s", 0, 9, &i), MLX_INVALID_INPUT,
              "o[0].s: expected an integer, not a string");
  CHECK_OK(mlx_field_number(&o, "h", 0, 4, &d));
  CHECK(d == 3.5);
  CHECK_ERROR(mlx_field_number(&o, "h", 0, 1, &d), MLX_INVALID_INPUT,
              "o[0].h: expected a number from 0 to 1, not 3.5");
  CHECK_ERROR(mlx_field_number(&o, "b", 0, 1, &d), MLX_INVALID_INPUT,
              "o[0].b: expected a number, not a boolean");
  CHECK_OK(mlx_field_bool(&o, "b", &b));
  CHECK(b);
  CHECK_ERROR(mlx_field_bool(&o, "i", &b), MLX_INVALID_INPUT, "o[0].i: expected true or false, not a number");
  CHECK_OK(mlx_field_text(&o, "s", &s));
  CHECK_TEXT(s, "text");
  CHECK_ERROR(mlx_field_text(&o, "nul", &s), MLX_INVALID_INPUT, "o[0].nul: contains a NUL");
  yyjson_doc_free(doc);
}

TEST(unknown_and_refused_fields_are_named) {
  static const mlx_field_t fields[] = {MLX_READ("temperature"), MLX_IGNORE("user", "not used"),
                                       MLX_REFUSE("functions", "use tools"),
                                       MLX_REFUSE_VALUE("suffix", "leave it out"), MLX_FIELDS_END};
  static const struct {
    const char *body, *message, *hint;  // NULL: accepted
  } cases[] = {
      {"{\"temperature\": 1, \"user\": {}}", NULL, NULL},
      {"{\"suffix\": \"\"}", NULL, NULL},
      {"{\"suffix\": [], \"functions\": null}", NULL, NULL},
      {"{\"suffix\": \"x\"}", "suffix: not supported", "leave it out"},
      {"{\"functions\": []}", "functions: not supported", "use tools"},
      {"{\"temperatur\": 1}", "temperatur: unknown field", "did you mean 'temperature'?"},
      {"{\"zzz: y\": 1}", "[\"zzz:\\u0020y\"]: unknown field", "docs/server.md"},
      {"{\"user\\u0000x\": 1}", "user: unknown field", ""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    yyjson_doc *doc = parse_body(cases[i].body);
    const mlx_place_t root = mlx_place_root(doc, NULL);
    mlx_status_t status = mlx_fields_check(&root, fields, false);
    CHECK_TEXT(mlx_status_message(status), cases[i].message ? cases[i].message : "");
    if (status) {
      CHECK_INT(mlx_status_code(status), MLX_UNSUPPORTED);
      CHECK_CONTAINS(mlx_status_hint_text(status), cases[i].hint);
    }
    mlx_status_free(status);
    yyjson_doc_free(doc);
  }
  char path[64];
  mlx_api_error_path("[\"zzz:\\u0020y\"]: unknown field", path, sizeof path);
  CHECK_TEXT(path, "[\"zzz:\\u0020y\"]");
}

// Of the whole body: the place of the object leads to the root.
TEST(unknown_fields_are_noted_if_the_root_has_a_text_for_them) {
  static const mlx_field_t fields[] = {MLX_READ("temperature"), MLX_REFUSE("functions", "use tools"),
                                       MLX_FIELDS_END};
  yyjson_doc *doc = parse_body("{\"a\": 1, \"o\": [{\"temperatur\": 1}], \"r\": {\"functions\": []}}");
  mlx_text_t unknown = {0};
  const mlx_place_t root = mlx_place_root(doc, &unknown), list = mlx_place_key(&root, "o"),
                    object = mlx_place_item(&list, 0, yyjson_arr_get_first(list.value)),
                    refused = mlx_place_key(&root, "r");
  CHECK_OK(mlx_fields_check(&object, fields, false));
  CHECK_TEXT(unknown.data, "o[0].temperatur (did you mean 'temperature'?)");
  CHECK_OK(mlx_fields_check(&root, fields, false));
  CHECK_TEXT(unknown.data, "o[0].temperatur (did you mean 'temperature'?), a, o, r");
  CHECK_ERROR(mlx_fields_check(&refused, fields, false), MLX_UNSUPPORTED, "r.functions: not supported");
  mlx_text_clear(&unknown);
  yyjson_doc_free(doc);
}

// The message of reading the sampling fields of |body| into |call|; "" if there is no error.
static const char *read_sampling(const char *body, mlx_api_call_t *call) {
  static char message[256];
  yyjson_doc *doc = parse_body(body);
  const mlx_place_t root = mlx_place_root(doc, NULL);
  mlx_status_t status = mlx_field_sampling(&root, call);
  if (!status) status = mlx_field_logit_bias(&root, "logit_bias", call);
  if (!status) status = mlx_field_stops(&root, "stop", call);
  snprintf(message, sizeof message, "%s", mlx_status_message(status));
  mlx_status_free(status);
  yyjson_doc_free(doc);
  return message;
}

TEST(sampling_fields_are_read) {
  mlx_api_call_t call;
  CHECK_OK(mlx_api_call_initialize(&call));
  CHECK_INT(call.n, 1);
  CHECK_INT(call.max_tokens, -1);
  CHECK_INT(call.logprobs, -1);
  CHECK_TEXT(
      read_sampling("{\"temperature\": 0.5, \"top_k\": 7, \"top_p\": 0.25, \"min_p\": 0.125, \"seed\": 42,"
                    " \"repetition_penalty\": 1.5, \"presence_penalty\": -2, \"frequency_penalty\": 2,"
                    " \"dry_sequence_breakers\": [\"x\"], \"mirostat\": 2, \"stop\": [\"a\", \"b\"],"
                    " \"logit_bias\": {\"5\": -100, \"6\": 100, \"7\": 1.5}}",
                    &call),
      "");
  CHECK(call.sampling.temperature == 0.5 && call.sampling.top_p == 0.25 && call.sampling.min_p == 0.125);
  CHECK(call.sampling.repeat_penalty == 1.5 && call.sampling.presence_penalty == -2);
  CHECK_INT(call.sampling.top_k, 7);
  CHECK_INT(call.sampling.seed, 42);
  CHECK_INT(call.sampling.mirostat, 2);
  CHECK_INT(call.sampling.dry_breaker_count, 1);
  CHECK_TEXT(call.sampling.dry_breakers[0], "x");
  CHECK_INT(call.stop_count, 2);
  CHECK_TEXT(call.stops[1], "b");
  CHECK_INT(call.sampling.bias_count, 3);
  CHECK_INT(call.sampling.biases[0].id, 5);
  CHECK(call.sampling.biases[0].bias == -INFINITY && call.sampling.biases[1].bias == 100);
  CHECK_OK(mlx_sampling_check(&call.sampling));
  const uint64_t seed = call.sampling.seed;
  CHECK_TEXT(read_sampling("{\"seed\": -1, \"stop\": \"c\", \"logit_bias\": [[9, false], [8, 2]]}", &call),
             "");
  CHECK(call.sampling.seed == seed);
  CHECK_TEXT(call.stops[2], "c");
  CHECK_INT(call.sampling.bias_count, 2);
  CHECK(call.sampling.biases[0].bias == -INFINITY);
  CHECK_TEXT(read_sampling("{\"seed\": 18446744073709551615}", &call), "");
  CHECK(call.sampling.seed == UINT64_MAX);
  mlx_api_call_clear(&call);
}

TEST(bad_sampling_fields_are_refused_by_path) {
  static const struct {
    const char *body, *message;
  } cases[] = {
      {"{\"temperature\": -1}", "temperature: expected a number from 0 to 1e+06, not -1"},
      {"{\"temperature\": \"nan\"}", "temperature: expected a number, not a string"},
      {"{\"top_p\": 1.5}", "top_p: expected a number from 0 to 1, not 1.5"},
      {"{\"top_k\": -2}", "top_k: expected an integer from -1 to 2147483647, not -2"},
      {"{\"repeat_penalty\": 0}", "repeat_penalty: expected"},
      {"{\"repeat_penalty\": 1.5, \"repetition_penalty\": 2}",
       "repetition_penalty: differs from repeat_penalty"},
      {"{\"seed\": 1.5}", "seed: expected an integer, not 1.5"},
      {"{\"mirostat\": 3}", "mirostat: expected an integer from 0 to 2, not 3"},
      {"{\"stop\": 1}", "stop: expected a string or a list, not a number"},
      {"{\"stop\": [\"a\", 1]}", "stop[1]: expected a string, not a number"},
      {"{\"stop\": \"\"}", "stop: the text is empty"},
      {"{\"stop\": [null]}", "stop[0]: expected a string, not nothing"},
      {"{\"dry_sequence_breakers\": [\"\"]}", "dry_sequence_breakers[0]: the text is empty"},
      {"{\"logit_bias\": 1}", "logit_bias: expected an object, not a number"},
      {"{\"logit_bias\": {\"hello\": 101}}", "logit_bias.hello: expected a number from -100 to 100"},
      {"{\"logit_bias\": {\"\": 1}}", "logit_bias[\"\"]: expected a token id, or a text"},
      {"{\"logit_bias\": {\"99999999999\": 1}}", "logit_bias.99999999999: the key is not a token id"},
      {"{\"logit_bias\": {\"1\": 101}}", "logit_bias.1: expected a number from -100 to 100, not 101"},
      {"{\"logit_bias\": {\"1\": \"x\"}}", "logit_bias.1: expected a number, not a string"},
      {"{\"logit_bias\": [[1]]}", "logit_bias[0]: expected a list of a token id and a bias"},
      {"{\"logit_bias\": [[-1, 2]]}", "logit_bias[0][0]: expected an integer"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_api_call_t call;
    CHECK_OK(mlx_api_call_initialize(&call));
    CHECK_CONTAINS(read_sampling(cases[i].body, &call), cases[i].message);
    mlx_api_call_clear(&call);
  }
}

TEST(an_answer_collects_its_events) {
  mlx_answer_t answer = {0};
  const mlx_answer_logprob_t top[] = {{.id = 1, .logprob = -0.5, .bytes = "Hi", .length = 2},
                                      {.id = 2, .logprob = -1.5, .bytes = "\xc3", .length = 1}};
  const mlx_answer_token_t tokens[] = {{.chosen = top[1], .top = top, .top_count = 2}, {.chosen = top[0]}};
  const mlx_event_t events[] = {
      {.kind = MLX_EVENT_REASONING, .text = "hm", .length = 2},
      {.kind = MLX_EVENT_TEXT, .text = "Hi ", .length = 3, .tokens = tokens, .token_count = 2},
      {.kind = MLX_EVENT_TEXT, .choice = 1, .text = "other", .length = 5},
      {.kind = MLX_EVENT_TEXT, .text = "you", .length = 3, .tokens = tokens, .token_count = 1},
      {.kind = MLX_EVENT_TOOL_BEGIN, .tool = 0, .id = "call_1", .name = "f"},
      {.kind = MLX_EVENT_TOOL_ARGUMENTS, .tool = 0, .text = "{\"a\"", .length = 4},
      {.kind = MLX_EVENT_TOOL_ARGUMENTS, .tool = 0, .text = ":1}", .length = 3},
      {.kind = MLX_EVENT_TOOL_END, .tool = 0},
      {.kind = MLX_EVENT_FINISH, .finish = MLX_FINISH_LENGTH},
  };
  for (size_t i = 0; i < sizeof events / sizeof *events; ++i) CHECK_OK(mlx_answer_add(&answer, &events[i]));
  CHECK_INT(answer.choice_count, 2);
  CHECK_TEXT(answer.choices[0].text.data, "Hi you");
  CHECK_TEXT(answer.choices[0].reasoning.data, "hm");
  CHECK_TEXT(answer.choices[1].text.data, "other");
  CHECK_INT(answer.choices[0].tool_count, 1);
  CHECK_TEXT(answer.choices[0].tools[0].name, "f");
  CHECK_TEXT(answer.choices[0].tools[0].arguments.data, "{\"a\":1}");
  CHECK_INT(answer.choices[0].finish, MLX_FINISH_LENGTH);
  CHECK_INT(answer.choices[0].token_count, 3);
  const mlx_answer_token_t *token = &answer.choices[0].tokens[2];
  CHECK(token->chosen.bytes != top[1].bytes && token->top[0].bytes != top[0].bytes);
  CHECK(!memcmp(token->chosen.bytes, "\xc3", 1) && !memcmp(token->top[0].bytes, "Hi", 2));
  CHECK_INT(answer.choices[0].tokens[1].top_count, 0);
  const mlx_event_t orphan = {.kind = MLX_EVENT_TOOL_ARGUMENTS, .tool = 5, .text = "x", .length = 1};
  CHECK_ERROR(mlx_answer_add(&answer, &orphan), MLX_INTERNAL, "before its beginning");
  mlx_answer_clear(&answer);
  CHECK_INT(answer.choice_count, 0);
}

TEST_MAIN(CASE(a_body_that_is_not_an_object_of_unique_keys_is_refused),
          CASE(a_deeply_nested_body_is_refused_and_the_limit_is_accepted),
          CASE(values_have_types_and_ranges_and_errors_name_the_path),
          CASE(unknown_and_refused_fields_are_named),
          CASE(unknown_fields_are_noted_if_the_root_has_a_text_for_them), CASE(sampling_fields_are_read),
          CASE(bad_sampling_fields_are_refused_by_path), CASE(an_answer_collects_its_events))
