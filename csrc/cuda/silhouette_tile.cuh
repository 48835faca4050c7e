// Tiles of squared distances  sum_k (x_k - y_k)^2  in shared memory and registers.
//
// Direct differences, two instructions a coordinate, where the product form |x|^2 + |y|^2 - 2 x.y has one: no digits are lost for near
// points or for clusters far from the origin, duplicates give exactly 0, and neither norms, nor a translation by the cluster's mean, nor
// a second path below a threshold is needed. 1/D in the gradient amplifies every lost digit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace ck::cuda {

// Launch geometry: grids are ceil-divisions by these (tests/kernels/test_cuda_silhouette.py reads them from here).
constexpr int kDepth = 32;             // coordinates of a tile
constexpr int kForwardTile = 64;       // rows and columns of a forward tile
constexpr int kForwardThreads = 128;   // 8 x 4 pairs each
constexpr int kBackwardRows = 32;      // rows of a backward tile
constexpr int kBackwardColumns = 64;   // columns of a backward tile
constexpr int kBackwardThreads = 256;  // 4 x 2 pairs each
constexpr int kBackwardSlice = 256;    // coordinates of dz that a backward block keeps in registers
constexpr int kClusterThreads = 1024;  // kernels with one block a cluster
constexpr int kPointThreads = 256;     // kernels with one thread a point

template <typename S>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<double> {
  using type = double;
};
template <typename S>
using Compute = typename ComputeType<S>::type;

// Blocks that a multiprocessor should hold: fewer for float64, whose registers are twice as wide. Sets the register budget.
template <typename S>
constexpr int kForwardBlocks = sizeof(Compute<S>) == 8 ? 3 : 4;
template <typename S>
constexpr int kBackwardBlocks = sizeof(Compute<S>) == 8 ? 1 : 2;

template <typename T>
struct alignas(16) Vector {
  static constexpr int size = 16 / sizeof(T);
  T at[size];
};

// ROWS x COLUMNS pairs; thread (ty, tx) of TY x TX has the rows ty, ty + TY, ... and the columns tx, tx + TX, ...
template <typename T, int ROWS, int COLUMNS, int TX, int TY>
struct Tile {
  static constexpr int threads = TX * TY;
  static constexpr int thread_rows = ROWS / TY;
  static constexpr int thread_columns = COLUMNS / TX;
  // Rows 16 bytes apart in the banks: reads of a vector by consecutive columns do not collide.
  static constexpr int stride = kDepth + Vector<T>::size;

  alignas(16) T rows[ROWS][stride];
  alignas(16) T columns[COLUMNS][stride];
  int64_t row_at[ROWS];  // offset of the row's first coordinate in memory, -1 for padding
  int64_t column_at[COLUMNS];

  __device__ static int tx() { return threadIdx.x % TX; }
  __device__ static int ty() { return threadIdx.x / TX; }

  template <int COUNT, typename S>
  __device__ static void load(T (&tile)[COUNT][stride], const int64_t (&at)[COUNT], const S* base,
                              int64_t column_stride, int64_t k0, int64_t d) {
    const int k = threadIdx.x % kDepth;
    const bool inside = k0 + k < d;
    const S* from = base + (k0 + k) * column_stride;
#pragma unroll
    for (int i = 0; i < COUNT / (threads / kDepth); ++i) {
      const int r = threadIdx.x / kDepth + i * (threads / kDepth);
      tile[r][k] = inside && at[r] >= 0 ? static_cast<T>(from[at[r]]) : T(0);
    }
  }

  // row_at and column_at are set by any threads before the call.
  template <typename R, typename C>
  __device__ void squared_distances(const R* row_base, int64_t row_column_stride,
                                    const C* column_base, int64_t column_column_stride, int64_t d,
                                    T (&sum)[thread_rows][thread_columns]) {
    constexpr int V = Vector<T>::size;
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) {
#pragma unroll
      for (int c = 0; c < thread_columns; ++c) sum[r][c] = T(0);
    }
    for (int64_t k0 = 0; k0 < d; k0 += kDepth) {
      __syncthreads();
      load(rows, row_at, row_base, row_column_stride, k0, d);
      load(columns, column_at, column_base, column_column_stride, k0, d);
      __syncthreads();
      const int depth = d - k0 < kDepth ? static_cast<int>(d - k0) : kDepth;
      for (int k = 0; k < depth; k += V) {
        Vector<T> y[thread_columns];
#pragma unroll
        for (int c = 0; c < thread_columns; ++c) {
          y[c] = *reinterpret_cast<const Vector<T>*>(&columns[tx() + TX * c][k]);
        }
#pragma unroll
        for (int r = 0; r < thread_rows; ++r) {
          const Vector<T> x = *reinterpret_cast<const Vector<T>*>(&rows[ty() + TY * r][k]);
#pragma unroll
          for (int c = 0; c < thread_columns; ++c) {
#pragma unroll
            for (int e = 0; e < V; ++e) {
              const T difference = x.at[e] - y[c].at[e];
              sum[r][c] = fma(difference, difference, sum[r][c]);
            }
          }
        }
      }
    }
  }
};

}  // namespace ck::cuda
