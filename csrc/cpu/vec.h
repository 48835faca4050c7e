// Vectors of the instruction set that this file is compiled for, and the loops over d that every kernel shares.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#ifndef CK_ISA
#define CK_ISA generic
#endif

#define CK_INLINE inline __attribute__((always_inline))

namespace ck::CK_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <typename T>
struct VecTraits {
  typedef T type __attribute__((vector_size(kVectorBytes)));
  typedef T unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
};

template <typename T>
using Vec = typename VecTraits<T>::type;

// The integer as wide as T: lanes of an index vector line up with lanes of a value vector.
template <typename T>
using Index = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

template <typename T>
constexpr int kLanes = kVectorBytes / sizeof(T);

template <typename T>
CK_INLINE Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename VecTraits<T>::unaligned*>(p);
}

template <typename T>
CK_INLINE void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename VecTraits<T>::unaligned*>(p) = v;
}

template <typename T>
CK_INLINE Vec<T> broadcast(T x) {
  // x - 0 is x for every x, so that the compiler drops the subtraction (0 + x would turn -0 into 0)
  return x - Vec<T>{};
}

template <typename T>
CK_INLINE Vec<Index<T>> lane_numbers() {
  Vec<Index<T>> v{};
  for (int i = 0; i < kLanes<T>; ++i) v[i] = i;
  return v;
}

// Lanes added in a fixed tree order.
template <typename T>
CK_INLINE T horizontal_sum(Vec<T> v) {
  T lane[kLanes<T>];
  store(lane, v);
  for (int width = kLanes<T> / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

// sum_k (x_k - y_k)^2
template <typename T>
CK_INLINE T squared_distance(const T* x, const T* y, int64_t d) {
  constexpr int L = kLanes<T>;
  Vec<T> s0{}, s1{};
  int64_t k = 0;
  for (; k + 2 * L <= d; k += 2 * L) {
    const Vec<T> a = load(x + k) - load(y + k);
    const Vec<T> b = load(x + k + L) - load(y + k + L);
    s0 += a * a;
    s1 += b * b;
  }
  T rest = 0;
  for (; k < d; ++k) {
    const T difference = x[k] - y[k];
    rest += difference * difference;
  }
  return horizontal_sum<T>(s0 + s1) + rest;
}

// sum_k (x_k - y_k)^2 and sum_k (x_k - w_k)^2 in one pass over x
template <typename T>
CK_INLINE void two_squared_distances(const T* x, const T* y, const T* w, int64_t d, T* to_y,
                                     T* to_w) {
  constexpr int L = kLanes<T>;
  Vec<T> y0{}, y1{}, w0{}, w1{};
  int64_t k = 0;
  for (; k + 2 * L <= d; k += 2 * L) {
    const Vec<T> x0 = load(x + k), x1 = load(x + k + L);
    const Vec<T> a0 = x0 - load(y + k), a1 = x1 - load(y + k + L);
    const Vec<T> b0 = x0 - load(w + k), b1 = x1 - load(w + k + L);
    y0 += a0 * a0;
    y1 += a1 * a1;
    w0 += b0 * b0;
    w1 += b1 * b1;
  }
  T rest_y = 0, rest_w = 0;
  for (; k < d; ++k) {
    const T a = x[k] - y[k], b = x[k] - w[k];
    rest_y += a * a;
    rest_w += b * b;
  }
  *to_y = horizontal_sum<T>(y0 + y1) + rest_y;
  *to_w = horizontal_sum<T>(w0 + w1) + rest_w;
}

template <typename T>
CK_INLINE T dot(const T* x, const T* y, int64_t d) {
  constexpr int L = kLanes<T>;
  Vec<T> s0{}, s1{};
  int64_t k = 0;
  for (; k + 2 * L <= d; k += 2 * L) {
    s0 += load(x + k) * load(y + k);
    s1 += load(x + k + L) * load(y + k + L);
  }
  T rest = 0;
  for (; k < d; ++k) rest += x[k] * y[k];
  return horizontal_sum<T>(s0 + s1) + rest;
}

}  // namespace ck::CK_ISA
