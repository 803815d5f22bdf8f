// Collects the summary of a model from its files, without compiling it.
#include "cli/summary.h"

#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/meter.h"
#include "cli/terminal.h"
#include "compiler/compile.h"
#include "models/import/format.h"
#include "models/import/name.h"
#include "runtime/rooms.h"

#define GENERIC "generic"

// ----------------------------------------------------------------------------------------------------------
// Weights

static uint64_t quantized_bytes(const mlx_packing_t *packing) {
  uint64_t bytes = 0;
  for (int i = 0; i < MLX_PART_COUNT; ++i) bytes += packing->parts[i] ? packing->parts[i]->size : 0;
  return bytes;
}

mlx_weight_facts_t mlx_weight_facts(const mlx_weight_t *weight) {
  const mlx_packing_t *packing = weight->part_packings ? weight->part_packings : &weight->packing;
  mlx_weight_facts_t facts = {.elements = 1};
  for (int i = 0; i < weight->tensor.rank; ++i) facts.elements *= (uint64_t)weight->tensor.dims[i];
  mlx_weight_format(weight, facts.type);
  if (!packing->kind) {
    facts.bytes = weight->tensor.size;
    return facts;
  }
  const int64_t count = weight->part_packings ? weight->tensor.dims[0] : 1;
  const uint64_t elements = facts.elements / (uint64_t)count;  // of a fused tensor only a part
  for (int64_t i = 0; i < count; ++i)
    facts.bytes += (uint64_t)((double)quantized_bytes(&packing[i]) * (double)elements /
                              ((double)packing[i].rows * (double)packing[i].columns));
  return facts;
}

// Names the types of all weights, the one with the most bytes first.
static void count_weights(const mlx_model_t *model, mlx_summary_t *out) {
  mlx_format_list_t formats = {0};
  size_t length = 0;
  for (size_t i = 0; i < model->weight_count; ++i) {
    if (model->weights[i].is_order) continue;
    const mlx_weight_facts_t facts = mlx_weight_facts(&model->weights[i]);
    out->parameters += facts.elements;
    mlx_format_list_add(&formats, facts.type, facts.bytes);
  }
  mlx_format_list_sort(&formats);
  for (size_t i = 0; i < formats.count && length < sizeof out->quantization; ++i)
    length += (size_t)snprintf(out->quantization + length, sizeof out->quantization - length, "%s%s",
                               i ? ", " : "", formats.items[i].name);
}

// ----------------------------------------------------------------------------------------------------------
// Source models and bundles

// Copies |name| if it is safe to print, else nothing.
static void copy_name(const char *name, char *out, size_t size) {
  if (name[0] && mlx_name_is_plain(name, strlen(name))) snprintf(out, size, "%.*s", (int)size - 1, name);
}

static mlx_status_t read_name(const mlx_source_t *source, mlx_summary_t *out) {
  const char *name = "";
  bool found;
  if (mlx_source_is_gguf(source)) MLX_TRY(mlx_source_string(source, NULL, "general.name", &name, &found));
  copy_name(name, out->name, sizeof out->name);
  if (!out->name[0]) copy_name(mlx_file_name(mlx_source_path(source)).text, out->name, sizeof out->name);
  return NULL;
}

// Lists the templates of a chat.json; |json| may be NULL.
static mlx_status_t read_templates(const char *json, size_t length, mlx_summary_t *out) {
  mlx_json_t chat;
  yyjson_val *key, *value;
  size_t index, count, used = 0;
  if (!json) return NULL;
  MLX_TRY(mlx_json_parse("chat.json", json, length, &chat));
  yyjson_val *templates = mlx_json_find(chat.root, "templates");
  if (!yyjson_is_obj(templates)) {
    mlx_json_close(&chat);
    return NULL;
  }
  yyjson_obj_foreach(templates, index, count, key, value) {
    const char *name = mlx_name_printable(yyjson_get_str(key));
    if (used >= sizeof out->templates) break;
    used +=
        (size_t)snprintf(out->templates + used, sizeof out->templates - used, "%s%s", used ? ", " : "", name);
  }
  mlx_json_close(&chat);
  return NULL;
}

static mlx_status_t add_file_sizes(const mlx_source_t *source, mlx_summary_t *out) {
  const char *path;
  for (size_t i = 0; (path = mlx_source_file(source, i)); ++i) {
    mlx_file_stamp_t stamp = {0};
    MLX_TRY(mlx_file_stamp(path, &stamp));
    out->bytes += stamp.size;
  }
  return NULL;
}

// The target that `run` chooses by itself, and the memory of its device.
static void choose_target(char *out, size_t size, uint64_t *out_memory) {
  mlx_status_t status = mlx_engine_gpu_target(0, out, size, out_memory);
  if (status) {
    snprintf(out, size, "cpu");
    *out_memory = mlx_physical_memory();
  }
  mlx_status_free(status);
}

mlx_status_t mlx_summary_of_model(mlx_model_t *model, mlx_summary_t *out) {
  const char *multimodal = mlx_source_multimodal(model->source);
  char target[64], *chat;
  size_t length;
  *out = (mlx_summary_t){.context = model->config.context};
  snprintf(out->architecture, sizeof out->architecture, "%s", model->arch->hf_types[0]);
  snprintf(out->multimodal, sizeof out->multimodal, "%s", multimodal ? multimodal : "");
  MLX_TRY(read_name(model->source, out));
  MLX_TRY(add_file_sizes(model->source, out));
  MLX_TRY(mlx_source_licence(model->source, out->license, sizeof out->license));
  count_weights(model, out);
  MLX_TRY(mlx_source_chat_json(model->source, &chat, &length));
  mlx_status_t status = read_templates(chat, length, out);
  mlx_free(chat);
  if (status) return status;
  choose_target(target, sizeof target, &out->here_memory);
  return mlx_compile_describe_ops(model, target, &out->here, &out->here_weights);
}

// The code of the bundle that runs best on this machine; NULL if none does.
static const mlx_variant_t *best_variant(const mlx_manifest_t *m) {
  const mlx_variant_t *best = NULL;
  size_t best_rank = 0;
  for (size_t i = 0; i < m->variant_count; ++i) {
    const size_t rank = mlx_engine_rank_target(m->variants[i].target, m->variants[i].cpu);
    if (rank <= best_rank) continue;
    best_rank = rank;
    best = &m->variants[i];
  }
  return best;
}

static mlx_status_t read_bundle(const char *path, mlx_summary_t *out) {
  mlx_bundle_t *bundle;
  char *chat = NULL;
  size_t length = 0;
  MLX_TRY(mlx_bundle_open(path, &bundle));
  const mlx_manifest_t *m = mlx_bundle_manifest(bundle);
  const mlx_variant_t *best = best_variant(m);
  *out = (mlx_summary_t){.context = m->context, .parameters = (uint64_t)m->parameters};
  snprintf(out->architecture, sizeof out->architecture, "%s", m->architecture);
  copy_name(m->source, out->name, sizeof out->name);
  snprintf(out->license, sizeof out->license, "%s", m->license);
  for (size_t i = 0; i < m->file_count; ++i) {
    if (mlx_bundle_has(bundle, m->files[i].name)) out->bytes += (uint64_t)m->files[i].size;
  }
  snprintf(out->quantization, sizeof out->quantization, "%s",
           mlx_variant_formats_text(best ? best : &m->variants[0]).text);
  if (best) out->here = *best;
  mlx_bundle_close(bundle);
  MLX_TRY(mlx_chat_read_bundle(path, &chat, &length));
  mlx_status_t status = read_templates(chat, length, out);
  mlx_free(chat);
  return status;
}

mlx_status_t mlx_summary_read(const char *path, mlx_summary_t *out) {
  mlx_model_t *model;
  if (mlx_is_bundle(path)) return read_bundle(path, out);
  MLX_TRY(mlx_model_open(path, &model));
  mlx_status_t status = mlx_summary_of_model(model, out);
  mlx_model_close(model);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Output

static bool is_generic(const mlx_variant_op_t *op) {
  return !strcmp(op->decode, GENERIC) || !strcmp(op->prefill, GENERIC);
}

// "134.5 million" or "1.2 billion".
static void print_count(uint64_t count, mlx_text_t *out) {
  if (count < 1000000) {
    mlx_text_printf(out, "%llu", (unsigned long long)count);
  } else if (count < 1000000000) {
    mlx_text_printf(out, "%.1f million", (double)count / 1e6);
  } else {
    mlx_text_printf(out, "%.2f billion", (double)count / 1e9);
  }
}

static void print_kernels(const mlx_summary_t *s, mlx_text_t *out) {
  const mlx_variant_t *v = &s->here;
  size_t generic = 0;
  if (!v->target[0]) {
    mlx_text_puts(out, "the bundle has no code for this machine\n");
    return;
  }
  if (!v->op_count) {
    mlx_text_printf(out, "%s; paths of ops unknown\n", v->target);
    return;
  }
  mlx_text_printf(out, "%s: ", v->target);
  for (size_t i = 0; i < v->op_count; ++i) generic += is_generic(&v->ops[i]);
  if (!generic) {
    mlx_text_puts(out, "every op has a kernel\n");
    return;
  }
  mlx_text_puts(out, generic == v->op_count ? "no op has a kernel; generic path: " : "generic path for ");
  const char *comma = "";
  for (size_t i = 0; i < v->op_count; ++i) {
    bool named = false;
    for (size_t j = 0; j < i; ++j)
      named = named || (is_generic(&v->ops[j]) && !strcmp(v->ops[i].op, v->ops[j].op));
    if (named || !is_generic(&v->ops[i])) continue;
    mlx_text_printf(out, "%s%s", comma, v->ops[i].op);
    comma = ", ";
  }
  mlx_text_puts(out, generic == v->op_count ? "\n" : "; a kernel for every other op\n");
}

void mlx_summary_print(const mlx_summary_t *s, mlx_text_t *out) {
  mlx_text_printf(out, "name           %s\nsize           ", s->name);
  mlx_text_printf(out, "%s on disk", mlx_bytes_show(s->bytes).text);
  if (s->parameters) {
    mlx_text_puts(out, ", ");
    print_count(s->parameters, out);
    mlx_text_puts(out, " parameters");
  }
  mlx_text_printf(out, "\nquantization   %s\n", s->quantization);
  mlx_text_printf(out, "license        %s\n", s->license[0] ? s->license : "not declared");
  if (!s->templates[0]) {
    mlx_text_puts(out,
                  "chat template  no\n"
                  "               base model: no chat template; `run` completes text\n");
  } else if (!strcmp(s->templates, "default")) {
    mlx_text_puts(out, "chat template  yes\n");
  } else {
    mlx_text_printf(out, "chat template  yes (%s)\n", s->templates);
  }
  mlx_text_printf(out, "context        %lld %s\n", (long long)s->context,
                  mlx_plural((uint64_t)s->context, "token", "tokens"));
  mlx_text_puts(out, "kernels        ");
  print_kernels(s, out);
  if (s->multimodal[0])
    mlx_text_printf(out, "images         not supported: the text model of a %s model runs\n", s->multimodal);
}

void mlx_summary_json(const mlx_summary_t *s, mlx_json_writer_t *json) {
  mlx_json_put_text(json, "name", s->name);
  mlx_json_put_uint(json, "size", s->bytes);
  if (s->parameters) mlx_json_put_uint(json, "parameters", s->parameters);
  if (!s->parameters) mlx_json_put_text(json, "parameters", NULL);
  mlx_json_put_text(json, "quantization", s->quantization);
  mlx_json_put_text(json, "license", s->license);
  mlx_json_put_bool(json, "chat_template", s->templates[0]);
  mlx_json_put_int(json, "context", s->context);
  mlx_json_put_text(json, "multimodal", s->multimodal);
  mlx_json_put_text(json, "target", s->here.target);
  mlx_json_begin_list(json, "kernels", MLX_JSON_LINES);
  for (size_t i = 0; i < s->here.op_count; ++i) {
    const mlx_variant_op_t *op = &s->here.ops[i];
    mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_text(json, "op", op->op);
    mlx_json_put_int(json, "count", op->count);
    mlx_json_put_text(json, "decode", op->decode);
    mlx_json_put_text(json, "prefill", op->prefill);
    mlx_json_put_bool(json, "kernel", !is_generic(op));
    mlx_json_end(json);
  }
  mlx_json_end(json);
}
