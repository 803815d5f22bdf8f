// What becomes of each weight: the one place that decides it, and says it.
#include <stdio.h>
#include <string.h>

#include "compiler/weights.h"

// Whether its rows are the tensor's own, in some order.
static bool rows_are_whole(const mlx_weight_t *weight) {
  return !weight->parts && !weight->fused_part && weight->value_offset == 0.0 &&
         weight->order != MLX_ROWS_ARE_COLUMNS;
}

static int64_t columns_of(const mlx_weight_t *weight) { return weight->tensor.dims[1]; }

// The format that holds the file's very numbers.
static bool exact_format(const mlx_weight_t *weight, mlx_panel_format_t *out_format) {
  if (!rows_are_whole(weight)) return false;
  return weight->packing.kind ? mlx_panel_format_of_packing(&weight->packing, out_format)
                              : mlx_panel_format(weight->tensor.dtype, out_format);
}

static bool is_vocabulary(const mlx_weight_t *weight) {
  return !strcmp(weight->name, "model.embed_tokens.weight") || !strcmp(weight->name, "lm_head.weight");
}

// Bits of a weight in the file.
static double bits_in_file(const mlx_weight_t *weight) {
  const mlx_packing_t *p = &weight->packing;
  const mlx_dtype_info_t *info =
      mlx_dtype_info(p->kind ? p->parts[MLX_PART_SCALES]->dtype : weight->tensor.dtype);
  if (!p->kind) return 8.0 * (double)info->block_bytes / (double)info->block_elements;
  const double scale = 8.0 * (double)info->block_bytes;
  return p->bits + (p->kind == MLX_PACKED_MLX ? 2 * scale : scale + p->bits) / (double)p->group;
}

// What |weight| is to be quantised to. What has no more bits than that already stays as it is: it would lose,
// and gain nothing.
static mlx_quantize_t quantize_to(const mlx_weight_t *weight, mlx_storage_t storage,
                                  mlx_panel_format_t *out_format) {
  const mlx_quantize_t kind =
      is_vocabulary(weight) ? mlx_quantize_of_vocabulary(storage.quantize) : storage.quantize;
  if (kind == MLX_QUANTIZE_NONE || weight->parts || columns_of(weight) % MLX_CODES) return MLX_QUANTIZE_NONE;
  mlx_panel_format(mlx_quantize_dtype(kind), out_format);
  return bits_in_file(weight) > mlx_panel_bits(*out_format) ? kind : MLX_QUANTIZE_NONE;
}

// Integers in tiles, quantised to |format| or as the file has them; without bits where there are none.
static void choose_tiles(const mlx_weight_t *weight, mlx_storage_t storage, mlx_panel_format_t format,
                         mlx_stored_t *out) {
  out->kind = out->quantize ? MLX_STORED_QUANTISED : MLX_STORED_CODES;
  out->format = format;
  if (out->quantize || exact_format(weight, &out->format)) out->tiles = mlx_tiles_of(out->format);
  if (out->tiles.bits && storage.tiles) out->tiles = storage.tiles[weight - storage.weights];
}

mlx_stored_t mlx_weight_stored(const mlx_weight_t *weight, mlx_storage_t storage) {
  mlx_stored_t out = {.kind = MLX_STORED_NUMBERS, .dtype = weight->tensor.rank < 2 ? MLX_F32 : storage.dtype};
  mlx_panel_format(out.dtype, &out.format);
  const bool tiles = storage.layout == MLX_LAYOUT_TILES;
  if ((storage.layout != MLX_LAYOUT_PACKED && !tiles) || weight->tensor.rank != 2) return out;
  mlx_panel_format_t format;
  out.quantize = quantize_to(weight, storage, &format);
  if (tiles) {
    mlx_stored_t packed = out;
    choose_tiles(weight, storage, format, &packed);
    out.quantize = MLX_QUANTIZE_NONE;
    return packed.tiles.bits ? packed : out;
  }
  if (out.quantize != MLX_QUANTIZE_NONE) {
    out.kind = MLX_STORED_QUANTISED;
    out.format = format;
  } else if (exact_format(weight, &format)) {
    out.kind = mlx_panel_info(format)->code_bits ? MLX_STORED_CODES : MLX_STORED_NUMBERS;
    out.format = format;
    if (out.kind == MLX_STORED_NUMBERS) out.dtype = mlx_panel_info(format)->number;
  }
  return out;
}

size_t mlx_weights_count(const mlx_model_t *model, mlx_storage_t storage, mlx_stored_kind_t kind) {
  size_t count = 0;
  for (size_t i = 0; i < model->weight_count; ++i) {
    count +=
        model->weights[i].tensor.rank == 2 && mlx_weight_stored(&model->weights[i], storage).kind == kind;
  }
  return count;
}

// ----------------------------------------------------------------------------------------------------------
// Saying it

typedef struct line {
  char text[240];
  size_t count;
} line_t;

#define MOST_LINES 32

static void say_source(const mlx_weight_t *weight, char *out, size_t size) {
  static const char *const names[MLX_PACKING_COUNT] = {[MLX_PACKED_MLX] = "MLX",
                                                       [MLX_PACKED_GPTQ] = "GPTQ",
                                                       [MLX_PACKED_AWQ] = "AWQ",
                                                       [MLX_PACKED_MXFP4] = "MXFP4"};
  const mlx_packing_t *p = &weight->packing;
  if (p->kind) {
    snprintf(out, size, "%s of %d bits in groups of %lld with scales in %s", names[p->kind], p->bits,
             (long long)p->group, mlx_dtype_info(p->parts[MLX_PART_SCALES]->dtype)->name);
  } else {
    snprintf(out, size, "%s", mlx_dtype_info(weight->tensor.dtype)->name);
  }
}

static bool is_packed(const mlx_weight_t *weight) {
  return weight->packing.kind || mlx_dtype_info(weight->tensor.dtype)->block_elements > 1;
}

static void say_stored(const mlx_weight_t *weight, mlx_storage_t storage, char *out, size_t size) {
  const mlx_stored_t stored = mlx_weight_stored(weight, storage);
  const mlx_panel_info_t *info = mlx_panel_info(stored.format);
  const double bits = stored.tiles.bits ? mlx_tiles_bits(stored.tiles) : mlx_panel_bits(stored.format);
  const bool as_it_is =
      !weight->packing.kind && (weight->tensor.dtype == MLX_Q4_0 || weight->tensor.dtype == MLX_Q4_1 ||
                                weight->tensor.dtype == MLX_Q8_0);
  if (stored.kind == MLX_STORED_QUANTISED) {
    snprintf(out, size, "quantised to %s (%s; %g bits a weight)", mlx_quantize_name(stored.quantize),
             info->name, bits);
  } else if (stored.kind == MLX_STORED_CODES) {
    snprintf(out, size, "%s (%s; %g bits a weight)", as_it_is ? "stays packed" : "repacked without loss",
             info->name, bits);
  } else if (is_packed(weight)) {
    snprintf(out, size, "widened to %s%s", info->name,
             storage.layout == MLX_LAYOUT_PACKED || storage.layout == MLX_LAYOUT_TILES
                 ? ": no packed layout has its groups"
                 : "");
  } else {
    snprintf(out, size, "stored as %s%s", info->name,
             storage.quantize && columns_of(weight) % MLX_CODES ? ": its columns are no multiple of 32" : "");
  }
}

void mlx_weights_explain(const mlx_model_t *model, mlx_storage_t storage, const mlx_report_t *report) {
  line_t lines[MOST_LINES] = {0};
  size_t count = 0;
  for (size_t i = 0; i < model->weight_count; ++i) {
    char source[80], stored[120], text[240];
    size_t line = 0;
    if (model->weights[i].tensor.rank != 2) continue;
    say_source(&model->weights[i], source, sizeof source);
    say_stored(&model->weights[i], storage, stored, sizeof stored);
    snprintf(text, sizeof text, "%s: %s", source, stored);
    while (line < count && strcmp(lines[line].text, text)) ++line;
    if (line == MOST_LINES) continue;
    if (line == count) memcpy(lines[count++].text, text, sizeof text);
    ++lines[line].count;
  }
  for (size_t i = 0; i < count; ++i) {
    mlx_report_note(report, "weights: %zu matri%s of %s", lines[i].count, lines[i].count == 1 ? "x" : "ces",
                    lines[i].text);
  }
}
