// Opening: how a server opens models (open/): with sizes that suit the machine, and by the names of stored
// models. The functions are callbacks of mlx_models_options_t; |opening| is a mlx_opening_t.
#ifndef MLXCEL_SERVER_CORE_OPENING_H_
#define MLXCEL_SERVER_CORE_OPENING_H_

#include "server/core/server.h"

typedef struct mlx_opening {
  const mlx_server_options_t *options;  // borrowed
  mlx_models_t *models;                 // borrowed; set before the first model is opened
  mlx_report_t report;                  // that of the options, and the request to cancel
  mlx_cancel_t *cancel;                 // owned
  bool warm;                            // run the first step of models (mlx_engine_warm)
  mlx_kv_events_t *kv_events;           // owned; NULL: none
} mlx_opening_t;

// Release with mlx_opening_clear. |options| must outlive it.
mlx_status_t mlx_opening_create(const mlx_server_options_t *options, mlx_opening_t *out) MLX_MUST_USE;
void mlx_opening_clear(mlx_opening_t *opening);
// From now on opening a model fails, also if it has begun. Any thread.
void mlx_opening_cancel(mlx_opening_t *opening);

// The engines of each model: so many on each GPU, or on the only device.
size_t mlx_opening_engines(const mlx_server_options_t *options);
// Most bytes of loaded models if the user gives no limit: 3/4 of the RAM on a CPU, where a machine that has
// too little would swap; 0, no limit, on a GPU.
uint64_t mlx_opening_model_memory(const mlx_engine_options_t *options);

mlx_status_t mlx_opening_open(void *opening, const char *path, size_t index, mlx_engine_t **out_engine,
                              mlx_chat_t **out_chat) MLX_MUST_USE;
mlx_status_t mlx_opening_scan(void *opening, mlx_models_found_fn_t found, void *found_user) MLX_MUST_USE;
mlx_status_t mlx_opening_locate(void *opening, const char *name, char **out_path) MLX_MUST_USE;
// Reads the chat template of a model without loading it; NULL if it has none, or if |path| does not exist.
// Any thread.
mlx_status_t mlx_opening_find_chat(void *opening, const char *path, mlx_chat_t **out_chat) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_CORE_OPENING_H_
