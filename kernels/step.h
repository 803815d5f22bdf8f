// Contract 5 between compiler and runtime: the functions of a module, and the memory layout of their
// arguments. Plain C for compiler/, runtime/, kernels/cpu and kernels/cuda.
//
//   step_N   one forward pass over a batch of up to N tokens of any sequences
//   burst    up to MLX_BURST_TOKENS tokens of one sequence, one after the other, in one call. It stops after
//   an
//            end-of-text token
//
// Both take the same arguments, and update all but |batch| in place:
//
//   batch    i32 [?]              what to do: a header, then the arrays below
//   history  i32 [?]              [slots][history width]: token at each position of each sequence
//   kv       [?, row]             KV pool: window pages, if the module has them, then pages, then states
//   logits   f32 [?, vocab]       row i: logits of wanted token i; at least W rows
//   hidden   f32 [?, hidden size] row i: input of the output head for wanted token i; at least W rows
//   results  i32 [?, 48]          row i: the token sampled for wanted token i, or the i-th token of a burst
//
// A sequence has a slot: a row of the page table and of |history|. A token whose ID is MLX_TOKEN_SAMPLED is
// read from |history|, where an earlier step stored what it sampled. So the host can queue a step before it
// knows the tokens of the last one.
//
// A page holds the keys and values of 16 positions in all layers. A module may have "window pages"
// (manifest): then a window page holds the layers with a sliding window and a page the other ones, both in
// the order of the layers. The two kinds have their own numbers and page tables. An entry of the page table
// for positions that no token of the step sees in any layer of the pages may be 0: page 0 has numbers that
// are finite. |kv| has all window pages first.
//
// A module with recurrent layers has "states" (manifest): f32 numbers of one sequence after some number of
// its tokens, of all these layers. They have numbers of their own and follow the pages in |kv|. A segment
// reads one state and writes another, which may be the same; state 0 belongs to no sequence. A segment that
// starts at position 0 reads none: its state is zero. Padding changes no state but state 0.
//
// A module with "routes" (manifest) can report the experts that each token was routed to. Where
// MLX_STEP_AT_ROUTES is not 0, step_N stores them in |results|, behind its rows. Entries of layers without
// experts, and of padding, stay as they are. step_1 and burst store none.
//
// The module of a rank (docs/internals/tensor-parallel.md) exchanges parts of sums with those of the other
// ranks, which run at the same time. Where MLX_STEP_AT_EXCHANGE is not 0, it is the offset in |results| of
// memory that all ranks see (mlx_exchange_words in kernels/cpu/layout.h).
//
// A module that is not "ragged" (manifest) computes one segment per step.
//
// "?" is any size, unless the module has "fixed rows" (manifest). Such a function declares the smallest
// sizes: MLX_STEP_PAGES_AT(N, W) words of batch, 1 of history, 1 row of kv, and W rows of logits, hidden and
// results; burst has N = W = 1. The runtime passes views of that shape over its larger buffers, and the
// kernels access all of them. Fixed shapes let IREE record the dispatches of a function once instead of in
// every call.
#ifndef MLXCEL_KERNELS_STEP_H_
#define MLXCEL_KERNELS_STEP_H_

#define MLX_CONTRACT_VERSION 5
#define MLX_KV_PAGE 16        // positions in a page
#define MLX_STEP_TOKENS 512   // most tokens of a step
#define MLX_BURST_TOKENS 128  // most tokens of a burst
// Window pages that a sequence holds at most: those that a step of |n| tokens sees and writes, and one more.
#define MLX_WINDOW_PAGES_HELD(window, n) (((window) + (n) + MLX_KV_PAGE - 1) / MLX_KV_PAGE + 2)
// The runtime takes so many times the window pages that its sequences hold, so that prefixes stay cached.
#define MLX_WINDOW_POOL_FACTOR 2
#define MLX_BURST_TOP_K 64  // a burst samples from at most this many tokens, or greedily
#define MLX_TOKEN_SAMPLED (-1)
#define MLX_STEP_MAX_EOS 16
#define MLX_TOP_LOGPROBS 20  // most alternatives that a result reports

// The header: 32-bit words at the start of |batch|. AT_X is the word offset of array X in |batch|.
enum {
  MLX_STEP_TOKEN_COUNT,    // n: tokens of this step; at most N
  MLX_STEP_SEGMENT_COUNT,  // runs of tokens of one sequence at consecutive positions; at most W
  MLX_STEP_WANTED_COUNT,   // w: tokens whose logits are wanted; at most W
  MLX_STEP_POOL_PAGES,     // pages of |kv|, without window pages; page 0 belongs to no sequence
  MLX_STEP_SLOT_COUNT,     // rows of the page table and of |history|
  MLX_STEP_SLOT_PAGES,     // entries of a row of the page table
  MLX_STEP_HISTORY_WIDTH,  // entries of a row of |history|
  MLX_STEP_BURST_COUNT,    // burst: tokens to decode, 1 to MLX_BURST_TOKENS. step_N: 0
  MLX_STEP_AT_TOKENS,      // [N] token ID, or MLX_TOKEN_SAMPLED
  MLX_STEP_AT_SLOTS,       // [N] slot of the sequence
  MLX_STEP_AT_POSITIONS,   // [N] position in the sequence; -1: padding
  MLX_STEP_AT_SEGMENTS,    // [N][4] slot, index of the first token, tokens, position of the first token
  MLX_STEP_AT_WANTED,      // [W] index of the token, ascending; padding: 0
  MLX_STEP_AT_SAMPLING,    // [W][MLX_SAMPLING_WORDS]
  MLX_STEP_AT_PAGES,       // [slots][slot pages] page of positions 16 i to 16 i + 15; 0: none
  MLX_STEP_EOS_COUNT,      // burst: number of end-of-text tokens; 0: none stops it
  MLX_STEP_EOS,            // [MLX_STEP_MAX_EOS]
  MLX_STEP_WINDOW_POOL_PAGES = MLX_STEP_EOS + MLX_STEP_MAX_EOS,  // window pages of |kv|; 0: there are none
  MLX_STEP_AT_WINDOW_PAGES,  // [slots][slot pages] like the page table, of window pages
  MLX_STEP_STATES,           // states of |kv|; 0: there are none
  MLX_STEP_AT_STATES,  // [slots][2] the state that a segment of the slot reads, and the one that it writes
  // Word offset in |results| of [N][layers][used] experts of each token, the one with the largest weight
  // first; 0: they are not wanted.
  MLX_STEP_AT_ROUTES,
  MLX_STEP_AT_EXCHANGE,  // word offset in |results| of the exchange of ranks, behind its rows; 0: there is none
  MLX_STEP_HEADER_WORDS = 64
};

// How a wanted token is sampled. f32 numbers are stored as their bits. The steps are applied in this order;
// docs/sampling.md defines them.
enum {
  MLX_SAMPLING_FLAGS,         // MLX_SAMPLE_*
  MLX_SAMPLING_MASK_AT,       // word offset in |batch| of one bit per token: 1: allowed; 0: no mask
  MLX_SAMPLING_BIAS_AT,       // word offset in |batch| of [count][2]: token ID, f32 bias; distinct IDs
  MLX_SAMPLING_BIAS_COUNT,    //
  MLX_SAMPLING_WINDOW,        // tokens that the penalties look back on; 0: no penalties
  MLX_SAMPLING_REPEAT,        // f32 repetition penalty; 1: none
  MLX_SAMPLING_FREQUENCY,     // f32 frequency penalty
  MLX_SAMPLING_PRESENCE,      // f32 presence penalty
  MLX_SAMPLING_TOP_K,         // 0: all
  MLX_SAMPLING_TYPICAL_P,     // f32; 1: off
  MLX_SAMPLING_TOP_P,         // f32; 1: off
  MLX_SAMPLING_MIN_P,         // f32; 0: off
  MLX_SAMPLING_TEMPERATURE,   // f32; 0: the largest of the remaining scores
  MLX_SAMPLING_SEED_LOW,      // 64-bit seed
  MLX_SAMPLING_SEED_HIGH,     //
  MLX_SAMPLING_TARGET,        // with MLX_SAMPLE_SCORE: the token whose log-probability is wanted
  MLX_SAMPLING_TOP_LOGPROBS,  // 0 to MLX_TOP_LOGPROBS: most likely tokens to report
  MLX_SAMPLING_WORDS = 24
};
enum {
  MLX_SAMPLE_TOKEN = 1,    // sample a token and store it in |history|
  MLX_SAMPLE_LOGPROB = 2,  // report log-probabilities: of the token, and of the most likely ones
  MLX_SAMPLE_SCORE = 4,    // report the log-probability of the target; no token is sampled
};

// A row of |results|. Log-probabilities are f32 bits: log-softmax of the model's own logits.
enum {
  MLX_RESULT_TOKEN,    // sampled token; -1: none (all tokens excluded, or not requested)
  MLX_RESULT_FLAGS,    // 1: a logit is not finite
  MLX_RESULT_LOGPROB,  // of the token or the target
  MLX_RESULT_TOP_IDS,  // [MLX_TOP_LOGPROBS], most likely first
  MLX_RESULT_TOP_LOGPROBS = MLX_RESULT_TOP_IDS + MLX_TOP_LOGPROBS,
  MLX_RESULT_WORDS = 48
};

// Word offsets for a function with N = n and W = w. The page table starts where the static arrays end; the
// tables of window pages and states, masks and biases follow it.
#define MLX_STEP_TOKENS_AT MLX_STEP_HEADER_WORDS
#define MLX_STEP_SLOTS_AT(n) (MLX_STEP_HEADER_WORDS + (n))
#define MLX_STEP_POSITIONS_AT(n) (MLX_STEP_HEADER_WORDS + 2 * (n))
#define MLX_STEP_SEGMENTS_AT(n) (MLX_STEP_HEADER_WORDS + 3 * (n))
#define MLX_STEP_WANTED_AT(n) (MLX_STEP_HEADER_WORDS + 7 * (n))
#define MLX_STEP_SAMPLING_AT(n, w) (MLX_STEP_WANTED_AT(n) + (w))
#define MLX_STEP_PAGES_AT(n, w) (MLX_STEP_SAMPLING_AT(n, w) + MLX_SAMPLING_WORDS * (w))

#endif  // MLXCEL_KERNELS_STEP_H_
