// Reads CPU quotas from the control group file system. See cgroup.h.
#include "base/cgroup.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

#define MAX_LIST (64 << 10)  // bytes of /proc/self/cgroup
#define MAX_VALUE 256        // bytes of a quota file

// Reads FOLDER/NAME. False if it does not exist or is too long.
static bool read_value(const char *folder, const char *name, char out[MAX_VALUE]) {
  char *path = NULL, *text = NULL;
  mlx_status_t status = mlx_join_path(folder, name, &path);
  if (!status) status = mlx_read_file(path, MAX_VALUE - 1, &text, NULL);
  const bool found = !status;
  if (found) snprintf(out, MAX_VALUE, "%s", text);
  mlx_status_free(status);
  mlx_free(text);
  mlx_free(path);
  return found;
}

// The quota of one folder: cpu.max in version 2 ("50000 100000" or "max 100000"), two files in version 1
// (a quota of -1 is none). 0 if there is none.
static double folder_quota(const char *folder) {
  char text[MAX_VALUE];
  double quota = 0, period = 0;
  if (read_value(folder, "cpu.max", text)) {
    if (sscanf(text, "%lf %lf", &quota, &period) != 2) return 0;
  } else if (read_value(folder, "cpu.cfs_quota_us", text) && sscanf(text, "%lf", &quota) == 1 &&
             read_value(folder, "cpu.cfs_period_us", text)) {
    if (sscanf(text, "%lf", &period) != 1) return 0;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

// The smallest quota of MOUNT/GROUP and of the folders above it, up to |mount|. A container often sees its
// own group at |mount|, whatever path its list has; folders that do not exist have no quota.
static double smallest_quota(const char *mount, const char *group) {
  char folder[4096];
  double smallest = 0;
  const size_t base = strlen(mount);
  if (strstr(group, "..") || (size_t)snprintf(folder, sizeof folder, "%s%s", mount, group) >= sizeof folder)
    snprintf(folder, sizeof folder, "%s", mount);
  for (;;) {
    const double quota = folder_quota(folder);
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
    char *slash = strrchr(folder, '/');
    if (strlen(folder) <= base || !slash || (size_t)(slash - folder) < base) return smallest;
    *slash = 0;
  }
}

// True if the comma-separated |controllers| contain "cpu".
static bool has_cpu(const char *controllers) {
  for (const char *at = controllers; *at; at += strcspn(at, ","), at += *at == ',') {
    if (strcspn(at, ",") == 3 && !strncmp(at, "cpu", 3)) return true;
  }
  return false;
}

// A line of the list is "ID:CONTROLLERS:GROUP"; version 2 has the ID 0 and no controllers.
static double line_quota(char *line, const char *mount) {
  char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!group) return 0;
  *group++ = 0;
  ++controllers;
  if (!*controllers) return smallest_quota(mount, group);
  if (!has_cpu(controllers)) return 0;
  char folder[4096];
  if ((size_t)snprintf(folder, sizeof folder, "%s/%s", mount, controllers) >= sizeof folder) return 0;
  if (!mlx_is_dir(folder)) snprintf(folder, sizeof folder, "%.4000s/cpu", mount);
  return smallest_quota(folder, group);
}

double mlx_cgroup_cpus(const char *list, const char *mount) {
  char *text;
  double smallest = 0;
  mlx_status_t status = mlx_read_file(list, MAX_LIST, &text, NULL);
  if (status) {  // no control groups on this system
    mlx_status_free(status);
    return 0;
  }
  for (char *line = text, *end; *line; line = end) {
    end = line + strcspn(line, "\n");
    if (*end) *end++ = 0;
    const double quota = line_quota(line, mount);
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
  }
  mlx_free(text);
  return smallest;
}
