// Reads lines from the terminal: a line is a message for the model or a /command.
#include "cli/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/chat_settings.h"
#include "cli/open.h"
#include "cli/summary.h"
#include "cli/terminal.h"
#include "line/prompt.h"
#include "line/stream.h"

#define MAX_FILE (64u << 20)      // bytes of a saved conversation
#define MAX_ATTACHED (16u << 20)  // bytes of a file for a message

typedef struct chat {
  mlx_chat_settings_t settings;  // |turns| uses its setup
  mlx_turns_t turns;
  mlx_prompt_t *prompt;
  mlx_text_t attached;  // text of files for the next message
  bool editing;         // the next line replaces the last message
  mlx_history_t history;
  bool history_failed;  // print its error once
  bool done;
} chat_t;

// ----------------------------------------------------------------------------------------------------------
// Messages

// Prints the error of a turn, and the chat continues. A failed write to stdout ends the chat.
static mlx_status_t report_error(const chat_t *chat, mlx_status_t status) {
  if (chat->turns.stdout_failed) return mlx_status_join(status, mlx_stdout_error());
  if (status) mlx_terminal_error("mlxcel run", status);
  mlx_status_free(status);
  return NULL;
}

// Answers the last message. Without an answer, cuts the conversation back to |count_without| messages.
static mlx_status_t answer(chat_t *chat, size_t count_without) {
  bool answered;
  mlx_status_t status = mlx_turns_answer(&chat->turns, &answered);
  if (!answered) mlx_conversation_cut(chat->turns.conversation, count_without);
  if (answered && chat->turns.setup->verbose) mlx_turns_print_stats(&chat->turns);
  fputc('\n', stderr);
  return report_error(chat, status);
}

// Files for the message come before its text.
static mlx_status_t send_message(chat_t *chat, const char *text, size_t length) {
  mlx_conversation_t *conversation = chat->turns.conversation;
  const size_t before = mlx_conversation_count(conversation);
  mlx_text_append(&chat->attached, text, length);
  mlx_status_t status = mlx_text_finish(&chat->attached);
  if (!status)
    status = mlx_conversation_add(conversation, "user", chat->attached.data, chat->attached.length);
  mlx_text_clear(&chat->attached);
  return status ? status : answer(chat, before);
}

// The number of messages up to and including the last user message; 0 if there is none.
static size_t count_to_last_user_message(const mlx_conversation_t *conversation) {
  size_t count = mlx_conversation_count(conversation);
  while (count && strcmp(mlx_conversation_role(conversation, count - 1), "user")) --count;
  return count;
}

static mlx_status_t copy_conversation(const mlx_conversation_t *conversation, mlx_conversation_t **out) {
  char *json;
  size_t length;
  MLX_TRY(mlx_conversation_json(conversation, 0, &json, &length));
  mlx_status_t status = mlx_conversation_parse("the conversation", json, length, out);
  mlx_free(json);
  return status;
}

// Answers again after the first |count| messages and, unless it is NULL, the user message |text|. Keeps the
// old conversation if there is no new answer.
static mlx_status_t answer_again(chat_t *chat, size_t count, const char *text, size_t length) {
  mlx_turns_t *turns = &chat->turns;
  const size_t first = turns->first;
  const mlx_turn_stats_t last = turns->last;
  mlx_conversation_t *old;
  MLX_TRY(copy_conversation(turns->conversation, &old));
  mlx_conversation_cut(turns->conversation, count);
  mlx_status_t status = text ? mlx_conversation_add(turns->conversation, "user", text, length) : NULL;
  if (!status) {
    status = answer(chat, 0);
  } else {
    mlx_conversation_cut(turns->conversation, 0);
  }
  if (mlx_conversation_count(turns->conversation)) {
    mlx_conversation_free(old);
  } else {
    mlx_turns_replace(turns, old);
    turns->first = first;
    turns->last = last;
  }
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Commands. |rest| is the text after the command's name, without the spaces around it.

static mlx_status_t run_help(chat_t *chat, const char *rest);

static mlx_status_t run_clear(chat_t *chat, const char *rest) {
  (void)rest;
  mlx_turns_t *turns = &chat->turns;
  mlx_conversation_cut(turns->conversation, mlx_conversation_system(turns->conversation) ? 1 : 0);
  turns->first = 0;
  turns->last = (mlx_turn_stats_t){0};
  mlx_text_clear(&chat->attached);
  fputs("The conversation was cleared; the system message stays.\n", stderr);
  return NULL;
}

static mlx_status_t run_system(chat_t *chat, const char *rest) {
  mlx_conversation_t *conversation = chat->turns.conversation;
  if (rest[0]) {
    const bool none = !strcmp(rest, "\"\"");
    MLX_TRY(mlx_conversation_set_system(conversation, none ? NULL : rest, strlen(rest)));
    chat->turns.first = 0;
  }
  const char *system = mlx_conversation_system(conversation);
  if (!system) fputs("No system message is set (the chat template may add its own).\n", stderr);
  if (!system) return NULL;
  mlx_stream_t stream = {.terminal = true};  // removes control characters
  mlx_text_t text = {0};
  mlx_stream_format(&stream, system, strlen(system), &text);
  mlx_stream_finish(&stream, &text);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) fprintf(stderr, "system: %s\n", text.data ? text.data : "");
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t file_argument(const char *command, const char *rest, const char *example,
                                  char **out_path) {
  const char *home = getenv("HOME");
  if (!rest[0])
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s needs a file name", command), "%s %s", command, example);
  if (!strncmp(rest, "~/", 2) && home) return mlx_join_path(home, rest + 2, out_path);
  return mlx_copy_text(rest, strlen(rest), out_path);
}

static mlx_status_t read_conversation(const char *path, mlx_conversation_t **out) {
  char *text;
  size_t length;
  MLX_TRY(mlx_read_file(path, MAX_FILE, &text, &length));
  mlx_status_t status = mlx_conversation_parse(path, text, length, out);
  mlx_free(text);
  return status;
}

// Refuses to overwrite a file that is not a conversation.
static mlx_status_t check_replaceable(const char *path) {
  mlx_conversation_t *old;
  if (!mlx_is_file(path)) return NULL;
  mlx_status_t status = read_conversation(path, &old);
  if (!status) mlx_conversation_free(old);
  if (!status) return NULL;
  mlx_status_free(status);
  return mlx_status_hint(mlx_error(MLX_USAGE, "%s exists and is not a conversation", path),
                         "save under another name: /save chat.json");
}

static mlx_status_t run_save(chat_t *chat, const char *rest) {
  char *path, *json = NULL;
  size_t length;
  MLX_TRY(file_argument("/save", rest, "chat.json", &path));
  mlx_status_t status = check_replaceable(path);
  if (!status) status = mlx_conversation_json(chat->turns.conversation, 0, &json, &length);
  if (!status) mlx_leftover_remove(path);
  if (!status) status = mlx_write_file(path, json, length);
  const size_t count = mlx_conversation_count(chat->turns.conversation);
  if (!status) fprintf(stderr, "saved %zu %s to %s\n", count, mlx_plural(count, "message", "messages"), path);
  mlx_free(json);
  mlx_free(path);
  return status;
}

static mlx_status_t run_load(chat_t *chat, const char *rest) {
  char *path;
  mlx_conversation_t *conversation;
  MLX_TRY(file_argument("/load", rest, "chat.json", &path));
  mlx_status_t status = read_conversation(path, &conversation);
  if (!status) {
    mlx_turns_replace(&chat->turns, conversation);
    const size_t count = mlx_conversation_count(conversation);
    fprintf(stderr, "loaded %zu %s from %s\n", count, mlx_plural(count, "message", "messages"), path);
  }
  mlx_free(path);
  return status;
}

static mlx_status_t no_message(void) {
  return mlx_status_hint(mlx_error(MLX_USAGE, "there is no message to answer again"),
                         "write a message first");
}

static mlx_status_t run_retry(chat_t *chat, const char *rest) {
  (void)rest;
  const size_t count = count_to_last_user_message(chat->turns.conversation);
  return count ? answer_again(chat, count, NULL, 0) : no_message();
}

static mlx_status_t run_edit(chat_t *chat, const char *rest) {
  const mlx_conversation_t *conversation = chat->turns.conversation;
  const size_t count = count_to_last_user_message(conversation);
  if (!count) return no_message();
  if (rest[0]) return answer_again(chat, count - 1, rest, strlen(rest));
  const char *text = mlx_conversation_text(conversation, count - 1);
  if (!mlx_prompt_prefill(chat->prompt, text, strlen(text)))
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "this terminal cannot edit a line"),
                           "give the new message: /edit TEXT");
  chat->editing = true;
  fputs("Enter sends the changed message, Ctrl-C keeps the old one.\n", stderr);
  return NULL;
}

static mlx_status_t run_stats(chat_t *chat, const char *rest) {
  (void)rest;
  mlx_turns_print_stats(&chat->turns);
  return NULL;
}

// Prints |text| on stderr and clears it.
static mlx_status_t show_text(mlx_text_t *text, mlx_status_t status) {
  if (!status) status = mlx_text_finish(text);
  if (!status) fputs(text->data, stderr);
  mlx_text_clear(text);
  return status;
}

static mlx_status_t run_set(chat_t *chat, const char *rest) {
  mlx_text_t text = {0};
  if (!strncmp(rest, "system ", 7)) return run_system(chat, rest + 7 + strspn(rest + 7, " \t"));
  if (!strcmp(rest, "verbose") || !strcmp(rest, "quiet")) {
    chat->settings.setup.verbose = rest[0] == 'v';
    fprintf(stderr, "statistics after each answer: %s\n", rest[0] == 'v' ? "on" : "off");
    return NULL;
  }
  return show_text(&text, mlx_chat_settings_set(&chat->settings, rest, &chat->turns.answers, &text));
}

static mlx_status_t set_thinking(chat_t *chat, const char *value) {
  mlx_text_t text = {0};
  return show_text(&text, mlx_chat_settings_think(&chat->settings, value, &text));
}

static mlx_status_t run_think(chat_t *chat, const char *rest) {
  return set_thinking(chat, rest[0] ? rest : "on");
}

static mlx_status_t run_nothink(chat_t *chat, const char *rest) {
  (void)rest;
  return set_thinking(chat, "off");
}

static mlx_status_t run_show(chat_t *chat, const char *rest) {
  (void)rest;
  const mlx_engine_info_t info = mlx_engine_info(chat->settings.setup.engine);
  mlx_summary_t summary;
  mlx_text_t text = {0};
  mlx_status_t status = mlx_summary_read(chat->settings.setup.path, &summary);
  if (!status) {
    mlx_summary_print(&summary, &text);
    mlx_text_printf(&text, "running        %s; context %lld tokens\n", mlx_cli_device_text(&info).text,
                    (long long)info.context);
  }
  return show_text(&text, status);
}

// A file with a NUL byte or invalid UTF-8 is not text.
static bool is_text(const char *text, size_t length) {
  for (size_t at = 0; at < length;) {
    const int size = mlx_utf8_length(text + at, length - at);
    if (size <= 0 || !text[at]) return false;
    at += (size_t)size;
  }
  return true;
}

// Puts the text between two rows of ` that are longer than any in the text.
static void attach(mlx_text_t *out, const char *name, const char *text, size_t length) {
  size_t run = 0, longest = 2;
  for (size_t i = 0; i < length; ++i) {
    run = text[i] == '`' ? run + 1 : 0;
    if (run > longest) longest = run;
  }
  mlx_text_printf(out, "File: %s\n", name);
  for (size_t i = 0; i <= longest; ++i) mlx_text_puts(out, "`");
  mlx_text_puts(out, "\n");
  mlx_text_append(out, text, length);
  if (length && text[length - 1] != '\n') mlx_text_puts(out, "\n");
  for (size_t i = 0; i <= longest; ++i) mlx_text_puts(out, "`");
  mlx_text_puts(out, "\n\n");
}

static mlx_status_t attach_file(chat_t *chat, const char *path, const char *text, size_t length) {
  const mlx_engine_info_t info = mlx_engine_info(chat->settings.setup.engine);
  const mlx_file_name_t name = mlx_file_name(path);
  int32_t *ids = NULL;
  size_t count;
  if (!is_text(text, length))
    return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s is not a text file", path),
                           "only UTF-8 text can be part of a message");
  MLX_TRY(mlx_engine_tokenize(chat->settings.setup.engine, text, length, &ids, &count));
  mlx_engine_free_ids(ids);
  if ((int64_t)count >= info.context)
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s has %zu tokens, and the context holds %lld", path, count,
                                     (long long)info.context),
                           (int64_t)count < info.model_context ? "start the chat with a larger context: -c N"
                                                               : "attach a shorter file");
  attach(&chat->attached, name.text, text, length);
  fprintf(stderr, "added %s (%zu %s, %zu %s) to the next message\n", name.text, length,
          mlx_plural(length, "byte", "bytes"), count, mlx_plural(count, "token", "tokens"));
  return NULL;
}

static mlx_status_t run_file(chat_t *chat, const char *rest) {
  char *path, *text = NULL;
  size_t length;
  MLX_TRY(file_argument("/file", rest, "notes.txt", &path));
  mlx_status_t status = mlx_read_file(path, MAX_ATTACHED, &text, &length);
  if (!status) status = attach_file(chat, path, text, length);
  mlx_free(text);
  mlx_free(path);
  return status;
}

static mlx_status_t run_quit(chat_t *chat, const char *rest) {
  (void)rest;
  chat->done = true;
  return NULL;
}

typedef struct command {
  const char *name, *argument, *help;  // help is NULL for an alias of the row before
  mlx_status_t (*run)(chat_t *chat, const char *rest);
} command_t;

static const command_t commands[] = {
    {"/help", "", "print this list", run_help},
    {"/?", "", NULL, run_help},
    {"/set", " [NAME VALUE]", "list the settings, or change one: /set temperature 0.2", run_set},
    {"/think", "", "let the model think before it answers", run_think},
    {"/nothink", "", "answer without thinking", run_nothink},
    {"/no_think", "", NULL, run_nothink},
    {"/system", " [TEXT]", "show the system message, or change it (\"\": none)", run_system},
    {"/file", " PATH", "add the text of a file to the next message", run_file},
    {"/retry", "", "answer the last message again", run_retry},
    {"/regen", "", NULL, run_retry},
    {"/edit", " [TEXT]", "change the last message and answer it again", run_edit},
    {"/clear", "", "clear the conversation, but not the system message", run_clear},
    {"/save", " FILE", "write the conversation to a file, as JSON", run_save},
    {"/load", " FILE", "continue a saved conversation", run_load},
    {"/show", "", "describe the model", run_show},
    {"/stats", "", "statistics of the last answer, and the use of the context", run_stats},
    {"/quit", "", "end the chat (also: /exit, /bye, Ctrl-D)", run_quit},
    {"/exit", "", NULL, run_quit},
    {"/bye", "", NULL, run_quit},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static mlx_status_t run_help(chat_t *chat, const char *rest) {
  (void)chat, (void)rest;
  for (size_t i = 0; i < COMMANDS; ++i) {
    char left[32];
    snprintf(left, sizeof left, "%s%s", commands[i].name, commands[i].argument);
    if (commands[i].help) fprintf(stderr, "  %-18s %s\n", left, commands[i].help);
  }
  fputs(
      "\n  Tab completes a command, Ctrl-R searches the history, Ctrl-C stops an answer. Write // to begin a "
      "message with a slash.\n"
      "  Several lines: paste them, end a line with \\, press Alt-Enter, or put \"\"\" before and after.\n",
      stderr);
  return NULL;
}

// Ends with NULL.
static const char *const *command_names(void) {
  static const char *names[COMMANDS + 1];
  for (size_t i = 0; i < COMMANDS; ++i) names[i] = commands[i].name;
  return names;
}

// The commands and the settings, for Tab. Ends with NULL.
static const char *const *completions(void) {
  static const char *words[COMMANDS + 32];
  const char *const *settings = mlx_chat_settings_words();
  size_t count = 0;
  for (size_t i = 0; i < COMMANDS; ++i) words[count++] = commands[i].name;
  for (; *settings && count + 1 < sizeof words / sizeof *words; ++settings) words[count++] = *settings;
  return words;
}

static mlx_status_t unknown_command(const char *name) {
  const char *nearest = mlx_nearest_name(name, command_names());
  mlx_status_t status = mlx_error(MLX_USAGE, "unknown command '%s'", name);
  return nearest
             ? mlx_status_hint(status, "did you mean %s? Write // to begin a message with a slash", nearest)
             : mlx_status_hint(status, "/help lists the commands; write // to begin a message with a slash");
}

static mlx_status_t run_command(chat_t *chat, const char *line) {
  char name[32];
  const size_t length = strcspn(line, " \t\n");
  snprintf(name, sizeof name, "%.*s", length > 31 ? 31 : (int)length, line);
  const char *rest = line + length + strspn(line + length, " \t\n");
  for (size_t i = 0; i < COMMANDS; ++i) {
    if (!strcmp(commands[i].name, name)) return report_error(chat, commands[i].run(chat, rest));
  }
  return report_error(chat, unknown_command(name));
}

// ----------------------------------------------------------------------------------------------------------
// The loop

// The chat continues without history if its file fails.
static void check_history(chat_t *chat, mlx_status_t status) {
  if (status && !chat->history_failed)
    fprintf(stderr, "(history is not saved: %s)\n", mlx_status_message(status));
  if (status) chat->history_failed = true;
  mlx_status_free(status);
}

static void open_history(chat_t *chat) {
  char *path;
  mlx_status_t status = mlx_history_path(&path);
  if (!status && path) status = mlx_history_open(&chat->history, path);
  mlx_free(path);
  check_history(chat, status);
}

static mlx_status_t handle_line(chat_t *chat, const char *line, size_t length) {
  char *text;
  const bool editing = chat->editing;
  chat->editing = false;
  while (length && strchr(" \t\n", line[length - 1])) --length;
  size_t start = strspn(line, " \t\n");
  if (start >= length && editing) fputs("The message was not changed.\n", stderr);
  if (start >= length) return NULL;
  check_history(chat, mlx_history_add(&chat->history, line, length));
  MLX_TRY(mlx_copy_text(line, length, &text));
  const bool command = text[start] == '/' && text[start + 1] != '/';
  const size_t user = count_to_last_user_message(chat->turns.conversation);
  mlx_status_t status;
  if (editing) {  // a changed message may begin with a slash
    status = report_error(chat, answer_again(chat, user - 1, text, length));
  } else if (command) {
    status = run_command(chat, text + start);
  } else if (text[start] == '/') {
    status = send_message(chat, text + start + 1, length - start - 1);
  } else {
    status = send_message(chat, text, length);
  }
  mlx_free(text);
  return status;
}

static mlx_status_t read_lines(chat_t *chat, mlx_prompt_t *prompt) {
  while (!chat->done) {
    mlx_prompt_result_t result;
    const char *line;
    size_t length;
    bool had_text;
    MLX_TRY(mlx_prompt_read(prompt, ">>> ", "... ", &result, &line, &length, &had_text));
    if (result == MLX_PROMPT_END) return NULL;
    if (result == MLX_PROMPT_INTERRUPTED && chat->editing) {
      chat->editing = false;
      fputs("The message was not changed.\n", stderr);
    } else if (result == MLX_PROMPT_INTERRUPTED && !had_text) {
      fputs("Ctrl-D or /quit ends the chat; /help lists the commands.\n", stderr);
    }
    if (result == MLX_PROMPT_LINE) MLX_TRY(handle_line(chat, line, length));
  }
  return NULL;
}

mlx_status_t mlx_cli_chat(const mlx_chat_setup_t *setup) {
  chat_t chat = {0};
  mlx_chat_settings_initialize(setup, &chat.settings);
  MLX_TRY(mlx_turns_create(&chat.settings.setup, &chat.turns));
  open_history(&chat);
  mlx_terminal_note("chat with %s: /help lists the commands, Ctrl-D ends the chat\n\n",
                    mlx_file_name(setup->model).text);
  mlx_status_t status = mlx_prompt_open(&chat.history, completions(), &chat.prompt);
  if (!status) status = read_lines(&chat, chat.prompt);
  mlx_prompt_close(chat.prompt);
  mlx_text_clear(&chat.attached);
  mlx_chat_settings_clear(&chat.settings);
  mlx_history_clear(&chat.history);
  mlx_turns_clear(&chat.turns);
  return status;
}
