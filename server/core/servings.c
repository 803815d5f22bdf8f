// The engines of a model, and which of them runs a request. See servings.h.
#include "server/core/servings.h"

#include <stdio.h>
#include <string.h>
#include <uv.h>

#include "base/memory.h"
#include "runtime/rooms.h"
#include "server/core/prefix_index.h"

#define SEQUENCE_COST 32   // tokens: what a sequence costs the others of its engine
#define LEAST_SPREAD 4     // sequences that an engine may have more than the one with the fewest
#define SPREAD_PART 8      // the same as a part of its slots
#define RETRY_SECONDS 5.0  // until an engine whose last step failed gets a request again
#define MOST_RETRY_SECONDS 320.0

typedef struct member {
  mlx_serving_t *serving;  // owned
  // Guarded by the mutex.
  mlx_prefix_index_t *prefixes;  // owned
  int64_t forgotten;             // mlx_serving_stats_t.forgotten, when |prefixes| was cleared
  int64_t placing;               // tasks for which it was chosen, and that it does not count yet
  int64_t placed;                // requests
} member_t;

struct mlx_servings {
  member_t members[MLX_MOST_ENGINES];
  size_t count;
  double stall_seconds;
  uv_mutex_t mutex;
};

// ----------------------------------------------------------------------------------------------------------
// Creating

mlx_status_t mlx_servings_create(double stall_seconds, mlx_servings_t **out_servings) {
  MLX_TRY(mlx_alloc(1, sizeof **out_servings, out_servings));
  (*out_servings)->stall_seconds = stall_seconds;
  uv_mutex_init(&(*out_servings)->mutex);
  return NULL;
}

static size_t hash_prompt(uint64_t before, const int32_t *ids, size_t count, uint64_t *out_hashes) {
  const size_t pages = count / MLX_PAGE_POSITIONS;
  for (size_t i = 0; i < pages; ++i)
    out_hashes[i] = before = mlx_page_hash(before, ids + i * MLX_PAGE_POSITIONS, MLX_PAGE_POSITIONS);
  return pages;
}

// The pages of prompt and answer. NULL if there is no memory: then the index does not learn of the answer.
static int32_t *join_tokens(const mlx_task_t *task, const int32_t *output, size_t count) {
  int32_t *ids;
  mlx_status_t status = mlx_alloc(task->count + count, sizeof *ids, &ids);
  mlx_status_free(status);
  if (status) return NULL;
  memcpy(ids, task->ids, task->count * sizeof *ids);
  if (count) memcpy(ids + task->count, output, count * sizeof *ids);
  return ids;
}

static void note_end(void *user, mlx_serving_t *serving, const mlx_task_t *task, const int32_t *output,
                     size_t output_count) {
  mlx_servings_t *m = user;
  const size_t total = task->count + output_count;
  uint64_t *hashes = NULL;
  int32_t *ids = join_tokens(task, output, output_count);
  mlx_status_t status = mlx_alloc(total / MLX_PAGE_POSITIONS, sizeof *hashes, &hashes);
  if (ids && !status) {
    const size_t pages = hash_prompt(0, ids, total, hashes);
    uv_mutex_lock(&m->mutex);
    mlx_prefix_index_add(m->members[mlx_serving_index(serving)].prefixes, hashes, pages);
    uv_mutex_unlock(&m->mutex);
  }
  mlx_status_free(status);
  mlx_free(hashes);
  mlx_free(ids);
}

// An encoder keeps no prefixes.
static size_t cached_pages(mlx_serving_t *serving) {
  const mlx_engine_t *engine = mlx_serving_engine(serving);
  const mlx_scheduler_stats_t s = mlx_serving_stats(serving).scheduler;
  if (engine && mlx_engine_info(engine).is_encoder) return 0;
  return (size_t)(s.pages_used + s.pages_cached + s.pages_free);
}

// A request may run on any engine, so all hold the same context.
static mlx_status_t check_context(const mlx_servings_t *m, const mlx_serving_t *serving) {
  if (!m->count || !mlx_serving_engine(serving)) return NULL;
  const int64_t first = mlx_engine_info(mlx_serving_engine(m->members[0].serving)).context,
                context = mlx_engine_info(mlx_serving_engine(serving)).context;
  if (context == first) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_OUT_OF_MEMORY,
                "engine %zu has memory for a context of %lld tokens, engine 0 for one of %lld", m->count,
                (long long)context, (long long)first),
      "use -c %lld, or free memory", (long long)(context < first ? context : first));
}

mlx_status_t mlx_servings_add(mlx_servings_t *m, mlx_serving_t *serving) {
  member_t *member = &m->members[m->count];
  mlx_status_t status = m->count < MLX_MOST_ENGINES
                            ? check_context(m, serving)
                            : mlx_error(MLX_USAGE, "a model has at most %d engines", MLX_MOST_ENGINES);
  if (!status) status = mlx_prefix_index_create(cached_pages(serving), &member->prefixes);
  if (status) {
    mlx_serving_free(serving);
    return status;
  }
  member->serving = serving;
  member->forgotten = mlx_serving_stats(serving).forgotten;
  mlx_serving_join(serving, m->count++, note_end, m);
  return NULL;
}

void mlx_servings_free(mlx_servings_t *m) {
  if (!m) return;
  for (size_t i = 0; i < m->count; ++i) mlx_serving_free(m->members[i].serving);
  for (size_t i = 0; i < m->count; ++i) mlx_prefix_index_free(m->members[i].prefixes);
  uv_mutex_destroy(&m->mutex);
  mlx_free(m);
}

size_t mlx_servings_count(const mlx_servings_t *m) { return m->count; }

mlx_serving_t *mlx_servings_at(const mlx_servings_t *m, size_t index) { return m->members[index].serving; }

uint64_t mlx_servings_bytes(const mlx_servings_t *m) {
  uint64_t sum = 0;
  for (size_t i = 0; i < m->count; ++i) {
    const mlx_engine_info_t info = mlx_engine_info(mlx_serving_engine(m->members[i].serving));
    sum += info.pool_bytes;
    if (!i || strcmp(info.device, "cpu")) sum += info.weight_bytes;
  }
  return sum;
}

bool mlx_servings_is_damaged(const mlx_servings_t *m) {
  for (size_t i = 0; i < m->count; ++i) {
    const mlx_engine_t *engine = mlx_serving_engine(m->members[i].serving);
    if (engine && mlx_engine_is_damaged(engine)) return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Placement

// The full pages of the prompts of a request.
typedef struct prompts {
  uint64_t *hashes;  // owned; of all prompts, one after the other
  size_t *pages;     // owned; [count]
  size_t count;
  int64_t tokens;
} prompts_t;

static mlx_status_t hash_prompts(const mlx_task_t *tasks, size_t count, prompts_t *out) {
  size_t pages = 0, at = 0;
  *out = (prompts_t){0};
  for (size_t i = 0; i < count; ++i) pages += tasks[i].after ? 0 : tasks[i].count / MLX_PAGE_POSITIONS;
  MLX_TRY(mlx_alloc(pages, sizeof *out->hashes, &out->hashes));
  mlx_status_t status = mlx_alloc(count, sizeof *out->pages, &out->pages);
  if (status) {
    mlx_free(out->hashes);
    return status;
  }
  for (size_t i = 0; i < count; ++i) {
    if (tasks[i].after) continue;  // another answer to the same prompt
    out->tokens += (int64_t)tasks[i].count;
    at += out->pages[out->count++] = hash_prompt(0, tasks[i].ids, tasks[i].count, out->hashes + at);
  }
  return NULL;
}

static void clear_prompts(prompts_t *prompts) {
  mlx_free(prompts->hashes);
  mlx_free(prompts->pages);
}

static int64_t missing_tokens(const member_t *member, const prompts_t *prompts) {
  int64_t missing = prompts->tokens;
  size_t at = 0;
  for (size_t i = 0; i < prompts->count; at += prompts->pages[i++])
    missing -= MLX_PAGE_POSITIONS *
               (int64_t)mlx_prefix_index_find(member->prefixes, prompts->hashes + at, prompts->pages[i]);
  return missing;
}

static bool is_stalled(const mlx_servings_t *m, const mlx_serving_stats_t *stats) {
  return m->stall_seconds > 0 && stats->stalled > m->stall_seconds;
}

bool mlx_servings_works(const mlx_servings_t *m, const mlx_serving_stats_t *stats) {
  return !stats->failures && !is_stalled(m, stats);
}

// Whether an engine whose last step failed gets a request again, to see whether it works.
static bool is_due(const mlx_serving_stats_t *stats) {
  double wait = RETRY_SECONDS;
  for (int64_t i = 1; i < stats->failures && wait < MOST_RETRY_SECONDS; ++i) wait *= 2;
  return !stats->tasks && stats->since_failure >= wait;
}

typedef struct candidate {
  bool is_possible, works;
  int64_t sequences, spread;
} candidate_t;

static candidate_t examine_locked(mlx_servings_t *m, size_t index) {
  member_t *member = &m->members[index];
  const mlx_serving_stats_t stats = mlx_serving_stats(member->serving);
  const int64_t part = stats.parallel / SPREAD_PART;
  if (stats.forgotten != member->forgotten) mlx_prefix_index_clear(member->prefixes);
  member->forgotten = stats.forgotten;
  return (candidate_t){.is_possible = true,
                       .works = mlx_servings_works(m, &stats) ||
                                (is_due(&stats) && !member->placing && !is_stalled(m, &stats)),
                       .sequences = stats.tasks + member->placing,
                       .spread = part > LEAST_SPREAD ? part : LEAST_SPREAD};
}

// The engine with the smallest cost, of those that |candidates| has: those that work if any does. Of equal
// ones, that with the fewest requests so far.
static size_t cheapest_locked(const mlx_servings_t *m, const candidate_t *candidates,
                              const prompts_t *prompts) {
  bool any_works = false;
  int64_t least = INT64_MAX, best_cost = INT64_MAX;
  size_t best = m->count;
  for (size_t i = 0; i < m->count; ++i) any_works |= candidates[i].is_possible && candidates[i].works;
  for (size_t i = 0; i < m->count; ++i) {
    if (!candidates[i].is_possible || candidates[i].works != any_works) continue;
    if (candidates[i].sequences < least) least = candidates[i].sequences;
  }
  for (size_t i = 0; i < m->count; ++i) {
    const candidate_t *c = &candidates[i];
    if (!c->is_possible || c->works != any_works || c->sequences > least + c->spread) continue;
    const int64_t cost = missing_tokens(&m->members[i], prompts) + SEQUENCE_COST * c->sequences;
    if (cost > best_cost || (cost == best_cost && m->members[i].placed >= m->members[best].placed)) continue;
    best_cost = cost;
    best = i;
  }
  return best;
}

// Chooses an engine that was not |tried|, and counts the tasks for it. m->count: all were tried.
static size_t choose(mlx_servings_t *m, const prompts_t *prompts, size_t tasks, const bool *tried) {
  candidate_t candidates[MLX_MOST_ENGINES] = {0};
  uv_mutex_lock(&m->mutex);
  for (size_t i = 0; i < m->count; ++i) {
    if (!tried[i]) candidates[i] = examine_locked(m, i);
  }
  const size_t chosen = cheapest_locked(m, candidates, prompts);
  if (chosen < m->count) m->members[chosen].placing += (int64_t)tasks;
  uv_mutex_unlock(&m->mutex);
  return chosen;
}

// The engine took the tasks, or not. It is likely to have their pages before a later request needs them.
static void note_placed(mlx_servings_t *m, size_t index, const prompts_t *prompts, size_t tasks, bool taken) {
  member_t *member = &m->members[index];
  size_t at = 0;
  uv_mutex_lock(&m->mutex);
  member->placing -= (int64_t)tasks;
  member->placed += taken;
  for (size_t i = 0; taken && i < prompts->count; at += prompts->pages[i++])
    mlx_prefix_index_add(member->prefixes, prompts->hashes + at, prompts->pages[i]);
  uv_mutex_unlock(&m->mutex);
}

// A grammar needs tables of the engine that runs it.
static mlx_status_t submit_to(mlx_serving_t *serving, mlx_task_t *tasks, size_t count, bool *out_full) {
  *out_full = false;
  for (size_t i = 0; i < count; ++i) {
    if (!tasks[i].options->grammar) continue;
    MLX_TRY(mlx_serving_prepare_grammars(serving));
    break;
  }
  return mlx_serving_submit(serving, tasks, count, out_full);
}

static mlx_status_t place(mlx_servings_t *m, const prompts_t *prompts, mlx_task_t *tasks, size_t count,
                          bool *out_full) {
  bool tried[MLX_MOST_ENGINES] = {0}, full = false;
  mlx_status_t status = NULL;
  *out_full = false;
  for (;;) {
    const size_t chosen = choose(m, prompts, count, tried);
    if (chosen == m->count) break;
    tried[chosen] = true;
    bool is_full;
    mlx_status_t refused = submit_to(m->members[chosen].serving, tasks, count, &is_full);
    note_placed(m, chosen, prompts, count, !refused && !is_full);
    if (!refused && !is_full) {
      mlx_status_free(status);
      return NULL;
    }
    full |= !refused;
    status = mlx_status_join(status, refused);
  }
  *out_full = full;
  if (!full) return status;
  mlx_status_free(status);
  return NULL;
}

mlx_status_t mlx_servings_submit(mlx_servings_t *m, mlx_task_t *tasks, size_t count, bool *out_full) {
  prompts_t prompts;
  if (m->count == 1) return submit_to(m->members[0].serving, tasks, count, out_full);
  MLX_TRY(hash_prompts(tasks, count, &prompts));
  mlx_status_t status = place(m, &prompts, tasks, count, out_full);
  clear_prompts(&prompts);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// All engines

void mlx_servings_pause(mlx_servings_t *m) {
  for (size_t i = 0; i < m->count; ++i) mlx_serving_pause(m->members[i].serving);
}

void mlx_servings_resume(mlx_servings_t *m) {
  for (size_t i = 0; i < m->count; ++i) mlx_serving_resume(m->members[i].serving);
}

void mlx_servings_trim(mlx_servings_t *m) {
  for (size_t i = 0; i < m->count; ++i) mlx_serving_trim(m->members[i].serving);
}

void mlx_servings_add_work(const mlx_servings_t *m, mlx_scheduler_stats_t *to) {
  for (size_t i = 0; i < m->count; ++i) {
    const mlx_scheduler_stats_t from = mlx_serving_stats(m->members[i].serving).scheduler;
    to->steps += from.steps;
    to->step_sequences += from.step_sequences;
    to->prompt_tokens += from.prompt_tokens;
    to->output_tokens += from.output_tokens;
    to->prefix_queries += from.prefix_queries;
    to->prefix_hits += from.prefix_hits;
    to->preemptions += from.preemptions;
    to->near_ties += from.near_ties;
  }
}

void mlx_servings_problem(const mlx_servings_t *m, const char *name, char *out, size_t size) {
  out[0] = 0;
  for (size_t i = 0; i < m->count; ++i) {
    const mlx_serving_stats_t stats = mlx_serving_stats(m->members[i].serving);
    if (stats.is_failing) {
      snprintf(out, size, "the last %lld steps of %s failed: %s", (long long)stats.failures, name,
               stats.reason);
    } else if (is_stalled(m, &stats)) {
      snprintf(out, size, "%s has %lld requests, but completed no step for %.0f s", name,
               (long long)stats.tasks, stats.stalled);
    } else {
      out[0] = 0;
      return;
    }
  }
}
