// Integers and a choice of types.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A if CONDITION, else B.
template <bool CONDITION, typename A, typename B>
struct Select {
  using Type = A;
};
template <typename A, typename B>
struct Select<false, A, B> {
  using Type = B;
};
