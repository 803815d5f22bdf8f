// mlxcel template: a conversation as the model reads it. Nothing is compiled or loaded; stdout carries the
// text and nothing else.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "runtime/mlxcel.h"

#define MAX_INPUT (64u << 20)

typedef struct flags {
  const char *model, *messages, *tools, *variables, *name, *chat_template;
  bool add_generation_prompt, show;
} flags_t;

static mlx_status_t read_input(const char *path, char **out_text, size_t *out_length) {
  if (!strcmp(path, "-")) return mlx_read_stream(STDIN_FILENO, "stdin", MAX_INPUT, out_text, out_length);
  return mlx_read_file(path, MAX_INPUT, out_text, out_length);
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
  options.tools = tools;
  if (!status) status = mlx_chat_render(chat, messages, messages_length, &options, &text, &text_length);
  if (!status) status = print(text, text_length);
  mlx_chat_free_text(text);
  mlx_free(messages);
  mlx_free(tools);
  return status;
}

mlx_status_t mlx_cli_template(int argc, char **argv) {
  flags_t f = {0};
  const mlx_flag_t table[] = {
      {"-m, --model", MLX_FLAG_TEXT, "MODEL", "a compiled model, a GGUF file or a Hugging Face directory",
       &f.model, 0, 0},
      {"--messages", MLX_FLAG_TEXT, "FILE",
       "a JSON list of {\"role\", \"content\"}, from a file or from stdin (-)", &f.messages, 0, 0},
      {"--tools", MLX_FLAG_TEXT, "FILE", "a JSON list of tools the model may call", &f.tools, 0, 0},
      {"--variables", MLX_FLAG_TEXT, "JSON", "more for the template to know: {\"enable_thinking\": false}",
       &f.variables, 0, 0},
      {"--name", MLX_FLAG_TEXT, "NAME",
       "which template, of a model with several (default: tool_use with tools, else default)", &f.name, 0, 0},
      {"--chat-template", MLX_FLAG_TEXT, "NAME",
       "another template: a known format (chatml, llama3, ...) or a Jinja file", &f.chat_template, 0, 0},
      {"--add-generation-prompt", MLX_FLAG_SWITCH, NULL, "end with the beginning of the model's turn",
       &f.add_generation_prompt, 0, 0},
      {"--show", MLX_FLAG_SWITCH, NULL, "print the template itself", &f.show, 0, 0},
      {0}};
  size_t words;
  bool help;
  MLX_TRY(mlx_flags_parse(
      "usage: mlxcel template -m MODEL --messages FILE [options]\n\n"
      "Prints the text that a model reads for a conversation, made by the model's own chat template.\n\n"
      "examples:\n"
      "  mlxcel template -m model.gguf --messages messages.json --add-generation-prompt\n"
      "  mlxcel template -m model.gguf --show",
      table, argc, argv, NULL, 0, &words, &help));
  if (help) return NULL;
  if (!f.model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"),
                           "mlxcel template -m MODEL --messages FILE");
  if (!f.show == !f.messages) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, f.show ? "both --show and --messages were given" : "no conversation was given"),
        "give it with --messages FILE, or see the template with --show");
  }
  mlx_chat_t *chat;
  MLX_TRY(mlx_cli_open_chat(f.model, f.chat_template, &chat));
  mlx_status_t status = f.show ? show_source(chat, &f) : render(chat, &f);
  mlx_chat_free(chat);
  return status;
}
