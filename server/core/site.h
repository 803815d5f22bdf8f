// Site: what the endpoints of one server share beyond the service (job.h). Belongs to the loop thread.
#ifndef MLXCEL_SERVER_CORE_SITE_H_
#define MLXCEL_SERVER_CORE_SITE_H_

#include "server/core/access_log.h"
#include "server/core/job.h"

typedef struct mlx_site {
  mlx_service_t service;
  mlx_http_server_t *http;
  mlx_access_log_t *log;    // NULL: none
  const char *version;      // of mlxcel
  const char *const *keys;  // API keys; none: every client is allowed
  size_t key_count;
  const char *cors;           // allowed origins, separated by commas, or "*"; NULL: none
  const char *host;           // of --host; NULL: a Unix socket
  const char *allowed_hosts;  // further names of this server, separated by commas; NULL: none
  bool page;                  // serve the chat page
  double start;               // mlx_seconds
  int64_t started;            // the same in seconds since 1970
  bool ready;                 // models are loaded; before, most endpoints are 503
  bool draining;              // refuse new work
} mlx_site_t;

#endif  // MLXCEL_SERVER_CORE_SITE_H_
