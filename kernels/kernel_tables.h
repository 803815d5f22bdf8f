// Tables that the compiler and the CUDA kernels share: one row per fact. Plain preprocessor, for C and NVRTC.
// activations.h has the activations, decode_tables.h the tables of the decode kernels.
#ifndef MLXCEL_KERNELS_KERNEL_TABLES_H_
#define MLXCEL_KERNELS_KERNEL_TABLES_H_

// What a product does with its result: the macro EPILOGUE of linear.cu and packed.cu. Numbers, because #if
// compares them.
#define MLX_EPILOGUE_NONE 0
#define MLX_EPILOGUE_ADD 1      // adds a tensor
#define MLX_EPILOGUE_GATED 2    // multiplies by two weights and combines both products
#define MLX_EPILOGUE_GROUP 3    // multiplies by several weights and stores all products
#define MLX_EPILOGUE_PARTIAL 4  // stores partial sums of a product and an addend, which the next norm adds

// How scales and offsets of quantized tiles are stored: X(enumerator, words for users). Numbers of 16 bits or
// more come first, then those of a byte, then the ones from K6 on, which multiply an f16 number of the tile.
#define MLX_TILE_NUMBERS_TABLE(X)       \
  X(F16, "in f16")                      \
  X(F32, "in f32")                      \
  X(BF16, "in bf16")                    \
  X(E8M0, "that is a power of two")     \
  X(K6, "of 6 bits times f16")          \
  X(K4, "of 4 bits times f16")          \
  X(K8, "of 8 bits times f16")
// E8M0: the byte is the exponent plus 127; no offset. K6: scale and offset of 32 columns (Q4_K, Q5_K). K4: of
// 16 columns (Q2_K). K8: a byte minus 128; no offset (Q6_K, Q3_K, IQ4_XS).

// Values of the number to subtract from a code, for codes that are indices of a table.
#define MLX_TILE_E2M1 -1  // floats of 4 bits: sign, two bits of exponent, one of mantissa (MXFP4)
#define MLX_TILE_IQ4 -2   // the 16 values of IQ4_NL and IQ4_XS

// Functions of one number that ELEMENTS of rows.cu computes: X(enumerator). The activations come before them.
// Number 0 is the cap of SOFTCAP, the limit of CLIP, the factor of SCALE.
#define MLX_ELEMENTS_FUNCTION_TABLE(X) \
  X(SIGMOID)                           \
  X(SOFTCAP)                           \
  X(CLIP)                              \
  X(SCALE)                             \
  X(COPY)

// How ELEMENTS combines the result with the other operand: X(enumerator). MULTIPLY_ROWS: each row by a
// number, the other operand is [M, 1]; MULTIPLY_SIGMOIDS: by the sigmoid of it.
#define MLX_ELEMENTS_COMBINATION_TABLE(X) \
  X(ALONE)                                \
  X(ADD)                                  \
  X(MULTIPLY)                             \
  X(MULTIPLY_ROWS)                        \
  X(MULTIPLY_SIGMOIDS)

// The parameter HOW of ELEMENTS: function, combination, and whether the operands have biases.
#define MLX_ELEMENTS_HOW(function, combination) ((function) | (combination) << 8)
#define MLX_ELEMENTS_FUNCTION(how) ((how)&255)
#define MLX_ELEMENTS_COMBINATION(how) ((how) >> 8 & 255)
#define MLX_ELEMENTS_BIAS (1 << 16)
#define MLX_ELEMENTS_OTHER_BIAS (1 << 17)

// Bits of weights that a kernel may lack: the parameter HAS of layer norms, and |biased| of append.
#define MLX_HAS_GAIN 1
#define MLX_HAS_BIAS 2
#define MLX_HAS(gain, bias) (((gain) ? MLX_HAS_GAIN : 0) | ((bias) ? MLX_HAS_BIAS : 0))
#define MLX_HAS_Q_BIAS 1
#define MLX_HAS_K_BIAS 2
#define MLX_HAS_V_BIAS 4

// |placed|, the result of place.cu: words of a tile of attention, and where the first one is.
#define MLX_TILE_WORDS 8
#define MLX_PLACED_TILES_AT 4

// Limits of the kernels.
#define MLX_MAX_SAMPLED_VOCAB 393216  // sample.cu
#define MLX_EXPERTS_MOST 1024         // experts.cu: of a layer
#define MLX_EXPERTS_MOST_USED 32      // experts.cu: of a token
#define MLX_EXPERTS_MOST_GROUPS 32    // experts.cu: of a router
#define MLX_CUDA_MAX_TAPS 16          // recurrent.cu: of a convolution
#define MLX_CUDA_MAX_KEY_DIM 256      // recurrent.cu: of keys, also of the states of a scan

#endif  // MLXCEL_KERNELS_KERNEL_TABLES_H_
