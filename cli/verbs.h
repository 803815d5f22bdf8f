// The verbs, one file each. cli/main.c lists them in the order that help prints.
#ifndef MLXCEL_CLI_VERBS_H_
#define MLXCEL_CLI_VERBS_H_

#include "cli/verb.h"

extern const mlx_verb_t mlx_verb_batch;
extern const mlx_verb_t mlx_verb_bench;
extern const mlx_verb_t mlx_verb_cache;
extern const mlx_verb_t mlx_verb_compile;
extern const mlx_verb_t mlx_verb_completion;
extern const mlx_verb_t mlx_verb_config;
extern const mlx_verb_t mlx_verb_detokenize;
extern const mlx_verb_t mlx_verb_doctor;
extern const mlx_verb_t mlx_verb_embed;
extern const mlx_verb_t mlx_verb_eval;
extern const mlx_verb_t mlx_verb_keygen;
extern const mlx_verb_t mlx_verb_launch;
extern const mlx_verb_t mlx_verb_list;
extern const mlx_verb_t mlx_verb_man;
extern const mlx_verb_t mlx_verb_pull;
extern const mlx_verb_t mlx_verb_push;
extern const mlx_verb_t mlx_verb_rerank;
extern const mlx_verb_t mlx_verb_rm;
extern const mlx_verb_t mlx_verb_run;
extern const mlx_verb_t mlx_verb_serve;
extern const mlx_verb_t mlx_verb_show;
extern const mlx_verb_t mlx_verb_sign;
extern const mlx_verb_t mlx_verb_template;
extern const mlx_verb_t mlx_verb_tokenize;
extern const mlx_verb_t mlx_verb_trust;
extern const mlx_verb_t mlx_verb_verify;

#endif  // MLXCEL_CLI_VERBS_H_
