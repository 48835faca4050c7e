// Device, current stream and launches, with no symbol that lives in libtorch_cuda: the library loads on a CPU-only torch.
#pragma once

#include "common/check.h"

#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>

#include <string>

namespace ck::cuda {

inline void check_cuda(cudaError_t error, const char* what) {
  CK_CHECK(error == cudaSuccess, what, " failed: ", std::string(cudaGetErrorString(error)));
}

// While it lives, the tensor's device is the current one for torch and for the CUDA runtime linked into this library.
class Device {
 public:
  explicit Device(const Tensor& x)
      : guard_(x.get_device_index()),
        stream_(torch::stable::accelerator::getCurrentStream(x.get_device_index())) {
    check_cuda(cudaSetDevice(x.get_device_index()), "cudaSetDevice");
  }

  template <typename... Parameters, typename... Arguments>
  void launch(void (*kernel)(Parameters...), dim3 grid, int threads, Arguments... arguments) const {
    kernel<<<grid, threads, 0, static_cast<cudaStream_t>(stream_.nativeHandle())>>>(
        static_cast<Parameters>(arguments)...);
    check_cuda(cudaGetLastError(), "kernel launch");
  }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  torch::stable::accelerator::Stream stream_;
};

}  // namespace ck::cuda
