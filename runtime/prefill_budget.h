// Prefill budget: how many prompt tokens a step may compute beside decodes.
//
// A step with prompt tokens takes longer than one with decodes only, and every sequence that generates waits
// for it. The budget measures the time of both kinds of steps and gives prompts a share of the time. It
// chooses sizes of chunks only, so it changes no token. docs/internals/scheduler.md has the rule and its
// bounds.
//
// Threads: one thread at a time. There is nothing to release.
#ifndef MLXCEL_RUNTIME_PREFILL_BUDGET_H_
#define MLXCEL_RUNTIME_PREFILL_BUDGET_H_

#include "runtime/stepper.h"

#define MLX_LEAST_PREFILL 8   // prompt tokens of a step that has any
#define MLX_MOST_WITHHELD 32  // steps in a row without prompt tokens, at most

#define MLX_PREFILL_SIZES 24    // sizes of steps whose time is kept
#define MLX_PREFILL_CLASSES 16  // powers of 2 of the number of decodes

typedef struct mlx_prefill_budget {
  const mlx_stepper_t *stepper;  // borrowed
  double share;                  // of the time, for prompts; 1: no limit
  struct {
    int64_t size;    // tokens; 0: the end of the list
    double seconds;  // of a step of so many tokens, some of them of prompts
  } steps[MLX_PREFILL_SIZES];
  double decodes[MLX_PREFILL_CLASSES];  // seconds of a step of 2^i to 2^(i+1)-1 decodes; negative: unknown
  double owed;         // seconds that prompts took beyond their share; negative: that they may still take
  int64_t unmeasured;  // steps with prompt tokens since the last one with decodes only
  int64_t withheld;    // steps in a row without prompt tokens, while prompts wait
} mlx_prefill_budget_t;

// A step that is queued.
typedef struct mlx_prefill_note {
  bool counts;              // false: no sequence waits for it
  int64_t decodes, prompt;  // tokens
  double expected;          // seconds that its prompt tokens were expected to add
  double allowed;           // seconds of prompts for each token of all sequences that decode
} mlx_prefill_note_t;

// |share| 0: the default, 2/3.
void mlx_prefill_budget_initialize(const mlx_stepper_t *stepper, double share,
                                   mlx_prefill_budget_t *out_budget);
// The most prompt tokens of the next step, at most |most|, while |running| sequences decode. 0: decodes only.
// Call only while a prompt waits.
int64_t mlx_prefill_budget_tokens(mlx_prefill_budget_t *budget, int64_t running, int64_t most);
// Counts a step that is queued while |running| sequences decode, |decodes| of them in this step.
void mlx_prefill_budget_queue(mlx_prefill_budget_t *budget, int64_t running, int64_t decodes, int64_t prompt,
                              mlx_prefill_note_t *out_note);
// Counts the |seconds| that the device took for the step.
void mlx_prefill_budget_measure(mlx_prefill_budget_t *budget, const mlx_prefill_note_t *note, double seconds);
// Notes the time of a token of a sequence that decodes alone, in a burst.
void mlx_prefill_budget_measure_burst(mlx_prefill_budget_t *budget, double seconds);

#endif  // MLXCEL_RUNTIME_PREFILL_BUDGET_H_
