// Dense product  C = A B:  C_ij = sum_p A_ip B_pj,  for matrices or for stacks of them, one after another.
//
// The inner dimension goes by in slices, and a tile of kRows rows of A runs over a panel of kColumns columns of B with its sums in registers.
// Where rows of A lie along p, they are read where they are, and the slice of B is packed into panels; it fits into the second cache of
// the CPUs that have AVX-512, elsewhere a block of rows shares each panel. With a transposed A (the gradient of a weight) it is the tile
// that is packed, and B, whose columns lie together, is read where it is, in slices short enough to stay in the cache. The slices depend
// on the shape alone, are summed along p by one thread and added up in order: the same bits for any number of threads.
#include "cpu/dense_product.h"

namespace ck::CK_ISA {
namespace {

// Row tiles that take turns with a panel.
#if defined(__AVX512F__)
constexpr int kShared = 1;
#else
constexpr int kShared = 8;
#endif

template <typename T>
constexpr int64_t kSlice = 2048 / sizeof(T);
template <typename T>
constexpr int64_t kShortSlice = 512 / sizeof(T);

// Steps along p that are fetched ahead where they lie apart.
constexpr int64_t kAhead = 8;

// Where a tile reads: element (r, p) of A at a[r * row + p * step], columns of B at panel + p * next. Steps may be known to the compiler.
template <typename T, typename Row, typename Step, typename Next>
struct Operands {
  const T* a;
  Row row;
  Step step;
  const T* panel;
  Next next;
};

// Adds R rows of a slice times V vectors of a panel to c, or puts them there.
template <int R, int V = kVectors, typename T, typename Row, typename Step, typename Next>
__attribute__((noinline)) void tile(const Operands<T, Row, Step, Next> in, int64_t depth,
                                    bool first, T* c, int64_t c_row) {
  constexpr int L = kLanes<T>;
  Vec<T> sum[R][V] = {};
  const T *a = in.a, *panel = in.panel;
  const Row row = in.row;
  const Step step = in.step;
  const Next next = in.next;
  for (int64_t p = 0; p < depth; ++p, a += step, panel += next) {
    if constexpr (std::is_same_v<Next, int64_t>) {
      __builtin_prefetch(panel + kAhead * next);
      if (V * L * sizeof(T) > 64) __builtin_prefetch(panel + kAhead * next + L);
    }
    Vec<T> column[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) column[v] = load(panel + v * L);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Vec<T> x = broadcast(a[r * row]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        sum[r][v] += x * column[v];
        CK_KEEP_IN_REGISTER(sum[r][v]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      T* out = c + r * c_row + v * L;
      store(out, first ? sum[r][v] : load(out) + sum[r][v]);
    }
  }
}

// The same for up to kRows rows and V vectors of columns; where columns are missing the tile works on a copy.
template <int V, typename T, typename Row, typename Step, typename Next>
__attribute__((noinline)) void edge_tile(Operands<T, Row, Step, Next> in, int64_t depth, bool first,
                                         T* c, int64_t c_row, int64_t rows, int64_t columns) {
  constexpr int64_t W = V * kLanes<T>;
  T copy[kRows * W] = {};
  const bool whole = columns == W;
  T* out = whole ? c : copy;
  const int64_t out_row = whole ? c_row : W;
  for (int64_t r = 0; r < rows && !whole && !first; ++r)
    std::copy_n(c + r * c_row, columns, out + r * out_row);
  if (rows == kRows) {
    tile<kRows, V>(in, depth, first, out, out_row);
  } else {
    for (int64_t r = 0; r < rows; ++r, in.a += in.row)
      tile<1, V>(in, depth, first, out + r * out_row, out_row);
  }
  for (int64_t r = 0; r < rows && !whole; ++r)
    std::copy_n(out + r * out_row, columns, c + r * c_row);
}

template <typename T, typename Row, typename Step, typename Next>
CK_INLINE void any_tile(const Operands<T, Row, Step, Next>& in, int64_t depth, bool first, T* c,
                        int64_t c_row, int64_t rows, int64_t columns) {
  if (rows == kRows && columns == kColumns<T>) {
    tile<kRows>(in, depth, first, c, c_row);
  } else if (columns > kLanes<T>) {
    edge_tile<kVectors>(in, depth, first, c, c_row, rows, columns);
  } else {
    edge_tile<1>(in, depth, first, c, c_row, rows, columns);
  }
}

// Columns of B, `depth` of them long, from panel `first` to `last` as [panel][p][kColumns], zeros behind the last column.
template <typename T>
void pack(const Strided& b, const T* from, int64_t depth, int64_t columns, int64_t first,
          int64_t last, T* to) {
  constexpr int64_t W = kColumns<T>;
  const auto put = [&](int64_t panel, int64_t p) {
    T* out = to + ((panel - first) * depth + p) * W;
    const T* in = from + p * b.row + panel * W * b.column;
    const int64_t width = std::min(W, columns - panel * W);
    if (b.column == 1 && width == W) {
      for (int64_t i = 0; i < W; ++i) out[i] = in[i];
    } else {
      for (int64_t i = 0; i < W; ++i) out[i] = i < width ? in[i * b.column] : T{0};
    }
  };
  // in the order of the memory read
  if (b.column == 1) {
    parallel(depth, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        for (int64_t panel = first; panel < last; ++panel) put(panel, p);
      }
    });
  } else {
    parallel(last - first, [&](int64_t begin, int64_t end) {
      for (int64_t panel = first + begin; panel < first + end; ++panel) {
        for (int64_t p = 0; p < depth; ++p) put(panel, p);
      }
    });
  }
}

// A's rows lie along p.
template <typename T>
void multiply_rows(const Strided& a, const Strided& b, const ProductShape& shape, T* c) {
  constexpr int64_t W = kColumns<T>;
  const T* left = static_cast<const T*>(a.values);
  const T* right = static_cast<const T*>(b.values);
  const Slices slices(shape.depth, kSlice<T>);
  const int64_t row_tiles = ceil_div(shape.rows, kRows), panels = ceil_div(shape.columns, W);
  const Buffer<T> packed(panels * W * slices.depth);
  for (int64_t s = 0; s < slices.count; ++s) {
    const int64_t begin = slices.begin(s), depth = slices.depth_of(s);
    pack(b, right + begin * b.row, depth, shape.columns, 0, panels, packed.get());
    const auto one = [&](int64_t t, int64_t panel) {
      const int64_t i = t * kRows, j = panel * W;
      const Operands<T, int64_t, Constant<1>, Constant<W>> in{
          left + begin + i * a.row, a.row, {}, packed.get() + j * depth, {}};
      any_tile(in, depth, s == 0, c + i * shape.columns + j, shape.columns,
               std::min<int64_t>(kRows, shape.rows - i), std::min(W, shape.columns - j));
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

// Up to kRows numbers of every step along p, `along` apart, as to[p][kRows]; zeros behind the last.
template <typename T>
void take_tile(const T* from, int64_t along, int64_t depth, int64_t rows, T* to) {
  for (int64_t p = 0; p < depth; ++p, from += along, to += kRows) {
    __builtin_prefetch(from + kAhead * along);
    if (rows == kRows) {
      for (int64_t r = 0; r < kRows; ++r) to[r] = from[r];
    } else {
      for (int64_t r = 0; r < kRows; ++r) to[r] = r < rows ? from[r] : T{0};
    }
  }
}

// A's columns lie along p, and B's rows across. Of B only the columns that do not fill a panel are packed.
template <typename T>
void multiply_columns(const Strided& a, const Strided& b, const ProductShape& shape, T* c) {
  constexpr int64_t W = kColumns<T>;
  const T* left = static_cast<const T*>(a.values);
  const T* right = static_cast<const T*>(b.values);
  const Slices slices(shape.depth, kShortSlice<T>);
  const int64_t whole = shape.columns / W, rest = shape.columns - whole * W;
  const Buffer<T> packed(rest > 0 ? W * shape.depth : 0);
  if (rest > 0) pack(b, right, shape.depth, shape.columns, whole, whole + 1, packed.get());
  parallel(ceil_div(shape.rows, kRows), [&](int64_t first, int64_t last) {
    alignas(64) T taken[kRows * kShortSlice<T>];
    for (int64_t s = 0; s < slices.count; ++s) {
      const int64_t begin = slices.begin(s), depth = slices.depth_of(s);
      for (int64_t t = first; t < last; ++t) {
        const int64_t i = t * kRows, rows = std::min<int64_t>(kRows, shape.rows - i);
        T* out = c + i * shape.columns;
        take_tile(left + begin * a.column + i, a.column, depth, rows, taken);
        const auto run = [&](const T* panel, int64_t next, int64_t j, int64_t columns) {
          const Operands<T, Constant<1>, Constant<kRows>, int64_t> in{taken, {}, {}, panel, next};
          any_tile(in, depth, s == 0, out + j, shape.columns, rows, columns);
        };
        for (int64_t j = 0; j < whole * W; j += W) run(right + begin * b.row + j, b.row, j, W);
        if (rest > 0) run(packed.get() + begin * W, W, whole * W, rest);
      }
    }
  });
}

template <typename T>
void multiply(const Strided& a, const Strided& b, const ProductShape& shape, T* c) {
  a.column == 1 ? multiply_rows(a, b, shape, c) : multiply_columns(a, b, shape, c);
}

}  // namespace

void dense_product_fwd(const Strided& a, const Strided& b, const ProductShape& shape, bool wide,
                       void* c) {
  wide ? multiply(a, b, shape, static_cast<double*>(c))
       : multiply(a, b, shape, static_cast<float*>(c));
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
namespace ck {
namespace {

Tensor dense_product(const Tensor& a, const Tensor& b) {
  return product_of(a, b, CK_KERNEL(dense_product_fwd));
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
