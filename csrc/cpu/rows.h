// The rows of z as the compute type: in place where the dtype and strides allow it, otherwise converted into a small scratch.
#pragma once

#include "cpu/vec.h"

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cstring>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace ck {

// A strided matrix of any floating-point dtype.
struct MatrixView {
  const void* data;
  int64_t rows, columns;
  int64_t row_stride, column_stride;
  torch::headeronly::ScalarType dtype;
};

}  // namespace ck

namespace ck::CK_ISA {

using torch::headeronly::ScalarType;

CK_INLINE void convert(const torch::headeronly::Half* x, float* y, int64_t d) {
  int64_t k = 0;
#if defined(__F16C__)
  for (; k + 8 <= d; k += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + k));
    _mm256_storeu_ps(y + k, _mm256_cvtph_ps(half));
  }
#endif
  for (; k < d; ++k) y[k] = static_cast<float>(x[k]);
}

CK_INLINE void convert(const torch::headeronly::BFloat16* x, float* y, int64_t d) {
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(x);
  for (int64_t k = 0; k < d; ++k) {
    const uint32_t wide = static_cast<uint32_t>(bits[k]) << 16;
    std::memcpy(y + k, &wide, sizeof(float));
  }
}

CK_INLINE void convert(const float* x, torch::headeronly::Half* y, int64_t d) {
  int64_t k = 0;
#if defined(__F16C__)
  for (; k + 8 <= d; k += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + k), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + k), half);
  }
#endif
  for (; k < d; ++k) y[k] = torch::headeronly::Half(x[k]);
}

CK_INLINE void convert(const float* x, torch::headeronly::BFloat16* y, int64_t d) {
  for (int64_t k = 0; k < d; ++k) y[k] = torch::headeronly::BFloat16(x[k]);
}

template <typename C>
class Rows {
 public:
  explicit Rows(const MatrixView& view) : view_(view) {
    const ScalarType own = std::is_same_v<C, float> ? ScalarType::Float : ScalarType::Double;
    direct_ = view.dtype == own && (view.column_stride == 1 || view.columns == 1);
  }

  int64_t count() const { return view_.rows; }
  int64_t width() const { return view_.columns; }
  bool direct() const { return direct_; }

  // Row i; scratch holds `width` values and is used only where the row has to be converted.
  CK_INLINE const C* row(int64_t i, C* scratch) const {
    if (direct_) return static_cast<const C*>(view_.data) + i * view_.row_stride;
    fetch(i, scratch);
    return scratch;
  }

  CK_INLINE void prefetch(int64_t i) const {
    if (!direct_) return;
    const char* p =
        reinterpret_cast<const char*>(static_cast<const C*>(view_.data) + i * view_.row_stride);
    const int64_t bytes = std::min<int64_t>(view_.columns * sizeof(C), 1024);
    for (int64_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(p + offset);
  }

  // Rows [begin, begin + m) as a matrix with row stride *stride; scratch holds m * width values.
  const C* block(int64_t begin, int64_t m, C* scratch, int64_t* stride) const {
    if (direct_) {
      *stride = view_.row_stride;
      return static_cast<const C*>(view_.data) + begin * view_.row_stride;
    }
    *stride = view_.columns;
    for (int64_t i = 0; i < m; ++i) fetch(begin + i, scratch + i * view_.columns);
    return scratch;
  }

 private:
  template <typename S>
  void fetch_as(int64_t i, C* out) const {
    const S* p = static_cast<const S*>(view_.data) + i * view_.row_stride;
    if constexpr (!std::is_same_v<S, C>) {
      if (view_.column_stride == 1) return convert(p, out, view_.columns);
    }
    for (int64_t k = 0; k < view_.columns; ++k) {
      out[k] = static_cast<C>(p[k * view_.column_stride]);
    }
  }

  void fetch(int64_t i, C* out) const {
    if constexpr (std::is_same_v<C, double>) {
      fetch_as<double>(i, out);
    } else if (view_.dtype == ScalarType::Half) {
      fetch_as<torch::headeronly::Half>(i, out);
    } else if (view_.dtype == ScalarType::BFloat16) {
      fetch_as<torch::headeronly::BFloat16>(i, out);
    } else {
      fetch_as<float>(i, out);
    }
  }

  MatrixView view_;
  bool direct_;
};

// A contiguous gradient of the dtype of z, written row by row.
template <typename C>
class GradientRows {
 public:
  GradientRows(void* data, int64_t columns, ScalarType dtype)
      : data_(data), columns_(columns), dtype_(dtype) {
    direct_ = dtype == (std::is_same_v<C, float> ? ScalarType::Float : ScalarType::Double);
  }

  // Where row i is to be computed: its own place, or the scratch of `columns` values.
  CK_INLINE C* begin(int64_t i, C* scratch) const {
    return direct_ ? static_cast<C*>(data_) + i * columns_ : scratch;
  }

  CK_INLINE void end(int64_t i, const C* computed) const {
    if (direct_) return;
    if constexpr (std::is_same_v<C, float>) {
      if (dtype_ == ScalarType::Half) {
        convert(computed, static_cast<torch::headeronly::Half*>(data_) + i * columns_, columns_);
      } else {
        convert(computed, static_cast<torch::headeronly::BFloat16*>(data_) + i * columns_,
                columns_);
      }
    }
  }

  CK_INLINE void zero(int64_t i) const {
    const int64_t size = direct_ ? sizeof(C) : 2;
    std::memset(static_cast<char*>(data_) + i * columns_ * size, 0, columns_ * size);
  }

 private:
  void* data_;
  int64_t columns_;
  ScalarType dtype_;
  bool direct_;
};

}  // namespace ck::CK_ISA
