// Fuzz target: the bytes of a ZeroMQ peer. The results must be the same if the bytes arrive in one piece and
// one by one.
//
// The first byte of the input chooses the role of this side.
#include <string.h>

#include "base/memory.h"
#include "server/events/zmtp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Reads all items of a connection, of which |step| bytes more arrive at a time.
static void run(const uint8_t *bytes, size_t size, mlx_zmtp_role_t role, size_t step, mlx_text_t *log) {
  mlx_zmtp_t zmtp = {.role = role};
  size_t done = 0;
  for (size_t arrived = step < size ? step : size;;) {
    size_t used;
    // A copy, so that a read behind its end is seen.
    uint8_t *copy;
    if (mlx_alloc(arrived - done, 1, &copy)) __builtin_trap();
    memcpy(copy, bytes + done, arrived - done);
    const mlx_zmtp_result_t result = mlx_zmtp_read(&zmtp, copy, arrived - done, &used);
    mlx_free(copy);
    if (used > arrived - done || (result == MLX_ZMTP_MORE) != (!used && result != MLX_ZMTP_BAD))
      __builtin_trap();
    if (zmtp.topic_count > MLX_ZMTP_MAX_SUBSCRIPTIONS || zmtp.reply_length > MLX_ZMTP_MAX_REPLY)
      __builtin_trap();
    done += used;
    if (result == MLX_ZMTP_BAD) {
      if (!zmtp.reason) __builtin_trap();
      mlx_text_printf(log, "bad %s", zmtp.reason);
      break;
    }
    if (result == MLX_ZMTP_MORE && arrived == size) break;
    if (result == MLX_ZMTP_MORE) arrived += step < size - arrived ? step : size - arrived;
    if (result == MLX_ZMTP_REQUEST) mlx_text_printf(log, "request %llu\n", (unsigned long long)zmtp.request);
    if (result == MLX_ZMTP_REPLY) mlx_text_append(log, (const char *)zmtp.reply, zmtp.reply_length);
  }
  mlx_text_printf(log, "%d %d", (int)zmtp.topic_count, mlx_zmtp_wants(&zmtp, "kv@pod@model", 12));
  mlx_zmtp_clear(&zmtp);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_text_t whole = {0}, pieces = {0};
  if (!size) return 0;
  const mlx_zmtp_role_t role = data[0] & 1 ? MLX_ZMTP_ROUTER : MLX_ZMTP_PUBLISHER;
  run(data + 1, size - 1, role, size, &whole);
  run(data + 1, size - 1, role, 1, &pieces);
  if (whole.length != pieces.length || memcmp(whole.data, pieces.data, whole.length)) __builtin_trap();
  mlx_text_clear(&whole);
  mlx_text_clear(&pieces);
  return 0;
}
