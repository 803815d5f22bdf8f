// Finds the tokens and puts the parts together.
#include "server/core/infill.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "runtime/rooms.h"

#define LEAST_ANSWER 32  // tokens that a prompt leaves free, without max_tokens

typedef enum kind { PREFIX, SUFFIX, MIDDLE, PAD, REPOSITORY, SEPARATOR, KINDS } kind_t;

#define MOST_NAMES 9

// llama.cpp's names.
static const char *const names[KINDS][MOST_NAMES] = {
    [PREFIX] = {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
                "<|code_prefix|>", "<|prefix|>"},
    [SUFFIX] = {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
                "<|code_suffix|>", "<|suffix|>"},
    [MIDDLE] = {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
                "<|code_middle|>", "<|middle|>"},
    [PAD] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"},
    [REPOSITORY] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<repo_name>"},
    [SEPARATOR] = {"<|file_sep|>", "<file_sep>"},
};

// A list of tokens that grows.
typedef struct ids {
  int32_t *data;
  size_t count, capacity;
} ids_t;

static mlx_status_t add_ids(ids_t *out, const int32_t *ids, size_t count) {
  MLX_TRY(mlx_reserve(out->count + count, sizeof *out->data, &out->capacity, &out->data));
  if (count) memcpy(out->data + out->count, ids, count * sizeof *ids);
  out->count += count;
  return NULL;
}

static mlx_status_t add_text(const mlx_engine_t *engine, const char *text, size_t length, ids_t *out) {
  int32_t *ids;
  size_t count;
  MLX_TRY(mlx_engine_tokenize_plain(engine, text, length, false, SIZE_MAX, &ids, &count));
  mlx_status_t status = add_ids(out, ids, count);
  mlx_engine_free_ids(ids);
  return status;
}

static mlx_status_t find_tokens(const mlx_engine_t *engine, int32_t *out_ids) {
  static const char *const words[] = {"prefix", "suffix", "middle"};
  const int64_t vocab = mlx_engine_info(engine).vocab;
  for (int kind = 0; kind < KINDS; ++kind) {
    out_ids[kind] = -1;
    for (int i = 0; i < MOST_NAMES && names[kind][i] && out_ids[kind] < 0; ++i) {
      if (!mlx_engine_find_token(engine, names[kind][i], &out_ids[kind]) || out_ids[kind] >= vocab)
        out_ids[kind] = -1;
    }
    if (out_ids[kind] < 0 && kind <= MIDDLE)
      return mlx_status_hint(
          mlx_error(MLX_UNSUPPORTED, "suffix: the model cannot fill in the middle: it has no %s token",
                    words[kind]),
          "use a model such as Qwen2.5-Coder, StarCoder2 or Granite Code");
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Parts

typedef struct parts {
  int32_t tokens[KINDS];
  ids_t start, files, prefix, suffix;
} parts_t;

static mlx_status_t add_file(const mlx_engine_t *engine, const parts_t *parts, const char *name, ids_t *out) {
  static const char snippet[] = "\n\n--- snippet ---\n\n";
  mlx_text_t line = {0};
  if (parts->tokens[SEPARATOR] < 0) return add_text(engine, snippet, strlen(snippet), out);
  MLX_TRY(add_ids(out, &parts->tokens[SEPARATOR], 1));
  mlx_text_printf(&line, "%s\n", name);
  mlx_status_t status = mlx_text_finish(&line);
  if (!status) status = add_text(engine, line.data, line.length, out);
  mlx_text_clear(&line);
  return status;
}

// Without further files there is no repository: models write better code without its empty frame.
static mlx_status_t add_files(const mlx_engine_t *engine, const mlx_api_infill_t *infill, parts_t *parts) {
  static const char repository[] = "myproject\n";
  if (!infill->file_count) return NULL;
  if (parts->tokens[REPOSITORY] >= 0) {
    MLX_TRY(add_ids(&parts->files, &parts->tokens[REPOSITORY], 1));
    MLX_TRY(add_text(engine, repository, strlen(repository), &parts->files));
  }
  for (size_t i = 0; i < infill->file_count; ++i) {
    const mlx_api_file_t *file = &infill->files[i];
    MLX_TRY(add_file(engine, parts, file->name, &parts->files));
    MLX_TRY(add_text(engine, file->text, file->length, &parts->files));
  }
  if (parts->tokens[SEPARATOR] < 0) return NULL;
  return add_file(engine, parts, "filename", &parts->files);
}

static mlx_status_t make_parts(const mlx_engine_t *engine, const mlx_api_call_t *call, parts_t *out) {
  const mlx_api_prompt_t *prompt = &call->prompts[0];
  const mlx_api_infill_t *infill = &call->infill;
  int32_t *ids;
  size_t count;
  MLX_TRY(find_tokens(engine, out->tokens));
  MLX_TRY(mlx_engine_tokenize(engine, "", 0, &ids, &count));  // the start token, if the model has one
  mlx_status_t status = add_ids(&out->start, ids, count);
  mlx_engine_free_ids(ids);
  MLX_TRY(status);
  MLX_TRY(add_files(engine, infill, out));
  MLX_TRY(add_text(engine, prompt->text, prompt->length, &out->prefix));
  if (infill->typed) MLX_TRY(add_text(engine, infill->typed, infill->typed_length, &out->prefix));
  return add_text(engine, infill->suffix, infill->suffix_length, &out->suffix);
}

static void clear_parts(parts_t *parts) {
  mlx_free(parts->start.data);
  mlx_free(parts->files.data);
  mlx_free(parts->prefix.data);
  mlx_free(parts->suffix.data);
}

static void drop_first(ids_t *ids, size_t count) {
  if (!count) return;
  ids->count -= count;
  memmove(ids->data, ids->data + count, ids->count * sizeof *ids->data);
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// The prefix may have three quarters of the room, or what the suffix leaves.
static void fit(parts_t *parts, const mlx_api_call_t *call, size_t context) {
  const size_t answer = call->max_tokens > 0 ? (size_t)call->max_tokens : LEAST_ANSWER;
  const size_t fixed = parts->start.count + 3 + smaller(answer, context / 2);
  const size_t room = context > fixed ? context - fixed : 0;
  const size_t prefix = parts->prefix.count, suffix = parts->suffix.count, most = room / 4 * 3;
  if (prefix + suffix > room) {
    const size_t left = prefix < most ? prefix : room - smaller(suffix, room - most);
    drop_first(&parts->prefix, prefix - left);
    parts->suffix.count = smaller(suffix, room - left);
  }
  const size_t used = parts->prefix.count + parts->suffix.count;
  if (parts->files.count > room - used) drop_first(&parts->files, parts->files.count - (room - used));
}

static mlx_status_t join(const parts_t *parts, ids_t *out) {
  MLX_TRY(add_ids(out, parts->files.data, parts->files.count));
  MLX_TRY(add_ids(out, parts->start.data, parts->start.count));
  MLX_TRY(add_ids(out, &parts->tokens[PREFIX], 1));
  MLX_TRY(add_ids(out, parts->prefix.data, parts->prefix.count));
  MLX_TRY(add_ids(out, &parts->tokens[SUFFIX], 1));
  MLX_TRY(add_ids(out, parts->suffix.data, parts->suffix.count));
  return add_ids(out, &parts->tokens[MIDDLE], 1);
}

// The model has filled the gap when it begins another file.
static mlx_status_t add_stops(const parts_t *parts, mlx_api_call_t *call) {
  for (int kind = PAD; kind < KINDS; ++kind) {
    if (parts->tokens[kind] < 0) continue;
    MLX_TRY(mlx_resize(call->stop_id_count + 1, sizeof *call->stop_ids, &call->stop_ids));
    call->stop_ids[call->stop_id_count++] = parts->tokens[kind];
  }
  return NULL;
}

mlx_status_t mlx_infill_prepare(const mlx_engine_t *engine, mlx_api_call_t *call) {
  parts_t parts = {0};
  ids_t ids = {0};
  mlx_status_t status = make_parts(engine, call, &parts);
  if (!status) {
    fit(&parts, call, (size_t)mlx_engine_info(engine).context);
    status = join(&parts, &ids);
  }
  if (!status) status = add_stops(&parts, call);
  clear_parts(&parts);
  if (status) {
    mlx_free(ids.data);
    return status;
  }
  call->prompts[0].ids = ids.data;
  call->prompts[0].id_count = ids.count;
  return NULL;
}
