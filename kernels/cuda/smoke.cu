// Smoke test: a minimal kernel that shows that kernels compile, load and run.
extern "C" __global__ void mlx_smoke(const int *x, int *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = 2 * x[i];
}
