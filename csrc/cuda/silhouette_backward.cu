// Gradient of  sum_u grad_own_u a_u + grad_other_u b_u.  With A_u = grad_own_u / (n_{y_u} - 1) and B_u = grad_other_u / n_{k_u},
//     dz_u = sum_v W_uv (z_u - z_v),   W_uv = ([y_v = y_u] (A_u + A_v) + [y_v = k_u] B_u + [k_v = y_u] B_v) / D_uv   (0 where D_uv = 0).
//
// Only three groups of points meet u: its own cluster, its nearest other cluster, and the points whose nearest other cluster is its own.
// Rows are sorted by (y, k), so that a tile of rows has few different y and k. A block sweeps the three groups of its rows, first the
// distances of a tile of pairs, then their weights times the differences, and writes its rows of dz once: no atomics, the same bits always.
// It keeps kBackwardSlice coordinates of dz in registers; blocks of further slices compute the distances again.
#include "cuda/grouping.cuh"
#include "cuda/silhouette_tile.cuh"

#include <algorithm>

namespace ck::cuda {

template <typename T>
using BackwardTile = Tile<T, kBackwardRows, kBackwardColumns, 32, 8>;

// keys[u] = y_u (c + 1) + k_u + 1, the order of the rows; -1 for outliers.
__global__ void silhouette_bwd_key_kernel(const int64_t* labels,   // IN [n]
                                          const int32_t* nearest,  // IN [n]
                                          int64_t n, int64_t c,
                                          int64_t* keys)  // OUT [n]
{
  const int64_t u = static_cast<int64_t>(blockIdx.x) * kPointThreads + threadIdx.x;
  if (u >= n) return;
  const bool scored = labels[u] >= 0 && labels[u] < c;
  keys[u] = scored ? labels[u] * (c + 1) + nearest[u] + 1 : -1;
}

// A_u and B_u.
template <typename T>
__global__ void silhouette_bwd_weight_kernel(const T* grad_own,       // IN [n]
                                             const T* grad_other,     // IN [n]
                                             const int64_t* labels,   // IN [n]
                                             const int32_t* nearest,  // IN [n]
                                             const int64_t* offsets,  // IN [c + 1]
                                             int64_t n, int64_t c,
                                             T* own_weights,    // OUT [n]
                                             T* other_weights)  // OUT [n]
{
  const int64_t u = static_cast<int64_t>(blockIdx.x) * kPointThreads + threadIdx.x;
  if (u >= n) return;
  const int64_t y = labels[u], k = nearest[u];
  const bool scored = y >= 0 && y < c;
  const int64_t partners = scored ? offsets[y + 1] - offsets[y] - 1 : 0;
  const int64_t others = scored && k >= 0 && k < c ? offsets[k + 1] - offsets[k] : 0;
  own_weights[u] = partners > 0 ? grad_own[u] / static_cast<T>(partners) : T(0);
  other_weights[u] = others > 0 ? grad_other[u] / static_cast<T>(others) : T(0);
}

enum Role { own_cluster, nearest_cluster, nearest_of };

template <typename S>
__global__ __launch_bounds__(kBackwardThreads, kBackwardBlocks<S>) void silhouette_bwd_pair_kernel(
    const S* z,  // IN [n, d]
    int64_t row_stride, int64_t column_stride, int64_t n, int64_t d, int64_t c,
    const int64_t* labels,            // IN [n]
    const int32_t* nearest,           // IN [n]
    const int64_t* order,             // IN [n], by (label, nearest)
    const int64_t* offsets,           // IN [c + 1], of the labels
    const int64_t* nearest_order,     // IN [n], by nearest
    const int64_t* nearest_offsets,   // IN [c + 1]
    const Compute<S>* own_weights,    // IN [n]
    const Compute<S>* other_weights,  // IN [n]
    S* dz)                            // OUT [n, d]
{
  using T = Compute<S>;
  using Pairs = BackwardTile<T>;
  constexpr int V = Vector<T>::size;
  constexpr int chunks = kBackwardSlice / kDepth;
  constexpr int row_step = kBackwardThreads / kDepth;
  constexpr int thread_rows = kBackwardRows / row_step;
  __shared__ Pairs tile;
  __shared__ alignas(16) T weights[kBackwardRows][kBackwardColumns];
  __shared__ T row_own[kBackwardRows], row_other[kBackwardRows], column_weight[kBackwardColumns];
  __shared__ int64_t row_label[kBackwardRows], row_nearest[kBackwardRows];

  const int i = threadIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBackwardRows;
  const int64_t slice = static_cast<int64_t>(blockIdx.y) * kBackwardSlice;
  if (i < kBackwardRows) {
    const bool exists = first + i < n;
    const int64_t u = exists ? order[first + i] : 0;
    const bool scored = exists && labels[u] >= 0 && labels[u] < c;
    tile.row_at[i] = exists ? u * row_stride : -1;
    row_label[i] = scored ? labels[u] : -1;
    row_nearest[i] = scored && nearest[u] < c ? nearest[u] : -1;
    row_own[i] = own_weights[u];
    row_other[i] = other_weights[u];
  }
  __syncthreads();

  // This thread's part of dz: coordinate i % kDepth of every chunk, rows i / kDepth, i / kDepth + row_step, ...
  const int my_k = i % kDepth, my_row = i / kDepth;
  T sum[chunks][thread_rows] = {};

  for (int role = own_cluster; role <= nearest_of; ++role) {
    const int64_t* row_key = role == nearest_cluster ? row_nearest : row_label;
    const int64_t* column_order = role == nearest_of ? nearest_order : order;
    const int64_t* column_offsets = role == nearest_of ? nearest_offsets : offsets;
    // Runs of rows that meet the same group of columns.
    for (int run = 0, run_end; run < kBackwardRows; run = run_end) {
      const int64_t key = row_key[run];
      run_end = run + 1;
      while (run_end < kBackwardRows && row_key[run_end] == key) ++run_end;
      if (key < 0) continue;
      const int64_t end = column_offsets[key + 1];
      for (int64_t v0 = column_offsets[key]; v0 < end; v0 += kBackwardColumns) {
        __syncthreads();
        if (i < kBackwardColumns) {
          const int64_t v = v0 + i < end ? column_order[v0 + i] : -1;
          tile.column_at[i] = v < 0 ? -1 : v * row_stride;
          column_weight[i] = v < 0 || role == nearest_cluster ? T(0)
                             : role == own_cluster            ? own_weights[v]
                                                              : other_weights[v];
        }
        T square[Pairs::thread_rows][Pairs::thread_columns];
        tile.squared_distances(z, column_stride, z, column_stride, d, square);
#pragma unroll
        for (int r = 0; r < Pairs::thread_rows; ++r) {
          const int row = Pairs::ty() + 8 * r;
          const T mine = role == own_cluster       ? row_own[row]
                         : role == nearest_cluster ? row_other[row]
                                                   : T(0);
#pragma unroll
          for (int q = 0; q < Pairs::thread_columns; ++q) {
            const int column = Pairs::tx() + 32 * q;
            const bool pair = row >= run && row < run_end && v0 + column < end && square[r][q] > 0;
            weights[row][column] =
                pair ? (mine + column_weight[column]) / sqrt(square[r][q]) : T(0);
          }
        }
#pragma unroll
        for (int chunk = 0; chunk < chunks; ++chunk) {
          const int64_t k0 = slice + chunk * kDepth;
          if (k0 < d) {
            __syncthreads();
            Pairs::load(tile.rows, tile.row_at, z, column_stride, k0, d);
            Pairs::load(tile.columns, tile.column_at, z, column_stride, k0, d);
            __syncthreads();
            T x[thread_rows], part[thread_rows] = {};
#pragma unroll
            for (int r = 0; r < thread_rows; ++r) x[r] = tile.rows[my_row + r * row_step][my_k];
            for (int v = 0; v < kBackwardColumns; v += V) {
              T y[V];
#pragma unroll
              for (int e = 0; e < V; ++e) y[e] = tile.columns[v + e][my_k];
#pragma unroll
              for (int r = 0; r < thread_rows; ++r) {
                const Vector<T> w =
                    *reinterpret_cast<const Vector<T>*>(&weights[my_row + r * row_step][v]);
#pragma unroll
                for (int e = 0; e < V; ++e) part[r] = fma(w.at[e], x[r] - y[e], part[r]);
              }
            }
#pragma unroll
            for (int r = 0; r < thread_rows; ++r) sum[chunk][r] += part[r];
          }
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < thread_rows; ++r) {
    const int64_t position = first + my_row + r * row_step;
    if (position >= n) continue;
    S* row = dz + order[position] * d;
#pragma unroll
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int64_t k = slice + chunk * kDepth + my_k;
      if (k < d) row[k] = static_cast<S>(sum[chunk][r]);
    }
  }
}

template <typename S>
void silhouette_bwd(const Device& device, const Tensor& grad_own, const Tensor& grad_other,
                    const Tensor& z, const Tensor& labels, const Tensor& nearest,
                    const Grouping& rows, const Grouping& by_nearest, int64_t c, const Tensor& dz) {
  using T = Compute<S>;
  const int64_t n = z.size(0), d = z.size(1);
  const Tensor own_weights = new_tensor(z, {n}, grad_own.scalar_type());
  const Tensor other_weights = new_tensor(z, {n}, grad_own.scalar_type());
  const int64_t* offsets = pointer<int64_t>(rows.offsets);
  device.launch(silhouette_bwd_weight_kernel<T>, dim3(ceil_div(n, kPointThreads)), kPointThreads,
                pointer<T>(grad_own), pointer<T>(grad_other), pointer<int64_t>(labels),
                pointer<int32_t>(nearest), offsets, n, c, pointer<T>(own_weights),
                pointer<T>(other_weights));
  device.launch(silhouette_bwd_pair_kernel<S>,
                dim3(ceil_div(n, kBackwardRows), ceil_div(d, kBackwardSlice)), kBackwardThreads,
                pointer<S>(z), z.stride(0), z.stride(1), n, d, c, pointer<int64_t>(labels),
                pointer<int32_t>(nearest), pointer<int64_t>(rows.order), offsets,
                pointer<int64_t>(by_nearest.order), pointer<int64_t>(by_nearest.offsets),
                pointer<T>(own_weights), pointer<T>(other_weights), pointer<S>(dz));
}

Tensor silhouette_backward(const Tensor& grad_own, const Tensor& grad_other, const Tensor& z,
                           const Tensor& labels, const Tensor& nearest, int64_t num_clusters) {
  check_points(z);
  const int64_t n = z.size(0);
  check_vector(labels, n, ScalarType::Long, "labels");
  check_vector(nearest, n, ScalarType::Int, "nearest");
  check_vector(grad_own, n, compute_type(z), "grad_own");
  check_vector(grad_other, n, compute_type(z), "grad_other");
  check_device(labels, z, "labels");
  check_device(nearest, z, "nearest");
  check_device(grad_own, z, "grad_own");
  check_device(grad_other, z, "grad_other");
  CK_CHECK(num_clusters >= 0, "num_clusters must be at least 0");
  Tensor dz = new_tensor(z, {n, z.size(1)}, z.scalar_type());
  if (n == 0 || z.size(1) == 0) return dz;
  const Device device(z);
  const int64_t c = num_clusters > 0 ? num_clusters : count_clusters(labels);
  const Tensor y = torch::stable::contiguous(labels), k = torch::stable::contiguous(nearest);
  const Tensor keys = new_tensor(z, {n}, ScalarType::Long);
  device.launch(silhouette_bwd_key_kernel, dim3(ceil_div(n, kPointThreads)), kPointThreads,
                pointer<int64_t>(y), pointer<int32_t>(k), n, c, pointer<int64_t>(keys));
  const Grouping rows = group_points<int64_t>(device, keys, c, c + 1);
  const Grouping by_nearest = group_points<int32_t>(device, k, c, 1);
  const Tensor a = torch::stable::contiguous(grad_own), b = torch::stable::contiguous(grad_other);
  with_storage_type(
      z, [&]<typename S>() { silhouette_bwd<S>(device, a, b, z, y, k, rows, by_nearest, c, dz); });
  return dz;
}

}  // namespace ck::cuda

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CUDA, m) {
  m.impl("silhouette_backward", TORCH_BOX(&ck::cuda::silhouette_backward));
}
