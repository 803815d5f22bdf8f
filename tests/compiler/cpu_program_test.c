// Programs of the CPU kernel, as the compiler writes them for the networks of the fixtures. Needs no
// compiler.
#include "compiler/cpu_program.h"

#include <dirent.h>

#include "base/file.h"
#include "models/model.h"
#include "tests/support/check.h"
#include "tests/support/listed.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures"
#define TOKENS 64

// An empty phase costs a barrier of all threads.
static void check_phases(const char *name, const char *cpu_level, const mlx_cpu_program_t *program) {
  int32_t next = 0;
  for (int32_t i = 0; i < program->header.phases; ++i) {
    const mlx_phase_t *phase = &program->phases[i];
    if (phase->count < 1) CHECK_FAIL("%s for %s: phase %d has no instruction", name, cpu_level, i);
    CHECK_INT(phase->first, next);
    next += phase->count;
  }
  CHECK_INT(next, program->header.instructions);
}

static void check_network(const char *name, const char *path) {
  static const char *const levels[] = {"x86-64-v3", "sapphirerapids"};
  mlx_model_t *model;
  mlx_graph_t *graph;
  CHECK_OK(mlx_model_open(path, &model));
  CHECK_OK(mlx_model_build_graph(model, TOKENS, &graph));
  for (int i = 0; i < 2; ++i) {
    mlx_module_options_t options;
    mlx_cpu_program_t program;
    mlx_module_options_initialize(TOKENS, &options);
    CHECK_OK(mlx_cpu_program_make(model, graph, &options, levels[i], &program));
    if (program.unsupported) CHECK_FAIL("%s: the CPU kernel does not have %s", name, program.unsupported);
    check_phases(name, levels[i], &program);
    mlx_cpu_program_clear(&program);
  }
  mlx_graph_free(graph);
  mlx_model_close(model);
}

TEST(every_phase_of_every_network_has_an_instruction) {
  DIR *folder = opendir(FIXTURES);
  int networks = 0;
  CHECK(folder);
  for (struct dirent *entry; (entry = readdir(folder));) {
    char path[512], config[600];
    snprintf(path, sizeof path, FIXTURES "/%s", entry->d_name);
    snprintf(config, sizeof config, "%s/config.json", path);
    if (!mlx_is_file(config)) continue;
    check_network(entry->d_name, path);
    ++networks;
  }
  closedir(folder);
  CHECK_INT(networks, listed_files("fixtures/", "/config.json"));
}

// Two layers with a window and 2 KV heads of 16, and two without one and 1 KV head of 32, in f32. Two more
// layers share them and store nothing.
TEST(a_page_has_the_bytes_that_each_layer_needs) {
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_module_options_t options;
  mlx_cpu_program_t program;
  int appended = 0, attended = 0;
  CHECK_OK(mlx_model_open(FIXTURES "/gemma4", &model));
  CHECK_OK(mlx_model_build_graph(model, TOKENS, &graph));
  mlx_module_options_initialize(TOKENS, &options);
  options.window_pages = true;
  CHECK_OK(mlx_cpu_program_make(model, graph, &options, "x86-64-v3", &program));
  CHECK_INT(program.header.window_page_bytes, 2 * (16 * 2 * 2 * 16 * 4));
  CHECK_INT(program.header.page_bytes, 2 * (16 * 2 * 1 * 32 * 4));
  for (int32_t i = 0; i < program.header.instructions; ++i) {
    appended += program.instructions[i].kind == MLX_RUN_APPEND;
    attended += program.instructions[i].kind == MLX_RUN_ATTEND;
  }
  CHECK_INT(appended, 4);
  CHECK_INT(attended, 6);
  mlx_cpu_program_clear(&program);
  mlx_graph_free(graph);
  mlx_model_close(model);
}

TEST_MAIN(CASE(every_phase_of_every_network_has_an_instruction),
          CASE(a_page_has_the_bytes_that_each_layer_needs))
