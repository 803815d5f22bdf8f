// Thread block clusters: SPLIT blocks divide one piece of work and read each other's shared memory. The
// cluster size is part of the kernel (CLUSTER, before its launch bounds), so it needs no launch attribute.

#pragma once

#include "ptx.cuh"

#if SPLIT > 1
#define CLUSTER __cluster_dims__(1, 1, SPLIT)
#else
#define CLUSTER
#endif
