// Table: cells of a table that is read at a terminal.
#ifndef MLXCEL_CLI_TABLE_H_
#define MLXCEL_CLI_TABLE_H_

#include "base/text.h"

// Sets *|inout_width| to the columns of |text| if they are more.
void mlx_cell_widen(const char *text, int *inout_width);
// Appends |text| and spaces up to |width| columns, before it if |right|. Control characters and |forbidden|
// become '?': names come from untrusted files. |forbidden| may be 0.
void mlx_cell_put(mlx_text_t *out, const char *text, int width, bool right, char forbidden);

#endif  // MLXCEL_CLI_TABLE_H_
