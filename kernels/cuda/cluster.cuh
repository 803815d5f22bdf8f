// SPLIT blocks of a cluster that divide one piece of work, and read each other's shared memory. The cluster's
// size is part of the kernel (CLUSTER, before its launch bounds), so that the launch stays a plain one.

#if SPLIT > 1
#define CLUSTER __cluster_dims__(1, 1, SPLIT)

__device__ __forceinline__ u32 there(const void *mine,
                                     u32 rank) {  // the same place in the cluster's block `rank`
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"((u32)__cvta_generic_to_shared(mine)), "r"(rank));
  return address;
}

__device__ __forceinline__ float read_cluster(const float *mine, u32 rank) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there(mine, rank)) : "memory");
  return v;
}

__device__ __forceinline__ float2 read_cluster2(const float *mine, u32 rank) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(there(mine, rank))
               : "memory");
  return v;
}

__device__ __forceinline__ float4 read_cluster4(u32 address, u32 rank) {  // of an address in shared memory
  float4 v;
  asm volatile(
      "{ .reg .u32 there; mapa.shared::cluster.u32 there, %4, %5;"
      " ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [there]; }"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}

__device__ __forceinline__ void wait_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#else
#define CLUSTER
#endif
