// Folders: absolute paths in messages for clients.
#ifndef MLXCEL_SERVER_CORE_FOLDERS_H_
#define MLXCEL_SERVER_CORE_FOLDERS_H_

#include "base/text.h"

// Appends |text| to |out| with the last part of each absolute path in place of the path: "cannot read
// '/home/a/m.gguf'" becomes "cannot read 'm.gguf'". A path begins after a space, a quote or a bracket. It
// ends at the same quote, or at a space.
void mlx_hide_folders(const char *text, mlx_text_t *out);

#endif  // MLXCEL_SERVER_CORE_FOLDERS_H_
