// Reads the argument |batch|.
#include "batch.h"

_Static_assert(MLX_CPU_PAGE == MLX_KV_PAGE, "a page of the pool is a page of the contract");

// Reads where the pages of both kinds are: the window pages are first. A page table has |entries| entries.
static bool read_pools(call_t *c, int64_t entries) {
  const int32_t *header = c->batch;
  const int64_t pages = header[MLX_STEP_POOL_PAGES], windows = header[MLX_STEP_WINDOW_POOL_PAGES];
  const int64_t size = c->n->page_bytes, window_size = c->n->window_page_bytes,
                all = c->limits.kv * mlx_kv_unit(size, window_size, c->n->state_bytes);
  if (pages < 1 || (window_size && (windows < 1 || windows > all / window_size))) return false;
  const int64_t first = window_size ? windows * window_size : 0;
  if (pages > (all - first) / size) return false;
  c->pages[PAGES] = (pages_t){batch_array(c, MLX_STEP_AT_PAGES, entries), (int)pages, size, c->kv + first};
  c->pages[WINDOW_PAGES] = c->pages[PAGES];
  if (window_size)
    c->pages[WINDOW_PAGES] =
        (pages_t){batch_array(c, MLX_STEP_AT_WINDOW_PAGES, entries), (int)windows, window_size, c->kv};
  return c->pages[PAGES].table && c->pages[WINDOW_PAGES].table;
}

// Reads where the states are: after the pages.
static bool read_states(call_t *c, int64_t slots) {
  const int64_t count = c->batch[MLX_STEP_STATES], size = c->n->state_bytes,
                all = c->limits.kv * mlx_kv_unit(c->n->page_bytes, c->n->window_page_bytes, size);
  if (!size) return true;
  const pages_t *pages = &c->pages[PAGES];
  uint8_t *const first = pages->first + pages->count * pages->bytes;
  if (count < 1 || count > (all - (first - c->kv)) / size) return false;
  c->states = (pages_t){batch_array(c, MLX_STEP_AT_STATES, 2 * slots), (int)count, size, first};
  return c->states.table;
}

bool mlx_read_batch(call_t *c) {
  if (!in_batch(c, 0, MLX_STEP_HEADER_WORDS)) return false;
  const int32_t *header = c->batch;
  const int64_t slots = header[MLX_STEP_SLOT_COUNT], pages = header[MLX_STEP_SLOT_PAGES],
                width = header[MLX_STEP_HISTORY_WIDTH];
  if (slots < 1 || pages < 1 || pages > INT32_MAX / MLX_CPU_PAGE || width < 1) return false;
  if (slots > c->limits.history / width || !read_pools(c, slots * pages) || !read_states(c, slots))
    return false;
  c->slot_count = (int)slots;
  c->slot_pages = (int)pages;
  c->history_width = (int)width;
  const int64_t burst = header[MLX_STEP_BURST_COUNT],
                most = c->limits.results < MLX_BURST_TOKENS ? c->limits.results : MLX_BURST_TOKENS;
  if (c->is_burst) c->steps = (uint32_t)(burst < 1 ? 1 : burst < most ? burst : most);
  return most > 0;
}

// Entry |nth| of a slot's page table; page 0 for an invalid one.
INLINE int page_at(const call_t *c, const pages_t *p, int64_t slot, int nth) {
  const int page = p->table[slot * c->slot_pages + nth];
  return page < 0 || page >= p->count ? 0 : page;
}

// Tokens from |first| on that continue each other: one sequence, consecutive positions.
static int run_length(const int32_t *slots, const int32_t *positions, int first, int count) {
  int end = first + 1;
  while (end < count && slots[end] == slots[first] && positions[end] - positions[end - 1] == 1) ++end;
  return end - first;
}

// Chooses the row of each token: the tokens of long segments come first. Returns their number.
// control->separate becomes 1 if every segment has one token.
static int choose_rows(const call_t *c, const int32_t *slots, const int32_t *positions, int count) {
  int row = 0, in_long = 0, segments = 0;
  c->control->separate = 1;
  for (int pass = 0; pass < 2; ++pass) {
    for (int first = 0, length; first < count; first += length) {
      length = run_length(slots, positions, first, count);
      if (length > 1) c->control->separate = 0;
      if ((length >= MLX_CPU_MIN_LONG && !c->n->row_by_row) != (pass == 0)) continue;
      c->segment_at[segments++] = row;
      for (int i = 0; i < length; ++i, ++row) {
        c->row_of[first + i] = row;
        c->token_of[row] = first + i;
        c->end_of[row] = length - i;  // until place_token knows the position
      }
    }
    if (pass == 0) in_long = row;
  }
  c->control->segments = (uint32_t)segments;
  return in_long;
}

// Places token |i| of the batch. A token with a negative position is padding: its keys and values go to page
// 0.
static void place_token(const call_t *c, const int32_t *slots, const int32_t *positions, int i, int step) {
  const int row = c->row_of[i], position = positions[i] < 0 ? -1 : positions[i] + step;
  c->slot_of[row] = clamp_index(slots[i], c->slot_count);
  c->position_of[row] = clamp_index(position, position_count(c));
  c->end_of[row] = min_int(c->position_of[row] + c->end_of[row], position_count(c));
  const bool valid = position >= 0 && position < position_count(c);
  for (int kind = 0; kind < PAGE_KINDS; ++kind)
    c->page_of[kind][row] =
        valid ? page_at(c, &c->pages[kind], c->slot_of[row], c->position_of[row] / MLX_CPU_PAGE) : 0;
}

// Reads the tokens' IDs. IDs of the batch are stored in the history before IDs are read from it.
static void read_ids(const call_t *c, const int32_t *ids, const int32_t *positions, int count, int step) {
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < count; ++i) {
      const bool sampled = step || ids[i] == MLX_TOKEN_SAMPLED;
      if (sampled != (pass == 1)) continue;
      const int row = c->row_of[i];
      int32_t *stored = history_at(c, c->slot_of[row], c->position_of[row]);
      const int id = sampled ? *stored : ids[i];
      c->type_of[row] = c->n->types > 1 && id >= c->n->vocab;
      c->id_of[row] = clamp_index(c->type_of[row] ? (int64_t)id - c->n->vocab : id, c->n->vocab);
      if (!sampled && positions[i] >= 0) *stored = c->id_of[row];
    }
  }
}

// Number of wanted tokens, and their rows.
static int list_wanted(const call_t *c, int tokens) {
  int64_t count = c->batch[MLX_STEP_WANTED_COUNT];
  const int64_t limits[] = {c->is_burst ? 1 : MLX_CPU_MAX_WANTED, c->limits.logits, c->limits.hidden,
                            c->limits.results};
  for (int i = 0; i < 4; ++i) count = count < limits[i] ? count : limits[i];
  const int32_t *wanted = batch_array(c, MLX_STEP_AT_WANTED, count);
  if (!wanted || tokens < 1 || !batch_array(c, MLX_STEP_AT_SAMPLING, count * MLX_SAMPLING_WORDS)) return 0;
  for (int i = 0; i < count; ++i) c->wanted_of[i] = c->row_of[clamp_index(wanted[i], tokens)];
  return (int)count;
}

void mlx_run_list(const call_t *c, int step) {
  control_t *control = c->control;
  const int count = clamp_index(c->batch[MLX_STEP_TOKEN_COUNT], c->is_burst ? 2 : c->n->capacity + 1);
  const int32_t *ids = batch_array(c, MLX_STEP_AT_TOKENS, count),
                *slots = batch_array(c, MLX_STEP_AT_SLOTS, count),
                *positions = batch_array(c, MLX_STEP_AT_POSITIONS, count);
  control->tokens = control->wanted = control->in_long = control->stopped = control->segments = 0;
  for (uint32_t i = 0; c->is_burst && step == 0 && i < c->steps; ++i)
    c->results[(int64_t)i * MLX_RESULT_WORDS + MLX_RESULT_TOKEN] = -1;
  if (!ids || !slots || !positions) return;
  control->in_long = (uint32_t)choose_rows(c, slots, positions, count);
  for (int i = 0; i < count; ++i) place_token(c, slots, positions, i, step);
  read_ids(c, ids, positions, count, step);
  control->tokens = (uint32_t)count;
  control->wanted = (uint32_t)list_wanted(c, count);
}
