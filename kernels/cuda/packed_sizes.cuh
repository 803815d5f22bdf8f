// Linear layers (packed.cu): with SIZES, the sizes of a product are parameters of the kernel, after all
// others, so that one image serves all steps and all matrices of a format. M, N and K then read them.
// Functions outside the kernel cannot name its parameters, but all of them are inlined, and in PTX a
// parameter is KERNEL_param_INDEX. A parameter is an operand in constant memory, so reading one costs
// nothing.

#ifdef SIZES
#define SIZE_TEXT_OF(name) #name
#define SIZE_TEXT(name) SIZE_TEXT_OF(name)
#define DEFINE_SIZE(size, index)                                                             \
  __device__ __forceinline__ int size() {                                                    \
    int value;                                                                               \
    asm("ld.param.u32 %0, [" SIZE_TEXT(NAME) "_param_" SIZE_TEXT(index) "];" : "=r"(value)); \
    return value;                                                                            \
  }

#ifdef EMBED
#define SIZE_PARAMETERS , int, int, int, int
DEFINE_SIZE(size_m, 3)
DEFINE_SIZE(size_n, 4)
DEFINE_SIZE(size_k, 5)
DEFINE_SIZE(size_factor, 6)
#define N size_n()
#define FACTOR __int_as_float(size_factor())
#elif defined(EXPERTS) && defined(CUT)
#define SIZE_PARAMETERS , int, int, int, int, int
DEFINE_SIZE(size_m, 3)
DEFINE_SIZE(size_k, 4)
DEFINE_SIZE(size_rows, 5)
DEFINE_SIZE(size_list_at, 6)
DEFINE_SIZE(size_used, 7)
#define ROWS size_rows()
#define LIST_AT size_list_at()
#define USED size_used()
#elif defined(EXPERTS)
#define SIZE_PARAMETERS , int, int, int
#if EPILOGUE == 2 && BIAS
DEFINE_SIZE(size_m, 7)
DEFINE_SIZE(size_n, 8)
DEFINE_SIZE(size_k, 9)
#elif EPILOGUE == 2 || BIAS
DEFINE_SIZE(size_m, 5)
DEFINE_SIZE(size_n, 6)
DEFINE_SIZE(size_k, 7)
#else
DEFINE_SIZE(size_m, 4)
DEFINE_SIZE(size_n, 5)
DEFINE_SIZE(size_k, 6)
#endif
#define N size_n()
#elif defined(CUT) && defined(PARTIALS)
#undef PARTIALS
#define SIZE_PARAMETERS , int, int, int
DEFINE_SIZE(size_m, 4)
DEFINE_SIZE(size_k, 5)
DEFINE_SIZE(size_partials, 6)
#define PARTIALS size_partials()
#elif defined(CUT) && defined(LAYERNORM)
#define SIZE_PARAMETERS , int, int, int
DEFINE_SIZE(size_m, 4)
DEFINE_SIZE(size_k, 5)
DEFINE_SIZE(size_has, 6)
#define HAS size_has()
#elif defined(CUT)
#define SIZE_PARAMETERS , int, int
#ifdef NORM_EPS
DEFINE_SIZE(size_m, 3)
DEFINE_SIZE(size_k, 4)
#else
DEFINE_SIZE(size_m, 2)
DEFINE_SIZE(size_k, 3)
#endif
#elif EPILOGUE == 4
#define SIZE_PARAMETERS , int, int, int
DEFINE_SIZE(size_m, 3)
DEFINE_SIZE(size_n, 4)
DEFINE_SIZE(size_k, 5)
#define N size_n()
#elif EPILOGUE == 0
#define SIZE_PARAMETERS , int, int, int, int
DEFINE_SIZE(size_m, 4)
DEFINE_SIZE(size_n, 5)
DEFINE_SIZE(size_k, 6)
DEFINE_SIZE(size_count_at, 7)
#define N size_n()
#define COUNT_AT size_count_at()
#elif EPILOGUE == 3
#define SIZE_PARAMETERS , int, int, int, int, int
#if MATRICES == 3
DEFINE_SIZE(size_m, 7)
DEFINE_SIZE(size_n, 8)
DEFINE_SIZE(size_k, 9)
DEFINE_SIZE(size_n2, 10)
DEFINE_SIZE(size_n3, 11)
#else
DEFINE_SIZE(size_m, 5)
DEFINE_SIZE(size_n, 6)
DEFINE_SIZE(size_k, 7)
DEFINE_SIZE(size_n2, 8)
DEFINE_SIZE(size_n3, 9)
#endif
#define N size_n()
#define N2 size_n2()
#define N3 size_n3()
#elif defined(FEW) && defined(NORM_EPS)
#define SIZE_PARAMETERS , int, int, int, int
DEFINE_SIZE(size_m, 5)
DEFINE_SIZE(size_n, 6)
DEFINE_SIZE(size_k, 7)
DEFINE_SIZE(size_adds, 8)
#define N size_n()
#define ADDS size_adds()
#else
#define SIZE_PARAMETERS , int, int, int, int
DEFINE_SIZE(size_m, 4)
DEFINE_SIZE(size_n, 5)
DEFINE_SIZE(size_k, 6)
DEFINE_SIZE(size_adds, 7)
#define N size_n()
#define ADDS size_adds()
#endif
#define M size_m()
#define K size_k()
#else
#define SIZE_PARAMETERS
#define ADDS 1
#define WHOLE_RUNS (K % 128 == 0)
#if N3
#define MATRICES 3
#endif
#endif
