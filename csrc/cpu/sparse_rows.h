// Rows of a sparse matrix times a dense one:  Y_i = sum_p values_p B_{column_p},  p over the entries of row i.
#pragma once

#include "cpu/vec.h"

#include <algorithm>

namespace ck {

struct SparseRows {
  int64_t rows;
  const int64_t* pointers;  // IN [rows + 1]
  const int32_t* columns;   // IN [entries]
  const void* values;       // IN [entries]
};

}  // namespace ck

namespace ck::CK_ISA {

constexpr int kSparseTile = 8;
// Columns that fill a cache line: a slab of them is copied together where it is read often.
template <typename T>
constexpr int64_t kSlab = 64 / sizeof(T);
// Rows that lie apart are fetched ahead by so many.
constexpr int64_t kAhead = 32;

// kVectors vectors of one row of Y; B's rows are `stride` apart, known to the compiler for slabs. Narrow tiles add every kWays-th entry
// into a sum of its own, so that an addition does not wait for the last one.
template <int kVectors, typename T, typename Stride>
CK_INLINE void row_tile(const SparseRows& a, int64_t row, const T* b, Stride stride, T* y) {
  constexpr int L = kLanes<T>, kWays = kVectors >= kSparseTile ? 1 : 4;
  const T* values = static_cast<const T*>(a.values);
  Vec<T> sum[kWays][kVectors] = {};
  const auto add = [&](Vec<T>* into, int64_t p) {
    const T* from = b + a.columns[p] * stride;
    const Vec<T> value = broadcast(values[p]);
    for (int v = 0; v < kVectors; ++v) into[v] += value * load(from + v * L);
  };
  const int64_t last = a.pointers[row + 1];
  int64_t p = a.pointers[row];
  for (; p + kWays <= last; p += kWays) {
    for (int w = 0; w < kWays; ++w) add(sum[w], p + w);
  }
  for (; p < last; ++p) add(sum[0], p);
  for (int v = 0; v < kVectors; ++v) {
    Vec<T> total = sum[0][v];
    for (int w = 1; w < kWays; ++w) total += sum[w][v];
    store(y + v * L, total);
  }
}

// Columns [0, count) of rows [first, last), at least one vector of them, to y and behind; the last vector overlaps the one before where
// it must.
template <typename T, typename Stride>
void multiply_rows(const SparseRows& a, int64_t first, int64_t last, const T* b, Stride stride,
                   int64_t count, T* y, int64_t y_stride) {
  constexpr int L = kLanes<T>;
  for (int64_t i = first; i < last; ++i) {
    T* out = y + (i - first) * y_stride;
    int64_t k = 0;
    for (; k + kSparseTile * L <= count; k += kSparseTile * L)
      row_tile<kSparseTile>(a, i, b + k, stride, out + k);
    for (; k + 2 * L <= count; k += 2 * L) row_tile<2>(a, i, b + k, stride, out + k);
    for (; k + L <= count; k += L) row_tile<1>(a, i, b + k, stride, out + k);
    if (k < count) row_tile<1>(a, i, b + count - L, stride, out + count - L);
  }
}

// A line of W numbers: `count` of them copied, zeros behind.
template <int64_t W, typename T>
CK_INLINE void copy_line(const T* from, int64_t count, T* to) {
  if (count == W) {
    for (int64_t k = 0; k < W; ++k) to[k] = from[k];
  } else {
    std::copy_n(from, count, to);
    std::fill(to + count, to + W, T{0});
  }
}

// `count` columns of rows that are `stride` apart, as lines of W numbers that lie together.
template <int64_t W, typename T>
void pack_columns(const T* from, int64_t stride, int64_t rows, int64_t count, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = from + r * stride;
    __builtin_prefetch(row + kAhead * stride);
    copy_line<W>(row, count, to + r * W);
  }
}

// The first `count` numbers of lines of W to rows that are `stride` apart.
template <int64_t W, typename T>
void unpack_columns(const T* from, int64_t rows, int64_t count, T* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * W, count, to + r * stride);
}

// The first `count` of the W columns of a slab whose rows lie together, times the matrix, to rows y_stride apart. scratch [rows, W] is
// written where the slab is not whole.
template <int64_t W, typename T>
void multiply_slab(const SparseRows& a, const T* slab, int64_t count, T* scratch, T* y,
                   int64_t y_stride) {
  constexpr std::integral_constant<int64_t, W> width;
  if (count == W) {
    multiply_rows(a, 0, a.rows, slab, width, width, y, y_stride);
  } else {
    multiply_rows(a, 0, a.rows, slab, width, width, scratch, width);
    unpack_columns<W>(scratch, a.rows, count, y, y_stride);
  }
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {

// A matrix in compressed rows as an operator gets it, checked: columns in [0, width).
struct SparseTensors {
  Tensor pointers, columns, values;
  SparseTensors(const Tensor& given_pointers, const Tensor& given_columns,
                const Tensor& given_values, int64_t width, ScalarType type)
      : pointers(torch::stable::contiguous(given_pointers)),
        columns(torch::stable::contiguous(given_columns)),
        values(torch::stable::contiguous(given_values)) {
    CK_CHECK(pointers.dim() == 1 && pointers.size(0) >= 1, "pointers must be of shape (rows + 1,)");
    check_vector(pointers, pointers.size(0), ScalarType::Long, "pointers");
    CK_CHECK(values.dim() == 1, "values must be of shape (entries,)");
    const int64_t rows = pointers.size(0) - 1, entries = values.size(0);
    check_vector(values, entries, type, "values");
    check_vector(columns, entries, ScalarType::Int, "columns");
    const int64_t* p = pointer<int64_t>(pointers);
    CK_CHECK(p[0] == 0 && p[rows] == entries, "pointers must run from 0 to the number of values");
    for (int64_t i = 0; i < rows; ++i) CK_CHECK(p[i] <= p[i + 1], "pointers must not fall");
    const Range found = range_of<int32_t>(columns);
    CK_CHECK(found.lies_in(0, width), "columns must lie in [0, ", width, "), got ", found.low,
             " to ", found.high);
  }
  SparseRows view() const {
    return {pointers.size(0) - 1, pointer<int64_t>(pointers), pointer<int32_t>(columns),
            values.data_ptr()};
  }
};

}  // namespace ck
#endif
