// mlxcel launch: starts a server and a coding agent that uses it. The server ends with the agent.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

#define MAX_WORDS 64
#define MAX_ARGUMENTS (MAX_WORDS + 16)
#define MAX_VARIABLES 10
#define READY "listening on "
#define KEY "MLXCEL_API_KEY"  // `mlxcel serve` reads it

typedef struct flags {
  const char *model;
  int64_t context;
  bool quiet;
} flags_t;

// What an agent needs: "%u" is the server's address, "%m" the model's name, "%k" the key of the server, "%c"
// the context length, "%o" the longest answer; without -c, what has one of these two is left out. An agent
// that does not know the length shortens a conversation too late. Claude Code keeps its longest answer free,
// 32,000 tokens unless it is told, and refuses to begin if nothing is left.
typedef struct agent {
  const char *name, *program;
  const char *variables[MAX_VARIABLES];  // "NAME=VALUE"; NULL ends them
  const char *arguments[16];             // before the user's; NULL ends them
} agent_t;

static const agent_t agents[] = {
    {"claude",
     "claude",
     {"ANTHROPIC_BASE_URL=%u", "ANTHROPIC_AUTH_TOKEN=%k", "ANTHROPIC_API_KEY=", "ANTHROPIC_MODEL=%m",
      "ANTHROPIC_DEFAULT_HAIKU_MODEL=%m", "ANTHROPIC_DEFAULT_SONNET_MODEL=%m",
      "ANTHROPIC_DEFAULT_OPUS_MODEL=%m", "CLAUDE_CODE_MAX_CONTEXT_TOKENS=%c",
      "CLAUDE_CODE_MAX_OUTPUT_TOKENS=%o"},
     {NULL}},
    {"codex",
     "codex",
     {NULL},
     {"-c", "model_provider=\"mlxcel\"", "-c", "model_providers.mlxcel.name=\"mlxcel\"", "-c",
      "model_providers.mlxcel.base_url=\"%u/v1\"", "-c", "model_providers.mlxcel.wire_api=\"responses\"",
      "-c", "model_providers.mlxcel.env_key=\"" KEY "\"", "--config=model_context_window=%c", "-m", "%m"}},
    {"aider", "aider", {"OPENAI_API_BASE=%u/v1", "OPENAI_API_KEY=%k"}, {"--model", "openai/%m"}},
};

// ----------------------------------------------------------------------------------------------------------
// Two processes

typedef struct launch {
  const agent_t *agent;
  const flags_t *flags;
  char key[33];              // of the server, for this agent only
  char context[24];          // tokens, of -c
  char output[24];           // tokens: an eighth of it
  const char *const *words;  // the agent's own arguments
  size_t word_count;
  uv_loop_t loop;
  uv_process_t server, tool;
  uv_pipe_t out, err;  // of the server
  uv_signal_t signals[4];
  mlx_text_t line;    // of the server's stdout, until it is ready
  char *url, *model;  // of the server; owned; NULL: it is not ready yet
  bool server_runs, tool_runs;
  int64_t server_exit, tool_exit;
  int tool_signal;
  mlx_status_t status;
} launch_t;

static void allocate(uv_handle_t *handle, size_t size, uv_buf_t *out) {
  void *bytes = NULL;
  (void)handle;
  mlx_status_free(mlx_alloc(size, 1, &bytes));
  *out = uv_buf_init(bytes, bytes ? (unsigned)size : 0);
}

static void close_handle(uv_handle_t *handle, void *user) {
  (void)user;
  if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

// The server ends first, then its pipes and this loop.
static void end_server(launch_t *l) {
  if (l->server_runs) uv_process_kill(&l->server, SIGTERM);
}

static void on_server_exit(uv_process_t *process, int64_t code, int number) {
  launch_t *l = process->data;
  (void)number;
  l->server_runs = false;
  l->server_exit = code;
  if (l->tool_runs) {
    mlx_terminal_note("mlxcel launch: the server ended; %s cannot go on\n", l->agent->name);
    uv_process_kill(&l->tool, SIGTERM);
  }
  for (size_t i = 0; i < sizeof l->signals / sizeof *l->signals; ++i)
    close_handle((uv_handle_t *)&l->signals[i], NULL);
  close_handle((uv_handle_t *)process, NULL);
}

static void on_tool_exit(uv_process_t *process, int64_t code, int number) {
  launch_t *l = process->data;
  l->tool_runs = false;
  l->tool_exit = code;
  l->tool_signal = number;
  close_handle((uv_handle_t *)process, NULL);
  end_server(l);
}

// A Ctrl-C at the terminal is the agent's, which gets it too. The other signals end the agent.
static void on_signal(uv_signal_t *handle, int number) {
  launch_t *l = handle->data;
  if (l->tool_runs && number != SIGINT)
    uv_process_kill(&l->tool, number);
  else if (!l->tool_runs)
    end_server(l);
}

// ----------------------------------------------------------------------------------------------------------
// The agent

static bool is_wanted(const launch_t *l, const char *pattern) {
  return l->flags->context || (!strstr(pattern, "%c") && !strstr(pattern, "%o"));
}

// Replaces %u, %m, %k, %c and %o.
static mlx_status_t expand(const launch_t *l, const char *pattern, char **out) {
  mlx_text_t text = {0};
  for (; *pattern; ++pattern) {
    const char letter = pattern[0] == '%' ? pattern[1] : 0;
    if (!letter || !strchr("umkco", letter)) {
      mlx_text_append(&text, pattern, 1);
      continue;
    }
    ++pattern;
    mlx_text_puts(&text, letter == 'u'   ? l->url
                         : letter == 'm' ? l->model
                         : letter == 'k' ? l->key
                         : letter == 'c' ? l->context
                                         : l->output);
  }
  if (!text.data) mlx_text_puts(&text, "");
  return mlx_text_take(&text, out, NULL);
}

static mlx_status_t set_variables(const launch_t *l) {
  for (const char *const *pattern = l->agent->variables; *pattern; ++pattern) {
    char *text;
    if (!is_wanted(l, *pattern)) continue;
    MLX_TRY(expand(l, *pattern, &text));
    char *equals = strchr(text, '=');
    *equals = 0;
    const int failed = setenv(text, equals + 1, 1);
    mlx_free(text);
    if (failed) return mlx_error(MLX_OUT_OF_MEMORY, "no memory for the environment of %s", l->agent->name);
  }
  return NULL;
}

static mlx_status_t spawn(launch_t *l, uv_process_t *process, const uv_process_options_t *options) {
  process->data = l;
  const int error = uv_spawn(&l->loop, process, options);
  if (!error) return NULL;
  return mlx_error(error == UV_ENOENT ? MLX_NOT_FOUND : MLX_IO, "cannot start '%s': %s", options->file,
                   uv_strerror(error));
}

static mlx_status_t spawn_tool(launch_t *l, char **arguments) {
  uv_stdio_container_t streams[3];
  for (int i = 0; i < 3; ++i) streams[i] = (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = i};
  const uv_process_options_t options = {.file = l->agent->program,
                                        .args = arguments,
                                        .exit_cb = on_tool_exit,
                                        .stdio = streams,
                                        .stdio_count = 3};
  mlx_status_t status = spawn(l, &l->tool, &options);
  l->tool_runs = !status;
  return status;
}

static mlx_status_t start_tool(launch_t *l) {
  char *made[MAX_ARGUMENTS] = {0}, *arguments[MAX_ARGUMENTS] = {0};
  size_t count = 0, used = 0;
  mlx_status_t status = set_variables(l);
  arguments[used++] = (char *)(uintptr_t)l->agent->program;
  for (const char *const *pattern = l->agent->arguments; *pattern && !status; ++pattern) {
    if (!is_wanted(l, *pattern)) continue;
    status = expand(l, *pattern, &made[count]);
    arguments[used++] = made[count++];
  }
  for (size_t i = 0; i < l->word_count; ++i) arguments[used++] = (char *)(uintptr_t)l->words[i];
  if (!status) status = spawn_tool(l, arguments);
  while (count) mlx_free(made[--count]);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The server

// "listening on http://127.0.0.1:41231 (model NAME)"
static mlx_status_t read_ready(launch_t *l) {
  const char *url = l->line.data + strlen(READY), *end = strchr(url, ' ');
  const char *name = end ? strstr(end, "(model ") : NULL, *close = name ? strrchr(name, ')') : NULL;
  if (!close)
    return mlx_status_hint(mlx_error(MLX_USAGE, "the server printed '%s'", l->line.data),
                           "unset the variables MLXCEL_... that give it more models or another address");
  name += strlen("(model ");
  MLX_TRY(mlx_copy_text(url, (size_t)(end - url), &l->url));
  return mlx_copy_text(name, (size_t)(close - name), &l->model);
}

static void on_output(uv_stream_t *stream, ssize_t length, const uv_buf_t *bytes) {
  launch_t *l = stream->data;
  if (length > 0 && !l->url && !l->status) {
    mlx_text_append(&l->line, bytes->base, (size_t)length);
    const bool is_whole = l->line.data && strchr(l->line.data, '\n');
    if (is_whole && !strncmp(l->line.data, READY, strlen(READY))) {
      l->status = read_ready(l);
      if (!l->status) l->status = start_tool(l);
      if (l->status) end_server(l);
    }
  }
  mlx_free(bytes->base);
  if (length < 0) close_handle((uv_handle_t *)stream, NULL);
}

// Progress and errors until the agent has the terminal.
static void on_notes(uv_stream_t *stream, ssize_t length, const uv_buf_t *bytes) {
  const launch_t *l = stream->data;
  if (length > 0 && !l->url) fwrite(bytes->base, 1, (size_t)length, stderr);
  mlx_free(bytes->base);
  if (length < 0) close_handle((uv_handle_t *)stream, NULL);
}

// Its own session: a Ctrl-C at the terminal does not reach it.
static mlx_status_t start_server(launch_t *l) {
  char path[4096];
  size_t size = sizeof path;
  const int error = uv_exepath(path, &size);
  if (error) return mlx_error(MLX_IO, "cannot find the program of mlxcel: %s", uv_strerror(error));
  char *arguments[] = {
      path,     "serve", "--no-config", "-m",       (char *)(uintptr_t)l->flags->model, "--host", "127.0.0.1",
      "--port", "0",     "-c",          l->context, l->flags->quiet ? "--quiet" : NULL, NULL};
  uv_pipe_init(&l->loop, &l->out, 0);
  uv_pipe_init(&l->loop, &l->err, 0);
  l->out.data = l->err.data = l;
  uv_stdio_container_t streams[] = {
      {.flags = UV_IGNORE},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&l->out},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&l->err}};
  const uv_process_options_t options = {.file = path,
                                        .args = arguments,
                                        .exit_cb = on_server_exit,
                                        .flags = UV_PROCESS_DETACHED,
                                        .stdio = streams,
                                        .stdio_count = 3};
  MLX_TRY(spawn(l, &l->server, &options));
  l->server_runs = true;
  uv_read_start((uv_stream_t *)&l->out, allocate, on_output);
  uv_read_start((uv_stream_t *)&l->err, allocate, on_notes);
  return NULL;
}

static void watch_signals(launch_t *l) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    uv_signal_init(&l->loop, &l->signals[i]);
    l->signals[i].data = l;
    uv_signal_start(&l->signals[i], on_signal, numbers[i]);
    uv_unref((uv_handle_t *)&l->signals[i]);
  }
}

// ----------------------------------------------------------------------------------------------------------

static const agent_t *find_agent(const char *name) {
  for (size_t i = 0; i < sizeof agents / sizeof *agents; ++i) {
    if (!strcmp(name, agents[i].name)) return &agents[i];
  }
  return NULL;
}

// An agent that is missing is found before the model is loaded.
static mlx_status_t check_program(const agent_t *agent) {
#ifdef _WIN32  // programs have endings there: uv_spawn looks for them
  (void)agent;
  return NULL;
#else
  const char *folders = getenv("PATH");
  for (const char *at = folders ? folders : ""; *at; at += strcspn(at, ":"), at += *at == ':') {
    char path[4096];
    snprintf(path, sizeof path, "%.*s/%s", (int)strcspn(at, ":"), at, agent->program);
    if (!access(path, X_OK)) return NULL;
  }
  return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "there is no program '%s' on PATH", agent->program),
                         "install %s first", agent->name);
#endif
}

// Other users and programs of this machine cannot use the server. The agent inherits the variable.
static mlx_status_t set_key(launch_t *l) {
  uint64_t random[2];
  const int error = uv_random(NULL, NULL, random, sizeof random, 0, NULL);
  if (error) return mlx_error(MLX_IO, "cannot make a key: %s", uv_strerror(error));
  snprintf(l->key, sizeof l->key, "%016llx%016llx", (unsigned long long)random[0],
           (unsigned long long)random[1]);
  return setenv(KEY, l->key, 1) ? mlx_error(MLX_OUT_OF_MEMORY, "no memory for the environment") : NULL;
}

static mlx_status_t run_both(launch_t *l) {
  uv_loop_init(&l->loop);
  watch_signals(l);
  mlx_status_t status = start_server(l);
  if (status) uv_walk(&l->loop, close_handle, NULL);
  uv_run(&l->loop, UV_RUN_DEFAULT);
  uv_walk(&l->loop, close_handle, NULL);
  uv_run(&l->loop, UV_RUN_DEFAULT);
  uv_loop_close(&l->loop);
  if (!status) status = l->status;
  if (!status && !l->url)
    status = mlx_error(MLX_UNAVAILABLE, "the server ended with exit status %lld before it was ready",
                       (long long)l->server_exit);
  mlx_text_clear(&l->line);
  mlx_free(l->url);
  mlx_free(l->model);
  return status;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *words[MAX_WORDS];
  size_t count;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, words, MAX_WORDS, &count, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  const agent_t *agent = count ? find_agent(words[0]) : NULL;
  if (!agent)
    return mlx_status_hint(mlx_error(MLX_USAGE, "launch expects claude, codex or aider%s%s%s",
                                     count ? ", not '" : "", count ? words[0] : "", count ? "'" : ""),
                           "mlxcel launch claude -m MODEL");
  if (!f.model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel launch %s -m MODEL",
                           agent->name);
  MLX_TRY(check_program(agent));
  launch_t l = {.agent = agent, .flags = &f, .words = words + 1, .word_count = count - 1};
  snprintf(l.context, sizeof l.context, "%lld", (long long)f.context);
  snprintf(l.output, sizeof l.output, "%lld", (long long)(f.context < 8 ? 1 : f.context / 8));
  MLX_TRY(set_key(&l));
  MLX_TRY(run_both(&l));
  if (l.tool_signal || l.tool_exit) exit(l.tool_signal ? 128 + l.tool_signal : (int)l.tool_exit);
  return NULL;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_MODEL_FLAG(flags_t, model),
    MLX_CONTEXT_FLAG(flags_t, context, "context length in tokens (default: 0: the model's)", 0, 1 << 30),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_launch = {
    .name = "launch",
    .summary = "start a server and a coding agent that uses it",
    .usage =
        "usage: mlxcel launch claude|codex|aider -m MODEL [options] [-- ARGUMENTS]\n\n"
        "Starts `mlxcel serve MODEL` on a free port of this machine, then the agent, with the environment "
        "and the options that it needs to use the server. ARGUMENTS go to the agent. The server ends when "
        "the "
        "agent ends, whose exit status is returned. Only this agent gets the key of the server. Other "
        "options "
        "of the server come from the environment.\n\n"
        "examples:\n"
        "  mlxcel launch claude -m qwen3:8b\n"
        "  mlxcel launch codex -m model.gguf -c 65536\n"
        "  mlxcel launch aider -m qwen3:8b -- --no-git README.md",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
