// The edited text and the effect of each key on it.
#include "line/line.h"

#include <string.h>

#include "base/memory.h"

// ----------------------------------------------------------------------------------------------------------
// Positions in the text. A step skips a whole grapheme.

static size_t after(const mlx_line_t *line, size_t at) {
  return mlx_grapheme_end(line->text.data, line->text.length, at);
}

static size_t before(const mlx_line_t *line, size_t at) {
  return at ? mlx_grapheme_start(line->text.data, line->text.length, at) : 0;
}

static bool is_space(const mlx_line_t *line, size_t at) {
  return strchr(" \t\n", line->text.data[at]) && line->text.data[at];
}

static size_t word_before(const mlx_line_t *line, size_t at) {
  while (at > 0 && is_space(line, before(line, at))) at = before(line, at);
  while (at > 0 && !is_space(line, before(line, at))) at = before(line, at);
  return at;
}

static size_t word_after(const mlx_line_t *line, size_t at) {
  while (at < line->text.length && is_space(line, at)) at = after(line, at);
  while (at < line->text.length && !is_space(line, at)) at = after(line, at);
  return at;
}

static size_t row_start(const mlx_line_t *line, size_t at) {
  while (at > 0 && line->text.data[at - 1] != '\n') --at;
  return at;
}

static size_t row_end(const mlx_line_t *line, size_t at) {
  while (at < line->text.length && line->text.data[at] != '\n') ++at;
  return at;
}

// ----------------------------------------------------------------------------------------------------------
// Changes

static void insert(mlx_line_t *line, const char *bytes, size_t length) {
  mlx_text_t *text = &line->text;
  if (length > MLX_LINE_BYTES - text->length) return;
  const size_t tail = text->length - line->cursor;
  mlx_text_append(text, bytes, length);
  if (text->failed) return;
  memmove(text->data + line->cursor + length, text->data + line->cursor, tail);
  memcpy(text->data + line->cursor, bytes, length);
  line->cursor += length;
}

static void erase(mlx_line_t *line, size_t from, size_t to) {
  if (from == to) return;
  memmove(line->text.data + from, line->text.data + to, line->text.length - to + 1);
  line->text.length -= to - from;
  line->cursor = from;
}

static void replace(mlx_line_t *line, const char *text, size_t length) {
  line->text.length = line->cursor = 0;
  insert(line, text, length);
}

// Shows the history entry |back| steps before the newest one, or the draft if |back| is 0.
static void recall(mlx_line_t *line, size_t back) {
  const size_t count = line->history ? line->history->count : 0;
  if (back > count || back == line->back) return;
  if (!line->back) {
    line->draft.length = 0;
    mlx_text_append(&line->draft, line->text.data ? line->text.data : "", line->text.length);
  }
  line->back = back;
  const char *text = back ? line->history->entries[count - back] : line->draft.data ? line->draft.data : "";
  replace(line, text, back ? strlen(text) : line->draft.length);
}

// Moves to the row above or below in the text, else to the previous or next history entry. Columns count
// characters.
static void move_row(mlx_line_t *line, bool up) {
  const size_t start = row_start(line, line->cursor), end = row_end(line, line->cursor);
  size_t column = 0, at = start;
  for (; at < line->cursor; at = after(line, at)) ++column;
  if (up && !start) {
    recall(line, line->back + 1);
    return;
  }
  if (!up && end == line->text.length) {
    if (line->back) recall(line, line->back - 1);
    return;
  }
  at = up ? row_start(line, start - 1) : end + 1;
  const size_t last = row_end(line, at);
  while (column-- && at < last) at = after(line, at);
  line->cursor = at;
}

// Completes the first word with the longest common prefix of the words that begin with it, and adds a space
// if only one matches.
static void complete(mlx_line_t *line) {
  const size_t length = line->text.length;
  const char *found = NULL;
  size_t common = 0, count = 0;
  if (!line->words || !length || line->cursor != length) return;
  for (const char *const *word = line->words; *word; ++word) {
    if (strlen(*word) < length || memcmp(*word, line->text.data, length)) continue;
    size_t same = 0;
    while (found && same < common && (*word)[same] == found[same]) ++same;
    common = found ? same : strlen(*word);
    found = *word;
    ++count;
  }
  if (!count) return;
  insert(line, found + length, common - length);
  if (count == 1) insert(line, " ", 1);
}

// ----------------------------------------------------------------------------------------------------------
// Search in the history, as Ctrl-R of readline

// Shows the newest entry that contains the query, from |back| on. The text stays if there is none.
static void search_from(mlx_line_t *line, size_t back) {
  const size_t count = line->history ? line->history->count : 0;
  const char *query = line->query.data ? line->query.data : "", *found = NULL;
  for (; back <= count && !found; ++back) found = strstr(line->history->entries[count - back], query);
  line->not_found = !found;
  if (!found) return;
  const char *entry = line->history->entries[count - (back - 1)];
  recall(line, back - 1);
  replace(line, entry, strlen(entry));  // the entry was shown already and may have been edited
  line->cursor = (size_t)(found - entry);
}

static void begin_search(mlx_line_t *line) {
  line->searching = true;
  line->not_found = false;
  line->query.length = 0;
  line->text_before.length = 0;
  mlx_text_append(&line->text_before, line->text.data ? line->text.data : "", line->text.length);
  line->cursor_before = line->cursor;
  line->back_before = line->back;
}

// Shows the text from before the search.
static void cancel_search(mlx_line_t *line) {
  line->searching = false;
  if (line->text_before.failed) return;
  replace(line, line->text_before.data, line->text_before.length);
  line->cursor = line->cursor_before;
  line->back = line->back_before;
}

// Applies a key to the query. False if the key ends the search and applies to the text found.
static bool press_in_search(mlx_line_t *line, mlx_key_t key, const char *text, size_t length) {
  mlx_text_t *query = &line->query;
  switch (key) {
    case MLX_KEY_NONE:
    case MLX_KEY_CLEAR_SCREEN: break;
    case MLX_KEY_TEXT:
      if (query->length + length > MLX_HISTORY_BYTES) break;
      mlx_text_append(query, text, length);
      if (!query->failed) search_from(line, line->back ? line->back : 1);
      break;
    case MLX_KEY_SEARCH:
      if (query->length) search_from(line, line->back + 1);
      break;
    case MLX_KEY_BACKSPACE:
      if (!query->length) break;
      query->length = mlx_grapheme_start(query->data, query->length, query->length);
      query->data[query->length] = 0;
      if (query->length) search_from(line, 1);
      break;
    case MLX_KEY_CANCEL:
    case MLX_KEY_INTERRUPT: cancel_search(line); break;
    default: line->searching = false; return false;
  }
  return true;
}

void mlx_line_search_label(const mlx_line_t *line, mlx_text_t *out) {
  mlx_text_puts(out, line->not_found ? "(not found: '" : "(search: '");
  mlx_text_append(out, line->query.data ? line->query.data : "", line->query.length);
  mlx_text_puts(out, "') ");
}

// ----------------------------------------------------------------------------------------------------------
// The Enter key

static bool begins_block(const mlx_line_t *line) {
  return line->text.length >= 3 && !memcmp(line->text.data, "\"\"\"", 3);
}

static bool ends_block(const mlx_line_t *line) {
  size_t end = line->text.length;
  while (end > 3 && is_space(line, end - 1)) --end;
  return end >= 6 && !memcmp(line->text.data + end - 3, "\"\"\"", 3);
}

static mlx_line_event_t enter(mlx_line_t *line) {
  const size_t length = line->text.length;
  if (begins_block(line) && !ends_block(line)) {
    insert(line, "\n", 1);
    return MLX_LINE_CONTINUES;
  }
  if (length && line->cursor == length && line->text.data[length - 1] == '\\') {
    line->text.data[length - 1] = '\n';
    return MLX_LINE_CONTINUES;
  }
  line->cursor = length;
  return MLX_LINE_DONE;
}

mlx_line_event_t mlx_line_press(mlx_line_t *line, mlx_key_t key, const char *text, size_t length) {
  if (line->searching && press_in_search(line, key, text, length))
    return key == MLX_KEY_CLEAR_SCREEN ? MLX_LINE_REDRAW : MLX_LINE_CONTINUES;
  const size_t cursor = line->cursor;
  switch (key) {
    case MLX_KEY_NONE:
    case MLX_KEY_CANCEL: break;
    case MLX_KEY_SEARCH: begin_search(line); break;
    case MLX_KEY_TEXT: insert(line, text, length); break;
    case MLX_KEY_ENTER: return enter(line);
    case MLX_KEY_NEWLINE: insert(line, "\n", 1); break;
    case MLX_KEY_LEFT: line->cursor = before(line, cursor); break;
    case MLX_KEY_RIGHT: line->cursor = after(line, cursor); break;
    case MLX_KEY_UP: move_row(line, true); break;
    case MLX_KEY_DOWN: move_row(line, false); break;
    case MLX_KEY_HOME: line->cursor = row_start(line, cursor); break;
    case MLX_KEY_END: line->cursor = row_end(line, cursor); break;
    case MLX_KEY_WORD_LEFT: line->cursor = word_before(line, cursor); break;
    case MLX_KEY_WORD_RIGHT: line->cursor = word_after(line, cursor); break;
    case MLX_KEY_BACKSPACE: erase(line, before(line, cursor), cursor); break;
    case MLX_KEY_DELETE: erase(line, cursor, after(line, cursor)); break;
    case MLX_KEY_KILL_AFTER: erase(line, cursor, row_end(line, cursor)); break;
    case MLX_KEY_KILL_BEFORE: erase(line, row_start(line, cursor), cursor); break;
    case MLX_KEY_KILL_WORD: erase(line, word_before(line, cursor), cursor); break;
    case MLX_KEY_INTERRUPT: line->cursor = line->text.length; return MLX_LINE_INTERRUPTED;
    case MLX_KEY_END_OF_INPUT:
      if (!line->text.length) return MLX_LINE_ENDED;
      erase(line, cursor, after(line, cursor));
      break;
    case MLX_KEY_CLEAR_SCREEN: return MLX_LINE_REDRAW;
    case MLX_KEY_SUSPEND: return MLX_LINE_SUSPEND;
    case MLX_KEY_TAB: complete(line); break;
  }
  return MLX_LINE_CONTINUES;
}

mlx_status_t mlx_line_value(mlx_line_t *line, const char **out_text, size_t *out_length) {
  MLX_TRY(mlx_text_finish(&line->text));
  MLX_TRY(mlx_text_finish(&line->draft));
  MLX_TRY(mlx_text_finish(&line->query));
  MLX_TRY(mlx_text_finish(&line->text_before));
  const char *text = line->text.data ? line->text.data : "";
  size_t length = line->text.length;
  if (begins_block(line) && ends_block(line)) {
    while (is_space(line, length - 1)) --length;
    text += 3;
    length -= 6;
    if (length && text[0] == '\n') ++text, --length;
    if (length && text[length - 1] == '\n') --length;
  }
  *out_text = text;
  *out_length = length;
  return NULL;
}

void mlx_line_set(mlx_line_t *line, const char *text, size_t length) { replace(line, text, length); }

void mlx_line_clear(mlx_line_t *line) {
  mlx_text_clear(&line->query);
  mlx_text_clear(&line->text_before);
  mlx_text_clear(&line->text);
  mlx_text_clear(&line->draft);
  *line = (mlx_line_t){.history = line->history, .words = line->words};
}
