// Emits a module whose functions each call the CPU kernel once, and the program that it interprets.
#include "compiler/emit_cpu.h"

#include <stdio.h>

#include "artifact/archive.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "compiler/cpu_program.h"
#include "kernels/step.h"

#define PLAN "plan"  // name of the constant that holds the program

typedef struct emission {
  mlx_function_t *g;
  const mlx_cpu_program_t *program;
} emission_t;

static mlx_status_t declare(const emission_t *e) {
  const mlx_cpu_program_t *p = e->program;
  mlx_builder_t *b = e->g->b;
  int32_t *words;
  int64_t count;
  MLX_TRY(mlx_cpu_program_write(p, &words, &count));
  mlx_builder_constant(b, PLAN, words, count);
  mlx_free(words);
  mlx_builder_parameter(b, MLX_WHOLE_ARCHIVE, MLX_TYPE(MLX_I32, (int64_t)(p->archive_bytes / 4)));
  mlx_builder_state_of_ones(b, MLX_STATE_SCRATCH, MLX_TYPE(MLX_I32, p->header.words));
  return NULL;
}

static void state_facts(const emission_t *e) {
  const mlx_program_t *n = &e->program->header;
  mlx_module_facts_t *facts = &e->g->facts;
  facts->steps[0] = (mlx_step_size_t){.tokens = MLX_CPU_MAX_TOKENS, .wanted = MLX_CPU_MAX_WANTED};
  facts->step_count = 1;
  facts->burst = MLX_BURST_TOKENS;
  facts->ragged = facts->samples = true;
  facts->page_bytes = n->page_bytes;
  facts->window_page_bytes = n->window_page_bytes;
  facts->hidden = n->hidden;
}

// ----------------------------------------------------------------------------------------------------------
// Functions

// Operands of the kernel: weights, program, batch; and those that it updates.
enum { WEIGHTS, PROGRAM, BATCH, SCRATCH, HISTORY, KV, LOGITS, HIDDEN, RESULTS, OPERANDS };
#define UPDATED SCRATCH
static const char *const names[OPERANDS] = {
    MLX_WHOLE_ARCHIVE, PLAN, "batch", MLX_STATE_SCRATCH, "history", "kv", "logits", "hidden", "results"};

// Name of the object format in IREE.
static const char *elf_target(const emission_t *e) {
  const mlx_cpu_level_t *level = mlx_cpu_level_find(e->g->options->kernels->cpu_level);
  return level->arch == MLX_AARCH64 ? "embedded-elf-arm_64" : "embedded-elf-x86_64";
}

// The operands and numbers are the parameters of mlx_network_run, in its order.
static mlx_linked_t kernel_call(const emission_t *e, const char *file, bool is_burst) {
  const mlx_program_t *n = &e->program->header;
  const int64_t kv_unit = mlx_kv_unit(n->page_bytes, n->window_page_bytes);
  mlx_linked_t kernel = {
      .symbol = "mlx_network_run",
      .file = file,
      .target = elf_target(e),
      .workgroups = MLX_CPU_WORKGROUPS,
      .operand_count = OPERANDS,
      .updated_from = UPDATED,
      .constants = {is_burst},
      .constant_count = 1,
      .sizes = {{BATCH, 1}, {HISTORY, 1}, {KV, kv_unit / 4}, {LOGITS, 1}, {HIDDEN, 1}, {RESULTS, 1}},
      .size_count = 6};
  for (int i = 0; i < OPERANDS; ++i)
    kernel.operands[i].dtype = i == LOGITS || i == HIDDEN ? MLX_F32 : MLX_I32;
  return kernel;
}

static void emit_function(const emission_t *e, const char *name, const char *comment, const char *file,
                          bool is_burst) {
  mlx_builder_t *b = e->g->b;
  const mlx_program_t *n = &e->program->header;
  mlx_value_t updated[OPERANDS - UPDATED];
  mlx_linked_t kernel = kernel_call(e, file, is_burst);
  mlx_builder_begin(b, name, comment);
  kernel.operands[BATCH] = mlx_builder_argument(b, "batch", MLX_TYPE(MLX_I32, MLX_DIM_RUNTIME));
  mlx_builder_in_place(b, "history", MLX_TYPE(MLX_I32, MLX_DIM_RUNTIME));
  mlx_builder_in_place(b, "kv", MLX_TYPE(MLX_I32, MLX_DIM_RUNTIME));
  mlx_builder_in_place(b, "logits", MLX_TYPE(MLX_F32, MLX_DIM_RUNTIME, n->vocab));
  mlx_builder_in_place(b, "hidden", MLX_TYPE(MLX_F32, MLX_DIM_RUNTIME, n->hidden));
  mlx_builder_in_place(b, "results", MLX_TYPE(MLX_I32, MLX_DIM_RUNTIME, MLX_RESULT_WORDS));
  for (int i = 0; i < OPERANDS; ++i) {
    if (i != BATCH) kernel.operands[i] = mlx_builder_load(b, names[i]);
  }
  const mlx_value_t last = mlx_build_linked(b, "step", &kernel, updated);
  for (int i = UPDATED; i < OPERANDS && last.id; ++i) mlx_builder_store(b, names[i], updated[i - UPDATED]);
  mlx_builder_end(b, NULL, 0);
}

static mlx_status_t emit(const emission_t *e) {
  const char *file;
  MLX_TRY(mlx_kernels_image(e->g->options->kernels, MLX_KERNEL_NETWORK, "", &file));
  MLX_TRY(declare(e));
  state_facts(e);
  const mlx_linked_t shape = kernel_call(e, file, false);
  mlx_builder_link(e->g->b, &shape);
  char name[32];
  snprintf(name, sizeof name, "step_%d", MLX_CPU_MAX_TOKENS);
  emit_function(e, name, "One forward pass over a batch of tokens (kernels/step.h).", file, false);
  emit_function(e, "burst", "Many tokens of one sequence, one after the other.", file, true);
  return NULL;
}

mlx_status_t mlx_cpu_emit(mlx_function_t *g) {
  mlx_cpu_program_t program;
  MLX_TRY(mlx_cpu_program_make(g->model, g->graph, g->options, g->options->kernels->cpu_level, &program));
  const emission_t e = {.g = g, .program = &program};
  mlx_status_t status =
      program.unsupported ? mlx_error(MLX_INTERNAL, "the CPU kernel does not support %s", program.unsupported)
                          : emit(&e);
  mlx_cpu_program_clear(&program);
  return status;
}
