// Quantized linear layers (packed.cu): dequantize rows of an embedding table.

// A thread has 8 columns of a piece: those of one quad.
extern "C" __global__ void __launch_bounds__(256)
    NAME(const int *__restrict__ tokens, const u8 *__restrict__ table, float *__restrict__ y) {
  start_next_kernel();
  wait_for_previous_kernel();
  tokens = after_wait(tokens);
  const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
  const int m = index / (RUNS * 16), run = index / 16 % RUNS, piece = index / 4 % 4, quad = index % 4;
  if (m >= M || run * 128 + piece * 32 >= K) return;
  const int token = tokens[m] < 0 ? 0 : tokens[m] < N ? tokens[m] : N - 1;
  const u8 *tile = table + ((u64)(token / 8) * RUNS + run) * TILE_BYTES;
  const int number = token % 8 * 4 + piece;
  u32 words[4];
  const uint4 v = *(const uint4 *)(tile + piece / PIECES * 512 + (token % 8 * 4 + quad) * 16);
  words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  if (BITS == 4)
    words[0] = words[piece];
  else if (piece % 2)
    words[0] = words[2], words[1] = words[3];
  const float offset = OFFSET ? to_float(load_number(tile + OFFSETS_AT, number)) : 0;
  float *to = y + (u64)m * K + run * 128 + piece * 32 + quad * 2;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float scale = to_float(load_number(tile + SCALES_AT, number * (1 + HALVES) + (HALVES ? j % 2 : 0)));
    const u32 pair = pair_of(words, 0, j);
    float low = __fmul_rn(scale, __uint_as_float(pair << 16)),
          high = __fmul_rn(scale, __uint_as_float(pair & 0xffff0000u));
    if (OFFSET) low = __fadd_rn(low, offset), high = __fadd_rn(high, offset);
    *(float2 *)(to + j % 2 * 16 + j / 2 * 8) = make_float2(low, high);
  }
}
