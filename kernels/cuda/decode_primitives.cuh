// Decode: 16-bit numbers, and global words that are their own ready flag.

// bf16 and f16: conversions, and the tensor-core instruction sum += a . b for a 16 x 16 and a 16 x 8 matrix.
struct Bf16 {
  static __device__ __forceinline__ u16 narrow(float x) {
    u16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ u32 narrow2(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static __device__ __forceinline__ float widen(u16 x) { return __uint_as_float((u32)x << 16); }
  static __device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
  static __device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
  static __device__ __forceinline__ void multiply(float (&sum)[4], uint4 a, uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
  }
  static __device__ __forceinline__ void multiply_once(float (&product)[4], uint4 a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(product[0]), "=f"(product[1]), "=f"(product[2]), "=f"(product[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(0.0f));
  }
};

struct F16 {
  static __device__ __forceinline__ u16 narrow(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ u32 narrow2(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static __device__ __forceinline__ float widen(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
  }
  static __device__ __forceinline__ float low(u32 pair) { return widen((u16)pair); }
  static __device__ __forceinline__ float high(u32 pair) { return widen((u16)(pair >> 16)); }
  static __device__ __forceinline__ void multiply(float (&sum)[4], uint4 a, uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
  }
};

#ifdef DTYPE_F16
using Number = F16;  // of weights, and of the parts of activations
#else
using Number = Bf16;
#endif
#ifdef KV_F16
using KvNumber = F16;  // of a 16-bit KV pool
#else
using KvNumber = Bf16;
#endif

static __device__ __forceinline__ u32 component(uint4 v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Attention that computes in f32 must have f32 accuracy; the fast exponential does not.
#if defined(KV_F32) || defined(KV_Q8)
static __device__ __forceinline__ float exp_of(float x) { return expf(x); }
#else
static __device__ __forceinline__ float exp_of(float x) { return __expf(x); }
#endif

// The activation of the MLP.
static __device__ __forceinline__ float activate(float x) {
#if defined(ACT_GELU)
  return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
#elif defined(ACT_GELU_TANH)
  return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * (x * x * x))));
#elif defined(ACT_RELU)
  return fmaxf(x, 0.0f);
#elif defined(ACT_RELU2)
  return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
#else
  return x / (1.0f + exp_of(-x));
#endif
}

// The hidden value of the MLP. Without a gate, |gate| is the output of up.
static __device__ __forceinline__ float gated(float gate, float up) {
#if MLP_MATRICES == 1
  (void)up;
  return activate(gate);
#elif defined(LIMIT)
  gate = gate > LIMIT ? LIMIT : gate;
  up = up > LIMIT ? LIMIT : up < -LIMIT ? -LIMIT : up;
  return (up + 1.0f) * (gate / (1.0f + expf(-SLOPE * gate)));
#else
  return activate(gate) * up;
#endif
}

static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
  return x;
}

// ----------------------------------------------------------------------------------------------------------
// Words that are their own ready flag: EMPTY until a value is published

static __device__ __forceinline__ void publish(float *word, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(word), "f"(value) : "memory");
}

static __device__ __forceinline__ void mark_empty(float *word) { publish(word, __uint_as_float(EMPTY)); }

static __device__ __forceinline__ bool is_empty(float value) { return __float_as_uint(value) == EMPTY; }

static __device__ __forceinline__ float load_relaxed(const float *word) {
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(word));
  return value;
}

static __device__ __forceinline__ float receive(const float *word) {
  float value;
  do value = load_relaxed(word);
  while (is_empty(value));
  return value;
}

static __device__ __forceinline__ float4 load_relaxed4(const float *words) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(words));
  return v;
}

static __device__ __forceinline__ bool any_empty(float4 v) {
  return is_empty(v.x) || is_empty(v.y) || is_empty(v.z) || is_empty(v.w);
}

// Two neighbouring words, published in any order.
static __device__ __forceinline__ float2 receive2(const float *words) {
  float2 v;
  do asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(words));
  while (is_empty(v.x) || is_empty(v.y));
  return v;
}
