// mlxcel template: renders a conversation with a model's chat template. It compiles and loads nothing; stdout
// carries only the rendered text.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "cli/chat_input.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "open/locate.h"
#include "open/texts.h"
#include "runtime/mlxcel.h"

#define MAX_INPUT (64u << 20)  // bytes

typedef struct flags {
  const char *model, *messages, *tools, *variables, *name, *chat_template;
  bool add_generation_prompt, show, quiet;
} flags_t;

static mlx_status_t read_input(const char *path, char **out_text, size_t *out_length) {
  if (!strcmp(path, "-")) return mlx_read_stream(STDIN_FILENO, "stdin", MAX_INPUT, out_text, out_length);
  return mlx_read_input(path, MAX_INPUT, out_text, out_length);
}

static mlx_status_t print(const char *text, size_t length) {
  return fwrite(text, 1, length, stdout) == length ? NULL : mlx_stdout_error();
}

static mlx_status_t show_source(const mlx_chat_t *chat, const flags_t *f) {
  const char *source = mlx_chat_source(chat, f->name, f->tools != NULL);
  if (!source)
    return mlx_error(MLX_NOT_FOUND, "%s has no chat template named '%s'", f->model,
                     f->name ? f->name : "default");
  return print(source, strlen(source));
}

static mlx_status_t render(const mlx_chat_t *chat, const flags_t *f) {
  char *messages = NULL, *tools = NULL, *text = NULL;
  size_t messages_length, text_length;
  mlx_chat_options_t options;
  mlx_chat_options_initialize(&options);
  options.template_name = f->name;
  options.variables = f->variables;
  options.add_generation_prompt = f->add_generation_prompt;
  mlx_status_t status = read_input(f->messages, &messages, &messages_length);
  if (!status && f->tools) status = read_input(f->tools, &tools, &options.tools_length);
  if (!status && f->tools) status = mlx_cli_check_tools(f->tools, tools, options.tools_length);
  if (!status && f->variables) status = mlx_cli_check_variables("--variables", f->variables);
  options.tools = tools;
  if (!status) status = mlx_chat_render(chat, messages, messages_length, &options, &text, &text_length);
  if (!status) status = print(text, text_length);
  mlx_chat_free_text(text);
  mlx_free(messages);
  mlx_free(tools);
  return status;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, NULL, 0, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  if (!f.model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"),
                           "mlxcel template MODEL --messages FILE");
  if (!f.show == !f.messages) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, f.show ? "both --show and --messages were given" : "no conversation was given"),
        "give it with --messages FILE, or print the template with --show");
  }
  mlx_chat_t *chat = NULL;
  mlx_engine_options_t options;
  char *path;
  mlx_engine_options_initialize(&options);
  options.report = mlx_terminal_report();
  MLX_TRY(mlx_locate(f.model, options.report, &path));
  mlx_status_t status = mlx_find_chat(path, &options, f.chat_template, &chat);
  if (!status && !chat) status = mlx_chat_missing_error(f.model);
  if (!status) status = f.show ? show_source(chat, &f) : render(chat, &f);
  mlx_chat_free(chat);
  mlx_free(path);
  return status;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_MODEL_FLAG(flags_t, model),
    MLX_TEXT_FLAG(flags_t, messages, "--messages", "FILE",
                  "JSON list of {\"role\", \"content\"}, from a file or from stdin (-)"),
    MLX_TOOLS_FLAG(flags_t, tools),
    MLX_TEXT_FLAG(flags_t, variables, "--variables", "JSON",
                  "variables for the chat template: {\"enable_thinking\": false}"),
    MLX_TEXT_FLAG(flags_t, name, "--name", "NAME",
                  "template of a model that has several (default: tool_use with tools, else default)"),
    MLX_CHAT_TEMPLATE_FLAG(flags_t, chat_template),
    MLX_SWITCH_FLAG(flags_t, add_generation_prompt, "--add-generation-prompt",
                    "end with the start of the model's answer"),
    MLX_SWITCH_FLAG(flags_t, show, "--show", "print the source of the template"),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_template = {
    .name = "template",
    .summary = "render a conversation with a chat template",
    .usage =
        "usage: mlxcel template MODEL --messages FILE [options]\n\n"
        "Prints a conversation as text for the model, rendered by its chat template.\n\n"
        "examples:\n"
        "  mlxcel template model.gguf --messages messages.json --add-generation-prompt\n"
        "  mlxcel template model.gguf --show",
    .model_word = true,
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
