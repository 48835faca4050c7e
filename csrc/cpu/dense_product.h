// What the products of dense matrices share: their operands, the register tile, slices of the inner dimension, the operator around a kernel.
#pragma once

#include "common/isa.h"
#include "cpu/tile.h"

namespace ck {

// Elements (i, j) at values[i * row + j * column]; one of the two steps is 1.
struct Strided {
  const void* values;
  int64_t row, column;
};

struct ProductShape {
  int64_t rows, columns, depth;
};

}  // namespace ck

CK_DECLARE(void dense_product_fwd(const ck::Strided& a, const ck::Strided& b,
                                  const ck::ProductShape& shape, bool wide, void* c))

namespace ck::CK_ISA {

// A tile: kRows rows of A times kColumns columns of B, its sums in registers.
#if defined(__AVX512F__)
constexpr int kRows = 12, kVectors = 2;
#else
constexpr int kRows = 6, kVectors = 2;
#endif

template <typename T>
constexpr int64_t kColumns = kVectors * kLanes<T>;

template <int64_t N>
using Constant = std::integral_constant<int64_t, N>;

// Slices of `longest` at most, all of the same depth but the last.
struct Slices {
  int64_t count, depth, whole;
  Slices(int64_t whole, int64_t longest)
      : count(std::max<int64_t>(1, ceil_div(whole, longest))),
        depth(ceil_div(whole, count)),
        whole(whole) {}
  int64_t begin(int64_t s) const { return s * depth; }
  int64_t depth_of(int64_t s) const { return std::min(depth, whole - begin(s)); }
};

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {

// The last two dimensions.
inline int64_t last(const Tensor& x) { return x.dim() - 1; }
inline int64_t last_but_one(const Tensor& x) { return x.dim() - 2; }

inline Tensor strided(const Tensor& x) {
  const int64_t row = x.stride(last_but_one(x)), column = x.stride(last(x));
  return row > 0 && column > 0 && (row == 1 || column == 1) ? x : torch::stable::contiguous(x);
}

inline Strided elements_of(const Tensor& x, int64_t number) {
  const int64_t row = last_but_one(x), column = last(x),
                size = x.scalar_type() == ScalarType::Double ? 8 : 4;
  const int64_t offset = x.dim() == 3 ? number * x.stride(0) * size : 0;
  // a dimension of one element may have any stride
  return {static_cast<const char*>(x.data_ptr()) + offset,
          x.size(row) == 1 && x.stride(column) != 1 ? 1 : x.stride(row),
          x.size(column) == 1 && x.stride(row) != 1 ? 1 : x.stride(column)};
}

// kernel(a, b, shape, whether the numbers are wide, c) for every matrix.
template <typename Kernel>
Tensor product_of(const Tensor& a, const Tensor& b, const Kernel& kernel) {
  const ScalarType t = a.scalar_type();
  const bool stack = a.dim() == 3;
  CK_CHECK(a.dim() == b.dim() && (stack || a.dim() == 2),
           "a and b must be matrices or stacks of them");
  CK_CHECK(t == ScalarType::Float || t == ScalarType::Double, "a must be float32 or float64");
  CK_CHECK(b.scalar_type() == t, "b has the wrong dtype");
  const int64_t count = stack ? a.size(0) : 1;
  const ProductShape shape{a.size(last_but_one(a)), b.size(last(b)), a.size(last(a))};
  CK_CHECK(b.size(last_but_one(b)) == shape.depth && (!stack || b.size(0) == count), "b must have ",
           shape.depth, " rows, and as many matrices as a");
  Tensor c = stack ? new_tensor(a, {count, shape.rows, shape.columns}, t)
                   : new_matrix(a, shape.rows, shape.columns, t);
  const Tensor left = strided(a);
  const bool along = elements_of(left, 0).column == 1;
  const Tensor right = along ? strided(b) : torch::stable::contiguous(b);
  for (int64_t i = 0; i < count; ++i) {
    kernel(elements_of(left, i), elements_of(right, i), shape, t == ScalarType::Double,
           const_cast<void*>(elements_of(c, i).values));
  }
  return c;
}

}  // namespace ck
#endif
