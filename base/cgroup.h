// The CPU quota that a control group (container, systemd unit) gives this process.
#ifndef MLXCEL_BASE_CGROUP_H_
#define MLXCEL_BASE_CGROUP_H_

// The smallest quota of the process's control group and of its parents, in CPUs: 0.5 is half of one CPU. 0 if
// there is none. |list| is /proc/self/cgroup, |mount| is /sys/fs/cgroup; tests pass others. Reads versions 1
// and 2.
double mlx_cgroup_cpus(const char *list, const char *mount);

#endif  // MLXCEL_BASE_CGROUP_H_
