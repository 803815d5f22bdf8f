// Arena: blocks of at least 64 KiB, handed out front to back.
#include "template/arena.h"

#include <string.h>

#include "base/memory.h"
#include "template/error.h"

#define BLOCK_SIZE ((size_t)64 << 10)

struct mlx_arena_block {
  struct mlx_arena_block *next;
  size_t size, used;  // bytes after this header
};

static mlx_status_t add_block(mlx_arena_t *arena, size_t bytes) {
  struct mlx_arena_block *block = NULL;
  const size_t size = bytes > BLOCK_SIZE ? bytes : BLOCK_SIZE;
  MLX_TRY(mlx_alloc(1, sizeof *block + size, &block));
  *block = (struct mlx_arena_block){.next = arena->blocks, .size = size};
  arena->blocks = block;
  return NULL;
}

mlx_status_t mlx_arena_take(mlx_arena_t *arena, size_t count, size_t size, void *out_ptr) {
  size_t bytes;
  if (!mlx_mul(count, size, &bytes) || !mlx_align_up(bytes, 16, &bytes) ||
      bytes > arena->limit - arena->used) {
    return mlx_template_error(arena->name, arena->line ? *arena->line : 1, MLX_UNSUPPORTED,
                              "the template needs more than %zu bytes of memory", arena->limit);
  }
  if (!arena->blocks || bytes > arena->blocks->size - arena->blocks->used) MLX_TRY(add_block(arena, bytes));
  void *ptr = (char *)(arena->blocks + 1) + arena->blocks->used;
  arena->blocks->used += bytes;
  arena->used += bytes;
  memcpy(out_ptr, &ptr, sizeof ptr);
  return NULL;
}

void mlx_arena_clear(mlx_arena_t *arena) {
  while (arena->blocks) {
    struct mlx_arena_block *next = arena->blocks->next;
    mlx_free(arena->blocks);
    arena->blocks = next;
  }
  arena->used = 0;
}
