// mlxcel show: prints a summary of a model, then its shape, the formats of its weights, the memory it needs
// and the path of each op.
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"
#include "cli/parse.h"
#include "cli/summary.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "compiler/compile.h"
#include "graph/roles.h"
#include "models/model.h"
#include "open/locate.h"

typedef struct flags {
  const char *model;
  int64_t context;
  bool json, quiet, verbose;
} flags_t;

// ----------------------------------------------------------------------------------------------------------
// Weights by purpose

typedef struct group {
  const char *title;
  unsigned roles;        // weights with one of these roles (graph/roles.h)
  const char *parts[6];  // substrings of the names of other weights. A weight belongs to the first match
  uint64_t elements, bytes;
  char types[96];  // "Q4_1, F32"
} group_t;

static void note_type(group_t *group, const char *type) {
  const size_t length = strlen(group->types);
  for (const char *found = group->types; (found = strstr(found, type)); found += strlen(type)) {
    const char after = found[strlen(type)];
    if ((found == group->types || found[-1] == ' ') && (!after || after == ',')) return;
  }
  snprintf(group->types + length, sizeof group->types - length, "%s%s", length ? ", " : "", type);
}

static void add_weight(group_t *group, const mlx_weight_t *weight) {
  const mlx_weight_facts_t facts = mlx_weight_facts(weight);
  group->elements += facts.elements;
  group->bytes += facts.bytes;
  note_type(group, facts.type);
}

static group_t *group_of(group_t *groups, size_t count, const mlx_weight_t *weight) {
  for (size_t i = 0; i + 1 < count; ++i) {
    if (weight->roles & groups[i].roles) return &groups[i];
    for (const char *const *part = groups[i].parts; *part; ++part) {
      if (strstr(weight->name, *part)) return &groups[i];
    }
  }
  return &groups[count - 1];
}

// ----------------------------------------------------------------------------------------------------------
// Output

// Numbers that the KV cache keeps for one sequence of |positions| positions. Window pages keep a window only.
static uint64_t kv_numbers(const mlx_model_t *model, int64_t positions) {
  const int64_t held =
      MLX_WINDOW_POOL_FACTOR * MLX_KV_PAGE * MLX_WINDOW_PAGES_HELD(model->config.window, MLX_STEP_TOKENS);
  const int64_t seen = held < positions ? held : positions;
  return (uint64_t)((model->kv_numbers - model->window_kv_numbers) * positions +
                    model->window_kv_numbers * seen);
}

static uint64_t recurrent_bytes(const mlx_model_t *model) { return 4 * (uint64_t)model->recurrent_numbers; }

typedef struct totals {
  uint64_t elements, bytes;  // of all weights as stored
} totals_t;

static totals_t add_up(const group_t *groups, size_t count) {
  totals_t totals = {0};
  for (size_t i = 0; i < count; ++i) totals.elements += groups[i].elements, totals.bytes += groups[i].bytes;
  return totals;
}

static void print_config(const mlx_model_t *model, const char *kind) {
  const mlx_config_t *c = &model->config;
  printf("architecture  %s, from %s\n", kind,
         mlx_source_is_gguf(model->source) ? "GGUF" : "a Hugging Face directory");
  printf("shape         %lld %s, hidden %lld, MLP %lld, %lld %s of %lld", (long long)c->layers,
         mlx_plural((uint64_t)c->layers, "layer", "layers"), (long long)c->hidden,
         (long long)(c->expert_ffn ? c->expert_ffn : c->ffn), (long long)c->heads,
         mlx_plural((uint64_t)c->heads, "head", "heads"),
         (long long)(c->kv_rank ? c->query_dim : c->head_dim));
  if (c->kv_rank)
    printf(" (keys and values in a row of %lld + %lld)\n", (long long)c->kv_rank, (long long)c->rope_dim);
  else
    printf(c->kv_heads == c->heads ? "\n" : " (%lld for keys and values)\n", (long long)c->kv_heads);
  if (c->global_head_dim)
    printf("no window     heads of %lld (%lld for keys and values) in layers without a window\n",
           (long long)c->global_head_dim, (long long)c->global_kv_heads);
  if (c->shared_kv_layers)
    printf("shared KV     the last %lld layers use keys and values of earlier layers\n",
           (long long)c->shared_kv_layers);
  if (c->experts)
    printf("experts       %lld per layer, %lld used per token\n", (long long)c->experts,
           (long long)c->experts_used);
  printf("vocabulary    %lld %s, %s\n", (long long)c->vocab,
         mlx_plural((uint64_t)c->vocab, "token", "tokens"),
         c->tied_head ? "LM head tied to the embedding" : "separate LM head");
  int64_t windowed = 0, recurrent = 0;
  for (int64_t i = 0; i < c->layers; ++i) windowed += c->windowed[i], recurrent += c->recurrent[i];
  if (windowed)
    printf("window        %lld tokens in %lld of %lld layers\n", (long long)c->window, (long long)windowed,
           (long long)c->layers);
  if (recurrent)
    printf("recurrent     %lld of %lld layers: a state of %s per sequence instead of KV cache\n",
           (long long)recurrent, (long long)c->layers, mlx_bytes_show(recurrent_bytes(model)).text);
}

static void print_groups(const group_t *groups, size_t count, const mlx_model_t *model, int64_t context) {
  const totals_t all = add_up(groups, count);
  const uint64_t state = recurrent_bytes(model);
  const uint64_t wide_kv = 4 * kv_numbers(model, context), half_kv = 2 * kv_numbers(model, context);
  printf("\n%-12s %12s %12s  %s\n", "weights", "parameters", "size", "stored as");
  for (size_t i = 0; i < count; ++i) {
    if (!groups[i].elements) continue;
    printf("%-12s %12llu %12s  %s\n", groups[i].title, (unsigned long long)groups[i].elements,
           mlx_bytes_show(groups[i].bytes).text, groups[i].types);
  }
  printf("%-12s %12llu %12s\n", "all", (unsigned long long)all.elements, mlx_bytes_show(all.bytes).text);
  printf("\nmemory with a context of %lld: %s in f32 (KV cache %s); %s in bf16 or f16 (KV cache %s)\n",
         (long long)context, mlx_bytes_show(all.elements * 4 + wide_kv + state).text,
         mlx_bytes_show(wide_kv).text, mlx_bytes_show(all.elements * 2 + half_kv + state).text,
         mlx_bytes_show(half_kv).text);
  if (all.bytes < all.elements * 4) {
    printf("with weights quantized as stored, if a kernel supports it: %s (KV cache %s)\n",
           mlx_bytes_show(all.bytes + wide_kv + state).text, mlx_bytes_show(wide_kv).text);
  }
}

// What `run` needs on this machine: the sizes of its path, not those of the file.
static void print_here(const mlx_summary_t *summary, const mlx_model_t *model, int64_t context) {
  const mlx_variant_t *v = &summary->here;
  const double bytes = (double)v->kv_bytes / (double)(model->kv_numbers ? model->kv_numbers : 1);
  const uint64_t kv = (uint64_t)(bytes * (double)kv_numbers(model, context));
  const uint64_t step = (uint64_t)v->step_bytes;
  if (!summary->here_weights) return;
  printf("on this machine, for %s: %s of weights as %s, ", v->target,
         mlx_bytes_show(summary->here_weights).text, v->dtype);
  if (step) printf("%s for the values of a step, ", mlx_bytes_show(step).text);
  printf("and %s of KV cache\n", mlx_bytes_show(kv).text);
  if (summary->here_memory == UINT64_MAX) return;
  printf("%s: it has %s of memory\n",
         summary->here_weights >= summary->here_memory               ? "the weights do not fit"
         : kv + step >= summary->here_memory - summary->here_weights ? "a shorter context (-c) fits"
                                                                     : "that fits",
         mlx_bytes_show(summary->here_memory).text);
}

static void put_weights(mlx_json_writer_t *json, const group_t *groups, size_t count) {
  mlx_json_begin_list(json, "weights", MLX_JSON_LINES);
  for (size_t i = 0; i < count; ++i) {
    if (!groups[i].elements) continue;
    mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_text(json, "group", groups[i].title);
    mlx_json_put_uint(json, "parameters", groups[i].elements);
    mlx_json_put_uint(json, "bytes", groups[i].bytes);
    mlx_json_put_text(json, "stored_as", groups[i].types);
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

static void put_memory(mlx_json_writer_t *json, totals_t all, const mlx_model_t *model,
                       const mlx_summary_t *summary, int64_t context) {
  const uint64_t wide_kv = 4 * kv_numbers(model, context), half_kv = 2 * kv_numbers(model, context);
  const uint64_t state = recurrent_bytes(model);
  mlx_json_put_uint(json, "bytes", all.bytes);
  mlx_json_begin_object(json, "here", MLX_JSON_ONE_LINE);
  mlx_json_put_uint(json, "weights", summary->here_weights);
  mlx_json_put_int(json, "step", summary->here.step_bytes);
  mlx_json_put_int(json, "kv_per_token", summary->here.kv_bytes);
  mlx_json_put_uint(json, "memory", summary->here_memory);
  mlx_json_end(json);
  mlx_json_begin_object(json, "kv_bytes", MLX_JSON_ONE_LINE);
  mlx_json_put_int(json, "positions", context);
  mlx_json_put_uint(json, "f32", wide_kv);
  mlx_json_put_uint(json, "bf16", half_kv);
  mlx_json_end(json);
  mlx_json_put_uint(json, "recurrent_bytes", state);
  mlx_json_begin_object(json, "memory", MLX_JSON_ONE_LINE);
  mlx_json_put_int(json, "positions", context);
  mlx_json_put_uint(json, "f32", all.elements * 4 + wide_kv + state);
  mlx_json_put_uint(json, "bf16", all.elements * 2 + half_kv + state);
  mlx_json_put_uint(json, "quantized", all.bytes + wide_kv + state);
  mlx_json_end(json);
}

static mlx_status_t print_json(const group_t *groups, size_t count, const mlx_model_t *model,
                               const mlx_summary_t *summary, int64_t context) {
  const mlx_config_t *c = &model->config;
  const struct {
    const char *name;
    int64_t value;
  } numbers[] = {{"layers", c->layers},     {"hidden", c->hidden},
                 {"ffn", c->ffn},           {"heads", c->heads},
                 {"kv_heads", c->kv_heads}, {"head_dim", c->head_dim},
                 {"vocab", c->vocab},       {"window", c->window},
                 {"experts", c->experts},   {"experts_used", c->experts_used}};
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_summary_json(summary, &json);
  mlx_json_put_text(&json, "architecture", summary->architecture);
  mlx_json_put_text(&json, "format", mlx_source_is_gguf(model->source) ? "gguf" : "huggingface");
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    mlx_json_put_int(&json, numbers[i].name, numbers[i].value);
  mlx_json_put_bool(&json, "tied_head", c->tied_head);
  put_weights(&json, groups, count);
  put_memory(&json, add_up(groups, count), model, summary, context);
  mlx_json_end(&json);
  mlx_text_puts(&text, "\n");
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) fputs(text.data, stdout);
  mlx_text_clear(&text);
  return status;
}

// The first block, which is followed by the details.
static mlx_status_t print_summary(const mlx_summary_t *summary) {
  mlx_text_t text = {0};
  mlx_summary_print(summary, &text);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) printf("%s\n", text.data);
  mlx_text_clear(&text);
  return status;
}

static void print_ops(const mlx_variant_t *v) {
  const int64_t total = mlx_variant_weight_bytes(v);
  if (v->op_count) printf("\n%-16s %6s  %-14s %-14s %s\n", "op", "count", "decode", "prefill", "reads");
  for (size_t i = 0; i < v->op_count; ++i) {
    const mlx_variant_op_t *op = &v->ops[i];
    char cost[64];
    mlx_variant_op_cost(op, total, cost, sizeof cost);
    printf("%-16s %6lld  %-14s %-14s %s\n", op->op, (long long)op->count, op->decode, op->prefill,
           cost[0] ? cost : "-");
  }
}

static mlx_status_t print_launches(mlx_model_t *model, const char *target) {
  mlx_text_t text = {0};
  mlx_status_t status = mlx_compile_describe_launches(model, target, &text);
  if (!status) status = mlx_text_finish(&text);
  if (!status && text.length) printf("\n%s", text.data);
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t show_model(const char *path, int64_t context, bool json, bool verbose) {
  group_t groups[] = {
      {.title = "embedding", .roles = MLX_ROLE_EMBEDDING | MLX_ROLE_POSITIONS},
      {.title = "LM head", .roles = MLX_ROLE_HEAD},
      {.title = "norms", .parts = {"norm", "ln_"}},
      {.title = "attention", .parts = {"attn", "attention"}},
      {.title = "experts", .roles = MLX_ROLE_EXPERT | MLX_ROLE_ROUTER, .parts = {"experts", "router"}},
      {.title = "MLP", .parts = {"mlp", "feed_forward"}},
      {.title = "other"}};
  const size_t count = sizeof groups / sizeof *groups;
  mlx_model_t *model;
  MLX_TRY(mlx_model_open(path, &model));
  mlx_summary_t summary;
  mlx_status_t status = mlx_summary_of_model(model, &summary);
  for (size_t i = 0; i < model->weight_count; ++i) {
    if (!model->weights[i].is_order)
      add_weight(group_of(groups, count, &model->weights[i]), &model->weights[i]);
  }
  if (context <= 0 || context > model->config.context) context = model->config.context;
  if (!status && json) status = print_json(groups, count, model, &summary, context);
  if (!status && !json) status = print_summary(&summary);
  if (!status && !json) {
    print_config(model, summary.architecture);
    print_groups(groups, count, model, context);
    print_here(&summary, model, context);
    print_ops(&summary.here);
    if (verbose) status = print_launches(model, summary.here.target);
  }
  mlx_model_close(model);
  return status;
}

static void print_variant(const mlx_variant_t *v, bool with_target) {
  if (with_target) printf("\n%s\n", v->target);
  printf("stored as     %s; activations %s, KV cache %s\n", mlx_variant_formats_text(v).text, v->activations,
         v->kv);
  if (v->level_count) printf("levels        %s\n", mlx_variant_levels_text(v).text);
  printf("kernels       %s\n", mlx_variant_kernels_text(v).text);
  printf("memory        %s besides the weights, and KV cache: %s per token",
         mlx_bytes_show((uint64_t)v->state_bytes + (uint64_t)v->step_bytes).text,
         mlx_bytes_show((uint64_t)(v->page_bytes + v->window_page_bytes) / MLX_KV_PAGE).text);
  if (v->window_page_bytes)
    printf(", %s of it only in a window of %lld tokens",
           mlx_bytes_show((uint64_t)v->window_page_bytes / MLX_KV_PAGE).text, (long long)v->window);
  if (v->recurrent_bytes)
    printf(", and recurrent state: %s per sequence", mlx_bytes_show((uint64_t)v->recurrent_bytes).text);
  printf("\n");
  print_ops(v);
}

static void print_manifest(const mlx_manifest_t *m) {
  printf("compiled from %s, %s, for %s\n", m->source, m->architecture, mlx_manifest_targets_text(m).text);
  printf("vocabulary    %lld %s\n", (long long)m->vocab, mlx_plural((uint64_t)m->vocab, "token", "tokens"));
  printf("compiler      %s\n", m->compiler);
  for (size_t i = 0; i < m->variant_count; ++i) print_variant(&m->variants[i], m->variant_count > 1);
}

// Lists the files that the bundle lacks: weights left out by --no-weights, and targets that pull did not
// fetch.
static void print_missing(const mlx_bundle_t *bundle) {
  const mlx_manifest_t *m = mlx_bundle_manifest(bundle);
  for (size_t i = 0; i < m->file_count; ++i) {
    const mlx_bundle_file_t *file = &m->files[i];
    if (mlx_bundle_has(bundle, file->name)) continue;
    printf("missing       %s%s%s\n", file->name,
           mlx_is_weights_file(file->name) ? ", found by its digest: sha256:" : "",
           mlx_is_weights_file(file->name) ? file->sha256 : "");
  }
}

// The fields of the summary, and the manifest.
static mlx_status_t print_bundle_json(const mlx_bundle_t *bundle, const mlx_summary_t *summary) {
  size_t length;
  const char *manifest = mlx_bundle_manifest_text(bundle, &length);
  while (length && manifest[length - 1] == '\n') --length;
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_summary_json(summary, &json);
  mlx_json_put_raw(&json, "manifest", manifest, length);
  mlx_json_end(&json);
  mlx_text_puts(&text, "\n");
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) fputs(text.data, stdout);
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t show_bundle(const char *path, bool json) {
  mlx_bundle_t *bundle;
  mlx_summary_t summary;
  MLX_TRY(mlx_summary_read(path, &summary));
  MLX_TRY(mlx_bundle_open(path, &bundle));
  mlx_status_t status = json ? print_bundle_json(bundle, &summary) : print_summary(&summary);
  if (!status && !json) {
    print_manifest(mlx_bundle_manifest(bundle));
    print_missing(bundle);
  }
  mlx_bundle_close(bundle);
  return status;
}

static void initialize(void *options) { ((flags_t *)options)->context = -1; }

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *word = NULL;
  bool help;
  size_t words;
  MLX_TRY(mlx_command_line_parse(line, &f, &word, 1, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  const char *model = word ? word : f.model;  // MLXCEL_MODEL may have set f.model
  if (!model) return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel show MODEL");
  char *path;
  MLX_TRY(mlx_locate(model, mlx_terminal_report(), &path));
  mlx_status_t status =
      mlx_is_bundle(path) ? show_bundle(path, f.json) : show_model(path, f.context, f.json, f.verbose);
  mlx_free(path);
  return status;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_MODEL_FLAG(flags_t, model),
    MLX_CONTEXT_FLAG(flags_t, context, "context length for the memory estimate (default: the model's)",
                     0, INT32_MAX),
    MLX_JSON_FLAG(flags_t, json),
    MLX_SWITCH_FLAG(flags_t, verbose, "-v, --verbose", "list the kernel launches of each function"),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_show = {
    .name = "show",
    .summary = "show what a model is: size, quantization, license, kernels",
    .usage =
        "usage: mlxcel show MODEL [options]\n\n"
        "Prints size, quantization, license, chat template, context length and whether each op has a kernel "
        "on\n"
        "this machine; then the shape, the weights and the memory.\n"
        "MODEL is a GGUF file, a Hugging Face directory or a bundle.\n\n"
        "examples:\n"
        "  mlxcel show model.gguf -c 8192\n"
        "  mlxcel show model.mlxb --json",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
