// Quantized linear layers (packed.cu): dequantize rows of an embedding table.

// A thread has 8 columns of a piece: those of one quad.
extern "C" __global__ void __launch_bounds__(256)
    NAME(const int *__restrict__ tokens, const u8 *__restrict__ table,
         float *__restrict__ y SIZE_PARAMETERS) {
  start_next_kernel();
  wait_for_previous_kernel();
  tokens = after_wait(tokens);
  const u32 index = blockIdx.x * 256 + threadIdx.x;
  const int m = index / (RUNS * 16), run = index / 16 % RUNS, piece = index / 4 % 4, quad = index % 4;
  if (m >= M || run * 128 + piece * 32 >= K) return;
  const int token = tokens[m] < 0 ? 0 : tokens[m] < N ? tokens[m] : N - 1;
  const u8 *tile = table + ((u64)(token / 8) * RUNS + run) * TILE_BYTES;
  float *to = y + (u64)m * K + run * 128 + piece * 32 + quad * 2;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float2 v = Format::load_pair<Plain>(tile, run, token % 8, quad, piece, j);
    *(float2 *)(to + j % 2 * 16 + j / 2 * 8) = make_float2(v.x * FACTOR, v.y * FACTOR);
  }
}
