// Argument checks of the operators. Python has checked already and raised ValueError with more words; these keep a direct call of
// torch.ops.carlg_kernels from crashing the interpreter.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#define CK_CHECK(condition, ...) STD_TORCH_CHECK(condition, __VA_ARGS__)

namespace ck {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline void check_points(const Tensor& z, const char* name = "z") {
  CK_CHECK(z.dim() == 2, name, " must be of shape (n, d)");
  const ScalarType t = z.scalar_type();
  CK_CHECK(t == ScalarType::Float || t == ScalarType::Double || t == ScalarType::Half ||
               t == ScalarType::BFloat16,
           name, " must be float16, bfloat16, float32 or float64");
}

inline void check_vector(const Tensor& x, int64_t n, ScalarType dtype, const char* name) {
  CK_CHECK(x.dim() == 1 && x.size(0) == n, name, " must be of shape (", n, ",)");
  CK_CHECK(x.scalar_type() == dtype, name, " has the wrong dtype");
}

inline void check_matrix(const Tensor& x, int64_t rows, int64_t columns, ScalarType dtype,
                         const char* name) {
  CK_CHECK(x.dim() == 2 && x.size(0) == rows && x.size(1) == columns, name, " must be of shape (",
           rows, ", ", columns, ")");
  CK_CHECK(x.scalar_type() == dtype, name, " has the wrong dtype");
}

inline ScalarType compute_type(const Tensor& z) {
  return z.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

}  // namespace ck
