// Dense product  C = A B:  C_ij = sum_p A_ip B_pj,  for matrices or for stacks of them, one after another.
//
// The inner dimension goes by in slices. Those of B are packed into panels of kColumns columns; a tile of kRows rows of A runs over a
// panel with its sums in registers. Rows of A that lie along p are read where they are; a transposed A (the gradient of a weight) is
// packed as well. The slices depend on the shape alone, are summed along p by one thread and added up in order: the same bits for any
// number of threads. A slice of B fits into the second cache of the CPUs that have AVX-512; elsewhere a block of rows shares each panel.
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
namespace {

#if defined(__AVX512F__)
constexpr int kRows = 12, kVectors = 2, kShared = 1;
#else
constexpr int kRows = 6, kVectors = 2, kShared = 8;
#endif

template <typename T>
constexpr int64_t kColumns = kVectors * kLanes<T>;
template <typename T>
constexpr int64_t kSlice = 2048 / sizeof(T);

// Adds R rows of a slice times a panel to c, or puts them there; a's rows are `row` apart, its steps along p `step`.
template <int R, typename T, typename Row, typename Step>
__attribute__((noinline)) void tile(const T* a, Row row, Step step, const T* panel, int64_t depth,
                                    bool first, T* c, int64_t c_row) {
  constexpr int L = kLanes<T>;
  Vec<T> sum[R][kVectors] = {};
  for (int64_t p = 0; p < depth; ++p, a += step, panel += kColumns<T>) {
    Vec<T> column[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) column[v] = load(panel + v * L);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Vec<T> x = broadcast(a[r * row]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] += x * column[v];
        CK_KEEP_IN_REGISTER(sum[r][v]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      T* out = c + r * c_row + v * L;
      store(out, first ? sum[r][v] : load(out) + sum[r][v]);
    }
  }
}

// The same for up to kRows rows and kColumns columns; where columns are missing the tile works on a copy.
template <typename T, typename Row, typename Step>
void edge_tile(const T* a, Row row, Step step, const T* panel, int64_t depth, bool first, T* c,
               int64_t c_row, int64_t rows, int64_t columns) {
  T copy[kRows * kColumns<T>] = {};
  const bool whole = columns == kColumns<T>;
  T* out = whole ? c : copy;
  const int64_t out_row = whole ? c_row : kColumns<T>;
  for (int64_t r = 0; r < rows && !whole; ++r)
    std::copy_n(c + r * c_row, columns, out + r * out_row);
  if (rows == kRows) {
    tile<kRows>(a, row, step, panel, depth, first, out, out_row);
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      tile<1>(a + r * row, row, step, panel, depth, first, out + r * out_row, out_row);
    }
  }
  for (int64_t r = 0; r < rows && !whole; ++r)
    std::copy_n(out + r * out_row, columns, c + r * c_row);
}

// Packs `count` lines of W of them a panel, [panel][p][line], zeros behind the last. Element (p, line) lies at
// from[p * along + line * across].
template <int64_t W, typename T>
void pack(const T* from, int64_t along, int64_t across, int64_t depth, int64_t count, T* to) {
  const int64_t panels = ceil_div(count, W);
  const auto put = [&](int64_t panel, int64_t p) {
    T* out = to + (panel * depth + p) * W;
    const T* in = from + p * along + panel * W * across;
    const int64_t width = std::min(W, count - panel * W);
    if (across == 1 && width == W) {
      for (int64_t i = 0; i < W; ++i) out[i] = in[i];
    } else {
      for (int64_t i = 0; i < W; ++i) out[i] = i < width ? in[i * across] : T{0};
    }
  };
  // in the order of the memory read
  if (across == 1) {
    parallel(depth, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        for (int64_t panel = 0; panel < panels; ++panel) put(panel, p);
      }
    });
  } else {
    parallel(panels, [&](int64_t first, int64_t last) {
      for (int64_t panel = first; panel < last; ++panel) {
        for (int64_t p = 0; p < depth; ++p) put(panel, p);
      }
    });
  }
}

template <typename T>
void multiply(const Strided& a, const Strided& b, const ProductShape& shape, T* c) {
  constexpr int64_t W = kColumns<T>;
  const T* left = static_cast<const T*>(a.values);
  const T* right = static_cast<const T*>(b.values);
  const int64_t slices = std::max<int64_t>(1, ceil_div(shape.depth, kSlice<T>));
  const int64_t slice = ceil_div(shape.depth, slices);
  const int64_t row_tiles = ceil_div(shape.rows, kRows), panels = ceil_div(shape.columns, W);
  const bool transposed = a.column != 1;
  const Buffer<T> packed_b(panels * W * slice);
  const Buffer<T> packed_a(transposed ? row_tiles * kRows * slice : 0);
  for (int64_t s = 0; s < slices; ++s) {
    const int64_t begin = s * slice, depth = std::min(slice, shape.depth - begin);
    pack<W>(right + begin * b.row, b.row, b.column, depth, shape.columns, packed_b.get());
    if (transposed) {
      pack<kRows>(left + begin * a.column, a.column, a.row, depth, shape.rows, packed_a.get());
    }
    const auto one = [&](int64_t t, int64_t panel) {
      const int64_t i = t * kRows, j = panel * W;
      const int64_t rows = std::min<int64_t>(kRows, shape.rows - i);
      const T* columns = packed_b.get() + j * depth;
      T* out = c + i * shape.columns + j;
      const auto run = [&](const T* from, auto row, auto step) {
        if (rows == kRows && j + W <= shape.columns) {
          tile<kRows>(from, row, step, columns, depth, s == 0, out, shape.columns);
        } else {
          edge_tile(from, row, step, columns, depth, s == 0, out, shape.columns, rows,
                    std::min(W, shape.columns - j));
        }
      };
      if (transposed) {
        run(packed_a.get() + i * depth, std::integral_constant<int64_t, 1>{},
            std::integral_constant<int64_t, kRows>{});
      } else {
        run(left + begin + i * a.row, a.row, std::integral_constant<int64_t, 1>{});
      }
    };
    parallel(row_tiles, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; block += kShared) {
        for (int64_t panel = 0; panel < panels; ++panel) {
          for (int64_t t = block; t < std::min(last, block + kShared); ++t) one(t, panel);
        }
      }
    });
  }
}

}  // namespace

void dense_product_fwd(const Strided& a, const Strided& b, const ProductShape& shape, bool wide,
                       void* c) {
  wide ? multiply(a, b, shape, static_cast<double*>(c))
       : multiply(a, b, shape, static_cast<float*>(c));
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

// The last two dimensions.
int64_t last(const Tensor& x) { return x.dim() - 1; }
int64_t last_but_one(const Tensor& x) { return x.dim() - 2; }

Tensor strided(const Tensor& x) {
  const int64_t row = x.stride(last_but_one(x)), column = x.stride(last(x));
  return row > 0 && column > 0 && (row == 1 || column == 1) ? x : torch::stable::contiguous(x);
}

Strided elements_of(const Tensor& x, int64_t number) {
  const int64_t row = last_but_one(x), column = last(x),
                size = x.scalar_type() == ScalarType::Double ? 8 : 4;
  const int64_t offset = x.dim() == 3 ? number * x.stride(0) * size : 0;
  // a dimension of one element may have any stride
  return {static_cast<const char*>(x.data_ptr()) + offset,
          x.size(row) == 1 && x.stride(column) != 1 ? 1 : x.stride(row),
          x.size(column) == 1 && x.stride(row) != 1 ? 1 : x.stride(column)};
}

Tensor dense_product(const Tensor& a, const Tensor& b) {
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
  const Tensor left = strided(a), right = strided(b);
  for (int64_t i = 0; i < count; ++i) {
    CK_KERNEL(dense_product_fwd)
    (elements_of(left, i), elements_of(right, i), shape, t == ScalarType::Double,
     const_cast<void*>(elements_of(c, i).values));
  }
  return c;
}

}  // namespace
}  // namespace ck

// Other CPUs have a BLAS that knows them better.
#ifdef CK_X86
STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("dense_product", TORCH_BOX(&ck::dense_product));
}
#endif
#endif
