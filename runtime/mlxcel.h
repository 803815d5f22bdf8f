// mlxcel: the public interface of the runtime. The other rooms of this tree also include runtime/rooms.h.
//
//   engine         a compiled model, loaded on one device. Many sessions share an engine.
//   session        one token sequence and its pages of the engine's KV pool.
//   sampling       how the next token is chosen: temperature, top-p, penalties and so on.
//   scheduler      runs many requests on one engine, in shared steps. Requests may come and go at any step.
//   request        one sequence that a scheduler generates.
//   generation     the tokens and the text that a request or one call of mlx_session_generate produced.
//   chat           a model's chat template: renders a conversation as the text that the model reads.
//   conversation   messages with roles (template/conversation.h).
//   output format  how a model writes reasoning and tool calls (output/output_format.h).
//   grammar        a set of texts that the output must belong to (grammar/grammar.h).
//
// A minimal program, without error handling:
//
//   mlx_engine_options_t open;
//   mlx_engine_options_initialize(&open);
//   mlx_engine_t *engine;
//   status = mlx_open("model.gguf", &open, &engine);
//   int32_t *ids;
//   size_t count;
//   status = mlx_engine_tokenize(engine, "Hello", 5, &ids, &count);
//   mlx_session_t *session;
//   status = mlx_session_create(engine, &session);
//   mlx_generate_options_t generate;
//   mlx_generate_options_initialize(&generate);
//   mlx_generation_t result;
//   status = mlx_session_generate(session, ids, count, &generate, &result);
//   puts(result.text);
//   mlx_generation_clear(&result);
//   mlx_session_free(session);
//   mlx_engine_free_ids(ids);
//   mlx_engine_close(engine);
//
// Errors: a function that can fail returns a status (base/status.h). NULL is success. The caller frees any
// other status with mlx_status_free. A failed call that creates an object sets its out pointer to NULL.
// Ownership: the comment of every function that returns memory names the function that releases it. Option
// structs and the pointers in them are borrowed for the call only, unless a comment states otherwise.
// Threads: an engine, its sessions, its scheduler and their requests must be used by one thread at a time.
// The functions whose comment says "any thread" may also be called while another thread uses the engine.
// Text: all text is UTF-8. A length counts bytes, without a NUL.
//
// Installed, this header is <mlxcel/mlxcel.h>, beside the headers that it includes (docs/library.md). There
// the names begin with mlxcel_ and MLXCEL_ in place of mlx_ and MLX_, in the headers and in the symbols of
// the library (release/headers.cmake): mlx_ is the prefix of Apple's mlx-c, and a program may link both.
//
// Compatibility:
//   A patch version (0.1.0 to 0.1.1) changes no declaration of these headers. It replaces the shared library
//   under programs that were compiled before.
//   A minor version (0.1 to 0.2) may add functions, enumerators, and fields of structs. Programs must be
//   compiled again. Before 1.0 it may also remove or change declarations; CHANGELOG.md lists each.
//   The name of the shared library and the version of its symbols have both numbers (libmlxcel.so.0.1,
//   MLXCEL_0.1), so a program never loads a library that it does not match.
//   Initialize every option struct with its function, never field by field: a field that a later version adds
//   then has its default. Set a struct without such a function to 0 before its fields (mlx_output_options_t).
#ifndef MLXCEL_RUNTIME_MLXCEL_H_
#define MLXCEL_RUNTIME_MLXCEL_H_

#include <stdint.h>

#include "base/progress.h"
#include "base/status.h"
#include "grammar/grammar.h"
#include "output/output_format.h"
#include "template/chat_formats.h"
#include "template/conversation.h"

#ifdef __cplusplus
extern "C" {
#endif

// The version of the library: "0.1.0". The string is static.
const char *mlx_version(void);
// Releases memory that a comment assigns to it. NULL is fine.
void mlx_free(void *ptr);

typedef struct mlx_engine mlx_engine_t;
typedef struct mlx_session mlx_session_t;
typedef struct mlx_chat mlx_chat_t;

// ----------------------------------------------------------------------------------------------------------
// Opening an engine

typedef enum mlx_device_choice { MLX_USE_CPU, MLX_USE_CUDA, MLX_USE_AUTO } mlx_device_choice_t;

typedef struct mlx_engine_options {
  mlx_device_choice_t device;  // AUTO: a GPU if there is one and the model has code for it, else the CPU
  const char *reason;  // why the caller chose this device, for mlx_engine_info; NULL: the engine explains
  int threads;         // CPU worker threads, at most one for each CPU that this process may use; 0: that many
  int gpu;             // the GPU, from 0, in the driver's order; without one of this number, opening fails
  // Engines that share the free memory of the GPU: this one and those that are opened on it later; 0: 1. Its
  // weights and its KV cache get their part.
  int memory_shares;
  // Divide a source model over so many engines on the CPU, 2, 4 or 8, which compute each step together and
  // divide its threads: the first stage of tensor parallelism (docs/internals/tensor-parallel.md). 0: one.
  int ranks;
  // CPU level to run in a portable bundle, or to compile a source model for ("x86-64-v3"). NULL: the highest
  // that runs here.
  const char *cpu_level;
  // Context length of a session, in positions. 0: what the model supports, at most 8192, or less if memory is
  // short. -1: what the model supports. More than the model or the memory allows is an error.
  int64_t context;
  // Sessions that may exist at the same time; 0: 1. Of an encoder, texts of one step; 0: 64. -N means the
  // default, N for a model that generates and 64 for an encoder.
  int64_t sequences;
  uint64_t memory;      // most bytes of the KV cache; 0: what all sequences need, if they fit
  bool allow_unsigned;  // open a bundle even if another machine made it and no trusted key signed it
  // Formats of weights and of the KV cache, as the command's --dtype and --kv ("bf16"); NULL: the default. A
  // source model is compiled with them. A bundle that was compiled with others is an error, unless |dtype| is
  // "auto".
  const char *dtype, *kv;
  // For source models: as the command's --quantize ("q4") and --kernels ("required"). NULL: not quantized,
  // and "auto". A bundle with |quantize| is an error.
  const char *quantize, *kernels;
  // If not NULL, a text that a session must be able to read. Opening then fails before anything is compiled
  // or loaded if the text does not fit. mlx_engine_prompt returns its tokens.
  const char *prompt;
  size_t prompt_length;
  bool prompt_is_chat;   // a chat template rendered the prompt, so no special tokens are added to it
  bool prompt_is_plain;  // special tokens in the prompt are text (mlx_engine_tokenize_plain)
  // Progress of pulling, compiling and loading, and a way to cancel them (base/progress.h). NULL: none.
  const mlx_report_t *report;
  bool verbose;  // also report the formats of weights and the path of each op
} mlx_engine_options_t;
void mlx_engine_options_initialize(mlx_engine_options_t *out_options);  // MLX_USE_AUTO; everything else 0

// Opens any model: a bundle (.mlxb), a GGUF file, a Hugging Face directory, the name of a stored model, or
// what `mlxcel pull` accepts: hf:ORG/NAME, oci://HOST/NAME:TAG, the URL of a GGUF file, a short name
// ("qwen3:0.6b"). A model that is not here is pulled into the cache. A model that is not compiled is compiled
// into the cache: that needs iree-compile, and for a GPU NVRTC (docs/library.md). A library that was built
// without the compiler opens bundles only and fails with MLX_UNSUPPORTED for other models. Release with
// mlx_engine_close.
mlx_status_t mlx_open(const char *model, const mlx_engine_options_t *options,
                      mlx_engine_t **out_engine) MLX_MUST_USE;

// Closes the engine. All its sessions must be freed before. NULL is fine.
void mlx_engine_close(mlx_engine_t *engine);

typedef struct mlx_engine_info {
  const char *device;         // "cpu" or "cuda"
  const char *gpu;            // the GPU's name; "" on the CPU
  int gpu_number;             // the GPU, from 0
  const char *device_reason;  // why this device, if it was chosen by AUTO; else ""
  bool is_unsigned;           // an unsigned bundle from another machine, opened because of allow_unsigned
  int threads;                // CPU worker threads
  const char *architecture, *source, *target;  // from the manifest
  const char *dtype;                           // of weights: "f32", "bf16", "quantized"
  const char *kv;                              // of the KV cache: "f32", "bf16", "f16" or "q8"
  const char *activations;                     // "f32", or the 16-bit dtype that prefill rounds them to
  const char *cpu_level;                       // portable model: the CPU level whose code runs; else ""
  const char *levels;                          // portable model: all CPU levels it has code for; else ""
  const char *kernels;                         // "decode, linear", or "none (generic path)"
  int64_t context;                             // context length of a session, in positions
  int64_t model_context;                       // the longest that the model supports
  int64_t vocab;                               // tokens in the vocabulary
  int64_t sequences;                           // sessions that may exist at the same time
  int64_t hidden;                              // hidden size: the numbers of an embedding
  bool is_encoder;      // it computes embeddings and generates no text: it has no sessions
  bool is_normalized;   // embeddings have the Euclidean norm 1
  const char *pooling;  // of an embedding model: "mean", "cls", "last" or "max"; else ""
  // A classifier gives a text, or a pair of texts, so many scores and no embedding (mlx_engine_classify). A
  // reranker has one. It is an encoder, or a decoder that reads pairs only. 0: the model is no classifier.
  int64_t labels;
  // A mixture of experts: steps can report that a token was routed to |route_used| experts in each of
  // |route_layers| layers. 0: they cannot.
  int64_t route_layers, route_used;
  // Of an embedding model: texts that are put before a text; "": none. mlx_engine_embedding_prompt has all.
  const char *query_prompt, *document_prompt;
  const char *default_prompt;  // the one for a text without a choice
  const char *similarity;      // how to compare embeddings: "cosine", "dot", "euclidean" or "manhattan"
  uint64_t weight_bytes;       // all weights
  // The weights that one decode step reads: all but an embedding table that is not also the output head.
  uint64_t token_weight_bytes;
  uint64_t kv_bytes;  // keys and values of one position; 0 if unknown
  // The part of kv_bytes in layers with a sliding window, and the positions that those layers see; 0 if there
  // are none, or if the module keeps all their positions.
  uint64_t window_kv_bytes, window;
  uint64_t pool_bytes;  // KV cache of all sessions, at most; memory is taken as it is used
} mlx_engine_info_t;
// The strings are borrowed from the engine. Any thread.
mlx_engine_info_t mlx_engine_info(const mlx_engine_t *engine);

// The prompt |name| of an embedding model, borrowed from the engine; NULL if it has none of that name.
// "document" is also the prompt that the model calls "passage" or "corpus". Any thread.
const char *mlx_engine_embedding_prompt(const mlx_engine_t *engine, const char *name);
// The name of its prompt |index|; NULL after the last.
const char *mlx_engine_embedding_prompt_name(const mlx_engine_t *engine, size_t index);

// ----------------------------------------------------------------------------------------------------------
// Tokens. All functions: any thread.

// The tokens of mlx_engine_options_t.prompt, borrowed from the engine; NULL if there was no prompt.
const int32_t *mlx_engine_prompt(const mlx_engine_t *engine, size_t *out_count);
// The token ids of |text|, with the model's start token if it has one. Special tokens written in the text are
// recognized. Release with mlx_engine_free_ids.
mlx_status_t mlx_engine_tokenize(const mlx_engine_t *engine, const char *text, size_t length,
                                 int32_t **out_ids, size_t *out_count) MLX_MUST_USE;
// The same for a text that a chat template rendered. Such a text already has its start token; none is added.
mlx_status_t mlx_engine_tokenize_chat(const mlx_engine_t *engine, const char *text, size_t length,
                                      int32_t **out_ids, size_t *out_count) MLX_MUST_USE;
// The same for a text in which special tokens are text, as with llama.cpp's parse_special and Hugging Face's
// split_special_tokens: <|im_start|> becomes the tokens of its characters. |add_start| adds the model's start
// token. If the text has more than |limit| tokens, *|out_ids| is NULL, *|out_count| is more than |limit| and
// at most the number of tokens, and the rest of the text is not tokenized.
mlx_status_t mlx_engine_tokenize_plain(const mlx_engine_t *engine, const char *text, size_t length,
                                       bool add_start, size_t limit, int32_t **out_ids,
                                       size_t *out_count) MLX_MUST_USE;
// The token ids of a text for its embedding. One that is longer than the context is cut as
// sentence-transformers does it: the first tokens stay, and the special tokens around them.
mlx_status_t mlx_engine_tokenize_cut(const mlx_engine_t *engine, const char *text, size_t length,
                                     int32_t **out_ids, size_t *out_count) MLX_MUST_USE;
// A text and perhaps a second one, for a classifier: a query and a document. The texts need not end with NUL.
typedef struct mlx_text_pair {
  const char *first, *second;  // |second| NULL: one text
  size_t first_length, second_length;
  const char *instruction;  // of a decoder: the task, ends with NUL; NULL: the model's default
} mlx_text_pair_t;
// The token ids of a pair with the special tokens of the model, for a classifier only. An encoder: if they
// are more than the context, the longer text is cut first (Hugging Face's longest_first). A token of the
// second text may have its ID plus the size of the vocabulary: the model then gives it another token type. A
// decoder renders its chat template with messages of the roles "query" and "document", and "system" for an
// instruction; if the tokens are more than the context, the end of the texts is cut, and the template's end
// stays (sentence-transformers' restore_suffix).
mlx_status_t mlx_engine_tokenize_pair(const mlx_engine_t *engine, const mlx_text_pair_t *pair,
                                      int32_t **out_ids, size_t *out_count) MLX_MUST_USE;
void mlx_engine_free_ids(int32_t *ids);  // NULL is fine
// The bytes of one token, also of a special one. They may be part of a character. Release with mlx_free.
mlx_status_t mlx_engine_token_bytes(const mlx_engine_t *engine, int32_t id, char **out_bytes,
                                    size_t *out_length) MLX_MUST_USE;
bool mlx_engine_is_end(const mlx_engine_t *engine, int32_t id);  // an end-of-text token
// The text of |count| tokens; special tokens only with |special|. Ids without a token add nothing. Release
// with mlx_free.
mlx_status_t mlx_engine_detokenize(const mlx_engine_t *engine, const int32_t *ids, size_t count, bool special,
                                   char **out_text, size_t *out_length) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Chat templates. A chat does not change after it is created: any thread may render it.

// The model's chat template, borrowed from the engine; NULL if it has none.
const mlx_chat_t *mlx_engine_chat(const mlx_engine_t *engine);
// A chat template from the Jinja text |source|, in place of the model's own. |json| is the model's chat.json,
// for its special tokens, and may be NULL. Fails if the template does not parse. Release with mlx_chat_free.
mlx_status_t mlx_chat_create_from_source(const char *name, const char *source, size_t source_length,
                                         const char *json, size_t length, mlx_chat_t **out_chat) MLX_MUST_USE;
void mlx_chat_free(mlx_chat_t *chat);  // NULL is fine
// Makes the error that the model |name| has no chat template.
mlx_status_t mlx_chat_missing_error(const char *name) MLX_MUST_USE;

typedef struct mlx_chat_options {
  const char *template_name;  // NULL: "tool_use" if there are tools and such a template, else "default"
  const char *tools;          // a JSON list of tools; NULL: none
  size_t tools_length;
  const char *variables;       // a JSON object of extra template variables ("enable_thinking"); NULL: none
  bool add_generation_prompt;  // end with the start of an assistant message
  int64_t now;                 // the time that the template sees, in seconds since 1970; 0: the system clock
  // Special tokens in messages, other than those of the role "assistant", are text: the rendered text has
  // marks before them for mlx_engine_tokenize_chat of this engine. NULL: they become control tokens, as with
  // transformers.
  const mlx_engine_t *plain;
} mlx_chat_options_t;
void mlx_chat_options_initialize(mlx_chat_options_t *out_options);  // with a generation prompt; else 0

// Renders a JSON list of messages ({"role": ..., "content": ...}) as transformers' apply_chat_template does.
// Pass the text to mlx_engine_tokenize_chat: it is complete and needs no start token. Release it with
// mlx_chat_free_text.
mlx_status_t mlx_chat_render(const mlx_chat_t *chat, const char *messages, size_t length,
                             const mlx_chat_options_t *options, char **out_text,
                             size_t *out_length) MLX_MUST_USE;
void mlx_chat_free_text(char *text);  // NULL is fine
// The Jinja source of a template, borrowed from the chat. With |template_name| NULL it is the template that
// mlx_chat_render would use. Returns NULL if there is no such template.
const char *mlx_chat_source(const mlx_chat_t *chat, const char *template_name, bool has_tools);

// ----------------------------------------------------------------------------------------------------------
// Sessions
//
// A session holds the tokens of its sequence. After a read or a step it also holds the next token: the one
// that the model considers most likely. The next token becomes part of the sequence only with the next step.

// Fails with MLX_UNAVAILABLE if all sequences of the engine are in use. Release with mlx_session_free.
mlx_status_t mlx_session_create(mlx_engine_t *engine, mlx_session_t **out_session) MLX_MUST_USE;
void mlx_session_free(mlx_session_t *session);  // NULL is fine

// The number of tokens in the sequence, without the next token.
int64_t mlx_session_length(const mlx_session_t *session);

// Prefill: appends |count| tokens to the sequence, in chunks. *|out_next| is the next token. Fails before any
// work if the tokens do not fit into the context. After a failure part way, mlx_session_length returns how
// many tokens the sequence has.
mlx_status_t mlx_session_read(mlx_session_t *session, const int32_t *ids, size_t count,
                              int32_t *out_next) MLX_MUST_USE;
// Decode: appends the next token to the sequence. *|out_next| is the new next token.
mlx_status_t mlx_session_step(mlx_session_t *session, int32_t *out_next) MLX_MUST_USE;
// Decodes |count| steps, in as few calls of the module as possible. |out_ids| gets the next token after each
// step. Fails before any work if the steps do not fit into the context. After a failure part way,
// mlx_session_length returns how many tokens the sequence has.
mlx_status_t mlx_session_steps(mlx_session_t *session, int32_t *out_ids, size_t count) MLX_MUST_USE;
// Shortens the sequence to |length| tokens. Unless that is its present length, the next token is dropped too:
// the session must read at least one token before it can step or return logits.
mlx_status_t mlx_session_rewind(mlx_session_t *session, int64_t length) MLX_MUST_USE;
// Prefix reuse: rewinds to the longest common prefix of the sequence and |ids|, which is *|out_kept| tokens.
// The caller then reads the remaining ids. The result is the same as reading all of |ids| in a new session.
// At least one id always remains to read, because the next token comes from reading.
mlx_status_t mlx_session_resume(mlx_session_t *session, const int32_t *ids, size_t count,
                                size_t *out_kept) MLX_MUST_USE;
// The logits from which the next token was chosen. |count| must be the vocabulary size. A logit that is not
// finite is an error.
mlx_status_t mlx_session_logits(mlx_session_t *session, float *out_logits, size_t count) MLX_MUST_USE;
// Prefill that scores the tokens: appends all of |ids| but the last one. |out_logprobs|[i], for i below
// |count| - 1, is the log-probability of ids[i + 1] after ids[i] and everything before it. If |on_logits| is
// not NULL, it is called for each i in order with the logits, which are borrowed for the call; a failure that
// it returns ends the work. Afterwards the session must read a token before it can step or return logits.
// Fails before any work if the tokens do not fit into the context. A logit that is not finite is an error.
mlx_status_t mlx_session_score(mlx_session_t *session, const int32_t *ids, size_t count, float *out_logprobs,
                               mlx_status_t (*on_logits)(void *user, size_t index, const float *logits),
                               void *user) MLX_MUST_USE;

// The embedding of |ids|: the hidden state of the last token, which the output head reads, divided by its
// Euclidean norm. |size| must be the hidden size. The session drops its sequence before and holds |ids|
// after. A value that is not finite is an error.
mlx_status_t mlx_session_embed(mlx_session_t *session, const int32_t *ids, size_t count, float *out_embedding,
                               size_t size) MLX_MUST_USE;

// The embeddings of |count| texts. Text i has the counts[i] tokens ids[i]. Texts share steps, and each gets
// the bits that it gets alone. A row of |out_embeddings| [count][size] has the first |size| numbers of an
// embedding; fewer than the hidden size are divided by their Euclidean norm, if the model's embeddings have
// the norm 1. |on_done|, if it is not NULL, is called with the number of texts that are done; false ends the
// work with MLX_CANCELLED. Not while a scheduler of the engine has requests.
mlx_status_t mlx_engine_embed(mlx_engine_t *engine, const int32_t *const *ids, const size_t *counts,
                              size_t count, float *out_embeddings, size_t size,
                              bool (*on_done)(void *user, size_t done), void *user) MLX_MUST_USE;

// The scores of |count| pairs by a classifier: row i of |out_scores| [count][labels]. They are what
// sentence-transformers' CrossEncoder computes: a model with one label usually gives sigmoids, unless |raw|.
// Pairs share steps, and each gets the bits that it gets alone. |on_done| as in mlx_engine_embed. Not while a
// scheduler of the engine has requests.
mlx_status_t mlx_engine_classify(mlx_engine_t *engine, const mlx_text_pair_t *pairs, size_t count, bool raw,
                                 float *out_scores, bool (*on_done)(void *user, size_t done),
                                 void *user) MLX_MUST_USE;
// Turns |count| numbers that the network of a classifier computed into scores. For requests of a scheduler
// with options.embed, whose result is such numbers. Any thread.
void mlx_engine_activate_scores(const mlx_engine_t *engine, float *scores, size_t count);

// ----------------------------------------------------------------------------------------------------------
// Sampling (docs/sampling.md)

typedef struct mlx_logit_bias {
  int32_t id;
  double bias;  // added to the token's logit; -INFINITY forbids the token
} mlx_logit_bias_t;

// The fields are in the order in which they are applied. With mirostat only the biases, the temperature and
// mirostat itself apply.
typedef struct mlx_sampling {
  const mlx_logit_bias_t *biases;
  size_t bias_count;
  int64_t repeat_last_n;  // tokens that the three penalties look back on; 0: none, -1: the whole context
  double repeat_penalty;  // 1: off
  double frequency_penalty, presence_penalty;  // 0: off
  double dry_multiplier;                       // 0: off
  double dry_base;
  int64_t dry_allowed_length;
  int64_t dry_last_n;               // tokens that DRY looks back on; 0: none, -1: the whole context
  const char *const *dry_breakers;  // sequence breakers: texts across which DRY sees no repetition
  size_t dry_breaker_count;
  double top_n_sigma;       // 0 or less: off
  int64_t top_k;            // 0 or less: off
  double typical_p, top_p;  // 1: off
  double min_p;             // 0: off
  double xtc_probability;   // 0: off
  double xtc_threshold;     // above 0.5: off
  double temperature;       // 0: the most likely of the remaining tokens
  int64_t mirostat;         // 0: off; 1 or 2: the version
  double mirostat_tau, mirostat_eta;
  uint64_t seed;
} mlx_sampling_t;
// llama.cpp's defaults: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05.
void mlx_sampling_initialize(mlx_sampling_t *out_options);
// Greedy decoding: always the most likely token.
void mlx_sampling_initialize_greedy(mlx_sampling_t *out_options);
// Fails if an option is out of range. The error names the command-line flag.
mlx_status_t mlx_sampling_check(const mlx_sampling_t *options) MLX_MUST_USE;

typedef struct mlx_logprob {
  int32_t id;
  // Natural logarithm of the softmax of the model's own logits, before any sampling option, unless
  // options.sampled_logprobs was set.
  double logprob;
} mlx_logprob_t;

// ----------------------------------------------------------------------------------------------------------
// Generating text

typedef struct mlx_scheduler mlx_scheduler_t;
typedef struct mlx_request mlx_request_t;

const char *mlx_finish_reason_name(mlx_finish_reason_t reason);

#define MLX_MAX_STOPS 64          // stop strings of one request
#define MLX_MAX_STOP_LENGTH 4096  // bytes of a stop string

typedef struct mlx_token_list {
  const int32_t *ids;
  size_t count;
} mlx_token_list_t;

typedef struct mlx_generate_options {
  int64_t max_tokens;              // -1: until the model stops or the context is full
  bool ignore_eos;                 // continue after an end-of-text token
  const mlx_sampling_t *sampling;  // NULL: always the most likely token
  // The text must match it, and ends only where it may; NULL: any text. It must outlive the request.
  const mlx_grammar_t *grammar;
  int64_t logprobs;  // N: log-probabilities of each token and of the N most likely; -1: none
  // With |logprobs|: those of the distribution that the token is drawn from, after all sampling options,
  // instead of the model's own. Where fewer than N tokens remain, the ID of the others is -1.
  bool sampled_logprobs;
  // Requests of a scheduler only: the same for each token of the prompt but the first. All tokens of such a
  // prompt are computed, also if other requests have computed the same tokens. -1: none.
  int64_t prompt_logprobs;
  // Stop strings: generation ends as soon as the text contains one of them. The result's text ends before it.
  // A stop string may begin and end inside a token. Text that may be its beginning is held back.
  const char *const *stops;
  size_t stop_count;
  // Tokens that end the generation as an end-of-text token does, also with ignore_eos.
  const int32_t *stop_ids;
  size_t stop_id_count;
  int64_t min_tokens;          // before so many, no end-of-text token and none of |stop_ids| is generated
  const int32_t *allowed_ids;  // only these are generated; also end-of-text tokens only if they are listed
  size_t allowed_id_count;     // 0: all
  const mlx_token_list_t *banned;  // sequences of tokens that are not generated; each has at least one
  size_t banned_count;
  // Special tokens ("<|channel|>") that are part of the text, and that a grammar may require. Other special
  // tokens and end-of-text tokens never are. Texts that are no special token of the model are ignored.
  const char *const *visible_tokens;
  size_t visible_token_count;
  // Requests of a scheduler only: the experts that tokens were routed to, of the tokens from |routes_from|
  // on. All these tokens are computed, also if other requests have computed the same tokens.
  // MLX_UNSUPPORTED if mlx_engine_info_t.route_used is 0.
  bool routes;
  size_t routes_from;
  int64_t priority;  // requests of a scheduler only: a higher one is served first; 0: the default
  bool embed;        // requests of a scheduler only: generate nothing, compute the embedding of the tokens
  bool embed_raw;    // with |embed|: keep the norm, also if the model's embeddings have the norm 1
  // Called with new text as it is generated: complete UTF-8 characters, possibly "". At first each token
  // makes one call. Later, if only one sequence runs, one call covers all tokens that the module decodes at
  // once. Return false to stop. May be NULL.
  bool (*on_text)(void *user, const char *text, size_t length);
  // Called while the prompt is read: when a chunk of it is queued, with the tokens before that chunk, and
  // with |done| equal to |total| before the first text. Both count the tokens of the sequence, also those
  // that a session held before. May be NULL.
  void (*on_prompt)(void *user, size_t done, size_t total);
  // Requests of a scheduler only: called once, when the request is done, for whatever reason. It may free the
  // request. Not called for a request that mlx_request_free cancels. May be NULL.
  void (*on_done)(void *user, mlx_request_t *request);
  void *user;
} mlx_generate_options_t;
void mlx_generate_options_initialize(mlx_generate_options_t *out_options);  // greedy, no limit, no callback

// Release with mlx_generation_clear.
typedef struct mlx_generation {
  int32_t *ids;
  size_t count;
  // [count][options.logprobs + 1]: the most likely tokens, then the chosen one; NULL if not requested.
  mlx_logprob_t *logprobs;
  // [tokens of the prompt - 1][options.prompt_logprobs + 1]: the most likely tokens, then that of the prompt.
  // Complete when the first token is generated; NULL if not requested.
  mlx_logprob_t *prompt_logprobs;
  // [route_count][route_layers][route_used] if options.routes was set: the experts of the tokens of prompt
  // and output from options.routes_from on, the one with the largest weight first; -1 in layers without
  // experts. The last generated token has none: no step has read it.
  int16_t *routes;
  size_t route_count;
  int64_t route_layers, route_used;
  char *text;  // NUL-terminated
  size_t text_length;
  float *embedding;  // [mlx_engine_info_t.hidden] if options.embed was set; else NULL
  mlx_finish_reason_t finish_reason;
  int64_t stop;           // index of the stop string that ended the text; -1: none
  int64_t cached_tokens;  // prompt tokens that were not computed, because other requests had computed them
  double queue_seconds;   // until the request ran first
  double prompt_seconds;  // until the first token; for a request, since it was submitted
  double decode_seconds;  // from the first token to the last
} mlx_generation_t;

// Reads |ids| and then generates. Penalties also look back on |ids| and on the sequence before them. An
// end-of-text token is part of the result's ids but not of its text. The last id of the result is not part of
// the sequence yet: to continue after it, read it first.
mlx_status_t mlx_session_generate(mlx_session_t *session, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options,
                                  mlx_generation_t *out_generation) MLX_MUST_USE;
void mlx_generation_clear(mlx_generation_t *generation);

// ----------------------------------------------------------------------------------------------------------
// Scheduler: many requests at once (docs/internals/scheduler.md)
//
// A step is one forward pass over tokens of any requests: one token of each request that is generating, and
// chunks of the prompts that are still to be read. Requests join and leave between steps. Each request gets
// exactly the tokens that it would get alone.
//
//   mlx_scheduler_options_t options;
//   mlx_scheduler_options_initialize(&options);
//   status = mlx_scheduler_create(engine, &options, &scheduler);
//   status = mlx_scheduler_submit(scheduler, ids, count, &generate, &request);   // any number of them
//   status = mlx_scheduler_run(scheduler);                                       // or step by step
//   puts(mlx_request_generation(request)->text);
//   mlx_request_free(request);
//   mlx_scheduler_free(scheduler);
//
// Callbacks run inside mlx_scheduler_step, on its thread. A callback may submit requests and cancel any
// request. It must not call mlx_scheduler_step, mlx_scheduler_run or mlx_scheduler_free, or use a session.
// on_text must not free a request; on_done may free its own.
//
// Failures: an error that concerns one request (its grammar, its logits) ends that request only, with
// MLX_FINISH_ERROR; mlx_request_take_status has the error, and mlx_scheduler_step succeeds. If a step itself
// fails (the device, memory), all running requests end with that error and mlx_scheduler_step returns it.
// Requests that wait are not affected: the next step starts them.

typedef struct mlx_scheduler_options {
  int64_t max_batch_tokens;  // most tokens of a step; 0: as many as the module computes at once
  int64_t max_running;  // most requests that run at the same time; 0: as many as the engine has sequences
  // Most prompt tokens of a step that also generates tokens for other requests. It limits how long a new
  // prompt delays them. 0: a default for the device, 256 on a GPU.
  int64_t max_prompt_chunk;
  // Share of the time that prompts may take while other requests generate, above 0 and at most 1. Requests
  // that generate keep the rest of their speed. 0: the default, 2/3; 1: no limit but max_prompt_chunk.
  double prefill_share;
  bool share_prefixes;   // requests whose tokens begin alike share the KV pages of that prefix
  bool count_near_ties;  // fill in mlx_scheduler_stats_t.near_ties; costs the log-probabilities of each token
} mlx_scheduler_options_t;
void mlx_scheduler_options_initialize(mlx_scheduler_options_t *out_options);  // shares prefixes; else 0

// At most one scheduler per engine. Sessions may exist beside it; they take pages and sequences of the same
// engine. A call of a session also advances the scheduler's requests, and runs their callbacks. Release with
// mlx_scheduler_free.
mlx_status_t mlx_scheduler_create(mlx_engine_t *engine, const mlx_scheduler_options_t *options,
                                  mlx_scheduler_t **out_scheduler) MLX_MUST_USE;
// Waits for the steps that the device still runs. All requests must be freed before. NULL is fine.
void mlx_scheduler_free(mlx_scheduler_t *scheduler);

// Adds a request. The work is done by later steps. |ids| and |options| are copied, except the grammar. Fails
// before any work if an option is out of range, if the tokens do not fit into the context or into the KV
// pool. Release with mlx_request_free.
mlx_status_t mlx_scheduler_submit(mlx_scheduler_t *scheduler, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options,
                                  mlx_request_t **out_request) MLX_MUST_USE;
// One scheduling step: queues a step on the device, then waits for the oldest one in the queue, adds its
// tokens to their requests and runs the callbacks. *|out_idle| is true if no request is left to run.
mlx_status_t mlx_scheduler_step(mlx_scheduler_t *scheduler, bool *out_idle) MLX_MUST_USE;
// Steps until no request is left to run. Stops at the first step that fails.
mlx_status_t mlx_scheduler_run(mlx_scheduler_t *scheduler) MLX_MUST_USE;

// While no request is left: gives the memory of the KV pool back to the system, on a CPU. Prefixes that were
// kept for later requests are lost. Returns false, and changes nothing, on a GPU, or while sequences have
// pages.
bool mlx_scheduler_trim(mlx_scheduler_t *scheduler);

// Ends the request with what it has generated. The next step calls on_done. Does nothing if it is done.
void mlx_request_cancel(mlx_request_t *request);
bool mlx_request_is_done(const mlx_request_t *request);
// What the request has generated so far; complete when it is done. The text is complete only then: before, it
// may end in text that is held back for a stop string. Borrowed; valid until the next step.
const mlx_generation_t *mlx_request_generation(const mlx_request_t *request);
// The error that ended the request; NULL if there is none. The caller frees it; a second call returns NULL.
mlx_status_t mlx_request_take_status(mlx_request_t *request) MLX_MUST_USE;
// Also cancels a request that is not done, without calling on_done. NULL is fine.
void mlx_request_free(mlx_request_t *request);

typedef struct mlx_scheduler_stats {
  int64_t running, waiting;                      // requests
  int64_t pages_used, pages_cached, pages_free;  // of the KV pool; cached: kept for later prefixes, no user
  // The same of window pages, which hold the layers with a sliding window; 0 if the model has none.
  int64_t window_pages_used, window_pages_cached, window_pages_free;
  // Since the scheduler was created:
  int64_t steps;                         // calls of the module
  int64_t step_sequences;                // sequences of each call, added up
  int64_t prompt_tokens, output_tokens;  // tokens read, and tokens generated
  int64_t prefix_queries;                // tokens that were looked for in pages of earlier sequences
  int64_t prefix_hits;                   // tokens that were not computed because their pages were shared
  int64_t preemptions;                   // requests that lost their pages to others and were read again
  int64_t near_ties;  // tokens whose two best candidates differ by less than 1e-5 in log-probability
} mlx_scheduler_stats_t;
mlx_scheduler_stats_t mlx_scheduler_stats(const mlx_scheduler_t *scheduler);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MLXCEL_RUNTIME_MLXCEL_H_
