// Configuration: values for flags that are not on the command line, from the environment, else from the
// configuration file (docs/config.md).
#ifndef MLXCEL_CLI_CONFIG_FILE_H_
#define MLXCEL_CLI_CONFIG_FILE_H_

#include "cli/verb.h"

// Sets the flags of |verb| that still have their default, from the environment or, with |with_file|, from the
// configuration file. |inout_origins| has one element per flag and is updated. The file's keys are checked
// against the tables of |verbs|. Texts are valid until mlx_config_release.
mlx_status_t mlx_config_apply(const mlx_verb_t *const *verbs, const mlx_verb_t *verb, void *options,
                              bool with_file, mlx_origin_t *inout_origins) MLX_MUST_USE;
// Reads the file on the first call. *|out_path| is borrowed; NULL if the user has no configuration folder.
mlx_status_t mlx_config_path(const mlx_verb_t *const *verbs, const char **out_path) MLX_MUST_USE;
// Takes ownership of |text|, which an option points to; mlx_config_release frees it.
mlx_status_t mlx_config_keep(char *text) MLX_MUST_USE;
void mlx_config_release(void);

// Environment variables that are not flags: names and meanings, ending with a row of NULL.
typedef struct mlx_variable {
  const char *name, *meaning;
} mlx_variable_t;
extern const mlx_variable_t mlx_variables[];
// True if the environment or the configuration file can set the flag.
bool mlx_config_can_set(const mlx_flag_t *flag);
// True for a variable of mlx_variables. The flag parser ignores these; the code that needs one reads it.
bool mlx_variable_exists(const char *name);

#endif  // MLXCEL_CLI_CONFIG_FILE_H_
