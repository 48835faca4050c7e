// Tensors at the border between the operators and the kernels.
#pragma once

#include "common/check.h"
#include "cpu/rows.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace ck {

inline MatrixView view(const Tensor& z) {
  return {z.data_ptr(), z.size(0), z.size(1), z.stride(0), z.stride(1), z.scalar_type()};
}

template <typename T>
T* pointer(const Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

inline Tensor new_tensor(const Tensor& like, std::initializer_list<int64_t> shape,
                         ScalarType dtype) {
  return torch::stable::new_empty(like, {shape.begin(), static_cast<size_t>(shape.size())}, dtype);
}

inline Tensor new_vector(const Tensor& like, int64_t n, ScalarType dtype) {
  return new_tensor(like, {n}, dtype);
}

inline Tensor new_matrix(const Tensor& like, int64_t rows, int64_t columns, ScalarType dtype) {
  return new_tensor(like, {rows, columns}, dtype);
}

// The least and the greatest of contiguous integers; 0 and -1 where there are none.
struct Range {
  int64_t low = 0, high = -1;
  bool lies_in(int64_t from, int64_t to) const { return high < low || (low >= from && high < to); }
};

template <typename T>
Range range_of(const Tensor& x) {
  const T* p = pointer<T>(x);
  const int64_t count = x.numel();
  if (count == 0) return {};
  T low = p[0], high = p[0];
  for (int64_t i = 1; i < count; ++i) {
    low = std::min(low, p[i]);
    high = std::max(high, p[i]);
  }
  return {low, high};
}

// Labels as contiguous int64, each in [-1, clusters).
inline Tensor checked_labels(const Tensor& labels, int64_t n, int64_t clusters) {
  check_vector(labels, n, ScalarType::Long, "labels");
  Tensor y = torch::stable::contiguous(labels);
  const Range found = range_of<int64_t>(y);
  CK_CHECK(found.lies_in(-1, clusters), "labels must lie in [-1, ", clusters, "), got ", found.low,
           " to ", found.high);
  return y;
}

// Saved int32 indices, contiguous, each in [-1, clusters).
inline void check_indices(const Tensor& x, int64_t n, int64_t clusters, const char* name) {
  check_vector(x, n, ScalarType::Int, name);
  CK_CHECK(x.is_contiguous(), name, " must be contiguous");
  const Range found = range_of<int32_t>(x);
  CK_CHECK(found.lies_in(-1, clusters), name, " must lie in [-1, ", clusters, "), got ", found.low,
           " to ", found.high);
}

inline void set_element(const Tensor& x, int64_t i, double value) {
  if (x.scalar_type() == ScalarType::Double) {
    pointer<double>(x)[i] = value;
  } else {
    pointer<float>(x)[i] = static_cast<float>(value);
  }
}

inline double element(const Tensor& x, int64_t i) {
  return x.scalar_type() == ScalarType::Double ? pointer<double>(x)[i] : pointer<float>(x)[i];
}

// All elements of a contiguous tensor, and the reverse: for vectors of some length the type is asked for once.
inline std::vector<double> elements(const Tensor& x) {
  const int64_t count = x.numel();
  if (x.scalar_type() == ScalarType::Double) {
    return {pointer<double>(x), pointer<double>(x) + count};
  }
  return {pointer<float>(x), pointer<float>(x) + count};
}

inline void set_elements(const Tensor& x, const std::vector<double>& values) {
  if (x.scalar_type() == ScalarType::Double) {
    std::copy(values.begin(), values.end(), pointer<double>(x));
  } else {
    std::transform(values.begin(), values.end(), pointer<float>(x),
                   [](double value) { return static_cast<float>(value); });
  }
}

inline std::optional<Tensor> checked_weights(const std::optional<Tensor>& weights,
                                             const Tensor& z) {
  if (!weights) return std::nullopt;
  check_vector(*weights, z.size(0), compute_type(z), "weights");
  return torch::stable::contiguous(*weights);
}

// num_clusters, or where that is 0 the largest label + 1.
inline int64_t resolve_clusters(const Tensor& labels, int64_t num_clusters) {
  if (num_clusters > 0) return num_clusters;
  CK_CHECK(labels.dim() == 1, "labels must be of shape (n,)");
  const Tensor y = torch::stable::contiguous(labels);
  const Range found =
      y.scalar_type() == ScalarType::Long ? range_of<int64_t>(y) : range_of<int32_t>(y);
  return std::max<int64_t>(0, found.high) + 1;
}

}  // namespace ck
