// llama-server's names for what the server counts. See llama_metrics.h.
#include "server/core/llama_metrics.h"

static double rate(double count, double per) { return per > 0 ? count / per : 0; }

void mlx_llama_metrics_write(mlx_models_t *models, mlx_metrics_t *metrics, mlx_text_t *out) {
  const mlx_scheduler_stats_t all = mlx_models_totals(models);
  const mlx_metrics_totals_t done = mlx_metrics_totals(metrics);
  const struct {
    const char *name, *type, *help;
    double value;
  } rows[] = {
      {"llamacpp:prompt_tokens_total", "counter", "Prompt tokens that were computed.",
       (double)all.prompt_tokens},
      {"llamacpp:prompt_tokens_cached_total", "counter", "Prompt tokens whose pages were shared.",
       (double)all.prefix_hits},
      {"llamacpp:prompt_seconds_total", "counter", "Time of prompts.", done.prompt_seconds},
      {"llamacpp:tokens_predicted_total", "counter", "Tokens that were generated.",
       (double)all.output_tokens},
      {"llamacpp:tokens_predicted_seconds_total", "counter", "Time of tokens after the first of a request.",
       done.later_seconds},
      {"llamacpp:n_decode_total", "counter", "Steps.", (double)all.steps},
      {"llamacpp:n_tokens_max", "counter", "Tokens of the longest sequence.", (double)done.longest},
      {"llamacpp:prompt_tokens_seconds", "gauge", "Average prompt tokens per second of a request.",
       rate((double)done.prompt_tokens, done.prompt_seconds)},
      {"llamacpp:predicted_tokens_seconds", "gauge", "Average generated tokens per second of a request.",
       rate((double)done.later_tokens, done.later_seconds)},
      {"llamacpp:requests_processing", "gauge", "Sequences that run.", (double)all.running},
      {"llamacpp:requests_deferred", "gauge", "Sequences that wait.", (double)all.waiting},
      {"llamacpp:n_busy_slots_per_decode", "gauge", "Average sequences of a step.",
       rate((double)all.step_sequences, (double)all.steps)},
      // There are no draft models.
      {"llamacpp:spec_decode_num_draft_tokens_total", "counter", "Draft tokens.", 0},
      {"llamacpp:spec_decode_num_accepted_tokens_total", "counter", "Draft tokens that were accepted.", 0},
      {"llamacpp:spec_decode_num_drafts_total", "counter", "Drafts.", 0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
    mlx_metrics_put(out, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
}
