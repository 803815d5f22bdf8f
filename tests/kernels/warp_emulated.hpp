// The instructions by which the lanes of a warp exchange words, and 16-bit numbers, for CUDA on a CPU. The file that includes this one has defined
// threadIdx, sync_warp() and warp_words().

template <class T>
static T shuffle(T value, int lane) {
  memcpy(warp_words() + threadIdx.x % 32, &value, 4);
  sync_warp();
  memcpy(&value, warp_words() + lane, 4);
  sync_warp();
  return value;
}
template <class T>
static T __shfl_xor_sync(unsigned, T value, int bits) {
  return shuffle(value, threadIdx.x % 32 ^ bits);
}
template <class T>
static T __shfl_sync(unsigned, T value, int lane) {
  return shuffle(value, lane % 32);
}
static bool __any_sync(unsigned, bool value) {
  warp_words()[threadIdx.x % 32] = value;
  sync_warp();
  bool any = false;
  for (int i = 0; i < 32; ++i) any |= warp_words()[i] != 0;
  sync_warp();
  return any;
}

static float __uint_as_float(unsigned word) {
  float value;
  memcpy(&value, &word, 4);
  return value;
}
static float half_of(unsigned pair, int nth) { return __uint_as_float((nth ? pair >> 16 : pair & 0xffff) << 16); }
static unsigned bf16_of(float value) {
  unsigned word;
  memcpy(&word, &value, 4);
  return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}
