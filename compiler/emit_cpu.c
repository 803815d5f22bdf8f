// Emits a module whose functions each call the CPU kernel once, and the program that it interprets.
#include "compiler/emit_cpu.h"

#include <stdio.h>

#include "artifact/archive.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "compiler/cpu_program.h"
#include "compiler/kernel_source.h"
#include "kernels/cpu/network.h"
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
  facts->steps[0] = (mlx_step_size_t){.tokens = MLX_CPU_STEP_TOKENS, .wanted = MLX_CPU_MAX_WANTED};
  facts->step_count = 1;
  if (n->capacity > MLX_CPU_STEP_TOKENS)
    facts->steps[facts->step_count++] =
        (mlx_step_size_t){.tokens = n->capacity, .wanted = MLX_CPU_MAX_WANTED};
  facts->ragged = true;
  facts->samples = !mlx_graph_is_encoder(e->g->graph);
  facts->burst = facts->samples ? MLX_BURST_TOKENS : 0;
  facts->page_bytes = n->page_bytes;
  facts->window_page_bytes = n->window_page_bytes;
  facts->recurrent_bytes = n->state_bytes;
  facts->hidden = n->hidden;
  mlx_function_state_routes(e->g);
}

// ----------------------------------------------------------------------------------------------------------
// Functions

// Operands of the kernel: weights, program, batch; and those that it updates.
enum { WEIGHTS, PROGRAM, BATCH, SCRATCH, HISTORY, KV, LOGITS, HIDDEN, RESULTS, OPERANDS };
#define UPDATED SCRATCH
static const char *const names[OPERANDS] = {
    MLX_WHOLE_ARCHIVE, PLAN, "batch", MLX_STATE_SCRATCH, "history", "kv", "logits", "hidden", "results"};
#define SIZES 6
_Static_assert(sizeof(mlx_network_arguments_t) == 8 * (OPERANDS + 1 + SIZES),
               "operands, is_burst and sizes are the fields of the kernel's arguments");

// Name of the object format in IREE.
static const char *elf_target(const emission_t *e) {
  const mlx_cpu_level_t *level = mlx_cpu_level_find(e->g->options->kernels->cpu_level);
  return level->arch == MLX_AARCH64 ? "embedded-elf-arm_64" : "embedded-elf-x86_64";
}

// The operands and numbers are the fields of mlx_network_arguments_t, in its order.
static mlx_linked_t kernel_call(const emission_t *e, bool is_burst) {
  const mlx_program_t *n = &e->program->header;
  const int64_t kv_unit = mlx_kv_unit(n->page_bytes, n->window_page_bytes, n->state_bytes);
  mlx_linked_t kernel = {
      .symbol = "mlx_network_run",
      .target = elf_target(e),
      .workgroups = MLX_CPU_WORKGROUPS,
      .operand_count = OPERANDS,
      .updated_from = UPDATED,
      .constants = {is_burst},
      .constant_count = 1,
      .sizes = {{BATCH, 1}, {HISTORY, 1}, {KV, kv_unit / 4}, {LOGITS, 1}, {HIDDEN, 1}, {RESULTS, 1}},
      .size_count = SIZES};
  for (int i = 0; i < OPERANDS; ++i)
    kernel.operands[i].dtype = i == LOGITS || i == HIDDEN ? MLX_F32 : MLX_I32;
  return kernel;
}

// Requests the objects of the level, and declares the function in them.
static mlx_status_t link_kernel(const emission_t *e) {
  mlx_kernels_t *kernels = e->g->options->kernels;
  mlx_linked_t kernel = kernel_call(e, false);
  const mlx_kernel_source_t *object;
  const char *file;
  while ((object = mlx_kernel_source_object(kernels->cpu_level, kernel.file_count))) {
    if (kernel.file_count == MLX_LINKED_FILES)
      return mlx_error(MLX_INTERNAL, "the CPU kernel has more than %d objects", MLX_LINKED_FILES);
    MLX_TRY(mlx_kernels_image(kernels, MLX_KERNEL_NETWORK, object->name, (mlx_kernel_build_t){0}, &file));
    kernel.files[kernel.file_count++] = object->name;
  }
  if (!kernel.file_count)
    return mlx_error(MLX_INTERNAL, "this build has no CPU kernel for %s", kernels->cpu_level);
  mlx_builder_link(e->g->b, &kernel);
  return NULL;
}

static void emit_function(const emission_t *e, const char *name, const char *comment, bool is_burst) {
  mlx_builder_t *b = e->g->b;
  const mlx_program_t *n = &e->program->header;
  mlx_built_t updated[OPERANDS - UPDATED];
  mlx_linked_t kernel = kernel_call(e, is_burst);
  mlx_builder_begin(b, name, comment);
  kernel.operands[BATCH] = mlx_builder_argument(b, "batch", MLX_TYPE(MLX_I32, MLX_DIM_RUNTIME));
  mlx_builder_in_place(b, "history", MLX_TYPE(MLX_I32, MLX_DIM_RUNTIME));
  mlx_builder_in_place(b, "kv", MLX_TYPE(MLX_I32, MLX_DIM_RUNTIME));
  mlx_builder_in_place(b, "logits", MLX_TYPE(MLX_F32, MLX_DIM_RUNTIME, e->g->facts.samples ? n->vocab : 1));
  mlx_builder_in_place(b, "hidden", MLX_TYPE(MLX_F32, MLX_DIM_RUNTIME, n->hidden));
  mlx_builder_in_place(b, "results", MLX_TYPE(MLX_I32, MLX_DIM_RUNTIME, MLX_RESULT_WORDS));
  for (int i = 0; i < OPERANDS; ++i) {
    if (i != BATCH) kernel.operands[i] = mlx_builder_load(b, names[i]);
  }
  const mlx_built_t last = mlx_build_linked(b, "step", &kernel, updated);
  for (int i = UPDATED; i < OPERANDS && last.id; ++i) mlx_builder_store(b, names[i], updated[i - UPDATED]);
  mlx_builder_end(b, NULL, 0);
}

static mlx_status_t emit(const emission_t *e) {
  char name[32];
  MLX_TRY(declare(e));
  state_facts(e);
  MLX_TRY(link_kernel(e));
  for (size_t i = 0; i < e->g->facts.step_count; ++i) {
    snprintf(name, sizeof name, "step_%lld", (long long)e->g->facts.steps[i].tokens);
    emit_function(e, name, "One forward pass over a batch of tokens (kernels/step.h).", false);
  }
  if (e->g->facts.burst) emit_function(e, "burst", "Many tokens of one sequence, one after the other.", true);
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
