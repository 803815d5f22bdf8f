// A chat at the terminal: reads lines, answers them, and knows a few commands.
#include "cli/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "line/prompt.h"
#include "line/stream.h"

#define MAX_FILE (64u << 20)

typedef struct talk {
  mlx_turns_t turns;
  mlx_history_t history;
  bool history_failed;  // said once
  bool done;
} talk_t;

// ----------------------------------------------------------------------------------------------------------
// Messages

// What goes wrong in a turn is said, and the chat goes on; but not when nobody reads stdout.
static mlx_status_t survive(const talk_t *talk, mlx_status_t status) {
  if (talk->turns.stdout_failed) return mlx_status_join(status, mlx_stdout_error());
  if (status) mlx_terminal_error("mlxcel run", status);
  mlx_status_free(status);
  return NULL;
}

static mlx_status_t answer(talk_t *talk, size_t count_without) {
  bool answered;
  mlx_status_t status = mlx_turns_answer(&talk->turns, &answered);
  if (!answered) mlx_conversation_cut(talk->turns.conversation, count_without);
  if (answered && talk->turns.setup->verbose) mlx_turns_print_stats(&talk->turns);
  fputc('\n', stderr);
  return survive(talk, status);
}

static mlx_status_t say(talk_t *talk, const char *text, size_t length) {
  mlx_conversation_t *conversation = talk->turns.conversation;
  const size_t before = mlx_conversation_count(conversation);
  MLX_TRY(mlx_conversation_add(conversation, "user", text, length));
  return answer(talk, before);
}

// ----------------------------------------------------------------------------------------------------------
// Commands. |rest| is what stands after the command's name, without spaces around it.

static mlx_status_t run_help(talk_t *talk, const char *rest);

static mlx_status_t run_clear(talk_t *talk, const char *rest) {
  (void)rest;
  mlx_turns_t *turns = &talk->turns;
  mlx_conversation_cut(turns->conversation, mlx_conversation_system(turns->conversation) ? 1 : 0);
  turns->first = 0;
  turns->last = (mlx_turn_stats_t){0};
  fputs("The conversation is forgotten; the system message stays.\n", stderr);
  return NULL;
}

static mlx_status_t run_system(talk_t *talk, const char *rest) {
  mlx_conversation_t *conversation = talk->turns.conversation;
  if (rest[0]) {
    const bool none = !strcmp(rest, "\"\"");
    MLX_TRY(mlx_conversation_set_system(conversation, none ? NULL : rest, strlen(rest)));
    talk->turns.first = 0;
  }
  const char *system = mlx_conversation_system(conversation);
  if (!system) fputs("There is no system message (the model's template may have one of its own).\n", stderr);
  if (!system) return NULL;
  mlx_stream_t stream = {.terminal = true};  // it may come from a file: nothing of it may steer the terminal
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
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s wants the name of a file", command), "%s chat.json",
                           command);
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

// Only a conversation is replaced: a slip of the finger must not cost another file.
static mlx_status_t check_replaceable(const char *path) {
  mlx_conversation_t *old;
  if (!mlx_is_file(path)) return NULL;
  mlx_status_t status = read_conversation(path, &old);
  if (!status) mlx_conversation_free(old);
  if (!status) return NULL;
  mlx_status_free(status);
  return mlx_status_hint(mlx_error(MLX_USAGE, "%s is there and is no conversation", path),
                         "save under another name");
}

static mlx_status_t run_save(talk_t *talk, const char *rest) {
  char *path, *json = NULL;
  size_t length;
  MLX_TRY(file_argument("/save", rest, &path));
  mlx_status_t status = check_replaceable(path);
  if (!status) status = mlx_conversation_json(talk->turns.conversation, 0, &json, &length);
  if (!status) status = mlx_write_file(path, json, length);
  if (!status)
    fprintf(stderr, "saved %zu messages to %s\n", mlx_conversation_count(talk->turns.conversation), path);
  mlx_free(json);
  mlx_free(path);
  return status;
}

static mlx_status_t run_load(talk_t *talk, const char *rest) {
  char *path;
  mlx_conversation_t *conversation;
  MLX_TRY(file_argument("/load", rest, &path));
  mlx_status_t status = read_conversation(path, &conversation);
  if (!status) {
    mlx_turns_replace(&talk->turns, conversation);
    fprintf(stderr, "loaded %zu messages from %s\n", mlx_conversation_count(conversation), path);
  }
  mlx_free(path);
  return status;
}

// The count of messages up to a user's last, or 0.
static size_t last_question(const mlx_conversation_t *conversation) {
  size_t count = mlx_conversation_count(conversation);
  while (count && strcmp(mlx_conversation_role(conversation, count - 1), "user")) --count;
  return count;
}

// Where no new answer comes, the old one stays.
static mlx_status_t run_regen(talk_t *talk, const char *rest) {
  (void)rest;
  mlx_turns_t *turns = &talk->turns;
  const size_t count = last_question(turns->conversation), first = turns->first;
  char *json;
  size_t length;
  mlx_conversation_t *old;
  if (!count)
    return mlx_status_hint(mlx_error(MLX_USAGE, "there is nothing to answer again"), "say something first");
  MLX_TRY(mlx_conversation_json(turns->conversation, 0, &json, &length));
  mlx_status_t status = mlx_conversation_parse("the conversation", json, length, &old);
  mlx_free(json);
  if (status) return status;
  mlx_conversation_cut(turns->conversation, count);
  status = answer(talk, 0);
  if (mlx_conversation_count(turns->conversation)) {
    mlx_conversation_free(old);
  } else {
    mlx_turns_replace(turns, old);
    turns->first = first;
  }
  return status;
}

static mlx_status_t run_stats(talk_t *talk, const char *rest) {
  (void)rest;
  mlx_turns_print_stats(&talk->turns);
  return NULL;
}

static mlx_status_t run_exit(talk_t *talk, const char *rest) {
  (void)rest;
  talk->done = true;
  return NULL;
}

typedef struct command {
  const char *name, *argument, *help;  // no help: another name of the one before
  mlx_status_t (*run)(talk_t *talk, const char *rest);
} command_t;

static const command_t commands[] = {
    {"/help", "", "this text", run_help},
    {"/?", "", NULL, run_help},
    {"/clear", "", "forget the conversation, but not the system message", run_clear},
    {"/system", " [TEXT]", "show the system message, or change it (\"\": none)", run_system},
    {"/regen", "", "answer the last message again", run_regen},
    {"/save", " FILE", "write the conversation to a file, as JSON", run_save},
    {"/load", " FILE", "go on from such a file", run_load},
    {"/stats", "", "figures of the last answer, and how full the context is", run_stats},
    {"/exit", "", "leave (also: /bye, Ctrl-D)", run_exit},
    {"/bye", "", NULL, run_exit},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static mlx_status_t run_help(talk_t *talk, const char *rest) {
  (void)talk, (void)rest;
  for (size_t i = 0; i < COMMANDS; ++i) {
    char left[32];
    snprintf(left, sizeof left, "%s%s", commands[i].name, commands[i].argument);
    if (commands[i].help) fprintf(stderr, "  %-16s %s\n", left, commands[i].help);
  }
  fputs(
      "\n  Tab completes a command, Ctrl-C stops an answer. A message that begins with a / is written with "
      "two.\n"
      "  Several lines: paste them, end a line with \\, press Alt-Enter, or put \"\"\" before and after.\n",
      stderr);
  return NULL;
}

// A NULL after them.
static const char *const *command_names(void) {
  static const char *names[COMMANDS + 1];
  for (size_t i = 0; i < COMMANDS; ++i) names[i] = commands[i].name;
  return names;
}

static mlx_status_t unknown_command(const char *name) {
  const char *nearest = mlx_nearest_name(name, command_names());
  mlx_status_t status = mlx_error(MLX_USAGE, "there is no command '%s'", name);
  return nearest ? mlx_status_hint(
                       status, "did you mean %s? A message that begins with a / is written with two", nearest)
                 : mlx_status_hint(status,
                                   "/help lists them. A message that begins with a / is written with two");
}

static mlx_status_t run_command(talk_t *talk, const char *line) {
  char name[32];
  const size_t length = strcspn(line, " \t\n");
  snprintf(name, sizeof name, "%.*s", length > 31 ? 31 : (int)length, line);
  const char *rest = line + length + strspn(line + length, " \t\n");
  for (size_t i = 0; i < COMMANDS; ++i) {
    if (!strcmp(commands[i].name, name)) return survive(talk, commands[i].run(talk, rest));
  }
  return survive(talk, unknown_command(name));
}

// ----------------------------------------------------------------------------------------------------------
// The loop

// History is a comfort: without it the chat goes on.
static void note_history(talk_t *talk, mlx_status_t status) {
  if (status && !talk->history_failed)
    fprintf(stderr, "(history is not kept: %s)\n", mlx_status_message(status));
  if (status) talk->history_failed = true;
  mlx_status_free(status);
}

static void open_history(talk_t *talk) {
  char *path;
  mlx_status_t status = mlx_history_path(&path);
  if (!status && path) status = mlx_history_open(&talk->history, path);
  mlx_free(path);
  note_history(talk, status);
}

static mlx_status_t take_line(talk_t *talk, const char *line, size_t length) {
  char *text;
  while (length && strchr(" \t\n", line[length - 1])) --length;
  size_t start = strspn(line, " \t\n");
  if (start >= length) return NULL;
  note_history(talk, mlx_history_add(&talk->history, line, length));
  MLX_TRY(mlx_copy_text(line, length, &text));
  const bool command = text[start] == '/' && text[start + 1] != '/';
  mlx_status_t status = command              ? run_command(talk, text + start)
                        : text[start] == '/' ? say(talk, text + start + 1, length - start - 1)
                                             : say(talk, text, length);
  mlx_free(text);
  return status;
}

static mlx_status_t talk_on(talk_t *talk, mlx_prompt_t *prompt) {
  while (!talk->done) {
    mlx_prompt_result_t result;
    const char *line;
    size_t length;
    bool had_text;
    MLX_TRY(mlx_prompt_read(prompt, ">>> ", "... ", &result, &line, &length, &had_text));
    if (result == MLX_PROMPT_END) return NULL;
    if (result == MLX_PROMPT_INTERRUPTED && !had_text)
      fputs("Ctrl-D or /exit leaves; /help lists the commands.\n", stderr);
    if (result == MLX_PROMPT_LINE) MLX_TRY(take_line(talk, line, length));
  }
  return NULL;
}

mlx_status_t mlx_cli_chat(const mlx_chat_setup_t *setup) {
  talk_t talk = {0};
  mlx_prompt_t *prompt = NULL;
  MLX_TRY(mlx_turns_create(setup, &talk.turns));
  open_history(&talk);
  fprintf(stderr, "chat with %s: /help lists the commands, Ctrl-D leaves\n\n",
          mlx_file_name(setup->model).text);
  mlx_status_t status = mlx_prompt_open(&talk.history, command_names(), &prompt);
  if (!status) status = talk_on(&talk, prompt);
  mlx_prompt_close(prompt);
  mlx_history_clear(&talk.history);
  mlx_turns_clear(&talk.turns);
  return status;
}
