// Vector operations that the compiler's vector extension does not spell.
#pragma once

#include "cpu/vec.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace ck::CK_ISA {

CK_INLINE Vec<float> square_root(Vec<float> x) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
  return (Vec<float>)_mm_sqrt_ps((__m128)x);
#else
  for (int i = 0; i < kLanes<float>; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

CK_INLINE Vec<double> square_root(Vec<double> x) {
#if defined(__AVX512F__)
  return (Vec<double>)_mm512_maskz_sqrt_pd(0xff, (__m512d)x);
#elif defined(__AVX2__)
  return (Vec<double>)_mm256_sqrt_pd((__m256d)x);
#elif defined(__SSE2__)
  return (Vec<double>)_mm_sqrt_pd((__m128d)x);
#else
  for (int i = 0; i < kLanes<double>; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

// Whether any lane of a comparison is true.
template <typename Mask>
CK_INLINE bool any(Mask mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)mask) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_epi8((__m128i)mask) != 0;
#else
  bool found = false;
  for (size_t i = 0; i < sizeof(Mask) / sizeof(mask[0]); ++i) found |= mask[i] != 0;
  return found;
#endif
}

}  // namespace ck::CK_ISA
