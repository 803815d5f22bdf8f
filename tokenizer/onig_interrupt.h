// The interrupt that CMakeLists.txt adds to Oniguruma's matcher. A match with a struct mlx_onig_interrupt as
// the callout user data of its OnigMatchParam calls |expired| after every |left| backtracking steps and
// jumps. If that returns true, the search returns ONIG_ABORT. |expired| must set |left| again.
#ifndef MLXCEL_TOKENIZER_ONIG_INTERRUPT_H_
#define MLXCEL_TOKENIZER_ONIG_INTERRUPT_H_

struct mlx_onig_interrupt {
  unsigned long left;  // at least 1
  int (*expired)(struct mlx_onig_interrupt *interrupt);
};

#define MLX_ONIG_INTERRUPTED(user_data)                                           \
  ((user_data) != 0 && --((struct mlx_onig_interrupt *)(user_data))->left == 0 && \
   ((struct mlx_onig_interrupt *)(user_data))->expired((struct mlx_onig_interrupt *)(user_data)))

#endif  // MLXCEL_TOKENIZER_ONIG_INTERRUPT_H_
