// The metrics of llama-server, for dashboards that know its names.
#ifndef MLXCEL_SERVER_CORE_LLAMA_METRICS_H_
#define MLXCEL_SERVER_CORE_LLAMA_METRICS_H_

#include "server/core/metrics.h"
#include "server/core/models.h"

// They are of all models together and have no label. Threads: any thread.
void mlx_llama_metrics_write(mlx_models_t *models, mlx_metrics_t *metrics, mlx_text_t *out);

#endif  // MLXCEL_SERVER_CORE_LLAMA_METRICS_H_
