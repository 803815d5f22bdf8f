// Distance between two vectors of logits.
#ifndef MLXCEL_TESTS_DISTANCE_H_
#define MLXCEL_TESTS_DISTANCE_H_

#include <math.h>
#include <stddef.h>

// Relative L2 distance: ||a - b|| / ||b||
static inline double distance(const float *a, const float *b, size_t count) {
  double difference = 0, length = 0;
  for (size_t i = 0; i < count; ++i) {
    difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    length += (double)b[i] * b[i];
  }
  return sqrt(difference / length);
}

#endif  // MLXCEL_TESTS_DISTANCE_H_
