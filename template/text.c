// String operations that the methods of str, the filters and the operators share.
#include "template/text.h"

#include "template/characters.h"

mlx_status_t mlx_span_escape(mlx_render_t *r, mlx_span_t text, mlx_var_t *out) {
  static const char letters[] = "&<>'\"";
  static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  mlx_sink_t sink = {.arena = &r->arena};
  for (size_t i = 0; i < text.length; ++i) {
    const char *known = text.bytes[i] ? strchr(letters, text.bytes[i]) : NULL;
    if (known) {
      mlx_sink_puts(&sink, names[known - letters]);
    } else {
      mlx_sink_append(&sink, &text.bytes[i], 1);
    }
  }
  MLX_TRY(mlx_sink_to_string(r, &sink, out));
  out->markup = true;
  return NULL;
}

static bool ends_line(uint32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

mlx_status_t mlx_span_split_lines(mlx_render_t *r, mlx_span_t text, bool keep_ends, mlx_var_t *out) {
  mlx_var_t lines;
  MLX_TRY(mlx_list_create(r, MLX_PY_LIST, 0, &lines));
  for (size_t start = 0, at = 0, length; at < text.length;) {
    const uint32_t c = mlx_character_at(text.bytes + at, &length);
    const size_t end = at;
    at += length;
    const bool ends = ends_line(c);
    if (c == '\r' && at < text.length && text.bytes[at] == '\n') ++at;
    if (!ends && at < text.length) continue;
    MLX_TRY(mlx_list_push(r, lines.list,
                          mlx_string(text.bytes + start, (ends && !keep_ends ? end : at) - start)));
    start = at;
  }
  *out = lines;
  return NULL;
}

mlx_status_t mlx_render_charge_strip(mlx_render_t *r, mlx_span_t text, const mlx_span_t *characters) {
  const size_t each = characters && characters->length ? characters->length : 1;
  return mlx_render_charge(r, text.length * each);  // no overflow: the limit on memory bounds both lengths
}

mlx_status_t mlx_span_replace(mlx_render_t *r, mlx_span_t text, mlx_span_t old, mlx_span_t new, int64_t count,
                              mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  size_t at = 0;
  while (count && at <= text.length) {
    const char *found =
        old.length
            ? (at < text.length ? memmem(text.bytes + at, text.length - at, old.bytes, old.length) : NULL)
            : text.bytes + at;  // the empty string occurs before every character and at the end
    if (!found) break;
    const size_t offset = (size_t)(found - text.bytes);
    mlx_sink_append(&sink, text.bytes + at, offset - at);
    mlx_sink_append(&sink, new.bytes, new.length);
    at = offset + old.length;
    if (!old.length) {
      size_t length = 1;
      if (at < text.length) mlx_character_at(text.bytes + at, &length);
      if (at < text.length) mlx_sink_append(&sink, text.bytes + at, length);
      at += length;
    }
    if (count > 0) --count;
    if (sink.failed) break;
  }
  if (at < text.length) mlx_sink_append(&sink, text.bytes + at, text.length - at);
  MLX_TRY(mlx_render_charge(r, text.length));
  return mlx_sink_to_string(r, &sink, out);
}
