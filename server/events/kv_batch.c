// Pages that continue each other become one BlockStored, and pages that are removed one after the other one
// BlockRemoved. See kv_batch.h.
#include "server/events/kv_batch.h"

#include "base/clock.h"
#include "base/memory.h"
#include "runtime/rooms.h"
#include "server/events/message_pack.h"

// The memory that attention reads, in vLLM's words: also on a CPU.
#define MEDIUM "GPU"

struct mlx_kv_batch {
  int rank;
  mlx_kv_batch_fn_t on_batch;
  void *user;
  mlx_text_t events;  // packed, of this step
  size_t count;
  // The event that is not packed yet: hashes and tokens are packed without their number.
  enum { NONE, STORED, REMOVED } open;
  mlx_text_t hashes, tokens;
  size_t hash_count;
  uint64_t last, parent;  // of STORED
  bool has_parent;
};

mlx_status_t mlx_kv_batch_create(int rank, mlx_kv_batch_fn_t on_batch, void *user,
                                 mlx_kv_batch_t **out_batch) {
  mlx_kv_batch_t *b;
  *out_batch = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *b, &b));
  *b = (mlx_kv_batch_t){.rank = rank, .on_batch = on_batch, .user = user};
  *out_batch = b;
  return NULL;
}

void mlx_kv_batch_free(mlx_kv_batch_t *b) {
  if (!b) return;
  mlx_text_clear(&b->events);
  mlx_text_clear(&b->hashes);
  mlx_text_clear(&b->tokens);
  mlx_free(b);
}

static void append(mlx_text_t *to, const mlx_text_t *from) {
  if (from->failed) to->failed = true;
  if (from->length) mlx_text_append(to, from->data, from->length);
}

static void empty(mlx_text_t *text) {
  text->length = 0;
  text->failed = false;
}

// Packs the open event.
static void close_event(mlx_kv_batch_t *b) {
  mlx_text_t *out = &b->events;
  if (b->open == NONE) return;
  const bool stored = b->open == STORED;
  mlx_message_pack_array(out, stored ? 8 : 3);
  mlx_message_pack_text(out, stored ? "BlockStored" : "BlockRemoved");
  mlx_message_pack_array(out, b->hash_count);
  append(out, &b->hashes);
  if (stored) {
    if (b->has_parent)
      mlx_message_pack_uint64(out, b->parent);
    else
      mlx_message_pack_nil(out);
    mlx_message_pack_array(out, b->hash_count * MLX_PAGE_POSITIONS);
    append(out, &b->tokens);
    mlx_message_pack_uint(out, MLX_PAGE_POSITIONS);
    mlx_message_pack_nil(out);  // lora_id
  }
  mlx_message_pack_text(out, MEDIUM);
  if (stored) mlx_message_pack_nil(out);  // lora_name
  ++b->count;
  b->open = NONE;
  b->hash_count = 0;
  empty(&b->hashes);
  empty(&b->tokens);
}

static void on_stored(void *user, uint64_t hash, const uint64_t *parent, const int32_t *ids) {
  mlx_kv_batch_t *b = user;
  if (b->open != STORED || !parent || *parent != b->last) {
    close_event(b);
    b->open = STORED;
    b->has_parent = parent != NULL;
    b->parent = parent ? *parent : 0;
  }
  mlx_message_pack_uint64(&b->hashes, hash);
  for (size_t i = 0; i < MLX_PAGE_POSITIONS; ++i) mlx_message_pack_uint(&b->tokens, (uint32_t)ids[i]);
  ++b->hash_count;
  b->last = hash;
}

static void on_removed(void *user, uint64_t hash) {
  mlx_kv_batch_t *b = user;
  if (b->open != REMOVED) close_event(b);
  b->open = REMOVED;
  mlx_message_pack_uint64(&b->hashes, hash);
  ++b->hash_count;
}

static void on_cleared(void *user) {
  mlx_kv_batch_t *b = user;
  close_event(b);
  mlx_message_pack_array(&b->events, 1);
  mlx_message_pack_text(&b->events, "AllBlocksCleared");
  ++b->count;
}

static void on_step(void *user) {
  mlx_kv_batch_t *b = user;
  mlx_text_t out = {0};
  char *payload = NULL;
  size_t length = 0;
  close_event(b);
  mlx_message_pack_array(&out, 3);
  mlx_message_pack_double(&out, mlx_clock_seconds(CLOCK_REALTIME));
  mlx_message_pack_array(&out, b->count);
  append(&out, &b->events);
  mlx_message_pack_uint(&out, (uint64_t)b->rank);
  mlx_status_free(mlx_text_take(&out, &payload, &length));
  b->count = 0;
  empty(&b->events);
  b->on_batch(b->user, payload, length);
}

mlx_page_watcher_t mlx_kv_batch_watcher(mlx_kv_batch_t *batch) {
  return (mlx_page_watcher_t){.on_stored = on_stored,
                              .on_removed = on_removed,
                              .on_cleared = on_cleared,
                              .on_step = on_step,
                              .user = batch};
}
