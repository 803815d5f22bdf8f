// mlxcel serve: serves models over HTTP, with the APIs of OpenAI, Anthropic and Ollama
// (server/core/server.h). stdout carries one line, when the server is ready; everything else goes to stderr.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/unfinished.h"
#include "cli/open.h"
#include "cli/parse.h"
#include "cli/secret_key.h"
#include "cli/served.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "open/locate.h"
#include "server/core/server.h"

#define MAX_WORDS 64
#define MAX_KEYS 1024
#define MAX_KEY_FILE (1u << 20)  // bytes
#define MAX_KEY 4096             // bytes of an API key

typedef struct flags {
  mlx_open_flags_t open;
  mlx_flag_list_t models, names, aliases, keys;
  const char *folder, *host, *key_file, *certificate, *private_key, *cors, *allowed_hosts, *unix_path, *log,
      *model_memory, *address_file;
  const char *chat_template, *reasoning, *allow_pull, *secret_key;
  mlx_kv_events_options_t kv_events;
  mlx_sampling_t sampling;
  int64_t port, queue, work, connections, address_connections, engines;
  double drain, stall, idle, keep, prefill_share;
  bool no_page, no_special, sleep_mode, strict, allow_copy, allow_delete, publish, quiet;
  // Not flags.
  const char *words[MAX_WORDS];
  size_t word_count;
  const char *all_keys[MAX_KEYS];
  size_t key_count;
  char *key_text;  // owned: contents of key_file
  mlx_secret_key_t publish_key;
  uint64_t model_bytes;  // --model-memory; 0: the default
  int listening_port;    // 0: a Unix socket
  bool stored;           // no model was given: serve the stored ones
} flags_t;

// ----------------------------------------------------------------------------------------------------------
// Options

static mlx_status_t check_key(const char *key) {
  if (!*key) return mlx_error(MLX_USAGE, "an API key is empty");
  if (strlen(key) <= MAX_KEY) return NULL;
  return mlx_error(MLX_USAGE, "an API key has %zu bytes; at most %d are supported", strlen(key), MAX_KEY);
}

static mlx_status_t read_keys(flags_t *f) {
  size_t length;
  for (size_t i = 0; i < f->keys.count; ++i) f->all_keys[f->key_count++] = f->keys.items[i];
  if (f->key_file) {
    MLX_TRY(mlx_read_file(f->key_file, MAX_KEY_FILE, &f->key_text, &length));
    if (memchr(f->key_text, 0, length))  // the key would end there, and could be short
      return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' has a NUL byte", f->key_file),
                             "use a text file with one key per line");
    for (char *line = strtok(f->key_text, "\r\n"); line; line = strtok(NULL, "\r\n")) {
      if (f->key_count == MAX_KEYS)
        return mlx_error(MLX_USAGE, "'%s' has more than %d keys", f->key_file, MAX_KEYS);
      f->all_keys[f->key_count++] = line;
    }
  }
  for (size_t i = 0; i < f->key_count; ++i) {
    MLX_TRY(check_key(f->all_keys[i]));
  }
  if (f->key_file && !f->key_count) return mlx_error(MLX_USAGE, "'%s' has no key", f->key_file);
  return NULL;
}

static bool is_local(const char *host) {
  static const char *const names[] = {"::1", "[::1]", "localhost"};
  bool local = !strncmp(host, "127.", 4) && strspn(host, "0123456789.") == strlen(host);
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) local |= !strcmp(host, names[i]);
  return local;
}

static mlx_status_t check_options(flags_t *f) {
  static const char prefix[] = "unix:";
  if (f->prefill_share < 0.05)
    return mlx_error(MLX_USAGE, "option --prefill-share expects a number from 0.05 to 1, not %g",
                     f->prefill_share);
  if (!strncmp(f->host, prefix, strlen(prefix))) f->unix_path = f->host + strlen(prefix);
  if (!f->certificate != !f->private_key)
    return mlx_status_hint(mlx_error(MLX_USAGE, "--ssl-cert and --ssl-key belong together"), "give both");
  f->stored = !f->word_count && !f->models.count && !f->folder;
  if (f->names.count && (f->word_count + f->models.count != 1 || f->folder))
    return mlx_status_hint(mlx_error(MLX_USAGE, "--served-model-name needs exactly one model"),
                           "give names of several models with --alias NAME=MODEL");
  for (size_t i = 0; i < f->names.count; ++i) {
    if (!*f->names.items[i]) return mlx_error(MLX_USAGE, "option --served-model-name expects a name");
  }
  if ((f->kv_events.replay || f->kv_events.topic) && !f->kv_events.endpoint)
    return mlx_status_hint(mlx_error(MLX_USAGE, "--kv-events-replay and --kv-events-topic need --kv-events"),
                           "give --kv-events tcp://*:5557");
  if (f->kv_events.endpoint && (f->word_count + f->models.count != 1 || f->folder))
    return mlx_status_hint(mlx_error(MLX_USAGE, "--kv-events needs exactly one model"),
                           "start a server for each model");
  MLX_TRY(read_keys(f));
  MLX_TRY(mlx_sampling_check(&f->sampling));
  if (f->reasoning) MLX_TRY(mlx_request_defaults_check(f->reasoning));
  if (!f->unix_path && !is_local(f->host) && !f->key_count)
    mlx_terminal_note("warning: every client that reaches %s can use this server; set a key with --api-key\n",
                      f->host);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Models

static void print_opened(void *user, const char *path, mlx_engine_t *engine, double seconds) {
  const flags_t *f = user;
  const mlx_engine_info_t info = mlx_engine_info(engine);
  mlx_cli_print_device(&info, f->open.engine.verbose);
  mlx_terminal_note("loaded %s in %.1f s: context %lld, %lld sequences at a time\n", path, seconds,
                    (long long)info.context, (long long)info.sequences);
}

// "NAME=MODEL", or "NAME" for the first model.
static mlx_status_t add_alias(mlx_server_t *server, const char *text) {
  const char *equals = strchr(text, '=');
  char *alias;
  if (equals == text || (equals && !equals[1]))
    return mlx_error(MLX_USAGE, "option --alias expects NAME or NAME=MODEL, not '%s'", text);
  const char *model = equals ? equals + 1 : mlx_server_model_name(server, 0);
  if (!model) return mlx_error(MLX_USAGE, "--alias %s: there is no model that could have this name", text);
  MLX_TRY(mlx_copy_text(text, equals ? (size_t)(equals - text) : strlen(text), &alias));
  mlx_status_t status = mlx_server_alias(server, alias, model);
  mlx_free(alias);
  return status;
}

static mlx_status_t add_models(mlx_server_t *server, const flags_t *f) {
  const char *given = f->names.count ? f->names.items[0] : NULL;
  for (size_t i = 0; i < f->word_count; ++i) MLX_TRY(mlx_cli_add_served(server, f->words[i], given));
  for (size_t i = 0; i < f->models.count; ++i) MLX_TRY(mlx_cli_add_served(server, f->models.items[i], given));
  for (size_t i = 1; i < f->names.count; ++i) MLX_TRY(mlx_server_alias(server, f->names.items[i], given));
  if (f->folder) MLX_TRY(mlx_server_add_folder(server, f->folder));
  if (f->stored) MLX_TRY(mlx_server_scan(server));
  for (size_t i = 0; i < f->aliases.count; ++i) MLX_TRY(add_alias(server, f->aliases.items[i]));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Serving

static void put_address(const flags_t *f, mlx_text_t *out) {
  const bool v6 = strchr(f->host, ':') && f->host[0] != '[';
  if (f->unix_path)
    mlx_text_printf(out, "unix:%s", f->unix_path);
  else
    mlx_text_printf(out, "%s://%s%s%s:%d", f->certificate ? "https" : "http", v6 ? "[" : "", f->host,
                    v6 ? "]" : "", f->listening_port);
}

static mlx_status_t write_address(const flags_t *f) {
  mlx_text_t address = {0};
  put_address(f, &address);
  mlx_text_puts(&address, "\n");
  mlx_status_t status = mlx_text_finish(&address);
  if (!status) status = mlx_write_file(f->address_file, address.data, address.length);
  mlx_text_clear(&address);
  return status;
}

// The line on stdout that says that the server is ready.
static mlx_status_t print_ready(void *user, mlx_server_t *server) {
  const flags_t *f = user;
  mlx_text_t address = {0};
  const size_t count = mlx_server_model_count(server);
  put_address(f, &address);
  mlx_status_t status = mlx_text_finish(&address);
  if (!status) printf("listening on %s", address.data);
  mlx_text_clear(&address);
  if (status) return status;
  printf(" (%s", count == 0 ? "no models: `mlxcel pull NAME` stores one" : count == 1 ? "model" : "models");
  for (size_t i = 0; i < count; ++i) printf("%s %s", i ? "," : "", mlx_server_model_name(server, i));
  printf(")\n");
  return fflush(stdout) || ferror(stdout) ? mlx_stdout_error() : NULL;
}

static mlx_status_t prepare(void *user, mlx_server_t *server) {
  const flags_t *f = user;
  MLX_TRY(add_models(server, f));
  return !f->stored && mlx_server_model_count(server) == 1 ? mlx_server_load(server) : NULL;
}

static void exit_now(void *user, int signal) {
  (void)user;
  mlx_unfinished_unlink();
  _exit(128 + signal);
}

static void fill_options(flags_t *f, mlx_server_options_t *out) {
  mlx_server_options_initialize(out);
  out->http.host = f->host;
  out->http.port = (int)f->port;
  out->http.unix_path = f->unix_path;
  out->http.certificate = f->certificate;
  out->http.private_key = f->private_key;
  if (f->connections) out->http.max_connections = f->connections;
  out->http.max_connections_per_address = f->address_connections;
  out->version = MLXCEL_VERSION;
  out->keys = f->all_keys;
  out->key_count = f->key_count;
  out->cors = f->cors;
  out->allowed_hosts = f->allowed_hosts;
  out->plain = f->no_special;
  out->strict = f->strict;
  out->sleep_mode = f->sleep_mode;
  out->defaults = (mlx_request_defaults_t){.sampling = &f->sampling, .reasoning = f->reasoning};
  out->library =
      (mlx_library_rules_t){.pull = f->allow_pull, .copy = f->allow_copy, .remove = f->allow_delete};
  out->log = f->log;
  out->page = !f->no_page;
  out->drain_seconds = f->drain;
  out->stall_seconds = f->stall;
  out->work_seconds = f->work;
  out->queue = f->queue;
  out->model_memory = f->model_bytes;
  out->idle_seconds = f->idle;
  out->keep_seconds = f->keep;
  out->prefill_share = f->prefill_share;
  out->refuse_larger = f->model_memory != NULL;
  out->report = mlx_terminal_report();
  out->engine = f->open.engine;
  out->chat_template = f->chat_template;
  out->publish_key = f->publish ? &f->publish_key : NULL;
  out->kv_events = f->kv_events;
  out->stored = f->stored;
  out->prepare = prepare;
  out->on_ready = print_ready;
  out->on_open = print_opened;
  out->on_second_signal = exit_now;
  out->user = f;
}

// A wrong name is an error before the server takes its port.
static mlx_status_t check_names(const flags_t *f) {
  for (size_t i = 0; i < f->word_count; ++i) MLX_TRY(mlx_locate_check(f->words[i]));
  for (size_t i = 0; i < f->models.count; ++i) MLX_TRY(mlx_locate_check(f->models.items[i]));
  return NULL;
}

// Until the server is ready, a signal ends the process at once: its files are recorded as unfinished.
static mlx_status_t serve_with(mlx_server_t *server, flags_t *f) {
  int files[2] = {0};
  MLX_TRY(check_names(f));
  MLX_TRY(mlx_server_listen(server, &f->listening_port));
  if (f->unix_path) files[0] = mlx_unfinished_add(f->unix_path);
  if (f->address_file) {
    MLX_TRY(write_address(f));
    files[1] = mlx_unfinished_add(f->address_file);
  }
  mlx_status_t status = mlx_server_run(server);
  if (f->address_file) remove(f->address_file);
  for (int i = 0; i < 2; ++i) mlx_unfinished_remove(files[i]);
  return status;
}

static mlx_status_t serve(flags_t *f) {
  mlx_server_options_t options;
  mlx_server_t *server;
  MLX_TRY(check_options(f));
  MLX_TRY(mlx_size_parse(f->model_memory, "--model-memory", &f->model_bytes));
  if (f->publish) MLX_TRY(mlx_cli_publish_key(f->secret_key, &f->publish_key));
  fill_options(f, &options);
  MLX_TRY(mlx_cli_use_engines(&f->open, f->engines, &options));
  mlx_fault_recover();  // a file that is truncated ends the requests of its model, not the server
  MLX_TRY(mlx_server_create(&options, &server));
  mlx_status_t status = serve_with(server, f);
  mlx_server_free(server);
  return status;
}

static void initialize(void *options) {
  flags_t *f = options;
  mlx_open_flags_initialize(&f->open);
  f->open.many_gpus = true;
  f->engines = 1;
  f->host = "127.0.0.1";
  f->port = 8080;
  f->queue = 1024;
  f->drain = 30;
  f->stall = 60;
  f->work = 10;
  f->idle = 300;
  f->keep = -1;
  f->prefill_share = 2.0 / 3;
  mlx_sampling_initialize(&f->sampling);
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  bool help;
  const char *words[MAX_WORDS];
  size_t count;
  MLX_TRY(mlx_command_line_parse(line, &f, words, MAX_WORDS, &count, &help));
  if (help) return NULL;
  memcpy(f.words, words, count * sizeof *words);
  f.word_count = count;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, f.open.engine.verbose));
  MLX_TRY(mlx_open_flags_read(&f.open));
  mlx_status_t status = serve(&f);
  mlx_secret_key_clear(&f.publish_key);
  mlx_free(f.key_text);
  return status;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_LIST_FLAG(flags_t, models, "-m, --model", "MODEL", "model to serve, also as an argument; may be repeated"),
    MLX_TEXT_FLAG(flags_t, folder, "--models", "FOLDER", "serve all models in a folder"),
    MLX_LIST_FLAG(flags_t, names, "--served-model-name", "NAME",
                  "name of the model in requests and metrics, in place of its file's; may be repeated"),
    MLX_LIST_FLAG(flags_t, aliases, "-a, --alias", "NAME=MODEL", "another name of a model; NAME: of the first one"),
    MLX_TEXT_FLAG(flags_t, host, "--host", "ADDRESS", "address to listen on, or unix:PATH (default: 127.0.0.1)"),
    MLX_INT_FLAG(flags_t, port, "--port", "N", "port to listen on (default: 8080; 0: a free one)", 0, 65535),
    MLX_CONTEXT_FLAG(flags_t, open.context,
                     "context length in tokens (default: up to 8192; 0: the model's)", 0, 1 << 30),
    MLX_INT_FLAG(flags_t, open.engine.sequences, "-np, --parallel", "N",
                 "requests at a time (default: CPU 32, GPU 256, encoder 64)", 1, 4096),
    MLX_LIST_FLAG(flags_t, keys, "--api-key", "KEY", "require this key of clients; may be repeated"),
    MLX_TEXT_FLAG(flags_t, key_file, "--api-key-file", "FILE", "require a key of this file, one per line"),
    MLX_OPEN_FLAGS(flags_t, open),
    MLX_COLLAPSED_GROUP("GPUs, limits, TLS and defaults of requests"),
    MLX_ENGINES_FLAGS(flags_t, open, engines),
    MLX_INT_FLAG(flags_t, queue, "--queue", "N",
                 "requests of a model that may wait; more are refused with 429 (default: 1024)", 0, 1 << 20),
    MLX_INT_FLAG(flags_t, connections, "--max-connections", "N",
                 "open connections; a new one then replaces the oldest without a request (default: 1024)", 1, 1 << 20),
    MLX_INT_FLAG(flags_t, address_connections, "--max-connections-per-address", "N",
                 "the same of one client address (default: half of --max-connections)", 1, 1 << 20),
    MLX_TEXT_FLAG(flags_t, open.memory, "--memory", "SIZE",
                  "most memory for the KV cache of a model: 512M, 8G (default on a CPU: 2/3 of --model-memory, divided by up to 4 models)"),
    MLX_TEXT_FLAG(flags_t, model_memory, "--model-memory", "SIZE",
                  "most memory for loaded models and their KV caches (default: 3/4 of the RAM on a CPU, no limit on a GPU)"),
    MLX_NUMBER_FLAG(flags_t, keep, "--keep-alive", "SECONDS",
                    "unload a model that had no request for so long (default: -1: when its memory is needed)", -1, 1 << 30),
    MLX_NUMBER_FLAG(flags_t, prefill_share, "--prefill-share", "P",
                    "share of the time for prompts while other requests generate (default: 0.67, so they keep a third of their speed)", 0, 1),
    MLX_NUMBER_FLAG(flags_t, idle, "--cache-idle", "SECONDS",
                    "free the KV cache of a model on a CPU that had no request for so long (default: 300; 0: never)", 0, 1 << 30),
    MLX_NUMBER_FLAG(flags_t, drain, "--drain", "SECONDS",
                    "after SIGTERM or SIGHUP, end within this time; running requests may finish (default: 30)", 0, 86400),
    MLX_NUMBER_FLAG(flags_t, stall, "--stall", "SECONDS",
                    "/health fails if a model with work completes no step for so long (default: 60)", 1, 86400),
    MLX_INT_FLAG(flags_t, work, "--work", "SECONDS",
                 "most time for the JSON, chat template, tokens and grammar of a request (default: 10)", 1, 86400),
    MLX_TEXT_FLAG(flags_t, certificate, "--ssl-cert", "FILE", "TLS certificate, PEM"),
    MLX_TEXT_FLAG(flags_t, private_key, "--ssl-key", "FILE", "private key of the certificate, PEM"),
    MLX_TEXT_FLAG(flags_t, cors, "--cors", "ORIGIN", "web pages of this origin may use the server; *: all pages"),
    MLX_TEXT_FLAG(flags_t, allowed_hosts, "--allowed-hosts", "NAMES",
                  "names of this server besides localhost, IP addresses and --host, separated by commas; *: all"),
    MLX_TEXT_FLAG(flags_t, address_file, "--address-file", "FILE",
                  "write the server's URL to this file when it listens; removed at the end"),
    MLX_TEXT_FLAG(flags_t, unix_path, "--unix", "PATH", "listen on a Unix socket instead of a port"),
    MLX_TEXT_FLAG(flags_t, log, "--log", "FILE", "append a JSON line for each request"),
    MLX_TEXT_FLAG(flags_t, allow_pull, "--allow-pull", "PATTERNS",
                  "clients may pull models of these names, separated by commas: qwen3:*,hf:ORG/* (default: none)"),
    MLX_SWITCH_FLAG(flags_t, allow_copy, "--allow-copy", "clients may give models further names (/api/copy)"),
    MLX_SWITCH_FLAG(flags_t, allow_delete, "--allow-delete", "clients may delete stored models (/api/delete)"),
    MLX_SWITCH_FLAG(flags_t, sleep_mode, "--enable-sleep-mode",
                    "clients may give the memory of models back and load them again (/sleep, /wake_up)"),
    MLX_TEXT_FLAG(flags_t, kv_events.endpoint, "--kv-events", "ENDPOINT",
                  "publish what the prefix cache holds to routers, as vLLM does: tcp://*:5557, with tokens of prompts"),
    MLX_TEXT_FLAG(flags_t, kv_events.replay, "--kv-events-replay", "ENDPOINT",
                  "repeat the last of these events to those who ask: tcp://*:5558"),
    MLX_TEXT_FLAG(flags_t, kv_events.topic, "--kv-events-topic", "TEXT", "their topic (default: kv@HOSTNAME@MODEL)"),
    MLX_SWITCH_FLAG(flags_t, no_page, "--no-page", "do not serve the chat page at /"),
    MLX_NO_SPECIAL_FLAG(flags_t, no_special),
    MLX_SWITCH_FLAG(flags_t, strict, "--strict", "refuse requests with unknown fields, instead of ignoring these fields"),
    MLX_CHAT_TEMPLATE_FLAG(flags_t, chat_template),
    MLX_KV_FLAG(flags_t, open.engine.kv),
    MLX_SWITCH_FLAG(flags_t, open.engine.allow_unsigned, "--allow-unsigned",
                    "run a bundle that was neither compiled here nor signed by a trusted key"),
    MLX_TEXT_FLAG(flags_t, open.engine.cpu_level, "--cpu-level", "LEVEL",
                  "CPU level to compile for, or to select in a portable bundle (x86-64-v3)"),
    MLX_KERNELS_FLAG(flags_t, open.engine.kernels),
    MLX_RANKS_FLAG(flags_t, open),
    MLX_PUBLISH_FLAG(flags_t, publish),
    MLX_SECRET_KEY_FLAG(flags_t, secret_key, "--secret-key"),
    MLX_TEXT_FLAG(flags_t, reasoning, "--reasoning", "on|off|EFFORT",
                  "reasoning of chats that say nothing about it; EFFORT: none to max (default: the chat template's)"),
    MLX_NUMBER_FLAG(flags_t, sampling.temperature, "--temp", "T", "sampling temperature (default: 0.8; 0: greedy)", 0, 1000000),
    MLX_INT_FLAG(flags_t, sampling.top_k, "--top-k", "N", "keep the N most probable tokens (default: 40; 0: all)", 0, 1 << 30),
    MLX_NUMBER_FLAG(flags_t, sampling.top_p, "--top-p", "P", "keep the fewest tokens of total probability P (default: 0.95)", 0, 1),
    MLX_NUMBER_FLAG(flags_t, sampling.min_p, "--min-p", "P",
                    "keep tokens with at least P times the best probability (default: 0.05)", 0, 1),
    MLX_NUMBER_FLAG(flags_t, sampling.repeat_penalty, "--repeat-penalty", "X",
                    "divide the logits of repeated tokens by X (default: 1: off)", 0, 1000000),
    MLX_NUMBER_FLAG(flags_t, sampling.presence_penalty, "--presence-penalty", "X",
                    "subtract X from the logits of repeated tokens (default: 0: off)", -1000000, 1000000),
    MLX_NUMBER_FLAG(flags_t, sampling.frequency_penalty, "--frequency-penalty", "X",
                    "subtract X for each occurrence of a repeated token (default: 0: off)", -1000000, 1000000),
    MLX_GROUP_END,
    MLX_QUIET_FLAG(flags_t, quiet),
    MLX_VERBOSE_FLAG(flags_t, open.engine.verbose),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_serve = {
    .name = "serve",
    .summary = "serve models over HTTP: OpenAI, Anthropic, Ollama",
    .usage =
        "usage: mlxcel serve [MODEL...] [options]\n\n"
        "Many requests at a time share the steps of a model. Each gets the tokens that it would get "
        "alone. Without a model, serves the models that `mlxcel list` shows, each loaded when a request "
        "names it.\n\n"
        "examples:\n"
        "  mlxcel serve model.gguf\n"
        "  mlxcel serve --models ~/models --host 0.0.0.0 --api-key SECRET",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
