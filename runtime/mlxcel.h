// mlxcel's runtime, all of it: the one header that cli/ and server/ include.
//
//   engine    a compiled model loaded on a device. Many sessions share one.
//   session   one sequence of tokens and its place in the engine's KV pool.
//   chat      the model's own chat template: turns a conversation into the text that the model reads.
//   conversation   messages with roles, in memory and in a file.
//
// Nothing here compiles: an engine opens what `mlxcel compile` made. Text in and out is UTF-8.
// Threads: an engine and its sessions belong to one thread at a time.
#ifndef MLXCEL_RUNTIME_MLXCEL_H_
#define MLXCEL_RUNTIME_MLXCEL_H_

#include <stdint.h>

#include "base/status.h"
#include "grammar/grammar.h"
#include "template/chat_formats.h"
#include "template/conversation.h"

typedef struct mlx_engine mlx_engine_t;
typedef struct mlx_session mlx_session_t;
typedef struct mlx_chat mlx_chat_t;

// ----------------------------------------------------------------------------------------------------------
// Engine

// The parts of a compiled model. Everything is borrowed for the call to open only.
typedef struct mlx_model_parts {
  const char *name;                            // the model's, for messages
  const char *manifest_name, *tokenizer_name;  // where those texts come from, for messages
  const char *manifest, *tokenizer;            // JSON texts
  size_t manifest_length, tokenizer_length;
  const char *chat;  // chat.json; NULL: the model has no chat template
  size_t chat_length;
  const char *vmfb_path, *weights_path;
} mlx_model_parts_t;

typedef enum mlx_device_choice { MLX_USE_CPU, MLX_USE_CUDA, MLX_USE_AUTO } mlx_device_choice_t;

typedef struct mlx_engine_options {
  mlx_device_choice_t device;
  const char
      *reason;  // why, for mlx_engine_info, when "auto" was decided by the caller; NULL: the engine says
  int threads;  // CPU workers; 0: one for each CPU this process may use
  const char *cpu_level;  // whose code to run, of those that the model has ("x86-64-v3"); NULL: the highest
                          // that this CPU runs
  int64_t context;  // positions a session may use; 0: all that the model was compiled for. More than that is
                    // an error
  bool allow_unsigned;  // run a bundle that this machine did not make and no trusted key signed
  const char *dtype;    // what the model must have been compiled to store ("bf16"); NULL: whatever it was
  // A text that a session must be able to read: opening fails before anything is loaded when it cannot. May
  // be NULL.
  const char *prompt;
  size_t prompt_length;
  bool prompt_is_chat;  // it was rendered by a chat template: nothing is added to it
  // Called while weights go to a GPU: with 0 first, with all of them last, on the thread that opens. May be
  // NULL.
  void (*on_load)(void *user, uint64_t done_bytes, uint64_t total_bytes);
  void *user;
} mlx_engine_options_t;
void mlx_engine_options_initialize(mlx_engine_options_t *out_options);  // auto, and zeros

// What to compile for on this machine's GPU ("cuda:sm_90") and its memory; MLX_UNAVAILABLE, with the reason,
// when there is none to use.
mlx_status_t mlx_engine_gpu_target(char *out_target, size_t size, uint64_t *out_memory) MLX_MUST_USE;
// How well code for |target| suits this machine: 0 when it does not run here or nobody knows; a GPU's code
// before a CPU's, later before earlier, this very CPU's before any level's. |cpu| is of cpu:host whose it is
// (mlx_variant_t has it), else "".
size_t mlx_engine_rank_target(const char *target, const char *cpu);
// "NVIDIA H200, sm_90, 139.8 GiB, driver for CUDA 13.0", or MLX_UNAVAILABLE with the reason.
mlx_status_t mlx_engine_gpu_text(char *out_text, size_t size) MLX_MUST_USE;
// Runs the module of mlx_compile_smoke on a device and checks what it says.
mlx_status_t mlx_engine_smoke(mlx_device_choice_t device, const char *vmfb_path) MLX_MUST_USE;
// What opening an engine with a prompt checks, from the tokenizer's text alone: before there is anything to
// open.
mlx_status_t mlx_engine_check_prompt(const char *tokenizer_name, const char *tokenizer,
                                     size_t tokenizer_length, const char *prompt, size_t prompt_length,
                                     bool prompt_is_chat, int64_t context, int64_t vocab) MLX_MUST_USE;

// True when |path| is a bundle that mlx_engine_open_bundle would try.
bool mlx_engine_is_bundle(const char *path);
// True when mlx_engine_open_bundle refuses that for its contract or its IREE: compiled again, it runs.
bool mlx_engine_is_other_version(const char *path);
// Opens a bundle (.mlxb), a folder or one file, or the parts of a model that was compiled here. Of a bundle's
// targets the best for this machine is taken; every file is checked against its digest before it is used.
// Release with mlx_engine_close.
mlx_status_t mlx_engine_open_bundle(const char *path, const mlx_engine_options_t *options,
                                    mlx_engine_t **out_engine) MLX_MUST_USE;
mlx_status_t mlx_engine_open(const mlx_model_parts_t *parts, const mlx_engine_options_t *options,
                             mlx_engine_t **out_engine) MLX_MUST_USE;
void mlx_engine_close(mlx_engine_t *engine);  // after all its sessions

typedef struct mlx_engine_info {
  const char *device;         // "cpu" or "cuda"
  const char *gpu;            // its name; "" on the CPU
  const char *device_reason;  // why that device, when it was chosen by "auto"; else ""
  bool is_unsigned;  // a bundle that this machine did not make and no trusted key signed; it was allowed
  int threads;       // CPU workers
  const char *architecture, *source, *target;  // from the manifest
  const char *dtype;  // of weights and KV cache, from the manifest: "f32", "bf16", "f16"
  const char *cpu_level,
      *levels;          // of a portable model: whose code runs, and what there was to choose from; else ""
  const char *kernels;  // "decode, linear", or "none (generic path)"
  int64_t context, vocab, sequences;
  uint64_t weight_bytes;        // all of them
  uint64_t token_weight_bytes;  // those that choosing one token reads: an embedding table that is no head is
                                // not among them
  uint64_t kv_bytes;            // keys and values of one position; 0: it is not known
} mlx_engine_info_t;
// Borrowed from the engine.
mlx_engine_info_t mlx_engine_info(const mlx_engine_t *engine);

// Token ids of |text|, special tokens in it recognised, the model's own beginning added. Release with
// mlx_engine_free_ids.
mlx_status_t mlx_engine_tokenize(const mlx_engine_t *engine, const char *text, size_t length,
                                 int32_t **out_ids, size_t *out_count) MLX_MUST_USE;
// The same for a text that a chat template rendered: it has its own beginning, so nothing is added.
mlx_status_t mlx_engine_tokenize_chat(const mlx_engine_t *engine, const char *text, size_t length,
                                      int32_t **out_ids, size_t *out_count) MLX_MUST_USE;
void mlx_engine_free_ids(int32_t *ids);
// The bytes of one token, a special one's too; they need not be whole characters. Release with mlx_free.
mlx_status_t mlx_engine_token_bytes(const mlx_engine_t *engine, int32_t id, char **out_bytes,
                                    size_t *out_length) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Chat

// The model's chat template, borrowed from the engine; NULL when it has none.
const mlx_chat_t *mlx_engine_chat(const mlx_engine_t *engine);
// The same without an engine, from a bundle or from the text of a chat.json; |name| is what errors call it.
// MLX_NOT_FOUND when the bundle has no chat template. Release with mlx_chat_free.
mlx_status_t mlx_chat_open_bundle(const char *path, mlx_chat_t **out_chat) MLX_MUST_USE;
mlx_status_t mlx_chat_create(const char *name, const char *json, size_t length,
                             mlx_chat_t **out_chat) MLX_MUST_USE;  // NULL: it has none
// With |source|, Jinja, in the place of the model's own; |json| gives the special tokens and may be NULL. An
// error in the template is told at once; |name| is what errors call it.
mlx_status_t mlx_chat_create_with(const char *name, const char *source, size_t source_length,
                                  const char *json, size_t length, mlx_chat_t **out_chat) MLX_MUST_USE;
// The text of a bundle's chat.json; NULL when it has none. Release with mlx_free.
mlx_status_t mlx_chat_read_bundle(const char *path, char **out_json, size_t *out_length) MLX_MUST_USE;
void mlx_chat_free(mlx_chat_t *chat);  // NULL is fine
// The error that everybody gives about a model without a chat template.
mlx_status_t mlx_chat_missing(const char *name) MLX_MUST_USE;

typedef struct mlx_chat_options {
  const char
      *template_name;  // NULL: "tool_use" where there are tools and a template of that name, else "default"
  const char *tools;   // a JSON list of tools; NULL: none
  size_t tools_length;
  const char
      *variables;  // a JSON object of what else the template is to know ("enable_thinking"); NULL: nothing
  bool add_generation_prompt;  // end with the beginning of the model's turn
  int64_t now;                 // the time that a template is told, in seconds since 1970; 0: the clock's
} mlx_chat_options_t;
void mlx_chat_options_initialize(mlx_chat_options_t *out_options);  // with a generation prompt, and zeros

// Renders a JSON list of messages ({"role": ..., "content": ...}) as transformers' apply_chat_template does.
// Release the text with mlx_chat_free_text; it is complete, so tokens for it come from
// mlx_engine_tokenize_chat.
mlx_status_t mlx_chat_render(const mlx_chat_t *chat, const char *messages, size_t length,
                             const mlx_chat_options_t *options, char **out_text,
                             size_t *out_length) MLX_MUST_USE;
void mlx_chat_free_text(char *text);
// The template's source, or NULL when there is none of that name (NULL: the one that would be chosen).
// Borrowed from the chat.
const char *mlx_chat_source(const mlx_chat_t *chat, const char *template_name, bool has_tools);

// ----------------------------------------------------------------------------------------------------------
// Session

// Fails when all rows of the engine are taken. Release with mlx_session_free.
mlx_status_t mlx_session_create(mlx_engine_t *engine, mlx_session_t **out_session) MLX_MUST_USE;
void mlx_session_free(mlx_session_t *session);

int64_t mlx_session_length(const mlx_session_t *session);  // positions in use

// Reads |count| tokens after those already there, in chunks; *|out_next| is the model's choice for the token
// after them. Fails, before any work, when they do not fit into the context. After a failure on the way,
// mlx_session_length tells how many were read.
mlx_status_t mlx_session_read(mlx_session_t *session, const int32_t *ids, size_t count,
                              int32_t *out_next) MLX_MUST_USE;
// Takes the model's last choice into the sequence and chooses the next token.
mlx_status_t mlx_session_step(mlx_session_t *session, int32_t *out_next) MLX_MUST_USE;
// The same |count| times in as few calls as the model was compiled for; |out_ids| gets every choice. Fails,
// before any work, when they do not fit into the context. After a failure on the way, mlx_session_length
// tells how many were made.
mlx_status_t mlx_session_steps(mlx_session_t *session, int32_t *out_ids, size_t count) MLX_MUST_USE;
// Drops every position from |length| on, and with any of them the model's last choice: the session must read
// something before it goes on, or is asked for logits. Does nothing when there is nothing to drop.
mlx_status_t mlx_session_rewind(mlx_session_t *session, int64_t length) MLX_MUST_USE;
// Rewinds to what the session and |ids| begin with alike, *|out_kept| tokens: what follows them is left to
// read, and gives what a fresh session gives that reads all of |ids|. At least one token is left, since a
// choice comes from reading.
mlx_status_t mlx_session_resume(mlx_session_t *session, const int32_t *ids, size_t count,
                                size_t *out_kept) MLX_MUST_USE;
// The logits behind the last choice: |count| must be the vocabulary's size.
mlx_status_t mlx_session_logits(mlx_session_t *session, float *out_logits, size_t count) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Sampling: how a token is chosen (docs/sampling.md)

typedef struct mlx_logit_bias {
  int32_t id;
  double bias;  // added to the token's logit; -INFINITY: never
} mlx_logit_bias_t;

// In the order they are applied. With mirostat only biases, temperature and mirostat itself are.
typedef struct mlx_sampling {
  const mlx_logit_bias_t *biases;  // borrowed
  size_t bias_count;
  int64_t repeat_last_n;  // tokens that the penalties look back on; 0: none, -1: the context
  double repeat_penalty;  // 1: off
  double frequency_penalty, presence_penalty;  // 0: off
  double dry_multiplier;                       // 0: off
  double dry_base;
  int64_t dry_allowed_length, dry_last_n;  // last_n as above
  const char *const *dry_breakers;         // borrowed
  size_t dry_breaker_count;
  double top_n_sigma;       // 0 or less: off
  int64_t top_k;            // 0 or less: off
  double typical_p, top_p;  // 1: off
  double min_p;             // 0: off
  double xtc_probability;   // 0: off
  double xtc_threshold;     // more than 0.5: off
  double temperature;       // 0: the likeliest of what is left
  int64_t mirostat;         // 0: off, 1, 2
  double mirostat_tau, mirostat_eta;
  uint64_t seed;
} mlx_sampling_t;
void mlx_sampling_initialize(
    mlx_sampling_t *out_options);  // llama.cpp's defaults: temperature 0.8, top 40, ...
void mlx_sampling_initialize_greedy(mlx_sampling_t *out_options);  // the likeliest token, and nothing else
// Fails by the name of the option that makes no sense.
mlx_status_t mlx_sampling_check(const mlx_sampling_t *options) MLX_MUST_USE;

typedef struct mlx_logprob {
  int32_t id;
  double logprob;  // natural logarithm, from the model's own logits before anything is done to them
} mlx_logprob_t;

// ----------------------------------------------------------------------------------------------------------
// Generating text

typedef enum mlx_finish_reason {
  MLX_FINISH_STOP,      // the model ended its text
  MLX_FINISH_LENGTH,    // max_tokens
  MLX_FINISH_CONTEXT,   // the context is full
  MLX_FINISH_CANCELLED  // the callback said so
} mlx_finish_reason_t;
const char *mlx_finish_reason_name(mlx_finish_reason_t reason);

typedef struct mlx_generate_options {
  int64_t max_tokens;  // -1: until the model stops or the context is full
  bool ignore_eos;
  const mlx_sampling_t *sampling;  // NULL: the likeliest token. Borrowed, as all of this
  const mlx_grammar_t *grammar;    // what the text must be a text of; it ends only where it may. NULL: any
  int64_t logprobs;                // -1: none; N: those of every token and of the N best in its place
  // Called with text as it comes: whole UTF-8 characters only, possibly "". Tokens come one by one at first,
  // later, where nothing but the likeliest is wanted, in groups as large as the model was compiled for. False
  // stops. May be NULL.
  bool (*on_text)(void *user, const char *text, size_t length);
  void *user;
} mlx_generate_options_t;
void mlx_generate_options_initialize(mlx_generate_options_t *out_options);  // no limit, no callback

// Release with mlx_generation_clear.
typedef struct mlx_generation {
  int32_t *ids;  // owned
  size_t count;
  mlx_logprob_t *logprobs;  // owned; [count][options.logprobs + 1]: the best ones, then the token's own.
                            // NULL: not asked for
  char *text;               // owned, NUL-terminated
  size_t text_length;
  mlx_finish_reason_t finish_reason;
  double prompt_seconds, decode_seconds;
} mlx_generation_t;

// Reads |ids| and generates. Penalties look back on them and on what the session held before. A token that
// ends the text is counted in ids but gives no text. The last token is chosen but not yet part of the
// session: to go on from there, read it first.
mlx_status_t mlx_session_generate(mlx_session_t *session, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options,
                                  mlx_generation_t *out_generation) MLX_MUST_USE;
void mlx_generation_clear(mlx_generation_t *generation);

#endif  // MLXCEL_RUNTIME_MLXCEL_H_
