// The tables of foreign options and verbs.
#include "cli/foreign.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"

// ----------------------------------------------------------------------------------------------------------
// Values that select a meaning

static mlx_foreign_meaning_t choose_gpu_layers(const mlx_foreign_t *row, const char *value) {
  if (value && !strcmp(value, "0"))
    return (mlx_foreign_meaning_t){.kind = MLX_FOREIGN_MEANS, .text = "--device", .value = "cpu"};
  return row->meaning;
}

// Ollama's --format has the value json or a schema.
static mlx_foreign_meaning_t choose_format(const mlx_foreign_t *row, const char *value) {
  mlx_foreign_meaning_t meaning = row->meaning;
  if (value && !strcmp(value, "json")) meaning.value = "{\"type\": \"object\"}";
  return meaning;
}

static bool is_off(const char *value) {
  return value && (!strcasecmp(value, "false") || !strcasecmp(value, "off") || !strcasecmp(value, "no") ||
                   !strcmp(value, "0"));
}

static mlx_foreign_meaning_t choose_thinking(const mlx_foreign_t *row, const char *value) {
  mlx_foreign_meaning_t meaning = row->meaning;
  meaning.value = is_off(value) ? "{\"enable_thinking\": false}" : "{\"enable_thinking\": true}";
  return meaning;
}

// The type of OpenAI's response_format: {"type": "json_object"}. Empty if |text| is no such JSON.
static void read_format_type(const char *text, char out[32]) {
  mlx_json_t json;
  out[0] = 0;
  mlx_status_t status = mlx_json_parse("--response-format", text, strlen(text), &json);
  if (!status) {
    const char *type = yyjson_get_str(mlx_json_find(json.root, "type"));
    snprintf(out, 32, "%s", type ? type : "");
    mlx_json_close(&json);
  }
  mlx_status_free(status);
}

// OpenAI's response_format, as JSON or only its type; or a schema. -j finds the schema inside a json_schema.
static mlx_foreign_meaning_t choose_response_format(const mlx_foreign_t *row, const char *value) {
  mlx_foreign_meaning_t meaning = row->meaning;
  char inner[32];
  if (!value) return meaning;
  read_format_type(value, inner);
  const char *type = inner[0] ? inner : value;
  if (!strcmp(type, "json_object") || !strcmp(type, "json")) meaning.value = "{\"type\": \"object\"}";
  if (!strcmp(type, "text"))
    return (mlx_foreign_meaning_t){MLX_FOREIGN_IGNORED, "text is the default", NULL, NULL};
  if (!strcmp(value, "json_schema"))
    return (mlx_foreign_meaning_t){MLX_FOREIGN_ERROR, "give the schema too: -j SCHEMA, or -j @FILE", NULL,
                                   NULL};
  return meaning;
}

static mlx_foreign_meaning_t choose_gpu_count(const mlx_foreign_t *row, const char *value) {
  if (value && !strcmp(value, "1"))
    return (mlx_foreign_meaning_t){MLX_FOREIGN_IGNORED, "one GPU is used", NULL, NULL};
  return row->meaning;
}

static mlx_foreign_meaning_t choose_kv_bits(const mlx_foreign_t *row, const char *value) {
  if (value && !strcmp(value, "8"))
    return (mlx_foreign_meaning_t){.kind = MLX_FOREIGN_MEANS, .text = "--kv", .value = "q8"};
  return row->meaning;
}

// ----------------------------------------------------------------------------------------------------------
// Options

// clang-format off
#define MEANS(flag_names, own) {.names = flag_names, .takes = MLX_FOREIGN_VALUE, .meaning = {MLX_FOREIGN_MEANS, own, NULL, NULL}}
#define MEANS_SWITCH(flag_names, own) {.names = flag_names, .meaning = {MLX_FOREIGN_MEANS, own, NULL, NULL}}
#define MEANS_PREFIX(flag_names, own, start) \
  {.names = flag_names, .takes = MLX_FOREIGN_VALUE, .meaning = {MLX_FOREIGN_MEANS, own, start, NULL}}
#define IGNORED(flag_names, kind_of_value, why) \
  {.names = flag_names, .takes = MLX_FOREIGN_##kind_of_value, .meaning = {MLX_FOREIGN_IGNORED, why, NULL, NULL}}
#define ANSWER(flag_names, kind_of_value, instead) \
  {.names = flag_names, .takes = MLX_FOREIGN_##kind_of_value, .meaning = {MLX_FOREIGN_ERROR, instead, NULL, NULL}}

static const mlx_foreign_t rows[] = {
    // The model
    MEANS_PREFIX("-hf, -hfr, --hf-repo", "--model", "hf:"),
    MEANS("-m, --model, -mu, --model-url", "--model"),  // -m for verbs that take the model as a word only
    ANSWER("-hff, --hf-file", VALUE, "name the file after the model: hf:ORG/NAME:FILE"),
    ANSWER("-hft, --hf-token", VALUE, "set the environment variable HF_TOKEN"),
    ANSWER("--lora, --lora-scaled, --adapter-path", VALUE, "merge the adapter into the model first, then give that model"),
    ANSWER("-md, --model-draft, --draft-model, -hfd, --draft, --draft-n, --draft-max, --draft-min, --draft-p-min, --num-draft-tokens, "
           "--speculative-config", VALUE, "remove it: there are no draft models"),
    ANSWER("--override-kv", VALUE, "change the metadata of a copy of the file: gguf-set-metadata FILE KEY VALUE (pip install gguf)"),
    ANSWER("-mm, --mmproj, --image, --audio, -mmu, --mmproj-url", VALUE, "remove it: mlxcel reads text only"),
    IGNORED("--trust-remote-code", SWITCH, "code of a model is never run"),

    // The prompt and the chat
    MEANS("--system", "--system-prompt"),
    ANSWER("-sysf, --system-prompt-file", VALUE, "give its text: -sys \"$(cat FILE)\""),
    MEANS("--chat-template-config", "--chat-template-kwargs"),
    MEANS("--chat-template-file", "--chat-template"),
    MEANS_SWITCH("-no-cnv, --no-conversation, --no-chat, --ignore-chat-template", "--raw"),
    IGNORED("-cnv, --conversation, --chat, -i, --interactive, -if, --interactive-first", SWITCH,
            "a prompt is a chat turn if the model has a chat template; without a prompt, run chats at a terminal"),
    IGNORED("-st, --single-turn", SWITCH, "a prompt gets one answer"),
    IGNORED("-e, --escape, --no-escape", SWITCH, "only the prompts of `run` and `tokenize` have escapes"),
    IGNORED("--jinja, --use-default-chat-template", SWITCH, "the chat template of the model is always used"),
    ANSWER("--no-jinja", SWITCH, "choose a format with --chat-template NAME"),
    ANSWER("--in-prefix, --in-suffix, --prefill-response", VALUE, "give the whole text with --raw, or another format with --chat-template"),
    MEANS("-r, --reverse-prompt, --antiprompt, --extra-eos-token", "--stop"),
    {.names = "--think, --reasoning", .takes = MLX_FOREIGN_CHOICE,
     .meaning = {MLX_FOREIGN_MEANS, "--chat-template-kwargs", NULL, NULL}, .choose = choose_thinking},
    ANSWER("--reasoning-budget", VALUE, "turn thinking off with --chat-template-kwargs '{\"enable_thinking\": false}'"),
    IGNORED("--reasoning-format", VALUE, "thoughts are printed as the model writes them"),
    IGNORED("--hidethinking", SWITCH, "thoughts are printed as the model writes them"),

    // Length, sampling and grammars
    MEANS("--max-tokens, --max-new-tokens, --num-predict, --predict", "--n-predict"),
    MEANS("--num-ctx, --max-kv-size, --context-length, --n-ctx, --max-model-len", "--ctx"),
    MEANS("--temperature", "--temp"),
    MEANS("--repetition-penalty", "--repeat-penalty"),
    MEANS("--repetition-context-size", "--repeat-last-n"),
    MEANS("--typical-p", "--typical"),
    MEANS("--num-thread, --n-threads", "--threads"),
    MEANS_PREFIX("-jf, --json-schema-file", "--json-schema", "@"),
    {.names = "--format", .takes = MLX_FOREIGN_VALUE, .meaning = {MLX_FOREIGN_MEANS, "--json-schema", NULL, NULL}, .choose = choose_format},
    {.names = "--response-format", .takes = MLX_FOREIGN_VALUE,
     .meaning = {MLX_FOREIGN_MEANS, "--json-schema", NULL, NULL}, .choose = choose_response_format},
    ANSWER("--samplers, --sampling-seq, --sampler-seq", VALUE, "remove it: the order of the samplers is fixed (docs/sampling.md)"),
    IGNORED("--keep", VALUE, "a text ends when the context is full"),
    IGNORED("--context-shift, --no-context-shift", SWITCH, "a text ends when the context is full"),

    // The device and memory
    {.names = "-ngl, --gpu-layers, --n-gpu-layers, --num-gpu", .takes = MLX_FOREIGN_VALUE,
     .meaning = {MLX_FOREIGN_IGNORED, "all layers are on the GPU if there is a usable one, else on the CPU; -ngl 0 is --device cpu", NULL, NULL},
     .choose = choose_gpu_layers},
    ANSWER("-dev", VALUE, "choose with --device cpu, cuda or auto; --gpu N selects a GPU"),
    IGNORED("-b, --batch-size, -ub, --ubatch-size, --prefill-step-size", VALUE, "mlxcel chooses the size of its steps"),
    IGNORED("-fa, --flash-attn", CHOICE, "mlxcel chooses its attention kernels"),
    IGNORED("--mlock, --no-mmap, --mmap", SWITCH, "weights are read from a memory-mapped file"),
    IGNORED("-mmp", VALUE, "weights are read from a memory-mapped file"),
    IGNORED("--no-warmup, --warmup", SWITCH, "mlxcel decides when it warms up"),
    IGNORED("-tb, --threads-batch", VALUE, "prefill uses the threads of -t"),
    IGNORED("--numa, --prio, --prio-batch, --poll, --poll-batch, -C, --cpu-mask, -Cr, --cpu-range, --cpu-strict", VALUE,
            "threads keep the CPUs of the process; taskset chooses them"),
    IGNORED("-sm, --split-mode, -ts, --tensor-split", VALUE, "a model is not divided over GPUs; --gpu N selects one"),
    MEANS("-mg, --main-gpu", "--gpu"),
    ANSWER("-dp, --data-parallel-size, --dp-size", VALUE, "give the GPUs: mlxcel serve --gpu 0,1 runs an engine on each; --engines N runs more on each"),
    {.names = "-tp, --tensor-parallel-size, --pipeline-parallel-size", .takes = MLX_FOREIGN_VALUE,
     .meaning = {MLX_FOREIGN_ERROR, "remove it: a model runs on one GPU, which --gpu N selects; mlxcel serve --gpu 0,1 runs an engine on each", NULL, NULL}, .choose = choose_gpu_count},
    ANSWER("--gpu-memory-utilization", VALUE, "give the most memory for the KV cache in bytes: --memory 8G; without it, memory is taken as needed"),
    MEANS("--max-num-seqs", "--parallel"),
    IGNORED("-np, --parallel", VALUE, "one prompt is answered; mlxcel batch answers many"),
    IGNORED("-nkvo, --no-kv-offload, --swa-full, --kv-unified, -kvu, --no-op-offload", SWITCH, "the KV cache is on the device of the model"),
    ANSWER("-ot, --override-tensor", VALUE, "remove it: all weights are on one device"),
    ANSWER("-cmoe, --cpu-moe", SWITCH, "remove it: all weights are on one device"),
    ANSWER("-ncmoe, --n-cpu-moe", VALUE, "remove it: all weights are on one device"),
    ANSWER("-ctk, --cache-type-k, -ctv, --cache-type-v", VALUE, "keys and values have one format: --kv f32, bf16, f16 or q8"),
    {.names = "--kv-bits", .takes = MLX_FOREIGN_VALUE,
     .meaning = {MLX_FOREIGN_ERROR, "use --kv f32, bf16, f16 or q8", NULL, NULL}, .choose = choose_kv_bits},
    IGNORED("--kv-group-size, --quantized-kv-start", VALUE, "--kv q8 has a scale for each head and position"),
    ANSWER("--rope-scaling, --rope-scale, --rope-freq-base, --rope-freq-scale", VALUE, "remove it: the RoPE settings of the model are used"),
    IGNORED("--keepalive", VALUE, "the model is unloaded when the command ends"),
    ANSWER("--prompt-cache, --prompt-cache-file", VALUE, "remove it: run keeps no state between commands; a chat does"),

    // Output
    IGNORED("--stream, --no-stream", CHOICE, "text is printed as it is generated; --json prints all of it at the end"),
    IGNORED("-co, --color", CHOICE, "colours are used at a terminal only"),
    IGNORED("--nowordwrap, --no-display-prompt, --simple-io, -sp, --special, --log-disable, --no-perf, --perf, --show-timings", SWITCH,
            "stdout has the answer only; -q silences stderr"),
    IGNORED("--verbose-prompt", SWITCH, "mlxcel tokenize prints the tokens of a prompt"),
    ANSWER("--log-file", VALUE, "redirect stderr: 2> FILE"),
    ANSWER("--host, --port, --api-key", VALUE, "start a server: mlxcel serve MODEL"),
    ANSWER("--list-devices", SWITCH, "mlxcel doctor lists the devices"),
    ANSWER("-cl, --cache-list", SWITCH, "mlxcel list lists the models on this machine"),
    ANSWER("--completion-bash", SWITCH, "mlxcel completion bash"),
    ANSWER("--usage", SWITCH, "--help lists the options"),

    // llama-perplexity
    ANSWER("--kl-divergence", SWITCH, "write a reference with --save-logprobs FILE, then compare with --kl FILE"),
    ANSWER("--kl-divergence-base, --save-all-logits", VALUE, "write a reference with --save-logprobs FILE, then compare with --kl FILE"),
    {0},
};
// clang-format on

const mlx_foreign_t *mlx_foreign_find(const char *name) {
  char one[MLX_FLAG_NAME];
  for (const mlx_foreign_t *row = rows; row->names; ++row) {
    for (const char *cursor = row->names; mlx_flag_next_name(&cursor, one);) {
      if (!strcmp(one, name)) return row;
    }
  }
  return NULL;
}

mlx_foreign_meaning_t mlx_foreign_meaning(const mlx_foreign_t *row, const char *value) {
  return row->choose ? row->choose(row, value) : row->meaning;
}

bool mlx_foreign_is_choice(const char *word) {
  static const char *const choices[] = {"on", "off", "auto", "true", "false", "yes", "no", "0", "1"};
  for (size_t i = 0; i < sizeof choices / sizeof *choices; ++i) {
    if (!strcasecmp(word, choices[i])) return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Verbs

// clang-format off
static const mlx_foreign_verb_t verbs[] = {
    {"chat", "run", NULL},
    {"generate", "run", NULL},
    {"ls", "list", NULL},
    {"models", "list", NULL},
    {"info", "show", NULL},
    {"download", "pull", NULL},
    {"upload", "push", NULL},
    {"server", "serve", NULL},
    {"remove", "rm", NULL},
    {"delete", "rm", NULL},
    {"perplexity", "eval", NULL},
    {"evaluate", "eval", NULL},
    {"benchmark", "bench", NULL},
    {"tokenizer", "tokenize", NULL},
    {"embedding", "embed", NULL},
    {"embeddings", "embed", NULL},
    {"ps", NULL, "a model is loaded only while its command runs; `mlxcel list` lists the models on this machine, GET /api/ps those of a server"},
    {"stop", NULL, "a model is unloaded when its command ends; Ctrl-C ends `mlxcel run` and `mlxcel serve`"},
    {"cp", NULL, "a model is a file or a folder: copy it with cp, and run the copy by its path"},
    {"create", NULL, "there are no Modelfiles: `mlxcel compile MODEL` makes a bundle; give -sys and --temp to run, or set them in the configuration file"},
    {"quantize", NULL, "quantize when compiling: mlxcel compile MODEL --quantize q4"},
    {"convert", NULL, "no conversion is needed: mlxcel run MODEL reads Hugging Face directories and GGUF files; `mlxcel compile MODEL` makes a bundle"},
    {"fuse", NULL, "merge the adapter with the tool that trained it, then give that model"},
    {"lora", NULL, "mlxcel does not train models"},
    {"train", NULL, "mlxcel does not train models"},
    {"finetune", NULL, "mlxcel does not train models"},
    {"search", NULL, "search on the hub's web page, then run a model by its name: mlxcel run hf:ORG/NAME"},
    {"login", NULL, "set the environment variable HF_TOKEN"},
    {"signin", NULL, "set the environment variable HF_TOKEN"},
    {"signout", NULL, "unset the environment variable HF_TOKEN"},
    {"logout", NULL, "unset the environment variable HF_TOKEN"},
    {"update", NULL, "install the new version over this one; `mlxcel --version` prints this one"},
    {"upgrade", NULL, "install the new version over this one; `mlxcel --version` prints this one"},
    {NULL, NULL, NULL},
};
// clang-format on

const mlx_foreign_verb_t *mlx_foreign_find_verb(const char *name) {
  for (const mlx_foreign_verb_t *row = verbs; row->name; ++row) {
    if (!strcmp(row->name, name)) return row;
  }
  return NULL;
}
