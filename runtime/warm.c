// The first step of an engine, before there are requests.
#include "base/memory.h"
#include "runtime/engine_internal.h"
#include "runtime/rooms.h"
#include "runtime/scheduler_internal.h"

static mlx_status_t run_steps(mlx_engine_t *engine) {
  const int64_t left = mlx_engine_info(engine).context - 1;
  const int32_t id = 0;
  int32_t next[2];
  mlx_session_t *session;
  MLX_TRY(mlx_session_create(engine, &session));
  mlx_status_t status = mlx_session_read(session, &id, 1, next);
  if (!status) status = mlx_session_steps(session, next, left < 2 ? (size_t)left : 2);
  mlx_session_free(session);
  return status;
}

static mlx_status_t run_text(mlx_engine_t *engine) {
  const mlx_engine_info_t info = mlx_engine_info(engine);
  const size_t size = (size_t)(info.labels ? info.labels : info.hidden), count = 1;
  const int32_t id = 0, *const ids = &id;
  float *out;
  MLX_TRY(mlx_alloc(size, sizeof *out, &out));
  mlx_status_t status = mlx_engine_compute(engine, &ids, &count, 1, out, size, NULL, NULL);
  mlx_free(out);
  return status;
}

mlx_status_t mlx_engine_warm(mlx_engine_t *engine) {
  mlx_status_t no_head = mlx_scheduler_check_head(engine->scheduler);
  mlx_status_t status = no_head ? run_text(engine) : run_steps(engine);
  mlx_status_free(no_head);
  mlx_pool_forget(engine->pool);
  return status;
}
