// The model's files during a compilation: opening them, and detecting that they changed meanwhile.
#include <string.h>

#include "artifact/bundle.h"
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
  MLX_TRY(mlx_source_open(path, &source));
  mlx_status_t status = stamp_source(source, job->source_stamp);
  mlx_source_close(source);
  if (!status) status = mlx_model_open(path, &job->model);
  if (!status && job->options->weights == MLX_WEIGHTS_FLOAT) mlx_model_unsort_columns(job->model);
  if (!status) note_text_model(job);
  return status;
}

mlx_status_t mlx_source_check_stamp(const mlx_source_t *source, const char *stamp) {
  char now[MLX_DIGEST_HEX];
  MLX_TRY(stamp_source(source, now));
  if (!strcmp(now, stamp)) return NULL;
  return mlx_status_hint(mlx_error(MLX_IO, "'%s' changed while it was being read", mlx_source_path(source)),
                         "run the command again when the file is complete");
}

mlx_status_t mlx_job_check_source(const mlx_compile_job_t *job) {
  return mlx_source_check_stamp(job->model->source, job->source_stamp);
}

mlx_status_t mlx_compile_chat(const char *model_path, char **out_json, size_t *out_length) {
  mlx_source_t *source;
  *out_json = NULL;
  MLX_TRY(mlx_source_open(model_path, &source));
  mlx_status_t status = mlx_source_chat_json(source, out_json, out_length);
  mlx_source_close(source);
  return status;
}

mlx_status_t mlx_job_name_tokenizer(const mlx_source_t *source, char **out_name) {
  const char *path = mlx_source_path(source);
  return mlx_source_is_gguf(source) ? mlx_copy_text(path, strlen(path), out_name)
                                    : mlx_join_path(path, MLX_BUNDLE_TOKENIZER, out_name);
}

mlx_status_t mlx_compile_tokenizer(const char *model_path, char **out_name, char **out_json,
                                   size_t *out_length) {
  mlx_source_t *source;
  *out_name = *out_json = NULL;
  MLX_TRY(mlx_source_open(model_path, &source));
  mlx_status_t status = mlx_job_name_tokenizer(source, out_name);
  if (!status) status = mlx_source_tokenizer_json(source, out_json, out_length);
  mlx_source_close(source);
  return status;
}
