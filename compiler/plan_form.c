// Combinations of layers and weights that the decode kernel does not have.
#include "compiler/plan_match.h"

// All norms of inputs that the network has (form->norms) have a weight, or none has. |which|: their weights.
static bool norms_agree(const mlx_decode_form_t *form, const mlx_decode_weight_t which[3]) {
  const bool any = form->counts[which[2]] != 0;
  for (int i = 0; i < 3; ++i)
    if (form->counts[which[i]] != (any ? form->norms[i] : 0)) return false;
  return true;
}

// There is a final norm, and all layers have the same norms of inputs. Only RMSNorm has a gain always.
static bool norms_are_regular(const mlx_plan_matcher_t *m) {
  static const mlx_decode_weight_t gains[] = {MLX_DECODE_ATTN_NORM, MLX_DECODE_MLP_NORM,
                                              MLX_DECODE_FINAL_NORM},
                                   biases[] = {MLX_DECODE_ATTN_NORM_BIAS, MLX_DECODE_MLP_NORM_BIAS,
                                               MLX_DECODE_FINAL_NORM_BIAS};
  const mlx_decode_form_t *form = &m->plan->form;
  const int64_t layers = m->model->config.layers, attention = form->norms[0], mlp = form->norms[1];
  if (form->norms[2] != 1 || !norms_agree(form, gains) || !norms_agree(form, biases)) return false;
  if (form->counts[MLX_DECODE_FINAL_NORM_BIAS] && !form->counts[MLX_DECODE_FINAL_NORM]) return false;
  if (form->layer_norms)
    return attention == layers && !mlx_has_post_norms(form) && !form->experts &&
           (mlp == layers || (form->parallel && !mlp));
  return (attention == mlp || (form->parallel && !mlp)) && (!attention || attention == layers);
}

// The layers that may have a weight.
static int64_t layers_with(const mlx_plan_matcher_t *m, mlx_decode_weight_t weight) {
  static const mlx_decode_weight_t of_attention[] = {MLX_DECODE_Q,      MLX_DECODE_K,      MLX_DECODE_V,
                                                     MLX_DECODE_O,      MLX_DECODE_Q_BIAS, MLX_DECODE_K_BIAS,
                                                     MLX_DECODE_V_BIAS, MLX_DECODE_O_BIAS, MLX_DECODE_Q_NORM,
                                                     MLX_DECODE_K_NORM, MLX_DECODE_SINKS};
  const int64_t recurrent = m->plan->form.recurrent_layers, layers = m->model->config.layers;
  if (!mlx_decode_in_layers(weight)) return 1;
  if (weight >= MLX_DECODE_RECURRENT_IN && weight <= MLX_DECODE_RECURRENT_OUT_BIAS) return recurrent;
  for (size_t i = 0; i < sizeof of_attention / sizeof *of_attention; ++i)
    if (weight == of_attention[i]) return layers - recurrent;
  return layers;
}

// All layers that may have a weight have it, or none. NULL: so it is.
static const char *uneven_layers(const mlx_plan_matcher_t *m) {
  const mlx_decode_form_t *form = &m->plan->form;
  for (int i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
    if (form->counts[i] && form->counts[i] != layers_with(m, (mlx_decode_weight_t)i))
      return "a bias, norm or matrix that only some layers have";
  }
  return NULL;
}

// A combination in a network with recurrent layers, or with gates of heads; NULL: there is none.
static const char *unsupported_recurrent_form(const mlx_plan_matcher_t *m) {
  const mlx_decode_plan_t *plan = m->plan;
  const mlx_decode_form_t *form = &plan->form;
  const mlx_delta_t *d = &form->delta;
  if (form->gated_heads && form->whole_norms) return "a norm of all heads beside gates of heads";
  if (!form->recurrent_layers) return NULL;
  if (form->recurrent_layers == m->model->config.layers) return "no layer with attention";
  if (form->parallel || form->layer_norms || mlx_has_post_norms(form) || form->window || mlx_has_orders(form))
    return "recurrent layers beside layers of this form";
  if (form->norms[0] != m->model->config.layers) return "a recurrent layer without a norm of its input";
  // Rows of q, k and v are followed by those of z in the same tile.
  if (plan->tiles[MLX_DECODE_ROLE_RECURRENT][0].bits &&
      (2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim) % MLX_TILE_ROWS)
    return "rows of the delta rule that do not end with a tile";
  if (mlx_tiles_are_rows(plan->tiles[MLX_DECODE_ROLE_QKV][0]) !=
      mlx_tiles_are_rows(plan->tiles[MLX_DECODE_ROLE_RECURRENT][0]))
    return "16-bit matrices in either attention or recurrent layers";
  return NULL;
}

const char *mlx_plan_unsupported_form(const mlx_plan_matcher_t *m) {
  const mlx_decode_form_t *form = &m->plan->form;
  for (int i = 1; i < form->rope_count; ++i) {
    const mlx_rope_t *a = form->ropes[0], *b = form->ropes[i];
    if (a && b && (a->dims != b->dims || a->adjacent != b->adjacent)) return "two kinds of RoPE of this form";
  }
  // With attention beside the MLP, gate and up have the input of q, k and v in the same order, or another
  // norm.
  if (form->parallel && form->counts[MLX_DECODE_GATE_ORDER] && !form->counts[MLX_DECODE_MLP_NORM])
    return "a column order of the MLP beside attention";
  if (!norms_are_regular(m)) return "norms in these places";
  if (!form->counts[MLX_DECODE_Q_NORM] != !form->counts[MLX_DECODE_K_NORM])
    return "a norm of only queries or keys";
  if (!form->counts[MLX_DECODE_POST_ATTN_NORM] != !form->counts[MLX_DECODE_POST_MLP_NORM])
    return "a norm after only attention or the MLP";
  if (form->experts && (!form->counts[MLX_DECODE_ATTN_NORM] || mlx_has_post_norms(form) || form->parallel))
    return "experts in a layer of this form";
  if (form->late_clip != 0.0 && form->norm_after_rope) return "a limit before RoPE and a norm after it";
  if (mlx_has_post_norms(form) && (form->residual_scale != 1.0 || form->parallel))
    return "norms after attention and MLP in a layer of this form";
  if (!m->plan->regular && m->fused) return "matrices in one tensor, in layers of different sizes";
  const char *recurrent = unsupported_recurrent_form(m);
  return recurrent ? recurrent : uneven_layers(m);
}
