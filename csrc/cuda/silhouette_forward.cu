// Exact silhouette:  a_u = sum_{v in y_u} D_uv / (n_{y_u} - 1),  b_u = min_{j != y_u} sum_{v in j} D_uv / n_j,  D_uv = ||z_u - z_v||.
//
// Points are taken in the order of their labels. Jensen's bounds with the mean mu_j and s_j = sum_{v in j} ||z_v - mu_j||^2 / n_j
//     ||z_u - mu_j||  <=  mean_{v in j} D_uv  <=  sqrt(||z_u - mu_j||^2 + s_j)
// leave few candidate clusters per point. For every cluster, the points that have it as own cluster or candidate are listed, and tiles of
// (listed points x points of the cluster) give the exact means. Points go through in passes, so that the [c, pass] matrix of mean
// distances and the lists take O(n) memory for any c. Every sum is taken in a fixed order by one block: no atomics, the same bits always.
#include "cuda/grouping.cuh"
#include "cuda/silhouette_tile.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace ck::cuda {

template <typename T>
using ForwardTile = Tile<T, kForwardTile, kForwardTile, 16, 8>;

// mu_j, one block for kDepth coordinates of one cluster; sums in double.
template <typename S>
__global__ __launch_bounds__(kClusterThreads) void silhouette_fwd_mean_kernel(
    const S* z,  // IN [n, d]
    int64_t row_stride, int64_t column_stride, int64_t d,
    const int64_t* order,    // IN [n]
    const int64_t* offsets,  // IN [c + 1]
    Compute<S>* means)       // OUT [c, d]
{
  constexpr int lanes = kClusterThreads / kDepth;
  __shared__ double partial[lanes][kDepth];
  const int64_t j = blockIdx.x;
  const int lane = threadIdx.x / kDepth, column = threadIdx.x % kDepth;
  const int64_t k = static_cast<int64_t>(blockIdx.y) * kDepth + column;
  const int64_t begin = offsets[j], end = offsets[j + 1];
  double sum = 0;
  if (k < d) {
    for (int64_t i = begin + lane; i < end; i += lanes) {
      sum += static_cast<Compute<S>>(z[order[i] * row_stride + k * column_stride]);
    }
  }
  partial[lane][column] = sum;
  __syncthreads();
  if (lane > 0 || k >= d) return;
  for (int i = 1; i < lanes; ++i) sum += partial[i][column];
  means[j * d + k] = static_cast<Compute<S>>(end > begin ? sum / (end - begin) : 0.0);
}

// s_j, and how far the stored mu_j can be from the exact mean (plus what underflow can hide); one block for one cluster.
template <typename S>
__global__ __launch_bounds__(kClusterThreads) void silhouette_fwd_scatter_kernel(
    const S* z,  // IN [n, d]
    int64_t row_stride, int64_t column_stride, int64_t d,
    const int64_t* order,     // IN [n]
    const int64_t* offsets,   // IN [c + 1]
    const Compute<S>* means,  // IN [c, d]
    Compute<S> mean_slack, Compute<S> underflow,
    Compute<S>* scatter,  // OUT [c]
    Compute<S>* errors)   // OUT [c]
{
  constexpr int warps = kClusterThreads / 32;
  __shared__ double partial[warps];
  const int64_t j = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t begin = offsets[j], end = offsets[j + 1];
  double sum = 0, norm = 0;
  for (int64_t i = begin + warp; i < end; i += warps) {
    const S* point = z + order[i] * row_stride;
    for (int64_t k = lane; k < d; k += 32) {
      const Compute<S> x = static_cast<Compute<S>>(point[k * column_stride]) - means[j * d + k];
      sum += static_cast<double>(x) * x;
    }
  }
  for (int64_t k = lane; k < d; k += 32) {
    norm += static_cast<double>(means[j * d + k]) * means[j * d + k];
  }
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
    norm += __shfl_xor_sync(0xffffffffu, norm, step);
  }
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int i = 1; i < warps; ++i) sum += partial[i];
  scatter[j] = static_cast<Compute<S>>(end > begin ? sum / (end - begin) : 0.0);
  errors[j] = static_cast<Compute<S>>(sqrt(norm)) * mean_slack + underflow;
}

// distances[j, p] = ||z_u - mu_j|| for the point u at position first + p.
template <typename S>
__global__ __launch_bounds__(kForwardThreads, kForwardBlocks<S>) void silhouette_fwd_bound_kernel(
    const S* z,  // IN [n, d]
    int64_t row_stride, int64_t column_stride, int64_t d,
    const int64_t* order,     // IN [n]
    const Compute<S>* means,  // IN [c, d]
    int64_t c, int64_t first, int32_t points,
    Compute<S>* distances)  // OUT [c, points]
{
  using T = Compute<S>;
  using Pairs = ForwardTile<T>;
  __shared__ Pairs tile;
  const int64_t p0 = static_cast<int64_t>(blockIdx.x) * kForwardTile;
  const int64_t j0 = static_cast<int64_t>(blockIdx.y) * kForwardTile;
  const int i = threadIdx.x;
  if (i < kForwardTile) {
    tile.row_at[i] = j0 + i < c ? (j0 + i) * d : -1;
    tile.column_at[i] = p0 + i < points ? order[first + p0 + i] * row_stride : -1;
  }
  T square[Pairs::thread_rows][Pairs::thread_columns];
  tile.squared_distances(means, 1, z, column_stride, d, square);
#pragma unroll
  for (int r = 0; r < Pairs::thread_rows; ++r) {
    const int64_t j = j0 + Pairs::ty() + 8 * r;
#pragma unroll
    for (int q = 0; q < Pairs::thread_columns; ++q) {
      const int64_t p = p0 + Pairs::tx() + 16 * q;
      if (j < c && p < points) distances[j * points + p] = sqrt(square[r][q]);
    }
  }
}

// ceilings[p] = least upper bound over the non-empty clusters other than the own one.
//
// slack bounds the relative rounding error of distances and mean distances. It and the errors of the means enter here and in the list
// kernel in the safe direction, so the winner is listed whatever the rounding.
template <typename T>
__global__ void silhouette_fwd_ceiling_kernel(const T* distances,      // IN [c, points]
                                              const T* scatter,        // IN [c]
                                              const T* errors,         // IN [c]
                                              const int64_t* keys,     // IN [n], labels in order
                                              const int64_t* offsets,  // IN [c + 1]
                                              int64_t c, int64_t first, int32_t points, T slack,
                                              T* ceilings)  // OUT [points]
{
  const int64_t p = static_cast<int64_t>(blockIdx.x) * kPointThreads + threadIdx.x;
  if (p >= points) return;
  const int64_t own = keys[first + p];
  T least = static_cast<T>(INFINITY);
  for (int64_t j = 0; j < c; ++j) {
    if (j == own || offsets[j] == offsets[j + 1]) continue;
    const T far = distances[j * points + p] * (1 + slack) + errors[j];
    least = min(least, sqrt(far * far + scatter[j] * (1 + slack)) * (1 + slack));
  }
  ceilings[p] = least;
}

// members[j, 0..member_counts[j]) = the p, ascending, whose point has j as own cluster or candidate; one block for one cluster.
// The distances of all others become infinite.
template <typename T>
__global__ __launch_bounds__(kClusterThreads) void silhouette_fwd_list_kernel(
    const T* ceilings,       // IN [points]
    const T* errors,         // IN [c]
    const int64_t* keys,     // IN [n], labels in order
    const int64_t* offsets,  // IN [c + 1]
    int64_t c, int64_t first, int32_t points, T slack,
    T* distances,            // IN, OUT [c, points]
    int32_t* members,        // OUT [c, points]
    int32_t* member_counts)  // OUT [c]
{
  constexpr int warps = kClusterThreads / 32;
  __shared__ int32_t warp_counts[warps];
  const int64_t j = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool occupied = offsets[j] < offsets[j + 1];
  int32_t count = 0;
  for (int32_t p0 = 0; p0 < points; p0 += kClusterThreads) {
    const int32_t p = p0 + threadIdx.x;
    bool member = false;
    if (p < points) {
      const int64_t own = keys[first + p];
      const T near = distances[j * points + p] * (1 - slack) - errors[j];
      // A NaN on either side keeps the candidate.
      member = occupied && own >= 0 && own < c && (own == j || !(near > ceilings[p]));
      if (!member) distances[j * points + p] = static_cast<T>(INFINITY);
    }
    const uint32_t votes = __ballot_sync(0xffffffffu, member);
    if (lane == 0) warp_counts[warp] = __popc(votes);
    __syncthreads();
    int32_t at = count;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) at += warp_counts[w];
      count += warp_counts[w];
    }
    if (member) members[j * points + at + __popc(votes & ((1u << lane) - 1))] = p;
    __syncthreads();
  }
  if (threadIdx.x == 0) member_counts[j] = count;
}

// distances[j, p] = mean distance of the listed point to (the other) points of cluster j; one block for kForwardTile listed points.
template <typename S>
__global__ __launch_bounds__(kForwardThreads, kForwardBlocks<S>) void silhouette_fwd_pair_kernel(
    const S* z,  // IN [n, d]
    int64_t row_stride, int64_t column_stride, int64_t d,
    const int64_t* order,    // IN [n]
    const int64_t* offsets,  // IN [c + 1]
    int64_t first, int32_t points,
    const int32_t* members,        // IN [c, points]
    const int32_t* member_counts,  // IN [c]
    Compute<S>* distances)         // OUT [c, points]
{
  using T = Compute<S>;
  using Pairs = ForwardTile<T>;
  __shared__ Pairs tile;
  const int64_t j = blockIdx.x;
  const int32_t m0 = blockIdx.y * kForwardTile;
  const int32_t listed = member_counts[j];
  if (m0 >= listed) return;
  members += j * points;
  distances += j * points;
  const int64_t begin = offsets[j], end = offsets[j + 1];
  const int i = threadIdx.x;
  if (i < kForwardTile) {
    tile.row_at[i] = m0 + i < listed ? order[first + members[m0 + i]] * row_stride : -1;
  }
  double total[Pairs::thread_rows] = {};
  for (int64_t v0 = begin; v0 < end; v0 += kForwardTile) {
    __syncthreads();
    if (i < kForwardTile) tile.column_at[i] = v0 + i < end ? order[v0 + i] * row_stride : -1;
    T square[Pairs::thread_rows][Pairs::thread_columns];
    tile.squared_distances(z, column_stride, z, column_stride, d, square);
#pragma unroll
    for (int r = 0; r < Pairs::thread_rows; ++r) {
      T sum = 0;
#pragma unroll
      for (int q = 0; q < Pairs::thread_columns; ++q) {
        if (v0 + Pairs::tx() + 16 * q < end) sum += sqrt(square[r][q]);
      }
      total[r] += sum;
    }
  }
#pragma unroll
  for (int r = 0; r < Pairs::thread_rows; ++r) {
    for (int step = 8; step > 0; step /= 2) {
      total[r] += __shfl_xor_sync(0xffffffffu, total[r], step);
    }
    const int32_t m = m0 + Pairs::ty() + 8 * r;
    if (Pairs::tx() > 0 || m >= listed) continue;
    const int32_t p = members[m];
    const bool own = first + p >= begin && first + p < end;
    const int64_t partners = own ? max(end - begin - 1, int64_t{1}) : end - begin;
    distances[p] = static_cast<T>(total[r] / partners);
  }
}

// own, other and nearest of every point of the pass; the lowest index wins ties.
template <typename T>
__global__ void silhouette_fwd_nearest_kernel(const T* distances,    // IN [c, points]
                                              const int64_t* keys,   // IN [n], labels in order
                                              const int64_t* order,  // IN [n]
                                              int64_t c, int64_t first, int32_t points,
                                              T* own,            // OUT [n]
                                              T* other,          // OUT [n]
                                              int32_t* nearest)  // OUT [n]
{
  const int64_t p = static_cast<int64_t>(blockIdx.x) * kPointThreads + threadIdx.x;
  if (p >= points) return;
  const int64_t label = keys[first + p], u = order[first + p];
  const bool scored = label >= 0 && label < c;
  const T infinity = static_cast<T>(INFINITY);
  T least = infinity;
  int32_t winner = -1;
  for (int64_t j = 0; scored && j < c; ++j) {
    const T distance = distances[j * points + p];
    // The second half: a NaN distance wins once and stays.
    if (j != label && distance != infinity && !(least <= distance) && least == least) {
      least = distance;
      winner = static_cast<int32_t>(j);
    }
  }
  own[u] = scored ? distances[label * points + p] : T(0);
  other[u] = winner >= 0 ? least : T(0);
  nearest[u] = winner;
}

// Points of a pass: [c, pass] matrices of at most 16 n entries (or 2^20, where that is more), in whole tiles.
int64_t points_per_pass(int64_t n, int64_t c) {
  const int64_t entries = std::max<int64_t>(16 * n, int64_t{1} << 20);
  const int64_t points = ceil_div(entries / c + 1, kForwardTile) * kForwardTile;
  return std::min({points, n, int64_t{1} << 20});
}

template <typename S>
void silhouette_fwd(const Device& device, const Tensor& z, const Grouping& groups, int64_t c,
                    const Tensor& own, const Tensor& other, const Tensor& nearest) {
  using T = Compute<S>;
  const int64_t n = z.size(0), d = z.size(1);
  const int64_t pass = points_per_pass(n, c);
  const ScalarType real = own.scalar_type();
  const Tensor means = new_tensor(z, {c, d}, real);
  const Tensor scatter = new_tensor(z, {c}, real);
  const Tensor errors = new_tensor(z, {c}, real);
  const Tensor ceilings = new_tensor(z, {pass}, real);
  const Tensor distances = new_tensor(z, {c, pass}, real);
  const Tensor members = new_tensor(z, {c, pass}, ScalarType::Int);
  const Tensor member_counts = new_tensor(z, {c}, ScalarType::Int);
  const S* points = pointer<S>(z);
  const int64_t rows = z.stride(0), columns = z.stride(1);
  const int64_t* keys = pointer<int64_t>(groups.keys);
  const int64_t* order = pointer<int64_t>(groups.order);
  const int64_t* offsets = pointer<int64_t>(groups.offsets);

  // Sums are in double whatever T is; d + 64 roundings bound a distance and the reductions around it.
  const double sums = static_cast<double>(n) * std::numeric_limits<double>::epsilon();
  const double epsilon = std::numeric_limits<T>::epsilon();
  const T slack = static_cast<T>(static_cast<double>(d + 64) * epsilon + sums);
  const T mean_slack = static_cast<T>(2 * (epsilon + sums));
  const T underflow =
      static_cast<T>(2 * std::sqrt(static_cast<double>(d) * std::numeric_limits<T>::min()));

  device.launch(silhouette_fwd_mean_kernel<S>, dim3(c, ceil_div(d, kDepth)), kClusterThreads,
                points, rows, columns, d, order, offsets, pointer<T>(means));
  device.launch(silhouette_fwd_scatter_kernel<S>, dim3(c), kClusterThreads, points, rows, columns,
                d, order, offsets, pointer<T>(means), mean_slack, underflow, pointer<T>(scatter),
                pointer<T>(errors));
  for (int64_t first = 0; first < n; first += pass) {
    const int64_t count = std::min(pass, n - first);
    const int64_t tiles = ceil_div(count, kForwardTile);
    const dim3 by_point(ceil_div(count, kPointThreads));
    device.launch(silhouette_fwd_bound_kernel<S>, dim3(tiles, ceil_div(c, kForwardTile)),
                  kForwardThreads, points, rows, columns, d, order, pointer<T>(means), c, first,
                  count, pointer<T>(distances));
    device.launch(silhouette_fwd_ceiling_kernel<T>, by_point, kPointThreads, pointer<T>(distances),
                  pointer<T>(scatter), pointer<T>(errors), keys, offsets, c, first, count, slack,
                  pointer<T>(ceilings));
    device.launch(silhouette_fwd_list_kernel<T>, dim3(c), kClusterThreads, pointer<T>(ceilings),
                  pointer<T>(errors), keys, offsets, c, first, count, slack, pointer<T>(distances),
                  pointer<int32_t>(members), pointer<int32_t>(member_counts));
    device.launch(silhouette_fwd_pair_kernel<S>, dim3(c, tiles), kForwardThreads, points, rows,
                  columns, d, order, offsets, first, count, pointer<int32_t>(members),
                  pointer<int32_t>(member_counts), pointer<T>(distances));
    device.launch(silhouette_fwd_nearest_kernel<T>, by_point, kPointThreads, pointer<T>(distances),
                  keys, order, c, first, count, pointer<T>(own), pointer<T>(other),
                  pointer<int32_t>(nearest));
  }
}

std::tuple<Tensor, Tensor, Tensor> silhouette(const Tensor& z, const Tensor& labels,
                                              int64_t num_clusters) {
  check_points(z);
  const int64_t n = z.size(0);
  CK_CHECK(z.size(1) > 0, "z must have at least one column");
  check_vector(labels, n, ScalarType::Long, "labels");
  check_device(labels, z, "labels");
  CK_CHECK(num_clusters >= 0, "num_clusters must be at least 0");
  Tensor own = new_tensor(z, {n}, compute_type(z));
  Tensor other = new_tensor(z, {n}, compute_type(z));
  Tensor nearest = new_tensor(z, {n}, ScalarType::Int);
  if (n == 0) return {own, other, nearest};
  const Device device(z);
  const int64_t c = num_clusters > 0 ? num_clusters : count_clusters(labels);
  const Grouping groups = group_points<int64_t>(device, labels, c, 1);
  with_storage_type(
      z, [&]<typename S>() { silhouette_fwd<S>(device, z, groups, c, own, other, nearest); });
  return {own, other, nearest};
}

}  // namespace ck::cuda

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CUDA, m) {
  m.impl("silhouette", TORCH_BOX(&ck::cuda::silhouette));
}
