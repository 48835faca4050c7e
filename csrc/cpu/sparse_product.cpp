// A sparse matrix in compressed rows times a dense one:  Y_i = sum_p values_p B_{column_p},  p over the entries of row i.
//
// Every row of Y is summed by one thread in a fixed order. A register tile holds kSparseTile vectors of Y_i; the work is the
// gather of the rows of B. Where a row of B is read often or a row of Y has many entries (kReuse on average), the columns go by in slabs of
// one cache line, copied together first: a slab of some ten thousand rows stays near the core. Two lines, where vectors are that long and the
// slab still small, halve the reading of entries. Elsewhere B is read where it lies.
#include "common/isa.h"
#include "cpu/sparse_rows.h"
#include "cpu/tile.h"

CK_DECLARE(void sparse_product_fwd(const ck::SparseRows& a, const void* b, int64_t b_rows,
                                   int64_t width, bool wide, void* y))

namespace ck::CK_ISA {
namespace {

constexpr int64_t kReuse = 48;
constexpr int64_t kChunks = 64;
// Bytes of a slab of which the second-level cache holds most.
constexpr int64_t kNear = 5 << 18;

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

// All columns in slabs of W.
template <int64_t W, typename T>
void multiply_slabs(const SparseRows& a, const T* b, int64_t b_rows, int64_t width, T* y) {
  parallel(ceil_div(width, W), [&](int64_t first, int64_t last) {
    const Buffer<T> packed(b_rows * W), scratch(width % W == 0 ? 0 : a.rows * W);
    for (int64_t begin = first * W; begin < std::min(last * W, width); begin += W) {
      const int64_t count = std::min(W, width - begin);
      pack_columns<W>(b + begin, width, b_rows, count, packed.get());
      multiply_slab<W>(a, packed.get(), count, scratch.get(), y + begin, width);
    }
  });
}

template <typename T>
void multiply(const SparseRows& a, const T* b, int64_t b_rows, int64_t width, T* y) {
  constexpr int64_t L = kLanes<T>, W = kSlab<T>;
  if (width > W && a.pointers[a.rows] >= kReuse * std::min(a.rows, b_rows)) {
    const bool two =
        W == L && ceil_div(width, 2 * W) >= thread_count() && 2 * kVectorBytes * b_rows <= kNear;
    return two ? multiply_slabs<2 * W>(a, b, b_rows, width, y)
               : multiply_slabs<W>(a, b, b_rows, width, y);
  }
  const Chunks chunks{a};
  const auto all_rows = [&](const T* from, int64_t columns, T* to) {
    parallel(kChunks, [&](int64_t first, int64_t last) {
      const int64_t row = chunks.begin(first);
      multiply_rows(a, row, chunks.begin(last), from, columns, columns, to + row * columns,
                    columns);
    });
  };
  if (width >= L) {
    all_rows(b, width, y);
    return;
  }
  const Buffer<T> wide_b(b_rows * L), wide_y(a.rows * L);
  pack_columns<L>(b, width, b_rows, width, wide_b.get());
  all_rows(wide_b.get(), L, wide_y.get());
  unpack_columns<L>(wide_y.get(), a.rows, width, y, width);
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
namespace ck {
namespace {

Tensor sparse_product(const Tensor& pointers, const Tensor& columns, const Tensor& values,
                      const Tensor& dense) {
  const ScalarType t = dense.scalar_type();
  CK_CHECK(dense.dim() == 2, "dense must be of shape (m, width)");
  CK_CHECK(t == ScalarType::Float || t == ScalarType::Double, "dense must be float32 or float64");
  const SparseTensors a(pointers, columns, values, dense.size(0), t);
  const Tensor b = torch::stable::contiguous(dense);
  Tensor y = new_matrix(dense, a.view().rows, dense.size(1), t);
  CK_KERNEL(sparse_product_fwd)
  (a.view(), b.data_ptr(), dense.size(0), dense.size(1), t == ScalarType::Double, y.data_ptr());
  return y;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("sparse_product", TORCH_BOX(&ck::sparse_product));
}
#endif
