// Chooses a shard by an option or by the variables of a job scheduler.
#include "cli/batch_shard.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SHARDS 100000

static bool read_number(const char *text, uint64_t *out) {
  char *end;
  errno = 0;
  if (!text || !isdigit((unsigned char)*text)) return false;
  *out = strtoull(text, &end, 10);
  return !*end && !errno && *out <= UINT32_MAX;
}

static mlx_status_t need_number(const char *name, uint64_t *out) {
  const char *text = getenv(name);
  if (read_number(text, out)) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "the environment variable %s is %s%s%s, not a whole number",
                                   name, text ? "'" : "", text ? text : "not set", text ? "'" : ""),
                         "give the shard with --shard INDEX/COUNT; --shard 0/1 does everything");
}

static mlx_status_t check(const mlx_shard_t *shard) {
  if (shard->count && shard->count <= MAX_SHARDS && shard->index < shard->count) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "%s: there is no shard %llu of %llu", shard->source,
                                   (unsigned long long)shard->index, (unsigned long long)shard->count),
                         "the index counts from 0 and is below the count, at most %d", MAX_SHARDS);
}

static mlx_status_t parse(const char *text, mlx_shard_t *out) {
  const char *slash = strchr(text, '/');
  char index[24] = {0};
  if (slash && (size_t)(slash - text) < sizeof index) memcpy(index, text, (size_t)(slash - text));
  out->source = "--shard";
  if (!slash || !read_number(index, &out->index) || !read_number(slash + 1, &out->count))
    return mlx_error(MLX_USAGE, "option --shard expects INDEX/COUNT, as 0/4 to 3/4, not '%s'", text);
  return check(out);
}

// The processes of one task: of mpirun, or of srun. A script that sbatch started has a SLURM_PROCID too, but
// only a step of srun has a number of tasks.
static mlx_status_t read_processes(mlx_shard_t *out) {
  *out = (mlx_shard_t){.count = 1};
  if (getenv("OMPI_COMM_WORLD_RANK")) {
    out->source = "OMPI_COMM_WORLD_RANK";
    MLX_TRY(need_number("OMPI_COMM_WORLD_RANK", &out->index));
    MLX_TRY(need_number("OMPI_COMM_WORLD_SIZE", &out->count));
  } else if (getenv("SLURM_PROCID") && getenv("SLURM_STEP_NUM_TASKS")) {
    out->source = "SLURM_PROCID";
    MLX_TRY(need_number("SLURM_PROCID", &out->index));
    MLX_TRY(need_number("SLURM_STEP_NUM_TASKS", &out->count));
  }
  return out->source ? check(out) : NULL;
}

// The indices of an array must be a range, with a step or without: the place of an index in a list such as
// 1,5,6 is not in the environment.
static mlx_status_t read_array(mlx_shard_t *out) {
  uint64_t id, first, last, step = 1;
  MLX_TRY(need_number("SLURM_ARRAY_TASK_ID", &id));
  MLX_TRY(need_number("SLURM_ARRAY_TASK_MIN", &first));
  MLX_TRY(need_number("SLURM_ARRAY_TASK_MAX", &last));
  MLX_TRY(need_number("SLURM_ARRAY_TASK_COUNT", &out->count));
  if (getenv("SLURM_ARRAY_TASK_STEP")) MLX_TRY(need_number("SLURM_ARRAY_TASK_STEP", &step));
  out->source = "SLURM_ARRAY_TASK_ID";
  if (!step || id < first || last < first || (last - first) / step + 1 != out->count || (id - first) % step)
    return mlx_status_hint(mlx_error(MLX_USAGE, "the indices of the Slurm array are not a range"),
                           "use --array=0-N, or give the shard with --shard INDEX/COUNT");
  out->index = (id - first) / step;
  return check(out);
}

mlx_status_t mlx_shard_choose(const char *text, mlx_shard_t *out) {
  mlx_shard_t processes, array = {.count = 1};
  *out = (mlx_shard_t){.count = 1};
  if (text) return parse(text, out);
  MLX_TRY(read_processes(&processes));
  if (getenv("SLURM_ARRAY_TASK_ID")) MLX_TRY(read_array(&array));
  out->count = array.count * processes.count;
  out->index = array.index * processes.count + processes.index;
  out->source = array.source ? array.source : processes.source;
  return out->source ? check(out) : NULL;
}

void mlx_shard_range(const mlx_shard_t *shard, uint64_t total, uint64_t *out_first, uint64_t *out_end) {
  const uint64_t each = total / shard->count, more = total % shard->count;  // the first |more| have one more
  const uint64_t index = shard->index;
  *out_first = index * each + (index < more ? index : more);
  *out_end = *out_first + each + (index < more);
}
