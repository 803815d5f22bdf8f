// The size of a compiled model: reported before work begins, and refused if its device cannot hold it.
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "compiler/compile_job.h"
#include "compiler/launches.h"
#include "compiler/weights.h"

static mlx_status_t bytes_as(const mlx_compile_job_t *job, mlx_storage_t storage, uint64_t *out_bytes) {
  uint64_t *offsets;
  MLX_TRY(mlx_alloc(job->model->weight_count + 1, sizeof *offsets, &offsets));
  *out_bytes = mlx_weights_layout(job->model, storage, offsets);
  mlx_free(offsets);
  return NULL;
}

mlx_status_t mlx_job_weight_bytes(const mlx_compile_job_t *job, uint64_t *out_bytes) {
  return bytes_as(job, mlx_module_storage(&job->module), out_bytes);
}

// The memory of the values of the largest step, an estimate from its launches.
static mlx_status_t step_bytes(const mlx_compile_job_t *job, int64_t *out_bytes) {
  const mlx_module_options_t *o = &job->module;
  mlx_launches_t launches;
  *out_bytes = 0;
  MLX_TRY(mlx_launches_make(job->model, job->graph, o, o->steps[o->step_count - 1], NULL, &launches));
  mlx_status_t status = mlx_launches_bytes(&launches, o, out_bytes);
  mlx_launches_clear(&launches);
  return status;
}

// Memory of the device that will run the module; 0: unknown, because it is another machine.
static uint64_t device_memory(const mlx_compile_job_t *job) {
  const uint64_t host = job->options->host_memory;
  if (job->target.gpu) return job->options->gpu_memory;
  if (strcmp(job->target.name, "cpu:host")) return 0;
  return host ? host : mlx_physical_memory();
}

typedef struct note {
  char text[128];
} note_t;

// Says how much of the KV cache of a token, which is |position| bytes, is kept only in a window.
static note_t windowed_text(const mlx_compile_job_t *job, size_t position) {
  const mlx_graph_windows_t w = mlx_graph_windows(job->graph);
  const int64_t all = mlx_graph_kv_numbers(job->graph);
  note_t note = {""};
  if (!job->module.window_pages || !all) return note;
  const uint64_t bytes = (uint64_t)((double)position * (double)w.kv_numbers / (double)all);
  snprintf(note.text, sizeof note.text, ", %s of it only in a window of %lld tokens",
           mlx_bytes_show(bytes).text, (long long)w.widest);
  return note;
}

// Says how large the recurrent state of a sequence is.
static note_t state_text(const mlx_compile_job_t *job) {
  const uint64_t bytes = 4 * (uint64_t)mlx_graph_state_numbers(job->graph);
  note_t note = {""};
  if (bytes)
    snprintf(note.text, sizeof note.text, ", and %s of recurrent state per sequence",
             mlx_bytes_show(bytes).text);
  return note;
}

// What the user can do if |weights| bytes do not fit. --quantize changes only matrices that have more bits in
// the file.
static mlx_status_t find_way_out(const mlx_compile_job_t *job, uint64_t weights, const char **out_hint) {
  const mlx_storage_t q4 = {.dtype = MLX_F32,
                            .as_stored = true,
                            .layout = job->target.gpu ? MLX_LAYOUT_TILES : MLX_LAYOUT_QUANTIZED_PANELS,
                            .quantize = MLX_QUANTIZE_Q4_1};
  uint64_t bytes;
  MLX_TRY(bytes_as(job, q4, &bytes));
  if (job->options->quantize)
    *out_hint = "use a smaller model";
  else if ((double)bytes < 0.9 * (double)weights)
    *out_hint = "use a smaller model, or fewer bits: --quantize q4";
  else
    *out_hint = "use a smaller model, or a file of this one with fewer bits per weight";
  return NULL;
}

// Says how large the values of a step are, if they are known.
static note_t step_text(const mlx_compile_job_t *job, int64_t bytes) {
  note_t note = {""};
  if (bytes)
    snprintf(note.text, sizeof note.text, "; values of a step of %lld tokens: %s",
             (long long)job->module.steps[job->module.step_count - 1].tokens,
             mlx_bytes_show((uint64_t)bytes).text);
  return note;
}

mlx_status_t mlx_job_check_size(const mlx_compile_job_t *job) {
  const mlx_file_name_t name = mlx_file_name(mlx_source_path(job->model->source));
  const char *dtype = mlx_job_storage_name(job);
  const uint64_t memory = device_memory(job);
  uint64_t weights;
  size_t position = 0;
  int64_t step = 0;
  MLX_TRY(mlx_job_weight_bytes(job, &weights));
  if (job->options->show_size) MLX_TRY(step_bytes(job, &step));
  if (!mlx_job_kv_bytes(job, 1, &position)) position = 0;
  if (job->options->show_size)
    mlx_report_note(mlx_job_notes(job),
                    "size for %s: %s of weights as %s, and %s of KV cache per token%s%s%s", job->target.name,
                    mlx_bytes_show(weights).text, dtype, mlx_bytes_show(position).text,
                    windowed_text(job, position).text, state_text(job).text, step_text(job, step).text);
  if (!memory || weights < memory) return NULL;
  const char *hint;
  MLX_TRY(find_way_out(job, weights, &hint));
  return mlx_status_hint(
      mlx_error(MLX_OUT_OF_MEMORY, "%s does not fit: its weights as %s need %s; this %s has %s of memory",
                name.text, dtype, mlx_bytes_show(weights).text, job->target.gpu ? "GPU" : "machine",
                mlx_bytes_show(memory).text),
      "%s", hint);
}
