// The members of llama.cpp's results.
#include "server/api/llama_answer.h"

#include <math.h>
#include <string.h>

// |keys|: of the number of tokens, its milliseconds, milliseconds per token and tokens per second. The time
// is that of |timed| of the tokens.
static void put_rate(mlx_json_writer_t *json, const char *const keys[4], int64_t tokens, int64_t timed,
                     double seconds) {
  const double milliseconds = seconds * 1000;
  mlx_json_put_int(json, keys[0], tokens);
  mlx_json_put_number(json, keys[1], "%.12g", milliseconds);
  mlx_json_put_number(json, keys[2], "%.12g", timed > 0 ? milliseconds / (double)timed : 0);
  mlx_json_put_number(json, keys[3], "%.12g", timed > 0 && seconds > 0 ? (double)timed / seconds : 0);
}

void mlx_llama_put_timings(mlx_json_writer_t *json, const mlx_answer_t *a) {
  static const char *const prompt[] = {"prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"};
  static const char *const predicted[] = {"predicted_n", "predicted_ms", "predicted_per_token_ms",
                                          "predicted_per_second"};
  mlx_json_begin_object(json, "timings", MLX_JSON_COMPACT);
  mlx_json_put_int(json, "cache_n", a->cached_tokens);
  const int64_t read = a->prompt_tokens - a->cached_tokens;
  put_rate(json, prompt, read, read, a->prompt_seconds);
  put_rate(json, predicted, a->output_tokens, a->output_tokens - 1,
           a->decode_seconds);  // from the first token
  mlx_json_end(json);
}

// llama.cpp writes the bias of a forbidden token as null.
static void put_biases(mlx_json_writer_t *json, const mlx_api_call_t *call) {
  mlx_json_begin_list(json, "logit_bias", MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < call->sampling.bias_count; ++i) {
    const mlx_logit_bias_t *bias = &call->sampling.biases[i];
    mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_int(json, "token", bias->id);
    if (isfinite(bias->bias))
      mlx_json_put_number(json, "bias", "%.9g", bias->bias);
    else
      mlx_json_put_null(json, "bias");
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

void mlx_llama_put_sampling(mlx_json_writer_t *json, const mlx_sampling_t *s) {
  const struct {
    const char *name;
    double value;
  } numbers[] = {{"temperature", s->temperature},
                 {"top_p", s->top_p},
                 {"min_p", s->min_p},
                 {"top_n_sigma", s->top_n_sigma},
                 {"xtc_probability", s->xtc_probability},
                 {"xtc_threshold", s->xtc_threshold},
                 {"typical_p", s->typical_p},
                 {"repeat_penalty", s->repeat_penalty},
                 {"presence_penalty", s->presence_penalty},
                 {"frequency_penalty", s->frequency_penalty},
                 {"dry_multiplier", s->dry_multiplier},
                 {"dry_base", s->dry_base},
                 {"mirostat_tau", s->mirostat_tau},
                 {"mirostat_eta", s->mirostat_eta},
                 {"adaptive_target", -1},  // llama.cpp's values of a sampler that is off
                 {"adaptive_decay", 0.9}};
  mlx_json_put_uint(json, "seed", s->seed);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    mlx_json_put_number(json, numbers[i].name, "%.9g", numbers[i].value);
  mlx_json_put_int(json, "top_k", s->top_k);
  mlx_json_put_int(json, "repeat_last_n", s->repeat_last_n);
  mlx_json_put_int(json, "dry_allowed_length", s->dry_allowed_length);
  mlx_json_put_int(json, "dry_penalty_last_n", s->dry_last_n);
  mlx_json_put_int(json, "mirostat", s->mirostat);
}

static void put_settings(mlx_json_writer_t *json, const mlx_api_call_t *call) {
  mlx_json_begin_object(json, "generation_settings", MLX_JSON_ONE_LINE);
  mlx_llama_put_sampling(json, &call->sampling);
  mlx_json_put_int(json, "n_predict", call->max_tokens);
  mlx_json_put_int(json, "max_tokens", call->max_tokens);
  mlx_json_put_int(json, "n_probs", call->logprobs < 0 ? 0 : call->logprobs);
  mlx_json_put_bool(json, "post_sampling_probs", call->sampled_logprobs);
  mlx_json_put_bool(json, "ignore_eos", call->ignore_eos);
  mlx_json_put_bool(json, "stream", call->stream);
  mlx_json_begin_list(json, "stop", MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < call->stop_count; ++i) mlx_json_put_text(json, NULL, call->stops[i]);
  mlx_json_end(json);
  put_biases(json, call);
  mlx_json_end(json);
}

static const char *stop_type(const mlx_answer_choice_t *choice) {
  if (choice->finish != MLX_FINISH_STOP) return "limit";
  return choice->stop ? "word" : "eos";
}

bool mlx_llama_has_new_line(const char *text, size_t length) { return length && memchr(text, '\n', length); }

void mlx_llama_put_members(mlx_json_writer_t *json, const mlx_llama_result_t *r) {
  const mlx_api_call_t *call = r->call;
  const mlx_api_prompt_t none = {0};  // of a chat that is not rendered
  const mlx_api_prompt_t *prompt = call->prompt_count ? &call->prompts[r->index / (size_t)call->n] : &none;
  const mlx_text_t *text = &r->choice->text;
  mlx_json_put_uint(json, "index", r->index);
  mlx_json_put_bytes(json, "content", text->data ? text->data : "", text->length);
  mlx_json_put_ints(json, "tokens", r->choice->ids, r->has_tokens ? r->choice->id_count : 0);
  mlx_json_put_int(json, "id_slot", 0);
  mlx_json_put_bool(json, "stop", true);
  mlx_json_put_text(json, "model", r->answer->model);
  mlx_json_put_uint(json, "tokens_predicted", r->choice->id_count);
  mlx_json_put_uint(json, "tokens_evaluated", prompt->id_count);
  put_settings(json, call);
  mlx_json_put_bytes(json, "prompt", prompt->text ? prompt->text : "", prompt->text ? prompt->length : 0);
  mlx_json_put_bool(json, "has_new_line", r->has_new_line);
  mlx_json_put_bool(json, "truncated", r->choice->finish == MLX_FINISH_CONTEXT);
  mlx_json_put_text(json, "stop_type", stop_type(r->choice));
  mlx_json_put_text(json, "stopping_word", r->choice->stop ? r->choice->stop : "");
  mlx_json_put_int(json, "tokens_cached", r->answer->cached_tokens);
  mlx_llama_put_timings(json, r->answer);
}

void mlx_llama_put_verbose(mlx_json_writer_t *json, const mlx_llama_result_t *result) {
  if (!result->call->verbose) return;
  mlx_json_begin_object(json, "__verbose", MLX_JSON_ONE_LINE);
  mlx_llama_put_members(json, result);
  mlx_json_end(json);
}

void mlx_llama_put_progress(mlx_json_writer_t *json, const mlx_api_progress_t *progress) {
  mlx_json_begin_object(json, "prompt_progress", MLX_JSON_COMPACT);
  mlx_json_put_int(json, "total", progress->total);
  mlx_json_put_int(json, "cache", progress->cached);
  mlx_json_put_int(json, "processed", progress->processed);
  mlx_json_put_int(json, "time_ms", (int64_t)(progress->seconds * 1000));
  mlx_json_end(json);
}

void mlx_llama_write_error(const mlx_api_error_t *error, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_begin_object(&json, "error", MLX_JSON_COMPACT);
  mlx_json_put_int(&json, "code", error->http_status);
  mlx_json_put_text(&json, "message", error->message);
  mlx_json_put_text(&json, "type", error->type);
  if (error->param) mlx_json_put_text(&json, "param", error->param);
  if (error->context) {
    mlx_json_put_int(&json, "n_prompt_tokens", error->prompt_tokens);
    mlx_json_put_int(&json, "n_ctx", error->context);
  }
  mlx_json_end(&json);
  mlx_json_end(&json);
}
