// Points grouped by an integer key: torch's stable sort (deterministic), then the first position of every group.
#pragma once

#include "cuda/stream.h"
#include "cuda/tensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace ck::cuda {

constexpr int kGroupingThreads = 256;

// offsets[j] = first position whose key is at least j * step, for j = 0..groups.
template <typename K>
__global__ void group_offsets_kernel(const K* keys,  // IN [n], ascending
                                     int64_t n, int64_t groups, int64_t step,
                                     int64_t* offsets)  // OUT [groups + 1]
{
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kGroupingThreads + threadIdx.x;
  if (j > groups) return;
  int64_t low = 0, high = n;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (keys[middle] < j * step) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  offsets[j] = low;
}

struct Grouping {
  Tensor keys;     // [n] ascending
  Tensor order;    // [n] int64: the point at every position
  Tensor offsets;  // [groups + 1] int64; points with a negative key come before offsets[0]
};

// Group j holds the keys from j * step to (j + 1) * step - 1.
template <typename K>
Grouping group_points(const Device& device, const Tensor& keys, int64_t groups, int64_t step) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 4> stack{from(keys), from(std::optional<bool>(true)), from(int64_t{-1}),
                                    from(false)};
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION));
  Grouping grouping{to<Tensor>(stack[0]), to<Tensor>(stack[1]),
                    new_tensor(keys, {groups + 1}, ScalarType::Long)};
  device.launch(group_offsets_kernel<K>, dim3(ceil_div(groups + 1, kGroupingThreads)),
                kGroupingThreads, pointer<K>(grouping.keys), keys.size(0), groups, step,
                pointer<int64_t>(grouping.offsets));
  return grouping;
}

// The number of clusters where the caller does not know it: the one read of the host.
inline int64_t count_clusters(const Tensor& labels) {
  const torch::stable::Device host(torch::headeronly::DeviceType::CPU);
  const Tensor largest = torch::stable::to(torch::stable::amax(labels, 0), host);
  return std::max<int64_t>(*pointer<int64_t>(largest) + 1, 1);
}

}  // namespace ck::cuda
