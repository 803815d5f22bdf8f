// Where a flag's value comes from when the command line does not give it: the environment, then the
// configuration file.
#ifndef MLXCEL_CLI_CONFIG_H_
#define MLXCEL_CLI_CONFIG_H_

#include "cli/cli.h"

typedef enum mlx_origin_kind {
  MLX_FROM_DEFAULT,
  MLX_FROM_COMMAND_LINE,
  MLX_FROM_ENVIRONMENT,
  MLX_FROM_FILE
} mlx_origin_kind_t;

typedef struct mlx_origin {
  mlx_origin_kind_t kind;
  char variable[80];  // of the environment
  int line;           // of the file
} mlx_origin_t;

// Sets every flag of |verb| whose entry of |inout_origins| (one for each row of |flags|) says default, if the
// environment or, with |with_file|, the configuration file has a value for it, and says so there. Values are
// valid until mlx_config_release.
mlx_status_t mlx_config_apply(const char *verb, const mlx_flag_t *flags, bool with_file,
                              mlx_origin_t *inout_origins) MLX_MUST_USE;
void mlx_config_release(void);

// What the environment can say beside flags: names and meanings, ending with a row of NULL.
typedef struct mlx_variable {
  const char *name, *meaning;
} mlx_variable_t;
extern const mlx_variable_t mlx_variables[];

#endif  // MLXCEL_CLI_CONFIG_H_
