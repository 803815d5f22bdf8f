#include "compiler/target.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/text.h"

static mlx_status_t unknown_level(const char *text) {
  mlx_text_t known = {0};
  for (size_t i = 0; mlx_cpu_level(i); ++i) mlx_text_printf(&known, ", cpu:%s", mlx_cpu_level(i));
  mlx_status_t status = mlx_error(MLX_USAGE, "unknown target '%s'", text);
  status = mlx_status_hint(status, "targets: cpu (this machine)%s", known.data ? known.data : "");
  mlx_text_clear(&known);
  return status;
}

mlx_status_t mlx_target_parse(const char *text, mlx_target_t *t) {
  *t = (mlx_target_t){0};
  const char *level = NULL;
  if (!strcmp(text, "cpu") || !strcmp(text, "cpu:host")) {
    level = "host";
    mlx_cpu_identity(t->cpu);
  }
  for (size_t i = 0; !level && mlx_cpu_level(i); ++i) {
    if (!strncmp(text, "cpu:", 4) && !strcmp(text + 4, mlx_cpu_level(i))) level = mlx_cpu_level(i);
  }
  if (!level) return unknown_level(text);
  snprintf(t->name, sizeof t->name, "cpu:%s", level);
  snprintf(t->cpu_flag, sizeof t->cpu_flag, "--iree-llvmcpu-target-cpu=%s", level);
  t->flags[t->flag_count++] = "--iree-hal-target-device=local";
  t->flags[t->flag_count++] = "--iree-hal-local-target-device-backends=llvm-cpu";
  t->flags[t->flag_count++] = t->cpu_flag;
  return NULL;
}
