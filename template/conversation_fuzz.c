// Fuzz target: a saved conversation. Parsing, writing and parsing it again must give the same conversation.
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "template/conversation.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_conversation_t *first, *second;
  char *text, *again;
  size_t length, again_length;
  mlx_status_t status = mlx_conversation_parse("fuzz", (const char *)data, size, &first);
  if (status) {
    mlx_status_free(status);
    return 0;
  }
  if (mlx_conversation_json(first, 0, &text, &length)) __builtin_trap();
  if (mlx_conversation_parse("again", text, length, &second)) __builtin_trap();
  if (mlx_conversation_json(second, 0, &again, &again_length)) __builtin_trap();
  if (length != again_length || memcmp(text, again, length)) __builtin_trap();
  if (mlx_conversation_count(first) != mlx_conversation_count(second)) __builtin_trap();
  for (size_t i = 0, next = 0; i < mlx_conversation_count(first); i = next) {
    next = mlx_conversation_next_turn(first, i);
    if (next <= i || strcmp(mlx_conversation_text(first, i), mlx_conversation_text(second, i)))
      __builtin_trap();
  }
  if (mlx_conversation_set_system(first, "x", 1) || strcmp(mlx_conversation_system(first), "x"))
    __builtin_trap();
  mlx_free(text);
  mlx_free(again);
  mlx_conversation_free(first);
  mlx_conversation_free(second);
  return 0;
}
