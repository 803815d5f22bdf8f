// Programs of the CPU kernel, as the compiler writes them for the networks of the fixtures. Needs no
// compiler.
#include "compiler/cpu_program.h"

#include <dirent.h>

#include "base/file.h"
#include "models/model.h"
#include "tests/support/check.h"

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
  CHECK(networks >= 45);
}

TEST_MAIN(CASE(every_phase_of_every_network_has_an_instruction))
