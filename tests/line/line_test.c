// The line editor without a terminal: keys and editing, drawing, history and the stream of generated text.
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "line/line.h"
#include "line/stream.h"
#include "tests/goldens/graphemes.h"
#include "tests/support/check.h"
#include "unicode/utf8.h"
#include "unicode/width.h"

// ----------------------------------------------------------------------------------------------------------
// Keys and editing

static mlx_line_event_t type(mlx_line_t *line, const char *bytes) {
  static mlx_keys_t keys;
  keys = (mlx_keys_t){0};
  mlx_line_event_t event = MLX_LINE_CONTINUES;
  for (; *bytes && event == MLX_LINE_CONTINUES; ++bytes) {
    const mlx_key_t key = mlx_keys_push(&keys, (unsigned char)*bytes);
    event = mlx_line_press(line, key, keys.bytes, keys.length);
  }
  CHECK(!*bytes);  // only the last byte may end the line
  return event;
}

static const char *shown(const mlx_line_t *line) {
  static char text[512];
  snprintf(text, sizeof text, "%.*s|%.*s", (int)line->cursor, line->text.data ? line->text.data : "",
           (int)(line->text.length - line->cursor), line->text.data ? line->text.data + line->cursor : "");
  return text;
}

// Types |bytes| into an empty line and compares the text, with a | at the cursor.
#define CHECK_TYPED(bytes, expected)                    \
  do {                                                  \
    mlx_line_t line_ = {0};                             \
    CHECK_INT(type(&line_, bytes), MLX_LINE_CONTINUES); \
    CHECK_TEXT(shown(&line_), expected);                \
    mlx_line_clear(&line_);                             \
  } while (0)

TEST(keys_move_and_change_the_text) {
  CHECK_TYPED("abc", "abc|");
  CHECK_TYPED("abc\033[D\033[Dx", "ax|bc");
  CHECK_TYPED("abc\033OD\x7f", "a|c");
  CHECK_TYPED("abc\x01x\x05y", "xabcy|");
  CHECK_TYPED("abc\033[Hx\033[Fy", "xabcy|");
  CHECK_TYPED("abc\033[1~x\033[4~y", "xabcy|");
  CHECK_TYPED("abc\x01\033[3~", "|bc");
  CHECK_TYPED("abc\x01\x04", "|bc");
  CHECK_TYPED("abc\x02\x0b", "ab|");
  CHECK_TYPED("abc\x02\x15", "|c");
  CHECK_TYPED("one two  \x17", "one |");
  CHECK_TYPED("one two\033[1;5D\033[1;5D\033[1;5C", "one| two");
  CHECK_TYPED("one two\033b\033bx\033f", "xone| two");
  CHECK_TYPED("a\033[99zb\033[1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16Rc",
              "abc|");  // unknown and overlong sequences are ignored
  CHECK_TYPED("\x7f\033[D\033[C\033[3~\x0b\x15\x17", "|");
}

TEST(cursor_steps_over_a_character_with_its_combining_marks) {
  CHECK_TYPED("aé日\033[D\033[D", "a|é日");
  CHECK_TYPED("e\xcc\x81x\033[D\033[D", "|e\xcc\x81x");
  CHECK_TYPED("日本\x7f", "日|");
  CHECK_TYPED(
      "\xff\xc3"
      "ab",
      "b|");  // invalid UTF-8 is dropped
  CHECK_TYPED(
      "a\xc2\x9b"
      "31mb",
      "a31mb|");  // and so is the C1 control character CSI
}

#define FAMILY "\U0001f469\u200d\U0001f469\u200d\U0001f467"
#define FLAG "\U0001f1e9\U0001f1ea"

TEST(keys_move_over_and_delete_whole_graphemes) {
  CHECK_TYPED("a" FAMILY "\x7f", "a|");
  CHECK_TYPED("a" FAMILY "b\033[D\033[D", "a|" FAMILY "b");
  CHECK_TYPED(FAMILY "b\x01\x04", "|b");
  CHECK_TYPED(FLAG FLAG "\x7f", FLAG "|");
  CHECK_TYPED(FLAG FLAG "\033[D", FLAG "|" FLAG);
  CHECK_TYPED("\U0001f44d\U0001f3fd\x7f", "|");  // with a skin tone
  CHECK_TYPED("1\ufe0f\u20e3\x7f", "|");         // a keycap
  CHECK_TYPED("\u1112\u1161\u11ab\x7f", "|");    // a syllable of three letters
  for (size_t i = 0; i < sizeof graphemes / sizeof *graphemes; ++i) {
    const char *text = graphemes[i].text;
    const size_t length = strlen(text);
    for (size_t at = 0, n = 0; at < length; ++n) {
      const size_t next = at + graphemes[i].sizes[n];
      if (mlx_grapheme_end(text, length, at) != next || mlx_grapheme_start(text, length, next) != at)
        CHECK_FAIL("text %zu: the grapheme at byte %zu is not %u bytes long", i, at, graphemes[i].sizes[n]);
      at = next;
    }
  }
}

TEST(backslash_and_triple_quotes_continue_a_line) {
  mlx_line_t line = {0};
  const char *text;
  size_t length;
  CHECK_INT(type(&line, "one\\\r"), MLX_LINE_CONTINUES);
  CHECK_TEXT(shown(&line), "one\n|");
  CHECK_INT(type(&line, "two\033\rthree\r"), MLX_LINE_DONE);
  CHECK_OK(mlx_line_value(&line, &text, &length));
  CHECK_TEXT(text, "one\ntwo\nthree");
  mlx_line_clear(&line);
  CHECK_INT(type(&line, "\"\"\"\r"), MLX_LINE_CONTINUES);
  CHECK_INT(type(&line, "a \"quoted\"\r\rb\r"), MLX_LINE_CONTINUES);
  CHECK_INT(type(&line, "\"\"\"\r"), MLX_LINE_DONE);
  CHECK_OK(mlx_line_value(&line, &text, &length));
  CHECK_INT(length, strlen("a \"quoted\"\n\nb"));
  CHECK(!memcmp(text, "a \"quoted\"\n\nb", length));
  mlx_line_clear(&line);
  CHECK_INT(type(&line, "\"\"\"x\"\"\"\r"), MLX_LINE_DONE);
  CHECK_OK(mlx_line_value(&line, &text, &length));
  CHECK_INT(length, 1);
  mlx_line_clear(&line);
}

TEST(pasted_text_keeps_newlines_and_loses_control_characters) {
  mlx_line_t line = {0};
  CHECK_INT(type(&line, "\033[200~one\r\ntwo\rthree\n\tx\033[31my\x03\x04z\033[201~"), MLX_LINE_CONTINUES);
  CHECK_TEXT(shown(&line), "one\ntwo\nthree\n\txyz|");
  CHECK_INT(type(&line, "\r"), MLX_LINE_DONE);
  mlx_line_clear(&line);
}

TEST(up_and_down_move_through_rows_then_history) {
  mlx_history_t history = {0};
  mlx_line_t line = {.history = &history};
  CHECK_OK(mlx_history_add(&history, "first", 5));
  CHECK_OK(mlx_history_add(&history, "sec\nond", 7));
  CHECK_OK(mlx_history_add(&history, "sec\nond", 7));  // a repeated entry is stored once
  type(&line, "new\033[A");
  CHECK_TEXT(shown(&line), "sec\nond|");
  type(&line, "\033[A");
  CHECK_TEXT(shown(&line), "sec|\nond");
  type(&line, "\033[A\033[A");
  CHECK_TEXT(shown(&line), "first|");
  type(&line, "\033[B");
  CHECK_TEXT(shown(&line), "sec\nond|");
  type(&line, "\033[B\033[B");
  CHECK_TEXT(shown(&line), "new|");
  type(&line, "\x10\x0e");
  CHECK_TEXT(shown(&line), "new|");
  mlx_line_clear(&line);
  type(&line, "abcd\\\r12\033[A");
  CHECK_TEXT(shown(&line), "ab|cd\n12");
  mlx_line_clear(&line);
  mlx_history_clear(&history);
}

static const char *label(const mlx_line_t *line) {
  static char text[64];
  mlx_text_t out = {0};
  mlx_line_search_label(line, &out);
  snprintf(text, sizeof text, "%s", out.data);
  mlx_text_clear(&out);
  return text;
}

TEST(ctrl_r_searches_the_history) {
  mlx_history_t history = {0};
  mlx_line_t line = {.history = &history};
  static const char *const entries[] = {"first water", "second fire", "third water", "fourth"};
  for (size_t i = 0; i < 4; ++i) CHECK_OK(mlx_history_add(&history, entries[i], strlen(entries[i])));
  type(&line, "draft\x12wat");
  CHECK(line.searching);
  CHECK_TEXT(shown(&line), "third |water");
  CHECK_TEXT(label(&line), "(search: 'wat') ");
  type(&line, "\x12");  // the next older one
  CHECK_TEXT(shown(&line), "first |water");
  type(&line, "\x12");  // there is none: the text stays
  CHECK_TEXT(shown(&line), "first |water");
  CHECK_TEXT(label(&line), "(not found: 'wat') ");
  type(&line,
       "\x7f\x7f\x7f"
       "fi");
  CHECK_TEXT(shown(&line), "second |fire");
  type(&line, "\x07");  // Ctrl-G gives back the text from before
  CHECK(!line.searching);
  CHECK_TEXT(shown(&line), "draft|");
  type(&line,
       "\x12"
       "water\x05!");  // another key keeps what was found
  CHECK(!line.searching);
  CHECK_TEXT(shown(&line), "third water!|");
  type(&line,
       "\x15\x12"
       "thi\x03");  // Ctrl-C ends only the search
  CHECK_TEXT(shown(&line), "|");
  type(&line,
       "\x12"
       "fire");
  CHECK_INT(type(&line, "\r"), MLX_LINE_DONE);
  CHECK_TEXT(line.text.data, "second fire");
  mlx_line_clear(&line);
  mlx_history_clear(&history);
}

TEST(tab_completes_the_first_word) {
  static const char *const words[] = {"/save", "/stats", "/system", "/exit", NULL};
  mlx_line_t line = {.words = words};
  type(&line, "/e\t");
  CHECK_TEXT(shown(&line), "/exit |");
  type(&line, "x\t");
  CHECK_TEXT(shown(&line), "/exit x|");
  mlx_line_clear(&line);
  type(&line, "/s\t");
  CHECK_TEXT(shown(&line), "/s|");  // three words match
  type(&line, "t\t");
  CHECK_TEXT(shown(&line), "/stats |");
  mlx_line_clear(&line);
  type(&line, "\ta\t");
  CHECK_TEXT(shown(&line), "a|");
  mlx_line_clear(&line);
}

TEST(control_keys_end_a_line) {
  mlx_line_t line = {0};
  CHECK_INT(type(&line, "\x04"), MLX_LINE_ENDED);
  CHECK_INT(type(&line, "a\x03"), MLX_LINE_INTERRUPTED);
  CHECK_INT(type(&line, "\x0c"), MLX_LINE_REDRAW);
  CHECK_INT(type(&line, "\x1a"), MLX_LINE_SUSPEND);
  mlx_line_clear(&line);
}

// ----------------------------------------------------------------------------------------------------------
// Drawing

TEST(characters_have_their_terminal_width) {
  CHECK_INT(mlx_char_width('a'), 1);
  CHECK_INT(mlx_char_width(0xe9), 1);
  CHECK_INT(mlx_char_width(0x301), 0);
  CHECK_INT(mlx_char_width(0x200d), 0);
  CHECK_INT(mlx_char_width(0x65e5), 2);
  CHECK_INT(mlx_char_width(0x1f600), 2);
  CHECK_INT(mlx_char_width(0x10ffff), 1);
}

static const char *drawn(mlx_screen_t *screen, const mlx_line_t *line) {
  static char text[1024];
  mlx_text_t out = {0};
  mlx_screen_draw(screen, "> ", ". ", line, &out);
  CHECK_OK(mlx_text_finish(&out));
  snprintf(text, sizeof text, "%s", out.data);
  mlx_text_clear(&out);
  return text;
}

TEST(a_long_line_is_drawn_over_several_rows) {
  mlx_screen_t screen = {.columns = 8, .rows = 10};
  mlx_line_t line = {0};
  CHECK_TEXT(drawn(&screen, &line), "\r\033[J> \r\033[2C");
  type(&line, "abc");
  CHECK_TEXT(drawn(&screen, &line), "\r\033[J> abc\r\033[5C");
  type(&line, "def");  // the row is full: the cursor is on the next one
  CHECK_TEXT(drawn(&screen, &line), "\r\033[J> abcdef \r\r");
  CHECK_INT(screen.cursor_row, 1);
  type(&line, "g\x01");
  CHECK_TEXT(drawn(&screen, &line), "\033[1A\r\033[J> abcdefg\033[1A\r\033[2C");
  CHECK_INT(screen.cursor_row, 0);
  mlx_line_clear(&line);
  screen.cursor_row = 0;
  type(&line, "abcde日\\\rx");  // a wide character does not fit in the last column
  CHECK_TEXT(drawn(&screen, &line), "\r\033[J> abcde日\r\n. x\r\033[3C");
  CHECK_INT(screen.cursor_row, 2);
  mlx_line_clear(&line);
}

TEST(a_tall_text_shows_the_rows_around_the_cursor) {
  mlx_screen_t screen = {.columns = 20, .rows = 3};
  mlx_line_t line = {0};
  type(&line, "1\\\r2\\\r3\\\r4\\\r5");
  CHECK_TEXT(drawn(&screen, &line), "\r\033[J. 3\r\n. 4\r\n. 5\r\033[3C");
  CHECK_INT(screen.cursor_row, 2);
  type(&line, "\033[A\033[A\033[A\033[A");
  CHECK_TEXT(drawn(&screen, &line), "\033[2A\r\033[J> 1\r\n. 2\r\n. 3\033[2A\r\033[3C");
  mlx_line_clear(&line);
}

TEST(a_resize_moves_the_cursor_row) {
  mlx_screen_t screen = {.columns = 20, .rows = 10};
  mlx_line_t line = {0};
  type(&line, "abcdefghij");
  drawn(&screen, &line);
  mlx_screen_resize(&screen, "> ", ". ", &line, 5, 10);
  CHECK_INT(screen.cursor_row, 2);
  CHECK_TEXT(drawn(&screen, &line), "\033[2A\r\033[J> abcdefghij\r\033[2C");
  mlx_screen_resize(&screen, "> ", ". ", &line, 1, 1);  // must not crash
  drawn(&screen, &line);
  mlx_line_clear(&line);
}

// ----------------------------------------------------------------------------------------------------------
// History

static char folder[64];

static const char *history_file(void) {
  static char path[128];
  strcpy(folder, "/tmp/mlxcel-line-XXXXXX");
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/state/mlxcel/history", folder);
  return path;
}

TEST(history_file_is_readable_by_its_owner_only) {
  const char *path = history_file();
  mlx_history_t history = {0};
  struct stat info;
  char *text;
  CHECK_OK(mlx_history_open(&history, path));
  CHECK_OK(mlx_history_add(&history, "one", 3));
  CHECK_OK(mlx_history_add(&history, "two\nlines \\n", 12));
  CHECK_OK(mlx_history_add(&history, "", 0));
  CHECK_OK(mlx_history_add(&history, "esc\033[31m", 8));  // control characters are not kept
  mlx_history_clear(&history);
  CHECK(!stat(path, &info));
  CHECK_INT(info.st_mode & 0777, 0600);
  CHECK_OK(mlx_read_file(path, SIZE_MAX, &text, NULL));
  CHECK_TEXT(text, "one\ntwo\\nlines \\\\n\n");
  mlx_free(text);
  CHECK_OK(mlx_history_open(&history, path));
  CHECK_INT(history.count, 2);
  CHECK_TEXT(history.entries[1], "two\nlines \\n");
  mlx_history_clear(&history);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(history_has_a_limit_in_memory_and_in_the_file) {
  const char *path = history_file();
  mlx_history_t history = {0};
  mlx_text_t text = {0};
  char *after;
  for (int i = 0; i < 2 * MLX_HISTORY_ENTRIES + 10; ++i) mlx_text_printf(&text, "entry %d\n", i);
  CHECK_OK(mlx_make_dirs(folder, 0700));
  char parent[128];
  snprintf(parent, sizeof parent, "%s/state/mlxcel", folder);
  CHECK_OK(mlx_make_dirs(parent, 0700));
  CHECK_OK(mlx_write_file(path, text.data, text.length));
  CHECK_OK(mlx_history_open(&history, path));
  CHECK_INT(history.count, MLX_HISTORY_ENTRIES);
  CHECK_TEXT(history.entries[MLX_HISTORY_ENTRIES - 1], "entry 2009");
  mlx_history_clear(&history);
  CHECK_OK(mlx_read_file(path, SIZE_MAX, &after, NULL));
  CHECK(!strncmp(after, "entry 1010\n", 11));
  mlx_free(after);
  mlx_text_clear(&text);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(damaged_history_lines_are_skipped) {
  static const char damaged[] = "good\n\xff\xfe\nalso \\\\ good\\\n\n\x1b[31m\nlast without an end";
  mlx_history_t history = {0};
  CHECK_OK(mlx_history_parse(&history, damaged, sizeof damaged - 1));
  CHECK_INT(history.count, 3);
  CHECK_TEXT(history.entries[1], "also \\ good\\");
  CHECK_TEXT(history.entries[2], "last without an end");
  mlx_history_clear(&history);
}

// ----------------------------------------------------------------------------------------------------------
// The stream of generated text

static const char *streamed(bool terminal, bool thinking, const char *const *pieces) {
  static char text[512];
  mlx_stream_t stream = {.terminal = terminal, .colours = terminal, .thinking = thinking};
  mlx_text_t out = {0};
  for (; *pieces; ++pieces) mlx_stream_format(&stream, *pieces, strlen(*pieces), &out);
  mlx_stream_finish(&stream, &out);
  CHECK_OK(mlx_text_finish(&out));
  snprintf(text, sizeof text, "%s", out.data ? out.data : "");
  mlx_text_clear(&out);
  return text;
}
#define STREAMED(terminal, thinking, ...) \
  streamed(terminal, thinking, (const char *const[]){__VA_ARGS__, NULL})

TEST(thinking_is_dimmed_on_a_terminal_across_pieces) {
  CHECK_TEXT(STREAMED(true, false, "<think>", "\nhm", "</think>", "Yes"),
             "\033[2m<think>\nhm</think>\033[0mYes");
  CHECK_TEXT(STREAMED(true, false, "a<th", "ink>b<", "</thi", "nk>c"), "a\033[2m<think>b<</think>\033[0mc");
  CHECK_TEXT(STREAMED(true, true, "hm</think>Yes"), "hm</think>\033[0mYes");  // thinking began in the prompt
  CHECK_TEXT(STREAMED(true, false, "<think>never ends"), "\033[2m<think>never ends\033[0m");
  CHECK_TEXT(STREAMED(true, false, "1 <2 <th"), "1 <2 <th");
  CHECK_TEXT(STREAMED(false, false, "<think>a</think>\033[31mb"),
             "<think>a</think>\033[31mb");  // a file gets the text unchanged
}

TEST(a_prompt_that_ends_with_think_starts_thinking) {
  CHECK(mlx_stream_thinks_after("x<think>\n", 9));
  CHECK(mlx_stream_thinks_after("<think>", 7));
  CHECK(!mlx_stream_thinks_after("<think>\n\n</think>\n", 19));
  CHECK(!mlx_stream_thinks_after("think>", 6));
  CHECK(!mlx_stream_thinks_after("", 0));
}

TEST(control_characters_do_not_reach_a_terminal) {
  CHECK_TEXT(STREAMED(true, false, "a\033]0;title\007b\r\tc\n",
                      "\xc2\x9b"
                      "2Jé"),
             "a]0;titleb\tc\n2Jé");
}

// The text as a terminal of |columns| columns shows it, streamed byte by byte; a row ends with /.
static const char *wrapped(int columns, const char *text) {
  static char rows[512];
  mlx_stream_t stream = {.terminal = true, .columns = columns};
  mlx_text_t out = {0};
  size_t length = 0;
  for (size_t at = 0, size; text[at]; at += size) {
    mlx_character_or_byte_at(text + at, strlen(text + at), &size);
    mlx_stream_format(&stream, text + at, size, &out);
  }
  mlx_stream_finish(&stream, &out);
  CHECK_OK(mlx_text_finish(&out));
  for (const char *byte = out.data; *byte;) {
    int back, used = 0;
    if (sscanf(byte, "\033[%dD\033[K%n", &back, &used) == 1 && used) {
      length -= (size_t)back;  // the tests erase only narrow words
      byte += used;
    } else {
      rows[length++] = *byte == '\n' ? '/' : *byte;
      ++byte;
    }
  }
  rows[length] = 0;
  mlx_text_clear(&stream.word);
  mlx_text_clear(&out);
  return rows;
}

TEST(words_are_wrapped_at_the_width_of_the_terminal) {
  CHECK_TEXT(wrapped(20, "The quick brown fox jumps over the lazy dog."),
             "The quick brown fox/jumps over the lazy/dog.");
  CHECK_TEXT(wrapped(20, "a\nThe quick brown foxes\nb"), "a/The quick brown /foxes/b");
  CHECK_TEXT(wrapped(20, "0123456789012345678901234567890"), "0123456789012345678/901234567890");
  CHECK_TEXT(wrapped(20, "The quick brown fox   jumps"), "The quick brown fox/jumps");
  CHECK_TEXT(wrapped(20, "日本語日本語日本語日本語"), "日本語日本語日本語/日本語");
  CHECK_TEXT(wrapped(20, "words 日本語日本語日本語日本語"), "words 日本語日本語/日本語日本語");
  CHECK_TEXT(
      wrapped(20,
              "e\u0301e\u0301e\u0301e\u0301 e\u0301e\u0301e\u0301e\u0301 e\u0301e\u0301 e\u0301e\u0301 e"),
      "e\u0301e\u0301e\u0301e\u0301 e\u0301e\u0301e\u0301e\u0301 e\u0301e\u0301 e\u0301e\u0301 e");
  CHECK_TEXT(wrapped(0, "The quick brown fox jumps over the lazy dog."),
             "The quick brown fox jumps over the lazy dog.");
}

TEST(code_blocks_are_not_wrapped) {
  CHECK_TEXT(
      wrapped(
          20,
          "Run the following one:\n```c\nint x = 1; // a comment that is long\n```\nand see what it does"),
      "Run the following /one:/```c/int x = 1; // a comment that is long/```/and see what it /does");
  CHECK_TEXT(wrapped(20, "The word `quick` an ```brown``` fox jumps over"),
             "The word `quick` an/```brown``` fox /jumps over");
}

TEST_MAIN(CASE(keys_move_and_change_the_text), CASE(cursor_steps_over_a_character_with_its_combining_marks),
          CASE(keys_move_over_and_delete_whole_graphemes), CASE(ctrl_r_searches_the_history),
          CASE(words_are_wrapped_at_the_width_of_the_terminal), CASE(code_blocks_are_not_wrapped),
          CASE(backslash_and_triple_quotes_continue_a_line),
          CASE(pasted_text_keeps_newlines_and_loses_control_characters),
          CASE(up_and_down_move_through_rows_then_history), CASE(tab_completes_the_first_word),
          CASE(control_keys_end_a_line), CASE(characters_have_their_terminal_width),
          CASE(a_long_line_is_drawn_over_several_rows), CASE(a_tall_text_shows_the_rows_around_the_cursor),
          CASE(a_resize_moves_the_cursor_row), CASE(history_file_is_readable_by_its_owner_only),
          CASE(history_has_a_limit_in_memory_and_in_the_file), CASE(damaged_history_lines_are_skipped),
          CASE(thinking_is_dimmed_on_a_terminal_across_pieces),
          CASE(a_prompt_that_ends_with_think_starts_thinking),
          CASE(control_characters_do_not_reach_a_terminal))
