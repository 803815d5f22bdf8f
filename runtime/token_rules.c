// Masks of tokens.
#include "runtime/token_rules.h"

#include <string.h>

#include "base/memory.h"

static void set_bit(uint64_t *mask, int32_t id) { mask[id / 64] |= (uint64_t)1 << id % 64; }

static mlx_status_t make_mask(const mlx_token_rules_t *rules, const char *name, const int32_t *ids,
                              size_t count, int64_t vocab, uint64_t **inout_mask) {
  if (!*inout_mask) MLX_TRY(mlx_alloc(rules->words, sizeof **inout_mask, inout_mask));
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= vocab)
      return mlx_error(MLX_USAGE, "%s: token id %d is not in the vocabulary of %lld", name, ids[i],
                       (long long)vocab);
    set_bit(*inout_mask, ids[i]);
  }
  return NULL;
}

static mlx_status_t copy_banned(const mlx_generate_options_t *o, int64_t vocab, mlx_token_rules_t *out) {
  size_t total = 0, at = 0;
  for (size_t i = 0; i < o->banned_count; ++i) {
    total += o->banned[i].count;
    if (o->banned[i].count > out->longest) out->longest = o->banned[i].count;
  }
  if (!total) return NULL;
  MLX_TRY(mlx_alloc(total, sizeof *out->banned_ids, &out->banned_ids));
  MLX_TRY(mlx_alloc(o->banned_count, sizeof *out->banned, &out->banned));
  MLX_TRY(mlx_alloc(out->longest, sizeof *out->tail, &out->tail));
  for (size_t i = 0; i < o->banned_count; ++i) {
    const mlx_token_list_t *list = &o->banned[i];
    if (!list->count) continue;
    for (size_t k = 0; k < list->count; ++k) {
      if (list->ids[k] < 0 || list->ids[k] >= vocab)
        return mlx_error(MLX_USAGE, "banned: token id %d is not in the vocabulary of %lld", list->ids[k],
                         (long long)vocab);
      out->banned_ids[at + k] = list->ids[k];
    }
    out->banned[out->banned_count++] = (mlx_token_list_t){&out->banned_ids[at], list->count};
    at += list->count;
  }
  return NULL;
}

// End-of-text tokens whose ids are above the logits cannot be generated at all.
static mlx_status_t fill_ends(const mlx_generate_options_t *o, const int32_t *eos, size_t eos_count,
                              int64_t vocab, mlx_token_rules_t *out) {
  MLX_TRY(make_mask(out, "stop_ids", o->stop_ids, o->stop_id_count, vocab, &out->ends));
  for (size_t i = 0; i < eos_count && !o->ignore_eos; ++i) {
    if (eos[i] >= 0 && eos[i] < vocab) set_bit(out->ends, eos[i]);
  }
  return NULL;
}

mlx_status_t mlx_token_rules_initialize(const mlx_generate_options_t *o, const int32_t *eos, size_t eos_count,
                                        int64_t vocab, mlx_token_rules_t *out) {
  *out = (mlx_token_rules_t){.words = ((size_t)vocab + 63) / 64, .min_tokens = o->min_tokens};
  if (o->allowed_id_count)
    MLX_TRY(make_mask(out, "allowed_ids", o->allowed_ids, o->allowed_id_count, vocab, &out->allowed));
  if (o->min_tokens > 0) MLX_TRY(fill_ends(o, eos, eos_count, vocab, out));
  return copy_banned(o, vocab, out);
}

void mlx_token_rules_clear(mlx_token_rules_t *rules) {
  mlx_free(rules->allowed);
  mlx_free(rules->ends);
  mlx_free(rules->banned);
  mlx_free(rules->banned_ids);
  mlx_free(rules->tail);
  *rules = (mlx_token_rules_t){0};
}

bool mlx_token_rules_apply_next(const mlx_token_rules_t *rules) {
  return rules->allowed || rules->banned_count || (rules->ends && rules->generated < rules->min_tokens);
}

static bool ends_with(const mlx_token_rules_t *rules, const mlx_token_list_t *list) {
  const size_t before = list->count - 1;
  return before <= rules->tail_count &&
         !memcmp(rules->tail + (rules->tail_count - before), list->ids, before * sizeof *list->ids);
}

void mlx_token_rules_filter(const mlx_token_rules_t *rules, uint64_t *mask) {
  const bool too_early = rules->ends && rules->generated < rules->min_tokens;
  for (size_t i = 0; i < rules->words; ++i) {
    if (rules->allowed) mask[i] &= rules->allowed[i];
    if (too_early) mask[i] &= ~rules->ends[i];
  }
  for (size_t i = 0; i < rules->banned_count; ++i) {
    const mlx_token_list_t *list = &rules->banned[i];
    const int32_t last = list->ids[list->count - 1];
    if (ends_with(rules, list)) mask[last / 64] &= ~((uint64_t)1 << last % 64);
  }
}

void mlx_token_rules_accept(mlx_token_rules_t *rules, int32_t id) {
  ++rules->generated;
  if (rules->longest < 2) return;
  if (rules->tail_count == rules->longest - 1)
    memmove(rules->tail, rules->tail + 1, --rules->tail_count * sizeof *rules->tail);
  rules->tail[rules->tail_count++] = id;
}
