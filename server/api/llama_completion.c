// llama.cpp's own completions: POST /completion, and POST /infill, which fills a gap in a text.
#include <string.h>

#include "base/json_writer.h"
#include "base/memory.h"
#include "server/api/llama_answer.h"
#include "server/api/openai_answer.h"
#include "server/api/openai_fields.h"
#include "server/api/prompt_fields.h"

#define MAX_CHOICES 1024  // prompts times n
#define MAX_FILES 1024    // of input_extra
#define MAX_RESPONSE_FIELDS 64

// The first row of a name counts: these fields mean something else for OpenAI's endpoints.
// clang-format off
#define SHARED_FIELDS \
  MLX_READ("n_probs"), MLX_READ("post_sampling_probs"), MLX_READ("samplers"), MLX_READ("return_tokens"), MLX_READ("response_fields"), \
      MLX_READ("prompt"), MLX_READ("n_predict"), MLX_READ("max_tokens"), MLX_READ("n"), MLX_READ("n_cmpl"), \
      MLX_READ("n_indent"), MLX_READ("t_max_predict_ms"), \
      MLX_IGNORE("min_keep", "it matters only for a cutoff that leaves fewer tokens"), \
      MLX_IGNORE("t_max_prompt_ms", "a prompt is read whole"), \
      MLX_IGNORE("image_data", "an empty list; this server reads text only"), \
      MLX_READ("typ_p"), MLX_OPENAI_GENERATION_FIELDS
// clang-format on

static const mlx_field_t completion_fields[] = {SHARED_FIELDS, MLX_FIELDS_END};
static const mlx_field_t infill_fields[] = {MLX_READ("input_prefix"), MLX_READ("input_suffix"),
                                            MLX_READ("input_extra"), SHARED_FIELDS, MLX_FIELDS_END};

typedef struct details {
  bool return_tokens;
  char *fields[MAX_RESPONSE_FIELDS];  // owned: paths of the members that the answer has; none: all
  size_t field_count;
} details_t;

// ----------------------------------------------------------------------------------------------------------
// Requests

// A chain of samplers by name, or by llama.cpp's letters. Their order is fixed here: what a list leaves out
// is turned off.
static mlx_status_t read_samplers(const mlx_place_t *root, mlx_api_call_t *call) {
  static const struct {
    const char *names[3];
    char letter;
  } kinds[] = {{{"penalties"}, 'e'},
               {{"dry"}, 'd'},
               {{"top_n_sigma", "top-n-sigma"}, 's'},
               {{"top_k", "top-k"}, 'k'},
               {{"typ_p", "typical_p", "typical"}, 'y'},
               {{"top_p", "top-p"}, 'p'},
               {{"min_p", "min-p"}, 'm'},
               {{"xtc"}, 'x'},
               {{"temperature", "temp"}, 't'}};
  const mlx_place_t place = mlx_place_key(root, "samplers");
  mlx_sampling_t *s = &call->sampling;
  size_t index, max;
  yyjson_val *value;
  bool on[9] = {false};
  if (!place.value) return NULL;
  if (!yyjson_is_arr(place.value) && !yyjson_is_str(place.value))
    return mlx_field_expected(&place, "a list of names");
  for (size_t i = 0; i < 9; ++i) {
    if (yyjson_is_str(place.value)) on[i] = strchr(yyjson_get_str(place.value), kinds[i].letter) != NULL;
    yyjson_arr_foreach(place.value, index, max, value) {
      for (size_t k = 0; k < 3 && kinds[i].names[k]; ++k)
        on[i] = on[i] || yyjson_equals_str(value, kinds[i].names[k]);
    }
  }
  if (!on[0]) s->repeat_last_n = 0;
  if (!on[1]) s->dry_multiplier = 0;
  if (!on[2]) s->top_n_sigma = 0;
  if (!on[3]) s->top_k = 0;
  if (!on[4]) s->typical_p = 1;
  if (!on[5]) s->top_p = 1;
  if (!on[6]) s->min_p = 0;
  if (!on[7]) s->xtc_probability = 0;
  if (!on[8] && s->temperature > 0) s->temperature = 1;
  return NULL;
}

static mlx_status_t read_response_fields(const mlx_place_t *root, details_t *details) {
  const mlx_place_t place = mlx_place_key(root, "response_fields");
  size_t index, max;
  yyjson_val *value;
  if (!place.value) return NULL;
  if (!yyjson_is_arr(place.value)) return mlx_field_expected(&place, "a list of strings");
  if (yyjson_arr_size(place.value) > MAX_RESPONSE_FIELDS)
    return mlx_field_error(&place, MLX_INVALID_INPUT, "more than %d names", MAX_RESPONSE_FIELDS);
  yyjson_arr_foreach(place.value, index, max, value) {
    const mlx_place_t item = mlx_place_item(&place, index, value);
    if (!yyjson_is_str(value)) return mlx_field_expected(&item, "a string");
    MLX_TRY(
        mlx_copy_text(yyjson_get_str(value), yyjson_get_len(value), &details->fields[details->field_count]));
    ++details->field_count;
  }
  return NULL;
}

static mlx_status_t read_shared(const mlx_place_t *root, mlx_api_call_t *call) {
  static const char *const limits[] = {"n_predict", "max_tokens", NULL};
  details_t *details = call->details;
  bool include_usage;
  int64_t probs = 0;
  MLX_TRY(mlx_openai_read_generation(root, call, &include_usage));
  call->forbids_ends = true;
  MLX_TRY(mlx_field_number(root, "typ_p", 0, 1, &call->sampling.typical_p));
  MLX_TRY(read_samplers(root, call));
  MLX_TRY(mlx_openai_read_max_tokens(root, limits, 0, call));
  MLX_TRY(mlx_field_int(root, "n_indent", 0, INT32_MAX, &call->least_indent));
  MLX_TRY(mlx_field_int(root, "t_max_predict_ms", -1, INT32_MAX, &call->most_milliseconds));
  MLX_TRY(mlx_field_int(root, "n_probs", 0, MLX_MAX_LOGPROBS, &probs));
  if (probs) call->logprobs = probs;
  MLX_TRY(mlx_field_bool(root, "post_sampling_probs", &call->sampled_logprobs));
  MLX_TRY(mlx_field_int(root, "n", 1, MLX_MAX_N, &call->n));
  MLX_TRY(mlx_field_int(root, "n_cmpl", 1, MLX_MAX_N, &call->n));
  const mlx_place_t n = mlx_place_key(root, mlx_place_key(root, "n_cmpl").value ? "n_cmpl" : "n");
  if ((size_t)call->n * call->prompt_count > MAX_CHOICES)
    return mlx_field_error(&n, MLX_INVALID_INPUT, "n times the number of prompts is over %d", MAX_CHOICES);
  MLX_TRY(mlx_field_bool(root, "return_tokens", &details->return_tokens));
  return read_response_fields(root, details);
}

static mlx_status_t read_completion(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t prompt = mlx_place_key(root, "prompt");
  MLX_TRY(mlx_fields_check(root, completion_fields, false));
  MLX_TRY(mlx_prompt_fields_read(&prompt, call));
  return read_shared(root, call);
}

static mlx_status_t read_file(const mlx_place_t *item, mlx_api_infill_t *infill) {
  const mlx_place_t text = mlx_place_key(item, "text"), place = mlx_place_key(item, "filename");
  mlx_api_file_t *file = &infill->files[infill->file_count];
  const char *name = "tmp";
  if (!yyjson_is_obj(item->value)) return mlx_field_expected(item, "an object with text and filename");
  if (!yyjson_is_str(text.value)) return mlx_field_expected(&text, "a string");
  if (place.value) MLX_TRY(mlx_field_text(item, "filename", &name));
  ++infill->file_count;
  file->length = yyjson_get_len(text.value);
  MLX_TRY(mlx_copy_text(name, strlen(name), &file->name));
  return mlx_copy_text(yyjson_get_str(text.value), file->length, &file->text);
}

static mlx_status_t read_files(const mlx_place_t *root, mlx_api_infill_t *infill) {
  const mlx_place_t place = mlx_place_key(root, "input_extra");
  size_t index, max;
  yyjson_val *value;
  if (!place.value) return NULL;
  if (!yyjson_is_arr(place.value)) return mlx_field_expected(&place, "a list of files");
  if (yyjson_arr_size(place.value) > MAX_FILES)
    return mlx_field_error(&place, MLX_INVALID_INPUT, "more than %d files", MAX_FILES);
  MLX_TRY(mlx_alloc(yyjson_arr_size(place.value), sizeof *infill->files, &infill->files));
  yyjson_arr_foreach(place.value, index, max, value) {
    const mlx_place_t item = mlx_place_item(&place, index, value);
    MLX_TRY(read_file(&item, infill));
  }
  return NULL;
}

static mlx_status_t copy_string(const mlx_place_t *place, char **out, size_t *out_length) {
  if (place->value && !yyjson_is_str(place->value)) return mlx_field_expected(place, "a string");
  *out_length = yyjson_get_len(place->value);
  return mlx_copy_text(place->value ? yyjson_get_str(place->value) : "", *out_length, out);
}

static mlx_status_t read_infill(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t prefix = mlx_place_key(root, "input_prefix"),
                    suffix = mlx_place_key(root, "input_suffix"), typed = mlx_place_key(root, "prompt");
  mlx_api_infill_t *infill = &call->infill;
  MLX_TRY(mlx_fields_check(root, infill_fields, false));
  if (!prefix.value) return mlx_field_expected(&prefix, "a string");
  if (!suffix.value) return mlx_field_expected(&suffix, "a string");
  infill->is_wanted = true;
  MLX_TRY(mlx_alloc(1, sizeof *call->prompts, &call->prompts));
  call->prompt_count = 1;
  MLX_TRY(copy_string(&prefix, &call->prompts[0].text, &call->prompts[0].length));
  MLX_TRY(copy_string(&suffix, &infill->suffix, &infill->suffix_length));
  if (typed.value) MLX_TRY(copy_string(&typed, &infill->typed, &infill->typed_length));
  MLX_TRY(read_files(root, infill));
  return read_shared(root, call);
}

static mlx_status_t parse_completion(const char *body, size_t length, const char *query,
                                     mlx_api_call_t *call) {
  (void)query;
  return mlx_fields_read(body, length, sizeof(details_t), read_completion, call);
}

static mlx_status_t parse_infill(const char *body, size_t length, const char *query, mlx_api_call_t *call) {
  (void)query;
  return mlx_fields_read(body, length, sizeof(details_t), read_infill, call);
}

static void free_details(void *details) {
  details_t *d = details;
  for (size_t i = 0; d && i < d->field_count; ++i) mlx_free(d->fields[i]);
  mlx_free(details);
}

// ----------------------------------------------------------------------------------------------------------
// Answers

static void put_probabilities(mlx_json_writer_t *json, const mlx_api_call_t *call,
                              const mlx_answer_token_t *tokens, size_t count) {
  if (call->logprobs < 0) return;
  (call->sampled_logprobs ? mlx_openai_put_probs : mlx_openai_put_logprobs)(json, "completion_probabilities",
                                                                            tokens, count);
}

static void put_choice(const mlx_llama_result_t *r, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
  mlx_llama_put_members(&json, r);
  put_probabilities(&json, r->call, r->choice->tokens, r->choice->token_count);
  mlx_token_fields_put_routes(&json, r->call, &r->choice->routes);
  mlx_json_end(&json);
}

// Only the members that the client asked for, by their paths: {"timings/predicted_n": 8}.
static mlx_status_t select_fields(const details_t *details, mlx_text_t *inout) {
  mlx_text_t selected = {0};
  mlx_json_writer_t json = {.out = &selected};
  yyjson_doc *doc = yyjson_read(inout->data, inout->length, 0);
  mlx_status_t status = doc ? NULL : mlx_error(MLX_OUT_OF_MEMORY, "no memory for the answer");
  mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < details->field_count && !status; ++i) {
    mlx_text_t path = {0}, value = {0};
    mlx_text_printf(&path, "/%s", details->fields[i]);
    yyjson_val *found = path.failed ? NULL : yyjson_doc_ptr_get(doc, path.data);
    if (found) {
      status = mlx_json_put(found, &value);
      selected.failed |= value.failed;
      mlx_json_put_raw(&json, details->fields[i], value.data ? value.data : "null",
                       value.data ? value.length : 4);
    }
    mlx_text_clear(&value);
    mlx_text_clear(&path);
  }
  mlx_json_end(&json);
  yyjson_doc_free(doc);
  if (!status) status = mlx_text_finish(&selected);
  mlx_text_clear(inout);
  *inout = selected;
  return status;
}

static mlx_status_t put_result(const mlx_llama_result_t *r, mlx_text_t *out) {
  const details_t *details = r->call->details;
  mlx_text_t text = {0};
  put_choice(r, &text);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status && details->field_count) status = select_fields(details, &text);
  if (!status) mlx_text_append(out, text.data, text.length);
  mlx_text_clear(&text);
  return status;
}

// One prompt with one choice is an object, several are a list.
static mlx_status_t write_answer(const mlx_api_call_t *call, const mlx_answer_t *answer, mlx_text_t *out) {
  const bool is_list = answer->choice_count > 1;
  if (is_list) mlx_text_puts(out, "[");
  for (size_t i = 0; i < answer->choice_count; ++i) {
    const mlx_text_t *text = &answer->choices[i].text;
    const mlx_llama_result_t result = {.call = call,
                                       .answer = answer,
                                       .choice = &answer->choices[i],
                                       .index = i,
                                       .has_tokens = ((const details_t *)call->details)->return_tokens,
                                       .has_new_line = mlx_llama_has_new_line(text->data, text->length)};
    if (i) mlx_text_puts(out, ",");
    MLX_TRY(put_result(&result, out));
  }
  if (is_list) mlx_text_puts(out, "]");
  return mlx_text_finish(out);
}

// ----------------------------------------------------------------------------------------------------------
// Streams

// The end of a choice, which is sent when the timings are known.
typedef struct llama_choice {
  mlx_answer_choice_t end;  // without its text and tokens
  size_t sent;              // tokens
  bool has_new_line;
} llama_choice_t;

typedef struct llama_stream {
  const mlx_api_call_t *call;
  const mlx_answer_t *answer;
  llama_choice_t *choices;  // [count]
  size_t count;
} llama_stream_t;

static void stream_clear(void *stream) { mlx_free(((llama_stream_t *)stream)->choices); }

static mlx_status_t stream_open(void *stream, const mlx_api_call_t *call, const mlx_answer_t *answer,
                                mlx_text_t *out) {
  llama_stream_t *w = stream;
  (void)out;
  w->call = call;
  w->answer = answer;
  w->count = (size_t)call->n * call->prompt_count;
  return mlx_alloc(w->count, sizeof *w->choices, &w->choices);
}

static void begin_part(const llama_stream_t *w, const mlx_event_t *event, mlx_json_writer_t *json) {
  const mlx_api_prompt_t *prompt = &w->call->prompts[event->choice / (size_t)w->call->n];
  mlx_text_puts(json->out, "data: ");
  mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_uint(json, "index", event->choice);
  mlx_json_put_bytes(json, "content", event->text, event->length);
  mlx_json_put_ints(json, "tokens", event->ids, event->id_count);
  mlx_json_put_bool(json, "stop", false);
  mlx_json_put_int(json, "id_slot", 0);
  mlx_json_put_uint(json, "tokens_predicted", w->choices[event->choice].sent);
  mlx_json_put_uint(json, "tokens_evaluated", prompt->id_count);
}

static void put_part(const llama_stream_t *w, const mlx_event_t *event, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  begin_part(w, event, &json);
  put_probabilities(&json, w->call, event->tokens, event->token_count);
  mlx_json_end(&json);
  mlx_text_puts(out, "\n\n");
}

static void stream_progress(void *stream, const mlx_api_progress_t *progress, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  begin_part(stream, &(mlx_event_t){.choice = progress->choice, .text = ""}, &json);
  mlx_llama_put_progress(&json, progress);
  mlx_json_end(&json);
  mlx_text_puts(out, "\n\n");
}

static mlx_status_t stream_event(void *stream, const mlx_event_t *event, mlx_text_t *out) {
  llama_stream_t *w = stream;
  if (event->choice >= w->count) return mlx_error(MLX_INTERNAL, "there is no choice %zu", event->choice);
  llama_choice_t *choice = &w->choices[event->choice];
  switch (event->kind) {
    case MLX_EVENT_TEXT:
    case MLX_EVENT_REASONING:
      choice->sent += event->id_count;
      if (mlx_llama_has_new_line(event->text, event->length)) choice->has_new_line = true;
      if (event->length || event->id_count) put_part(w, event, out);
      break;
    case MLX_EVENT_FINISH:
      choice->end =
          (mlx_answer_choice_t){.finish = event->finish, .stop = event->stop, .id_count = event->id_count};
      break;
    default: return mlx_error(MLX_INTERNAL, "a completion has no tool calls");
  }
  return mlx_text_finish(out);
}

// The texts of the last results are empty: they were sent.
static mlx_status_t stream_close(void *stream, const mlx_answer_t *answer, mlx_text_t *out) {
  llama_stream_t *w = stream;
  for (size_t i = 0; i < w->count; ++i) {
    const mlx_llama_result_t result = {.call = w->call,
                                       .answer = answer,
                                       .choice = &w->choices[i].end,
                                       .index = i,
                                       .has_new_line = w->choices[i].has_new_line};
    mlx_json_writer_t json = {.out = out};
    mlx_text_puts(out, "data: ");
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    mlx_llama_put_members(&json, &result);
    mlx_json_end(&json);
    mlx_text_puts(out, "\n\n");
  }
  return mlx_text_finish(out);
}

static void stream_error(void *stream, const mlx_api_error_t *error, mlx_text_t *out) {
  (void)stream;
  mlx_text_puts(out, "data: ");
  mlx_llama_write_error(error, out);
  mlx_text_puts(out, "\n\n");
}

#define API(parser, list)                             \
  {.stream_type = "text/event-stream; charset=utf-8", \
   .fields = list,                                    \
   .parse = parser,                                   \
   .free_details = free_details,                      \
   .write = write_answer,                             \
   .stream_size = sizeof(llama_stream_t),             \
   .stream_open = stream_open,                        \
   .stream_event = stream_event,                      \
   .stream_progress = stream_progress,                \
   .stream_close = stream_close,                      \
   .stream_error = stream_error,                      \
   .stream_clear = stream_clear,                      \
   .heartbeat = ": \n\n",                             \
   .error = mlx_llama_write_error}

const mlx_api_t mlx_api_llama_completion = API(parse_completion, completion_fields);
const mlx_api_t mlx_api_llama_infill = API(parse_infill, infill_fields);
