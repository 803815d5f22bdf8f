// Decides how each weight is stored, and explains it to the user.
#include "compiler/storage.h"

#include <stdio.h>
#include <string.h>

#include "graph/roles.h"

bool mlx_weight_is_changed(const mlx_weight_t *weight) {
  return weight->value_offset != 0.0 || weight->row_factors;
}

bool mlx_weight_is_experts(const mlx_weight_t *weight) { return weight->tensor.rank == 3; }

// Whether each row of the weight is a row of a stored tensor, in any order.
static bool keeps_rows(const mlx_weight_t *weight) {
  if (!mlx_weight_is_experts(weight) && (weight->parts || weight->fused_part)) return false;
  return !mlx_weight_is_changed(weight) && weight->order != MLX_ROWS_ARE_COLUMNS &&
         weight->order != MLX_COLUMNS_OF_HEADS;
}

bool mlx_weight_is_quantized(const mlx_weight_t *weight) {
  return weight->packing.kind || weight->part_packings || mlx_dtype_is_quantized(weight->tensor.dtype);
}

static int64_t columns_of(const mlx_weight_t *weight) { return weight->tensor.dims[weight->tensor.rank - 1]; }

// The format of experts that are quantized one by one: one for all of them.
static bool part_format(const mlx_weight_t *weight, mlx_panel_format_t *out_format) {
  for (int64_t i = 0; i < weight->tensor.dims[0]; ++i) {
    mlx_panel_format_t format;
    if (!mlx_panel_format_of_packing(&weight->part_packings[i], &format)) return false;
    if (i && format != *out_format) return false;
    *out_format = format;
  }
  return true;
}

// The format that holds the values of the file exactly; false if there is none.
static bool exact_format(const mlx_weight_t *weight, mlx_panel_format_t *out_format) {
  if (!keeps_rows(weight)) return false;
  if (weight->part_packings) return part_format(weight, out_format);
  if (weight->packing.kind) return mlx_panel_format_of_packing(&weight->packing, out_format);
  *out_format = mlx_dtype_info(weight->tensor.dtype)->panel;
  return *out_format != MLX_PANEL_NONE;
}

bool mlx_weight_is_matrix(const mlx_weight_t *weight) {
  return weight->tensor.rank == 2 && !(weight->roles & MLX_ROLE_VECTOR);
}

bool mlx_weight_in_panels(const mlx_weight_t *weight, mlx_layout_t layout) {
  return (layout == MLX_LAYOUT_PANELS || layout == MLX_LAYOUT_QUANTIZED_PANELS) &&
         (mlx_weight_is_matrix(weight) || mlx_weight_is_experts(weight));
}

static double bits_in_file(const mlx_weight_t *weight) {
  const mlx_packing_t *p = &weight->packing;
  if (!p->kind) return mlx_dtype_bits(weight->tensor.dtype);
  const double scale = mlx_dtype_bits(p->parts[MLX_PART_SCALES]->dtype);
  return p->bits + (p->kind == MLX_PACKED_MLX ? 2 * scale : scale + p->bits) / (double)p->group;
}

// The type that |weight| is quantized to, or MLX_QUANTIZE_NONE. A weight that already has as few bits is not
// quantized again: that would lose precision and save nothing. A router stays as it is: it is small, and an
// error in it selects other experts.
static mlx_quantize_t quantize_to(const mlx_weight_t *weight, mlx_storage_t storage,
                                  mlx_panel_format_t *out_format) {
  const unsigned tables = MLX_ROLE_EMBEDDING | MLX_ROLE_POSITIONS | MLX_ROLE_HEAD;
  const mlx_quantize_t kind =
      weight->roles & tables ? mlx_quantize_of_vocabulary(storage.quantize) : storage.quantize;
  if (weight->roles & MLX_ROLE_ROUTER) return MLX_QUANTIZE_NONE;
  const bool stacked = mlx_weight_is_experts(weight) ? weight->part_packings != NULL : weight->parts != NULL;
  if (kind == MLX_QUANTIZE_NONE || stacked || columns_of(weight) % MLX_CODES) return MLX_QUANTIZE_NONE;
  *out_format = mlx_dtype_info(mlx_quantize_dtype(kind))->panel;
  return bits_in_file(weight) > mlx_panel_bits(*out_format) ? kind : MLX_QUANTIZE_NONE;
}

// The tile format of experts that are quantized one by one: one for all of them.
static mlx_tiles_t part_tiles(const mlx_weight_t *weight) {
  const mlx_tiles_t tiles = mlx_tiles_of_packing(&weight->part_packings[0]);
  for (int64_t i = 1; i < weight->tensor.dims[0]; ++i) {
    if (!mlx_tiles_equal(tiles, mlx_tiles_of_packing(&weight->part_packings[i]))) return (mlx_tiles_t){0};
  }
  return tiles;
}

// The tile format that holds the values of the file exactly; its bits are 0 if there is none.
static mlx_tiles_t exact_tiles(const mlx_weight_t *weight) {
  if (!keeps_rows(weight)) return (mlx_tiles_t){0};
  if (weight->part_packings) return part_tiles(weight);
  if (weight->packing.kind) return mlx_tiles_of_packing(&weight->packing);
  return mlx_tiles_of(weight->tensor.dtype);
}

// Chooses tiles with quantized codes, or with the codes of the file. Sets tiles.bits to 0 if no tile format
// fits.
static void choose_tiles(const mlx_weight_t *weight, mlx_storage_t storage, mlx_stored_t *out) {
  out->kind = out->quantize ? MLX_STORED_QUANTIZED : MLX_STORED_CODES;
  out->tiles = out->quantize ? mlx_tiles_of(mlx_quantize_dtype(out->quantize)) : exact_tiles(weight);
  if (out->tiles.bits && storage.tiles) out->tiles = storage.tiles[weight - storage.weights];
}

static bool is_vector(const mlx_weight_t *weight) {
  return weight->tensor.rank < 2 || (weight->roles & MLX_ROLE_VECTOR);
}

// A weight that is changed when it is read may need more bits than its file has.
static mlx_dtype_t float_dtype(const mlx_weight_t *weight, mlx_storage_t storage) {
  const mlx_dtype_t dtype = weight->tensor.dtype;
  if (weight->is_order) return MLX_I32;
  if (is_vector(weight)) return MLX_F32;
  if (!storage.as_stored || mlx_weight_is_changed(weight) || weight->packing.kind) return storage.dtype;
  return dtype == MLX_BF16 || dtype == MLX_F16 ? dtype : storage.dtype;
}

// The GPU kernels multiply routers of floats. A quantized one (MLX) is small and dequantized exactly. So are
// the matrices of heads, which the same kernel multiplies.
static bool in_tiles_layout(const mlx_weight_t *weight) {
  if (weight->roles & (MLX_ROLE_ROUTER | MLX_ROLE_HEADS)) return false;
  return mlx_weight_is_matrix(weight) || mlx_weight_is_experts(weight);
}

mlx_stored_t mlx_weight_stored(const mlx_weight_t *weight, mlx_storage_t storage) {
  mlx_stored_t out = {.kind = MLX_STORED_FLOATS, .dtype = float_dtype(weight, storage)};
  out.format = mlx_dtype_info(out.dtype)->panel;
  const bool tiles = storage.layout == MLX_LAYOUT_TILES;
  if (tiles ? !in_tiles_layout(weight)
            : storage.layout != MLX_LAYOUT_QUANTIZED_PANELS || !mlx_weight_in_panels(weight, storage.layout))
    return out;
  mlx_panel_format_t format;
  out.quantize = quantize_to(weight, storage, &format);
  if (tiles) {
    mlx_stored_t in_tiles = out;
    choose_tiles(weight, storage, &in_tiles);
    out.quantize = MLX_QUANTIZE_NONE;
    return in_tiles.tiles.bits ? in_tiles : out;
  }
  if (out.quantize != MLX_QUANTIZE_NONE) {
    out.kind = MLX_STORED_QUANTIZED;
    out.format = format;
  } else if (exact_format(weight, &format)) {
    out.kind = mlx_panel_info(format)->code_bits ? MLX_STORED_CODES : MLX_STORED_FLOATS;
    out.format = format;
    if (out.kind == MLX_STORED_FLOATS) out.dtype = mlx_panel_info(format)->number;
  }
  return out;
}

size_t mlx_weights_count(const mlx_model_t *model, mlx_storage_t storage, mlx_stored_kind_t kind) {
  size_t count = 0;
  for (size_t i = 0; i < model->weight_count; ++i) {
    count += (mlx_weight_is_matrix(&model->weights[i]) || mlx_weight_is_experts(&model->weights[i])) &&
             mlx_weight_stored(&model->weights[i], storage).kind == kind;
  }
  return count;
}

// ----------------------------------------------------------------------------------------------------------
// Explaining it to the user

typedef struct line {
  char text[280];
  size_t count;
} line_t;

#define MAX_LINES 32

static void describe_source(const mlx_weight_t *weight, char *out, size_t size) {
  const mlx_packing_t *p = weight->part_packings ? weight->part_packings : &weight->packing;
  if (p->kind) {
    snprintf(out, size, "%s of %d bits in groups of %lld%s with scales in %s", mlx_packing_name(p->kind),
             p->bits, (long long)p->group, p->order ? " in act order" : "",
             mlx_dtype_info(p->parts[MLX_PART_SCALES]->dtype)->name);
  } else {
    snprintf(out, size, "%s", mlx_dtype_info(weight->tensor.dtype)->name);
  }
}

static void describe_stored(const mlx_weight_t *weight, mlx_storage_t storage, char *out, size_t size) {
  const mlx_stored_t stored = mlx_weight_stored(weight, storage);
  const bool in_tiles = stored.tiles.bits != 0;
  const double bits = in_tiles ? mlx_tiles_bits(stored.tiles) : mlx_panel_bits(stored.format);
  // A format with as many bits as the file's type has the same codes and scales, only in another order.
  const bool unchanged = !weight->packing.kind && mlx_dtype_bits(weight->tensor.dtype) == bits;
  char name[80];
  if (in_tiles) {
    mlx_tiles_describe(stored.tiles, name, sizeof name);
  } else {
    snprintf(name, sizeof name, "%s", mlx_panel_info(stored.format)->name);
  }
  if (stored.kind == MLX_STORED_QUANTIZED) {
    snprintf(out, size, "quantized to %s (%s; %g bits per weight)", mlx_quantize_name(stored.quantize), name,
             bits);
  } else if (stored.kind == MLX_STORED_CODES) {
    snprintf(out, size, "%s (%s; %g bits per weight)", unchanged ? "unchanged" : "repacked without loss",
             name, bits);
  } else if (mlx_weight_is_quantized(weight)) {
    snprintf(out, size, "expanded to %s%s", name,
             storage.layout == MLX_LAYOUT_TILES && weight->roles & MLX_ROLE_ROUTER
                 ? ": the GPU kernel for routers needs float weights"
             : storage.layout == MLX_LAYOUT_QUANTIZED_PANELS || storage.layout == MLX_LAYOUT_TILES
                 ? ": no kernel supports its format"
                 : "");
  } else {
    snprintf(out, size, "stored as %s%s", name,
             !storage.quantize                 ? ""
             : weight->roles & MLX_ROLE_ROUTER ? ": a router is not quantized"
             : columns_of(weight) % MLX_CODES  ? ": its number of columns is not a multiple of 32"
                                               : "");
  }
}

void mlx_weights_explain(const mlx_model_t *model, mlx_storage_t storage, const mlx_report_t *report) {
  line_t lines[MAX_LINES] = {0};
  size_t count = 0;
  for (size_t i = 0; i < model->weight_count; ++i) {
    char source[80], stored[180], text[280];
    size_t line = 0;
    if (!mlx_weight_is_matrix(&model->weights[i]) && !mlx_weight_is_experts(&model->weights[i])) continue;
    describe_source(&model->weights[i], source, sizeof source);
    describe_stored(&model->weights[i], storage, stored, sizeof stored);
    snprintf(text, sizeof text, "%s: %s", source, stored);
    while (line < count && strcmp(lines[line].text, text)) ++line;
    if (line == MAX_LINES) continue;
    if (line == count) memcpy(lines[count++].text, text, sizeof text);
    ++lines[line].count;
  }
  for (size_t i = 0; i < count; ++i) {
    mlx_report_note(report, "weights: %zu matri%s of %s", lines[i].count, lines[i].count == 1 ? "x" : "ces",
                    lines[i].text);
  }
}
