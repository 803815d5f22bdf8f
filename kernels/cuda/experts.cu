// Mixture of experts: choosing the experts of each token, and grouping tokens by expert. The products with
// the matrices of experts are in packed.cu (EXPERTS); without quantized weights or 16-bit ones they have no
// kernel. A token and one of its experts are a pair: pair token * USED + i is the token's expert with the
// i-th largest score.
//
// Four kernels, one per NVRTC compilation. Macros: NAME (symbol), the kernel (ROUTE, ...), and 0 or 1 for
// parameters that it may have. experts_config.cuh has the other constants, here in capital letters. The
// number of tokens is the last parameter, so that one image serves every step size.
//
// ROUTE     (scores[tokens, EXPERTS] f32, [batch,] [correction[EXPERTS] f32,] [factors[EXPERTS] f32,]
//           [results,] routing;
//           [width, at,] tokens)
//   With BATCH, tokens of the batch (kernels/step.h) that are padding get no experts, and the experts of the
//   others are reported in |results| if the batch asks for them: see experts_choose.cuh. With CORRECTION,
//   FACTORS, and for other weights than those below, see experts_weigh.cuh.
//   routing: i32 [tokens * USED] expert of each pair, -1: none; then f32 [tokens * USED] weight of each pair:
//   the softmax of the scores over all experts or, with SUM_TO_ONE, divided by its sum over the used ones.
//   Of equal scores the lowest expert comes first.
//   Launch: grid (ceil(tokens/4), 1, 1), block (128, 1, 1)
//
// GROUP     (routing, groups; tokens)
//   Sorts the pairs by expert, then by token. Each expert starts at a
//   row that is a multiple of 8. With P pairs there are at most T = P / TILE + min(EXPERTS, P) tiles and
//   R = 8 * ceil((P + 7 * min(EXPERTS, P)) / 8) rows.
//   groups: i32 {number of tiles, 0, 0, 0}; [T][4] expert, first row, end of the rows, 0;
//   [R] pair of each row, -1: none; [P] row of each pair
//   Launch: grid (1, 1, 1), block (512, 1, 1)
//
// COMBINE   (x[R, N] f32, routing, groups, [residual[tokens, N] f32,] y[tokens, N] f32; tokens)
//   y = the sum of x * weight over the pairs of a token, the largest weight first; with RESIDUAL plus the
//   residual. N % 4 == 0
//   Launch: grid (ceil(N/1024), tokens, 1), block (256, 1, 1)
//
// SCORES    (x[tokens, HEADS, X_DIM] f32, of each head K numbers from X_START on, w[HEADS, N, K],
//           y[tokens, HEADS, N] f32; tokens)
//   y = x.w^T in f32, of each head: routers, other matrices that no product kernel takes, and products of
//   heads. K, X_DIM and X_START are multiples of 4
//   Launch: with SCORES_VECTOR instead, a warp for each row of w: grid (ceil(N/4), tokens, HEADS), block
//           (128, 1, 1); else tiles of 16 tokens x 32 rows: grid (ceil(tokens/16), ceil(N/32) * HEADS, 1),
//           block (256, 1, 1)

#if defined(ROUTE) || defined(GROUP) || defined(COMBINE)
#include "experts_route.cuh"
#else
#include "experts_scores.cuh"
#endif
