// Embeddings of many texts on the scheduler of an engine.
#include <string.h>

#include "base/memory.h"
#include "runtime/engine_internal.h"
#include "runtime/rooms.h"
#include "runtime/scheduler_internal.h"

#define MOST_WAITING 256  // requests that exist at a time: several steps of short texts

typedef struct job {
  mlx_scheduler_t *scheduler;
  const int32_t *const *ids;
  const size_t *counts;
  size_t count, size;
  float *out;
  bool normalize;
  mlx_request_t **requests;  // [count] owned
  size_t submitted, taken;   // texts before them are submitted; have their embedding
} job_t;

// Takes the result of the next text, in their order.
static mlx_status_t take(job_t *job) {
  mlx_request_t *r = job->requests[job->taken];
  float *out = job->out + job->taken * job->size;
  const float *embedding = mlx_request_generation(r)->embedding;
  const size_t whole = (size_t)job->scheduler->stepper->hidden;
  MLX_TRY(mlx_request_take_status(r));
  memcpy(out, embedding, job->size * sizeof *out);
  if (job->size < whole)
    MLX_TRY(mlx_embedding_finish(out, job->size, job->counts[job->taken], job->normalize));
  mlx_request_free(r);
  job->requests[job->taken++] = NULL;
  return NULL;
}

static mlx_status_t embed_all(job_t *job, bool (*on_done)(void *user, size_t done), void *user) {
  mlx_generate_options_t options;
  bool idle;
  mlx_generate_options_initialize(&options);
  options.embed = true;
  while (job->taken < job->count) {
    for (; job->submitted < job->count && job->submitted < job->taken + MOST_WAITING; ++job->submitted)
      MLX_TRY(mlx_scheduler_submit(job->scheduler, job->ids[job->submitted], job->counts[job->submitted],
                                   &options, &job->requests[job->submitted]));
    MLX_TRY(mlx_scheduler_step(job->scheduler, &idle));
    while (job->taken < job->submitted && mlx_request_is_done(job->requests[job->taken])) MLX_TRY(take(job));
    if (on_done && !on_done(user, job->taken)) return mlx_error(MLX_CANCELLED, "interrupted");
  }
  return NULL;
}

mlx_status_t mlx_engine_compute(mlx_engine_t *engine, const int32_t *const *ids, const size_t *counts,
                                size_t count, float *out, size_t size,
                                bool (*on_done)(void *user, size_t done), void *user) {
  const mlx_engine_info_t info = mlx_engine_info(engine);
  job_t job = {.scheduler = engine->scheduler,
               .ids = ids,
               .counts = counts,
               .count = count,
               .size = size,
               .out = out,
               .normalize = info.is_normalized};
  if (!size || size > (size_t)info.hidden)
    return mlx_error(MLX_USAGE, "an embedding of this model has %lld numbers; the caller requested %zu",
                     (long long)info.hidden, size);
  MLX_TRY(mlx_alloc(count, sizeof *job.requests, &job.requests));
  mlx_status_t status = embed_all(&job, on_done, user);
  for (size_t i = job.taken; i < job.submitted; ++i) mlx_request_free(job.requests[i]);
  mlx_free(job.requests);
  return status;
}

mlx_status_t mlx_engine_embed(mlx_engine_t *engine, const int32_t *const *ids, const size_t *counts,
                              size_t count, float *out_embeddings, size_t size,
                              bool (*on_done)(void *user, size_t done), void *user) {
  if (engine->manifest.embedding.labels) return mlx_classifier_embeds_nothing();
  return mlx_engine_compute(engine, ids, counts, count, out_embeddings, size, on_done, user);
}

mlx_status_t mlx_engine_tokenize_cut(const mlx_engine_t *engine, const char *text, size_t length,
                                     int32_t **out_ids, size_t *out_count) {
  return mlx_engine_tokenize_first(engine, text, length, false, (size_t)engine->sizing.context, out_ids,
                                   out_count);
}

mlx_status_t mlx_engine_tokenize_first(const mlx_engine_t *engine, const char *text, size_t length,
                                       bool plain, size_t limit, int32_t **out_ids, size_t *out_count) {
  mlx_text_t marked = {0};
  if (!plain) return mlx_tokenizer_encode_cut(engine->tokenizer, text, length, limit, out_ids, out_count);
  mlx_status_t status = mlx_tokenizer_mark(engine->tokenizer, text, length, &marked);
  if (!status)
    status =
        mlx_tokenizer_encode_cut(engine->tokenizer, marked.data, marked.length, limit, out_ids, out_count);
  mlx_text_clear(&marked);
  return status;
}
