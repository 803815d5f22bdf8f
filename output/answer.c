// Answers: collecting events.
#include "output/answer.h"

#include <string.h>

#include "base/memory.h"

// ----------------------------------------------------------------------------------------------------------
// Tokens

// A token's |top| is the start of one block: the list, then the bytes of all entries. So one release frees
// the token.
static char *copy_bytes(mlx_answer_logprob_t *entry, char *to) {
  if (entry->length) memcpy(to, entry->bytes, entry->length);
  entry->bytes = to;
  return to + entry->length;
}

static mlx_status_t copy_token(const mlx_answer_token_t *token, mlx_answer_token_t *out) {
  size_t list, bytes = token->chosen.length;
  bool fits = mlx_mul(token->top_count, sizeof *token->top, &list);
  for (size_t i = 0; i < token->top_count; ++i) fits = fits && mlx_add(bytes, token->top[i].length, &bytes);
  if (!fits || !mlx_add(bytes, list, &bytes)) return mlx_error(MLX_OUT_OF_MEMORY, "token is too large");
  char *block;
  MLX_TRY(mlx_alloc(bytes, 1, &block));
  *out = *token;
  mlx_answer_logprob_t *top = (mlx_answer_logprob_t *)(void *)block;
  char *to = copy_bytes(&out->chosen, block + list);
  for (size_t i = 0; i < token->top_count; ++i) {
    top[i] = token->top[i];
    to = copy_bytes(&top[i], to);
  }
  out->top = top;
  return NULL;
}

static mlx_status_t add_tokens(mlx_answer_choice_t *choice, const mlx_event_t *event) {
  size_t count;
  if (!event->token_count) return NULL;
  if (!mlx_add(choice->token_count, event->token_count, &count))
    return mlx_error(MLX_OUT_OF_MEMORY, "too many tokens");
  MLX_TRY(mlx_reserve(count, sizeof *choice->tokens, &choice->token_capacity, &choice->tokens));
  for (size_t i = 0; i < event->token_count; ++i) {
    MLX_TRY(copy_token(&event->tokens[i], &choice->tokens[choice->token_count]));
    ++choice->token_count;
  }
  return NULL;
}

static mlx_status_t copy_routes(const mlx_answer_routes_t *from, mlx_answer_routes_t *out) {
  const size_t count = from->tokens * (size_t)(from->layers * from->used);  // fits: they are in memory
  int16_t *experts;
  if (!from->experts) return NULL;
  MLX_TRY(mlx_alloc(count, sizeof *experts, &experts));
  memcpy(experts, from->experts, count * sizeof *experts);
  *out = *from;
  out->experts = experts;
  return NULL;
}

static mlx_status_t finish_choice(mlx_answer_choice_t *choice, const mlx_event_t *event) {
  choice->finish = event->finish;
  choice->stop = event->stop;
  choice->mean_logprob = event->mean_logprob;
  MLX_TRY(mlx_alloc(event->id_count, sizeof *choice->ids, &choice->ids));
  if (event->id_count) memcpy(choice->ids, event->ids, event->id_count * sizeof *choice->ids);
  choice->id_count = event->id_count;
  MLX_TRY(copy_routes(&event->routes, &choice->routes));
  MLX_TRY(mlx_alloc(event->prompt_token_count, sizeof *choice->prompt_tokens, &choice->prompt_tokens));
  for (size_t i = 0; i < event->prompt_token_count; ++i) {
    MLX_TRY(copy_token(&event->prompt_tokens[i], &choice->prompt_tokens[i]));
    ++choice->prompt_token_count;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Events

static mlx_status_t begin_tool(mlx_answer_choice_t *choice, const mlx_event_t *event) {
  if (event->tool != choice->tool_count)
    return mlx_error(MLX_INTERNAL, "tool call %zu follows %zu calls", event->tool, choice->tool_count);
  MLX_TRY(mlx_reserve(choice->tool_count + 1, sizeof *choice->tools, &choice->tool_capacity, &choice->tools));
  mlx_tool_call_t *tool = &choice->tools[choice->tool_count++];
  memset(tool, 0, sizeof *tool);
  MLX_TRY(mlx_copy_text(event->id, strlen(event->id), &tool->id));
  return mlx_copy_text(event->name, strlen(event->name), &tool->name);
}

static mlx_status_t find_choice(mlx_answer_t *answer, size_t index, mlx_answer_choice_t **out) {
  if (index >= answer->choice_count) {
    MLX_TRY(mlx_resize(index + 1, sizeof *answer->choices, &answer->choices));
    memset(answer->choices + answer->choice_count, 0,
           (index + 1 - answer->choice_count) * sizeof *answer->choices);
    answer->choice_count = index + 1;
  }
  *out = &answer->choices[index];
  return NULL;
}

mlx_status_t mlx_answer_add(mlx_answer_t *answer, const mlx_event_t *event) {
  mlx_answer_choice_t *choice;
  MLX_TRY(find_choice(answer, event->choice, &choice));
  switch (event->kind) {
    case MLX_EVENT_TEXT:
    case MLX_EVENT_REASONING: {
      mlx_text_t *text = event->kind == MLX_EVENT_TEXT ? &choice->text : &choice->reasoning;
      mlx_text_append(text, event->text, event->length);
      MLX_TRY(add_tokens(choice, event));
      return mlx_text_finish(text);
    }
    case MLX_EVENT_TOOL_BEGIN: return begin_tool(choice, event);
    case MLX_EVENT_TOOL_ARGUMENTS: {
      if (event->tool >= choice->tool_count)
        return mlx_error(MLX_INTERNAL, "arguments of tool call %zu before its beginning", event->tool);
      mlx_text_t *arguments = &choice->tools[event->tool].arguments;
      mlx_text_append(arguments, event->text, event->length);
      return mlx_text_finish(arguments);
    }
    case MLX_EVENT_TOOL_END: return NULL;
    case MLX_EVENT_FINISH: return finish_choice(choice, event);
  }
  return mlx_error(MLX_INTERNAL, "unknown event %d", (int)event->kind);
}

// ----------------------------------------------------------------------------------------------------------
// JSON

static void put_bytes(mlx_json_writer_t *json, const char *key, const mlx_text_t *text) {
  mlx_json_put_bytes(json, key, text->data ? text->data : "", text->length);
}

void mlx_answer_put_content(mlx_json_writer_t *json, const mlx_answer_choice_t *choice) {
  if (choice->text.length || !choice->tool_count)
    put_bytes(json, "content", &choice->text);
  else
    mlx_json_put_null(json, "content");
}

void mlx_answer_put_tool_calls(mlx_json_writer_t *json, const mlx_answer_choice_t *choice) {
  mlx_json_begin_list(json, "tool_calls", MLX_JSON_COMPACT);
  for (size_t i = 0; i < choice->tool_count; ++i) {
    const mlx_tool_call_t *tool = &choice->tools[i];
    mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_text(json, "id", tool->id);
    mlx_json_put_text(json, "type", "function");
    mlx_json_begin_object(json, "function", MLX_JSON_COMPACT);
    mlx_json_put_text(json, "name", tool->name);
    put_bytes(json, "arguments", &tool->arguments);
    mlx_json_end(json);
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

// ----------------------------------------------------------------------------------------------------------

static void clear_choice(mlx_answer_choice_t *choice) {
  for (size_t i = 0; i < choice->tool_count; ++i) {
    mlx_free(choice->tools[i].id);
    mlx_free(choice->tools[i].name);
    mlx_text_clear(&choice->tools[i].arguments);
  }
  for (size_t i = 0; i < choice->token_count; ++i) mlx_free((void *)(uintptr_t)choice->tokens[i].top);
  for (size_t i = 0; i < choice->prompt_token_count; ++i)
    mlx_free((void *)(uintptr_t)choice->prompt_tokens[i].top);
  mlx_free(choice->tools);
  mlx_free(choice->tokens);
  mlx_free(choice->prompt_tokens);
  mlx_free(choice->ids);
  mlx_free((void *)(uintptr_t)choice->routes.experts);
  mlx_text_clear(&choice->text);
  mlx_text_clear(&choice->reasoning);
}

void mlx_answer_clear(mlx_answer_t *answer) {
  for (size_t i = 0; i < answer->choice_count; ++i) clear_choice(&answer->choices[i]);
  mlx_free(answer->choices);
  *answer = (mlx_answer_t){0};
}
