// A sparse matrix in compressed rows times a dense one:  Y_i = sum_p values_p B_{column_p},  p over the entries of row i.
//
// Every row of Y is summed by one thread in a fixed order. A register tile holds kTile vectors of Y_i; the work is the
// gather of the rows of B. Where a row of B is read often or a row of Y has many entries (kReuse on average), the columns go by in slabs of
// one cache line, copied together first: a slab of some ten thousand rows stays near the core. Elsewhere B is read where it lies.
#include "common/isa.h"
#include "cpu/parallel.h"
#include "cpu/tile.h"

namespace ck {

struct SparseRows {
  int64_t rows;
  const int64_t* pointers;  // IN [rows + 1]
  const int32_t* columns;   // IN [entries]
  const void* values;       // IN [entries]
};

}  // namespace ck

CK_DECLARE(void sparse_product_fwd(const ck::SparseRows& a, const void* b, int64_t b_rows,
                                   int64_t width, bool wide, void* y))

namespace ck::CK_ISA {
namespace {

constexpr int kTile = 8;
constexpr int64_t kReuse = 48;
constexpr int64_t kChunks = 64;

// Rows [first, last) of chunk: about equally many entries and rows in each.
struct Chunks {
  const SparseRows& a;
  int64_t weight(int64_t row) const { return a.pointers[row] + 4 * row; }
  int64_t begin(int64_t chunk) const {
    const int64_t goal = weight(a.rows) * chunk / kChunks;
    int64_t low = 0, high = a.rows;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      weight(middle) < goal ? low = middle + 1 : high = middle;
    }
    return low;
  }
};

// kVectors vectors of one row of Y; B's rows are `stride` apart, known to the compiler for slabs. Narrow tiles add every kWays-th entry into a sum of its own, so that
// an addition does not wait for the last one.
template <int kVectors, typename T, typename Stride>
CK_INLINE void row_tile(const SparseRows& a, int64_t row, const T* b, Stride stride, T* y) {
  constexpr int L = kLanes<T>, kWays = kVectors >= kTile ? 1 : 4;
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

// Columns [0, count) of rows [first, last), at least one vector of them; the last vector overlaps the one before where it must.
template <typename T, typename Stride>
void multiply_rows(const SparseRows& a, int64_t first, int64_t last, const T* b, Stride stride,
                   int64_t count, T* y, int64_t y_stride) {
  constexpr int L = kLanes<T>;
  for (int64_t i = first; i < last; ++i) {
    T* out = y + i * y_stride;
    int64_t k = 0;
    for (; k + kTile * L <= count; k += kTile * L) row_tile<kTile>(a, i, b + k, stride, out + k);
    for (; k + 2 * L <= count; k += 2 * L) row_tile<2>(a, i, b + k, stride, out + k);
    for (; k + L <= count; k += L) row_tile<1>(a, i, b + k, stride, out + k);
    if (k < count) row_tile<1>(a, i, b + count - L, stride, out + count - L);
  }
}

// count columns of every row, from rows `from_stride` apart to rows `to_stride` apart; zeros behind them up to width.
template <typename T>
void copy_columns(const T* from, int64_t from_stride, int64_t rows, int64_t count, T* to,
                  int64_t to_stride, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(from + r * from_stride, count, to + r * to_stride);
    std::fill(to + r * to_stride + count, to + r * to_stride + width, T{0});
  }
}

// One slab of columns, by the thread that calls.
template <typename T>
void multiply_slab(const SparseRows& a, const T* b, int64_t b_rows, int64_t width, int64_t begin,
                   T* packed, T* y) {
  constexpr std::integral_constant<int64_t, 64 / sizeof(T)> slab;
  const int64_t count = std::min<int64_t>(slab, width - begin);
  copy_columns(b + begin, width, b_rows, count, packed, slab, slab);
  if (count == slab) {
    multiply_rows(a, 0, a.rows, packed, slab, slab, y + begin, width);
    return;
  }
  const Buffer<T> whole(a.rows * slab);
  multiply_rows(a, 0, a.rows, packed, slab, slab, whole.get(), slab);
  copy_columns(whole.get(), slab, a.rows, count, y + begin, width, count);
}

template <typename T>
void multiply(const SparseRows& a, const T* b, int64_t b_rows, int64_t width, T* y) {
  constexpr int64_t slab = 64 / sizeof(T), L = kLanes<T>;
  if (width > slab && a.pointers[a.rows] >= kReuse * std::min(a.rows, b_rows)) {
    parallel(ceil_div(width, slab), [&](int64_t first, int64_t last) {
      const Buffer<T> packed(b_rows * slab);
      for (int64_t s = first; s < last; ++s) {
        multiply_slab(a, b, b_rows, width, s * slab, packed.get(), y);
      }
    });
    return;
  }
  const Chunks chunks{a};
  const auto all_rows = [&](const T* from, int64_t columns, T* to) {
    parallel(kChunks, [&](int64_t first, int64_t last) {
      multiply_rows(a, chunks.begin(first), chunks.begin(last), from, columns, columns, to,
                    columns);
    });
  };
  if (width >= L) {
    all_rows(b, width, y);
    return;
  }
  const Buffer<T> wide_b(b_rows * L), wide_y(a.rows * L);
  copy_columns(b, width, b_rows, width, wide_b.get(), L, L);
  all_rows(wide_b.get(), L, wide_y.get());
  copy_columns(wide_y.get(), L, a.rows, width, y, width, width);
}

}  // namespace

void sparse_product_fwd(const SparseRows& a, const void* b, int64_t b_rows, int64_t width,
                        bool wide, void* y) {
  if (wide) {
    multiply(a, static_cast<const double*>(b), b_rows, width, static_cast<double*>(y));
  } else {
    multiply(a, static_cast<const float*>(b), b_rows, width, static_cast<float*>(y));
  }
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

Tensor sparse_product(const Tensor& pointers, const Tensor& columns, const Tensor& values,
                      const Tensor& dense) {
  const ScalarType t = dense.scalar_type();
  CK_CHECK(dense.dim() == 2, "dense must be of shape (m, width)");
  CK_CHECK(t == ScalarType::Float || t == ScalarType::Double, "dense must be float32 or float64");
  CK_CHECK(pointers.dim() == 1 && pointers.size(0) >= 1, "pointers must be of shape (rows + 1,)");
  check_vector(pointers, pointers.size(0), ScalarType::Long, "pointers");
  const Tensor b = torch::stable::contiguous(dense), starts = torch::stable::contiguous(pointers);
  const int64_t rows = pointers.size(0) - 1, entries = values.size(0);
  check_vector(values, entries, t, "values");
  check_vector(columns, entries, ScalarType::Int, "columns");
  const int64_t* p = pointer<int64_t>(starts);
  CK_CHECK(p[0] == 0 && p[rows] == entries, "pointers must run from 0 to the number of values");
  for (int64_t i = 0; i < rows; ++i) CK_CHECK(p[i] <= p[i + 1], "pointers must not fall");
  const Tensor where = torch::stable::contiguous(columns), a = torch::stable::contiguous(values);
  const int32_t* column = pointer<int32_t>(where);
  int32_t low = 0, high = -1;
  for (int64_t i = 0; i < entries; ++i) {
    low = std::min(low, column[i]);
    high = std::max(high, column[i]);
  }
  CK_CHECK(low >= 0 && high < dense.size(0), "columns must lie in [0, ", dense.size(0), "), got ",
           low, " to ", high);
  Tensor y = new_matrix(dense, rows, dense.size(1), t);
  CK_KERNEL(sparse_product_fwd)
  (SparseRows{rows, p, column, a.data_ptr()}, b.data_ptr(), dense.size(0), dense.size(1),
   t == ScalarType::Double, y.data_ptr());
  return y;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("sparse_product", TORCH_BOX(&ck::sparse_product));
}
#endif
