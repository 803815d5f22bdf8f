// Random numbers for tests: splitmix64. The state is one integer, which the seed initializes.
#ifndef MLXCEL_TESTS_RANDOM_NUMBERS_H_
#define MLXCEL_TESTS_RANDOM_NUMBERS_H_

#include <stdint.h>

static inline uint64_t random_next(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static inline double random_unit(uint64_t *state) {  // uniform in [0, 1)
  return (double)(random_next(state) >> 11) * 0x1p-53;
}

#endif  // MLXCEL_TESTS_RANDOM_NUMBERS_H_
