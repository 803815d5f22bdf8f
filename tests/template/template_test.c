// Chat templates render as transformers renders them with jinja2. tests/parity/template_goldens.py writes the
// goldens.
#include <stdlib.h>
#include <time.h>
#include <yyjson.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "runtime/rooms.h"
#include "template/template.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"

#define GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/templates.json"

static yyjson_doc *read_goldens(void) {
  char *text;
  size_t length;
  const char *other = getenv("MLXCEL_TEMPLATE_GOLDENS");  // written by tests/parity/template_random.py
  CHECK_OK(mlx_read_file(other ? other : GOLDENS, SIZE_MAX, &text, &length));
  yyjson_doc *doc = yyjson_read(text, length, 0);
  CHECK(doc);
  mlx_free(text);
  return doc;
}

static mlx_status_t render(const char *source, size_t length, yyjson_val *variables, int64_t now, char **out,
                           size_t *out_length) {
  mlx_template_variable_t list[64];
  mlx_template_input_t input = {.variables = list, .now = now};
  mlx_template_t *template;
  yyjson_val *key, *value;
  size_t index, count;
  *out = NULL;
  yyjson_obj_foreach(variables, index, count, key, value) list[input.variable_count++] =
      (mlx_template_variable_t){yyjson_get_str(key), value};
  MLX_TRY(mlx_template_create("test", source, length, &template));
  mlx_status_t status = mlx_template_render(template, &input, out, out_length);
  mlx_template_free(template);
  return status;
}

// Renders without variables.
static mlx_status_t render_plain(const char *source, char **out) {
  size_t length;
  return render(source, strlen(source), NULL, 0, out, &length);
}

TEST(small_templates_render_as_jinja2_renders_them) {
  yyjson_doc *doc = read_goldens();
  yyjson_val *root = yyjson_doc_get_root(doc), *pair, *variables = yyjson_obj_get(root, "variables");
  size_t index, count, wrong = 0;
  setenv("TZ", "UTC", 1);
  tzset();
  yyjson_arr_foreach(yyjson_obj_get(root, "small"), index, count, pair) {
    yyjson_val *source = yyjson_arr_get(pair, 0), *wanted = yyjson_arr_get(pair, 1);
    char *out;
    size_t length = 0;
    mlx_status_t status = render(yyjson_get_str(source), yyjson_get_len(source), variables,
                                 yyjson_get_sint(yyjson_obj_get(root, "now")), &out, &length);
    bool right = yyjson_is_null(wanted) ? status != NULL
                                        : !status && length == yyjson_get_len(wanted) &&
                                              !memcmp(out, yyjson_get_str(wanted), length);
    if (!right) {
      fprintf(stderr, "  %s\n    gives    %s\n    expected %s\n", yyjson_get_str(source),
              status ? mlx_status_message(status) : out,
              yyjson_is_null(wanted) ? "an error" : yyjson_get_str(wanted));
    }
    wrong += !right;
    mlx_status_free(status);
    mlx_free(out);
  }
  fprintf(stderr, "  %zu templates\n", count);
  yyjson_doc_free(doc);
  CHECK_INT(wrong, 0);
}

// ----------------------------------------------------------------------------------------------------------
// Templates of real models, which ./build.sh test fetches

static char *chat_json(const char *source, size_t length, yyjson_val *tokens, size_t *out_length) {
  mlx_text_t json = {0};
  char *text = yyjson_val_write(tokens, 0, NULL), *out;
  mlx_text_puts(&json, "{\"templates\": {\"default\": ");
  mlx_text_json_string(&json, source, length);
  mlx_text_printf(&json, "}, \"tokens\": %s}", text);
  CHECK_OK(mlx_text_take(&json, &out, out_length));
  free(text);
  return out;
}

static mlx_status_t render_conversation(const mlx_chat_t *chat, yyjson_val *conversation, int64_t now,
                                        char **out, size_t *out_length) {
  mlx_chat_options_t options;
  mlx_chat_options_initialize(&options);
  char *messages = yyjson_val_write(yyjson_obj_get(conversation, "messages"), 0, NULL);
  char *tools = yyjson_val_write(yyjson_obj_get(conversation, "tools"), 0, NULL);
  yyjson_mut_doc *rest = yyjson_mut_doc_new(NULL);
  yyjson_mut_doc_set_root(rest, yyjson_val_mut_copy(rest, conversation));
  static const char *const known[] = {"messages", "tools", "add_generation_prompt"};
  for (int i = 0; i < 3; ++i) yyjson_mut_obj_remove_key(yyjson_mut_doc_get_root(rest), known[i]);
  char *variables = yyjson_mut_write(rest, 0, NULL);
  options.add_generation_prompt = yyjson_get_bool(yyjson_obj_get(conversation, "add_generation_prompt"));
  options.tools = tools;
  options.tools_length = tools ? strlen(tools) : 0;
  options.variables = variables;
  options.now = now;
  mlx_status_t status = mlx_chat_render(chat, messages, strlen(messages), &options, out, out_length);
  yyjson_mut_doc_free(rest);
  free(messages);
  free(tools);
  free(variables);
  return status;
}

static void digest_bytes(const char *bytes, size_t length, char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_add(&digest, bytes, length);
  mlx_digest_end(&digest, out_hex);
}

typedef struct tally {
  size_t templates, renders, refusals, wrong;
} tally_t;

static void check_template(yyjson_val *root, const char *folder, const char *name, yyjson_val *golden,
                           tally_t *tally) {
  char *path, *source, *json, digest[MLX_DIGEST_HEX];
  size_t length, json_length, index, count;
  mlx_chat_t *chat;
  yyjson_val *key, *wanted;
  CHECK_OK(mlx_join_path(folder, name, &path));
  CHECK_OK(mlx_read_file(path, SIZE_MAX, &source, &length));
  digest_bytes(source, length, digest);
  CHECK_TEXT(digest, yyjson_get_str(yyjson_obj_get(golden, "sha256")));
  json = chat_json(source, length, yyjson_obj_get(root, "tokens"), &json_length);
  CHECK_OK(mlx_chat_create(name, json, json_length, &chat));
  yyjson_obj_foreach(yyjson_obj_get(golden, "renders"), index, count, key, wanted) {
    yyjson_val *conversation = yyjson_obj_get(yyjson_obj_get(root, "conversations"), yyjson_get_str(key));
    char *out = NULL;
    size_t out_length = 0;
    mlx_status_t status = render_conversation(
        chat, conversation, yyjson_get_sint(yyjson_obj_get(root, "now")), &out, &out_length);
    if (!status) digest_bytes(out, out_length, digest);
    const bool right =
        yyjson_is_null(wanted) ? status != NULL : !status && !strncmp(digest, yyjson_get_str(wanted), 32);
    if (!right) {
      fprintf(stderr, "  %s on '%s': %s\n", name, yyjson_get_str(key),
              status                   ? mlx_status_message(status)
              : yyjson_is_null(wanted) ? "no error"
                                       : "different text");
    }
    const char *dump = getenv("MLXCEL_DUMP_RENDERS");
    if (dump && !right && out) {
      char file[512];
      snprintf(file, sizeof file, "%s/%s.%s", dump, name, yyjson_get_str(key));
      CHECK_OK(mlx_write_file(file, out, out_length));
    }
    tally->renders += right && !status;
    tally->refusals += right && status;
    tally->wrong += !right;
    mlx_status_free(status);
    mlx_free(out);
  }
  ++tally->templates;
  mlx_chat_free(chat);
  mlx_free(json);
  mlx_free(source);
  mlx_free(path);
}

TEST(real_templates_render_byte_for_byte_as_in_transformers) {
  yyjson_doc *doc = read_goldens();
  yyjson_val *root = yyjson_doc_get_root(doc), *key, *golden;
  size_t index, count;
  tally_t tally = {0};
  const char *folder = getenv("MLXCEL_TEMPLATES") ? getenv("MLXCEL_TEMPLATES")
                                                  : MLXCEL_MODELS "/../deps/llama.cpp/models/templates";
  setenv("TZ", "UTC", 1);
  tzset();
  if (!mlx_is_dir(folder)) CHECK_FAIL("%s is missing: ./build.sh test fetches it", folder);
  yyjson_obj_foreach(yyjson_obj_get(root, "real"), index, count, key, golden)
      check_template(root, folder, yyjson_get_str(key), golden, &tally);
  fprintf(stderr, "  %zu templates, %zu renders equal, %zu conversations refused as in transformers\n",
          tally.templates, tally.renders, tally.refusals);
  yyjson_doc_free(doc);
  CHECK_INT(tally.wrong, 0);
  CHECK(tally.templates >= 60);
}

TEST(errors_name_the_line_and_the_construct) {
  char *out;
  CHECK_ERROR(render_plain("a\n{{ x.y }}", &out), MLX_INVALID_INPUT, "test, line 2: 'x' is undefined");
  CHECK_ERROR(render_plain("a\n\n{% if %}", &out), MLX_INVALID_INPUT,
              "line 3: expected an expression, not %}");
  CHECK_ERROR(render_plain("{% for x in [] %}", &out), MLX_INVALID_INPUT, "{% endfor %} is missing");
  CHECK_ERROR(render_plain("{% extends 'x' %}", &out), MLX_UNSUPPORTED, "{% extends %} is not supported");
  CHECK_ERROR(render_plain("\n{{ 1 | urlize }}", &out), MLX_UNSUPPORTED,
              "line 2: there is no filter named 'urlize'");
  CHECK_ERROR(render_plain("{{ raise_exception('only users') }}", &out), MLX_INVALID_INPUT,
              "refuses the conversation: only users");
  CHECK_ERROR(render_plain("{{ 9223372036854775807 + 1 }}", &out), MLX_UNSUPPORTED, "does not fit 64 bits");
  CHECK_ERROR(render_plain("\xff", &out), MLX_INVALID_INPUT, "not UTF-8 at byte 0");
  CHECK_ERROR(render_plain("{{ [].append(1) }}", &out), MLX_INVALID_INPUT,
              "access to attribute 'append' of 'list' object is unsafe");
}

TEST(a_template_that_exceeds_its_limits_is_stopped) {
  static const char *const sources[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s * 2 %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{{ 'a' * 9999999999 }}",
      "{{ [1] * 9999999999 }}",
      "{{ 'a'.ljust(9999999999) }}",
      "{{ 'a' | center(9999999999) }}",
      "{{ 'a' | indent(9999999999, true) }}",
      "{{ [] | tojson(indent=9999999999) }}{{ '%99999999d' % 1 }}",
      "{{ 2 ** 99999999999 }}",
      "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
      ("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ "
       "ns.l }}")};
  for (size_t i = 0; i < sizeof sources / sizeof *sources; ++i) {
    char *out;
    const clock_t start = clock();
    CHECK_ERROR(render_plain(sources[i], &out), MLX_UNSUPPORTED, "line 1");
    if ((double)(clock() - start) / CLOCKS_PER_SEC > 30) CHECK_FAIL("%s took too long", sources[i]);
  }
}

// The steps are a bound on time only if the work of every operation is charged by its bytes and items. Each
// body runs 100 times with 50,000 steps. It does more work than 3.2 MB (64 bytes for each step) allow.
TEST(long_values_are_charged_by_their_bytes) {
#define LONG_A "{% set a = 'x' * 100000 %}"
#define LONG_B "{% set b = 'x' * 100000 %}"
#define REPEAT(body) "{% for i in range(100) %}" body "{% endfor %}"
  static const char *const sources[] = {
      LONG_A LONG_B REPEAT("{{ a == b }}"),
      LONG_A LONG_B REPEAT("{{ a < b }}"),
      LONG_A LONG_B REPEAT("{{ a in [b] }}"),
      LONG_A LONG_B REPEAT("{{ [a] == [b] }}"),
      LONG_A LONG_B REPEAT("{{ [a] < [b] }}"),
      LONG_A LONG_B REPEAT("{{ {a: 1}.get(b) }}"),
      LONG_A LONG_B REPEAT("{{ {a: 1}[b] }}"),
      LONG_A LONG_B REPEAT("{{ [a, b]|unique|list|length }}"),
      LONG_A LONG_B REPEAT("{{ ([a, b]|max)|length }}"),
      LONG_A LONG_B REPEAT("{{ a is sameas b }}"),
      LONG_A LONG_B REPEAT("{{ a.startswith((b, b)) }}"),
      LONG_A LONG_B REPEAT("{{ a.removeprefix(b) }}"),
      LONG_A "{% set c = 'x' * 1000 ~ 'y' %}{{ a.rfind(c) }}",
      LONG_A "{% set c = 'x' * 1000 ~ 'y' %}{{ a.rpartition(c)|length }}",
      LONG_A "{% set c = 'y' * 1000 ~ 'x' %}{{ a.strip(c) }}",
      "{% set a = ' ' * 100000 %}" REPEAT("{{ a|int }}"),
      "{% set a = ' ' * 100000 %}" REPEAT("{{ a|float }}"),
      "{% set a = [1] * 20000 %}{% set b = [1] * 20000 %}" REPEAT("{{ a < b }}{{ a == b }}"),
      "{% set a = [1] * 20000 %}" REPEAT("{{ 2 in a }}{{ a.count(2) }}"),
  };
  for (size_t i = 0; i < sizeof sources / sizeof *sources; ++i) {
    mlx_template_t *template;
    mlx_template_input_t input = {.limits = {.steps = 50000}};
    char *out = NULL;
    size_t length;
    CHECK_OK(mlx_template_create("test", sources[i], strlen(sources[i]), &template));
    mlx_status_t status = mlx_template_render(template, &input, &out, &length);
    if (!status) CHECK_FAIL("not stopped: %s", sources[i]);
    CHECK_ERROR(status, MLX_UNSUPPORTED, "the template takes too many steps");
    mlx_free(out);
    mlx_template_free(template);
  }
}

// A lookup of a variable, an attribute or a keyword searches a list: each name that it passes is work.
TEST(lookups_are_charged_by_the_names_they_pass) {
  enum { MANY, LONG_NAME, KEYWORDS, CASES };
  for (int kind = 0; kind < CASES; ++kind) {
    mlx_text_t source = {0};
    mlx_template_t *template;
    mlx_template_input_t input = {.limits = {.steps = 200000}};
    char *out = NULL, *name;
    size_t length;
    CHECK_OK(mlx_alloc(100001, 1, &name));
    memset(name, 'n', 100000);
    if (kind == MANY) {
      for (int i = 0; i < 20000; ++i) mlx_text_printf(&source, "{%% set v%d = 1 %%}", i);
      mlx_text_puts(&source, REPEAT(REPEAT("{{ v19999 }}")));
    } else if (kind == LONG_NAME) {
      mlx_text_printf(&source, "{%% set d = {'%s': 1} %%}{%% for i in range(9999) %%}", name);
      mlx_text_printf(&source, "{{ d.%s }}{%% endfor %%}", name);
    } else {
      mlx_text_puts(&source, "{% macro m(");
      for (int i = 0; i < 2000; ++i) mlx_text_printf(&source, "%sp%d", i ? "," : "", i);
      mlx_text_puts(&source, ") %}{% endmacro %}{% for i in range(100) %}{{ m(");
      for (int i = 2000; i-- > 0;) mlx_text_printf(&source, "p%d=1%s", i, i ? "," : ") }}{% endfor %}");
    }
    CHECK_OK(mlx_text_finish(&source));
    CHECK_OK(mlx_template_create("test", source.data, source.length, &template));
    CHECK_ERROR(mlx_template_render(template, &input, &out, &length), MLX_UNSUPPORTED,
                "the template takes too many steps");
    mlx_template_free(template);
    mlx_text_clear(&source);
    mlx_free(name);
  }
}

TEST(deep_nesting_is_an_error_and_does_not_crash) {
  static const struct {
    const char *open, *close;
  } nests[] = {{"(", ")"},           {"[", "]"}, {"-", ""},   {"not ", ""},       {"1+", ""},
               {"1 if 1 else ", ""}, {"x.", ""}, {"f(", ")"}, {"1|abs and ", ""}, {"{1:", "}"}};
  for (size_t i = 0; i < sizeof nests / sizeof *nests; ++i) {
    mlx_text_t source = {0};
    char *out;
    mlx_text_puts(&source, "{{ ");
    for (int n = 0; n < 20000; ++n) mlx_text_puts(&source, nests[i].open);
    mlx_text_puts(&source, "1");
    for (int n = 0; n < 20000; ++n) mlx_text_puts(&source, nests[i].close);
    mlx_text_puts(&source, " }}");
    mlx_status_t status = render_plain(source.data, &out);
    CHECK(status);
    CHECK_CONTAINS(mlx_status_message(status), "line 1");
    mlx_status_free(status);
    mlx_text_clear(&source);
  }
  mlx_text_t source = {0};
  char *out;
  for (int n = 0; n < 20000; ++n) mlx_text_puts(&source, "{% if 1 %}");
  CHECK_ERROR(render_plain(source.data, &out), MLX_INVALID_INPUT, "nested too deeply");
  mlx_text_clear(&source);
  mlx_text_puts(&source, "{% if 0 %}");
  for (int n = 0; n < 20000; ++n) mlx_text_puts(&source, "{% elif 0 %}");
  mlx_text_puts(&source, "{% else %}fine{% endif %}");
  CHECK_OK(render_plain(source.data, &out));
  CHECK_TEXT(out, "fine");
  mlx_free(out);
  mlx_text_clear(&source);
}

TEST(chat_selects_the_template_and_passes_the_special_tokens) {
  static const char json[] =
      "{\"templates\": {\"default\": \"{{ bos_token }}{{ messages[0].content }}{{ tools is none }}{{ x "
      "}}\", \"tool_use\": \"T{{ tools[0].n }}{{ add_generation_prompt }}\"},"
      " \"tokens\": {\"bos_token\": \"<s>\"}}";
  static const char messages[] = "[{\"role\": \"user\", \"content\": \"hi\"}]";
  mlx_chat_t *chat;
  mlx_chat_options_t options;
  char *out;
  size_t length;
  mlx_chat_options_initialize(&options);
  CHECK_OK(mlx_chat_create("chat.json", json, strlen(json), &chat));
  CHECK_OK(mlx_chat_render(chat, messages, strlen(messages), &options, &out, &length));
  CHECK_TEXT(out, "<s>hiTrue");
  mlx_chat_free_text(out);
  options.variables = "{\"bos_token\": \"B\", \"x\": 1}";
  CHECK_OK(mlx_chat_render(chat, messages, strlen(messages), &options, &out, &length));
  CHECK_TEXT(out, "BhiTrue1");
  mlx_chat_free_text(out);
  options.tools = "[{\"n\": 5}]";
  options.tools_length = strlen(options.tools);
  CHECK_OK(mlx_chat_render(chat, messages, strlen(messages), &options, &out, &length));
  CHECK_TEXT(out, "T5True");
  mlx_chat_free_text(out);
  options.template_name = "rag";
  CHECK_ERROR(mlx_chat_render(chat, messages, strlen(messages), &options, &out, &length), MLX_NOT_FOUND,
              "chat.json: chat template 'rag' does not exist");
  options.template_name = NULL;
  CHECK_ERROR(mlx_chat_render(chat, "[1]", 3, &options, &out, &length), MLX_INVALID_INPUT,
              "message 1 is not an object");
  CHECK_ERROR(mlx_chat_render(chat, "[", 1, &options, &out, &length), MLX_INVALID_INPUT,
              "messages: not JSON at byte 1");
  mlx_chat_free(chat);
}

TEST(a_failed_allocation_returns_an_error_and_leaks_nothing) {
  static const char source[] =
      "{% macro m(a) %}{{ a | tojson(indent=2) }}{% endmacro %}{% for i in range(2000) %}{{ m([i,"
      " 'x' * 40]) }}{% endfor %}";
  mlx_memory_set_calls(&counting_memory);
  long failures = 0;
  for (memory.target = 1;; ++memory.target) {
    char *out;
    memory.count = 0;
    mlx_status_t status = render_plain(source, &out);
    const bool done = !status;
    if (status)
      CHECK_INT(mlx_status_code(status) == MLX_OUT_OF_MEMORY || mlx_status_code(status) == MLX_UNSUPPORTED,
                true);
    mlx_status_free(status);
    mlx_free(out);
    CHECK_INT(memory.live, 0);
    if (done) break;
    ++failures;
  }
  mlx_memory_set_calls(NULL);
  CHECK(failures > 5);
}

TEST_MAIN(CASE(small_templates_render_as_jinja2_renders_them),
          CASE(real_templates_render_byte_for_byte_as_in_transformers),
          CASE(errors_name_the_line_and_the_construct), CASE(a_template_that_exceeds_its_limits_is_stopped),
          CASE(long_values_are_charged_by_their_bytes), CASE(lookups_are_charged_by_the_names_they_pass),
          CASE(deep_nesting_is_an_error_and_does_not_crash),
          CASE(a_failed_allocation_returns_an_error_and_leaks_nothing),
          CASE(chat_selects_the_template_and_passes_the_special_tokens))
