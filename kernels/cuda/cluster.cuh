// Thread block clusters: SPLIT blocks divide one piece of work and read each other's shared memory. The
// cluster size is part of the kernel (CLUSTER, before its launch bounds), so it needs no launch attribute.

#if SPLIT > 1
#define CLUSTER __cluster_dims__(1, 1, SPLIT)

// Address of |mine| in the shared memory of block |rank| of the cluster.
__device__ __forceinline__ u32 cluster_address(const void *mine, u32 rank) {
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"((u32)__cvta_generic_to_shared(mine)), "r"(rank));
  return address;
}

__device__ __forceinline__ float read_cluster(const float *mine, u32 rank) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(cluster_address(mine, rank)) : "memory");
  return v;
}

__device__ __forceinline__ float2 read_cluster2(const float *mine, u32 rank) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(cluster_address(mine, rank))
               : "memory");
  return v;
}

__device__ __forceinline__ float4 read_cluster4(u32 address, u32 rank) {  // |address| in shared memory
  float4 v;
  asm volatile(
      "{ .reg .u32 cluster_address; mapa.shared::cluster.u32 cluster_address, %4, %5;"
      " ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [cluster_address]; }"
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
