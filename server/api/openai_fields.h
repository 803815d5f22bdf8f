// Fields that several of OpenAI's requests have, with llama.cpp's and vLLM's additions. For APIs only.
#ifndef MLXCEL_SERVER_API_OPENAI_FIELDS_H_
#define MLXCEL_SERVER_API_OPENAI_FIELDS_H_

#include "server/api/token_fields.h"

// How tools are written: {"type": "function", "function": {"name": ...}} in chat completions, and
// {"type": "function", "name": ...} in responses.
typedef enum mlx_tool_form { MLX_TOOL_NESTED, MLX_TOOL_FLAT } mlx_tool_form_t;

// Rows of the fields that mlx_openai_read_generation reads, and of fields of llama.cpp and vLLM that every
// endpoint ignores or refuses.
#define MLX_OPENAI_GENERATION_FIELDS                                                                     \
  MLX_SAMPLING_FIELDS, MLX_TOKEN_FIELDS, MLX_READ("model"), MLX_READ("stop"), MLX_READ("logit_bias"),    \
      MLX_READ("stream"), MLX_READ("stream_options"), MLX_READ("ignore_eos"), MLX_READ("priority"),      \
      MLX_READ("grammar"), MLX_READ("json_schema"), MLX_READ("guided_json"), MLX_READ("guided_grammar"), \
      MLX_READ("guided_choice"), MLX_READ("guided_regex"), MLX_READ("structured_outputs"),               \
      MLX_READ("skip_special_tokens"), MLX_READ("parse_special"), MLX_READ("verbose"),                   \
      MLX_READ("return_progress"), MLX_IGNORE("user", "the server has no accounts"),                     \
      MLX_IGNORE("metadata", "nothing is stored"), MLX_IGNORE("store", "only responses are stored"),     \
      MLX_IGNORE("service_tier", "there is one tier"),                                                   \
      MLX_IGNORE("safety_identifier", "the server has no accounts"),                                     \
      MLX_IGNORE("prompt_cache_key", "equal prefixes are always shared"),                                \
      MLX_IGNORE("prompt_cache_retention", "equal prefixes are always shared"),                          \
      MLX_IGNORE("prompt_cache_options", "equal prefixes are always shared"),                            \
      MLX_IGNORE("cache_prompt", "equal prefixes are always shared"),                                    \
      MLX_IGNORE("id_slot", "sequences have no fixed slots"),                                            \
      MLX_IGNORE("n_keep", "the context is never shifted"),                                              \
      MLX_IGNORE("n_discard", "the context is never shifted"),                                           \
      MLX_IGNORE("dynatemp_exponent", "it matters only with dynatemp_range, which is refused"),          \
      MLX_IGNORE("timings_per_token", "timings come with the last chunk"),                               \
      MLX_IGNORE("backend_sampling", "sampling runs on the device where it can"),                        \
      MLX_IGNORE("request_id", "the server makes its own ids"),                                          \
      MLX_IGNORE("spaces_between_special_tokens", "special tokens are not part of the text"),            \
      MLX_IGNORE("guided_decoding_backend", "there is one grammar engine"),                              \
      MLX_IGNORE("length_penalty", "it matters only for beam search, which is refused"),                 \
      MLX_IGNORE("early_stopping", "it matters only for beam search, which is refused"),                 \
      MLX_IGNORE("keep_alive", "the server decides when a model is unloaded"),                           \
      MLX_IGNORE("usage", "usage is always sent"), MLX_IGNORE("provider", "there is one provider"),      \
      MLX_IGNORE("transforms", "prompts are never changed"),                                             \
      MLX_IGNORE("session_id", "requests are independent"),                                              \
      MLX_REFUSE_VALUE("dynatemp_range", "use temperature"),                                             \
      MLX_REFUSE_VALUE("samplers", "the order of the samplers is fixed: docs/sampling.md"),              \
      MLX_REFUSE_VALUE("min_keep", "leave it out"), MLX_REFUSE_VALUE("n_probs", "use logprobs"),         \
      MLX_REFUSE_VALUE("post_sampling_probs", "use /completion"),                                        \
      MLX_REFUSE_VALUE("t_max_predict_ms", "use max_tokens"),                                            \
      MLX_REFUSE_VALUE("t_max_prompt_ms", "leave it out"),                                               \
      MLX_REFUSE_VALUE("lora", "merge the adapter into the model"),                                      \
      MLX_REFUSE_VALUE("grammar_lazy", "use tools with tool_choice"),                                    \
      MLX_REFUSE_VALUE("grammar_triggers", "use tools with tool_choice"),                                \
      MLX_REFUSE_VALUE("preserved_tokens", "leave it out"),                                              \
      MLX_REFUSE_VALUE("response_fields", "leave it out"),                                               \
      MLX_REFUSE_VALUE("return_tokens", "use /tokenize"),                                                \
      MLX_REFUSE_VALUE("return_tokens_as_token_ids", "logprobs have the id of each token"),              \
      MLX_REFUSE_VALUE("include_stop_str_in_output", "append the stop string in the client"),            \
      MLX_REFUSE_VALUE("use_beam_search", "use n with a temperature"),                                   \
      MLX_REFUSE_VALUE("guided_whitespace_pattern", "use a grammar"),                                    \
      MLX_REFUSE_VALUE("logits_processors", "use logit_bias or a grammar"),                              \
      MLX_REFUSE_VALUE("cache_salt", "equal prefixes are always shared: run a server per tenant"),       \
      MLX_REFUSE_VALUE("kv_transfer_params", "leave it out"),                                            \
      MLX_REFUSE_VALUE("vllm_xargs", "leave it out"),                                                    \
      MLX_REFUSE_VALUE("mm_processor_kwargs", "this server reads text only")

// Reads them. *out_include_usage is stream_options.include_usage.
mlx_status_t mlx_openai_read_generation(const mlx_place_t *root, mlx_api_call_t *call,
                                        bool *out_include_usage) MLX_MUST_USE;
// Reads the limit from any of |keys| (NULL-terminated); two keys with different values are an error. -1 means
// no limit.
mlx_status_t mlx_openai_read_max_tokens(const mlx_place_t *root, const char *const *keys, int64_t min,
                                        mlx_api_call_t *call) MLX_MUST_USE;
// Reads the value of response_format or of text.format. |flat| is the form of responses, in which name and
// schema are members of the format itself.
mlx_status_t mlx_openai_read_format(const mlx_place_t *format, bool flat, mlx_api_call_t *call) MLX_MUST_USE;

// The messages of a chat completion as call->messages. The last message may ask to be continued.
mlx_status_t mlx_openai_read_messages(const mlx_place_t *messages, mlx_api_call_t *call) MLX_MUST_USE;
// The name of a function of a namespace, as the model sees it: namespace and name.
#define MLX_OPENAI_SPACED_NAME "%s__%s"
bool mlx_openai_is_namespace(yyjson_val *tool);
// A list of tools as call->tools. |skipped| lists types that are left out, except functions of a namespace;
// NULL: none, and there are no namespaces. Any other type than function is MLX_UNSUPPORTED.
mlx_status_t mlx_openai_read_tools(const mlx_place_t *tools, mlx_tool_form_t form, const char *const *skipped,
                                   mlx_api_call_t *call) MLX_MUST_USE;
// After the tools: "auto", "none", "required" or a function by its name, which must be one of the tools.
mlx_status_t mlx_openai_read_tool_choice(const mlx_place_t *choice, mlx_tool_form_t form,
                                         mlx_api_call_t *call) MLX_MUST_USE;

// After the functions, the older form of tools: "auto", "none" or {"name": ...}.
mlx_status_t mlx_openai_read_function_call(const mlx_place_t *choice, mlx_api_call_t *call) MLX_MUST_USE;

// Variables of the chat template. chat_template_kwargs take precedence over all others.
typedef struct mlx_openai_variables {
  const char *reasoning_effort;  // borrowed; NULL: not given. "none" and "minimal" turn thinking off
  const char *verbosity;         // borrowed; NULL: not given
  int enable_thinking;           // -1: not given
} mlx_openai_variables_t;
// Reads an effort: none, minimal, low, medium, high, xhigh or max.
mlx_status_t mlx_openai_read_effort(const mlx_place_t *parent, const char *key,
                                    mlx_openai_variables_t *variables) MLX_MUST_USE;
// Writes call->variables, with chat_template_kwargs of |root|.
mlx_status_t mlx_openai_put_variables(const mlx_place_t *root, const mlx_openai_variables_t *variables,
                                      mlx_api_call_t *call) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_API_OPENAI_FIELDS_H_
