// A CUDA runtime without a GPU: hands every kernel launch to a callback, with the memory that its pointers may touch.
//
// Linked (-Bsymbolic) with the objects that nvcc made of csrc/cuda in place of libcudart_static. The operators are registered for CPU tensors
// in the namespace carlg_kernels_ptx, so the host code runs as it is, on CPU memory; device and stream become nothing.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace {

struct Dim3 {
  uint32_t x, y, z;
};

using Callback = int (*)(const char* kernel, const Dim3* grid, const Dim3* block, void** arguments);

Callback callback = nullptr;
Dim3 next_grid, next_block;
int last_error = 0;
std::map<const void*, const char*> names;
std::map<uint64_t, uint64_t> sizes;

template <typename F>
F* real(const char* name) {
  static void* torch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<F*>(dlsym(torch, name));
}

}  // namespace

extern "C" {

void fake_cuda_start(Callback launch) {
  callback = launch;
  sizes.clear();
  last_error = 0;
}

// Bytes from `address` to the end of the tensor's storage, -1 if no tensor begins there.
int64_t fake_cuda_size(uint64_t address) {
  const auto found = sizes.find(address);
  return found == sizes.end() ? -1 : static_cast<int64_t>(found->second);
}

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  names[host] = name;
}
int __cudaGetKernel(const void** kernel, const void* host) {
  *kernel = host;
  return 0;
}
unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t, void*) {
  next_grid = grid;
  next_block = block;
  return 0;
}
int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void** stream) {
  *grid = next_grid;
  *block = next_block;
  *shared = 0;
  *stream = nullptr;
  return 0;
}
int __cudaLaunchKernel(const void* kernel, Dim3 grid, Dim3 block, void** arguments, size_t, void*) {
  last_error = callback(names.at(kernel), &grid, &block, arguments);
  return last_error;
}
int cudaSetDevice(int) { return 0; }
int cudaGetLastError() { return last_error; }
const char* cudaGetErrorString(int) { return "the callback failed"; }

int aoti_torch_library_init_impl(const char*, const char*, const char* file, uint32_t line,
                                 void** library) {
  return real<int(const char*, const char*, const char*, uint32_t, void**)>(
      "aoti_torch_library_init_impl")("carlg_kernels_ptx", "CPU", file, line, library);
}
int32_t aoti_torch_device_type_cuda() { return real<int32_t()>("aoti_torch_device_type_cpu")(); }
int aoti_torch_create_device_guard(int32_t, void**) { return 0; }
int aoti_torch_delete_device_guard(void*) { return 0; }
int aoti_torch_get_current_stream(int32_t, void**) { return 0; }
int aoti_torch_delete_stream(void*) { return 0; }
int torch_stream_native_handle(void*, void** native) {
  *native = nullptr;
  return 0;
}
int aoti_torch_get_data_ptr(void* tensor, void** data) {
  const int status = real<int(void*, void**)>("aoti_torch_get_data_ptr")(tensor, data);
  int64_t size = 0, offset = 0;
  int32_t dtype = 0;
  real<int(void*, int64_t*)>("aoti_torch_get_storage_size")(tensor, &size);
  real<int(void*, int64_t*)>("aoti_torch_get_storage_offset")(tensor, &offset);
  real<int(void*, int32_t*)>("aoti_torch_get_dtype")(tensor, &dtype);
  size -=
      offset * static_cast<int64_t>(real<size_t(int32_t)>("aoti_torch_dtype_element_size")(dtype));
  sizes[reinterpret_cast<uint64_t>(*data)] = static_cast<uint64_t>(size);
  return status;
}

}  // extern "C"
