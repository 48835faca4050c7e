// Tensors at the border between the operators and the kernels.
#pragma once

#include "common/check.h"
#include "cpu/rows.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string>
#include <tuple>

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

}  // namespace ck
