// Library rules: what clients may do with the models of a server.
#ifndef MLXCEL_SERVER_CORE_LIBRARY_RULES_H_
#define MLXCEL_SERVER_CORE_LIBRARY_RULES_H_

#include <stdbool.h>

typedef struct mlx_library mlx_library_t;  // server/core/library.h

// The text is borrowed.
typedef struct mlx_library_rules {
  // Patterns of names that may be pulled, separated by commas; '*' stands for any text. NULL: none.
  const char *pull;
  bool copy;    // another name may be given to a model
  bool remove;  // stored models may be deleted
} mlx_library_rules_t;

#endif  // MLXCEL_SERVER_CORE_LIBRARY_RULES_H_
