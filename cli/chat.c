// Reads lines from the terminal: a line is a message for the model or a /command.
#include "cli/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/terminal.h"
#include "line/prompt.h"
#include "line/stream.h"

#define MAX_FILE (64u << 20)  // bytes of a saved conversation

typedef struct chat {
  mlx_turns_t turns;
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

static mlx_status_t send_message(chat_t *chat, const char *text, size_t length) {
  mlx_conversation_t *conversation = chat->turns.conversation;
  const size_t before = mlx_conversation_count(conversation);
  MLX_TRY(mlx_conversation_add(conversation, "user", text, length));
  return answer(chat, before);
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

static mlx_status_t file_argument(const char *command, const char *rest, char **out_path) {
  const char *home = getenv("HOME");
  if (!rest[0])
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s needs a file name", command), "%s chat.json", command);
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
  MLX_TRY(file_argument("/save", rest, &path));
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
  MLX_TRY(file_argument("/load", rest, &path));
  mlx_status_t status = read_conversation(path, &conversation);
  if (!status) {
    mlx_turns_replace(&chat->turns, conversation);
    const size_t count = mlx_conversation_count(conversation);
    fprintf(stderr, "loaded %zu %s from %s\n", count, mlx_plural(count, "message", "messages"), path);
  }
  mlx_free(path);
  return status;
}

// The number of messages up to and including the last user message; 0 if there is none.
static size_t count_to_last_user_message(const mlx_conversation_t *conversation) {
  size_t count = mlx_conversation_count(conversation);
  while (count && strcmp(mlx_conversation_role(conversation, count - 1), "user")) --count;
  return count;
}

// Keeps the old answer if there is no new one.
static mlx_status_t run_regen(chat_t *chat, const char *rest) {
  (void)rest;
  mlx_turns_t *turns = &chat->turns;
  const size_t count = count_to_last_user_message(turns->conversation), first = turns->first;
  char *json;
  size_t length;
  mlx_conversation_t *old;
  if (!count)
    return mlx_status_hint(mlx_error(MLX_USAGE, "there is no message to answer again"),
                           "write a message first");
  MLX_TRY(mlx_conversation_json(turns->conversation, 0, &json, &length));
  mlx_status_t status = mlx_conversation_parse("the conversation", json, length, &old);
  mlx_free(json);
  if (status) return status;
  mlx_conversation_cut(turns->conversation, count);
  status = answer(chat, 0);
  if (mlx_conversation_count(turns->conversation)) {
    mlx_conversation_free(old);
  } else {
    mlx_turns_replace(turns, old);
    turns->first = first;
  }
  return status;
}

static mlx_status_t run_stats(chat_t *chat, const char *rest) {
  (void)rest;
  mlx_turns_print_stats(&chat->turns);
  return NULL;
}

static mlx_status_t run_exit(chat_t *chat, const char *rest) {
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
    {"/clear", "", "clear the conversation, but not the system message", run_clear},
    {"/system", " [TEXT]", "show the system message, or change it (\"\": none)", run_system},
    {"/regen", "", "answer the last message again", run_regen},
    {"/save", " FILE", "write the conversation to a file, as JSON", run_save},
    {"/load", " FILE", "continue a saved conversation", run_load},
    {"/stats", "", "statistics of the last answer, and the use of the context", run_stats},
    {"/exit", "", "end the chat (also: /bye, Ctrl-D)", run_exit},
    {"/bye", "", NULL, run_exit},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static mlx_status_t run_help(chat_t *chat, const char *rest) {
  (void)chat, (void)rest;
  for (size_t i = 0; i < COMMANDS; ++i) {
    char left[32];
    snprintf(left, sizeof left, "%s%s", commands[i].name, commands[i].argument);
    if (commands[i].help) fprintf(stderr, "  %-16s %s\n", left, commands[i].help);
  }
  fputs(
      "\n  Tab completes a command, Ctrl-C stops an answer. Write // to begin a message with a slash.\n"
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
  while (length && strchr(" \t\n", line[length - 1])) --length;
  size_t start = strspn(line, " \t\n");
  if (start >= length) return NULL;
  check_history(chat, mlx_history_add(&chat->history, line, length));
  MLX_TRY(mlx_copy_text(line, length, &text));
  const bool command = text[start] == '/' && text[start + 1] != '/';
  mlx_status_t status = command              ? run_command(chat, text + start)
                        : text[start] == '/' ? send_message(chat, text + start + 1, length - start - 1)
                                             : send_message(chat, text, length);
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
    if (result == MLX_PROMPT_INTERRUPTED && !had_text)
      fputs("Ctrl-D or /exit ends the chat; /help lists the commands.\n", stderr);
    if (result == MLX_PROMPT_LINE) MLX_TRY(handle_line(chat, line, length));
  }
  return NULL;
}

mlx_status_t mlx_cli_chat(const mlx_chat_setup_t *setup) {
  chat_t chat = {0};
  mlx_prompt_t *prompt = NULL;
  MLX_TRY(mlx_turns_create(setup, &chat.turns));
  open_history(&chat);
  mlx_terminal_note("chat with %s: /help lists the commands, Ctrl-D ends the chat\n\n",
                    mlx_file_name(setup->model).text);
  mlx_status_t status = mlx_prompt_open(&chat.history, command_names(), &prompt);
  if (!status) status = read_lines(&chat, prompt);
  mlx_prompt_close(prompt);
  mlx_history_clear(&chat.history);
  mlx_turns_clear(&chat.turns);
  return status;
}
