// Sampling: the arithmetic that chooses a token from logits. docs/sampling.md is the definition.
//
// Compiles as freestanding C11 (CPU kernel, runtime, tests) and as CUDA C++ (NVRTC). Both give the same bits:
// f32 operations are single and rounded to nearest, weights are integers, and sums of integers do not depend
// on their order. sample_row.h samples a row of logits on a CPU; cuda/sample.cu does so on a GPU.
//
// A candidate is a token and its score in one number (mlx_sample_pack). A larger number is a better
// candidate: a larger score, or the same score and a lower ID. 0 is no candidate. So candidates have a strict
// order, and a filter is a number: it keeps the candidates that are not less.
#ifndef MLXCEL_KERNELS_SAMPLE_H_
#define MLXCEL_KERNELS_SAMPLE_H_

#include "step.h"

#ifdef __CUDACC__
typedef unsigned int mlx_u32;
typedef unsigned long long mlx_u64;
typedef int mlx_i32;
#define MLX_SAMPLE __device__ __forceinline__
#ifndef MLX_SAMPLE_CALL
#define MLX_SAMPLE_CALL __device__ __noinline__  // large functions
#endif
#define MLX_EXACT
#define MLX_ROLLED _Pragma("unroll 4")  // the decode kernel must stay in the instruction cache
#define MLX_OWN _Pragma("unroll 1")     // over the candidates of a thread: one to eight
#define MLX_FADD(a, b) __fadd_rn(a, b)
#define MLX_FSUB(a, b) __fsub_rn(a, b)
#define MLX_FMUL(a, b) __fmul_rn(a, b)
#define MLX_FDIV(a, b) __fdiv_rn(a, b)
#define MLX_DADD(a, b) __dadd_rn(a, b)
#define MLX_DSUB(a, b) __dsub_rn(a, b)
#define MLX_DMUL(a, b) __dmul_rn(a, b)
#define MLX_DDIV(a, b) __ddiv_rn(a, b)
#define MLX_MULHI(a, b) __umul64hi(a, b)
#else
#include <stdint.h>
#define MLX_ROLLED
#define MLX_OWN
typedef uint32_t mlx_u32;
typedef uint64_t mlx_u64;
typedef int32_t mlx_i32;
#define MLX_SAMPLE static inline __attribute__((unused))
#define MLX_SAMPLE_CALL MLX_SAMPLE
// No fused multiply-add: it would round once instead of twice. gcc uses none with -std=c11.
#ifdef __clang__
#define MLX_EXACT _Pragma("STDC FP_CONTRACT OFF")
#else
#define MLX_EXACT
#endif
#define MLX_FADD(a, b) ((a) + (b))
#define MLX_FSUB(a, b) ((a) - (b))
#define MLX_FMUL(a, b) ((a) * (b))
#define MLX_FDIV(a, b) ((a) / (b))
#define MLX_DADD(a, b) ((a) + (b))
#define MLX_DSUB(a, b) ((a) - (b))
#define MLX_DMUL(a, b) ((a) * (b))
#define MLX_DDIV(a, b) ((a) / (b))
__extension__ typedef unsigned __int128 mlx_u128;
#define MLX_MULHI(a, b) ((mlx_u64)((mlx_u128)(a) * (b) >> 64))
#endif

#define MLX_SAMPLE_ONE ((mlx_u64)1 << 40)  // weight of the best score
#define MLX_SAMPLE_LEAST (-28.0f)          // exp of this is less than a weight of 1
#define MLX_SAMPLE_LEAST_BITS 0xc1e00000u

// ----------------------------------------------------------------------------------------------------------
// Bits

MLX_SAMPLE mlx_u32 mlx_float_bits(float x) {
#ifdef __CUDACC__
  return __float_as_uint(x);
#else
  union {
    float f;
    mlx_u32 u;
  } bits = {.f = x};
  return bits.u;
#endif
}

MLX_SAMPLE float mlx_bits_float(mlx_u32 x) {
#ifdef __CUDACC__
  return __uint_as_float(x);
#else
  union {
    mlx_u32 u;
    float f;
  } bits = {.u = x};
  return bits.f;
#endif
}

MLX_SAMPLE mlx_u64 mlx_double_bits(double x) {
#ifdef __CUDACC__
  return (mlx_u64)__double_as_longlong(x);
#else
  union {
    double f;
    mlx_u64 u;
  } bits = {.f = x};
  return bits.u;
#endif
}

MLX_SAMPLE double mlx_bits_double(mlx_u64 x) {
#ifdef __CUDACC__
  return __longlong_as_double((long long)x);
#else
  union {
    mlx_u64 u;
    double f;
  } bits = {.u = x};
  return bits.f;
#endif
}

MLX_SAMPLE int mlx_bits_are_finite(mlx_u32 bits) { return (bits & 0x7f800000u) != 0x7f800000u; }

// An integer with the order of |x|; -0 counts as 0. Greater than 0x007fffff for every finite number.
MLX_SAMPLE mlx_u32 mlx_sample_key(float x) {
  const mlx_u32 bits = mlx_float_bits(x), key = bits ^ ((0u - (bits >> 31)) | 0x80000000u);
  return key + (key == 0x7fffffffu);
}

MLX_SAMPLE float mlx_sample_unkey(mlx_u32 key) {
  return mlx_bits_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The candidate of a token; 0 if its score is not finite.
MLX_SAMPLE mlx_u64 mlx_sample_pack(float score, mlx_i32 id) {
  if (!mlx_bits_are_finite(mlx_float_bits(score))) return 0;
  return (mlx_u64)mlx_sample_key(score) << 32 | (mlx_u32)~id;
}
MLX_SAMPLE float mlx_sample_score(mlx_u64 candidate) { return mlx_sample_unkey((mlx_u32)(candidate >> 32)); }
MLX_SAMPLE mlx_i32 mlx_sample_id(mlx_u64 candidate) { return candidate ? (mlx_i32) ~(mlx_u32)candidate : -1; }

// ----------------------------------------------------------------------------------------------------------
// exp, log and weights

// exp(x) for MLX_SAMPLE_LEAST <= x <= 0. Relative error below 2e-7; exp(0) is 1.
MLX_SAMPLE float mlx_exp32(float x) {
  MLX_EXACT
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = MLX_FADD(MLX_FMUL(x, 1.44269504f), magic), k = MLX_FSUB(shifted, magic);
  float r = MLX_FSUB(x, MLX_FMUL(k, 0.693359375f));  // k * ln(2): the upper part of the product is exact
  r = MLX_FADD(r, MLX_FMUL(k, 2.12194440e-4f));
  float sum = 1.9875691500e-4f;
  sum = MLX_FADD(MLX_FMUL(sum, r), 1.3981999507e-3f);
  sum = MLX_FADD(MLX_FMUL(sum, r), 8.3334519073e-3f);
  sum = MLX_FADD(MLX_FMUL(sum, r), 4.1665795894e-2f);
  sum = MLX_FADD(MLX_FMUL(sum, r), 1.6666665459e-1f);
  sum = MLX_FADD(MLX_FMUL(sum, r), 5.0000001201e-1f);
  sum = MLX_FADD(MLX_FADD(MLX_FMUL(sum, MLX_FMUL(r, r)), r), 1.0f);
  return mlx_bits_float(mlx_float_bits(sum) + (mlx_float_bits(shifted) << 23));
}

// floor(x * 2^40) for 0 <= x < 2, also for -0.
MLX_SAMPLE mlx_u64 mlx_sample_fixed(float x) {
  const mlx_u32 bits = mlx_float_bits(x) & 0x7fffffffu, shift = 127 - (bits >> 23);
  return (mlx_u64)((bits & 0x7fffffu) | 0x800000u) << 17 >> (shift < 63 ? shift : 63);
}

// The weight of a score that is |x| more than the best one, x <= 0: floor(exp(x) * 2^40), which is 0 from
// MLX_SAMPLE_LEAST on.
MLX_SAMPLE mlx_u64 mlx_sample_weight(float x) {
  const mlx_u32 bits = mlx_float_bits(x);  // as integers, negative numbers ascend with their magnitude
  return mlx_sample_fixed(
      mlx_exp32(mlx_bits_float(bits < MLX_SAMPLE_LEAST_BITS ? bits : MLX_SAMPLE_LEAST_BITS)));
}

// Natural logarithm of a normal positive number. Error below two units in the last place.
MLX_SAMPLE_CALL double mlx_log64(double x) {
  MLX_EXACT
  mlx_u64 bits = mlx_double_bits(x);
  int k = (int)(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | (mlx_u64)1023 << 52;
  double m = mlx_bits_double(bits);
  if (m > 1.41421356237309504880) {
    m = MLX_DMUL(m, 0.5);
    ++k;
  }
  const double s = MLX_DDIV(MLX_DSUB(m, 1.0), MLX_DADD(m, 1.0)), square = MLX_DMUL(s, s),
               twice = MLX_DADD(s, s);
  double sum = MLX_DMUL(1.0 / 23, square);
  sum = MLX_DMUL(MLX_DADD(sum, 1.0 / 21), square);
  sum = MLX_DMUL(MLX_DADD(sum, 1.0 / 19), square);
  sum = MLX_DMUL(MLX_DADD(sum, 1.0 / 17), square);
  sum = MLX_DMUL(MLX_DADD(sum, 1.0 / 15), square);
  sum = MLX_DMUL(MLX_DADD(sum, 1.0 / 13), square);
  sum = MLX_DMUL(MLX_DADD(sum, 1.0 / 11), square);
  sum = MLX_DMUL(MLX_DADD(sum, 1.0 / 9), square);
  sum = MLX_DMUL(MLX_DADD(sum, 1.0 / 7), square);
  sum = MLX_DMUL(MLX_DADD(sum, 1.0 / 5), square);
  sum = MLX_DMUL(MLX_DADD(sum, 1.0 / 3), square);
  const double low = MLX_DADD(MLX_DMUL(twice, sum), MLX_DMUL((double)k, 1.90821492927058770002e-10));
  return MLX_DADD(MLX_DMUL((double)k, 6.93147180369123816490e-01), MLX_DADD(twice, low));
}

// Log-probability of a logit. |total| is the sum of the weights of all logits, |largest| the largest logit.
// At least -FLT_MAX; -FLT_MAX if the logit is not finite.
MLX_SAMPLE float mlx_sample_logprob(float logit, float largest, mlx_u64 total) {
  MLX_EXACT
  if (!mlx_bits_are_finite(mlx_float_bits(logit)) || !total) return -3.40282347e38f;
  const double log_sum = mlx_log64(MLX_DMUL((double)total, 9.094947017729282379150390625e-13));  // 2^-40
  const double out = MLX_DSUB(MLX_DSUB((double)logit, (double)largest), log_sum);
  return out < -3.40282346e38 ? -3.40282347e38f : (float)out;
}

// ----------------------------------------------------------------------------------------------------------
// Scores

// The score of a token that occurs |count| times in the window of the penalties.
MLX_SAMPLE float mlx_sample_penalize(float score, mlx_i32 count, float repeat, float frequency,
                                     float presence) {
  MLX_EXACT
  const float scaled = score <= 0 ? MLX_FMUL(score, repeat) : MLX_FDIV(score, repeat);
  return MLX_FSUB(scaled, MLX_FADD(MLX_FMUL((float)count, frequency), presence));
}

// ----------------------------------------------------------------------------------------------------------
// Random numbers and limits

// The finalizer of splitmix64.
MLX_SAMPLE mlx_u64 mlx_sample_mix(mlx_u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// 64 random bits for the token at |position|. |nth|: 0 for the draw of the token, others for host-only steps.
// mlx_sample_stream is the part that all positions share.
#define MLX_SAMPLE_STEP 0x9e3779b97f4a7c15ull
MLX_SAMPLE mlx_u64 mlx_sample_stream(mlx_u64 seed, mlx_u64 nth) {
  return mlx_sample_mix(seed + (nth + 1) * MLX_SAMPLE_STEP);
}
MLX_SAMPLE mlx_u64 mlx_sample_random_at(mlx_u64 stream, mlx_u64 position) {
  return mlx_sample_mix(stream + (position + 1) * MLX_SAMPLE_STEP);
}
MLX_SAMPLE mlx_u64 mlx_sample_random(mlx_u64 seed, mlx_u64 position, mlx_u64 nth) {
  return mlx_sample_random_at(mlx_sample_stream(seed, nth), position);
}

// A number from 0 to total - 1: the token whose range of the summed weights contains it is drawn.
MLX_SAMPLE mlx_u64 mlx_sample_target(mlx_u64 random, mlx_u64 total) { return MLX_MULHI(random, total); }

// floor(p * total); p is from 0 to 1.
MLX_SAMPLE mlx_u64 mlx_sample_part(float p, mlx_u64 total) {
  MLX_EXACT
  return (mlx_u64)MLX_DMUL((double)p, (double)total);
}
// The least total weight that top-p keeps, and that typical sampling keeps.
MLX_SAMPLE mlx_u64 mlx_sample_top_p_need(float p, mlx_u64 total) {
  const mlx_u64 part = mlx_sample_part(p, total);
  return part ? part : 1;
}
MLX_SAMPLE mlx_u64 mlx_sample_typical_need(float p, mlx_u64 total) { return mlx_sample_part(p, total) + 1; }

// Min-p keeps scores of at least |best| + log(p).
MLX_SAMPLE float mlx_sample_log_min_p(float min_p) { return (float)mlx_log64((double)min_p); }
MLX_SAMPLE float mlx_sample_min_score(float best, float min_p) {
  MLX_EXACT
  return MLX_FADD(best, mlx_sample_log_min_p(min_p));
}

// Typical sampling. The surprise of a token is -x + log(sum), where x is its score less the best one; the
// entropy is the mean of the surprise. log(sum) cancels, so a token's distance is |-x - mean(-x)|.
// mlx_sample_surprise is the token's part of the sum of -x; mlx_sample_nearness is larger for nearer tokens.
MLX_SAMPLE mlx_u64 mlx_sample_surprise(float x) {
  MLX_EXACT
  if (x < MLX_SAMPLE_LEAST) return 0;
  return mlx_sample_fixed(MLX_FMUL(mlx_exp32(x), -x));  // at most 1/e
}
MLX_SAMPLE float mlx_sample_mean_surprise(mlx_u64 surprises, mlx_u64 total) {
  MLX_EXACT
  return total ? (float)MLX_DDIV((double)surprises, (double)total) : 0;
}
MLX_SAMPLE mlx_u64 mlx_sample_nearness(float x, float mean, mlx_i32 id) {
  MLX_EXACT
  const mlx_u32 distance = mlx_float_bits(MLX_FSUB(-x, mean)) & 0x7fffffffu;
  return (mlx_u64)(0x7fffffffu - distance) << 32 | (mlx_u32)~id;
}

// ----------------------------------------------------------------------------------------------------------
// Options of a wanted token

typedef struct mlx_sample_options {
  mlx_i32 flags, top_k, top_logprobs, target;
  float typical_p, top_p, min_p, temperature;
  mlx_u64 seed;
} mlx_sample_options_t;

// |sampling| is a record of step.h. Invalid values become valid ones.
MLX_SAMPLE mlx_sample_options_t mlx_sample_read(const mlx_i32 *sampling) {
  mlx_sample_options_t o;
  o.flags = sampling[MLX_SAMPLING_FLAGS];
  o.top_k = sampling[MLX_SAMPLING_TOP_K];
  o.top_logprobs = sampling[MLX_SAMPLING_TOP_LOGPROBS];
  o.target = sampling[MLX_SAMPLING_TARGET];
  o.typical_p = mlx_bits_float((mlx_u32)sampling[MLX_SAMPLING_TYPICAL_P]);
  o.top_p = mlx_bits_float((mlx_u32)sampling[MLX_SAMPLING_TOP_P]);
  o.min_p = mlx_bits_float((mlx_u32)sampling[MLX_SAMPLING_MIN_P]);
  o.temperature = mlx_bits_float((mlx_u32)sampling[MLX_SAMPLING_TEMPERATURE]);
  o.seed =
      (mlx_u64)(mlx_u32)sampling[MLX_SAMPLING_SEED_HIGH] << 32 | (mlx_u32)sampling[MLX_SAMPLING_SEED_LOW];
  if (o.top_k < 0) o.top_k = 0;
  if (!(o.typical_p >= 0 && o.typical_p < 1)) o.typical_p = 1;
  if (!(o.top_p >= 0 && o.top_p < 1)) o.top_p = 1;
  if (!(o.min_p >= 1.17549435e-38f)) o.min_p = 0;  // no denormals
  if (o.min_p > 1) o.min_p = 1;
  if (!(o.temperature >= 1.17549435e-38f)) o.temperature = 0;
  if (o.top_logprobs < 0) o.top_logprobs = 0;
  if (o.top_logprobs > MLX_TOP_LOGPROBS) o.top_logprobs = MLX_TOP_LOGPROBS;
  return o;
}

// At temperature 0 all filters but typical sampling keep the best candidate.
MLX_SAMPLE int mlx_sample_is_greedy(const mlx_sample_options_t *o) {
  return o->temperature == 0 && o->typical_p == 1;
}

// x of a candidate's draw weight: its distance from the best one at the temperature.
MLX_SAMPLE float mlx_sample_tempered(float score, float best, float temperature) {
  MLX_EXACT
  return MLX_FDIV(MLX_FSUB(score, best), temperature);
}

// ----------------------------------------------------------------------------------------------------------
// Filters of a whole row

// The candidates that the filters so far have kept.
typedef struct mlx_sample_filter {
  mlx_u64 least;       // least candidate
  mlx_u64 least_near;  // least nearness; 0: no typical sampling
  float best, mean;    // best score of all, mean surprise
} mlx_sample_filter_t;

// The candidate of |id|; 0 if it is filtered out.
MLX_SAMPLE mlx_u64 mlx_sample_passes(const mlx_sample_filter_t *filter, float score, mlx_i32 id) {
  MLX_EXACT
  const mlx_u64 candidate = mlx_sample_pack(score, id);
  if (!candidate || candidate < filter->least) return 0;
  if (!filter->least_near) return candidate;
  const mlx_u64 nearness =
      mlx_sample_nearness(MLX_FSUB(mlx_sample_score(candidate), filter->best), filter->mean, id);
  return nearness >= filter->least_near ? candidate : 0;
}

typedef enum mlx_sample_order { MLX_BY_COUNT, MLX_BY_WEIGHT, MLX_BY_NEARNESS } mlx_sample_order_t;

// A candidate's place in the order, and its weight there.
MLX_SAMPLE mlx_u64 mlx_sample_place(const mlx_sample_filter_t *filter, mlx_sample_order_t order,
                                    mlx_u64 candidate, mlx_u64 *out_weight) {
  MLX_EXACT
  const float x = MLX_FSUB(mlx_sample_score(candidate), filter->best);
  *out_weight = order == MLX_BY_COUNT ? 1 : mlx_sample_weight(x);
  return order == MLX_BY_NEARNESS ? mlx_sample_nearness(x, filter->mean, mlx_sample_id(candidate))
                                  : candidate;
}

// ----------------------------------------------------------------------------------------------------------
// Sampling from a short list

// A list of candidates in any order. In CUDA it is in shared memory, and all threads of a warp or of a block
// work on it.
typedef struct mlx_sample_list {
  mlx_u64 *candidates;      // [count]; changed: 0 replaces a removed one
  mlx_u64 *weights, *near;  // [count] scratch
  mlx_i32 count;
  mlx_i32 thread, threads;  // this thread and the number of them: 32 (a warp) or a block. C: 0 and 1
} mlx_sample_list_t;

MLX_SAMPLE void mlx_sample_wait(const mlx_sample_list_t *list) {
#ifdef __CUDACC__
  if (list->threads <= 32) {
    __syncwarp();
  } else {
    __syncthreads();
  }
#else
  (void)list;
#endif
}

MLX_SAMPLE mlx_u64 mlx_sample_best(const mlx_sample_list_t *list) {
  mlx_u64 best = 0;
  MLX_ROLLED
  for (int i = 0; i < list->count; ++i) best = list->candidates[i] > best ? list->candidates[i] : best;
  return best;
}

// The sum of the weights of the candidates whose entry of |order| is greater than |limit|.
MLX_SAMPLE mlx_u64 mlx_sample_above(const mlx_sample_list_t *list, const mlx_u64 *order, mlx_u64 limit) {
  mlx_u64 sum = 0;
  MLX_ROLLED
  for (int i = 0; i < list->count; ++i) sum += order[i] > limit ? list->weights[i] : 0;
  return sum;
}

MLX_SAMPLE mlx_u64 mlx_sample_total(const mlx_sample_list_t *list) {
  mlx_u64 sum = 0;
  MLX_ROLLED
  for (int i = 0; i < list->count; ++i) sum += list->weights[i];
  return sum;
}

// Removes the candidates that have |need| or more weight above them in |order|. Each thread decides from what
// all candidates were before, so it changes its own only after all threads have decided. |order| may be the
// candidates themselves. At most 32 candidates per thread in CUDA.
MLX_SAMPLE void mlx_sample_cut(const mlx_sample_list_t *list, const mlx_u64 *order, mlx_u64 need) {
#ifdef __CUDACC__
  mlx_u32 removed = 0;
  MLX_OWN
  for (int i = list->thread, nth = 0; i < list->count; i += list->threads, ++nth) {
    if (mlx_sample_above(list, order, order[i]) >= need) removed |= 1u << nth;
  }
  mlx_sample_wait(list);
  MLX_OWN
  for (int i = list->thread, nth = 0; i < list->count; i += list->threads, ++nth) {
    if (removed >> nth & 1) list->candidates[i] = list->weights[i] = 0;
  }
  mlx_sample_wait(list);
#else
  mlx_u64 least = ~(mlx_u64)0;  // the last that remains
  MLX_ROLLED
  for (int i = 0; i < list->count; ++i) {
    if (list->candidates[i] && order[i] < least && mlx_sample_above(list, order, order[i]) < need)
      least = order[i];
  }
  MLX_ROLLED
  for (int i = 0; i < list->count; ++i) {
    const int keeps = order[i] >= least;
    list->candidates[i] = keeps ? list->candidates[i] : 0;
    list->weights[i] = keeps ? list->weights[i] : 0;
  }
#endif
}

MLX_SAMPLE void mlx_sample_set_weights(const mlx_sample_list_t *list, float best) {
  MLX_EXACT
  MLX_OWN
  for (int i = list->thread; i < list->count; i += list->threads) {
    const mlx_u64 candidate = list->candidates[i];
    list->weights[i] = candidate ? mlx_sample_weight(MLX_FSUB(mlx_sample_score(candidate), best)) : 0;
  }
  mlx_sample_wait(list);
}

MLX_SAMPLE void mlx_sample_keep_top_k(const mlx_sample_list_t *list, mlx_i32 k) {
  MLX_OWN
  for (int i = list->thread; i < list->count; i += list->threads)
    list->weights[i] = list->candidates[i] ? 1 : 0;
  mlx_sample_wait(list);
  mlx_sample_cut(list, list->candidates, (mlx_u64)k);
}

MLX_SAMPLE void mlx_sample_keep_typical(const mlx_sample_list_t *list, float best, float p) {
  MLX_EXACT
  MLX_OWN
  for (int i = list->thread; i < list->count; i += list->threads) {
    const mlx_u64 candidate = list->candidates[i];
    list->near[i] = candidate ? mlx_sample_surprise(MLX_FSUB(mlx_sample_score(candidate), best)) : 0;
  }
  mlx_sample_wait(list);
  mlx_u64 surprises = 0;
  MLX_ROLLED
  for (int i = 0; i < list->count; ++i) surprises += list->near[i];
  const mlx_u64 total = mlx_sample_total(list);
  const float mean = mlx_sample_mean_surprise(surprises, total);
  mlx_sample_wait(list);
  MLX_OWN
  for (int i = list->thread; i < list->count; i += list->threads) {
    const mlx_u64 candidate = list->candidates[i];
    list->near[i] = candidate ? mlx_sample_nearness(MLX_FSUB(mlx_sample_score(candidate), best), mean,
                                                    mlx_sample_id(candidate))
                              : 0;
  }
  mlx_sample_wait(list);
  mlx_sample_cut(list, list->near, mlx_sample_typical_need(p, total));
}

MLX_SAMPLE void mlx_sample_keep_min_p(const mlx_sample_list_t *list, float min_p) {
  const float least = mlx_sample_min_score(mlx_sample_score(mlx_sample_best(list)), min_p);
  mlx_sample_wait(list);
  MLX_OWN
  for (int i = list->thread; i < list->count; i += list->threads) {
    if (list->candidates[i] && mlx_sample_score(list->candidates[i]) < least) list->candidates[i] = 0;
  }
  mlx_sample_wait(list);
}

// Draws one of the remaining candidates, in the order of their IDs. The result is the same in all threads.
MLX_SAMPLE mlx_u64 mlx_sample_draw(const mlx_sample_list_t *list, const mlx_sample_options_t *o,
                                   mlx_i32 position) {
  const mlx_u64 best = mlx_sample_best(list);
  if (o->temperature == 0 || !best) return best;
  MLX_OWN
  for (int i = list->thread; i < list->count; i += list->threads) {
    const mlx_u64 candidate = list->candidates[i];
    list->weights[i] = candidate ? mlx_sample_weight(mlx_sample_tempered(
                                       mlx_sample_score(candidate), mlx_sample_score(best), o->temperature))
                                 : 0;
    list->near[i] = (mlx_u32)candidate;  // ~ID: greater for lower IDs
  }
  mlx_sample_wait(list);
  const mlx_u64 random = mlx_sample_random(o->seed, (mlx_u64)(mlx_u32)position, 0),
                target = mlx_sample_target(random, mlx_sample_total(list));
  mlx_u64 drawn = 0;
  MLX_OWN
  for (int i = list->thread; i < list->count; i += list->threads) {
    const mlx_u64 before = mlx_sample_above(list, list->near, list->near[i]);
    if (list->weights[i] && before <= target && target - before < list->weights[i])
      drawn = list->candidates[i];
  }
  mlx_sample_wait(list);
  if (list->thread == 0) list->near[0] = 0;
  mlx_sample_wait(list);
  if (drawn) list->near[0] = drawn;  // in one thread
  mlx_sample_wait(list);
  return list->near[0];
}

// Samples a token from a list that has all candidates which top-k keeps (0 < top_k, or all candidates of the
// vocabulary). |total|: sum of the weights of the whole vocabulary, if there is no top-k and the list has
// only the best candidates, as many as top-p or min-p keep; 0: the list is complete. Returns the candidate; 0
// if the list has none. The list has at most 32 candidates per thread. In CUDA, all threads of the list call
// it and get the result; they must synchronize before and after it.
MLX_SAMPLE_CALL mlx_u64 mlx_sample_candidates(const mlx_sample_list_t *list, const mlx_sample_options_t *o,
                                              mlx_i32 position, mlx_u64 total) {
  const mlx_u64 best = mlx_sample_best(list);
  if (!best) return 0;
  mlx_sample_wait(list);  // before weights and candidates change
  if (o->top_k && o->top_k < list->count) mlx_sample_keep_top_k(list, o->top_k);
  if (o->typical_p < 1 || o->top_p < 1) mlx_sample_set_weights(list, mlx_sample_score(best));
  if (o->typical_p < 1) mlx_sample_keep_typical(list, mlx_sample_score(best), o->typical_p);
  if (o->top_p < 1) {
    const mlx_u64 all = total ? total : mlx_sample_total(list);
    mlx_sample_cut(list, list->candidates, mlx_sample_top_p_need(o->top_p, all));
  }
  if (o->min_p > 0) mlx_sample_keep_min_p(list, o->min_p);
  mlx_sample_wait(list);
  return mlx_sample_draw(list, o, position);
}

#endif  // MLXCEL_KERNELS_SAMPLE_H_
