// Tensors at the border between the operators and the CUDA kernels.
#pragma once

#include "common/check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <initializer_list>

namespace ck::cuda {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename T>
T* pointer(const Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

inline Tensor new_tensor(const Tensor& like, std::initializer_list<int64_t> shape,
                         ScalarType dtype) {
  return torch::stable::new_empty(like, {shape.begin(), static_cast<size_t>(shape.size())}, dtype);
}

inline void check_device(const Tensor& x, const Tensor& z, const char* name) {
  CK_CHECK(x.is_cuda() && x.get_device_index() == z.get_device_index(), name,
           " must be on the device of z");
}

// Calls body<S>() with the CUDA type of the tensor's elements.
template <typename Body>
void with_storage_type(const Tensor& x, const Body& body) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return body.template operator()<float>();
    case ScalarType::Double:
      return body.template operator()<double>();
    case ScalarType::Half:
      return body.template operator()<__half>();
    case ScalarType::BFloat16:
      return body.template operator()<__nv_bfloat16>();
    default:
      CK_CHECK(false, "float16, bfloat16, float32 or float64 expected");
  }
}

}  // namespace ck::cuda
