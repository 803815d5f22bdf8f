// What the rooms of this tree need of the runtime beside the public header: open/, server/ and cli/ include
// it. Not installed. The rules of runtime/mlxcel.h for errors, ownership, threads and text hold here too.
#ifndef MLXCEL_RUNTIME_ROOMS_H_
#define MLXCEL_RUNTIME_ROOMS_H_

#include "base/weight_reader.h"
#include "runtime/mlxcel.h"
#include "runtime/page_watcher.h"
#include "tokenizer/tokenizer.h"

#define MLX_PAGE_POSITIONS 16  // of a page of the KV pool

// ----------------------------------------------------------------------------------------------------------
// Opening an engine

// True if |path| looks like a bundle, so that mlx_engine_open_bundle is worth trying.
bool mlx_engine_is_bundle(const char *path);
// Opens a bundle (.mlxb), which is a directory or one file. Chooses the best of its targets for this machine.
// Checks every file against its digest before use. Release with mlx_engine_close.
mlx_status_t mlx_engine_open_bundle(const char *path, const mlx_engine_options_t *options,
                                    mlx_engine_t **out_engine) MLX_MUST_USE;
// Opens only the tokenizer of a bundle, for the functions of tokenizer/.
mlx_status_t mlx_engine_open_tokenizer(const char *path, mlx_tokenizer_t **out_tokenizer) MLX_MUST_USE;
// True if mlx_engine_open_bundle refuses this bundle because of its contract version or IREE version.
// Compiling the model again fixes that.
bool mlx_engine_needs_recompile(const char *path);

// The parts of a model that was compiled into the local cache. All pointers but |tokenizer| and |prompt| are
// borrowed for the call.
typedef struct mlx_model_parts {
  const char *name;           // the model's name, for messages
  const char *manifest_name;  // the name of the manifest, for messages
  const char *manifest;       // JSON text
  size_t manifest_length;
  mlx_tokenizer_t *tokenizer;  // from tokenizer/; the engine takes it over, also if opening fails
  // The tokens of mlx_engine_options_t.prompt, if mlx_engine_check_prompt was called for it; else NULL. The
  // engine takes them over, also if opening fails.
  int32_t *prompt;
  size_t prompt_count;
  const char *chat;  // the text of chat.json; NULL: the model has no chat template
  size_t chat_length;
  const char *vmfb_path;
  const char *weights_path;  // the archive; NULL: |weights|, for a GPU only
  const mlx_weight_reader_t *weights;
} mlx_model_parts_t;
// Opens an engine from parts. Release with mlx_engine_close.
mlx_status_t mlx_engine_open(const mlx_model_parts_t *parts, const mlx_engine_options_t *options,
                             mlx_engine_t **out_engine) MLX_MUST_USE;
// Opens the ranks of a model, 2 to 8 parts that were compiled for them (mlx_compile_options_t.rank), as one
// engine on the CPU. The first one has the tokenizer. Takes what mlx_engine_open takes. Release with
// mlx_engine_close.
mlx_status_t mlx_engine_open_ranks(const mlx_model_parts_t *parts, size_t count,
                                   const mlx_engine_options_t *options,
                                   mlx_engine_t **out_engine) MLX_MUST_USE;
// Reads a token and generates two, so that code and weights are in memory before the first request. Before
// there are requests or sessions; leaves no pages in use or published.
mlx_status_t mlx_engine_warm(mlx_engine_t *engine) MLX_MUST_USE;

// From now on |watcher| learns which pages of the prefix cache can be found. Before there are requests or
// sessions. Its |user| must be valid until mlx_engine_close has returned.
void mlx_engine_watch_pages(mlx_engine_t *engine, const mlx_page_watcher_t *watcher);
// True if the weights cannot be read any more: their file was truncated, or its disk has an error. All
// further steps fail. Only in a process that recovers from such faults (base/fault.h). Any thread.
bool mlx_engine_is_damaged(const mlx_engine_t *engine);

// The error for an embedding of a classifier.
mlx_status_t mlx_classifier_embeds_nothing(void) MLX_MUST_USE;
// Fails, with the hint what to use instead, unless the engine's model is a classifier with one label: a
// cross-encoder, which ranks documents for a query.
mlx_status_t mlx_engine_check_reranker(const mlx_engine_t *engine) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Information about this machine, without an engine

// The compiler target of the GPU |gpu| ("cuda:sm_90") and its memory in bytes. Fails with MLX_UNAVAILABLE,
// and the reason, if there is no usable GPU; with MLX_USAGE if there is none of this number.
mlx_status_t mlx_engine_gpu_target(int gpu, char *out_target, size_t size, uint64_t *out_memory) MLX_MUST_USE;
// One line about the GPU |gpu|: "NVIDIA H200, sm_90, 139.8 GiB, driver for CUDA 13.0". *|out_count| is the
// number of GPUs. Fails as mlx_engine_gpu_target.
mlx_status_t mlx_engine_gpu_text(int gpu, char *out_text, size_t size, int *out_count) MLX_MUST_USE;
// Ranks code for |target| on this machine: 0 if it does not run here or the target is unknown, else higher is
// better. Any GPU ranks above any CPU, a newer GPU or CPU level above an older one, and code compiled for
// exactly this CPU above any CPU level. For the target cpu:host, |cpu| identifies the CPU it was compiled on
// (mlx_variant_t.cpu); else it is "".
size_t mlx_engine_rank_target(const char *target, const char *cpu);
// Runs the test module of mlx_compile_smoke on a device and checks the result.
mlx_status_t mlx_engine_smoke(mlx_device_choice_t device, const char *vmfb_path) MLX_MUST_USE;
// The check of mlx_engine_options_t.prompt, from a tokenizer: it needs no compiled model. *|out_ids| is NULL
// if there is no prompt; release it with mlx_engine_free_ids. |model_context| is the longest context that the
// model supports; the error's hint names it.
mlx_status_t mlx_engine_check_prompt(const mlx_tokenizer_t *tokenizer, const mlx_engine_options_t *options,
                                     int64_t context, int64_t model_context, int64_t vocab, int32_t **out_ids,
                                     size_t *out_count) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Tokens

// mlx_engine_tokenize, or mlx_engine_tokenize_chat if |is_chat|, with a |limit| as in
// mlx_engine_tokenize_plain. Any thread.
mlx_status_t mlx_engine_tokenize_within(const mlx_engine_t *engine, const char *text, size_t length,
                                        bool is_chat, size_t limit, int32_t **out_ids,
                                        size_t *out_count) MLX_MUST_USE;
// Any thread. Finds the id of the token that the tokenizer's file spells |token|. False: there is none.
bool mlx_engine_find_token(const mlx_engine_t *engine, const char *token, int32_t *out_id);
// Any thread. The end-of-text tokens, borrowed.
const int32_t *mlx_engine_ends(const mlx_engine_t *engine, size_t *out_count);
// Builds the tables that requests with a grammar need, so that the first such request does not wait for
// them. May run beside other threads that use the engine, if none of them uses a grammar before it has
// returned. Not by two threads at a time.
mlx_status_t mlx_engine_prepare_grammars(mlx_engine_t *engine) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Requests of a scheduler, on its thread

// The |user| of each request that has a sequence and pages, at most |capacity| of them. Returns how many
// there are.
size_t mlx_scheduler_running(const mlx_scheduler_t *scheduler, void **out_users, size_t capacity);
// Tokens of the prompt that steps have read.
size_t mlx_request_read_tokens(const mlx_request_t *request);

// ----------------------------------------------------------------------------------------------------------
// Embeddings

// mlx_engine_tokenize_cut with a |limit| instead of the context. |plain|: special tokens in the text are text
// (mlx_engine_tokenize_plain). Any thread.
mlx_status_t mlx_engine_tokenize_first(const mlx_engine_t *engine, const char *text, size_t length,
                                       bool plain, size_t limit, int32_t **out_ids,
                                       size_t *out_count) MLX_MUST_USE;
// Gives the embedding of |tokens| tokens the Euclidean norm 1 if |normalize|. Fails if it is not finite.
mlx_status_t mlx_embedding_finish(float *embedding, size_t size, size_t tokens, bool normalize) MLX_MUST_USE;
// The score that the class head |row| of a decoder gives a hidden state. Summed in double.
float mlx_embedding_score(const float *hidden, const float *row, size_t size);
// The error for a request that wants text of an encoder.
mlx_status_t mlx_encoder_generates_nothing(bool is_classifier) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Chat templates

// The chat template in the text of a chat.json. *out_chat is NULL if the text has none. |name| identifies the
// text in error messages. Release with mlx_chat_free.
mlx_status_t mlx_chat_create(const char *name, const char *json, size_t length,
                             mlx_chat_t **out_chat) MLX_MUST_USE;
// The text of a bundle's chat.json; NULL if it has none. Release with mlx_free.
mlx_status_t mlx_chat_read_bundle(const char *path, char **out_json, size_t *out_length) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Scoring

// Texts of |length| tokens each. |ids| and |logprobs| are borrowed for the call.
typedef struct mlx_texts {
  const int32_t *ids;    // [count][length]
  size_t count, length;  // |length| is at least |context| + 2
  size_t context;        // first tokens of each text whose next token is not scored
  float *logprobs;       // [count][length - 1 - context] out: of token |context| + 1 and those after it
  mlx_status_t (*on_logits)(void *user, size_t index,
                            const float *logits);  // as in mlx_session_score; or NULL
  void (*on_text)(void *user, size_t index);       // called when a text's |logprobs| are stored; may be NULL
  void *user;
} mlx_texts_t;
// Scores independent texts at the speed of prefill: steps of the next text are queued before those of the
// last one have ended. Each text continues the session's tokens, which stay as they are. Otherwise like
// mlx_session_score.
mlx_status_t mlx_session_score_texts(mlx_session_t *session, const mlx_texts_t *texts) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_ROOMS_H_
