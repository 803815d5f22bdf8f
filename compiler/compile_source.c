// The model's files during a compilation: opening them, and detecting that they changed meanwhile.
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/compile_job.h"

static mlx_status_t stamp_source(const mlx_source_t *source, char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  const char *path;
  for (size_t i = 0; (path = mlx_source_file(source, i)); ++i) {
    mlx_file_stamp_t stamp = {0};
    MLX_TRY(mlx_file_stamp(path, &stamp));
    stamp.changed_ns = 0;  // a rename or a change of permissions does not change the content
    mlx_digest_field(&digest, path, &stamp, sizeof stamp);
  }
  mlx_digest_end(&digest, out_hex);
  return NULL;
}

// A multimodal directory runs without its vision encoder.
static void note_text_model(const mlx_compile_job_t *job) {
  const mlx_source_t *source = job->model->source;
  const char *name;
  if (!mlx_source_multimodal(source)) return;
  mlx_report_note(job->options->report, "images are not supported: running the text model of %s",
                  mlx_file_name(mlx_source_path(source)).text);
  for (size_t i = 0; job->options->verbose && (name = mlx_source_skipped(source, i)); ++i)
    mlx_report_note(job->options->report, "skipped tensor: %s", name);
}

// Takes the stamp before the model is opened, so that any later change is detected.
mlx_status_t mlx_job_open_model(mlx_compile_job_t *job, const char *path) {
  mlx_source_t *source;
  job->faults = mlx_fault_count();
  MLX_TRY(mlx_source_open(path, &source));
  mlx_status_t status = stamp_source(source, job->source_stamp);
  mlx_source_close(source);
  if (!status) status = mlx_model_open(path, &job->model);
  if (!status && job->options->weights == MLX_WEIGHTS_FLOAT) mlx_model_unsort_columns(job->model);
  if (!status) note_text_model(job);
  return status;
}

static mlx_status_t changed(const char *path) {
  return mlx_status_hint(mlx_error(MLX_IO, "'%s' changed while it was being read", path),
                         "run the command again when the file is complete");
}

mlx_status_t mlx_source_check_stamp(const mlx_source_t *source, const char *stamp) {
  char now[MLX_DIGEST_HEX];
  MLX_TRY(stamp_source(source, now));
  return strcmp(now, stamp) ? changed(mlx_source_path(source)) : NULL;
}

mlx_status_t mlx_job_check_source(const mlx_compile_job_t *job) {
  MLX_TRY(mlx_source_check_stamp(job->model->source, job->source_stamp));
  if (job->faults == mlx_fault_count()) return NULL;  // else pages of the source may have been read as zeros
  return mlx_status_hint(
      mlx_error(MLX_IO, "'%s' cannot be read: its disk has an error", mlx_source_path(job->model->source)),
      "fetch the file again");
}

mlx_status_t mlx_compile_chat(const char *model_path, char **out_json, size_t *out_length) {
  mlx_source_t *source;
  *out_json = NULL;
  MLX_TRY(mlx_source_open(model_path, &source));
  mlx_status_t status = mlx_source_chat_json(source, out_json, out_length);
  mlx_source_close(source);
  return status;
}

// A digest of the tokenizer's bytes. Without one the tokenizer is only not cached, so errors are ignored.
static void find_key(const mlx_source_t *source, mlx_cache_t *cache, mlx_model_tokenizer_t *out) {
  char hex[MLX_DIGEST_HEX], *path = NULL;
  uint64_t size = 0;
  const bool is_gguf = mlx_source_is_gguf(source);
  mlx_status_t status = mlx_source_tokenizer_bytes(source, &path, &size);
  if (!status) status = mlx_file_stamp(path, &out->stamp);
  if (!status)
    status = is_gguf ? mlx_cache_tree_digest_part(cache, path, 0, size, NULL, hex)
                     : mlx_cache_digest_file(cache, path, NULL, hex);
  if (!status) {  // a tokenizer.json has the key that a bundle's manifest gives it
    snprintf(out->key, sizeof out->key, "%s%s", is_gguf ? "gguf " : "", hex);
    out->hashed = path;
    path = NULL;
  }
  mlx_status_free(status);
  mlx_free(path);
}

mlx_status_t mlx_job_find_tokenizer(mlx_source_t *source, mlx_cache_t *cache, mlx_model_tokenizer_t *out) {
  const char *path = mlx_source_path(source);
  *out = (mlx_model_tokenizer_t){.model = mlx_file_name(path), .source = source};
  if (cache) find_key(source, cache, out);
  return mlx_source_is_gguf(source) ? mlx_copy_text(path, strlen(path), &out->name)
                                    : mlx_join_path(path, MLX_BUNDLE_TOKENIZER, &out->name);
}

mlx_status_t mlx_model_tokenizer_open(const char *model_path, mlx_cache_t *cache,
                                      mlx_model_tokenizer_t *out) {
  mlx_source_t *source;
  *out = (mlx_model_tokenizer_t){0};
  MLX_TRY(mlx_source_open(model_path, &source));
  mlx_status_t status = mlx_job_find_tokenizer(source, cache, out);
  out->owns_source = true;
  if (status) mlx_model_tokenizer_close(out);
  return status;
}

mlx_status_t mlx_model_tokenizer_read(const mlx_model_tokenizer_t *tokenizer, char **out_json,
                                      size_t *out_length) {
  mlx_file_stamp_t now;
  MLX_TRY(mlx_source_tokenizer_json(tokenizer->source, out_json, out_length));
  if (!tokenizer->hashed) return NULL;
  mlx_status_t status = mlx_file_stamp(tokenizer->hashed, &now);
  if (!status && !mlx_file_stamp_same_content(&tokenizer->stamp, &now)) status = changed(tokenizer->hashed);
  if (!status) return NULL;
  mlx_free(*out_json);
  *out_json = NULL;
  return status;
}

void mlx_model_tokenizer_close(mlx_model_tokenizer_t *tokenizer) {
  if (tokenizer->owns_source) mlx_source_close(tokenizer->source);
  mlx_free(tokenizer->name);
  mlx_free(tokenizer->hashed);
  *tokenizer = (mlx_model_tokenizer_t){0};
}
