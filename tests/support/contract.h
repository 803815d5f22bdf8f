// The contract version of this tree as text, for the messages and manifests that tests compare.
#ifndef MLXCEL_TESTS_CONTRACT_H_
#define MLXCEL_TESTS_CONTRACT_H_

#include "kernels/step.h"

#define CONTRACT_TEXT_OF(number) #number
#define CONTRACT_TEXT(number) CONTRACT_TEXT_OF(number)
#define CONTRACT CONTRACT_TEXT(MLX_CONTRACT_VERSION)  // "4"

#endif  // MLXCEL_TESTS_CONTRACT_H_
