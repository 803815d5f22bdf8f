// Emits a module whose functions each call the CPU kernel once, and the program that it interprets.
#include "compiler/emit_cpu.h"

#include <stdio.h>

#include "artifact/archive.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "compiler/cpu_program.h"

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

// ----------------------------------------------------------------------------------------------------------
// Functions

#define UPDATES 6
static const char *const updates[UPDATES] = {MLX_ARG_HISTORY, MLX_ARG_KV,      MLX_ARG_LOGITS,
                                             MLX_ARG_HIDDEN,  MLX_ARG_RESULTS, MLX_STATE_SCRATCH};

// Name of the object format in IREE.
static const char *elf_target(const emission_t *e) {
  const mlx_cpu_level_t *level = mlx_cpu_level_find(e->g->options->kernels->cpu_level);
  return level->arch == MLX_AARCH64 ? "embedded-elf-arm_64" : "embedded-elf-x86_64";
}

// The operands are the parameters of mlx_network_run, in its order.
static void emit_call(const emission_t *e, const char *name, mlx_step_size_t size, const char *file) {
  mlx_function_t *g = e->g;
  mlx_builder_t *b = g->b;
  mlx_linked_t kernel = {.symbol = "mlx_network_run",
                         .file = file,
                         .target = elf_target(e),
                         .workgroups = MLX_CPU_WORKGROUPS,
                         .operand_count = 3 + UPDATES,
                         .updated_from = 3};
  mlx_function_begin(g, name, "Calls the CPU kernel.", size);
  kernel.operands[0] = mlx_builder_load(b, MLX_WHOLE_ARCHIVE);
  kernel.operands[1] = mlx_builder_load(b, PLAN);
  kernel.operands[2] = g->batch;
  for (int i = 0; i < UPDATES; ++i) kernel.operands[3 + i] = mlx_builder_load(b, updates[i]);
  mlx_value_t updated[UPDATES];
  if (mlx_build_linked(b, "updated", &kernel, updated).id) {
    for (int i = 0; i < UPDATES; ++i) mlx_builder_store(b, updates[i], updated[i]);
  }
  mlx_builder_end(b, NULL, 0);
}

static mlx_status_t emit(const emission_t *e) {
  const mlx_module_options_t *o = e->g->options;
  const char *file;
  MLX_TRY(mlx_kernels_image(o->kernels, MLX_KERNEL_NETWORK, "", &file));
  MLX_TRY(declare(e));
  mlx_linked_t shape = {.symbol = "mlx_network_run",
                        .file = file,
                        .target = elf_target(e),
                        .workgroups = MLX_CPU_WORKGROUPS,
                        .operand_count = 3 + UPDATES,
                        .updated_from = 3};
  for (int i = 0; i < 3 + UPDATES; ++i) shape.operands[i].dtype = MLX_I32;
  shape.operands[5].dtype = shape.operands[6].dtype = MLX_F32;
  mlx_builder_link(e->g->b, &shape);
  char name[32];
  snprintf(name, sizeof name, "step_%lld", (long long)o->steps[0].tokens);
  emit_call(e, name, o->steps[0], file);
  emit_call(e, "burst", (mlx_step_size_t){1, 1}, file);
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
