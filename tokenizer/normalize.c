// Normalization: runs the steps of a normalizer, each on the output of the step before.
//
// Hugging Face maps every output character to the input characters it came from. In the resulting ids only
// one part of that map is visible: which output bytes come from the first input character, because
// Metaspace's prepend_scheme "first" depends on it. So only that part is tracked here, as |start|.
#include "tokenizer/normalize.h"

#include <string.h>

#include "base/memory.h"
#include "unicode/character.h"
#include "unicode/normal_form.h"
#include "unicode/utf8.h"

#define MAX_NORMALIZED ((size_t)1 << 30)  // bytes; the models use 32-bit positions

// The state of one running step.
typedef struct running {
  const mlx_normalizer_step_t *step;
  mlx_text_t *out;
  const char *text;  // the step's input
  size_t start;      // leading input bytes that come from the first character of the whole text
  size_t new_start;  // the same for the output
  size_t max_bytes;  // of the output
} running_t;

static mlx_status_t check_size(const running_t *running) {
  if (running->out->length <= running->max_bytes) return NULL;
  return mlx_error(MLX_UNSUPPORTED, "the tokenizer's normalizer expands this text to more than %zu MB",
                   running->max_bytes >> 20);
}

// ----------------------------------------------------------------------------------------------------------
// Steps on single characters

static bool is_nmt_removed(uint32_t c) {
  return (c >= 1 && c <= 8) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
}

static bool is_nmt_space(uint32_t c) {
  return c == 0x09 || c == 0x0a || c == 0x0c || c == 0x0d || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
}

static bool is_chinese(uint32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
         (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

static bool is_removed(mlx_normalizer_kind_t kind, uint32_t character) {
  switch (kind) {
    case MLX_NORMALIZER_STRIP_ACCENTS: return mlx_character_is_mark(character);
    case MLX_NORMALIZER_BERT_ACCENTS: return mlx_character_is_nonspacing_mark(character);
    case MLX_NORMALIZER_BERT_CLEAN: return mlx_character_is_control(character);
    case MLX_NORMALIZER_NMT: return is_nmt_removed(character);
    default: return false;
  }
}

static void run_characters(running_t *running, const char *text, size_t length) {
  mlx_normalizer_kind_t kind = running->step->kind;
  for (size_t i = 0, size; i < length; i += size) {
    uint32_t character = mlx_character_at(text + i, &size);
    if (i < running->start) running->new_start = SIZE_MAX;  // set at the next character after |start|
    if (i >= running->start && running->new_start == SIZE_MAX) running->new_start = running->out->length;
    if (is_removed(kind, character)) {
      continue;
    } else if (kind == MLX_NORMALIZER_LOWERCASE) {
      mlx_character_append_lower(running->out, character);
    } else if (kind == MLX_NORMALIZER_BERT_CHINESE && is_chinese(character)) {
      mlx_text_append(running->out, " ", 1);
      mlx_text_append(running->out, text + i, size);
      mlx_text_append(running->out, " ", 1);
    } else if ((kind == MLX_NORMALIZER_BERT_CLEAN && mlx_character_is_space(character)) ||
               (kind == MLX_NORMALIZER_NMT && is_nmt_space(character))) {
      mlx_text_append(running->out, " ", 1);
    } else {
      mlx_text_append(running->out, text + i, size);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// Steps on longer stretches

static void run_strip(running_t *running, const char *text, size_t length) {
  size_t start = 0, end = length;
  for (size_t size; running->step->left && start < length &&
                    mlx_character_is_space(mlx_character_at(text + start, &size));) {
    start += size;
  }
  while (running->step->right && end > start) {
    size_t before = end - 1, size;
    while (((uint8_t)text[before] & 0xc0) == 0x80) --before;
    if (!mlx_character_is_space(mlx_character_at(text + before, &size))) break;
    end = before;
  }
  running->new_start = running->start > start ? running->start - start : 0;
  mlx_text_append(running->out, text + start, end - start);
}

static mlx_status_t replace(void *user, const char *text, size_t length, bool is_match) {
  running_t *running = user;
  const mlx_normalizer_step_t *step = running->step;
  const size_t at = (size_t)(text - running->text);
  if (!is_match) {
    if (at < running->start)
      running->new_start =
          running->out->length + (length < running->start - at ? length : running->start - at);
    mlx_text_append(running->out, text, length);
    return NULL;
  }
  size_t last = length;  // a replacement of several characters counts as coming from the last of them
  while (last && ((uint8_t)text[--last] & 0xc0) == 0x80) continue;
  if (length && at + last < running->start) running->new_start = running->out->length + step->content_length;
  mlx_text_append(running->out, step->content, step->content_length);
  return check_size(running);
}

static mlx_status_t run_replace(running_t *running, mlx_regex_scanner_t *scanner, const char *text,
                                size_t length) {
  const mlx_normalizer_step_t *step = running->step;
  if (step->regex) return mlx_regex_scan(scanner, step->regex, text, length, replace, running);
  size_t done = 0;
  for (const char *found;
       (found = memmem(text + done, length - done, step->pattern, step->pattern_length));) {
    size_t at = (size_t)(found - text);
    if (at > done) MLX_TRY(replace(running, text + done, at - done, false));
    MLX_TRY(replace(running, found, step->pattern_length, true));
    done = at + step->pattern_length;
  }
  return replace(running, text + done, length - done, false);
}

static mlx_status_t run_step(running_t *running, mlx_normalizer_scratch_t *scratch,
                             mlx_regex_scanner_t *scanner, const char *text, size_t length) {
  const mlx_normalizer_step_t *step = running->step;
  switch (step->kind) {
    case MLX_NORMALIZER_FORM:
      return mlx_normal_form_append(step->form, text, length, &scratch->marks, running->out);
    case MLX_NORMALIZER_STRIP: run_strip(running, text, length); return NULL;
    case MLX_NORMALIZER_REPLACE: return run_replace(running, scanner, text, length);
    case MLX_NORMALIZER_PRECOMPILED:
      mlx_charsmap_run(step->charsmap, text, length, running->max_bytes, running->out);
      return check_size(running);
    case MLX_NORMALIZER_PREPEND:
      if (length) mlx_text_append(running->out, step->content, step->content_length);
      running->new_start = running->start ? running->out->length + running->start : 0;
      mlx_text_append(running->out, text, length);
      return NULL;
    default: run_characters(running, text, length); return NULL;
  }
}

// ----------------------------------------------------------------------------------------------------------

// Finds |new_start| after a step that may combine characters: the length of the first character's own output.
// If the whole output does not begin with that, the first character was combined with its successor. Then the
// first output character counts.
static mlx_status_t find_start(running_t *running, mlx_normalizer_scratch_t *scratch) {
  const mlx_text_t *whole = running->out;
  mlx_text_t alone = {0};
  if (!running->start || !whole->length) return NULL;
  mlx_status_t status = NULL;
  if (running->step->kind == MLX_NORMALIZER_FORM) {
    status =
        mlx_normal_form_append(running->step->form, running->text, running->start, &scratch->marks, &alone);
  } else {
    mlx_charsmap_run(running->step->charsmap, running->text, running->start, running->max_bytes, &alone);
  }
  if (!status) status = mlx_text_finish(&alone);
  running->new_start = alone.length;
  if (!status && (alone.length > whole->length || memcmp(alone.data, whole->data, alone.length))) {
    mlx_character_at(whole->data, &running->new_start);
  }
  mlx_text_clear(&alone);
  return status;
}

// True if the step leaves every ASCII text unchanged.
static bool keeps_ascii(const mlx_normalizer_step_t *step) {
  return step->kind == MLX_NORMALIZER_FORM || step->kind == MLX_NORMALIZER_STRIP_ACCENTS ||
         step->kind == MLX_NORMALIZER_BERT_CHINESE || step->kind == MLX_NORMALIZER_BERT_ACCENTS;
}

static bool is_ascii(const char *text, size_t length) {
  uint8_t bits = 0;
  for (size_t i = 0; i < length; ++i) bits |= (uint8_t)text[i];
  return bits < 0x80;
}

mlx_status_t mlx_normalizer_run(const mlx_normalizer_t *normalizer, mlx_normalizer_scratch_t *scratch,
                                mlx_regex_scanner_t *scanner, const char *text, size_t length,
                                const char **out_text, size_t *out_length, size_t *inout_start) {
  for (size_t i = 0; i < normalizer->count; ++i) {
    running_t running = {.step = &normalizer->steps[i],
                         .out = &scratch->next,
                         .text = text,
                         .start = *inout_start,
                         .max_bytes = scratch->max_bytes ? scratch->max_bytes : MAX_NORMALIZED};
    if (keeps_ascii(running.step) && is_ascii(text, length)) continue;
    scratch->next.length = 0;
    MLX_TRY(run_step(&running, scratch, scanner, text, length));
    MLX_TRY(mlx_text_finish(&scratch->next));
    MLX_TRY(check_size(&running));
    MLX_TRY(mlx_budget_step(scanner->budget, length));
    if (running.step->kind == MLX_NORMALIZER_FORM || running.step->kind == MLX_NORMALIZER_PRECOMPILED)
      MLX_TRY(find_start(&running, scratch));
    *inout_start = running.new_start < scratch->next.length ? running.new_start : scratch->next.length;
    mlx_text_t swap = scratch->current;
    scratch->current = scratch->next;
    scratch->next = swap;
    text = scratch->current.data;
    length = scratch->current.length;
  }
  *out_text = text;
  *out_length = length;
  return NULL;
}

void mlx_normalizer_scratch_free(mlx_normalizer_scratch_t *scratch) {
  mlx_text_clear(&scratch->current);
  mlx_text_clear(&scratch->next);
  mlx_free(scratch->marks.items);
  *scratch = (mlx_normalizer_scratch_t){0};
}

void mlx_normalizer_step_free(mlx_normalizer_step_t *step) {
  mlx_regex_free(step->regex);
  mlx_free(step->pattern);
  mlx_free(step->content);
  mlx_charsmap_free(step->charsmap);
}

void mlx_normalizer_free(mlx_normalizer_t *normalizer) {
  for (size_t i = 0; i < normalizer->count; ++i) mlx_normalizer_step_free(&normalizer->steps[i]);
  mlx_free(normalizer->steps);
  *normalizer = (mlx_normalizer_t){0};
}
