// Weights: a model's tensors as the compiled module wants them, in one archive.
#ifndef MLXCEL_COMPILER_WEIGHTS_H_
#define MLXCEL_COMPILER_WEIGHTS_H_

#include "base/report.h"
#include "models/model.h"

// Changes whenever the bytes written for the same model change: it is part of the cache key.
#define MLX_WEIGHTS_LAYOUT "f32 rows as Hugging Face has them, irpa 0"

// Writes every weight to |path|, widened to f32 and with its rows in Hugging Face's order, a few rows at a time.
mlx_status_t mlx_weights_write(const mlx_model_t *model, const char *path, const mlx_report_t *report) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_WEIGHTS_H_
