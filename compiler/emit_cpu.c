// Emits a module whose functions each call the CPU kernel once, and the program that it interprets.
#include "compiler/emit_cpu.h"

#include <stdio.h>
#include <string.h>

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
  const mlx_module_options_t *o = e->g->options;
  const mlx_cpu_program_t *p = e->program;
  mlx_builder_t *b = e->g->b;
  int32_t *words;
  int64_t count;
  MLX_TRY(mlx_cpu_program_write(p, &words, &count));
  mlx_builder_constant(b, PLAN, words, count);
  mlx_free(words);
  mlx_builder_parameter(b, MLX_WHOLE_ARCHIVE, MLX_TYPE(MLX_I32, (int64_t)(p->archive_bytes / 4)));
  // Uninitialized: the kernel reads a position only after a token was written there.
  mlx_builder_state_empty(b, MLX_STATE_KV, MLX_TYPE(MLX_I32, p->kv_bytes / 4));
  mlx_builder_state_of_ones(b, MLX_STATE_SCRATCH, MLX_TYPE(MLX_I32, p->header.words));
  mlx_builder_state(b, MLX_STATE_TOKEN, MLX_TYPE(MLX_I32, o->sequences));
  mlx_builder_state(b, MLX_STATE_POSITION, MLX_TYPE(MLX_I32, o->sequences));
  mlx_builder_state(b, MLX_STATE_LOGITS, MLX_TYPE(MLX_F32, o->sequences, p->header.vocab));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Functions

#define STATES 5
static const char *const states[STATES] = {MLX_STATE_KV, MLX_STATE_SCRATCH, MLX_STATE_TOKEN,
                                           MLX_STATE_POSITION, MLX_STATE_LOGITS};

// Name of the object format in IREE.
static const char *elf_target(const emission_t *e) {
  const mlx_cpu_level_t *level = mlx_cpu_level_find(e->g->options->kernels->cpu_level);
  return level->arch == MLX_AARCH64 ? "embedded-elf-arm_64" : "embedded-elf-x86_64";
}

// The operands are the parameters of mlx_network_run, in its order.
static mlx_linked_t kernel_call(const emission_t *e, mlx_value_t tokens, mlx_value_t start, mlx_value_t count,
                                mlx_value_t pages, mlx_type_t result, int64_t width, int64_t steps,
                                const char *file) {
  mlx_builder_t *b = e->g->b;
  mlx_linked_t kernel = {.symbol = "mlx_network_run",
                         .file = file,
                         .target = elf_target(e),
                         .workgroups = MLX_CPU_WORKGROUPS,
                         .operand_count = 6 + STATES,
                         .updated_from = 6,
                         .result = result,
                         .constants = {(int32_t)width, (int32_t)steps},
                         .constant_count = 2};
  kernel.operands[0] = mlx_builder_load(b, MLX_WHOLE_ARCHIVE);
  kernel.operands[1] = mlx_builder_load(b, PLAN);
  const mlx_value_t arguments[] = {tokens, start, count, pages};
  memcpy(kernel.operands + 2, arguments, sizeof arguments);
  for (int i = 0; i < STATES; ++i) kernel.operands[6 + i] = mlx_builder_load(b, states[i]);
  return kernel;
}

static void call_and_return(const emission_t *e, const char *name, const mlx_linked_t *kernel) {
  mlx_builder_t *b = e->g->b;
  mlx_value_t updated[STATES];
  mlx_value_t tokens = mlx_build_linked(b, name, kernel, updated);
  for (int i = 0; i < STATES && tokens.id; ++i) mlx_builder_store(b, states[i], updated[i]);
  mlx_builder_end(b, &tokens, 1);
}

static void emit_prefill(const emission_t *e, int64_t tokens, const char *file) {
  mlx_builder_t *b = e->g->b;
  const int64_t sequences = e->g->options->sequences;
  char name[32];
  snprintf(name, sizeof name, "prefill_%lld", (long long)tokens);
  mlx_builder_begin(b, name,
                    "Reads count[row] tokens that stand at start[row]; a row with count 0 is left alone.");
  mlx_value_t input = mlx_builder_argument(b, "tokens", MLX_TYPE(MLX_I32, sequences, tokens));
  mlx_value_t start = mlx_builder_argument(b, "start", MLX_TYPE(MLX_I32, sequences));
  mlx_value_t count = mlx_builder_argument(b, "count", MLX_TYPE(MLX_I32, sequences));
  mlx_value_t pages = mlx_builder_argument(
      b, "pages", MLX_TYPE(MLX_I32, sequences, mlx_module_sequence_pages(e->g->options)));
  const mlx_linked_t kernel =
      kernel_call(e, input, start, count, pages, MLX_TYPE(MLX_I32, sequences), tokens, 1, file);
  call_and_return(e, "next", &kernel);
}

static void emit_decode(const emission_t *e, int64_t steps, const char *file) {
  mlx_builder_t *b = e->g->b;
  const int64_t sequences = e->g->options->sequences;
  char name[32];
  snprintf(name, sizeof name, "decode_%lld", (long long)steps);
  mlx_builder_begin(b, name,
                    "Reads the token of each active row and goes on from there, one token after the other.");
  mlx_value_t active = mlx_builder_argument(b, "active", MLX_TYPE(MLX_I32, sequences));
  mlx_value_t pages = mlx_builder_argument(
      b, "pages", MLX_TYPE(MLX_I32, sequences, mlx_module_sequence_pages(e->g->options)));
  const mlx_linked_t kernel =
      kernel_call(e, active, active, active, pages, MLX_TYPE(MLX_I32, sequences, steps), 0, steps, file);
  call_and_return(e, "chosen", &kernel);
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
                        .operand_count = 6 + STATES,
                        .updated_from = 6,
                        .result = MLX_TYPE(MLX_I32, 1),
                        .constant_count = 2};
  for (int i = 0; i < 6 + STATES; ++i) shape.operands[i].dtype = MLX_I32;
  shape.operands[10].dtype = MLX_F32;
  mlx_builder_link(e->g->b, &shape);
  for (size_t i = 0; i < o->bucket_count; ++i) emit_prefill(e, o->buckets[i], file);
  for (size_t i = 0; i < o->step_count; ++i) emit_decode(e, o->steps[i], file);
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
