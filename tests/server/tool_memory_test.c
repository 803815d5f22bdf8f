// The memory of tool calls: the next prompt begins with the last prompt and the model's own text.
#include "server/tools/tool_memory.h"

#include <uv.h>

#include "base/file.h"
#include "base/memory.h"
#include "output/parser.h"
#include "tests/support/check.h"

#define TEMPLATES MLXCEL_MODELS "/../deps/llama.cpp/models/templates"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"d\",\"parameters\":{"
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}}]";

static mlx_chat_t *open_chat(const char *name) {
  static const char tokens[] =
      "{\"templates\": {}, \"tokens\": {\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}}";
  char path[512], *source;
  size_t length;
  mlx_chat_t *chat;
  snprintf(path, sizeof path, "%s/%s.jinja", TEMPLATES, name);
  CHECK_OK(mlx_read_file(path, SIZE_MAX, &source, &length));
  CHECK_OK(mlx_chat_create_from_source(path, source, length, tokens, strlen(tokens), &chat));
  mlx_free(source);
  return chat;
}

static mlx_chat_options_t chat_options(void) {
  mlx_chat_options_t options;
  mlx_chat_options_initialize(&options);
  options.tools = tools_json;
  options.tools_length = sizeof tools_json - 1;
  options.now = 1000000000;
  return options;
}

// The calls of an answer, as the client sends them back.
typedef struct heard {
  mlx_text_t calls;
  char ids[4][40];
  size_t count;
} heard_t;

static mlx_status_t hear(void *user, const mlx_event_t *event) {
  heard_t *h = user;
  if (event->kind == MLX_EVENT_TOOL_BEGIN) {
    strcpy(h->ids[h->count], event->id);
    mlx_text_printf(&h->calls,
                    "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"%s\",\"arguments\":",
                    h->count++ ? "," : "", event->id, event->name);
  }
  if (event->kind == MLX_EVENT_TOOL_ARGUMENTS) mlx_text_append(&h->calls, event->text, event->length);
  if (event->kind == MLX_EVENT_TOOL_END) mlx_text_puts(&h->calls, "}}");
  return NULL;
}

static heard_t parse(const mlx_output_format_t *format, const char *prompt, const char *raw) {
  const mlx_output_options_t options = {.tools = tools_json, .tools_length = sizeof tools_json - 1};
  mlx_output_parser_t *parser;
  heard_t heard = {0};
  CHECK_OK(mlx_output_parser_create(format, &options, prompt, strlen(prompt), 0, hear, &heard, &parser));
  CHECK_OK(mlx_output_parser_add(parser, raw, strlen(raw), NULL, 1));
  CHECK_OK(mlx_output_parser_finish(parser, MLX_FINISH_STOP));
  mlx_output_parser_free(parser);
  CHECK(heard.count > 0);
  return heard;
}

// Remembers |raw| after |prompt|, and adds it and the results of its calls to the messages.
static void answer(mlx_tool_memory_t *memory, const mlx_output_format_t *format, const char *prompt,
                   const char *raw, mlx_text_t *messages) {
  heard_t heard = parse(format, prompt, raw);
  const char *ids[4];
  for (size_t i = 0; i < heard.count; ++i) ids[i] = heard.ids[i];
  mlx_text_t list = {0};
  mlx_text_printf(&list, "[%s]", messages->data);
  uint64_t history;
  CHECK_OK(mlx_tool_memory_history(list.data, list.length, &history));
  const int32_t token = (int32_t)strlen(raw);
  const mlx_remembered_t remembered = {.model = "m",
                                       .history = history,
                                       .prompt = prompt,
                                       .prompt_length = strlen(prompt),
                                       .raw = raw,
                                       .raw_length = strlen(raw),
                                       .ids = ids,
                                       .id_count = heard.count,
                                       .tokens = &token,
                                       .token_count = 1};
  CHECK_OK(mlx_tool_memory_remember(memory, &remembered));
  mlx_text_clear(&list);
  mlx_text_printf(messages, ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[%s]}",
                  heard.calls.data);
  for (size_t i = 0; i < heard.count; ++i) {
    mlx_text_printf(messages,
                    ",{\"role\":\"tool\",\"name\":\"get_weather\",\"tool_call_id\":\"%s\",\"content\":\"sun "
                    "%zu\"}",
                    ids[i], i);
  }
  mlx_text_clear(&heard.calls);
}

static char *render(mlx_tool_memory_t *memory, const mlx_chat_t *chat, const mlx_output_format_t *format,
                    const mlx_text_t *messages, size_t *out_used) {
  mlx_text_t list = {0};
  const mlx_chat_options_t options = chat_options();
  mlx_answer_spans_t spans;
  char *text;
  size_t length;
  mlx_text_printf(&list, "[%s]", messages->data);
  CHECK_OK(mlx_tool_memory_render(memory, "m", chat, format, list.data, list.length, &options, &text, &length,
                                  &spans));
  CHECK_INT(strlen(text), length);
  for (size_t i = 0; i < spans.count; ++i) {  // answer() remembers the length of the text as its only token
    CHECK_INT(spans.items[i].token_count, 1);
    CHECK_INT(spans.items[i].tokens[0], (int64_t)spans.items[i].length);
    CHECK(spans.items[i].at + spans.items[i].length < length);
    CHECK(!i || spans.items[i].at > spans.items[i - 1].at + spans.items[i - 1].length);
  }
  if (out_used) *out_used = spans.count;
  mlx_answer_spans_clear(&spans);
  mlx_text_clear(&list);
  return text;
}

#define CALL "{\"name\":\"get_weather\",\"arguments\":{\"city\":   \"K\\u00f6ln\"} }"

TEST(the_next_prompt_begins_with_the_last_one_and_its_answer) {
  static const char *const cases[][2] = {
      {"Qwen-Qwen2.5-7B-Instruct", "Let me see.\n<tool_call>\n" CALL "\n</tool_call>"},
      {"Qwen-Qwen3-0.6B", "<think>\nHm.\n</think>\n\n<tool_call>\n" CALL "\n</tool_call>"},
      {"Qwen-QwQ-32B",
       "Hm.\n</think>\n\n<tool_call>\n" CALL "\n</tool_call>\n<tool_call>" CALL "</tool_call>"},
      {"Qwen3-Coder",
       "<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n</function>\n</"
       "tool_call>"},
      {"Qwen3.5-4B",
       "Hm.\n</think>\n\n<tool_call><function=get_weather><parameter=city>Köln</parameter></function></"
       "tool_call>"},
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "<tool_call>" CALL "</tool_call>"},
      {"meta-llama-Llama-3.1-8B-Instruct", "{\"name\":\"get_weather\", \"parameters\":{\"city\":\"x\"}}"},
      {"meta-llama-Llama-3.3-70B-Instruct", "{\"name\":\"get_weather\", \"parameters\":{\"city\":\"x\"}}"},
      {"mistralai-Mistral-Nemo-Instruct-2407", "[TOOL_CALLS][" CALL "]"},
      {"Mistral-Small-3.2-24B-Instruct-2506", "[TOOL_CALLS]get_weather[ARGS]{\"city\":   \"x\"}"},
      {"openai-gpt-oss-120b",
       "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.get_weather "
       "<|constrain|>json<|message|>{\"city\":   \"x\"}"},
      {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
       "Hm.\n</"
       "think>\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
       "{\"city\": \"x\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"deepseek-ai-DeepSeek-V3.1",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\":  "
       "\"x\"}<｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜>"},
      {"GLM-4.6",
       "\n<think>Hm.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n</"
       "tool_call>"},
      {"ibm-granite-granite-4.0", "<tool_call>\n" CALL "\n</tool_call>"},
      {"moonshotai-Kimi-K2",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
       "{\"city\":  \"x\"}<|tool_call_end|><|tool_calls_section_end|>"},
      {"MiniMax-M2",
       "Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
       "name=\"city\">x</parameter>\n"
       "</invoke>\n</minimax:tool_call>"},
  };
  size_t wrong = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_tool_memory_t *memory;
    mlx_chat_t *chat = open_chat(cases[i][0]);
    const mlx_output_format_t *format = mlx_output_format_find(mlx_chat_source(chat, NULL, true));
    mlx_text_t messages = {0};
    CHECK_OK(mlx_tool_memory_create(1 << 20, &memory));
    mlx_text_puts(&messages,
                  "{\"role\":\"system\",\"content\":\"Be brief.\"},"
                  "{\"role\":\"user\",\"content\":\"How is the weather?\"}");
    for (size_t turn = 0; turn < 4; ++turn) {
      size_t used, none;
      char *prompt = render(memory, chat, format, &messages, &used);
      answer(memory, format, prompt, cases[i][1], &messages);
      char *next = render(memory, chat, format, &messages, &used);
      char *plain = render(NULL, chat, format, &messages, &none);
      const size_t length = strlen(prompt), raw = strlen(cases[i][1]);
      const bool right = used == turn + 1 && !strncmp(next, prompt, length) &&
                         !strncmp(next + length, cases[i][1], raw) && strstr(next + length + raw, "sun 0") &&
                         !strstr(next, "MLXCEL") && !none;
      if (!right) {
        fprintf(stderr, "  %s, turn %zu, %zu used: %s\n---\n%s\n---\n%s\n", cases[i][0], turn, used, prompt,
                next, plain);
        turn = 4;
      }
      wrong += !right;
      mlx_chat_free_text(prompt);
      mlx_chat_free_text(next);
      mlx_chat_free_text(plain);
    }
    mlx_text_clear(&messages);
    mlx_tool_memory_free(memory);
    mlx_chat_free(chat);
  }
  CHECK_INT(wrong, 0);
}

TEST(a_changed_conversation_is_rendered_as_usual) {
  mlx_tool_memory_t *memory;
  mlx_chat_t *chat = open_chat("Qwen-Qwen2.5-7B-Instruct");
  const mlx_output_format_t *format = mlx_output_format_find(mlx_chat_source(chat, NULL, true));
  mlx_text_t messages = {0}, other = {0};
  size_t used;
  CHECK_OK(mlx_tool_memory_create(1 << 20, &memory));
  mlx_text_puts(&messages, "{\"role\":\"user\",\"content\":\"How is the weather?\"}");
  char *prompt = render(memory, chat, format, &messages, &used);
  const size_t first = messages.length;
  answer(memory, format, prompt, "<tool_call>" CALL "</tool_call>", &messages);
  mlx_text_puts(&other, "{\"role\":\"user\",\"content\":\"Another question, which is longer.\"}");
  mlx_text_puts(&other, messages.data + first);
  char *with = render(memory, chat, format, &other, &used),
       *without = render(NULL, chat, format, &other, &used);
  CHECK_TEXT(with, without);
  mlx_chat_free_text(prompt);
  mlx_chat_free_text(with);
  mlx_chat_free_text(without);
  mlx_text_clear(&messages);
  mlx_text_clear(&other);
  mlx_tool_memory_free(memory);
  mlx_chat_free(chat);
}

TEST(the_memory_is_bounded_and_keeps_what_is_used) {
  mlx_tool_memory_t *memory;
  mlx_chat_t *chat = open_chat("Qwen-Qwen2.5-7B-Instruct");
  const mlx_output_format_t *format = mlx_output_format_find(mlx_chat_source(chat, NULL, true));
  mlx_text_t messages = {0};
  size_t used;
  char id[32], raw[1000];
  const char *const ids[] = {id};
  const mlx_remembered_t other = {.model = "m",
                                  .history = 1,
                                  .prompt = "p",
                                  .prompt_length = 1,
                                  .raw = raw,
                                  .raw_length = sizeof raw,
                                  .ids = ids,
                                  .id_count = 1};
  CHECK_OK(mlx_tool_memory_create(100000, &memory));
  mlx_text_puts(&messages, "{\"role\":\"user\",\"content\":\"How is the weather?\"}");
  char *prompt = render(memory, chat, format, &messages, &used);
  answer(memory, format, prompt, "<tool_call>" CALL "</tool_call>", &messages);
  memset(raw, 'x', sizeof raw);
  for (int i = 0; i < 1000; ++i) {
    snprintf(id, sizeof id, "call_%d", i);
    CHECK_OK(mlx_tool_memory_remember(memory, &other));
    CHECK(mlx_tool_memory_bytes(memory) <= 100000);
    if (i % 20) continue;
    mlx_chat_free_text(render(memory, chat, format, &messages, &used));
    CHECK_INT(used, 1);
  }
  for (int i = 0; i < 200; ++i) {
    snprintf(id, sizeof id, "other_%d", i);
    CHECK_OK(mlx_tool_memory_remember(memory, &other));
  }
  mlx_chat_free_text(render(memory, chat, format, &messages, &used));
  CHECK_INT(used, 0);
  mlx_chat_free_text(prompt);
  mlx_text_clear(&messages);
  mlx_tool_memory_free(memory);
  mlx_chat_free(chat);
}

TEST(ids_of_another_model_are_replaced_where_a_template_refuses_them) {
  mlx_chat_t *chat = open_chat("mistralai-Mistral-Nemo-Instruct-2407");
  const mlx_output_format_t *format = mlx_output_format_find(mlx_chat_source(chat, NULL, true));
  mlx_text_t messages = {0};
  size_t used;
  mlx_text_puts(
      &messages,
      "{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{"
      "\"id\":\"toolu_01D7FLrfh4GYq7yT1ULFeyMV\",\"type\":\"function\",\"function\":{\"name\":\"f\","
      "\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_call_id\":\"toolu_01D7FLrfh4GYq7yT1ULFeyMV\","
      "\"content\":\"1\"}");
  char *text = render(NULL, chat, format, &messages, &used), id[10] = {0};
  const char *call = strstr(text, "\"id\": \"");
  CHECK(call);
  memcpy(id, call + 7, 9);
  CHECK_CONTAINS(strstr(text, "[TOOL_RESULTS]"), id);
  mlx_chat_free_text(text);
  mlx_text_clear(&messages);
  mlx_chat_free(chat);
}

typedef struct worker {
  mlx_tool_memory_t *memory;
  int number;
} worker_t;

static void remember_many(void *user) {
  worker_t *worker = user;
  char id[32];
  const char *const ids[] = {id};
  const mlx_remembered_t answer = {.model = "m",
                                   .history = 1,
                                   .prompt = "p",
                                   .prompt_length = 1,
                                   .raw = "r",
                                   .raw_length = 1,
                                   .ids = ids,
                                   .id_count = 1};
  for (int i = 0; i < 2000; ++i) {
    snprintf(id, sizeof id, "call_%d", (i * 7 + worker->number) % 300);
    mlx_status_free(mlx_tool_memory_remember(worker->memory, &answer));
  }
}

TEST(threads_may_share_a_memory) {
  mlx_tool_memory_t *memory;
  uv_thread_t threads[4];
  worker_t workers[4];
  CHECK_OK(mlx_tool_memory_create(50000, &memory));
  for (int i = 0; i < 4; ++i) {
    workers[i] = (worker_t){memory, i};
    CHECK_INT(uv_thread_create(&threads[i], remember_many, &workers[i]), 0);
  }
  for (int i = 0; i < 4; ++i) uv_thread_join(&threads[i]);
  CHECK(mlx_tool_memory_bytes(memory) <= 50000);
  mlx_tool_memory_free(memory);
}

TEST_MAIN(CASE(the_next_prompt_begins_with_the_last_one_and_its_answer),
          CASE(a_changed_conversation_is_rendered_as_usual),
          CASE(the_memory_is_bounded_and_keeps_what_is_used),
          CASE(ids_of_another_model_are_replaced_where_a_template_refuses_them),
          CASE(threads_may_share_a_memory))
