// The CPU network kernel: a forward pass over a batch of tokens in one call, or a burst of them for one
// sequence (step.h). It interprets a program (layout.h), which the compiler writes for a model: a list of
// phases, each with one or more instructions. phases.c runs a phase, schedule.c divides the items of a phase
// between threads.
//
// Freestanding C: no libc, no globals. layout.h describes the memory layouts.
#include "network.h"

#include "batch.h"
#include "call.h"
#include "schedule.h"

bool mlx_network_call(const mlx_network_arguments_t *arguments, call_t *out) {
  const mlx_network_arguments_t *a = arguments;
  const mlx_program_t *n = (const void *)a->plan;
  const mlx_phase_t *phases = (const void *)(n + 1);
  const mlx_instruction_t *code = (const void *)(phases + n->phases);
  const int64_t capacity = n->capacity;
  int32_t *tokens = a->scratch + n->tokens;
  *out = (call_t){.n = n,
                  .phases = phases,
                  .code = code,
                  .floats = (const void *)(code + n->instructions),
                  .weights = a->weights,
                  .batch = a->batch,
                  .history = a->history,
                  .results = a->results,
                  .kv = a->kv,
                  .logits = a->logits,
                  .hidden = a->hidden,
                  .limits = {a->batch_words, a->history_words, a->kv_units, a->logits_rows, a->hidden_rows,
                             a->results_rows},
                  .control = (void *)a->scratch,
                  .scratch = (void *)a->scratch,
                  .slot_of = tokens,
                  .position_of = tokens + capacity,
                  .id_of = tokens + 2 * capacity,
                  .page_of = {tokens + 3 * capacity, tokens + 4 * capacity},
                  .row_of = tokens + 5 * capacity,
                  .segment_at = tokens + 6 * capacity,
                  .type_of = tokens + 7 * capacity,
                  .end_of = tokens + 8 * capacity,
                  .wanted_of = tokens + 10 * capacity,
                  .best = (float *)(void *)(a->scratch + n->best),
                  .is_burst = a->is_burst != 0,
                  .steps = 1,
                  .workgroups = MLX_CPU_WORKGROUPS,
                  .token_of = tokens + 9 * capacity};
  return mlx_read_batch(out);
}

void mlx_network_run(const mlx_network_arguments_t *arguments) {
  call_t call;
  if (mlx_network_call(arguments, &call)) mlx_run_workgroup(&call);
}
