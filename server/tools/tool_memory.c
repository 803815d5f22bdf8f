// A hash table of answers in the order of their last use, and prompts with markers in place of the answers.
#include "server/tools/tool_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <uv.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "output/syntax.h"
#include "server/tools/tool_ids.h"

#define BUCKETS 4096
#define TAIL 512          // bytes of a prompt's end that are kept, to find it again
#define MOST_HEADER 384   // bytes between a prompt and an answer that a template may write differently
#define MOST_ANSWERS 512  // remembered answers of one prompt

typedef struct entry {
  struct entry *next;           // of the bucket
  struct entry *newer, *older;  // in the order of use
  uint64_t hash;
  uint64_t history;  // hash of the messages before it
  char *key;         // model, then the ids, each after a line end
  char *raw;
  int32_t *tokens;  // of |raw|
  size_t token_count;
  size_t raw_length, prompt_length, tail_length, bytes;
  char tail[TAIL];
} entry_t;

struct mlx_tool_memory {
  uv_mutex_t mutex;
  size_t max_bytes, bytes;
  entry_t *buckets[BUCKETS];
  entry_t *newest, *oldest;
};

// ----------------------------------------------------------------------------------------------------------
// The table. The caller holds the mutex.

static uint64_t hash_text(const char *text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (; *text; ++text) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
  return hash ^ hash >> 29;
}

static void unlink_entry(mlx_tool_memory_t *m, entry_t *e) {
  *(e->newer ? &e->newer->older : &m->newest) = e->older;
  *(e->older ? &e->older->newer : &m->oldest) = e->newer;
}

static void make_newest(mlx_tool_memory_t *m, entry_t *e) {
  e->newer = NULL;
  e->older = m->newest;
  *(m->newest ? &m->newest->newer : &m->oldest) = e;
  m->newest = e;
}

static void free_entry(entry_t *e) {
  if (!e) return;
  mlx_free(e->key);
  mlx_free(e->raw);
  mlx_free(e->tokens);
  mlx_free(e);
}

static void drop_entry(mlx_tool_memory_t *m, entry_t *e) {
  entry_t **at = &m->buckets[e->hash % BUCKETS];
  while (*at != e) at = &(*at)->next;
  *at = e->next;
  unlink_entry(m, e);
  m->bytes -= e->bytes;
  free_entry(e);
}

static entry_t *find_entry(mlx_tool_memory_t *m, const char *key) {
  const uint64_t hash = hash_text(key);
  entry_t *e = m->buckets[hash % BUCKETS];
  while (e && (e->hash != hash || strcmp(e->key, key))) e = e->next;
  return e;
}

static void add_entry(mlx_tool_memory_t *m, entry_t *e) {
  entry_t *old = find_entry(m, e->key);
  if (old) drop_entry(m, old);
  e->next = m->buckets[e->hash % BUCKETS];
  m->buckets[e->hash % BUCKETS] = e;
  make_newest(m, e);
  m->bytes += e->bytes;
  while (m->bytes > m->max_bytes && m->oldest) drop_entry(m, m->oldest);
}

// ----------------------------------------------------------------------------------------------------------
// The memory

mlx_status_t mlx_tool_memory_create(size_t max_bytes, mlx_tool_memory_t **out) {
  mlx_tool_memory_t *m;
  *out = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *m, &m));
  m->max_bytes = max_bytes;
  const int error = uv_mutex_init(&m->mutex);
  if (error) {
    mlx_free(m);
    return mlx_error(MLX_OUT_OF_MEMORY, "cannot make a mutex: %s", uv_strerror(error));
  }
  *out = m;
  return NULL;
}

void mlx_tool_memory_free(mlx_tool_memory_t *m) {
  if (!m) return;
  while (m->oldest) drop_entry(m, m->oldest);
  uv_mutex_destroy(&m->mutex);
  mlx_free(m);
}

size_t mlx_tool_memory_bytes(mlx_tool_memory_t *m) {
  uv_mutex_lock(&m->mutex);
  const size_t bytes = m->bytes;
  uv_mutex_unlock(&m->mutex);
  return bytes;
}

// The hash of a conversation that goes on with |message|.
static mlx_status_t hash_message(yyjson_val *message, uint64_t *inout_hash) {
  char *json = yyjson_val_write(message, 0, NULL);
  if (!json) return mlx_error(MLX_OUT_OF_MEMORY, "no memory for a message");
  *inout_hash = (*inout_hash ^ hash_text(json)) * 0x9e3779b97f4a7c15u;
  *inout_hash ^= *inout_hash >> 31;
  free(json);
  return NULL;
}

mlx_status_t mlx_tool_memory_history(const char *json, size_t length, uint64_t *out) {
  yyjson_doc *doc = yyjson_read(json, length, 0);
  yyjson_val *message;
  size_t index, count;
  mlx_status_t status = NULL;
  *out = 0;
  yyjson_arr_foreach(yyjson_doc_get_root(doc), index, count, message) {
    if (!status) status = hash_message(message, out);
  }
  yyjson_doc_free(doc);
  return status;
}

static mlx_status_t copy_tokens(entry_t *e, const int32_t *tokens, size_t count) {
  MLX_TRY(mlx_alloc(count, sizeof *e->tokens, &e->tokens));
  if (count) memcpy(e->tokens, tokens, count * sizeof *tokens);
  e->token_count = count;
  return NULL;
}

static mlx_status_t fill_entry(entry_t *e, const mlx_remembered_t *answer) {
  mlx_text_t key = {0};
  size_t key_length;
  mlx_text_puts(&key, answer->model);
  for (size_t i = 0; i < answer->id_count; ++i) mlx_text_printf(&key, "\n%s", answer->ids[i]);
  mlx_status_t status = mlx_text_take(&key, &e->key, &key_length);
  mlx_text_clear(&key);
  MLX_TRY(status);
  MLX_TRY(mlx_copy_text(answer->raw, answer->raw_length, &e->raw));
  MLX_TRY(copy_tokens(e, answer->tokens, answer->token_count));
  e->history = answer->history;
  e->hash = hash_text(e->key);
  e->raw_length = answer->raw_length;
  e->prompt_length = answer->prompt_length;
  e->tail_length = answer->prompt_length < TAIL ? answer->prompt_length : TAIL;
  memcpy(e->tail, answer->prompt + answer->prompt_length - e->tail_length, e->tail_length);
  e->bytes = sizeof *e + key_length + answer->raw_length + answer->token_count * sizeof *e->tokens;
  return NULL;
}

mlx_status_t mlx_tool_memory_remember(mlx_tool_memory_t *m, const mlx_remembered_t *answer) {
  entry_t *e;
  if (!answer->id_count) return NULL;
  MLX_TRY(mlx_alloc(1, sizeof *e, &e));
  mlx_status_t status = fill_entry(e, answer);
  if (status) {
    free_entry(e);
    return status;
  }
  uv_mutex_lock(&m->mutex);
  add_entry(m, e);
  uv_mutex_unlock(&m->mutex);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Finding the remembered answers of a conversation

typedef struct answer {
  size_t index;  // of the message
  entry_t *copy;
  size_t at;  // in the rendered prompt
  char marker[40];
} answer_t;

typedef struct prompt {
  answer_t *answers;
  size_t count;
} prompt_t;

static void clear_prompt(prompt_t *p) {
  for (size_t i = 0; i < p->count; ++i) free_entry(p->answers[i].copy);
  mlx_free(p->answers);
}

static mlx_status_t copy_entry(mlx_tool_memory_t *m, const char *key, uint64_t history, entry_t **out) {
  mlx_status_t status = NULL;
  *out = NULL;
  uv_mutex_lock(&m->mutex);
  entry_t *e = find_entry(m, key), *copy = NULL;
  if (e && e->history == history) {
    unlink_entry(m, e);
    make_newest(m, e);
    status = mlx_alloc(1, sizeof *copy, &copy);
  }
  if (copy) {
    *copy = *e;
    copy->key = copy->raw = NULL;
    copy->tokens = NULL;
    status = mlx_copy_text(e->raw, e->raw_length, &copy->raw);
    if (!status) status = copy_tokens(copy, e->tokens, e->token_count);
  }
  uv_mutex_unlock(&m->mutex);
  if (status)
    free_entry(copy);
  else
    *out = copy;
  return status;
}

// The remembered answer of a message after the messages of |history|; NULL if there is none.
static mlx_status_t find_answer(mlx_tool_memory_t *m, const char *model, yyjson_val *message,
                                uint64_t history, entry_t **out) {
  yyjson_val *calls = yyjson_obj_get(message, "tool_calls"), *call;
  mlx_text_t key = {0};
  size_t index, count;
  *out = NULL;
  if (!yyjson_equals_str(yyjson_obj_get(message, "role"), "assistant") || !yyjson_arr_size(calls))
    return NULL;
  mlx_text_puts(&key, model);
  yyjson_arr_foreach(calls, index, count, call) {
    const char *id = yyjson_get_str(yyjson_obj_get(call, "id"));
    mlx_text_printf(&key, "\n%s", id ? id : "");
  }
  mlx_status_t status = mlx_text_finish(&key);
  if (!status) status = copy_entry(m, key.data, history, out);
  mlx_text_clear(&key);
  return status;
}

static mlx_status_t find_answers(mlx_tool_memory_t *m, const char *model, yyjson_val *messages,
                                 prompt_t *out) {
  uint64_t random[1], history = 0;
  yyjson_val *message;
  size_t index, count;
  if (getrandom(random, sizeof random, 0) != sizeof random)
    return mlx_error(MLX_IO, "getrandom failed: %s", strerror(errno));
  MLX_TRY(mlx_alloc(MOST_ANSWERS, sizeof *out->answers, &out->answers));
  yyjson_arr_foreach(messages, index, count, message) {
    if (out->count == MOST_ANSWERS || index + 1 == count) break;  // the last message may be continued
    answer_t *answer = &out->answers[out->count];
    MLX_TRY(find_answer(m, model, message, history, &answer->copy));
    MLX_TRY(hash_message(message, &history));
    if (!answer->copy) continue;
    answer->index = index;
    snprintf(answer->marker, sizeof answer->marker, "MLXCEL%016llxANSWER%zuEND",
             (unsigned long long)random[0], out->count);
    ++out->count;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Rendering with markers

// Replaces a message by its marker: as the content, or, with |as_call|, as the only argument of its first
// call.
static bool put_marker(yyjson_mut_doc *doc, yyjson_mut_val *message, const char *marker, bool as_call) {
  static const char *const dropped[] = {"reasoning_content", "reasoning", "thinking"};
  yyjson_mut_val *calls = yyjson_mut_obj_get(message, "tool_calls");
  for (int i = 0; i < 3; ++i) yyjson_mut_obj_remove_key(message, dropped[i]);
  yyjson_mut_obj_remove_key(message, "content");
  if (!as_call) {
    yyjson_mut_obj_remove_key(message, "tool_calls");
    return yyjson_mut_obj_add_str(doc, message, "content", marker);
  }
  while (yyjson_mut_arr_size(calls) > 1) yyjson_mut_arr_remove_last(calls);
  yyjson_mut_val *function = yyjson_mut_obj_get(yyjson_mut_arr_get_first(calls), "function");
  yyjson_mut_val *arguments = yyjson_mut_obj(doc);
  yyjson_mut_obj_remove_key(function, "arguments");
  return yyjson_mut_obj_add_str(doc, arguments, "a", marker) &&
         yyjson_mut_obj_add_val(doc, function, "arguments", arguments) &&
         yyjson_mut_obj_add_str(doc, message, "content", "");
}

// Renders the conversation with markers for the first |count| answers. *out_text is NULL if the template
// fails on it.
static mlx_status_t render_markers(const prompt_t *p, size_t count, bool as_call, yyjson_doc *messages,
                                   const mlx_chat_t *chat, const mlx_chat_options_t *options, char **out_text,
                                   size_t *out_length) {
  yyjson_mut_doc *doc = yyjson_doc_mut_copy(messages, NULL);
  bool fine = doc != NULL;
  *out_text = NULL;
  for (size_t i = 0; i < count && fine; ++i) {
    yyjson_mut_val *message = yyjson_mut_arr_get(yyjson_mut_doc_get_root(doc), p->answers[i].index);
    fine = put_marker(doc, message, p->answers[i].marker, as_call);
  }
  size_t length = 0;
  char *json = fine ? yyjson_mut_write(doc, 0, &length) : NULL;
  yyjson_mut_doc_free(doc);
  if (!json) return mlx_error(MLX_OUT_OF_MEMORY, "no memory for the messages");
  mlx_status_t status = mlx_chat_render(chat, json, length, options, out_text, out_length);
  free(json);
  if (status && mlx_status_code(status) != MLX_OUT_OF_MEMORY) {  // the template refuses such a conversation
    mlx_status_free(status);
    status = NULL;
    *out_text = NULL;
  }
  return status;
}

// Puts the end of the answer's prompt and its text after |out|, which has the new prompt up to the marker.
// What the template writes between prompt and answer is replaced by the end of the old prompt. Returns false
// if |out| does not end like that prompt.
static bool put_answer(mlx_text_t *out, const entry_t *e) {
  const size_t start = e->prompt_length - e->tail_length;
  size_t same = 0;
  if (out->length < start) return false;
  while (same < e->tail_length && start + same < out->length && out->data[start + same] == e->tail[same])
    ++same;
  const bool close = e->tail_length - same <= MOST_HEADER / 4 && out->length - (start + same) <= MOST_HEADER;
  if (!close || (e->tail_length > 64 && same < 16)) return false;
  out->length = start + same;
  mlx_text_append(out, e->tail + same, e->tail_length - same);
  mlx_text_append(out, e->raw, e->raw_length);
  return true;
}

// Replaces the markers of |text|. Returns how many of the first |count| answers fit; the text is complete if
// all do.
static size_t replace_markers(prompt_t *p, size_t count, const char *turn_end, const char *text,
                              size_t length, mlx_text_t *out) {
  const char *at = text;
  for (size_t i = 0; i < count; ++i) {
    answer_t *answer = &p->answers[i];
    const char *marker = strstr(at, answer->marker);
    if (!marker || strstr(marker + 1, answer->marker)) return i;
    mlx_text_append(out, at, (size_t)(marker - at));
    if (out->failed || !put_answer(out, answer->copy)) return i;
    answer->at = out->length - answer->copy->raw_length;
    at = turn_end ? strstr(marker, turn_end) : marker + strlen(answer->marker);
    if (!at) return i;
  }
  mlx_text_append(out, at, length - (size_t)(at - text));
  return count;
}

// One way to render: with as many of the answers as fit. *out_count is 0 if none does.
static mlx_status_t render_way(prompt_t *p, const char *turn_end, yyjson_doc *messages,
                               const mlx_chat_t *chat, const mlx_chat_options_t *options, mlx_text_t *out,
                               size_t *out_count) {
  size_t count = p->count;
  *out_count = 0;
  while (count) {
    char *text;
    size_t length;
    MLX_TRY(render_markers(p, count, turn_end != NULL, messages, chat, options, &text, &length));
    if (!text) return NULL;
    out->length = 0;
    const size_t fitting = replace_markers(p, count, turn_end, text, length, out);
    mlx_chat_free_text(text);
    MLX_TRY(mlx_text_finish(out));
    if (fitting == count) break;
    count = fitting;
  }
  *out_count = count;
  return NULL;
}

// Renders with the remembered answers that fit. *out_text is NULL if there is none.
static mlx_status_t render_remembered(prompt_t *prompt, const mlx_output_format_t *format,
                                      const mlx_chat_t *chat, const char *messages, size_t length,
                                      const mlx_chat_options_t *options, char **out_text, size_t *out_length,
                                      size_t *out_used) {
  const char *turn_end = format->tools->turn_end;
  yyjson_doc *doc = yyjson_read(messages, length, 0);
  mlx_text_t text = {0};
  mlx_status_t status = render_way(prompt, NULL, doc, chat, options, &text, out_used);
  if (!status && !*out_used && turn_end)
    status = render_way(prompt, turn_end, doc, chat, options, &text, out_used);
  yyjson_doc_free(doc);
  if (!status && *out_used) status = mlx_text_take(&text, out_text, out_length);
  mlx_text_clear(&text);
  return status;
}

void mlx_answer_spans_clear(mlx_answer_spans_t *spans) {
  for (size_t i = 0; i < spans->count; ++i) mlx_free(spans->items[i].tokens);
  mlx_free(spans->items);
  *spans = (mlx_answer_spans_t){0};
}

// Moves the tokens of the first |used| answers to spans of the prompt's |text|.
static mlx_status_t take_spans(prompt_t *p, size_t used, const char *text, size_t length,
                               mlx_answer_spans_t *out) {
  if (!used) return NULL;
  MLX_TRY(mlx_alloc(used, sizeof *out->items, &out->items));
  for (size_t i = 0; i < used; ++i) {
    entry_t *e = p->answers[i].copy;
    const size_t at = p->answers[i].at;
    // A later answer may have replaced the end of this one.
    if (at > length || e->raw_length > length - at || memcmp(text + at, e->raw, e->raw_length)) continue;
    out->items[out->count++] = (mlx_answer_span_t){at, e->raw_length, e->tokens, e->token_count};
    e->tokens = NULL;
  }
  return NULL;
}

mlx_status_t mlx_tool_memory_render(mlx_tool_memory_t *m, const char *model, const mlx_chat_t *chat,
                                    const mlx_output_format_t *format, const char *messages, size_t length,
                                    const mlx_chat_options_t *options, char **out_text, size_t *out_length,
                                    mlx_answer_spans_t *out_spans) {
  yyjson_doc *doc = m ? yyjson_read(messages, length, 0) : NULL;
  prompt_t prompt = {0};
  char *shortened = NULL;
  size_t used = 0;
  mlx_status_t status = NULL;
  *out_text = NULL;
  *out_spans = (mlx_answer_spans_t){0};
  if (yyjson_is_arr(yyjson_doc_get_root(doc)))
    status = find_answers(m, model, yyjson_doc_get_root(doc), &prompt);
  yyjson_doc_free(doc);
  if (!status && format->tools->short_ids) {
    status = mlx_tool_ids_shorten(messages, length, &shortened, &length);
    messages = shortened;
  }
  if (!status && prompt.count)
    status = render_remembered(&prompt, format, chat, messages, length, options, out_text, out_length, &used);
  if (!status && used) {
    status = take_spans(&prompt, used, *out_text, *out_length, out_spans);
    if (status) {
      mlx_chat_free_text(*out_text);
      *out_text = NULL;
    }
  }
  clear_prompt(&prompt);
  if (!status && !used) status = mlx_chat_render(chat, messages, length, options, out_text, out_length);
  mlx_free(shortened);
  return status;
}
