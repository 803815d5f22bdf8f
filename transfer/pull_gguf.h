// Pull of a GGUF file from a plain web server. Such a server publishes no digests: the content is protected
// by https, and its size and its first bytes are checked.
//
// The file is stored in the cache folder, where HEX identifies the URL:
//   models/url/HOST/HEX/NAME.gguf        moved here when all parts are complete
//   models/url/HOST/HEX.part/NAME.gguf.* being pulled; an interrupted pull resumes here
//   models/url/HOST/HEX.lock             held by the pulling process
#ifndef MLXCEL_TRANSFER_PULL_GGUF_H_
#define MLXCEL_TRANSFER_PULL_GGUF_H_

#include "transfer/pull_hub.h"

// True for an http or https URL whose path ends in ".gguf". It may have a query.
bool mlx_is_gguf_url(const char *text);

// Pulls a GGUF file, or all parts of a split one. A file that was pulled before is not requested again.
// *|out_path| is the file to open; release with mlx_free.
mlx_status_t mlx_pull_gguf(const char *url, const mlx_pull_options_t *options, char **out_path) MLX_MUST_USE;

// Returns the path that an earlier pull of the same URL stored, or NULL. Uses no network.
mlx_status_t mlx_pull_gguf_find(const char *url, char **out_path) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_PULL_GGUF_H_
