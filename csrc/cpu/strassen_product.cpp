// Dense product  C = A B  of matrices of float32 by seven products of halves instead of eight (Strassen, in Winograd's form):
//
//   S1 = A21 + A22   S2 = S1 - A11   S3 = A11 - A21   S4 = A12 - S2
//   T1 = B12 - B11   T2 = B22 - T1   T3 = B22 - B12   T4 = B21 - T2
//   C11 = A11 B11 + A12 B21            U = A11 B11 + S2 T2      C12 = U + S1 T1 + S4 B22
//   C21 = U + S3 T3 + A22 T4           C22 = U + S3 T3 + S1 T1
//
// The halves of the rows are two neighbouring tiles of kRows rows, the halves of the inner dimension those of a slice, the halves of the
// columns those of the matrix. A pair of tiles runs through its seven products with the sums in registers, so that C is written once a
// slice and what is shared waits in the first cache. The factors of a pair and of a panel are put together beforehand.
//
// Rounding is that of the largest numbers among the halves: small rows beside large ones lose what eight products would keep, and a NaN
// reaches the other rows of its pair. Shapes without halves, and float64, go to dense_product. The same bits for any number of threads.
#include "cpu/dense_product.h"

CK_DECLARE(void strassen_product_fwd(const ck::Strided& a, const ck::Strided& b,
                                     const ck::ProductShape& shape, bool wide, void* c))

namespace ck::CK_ISA {
namespace {

constexpr int kProducts = 7;
constexpr int64_t kPair = 2 * kRows;
constexpr int64_t kPadded = (kRows + kLanes<float> - 1) / kLanes<float> * kLanes<float>;
constexpr int64_t kWidth = kColumns<float>;

// Half a slice, where rows of A lie along p and where its columns do.
constexpr int64_t kHalf = 256, kShortHalf = 96;

// Panels and pairs of tiles whose factors are put together at a time where the columns of A lie along p.
constexpr int64_t kGroup = 4, kPairs = 4;

// Pairs of tiles that take turns with a panel.
constexpr int64_t kTurns = 2;

// Halves of a slice are multiples of this, with zeros behind their ends.
constexpr int64_t kStep = 8;

// Products below this many multiplications are not worth the additions.
constexpr int64_t kSmall = 1 << 22;

// A slice [begin, end) of the inner dimension: its first half ends at `middle`; either takes `half` steps.
struct Halves {
  int64_t begin, end, half, middle;
  Halves(const Slices& slices, int64_t s)
      : begin(slices.begin(s)),
        end(begin + slices.depth_of(s)),
        half(half_of(end - begin)),
        middle(std::min(end, begin + half)) {}
  static int64_t half_of(int64_t depth) { return ceil_div(ceil_div(depth, 2), kStep) * kStep; }
};

// Factors that many numbers apart do not meet in one set of the first cache.
constexpr int64_t spaced(int64_t size) { return size + 16; }

// Lines of memory that are needed later: `rows` runs of `width` lines, which need not begin with a line, `step` bytes apart.
struct Lines {
  const char* at = nullptr;
  int64_t rows = 0, width = 0, step = 0, done = 0;

  Lines() = default;
  Lines(const float* first, int64_t rows, int64_t numbers, int64_t step)
      : at(reinterpret_cast<const char*>(first)),
        rows(rows),
        width(ceil_div(numbers, 16) + 1),
        step(step * static_cast<int64_t>(sizeof(float))) {}
  CK_INLINE void fetch() {
    if (rows == 0) return;
    __builtin_prefetch(at + done * 64, 0, 2);
    if (++done == width) {
      done = 0;
      at += step;
      --rows;
    }
  }
};

// What to fetch between the steps of a product: lines of the factors to come, and the rows of a tile of C that is written next.
struct Ahead {
  Lines a, b;
  const float* c = nullptr;
  int64_t c_row = 0, c_rows = 0;

  CK_INLINE void fetch() {
    a.fetch();
    a.fetch();
    b.fetch();
    if (c_rows > 0) {
      for (int v = 0; v < kVectors; ++v) __builtin_prefetch(c + v * kLanes<float>);
      c += c_row;
      --c_rows;
    }
  }
};

// Element (r, p) of A's factor m at a[m * next + r * row + p * step], of B's at b[(m * depth + p) * kWidth].
template <typename Row, typename Step>
struct Factors {
  const float* a;
  int64_t next;
  Row row;
  Step step;
  const float* b;
};

// A tile of sums that waits in the first cache.
struct alignas(64) Kept {
  float values[kRows * kWidth];
};

// end = start + factor m of A times factor m of B.
template <typename Row, typename Step>
__attribute__((noinline)) void add_product(int m, const Factors<Row, Step> in, int64_t depth,
                                           const Kept& start, Kept& end, Ahead& from) {
  constexpr int L = kLanes<float>;
  const float *a = in.a + m * in.next, *b = in.b + m * depth * kWidth;
  const Row row = in.row;
  const Step step = in.step;
  Ahead ahead = from;
  Vec<float> sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = load(start.values + r * kWidth + v * L);
  }
  for (int64_t p = 0; p < depth; p += kStep) {
    ahead.fetch();
    for (int64_t k = 0; k < kStep; ++k, a += step, b += kWidth) {
      Vec<float> column[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) column[v] = load(b + v * L);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const Vec<float> x = broadcast(a[r * row]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] += x * column[v];
          CK_KEEP_IN_REGISTER(sum[r][v]);
        }
      }
    }
  }
  from = ahead;
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(end.values + r * kWidth + v * L, sum[r][v]);
  }
}

// Four tiles of C, kRows rows and `half` columns apart, that a slice is put into, or added to.
struct Quarters {
  float* c;
  int64_t row, half;
  bool first, fetch;

  float* at(int i, int j) const { return c + i * kRows * row + j * half; }
  void write(int i, int j, const Kept& sum) const {
    for (int r = 0; r < kRows; ++r) {
      for (int64_t k = 0; k < kWidth; k += kLanes<float>) {
        float* out = at(i, j) + r * row + k;
        const Vec<float> value = load(sum.values + r * kWidth + k);
        store(out, first ? value : load(out) + value);
      }
    }
  }
};

CK_INLINE void add(const Kept& x, const Kept& y, Kept& to) {
  for (int64_t k = 0; k < kRows * kWidth; k += kLanes<float>)
    store(to.values + k, load(x.values + k) + load(y.values + k));
}

template <typename Row, typename Step>
void seven_products(const Factors<Row, Step>& in, int64_t depth, const Quarters& out,
                    Ahead& ahead) {
  static const Kept zero{};
  Kept a11_b11, u, u_and_s3_t3, s1_t1, sum;
  const auto soon = [&](int i, int j) {
    if (out.fetch) ahead.c = out.at(i, j), ahead.c_row = out.row, ahead.c_rows = kRows;
  };
  add_product(0, in, depth, zero, a11_b11, ahead);
  soon(0, 0);
  add_product(1, in, depth, a11_b11, sum, ahead);
  out.write(0, 0, sum);
  add_product(2, in, depth, a11_b11, u, ahead);
  add_product(3, in, depth, u, u_and_s3_t3, ahead);
  soon(1, 0);
  add_product(4, in, depth, u_and_s3_t3, sum, ahead);
  out.write(1, 0, sum);
  soon(1, 1);
  add_product(5, in, depth, zero, s1_t1, ahead);
  add(u_and_s3_t3, s1_t1, sum);
  out.write(1, 1, sum);
  soon(0, 1);
  add(u, s1_t1, sum);
  add_product(6, in, depth, sum, sum, ahead);
  out.write(0, 1, sum);
}

// put(m, number of factor m) for four numbers of A, one from each quarter.
template <typename V, typename Put>
CK_INLINE void factors_of_a(V a11, V a12, V a21, V a22, const Put& put) {
  const V s1 = a21 + a22, s2 = s1 - a11;
  put(0, a11), put(1, a12), put(2, s2), put(3, a11 - a21), put(4, a22), put(5, s1),
      put(6, a12 - s2);
}

template <typename V, typename Put>
CK_INLINE void factors_of_b(V b11, V b12, V b21, V b22, const Put& put) {
  const V t1 = b12 - b11, t2 = b22 - t1;
  put(0, b11), put(1, b21), put(2, t2), put(3, b22 - b12), put(4, b21 - t2), put(5, t1),
      put(6, b22);
}

// Steps [p, p + kStep) of the panel's columns, as [p][kWidth], zeros from step `end` on.
void take_columns(const Strided& b, int64_t p, int64_t end, int64_t column, float* to) {
  const float* from = static_cast<const float*>(b.values) + p * b.row + column * b.column;
  const int64_t there = std::clamp<int64_t>(end - p, 0, kStep);
  if (b.column == 1) {
    for (int64_t k = 0; k < there; ++k) std::copy_n(from + k * b.row, kWidth, to + k * kWidth);
  } else {
    for (int64_t j = 0; j < kWidth; ++j) {
      for (int64_t k = 0; k < there; ++k) to[k * kWidth + j] = from[j * b.column + k * b.row];
    }
  }
  std::fill(to + there * kWidth, to + kStep * kWidth, 0.0f);
}

// The factors of B for a panel, as [factor][p][kWidth].
void pack_panel(const Strided& b, const Halves& slice, int64_t panel, int64_t half_columns,
                float* to) {
  alignas(64) float taken[2][2][kStep * kWidth];
  for (int64_t p = 0; p < slice.half; p += kStep) {
    for (int64_t j = 0; j < 2; ++j) {
      const int64_t column = panel * kWidth + j * half_columns;
      take_columns(b, slice.begin + p, slice.middle, column, taken[0][j]);
      take_columns(b, slice.middle + p, slice.end, column, taken[1][j]);
    }
    for (int64_t k = 0; k < kStep * kWidth; k += kLanes<float>) {
      factors_of_b(load(taken[0][0] + k), load(taken[0][1] + k), load(taken[1][0] + k),
                   load(taken[1][1] + k),
                   [&](int m, Vec<float> x) { store(to + (m * slice.half + p) * kWidth + k, x); });
    }
  }
}

// Numbers between the factors of a pair whose rows have `row` numbers.
int64_t factor_size(int64_t row) { return kRows * row; }

// The factors of A for a pair of tiles, as [factor][r][row]. Rows of A lie along p.
void pack_rows(const float* a, int64_t a_row, const Halves& slice, int64_t row, float* to) {
  constexpr int64_t L = kLanes<float>;
  const int64_t before = slice.middle - slice.begin, behind = slice.end - slice.middle;
  for (int64_t r = 0; r < kRows; ++r) {
    const float *upper = a + r * a_row + slice.begin, *lower = upper + kRows * a_row;
    float* out = to + r * row;
    int64_t p = 0;
    for (; p + L <= behind; p += L) {
      factors_of_a(load(upper + p), load(upper + before + p), load(lower + p),
                   load(lower + before + p),
                   [&](int m, Vec<float> x) { store(out + m * factor_size(row) + p, x); });
    }
    for (; p < slice.half; ++p) {
      const auto get = [&](const float* from, int64_t there) { return p < there ? from[p] : 0.0f; };
      factors_of_a(get(upper, before), get(upper + before, behind), get(lower, before),
                   get(lower + before, behind),
                   [&](int m, float x) { out[m * factor_size(row) + p] = x; });
    }
  }
}

void multiply_rows(const Strided& a, const Strided& b, const ProductShape& shape, float* c) {
  const float* left = static_cast<const float*>(a.values);
  const Slices slices(shape.depth, 2 * kHalf);
  const int64_t longest = Halves::half_of(slices.depth), row = longest + kLanes<float>;
  const int64_t half_columns = shape.columns / 2, panels = half_columns / kWidth;
  const int64_t pairs = shape.rows / kPair, panel_size = kProducts * longest * kWidth;
  const Buffer<float> packed(panels * panel_size);
  for (int64_t s = 0; s < slices.count; ++s) {
    const Halves slice(slices, s);
    parallel(panels, [&](int64_t first, int64_t last) {
      for (int64_t panel = first; panel < last; ++panel) {
        pack_panel(b, slice, panel, half_columns, packed.get() + panel * panel_size);
      }
    });
    // of the next pair's rows, between the panels of this one
    const int64_t share = ceil_div(kPair * a.row, panels);
    parallel(ceil_div(pairs, kTurns), [&](int64_t first, int64_t last) {
      const int64_t pair_size = kProducts * factor_size(row);
      const Buffer<float> factors(kTurns * pair_size);
      Ahead ahead{};
      for (int64_t turn = first; turn < last; ++turn) {
        const int64_t pair = turn * kTurns, count = std::min(kTurns, pairs - pair);
        for (int64_t t = 0; t < count; ++t) {
          pack_rows(left + (pair + t) * kPair * a.row, a.row, slice, row,
                    factors.get() + t * pair_size);
        }
        for (int64_t panel = 0; panel < panels; ++panel) {
          for (int64_t t = 0; t < count; ++t) {
            const int64_t next = (pair + count + t) * kPair;
            const float* rows = left + next * a.row;
            if (turn + 1 < last) ahead.a = Lines(rows + panel * share, 1, share, 0);
            seven_products(Factors<int64_t, Constant<1>>{factors.get() + t * pair_size,
                                                         factor_size(row),
                                                         row,
                                                         {},
                                                         packed.get() + panel * panel_size},
                           slice.half,
                           {c + (pair + t) * kPair * shape.columns + panel * kWidth, shape.columns,
                            half_columns, s == 0, true},
                           ahead);
          }
        }
      }
    });
  }
  if (const int64_t done = pairs * kPair; done < shape.rows) {
    dense_product_fwd({left + done * a.row, a.row, a.column}, b,
                      {shape.rows - done, shape.columns, shape.depth}, false,
                      c + done * shape.columns);
  }
}

// The factors of A for `pairs` pairs of tiles, as [pair][factor][p][kPadded], from `rows` rows; those behind are zeros. Columns of A lie
// along p.
void pack_columns(const float* a, int64_t along, const Halves& slice, int64_t pairs, int64_t rows,
                  float* to) {
  const int64_t next = spaced(slice.half * kPadded);
  for (int64_t p = 0; p < slice.half; ++p) {
    const float *upper = a + (slice.begin + p) * along, *lower = a + (slice.middle + p) * along;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t i = pair * kPair;
      alignas(64) float copy[2][kRows + kPadded];
      const auto take = [&](const float* from, bool there, float* to) {
        if (there && rows - i >= kRows + kPadded) return from + i;
        std::fill_n(to, kRows + kPadded, 0.0f);
        if (there) std::copy_n(from + i, std::min(rows - i, kPair), to);
        return static_cast<const float*>(to);
      };
      const float* x = take(upper, slice.begin + p < slice.middle, copy[0]);
      const float* y = take(lower, slice.middle + p < slice.end, copy[1]);
      float* out = to + pair * kProducts * next + p * kPadded;
      for (int64_t r = 0; r < kPadded; r += kLanes<float>) {
        factors_of_a(load(x + r), load(y + r), load(x + kRows + r), load(y + kRows + r),
                     [&](int m, Vec<float> value) { store(out + m * next + r, value); });
      }
    }
  }
}

// Pairs of tiles from row `i` on, times panels from `panel` on.
struct Block {
  int64_t i, pairs, panel, panels;
};

void multiply_block(const Strided& a, const Strided& b, const ProductShape& shape,
                    const Block& block, const Buffer<float>& factors, const Buffer<float>& packed,
                    float* c) {
  const float *left = static_cast<const float*>(a.values) + block.i,
              *right = static_cast<const float*>(b.values) + block.panel * kWidth;
  const Slices slices(shape.depth, 2 * kShortHalf);
  const int64_t half_columns = shape.columns / 2, rows = shape.rows - block.i;
  Ahead ahead;
  for (int64_t s = 0; s < slices.count; ++s) {
    const Halves slice(slices, s);
    const int64_t panel_size = kProducts * slice.half * kWidth;
    for (int64_t j = 0; j < block.panels; ++j) {
      pack_panel(b, slice, block.panel + j, half_columns, packed.get() + j * panel_size);
    }
    if (s + 1 < slices.count) {
      const int64_t depth = slices.depth_of(s + 1);
      ahead.b = Lines(right + slice.end * b.row, 2 * depth, block.panels * kWidth, half_columns);
    }
    for (int64_t pair = 0; pair < block.pairs; ++pair) {
      const int64_t turn = pair % kPairs;
      if (turn == 0) {
        pack_columns(left + pair * kPair, a.column, slice, std::min(kPairs, block.pairs - pair),
                     rows - pair * kPair, factors.get());
        const int64_t next = (pair + kPairs) * kPair;
        if (pair + kPairs < block.pairs) {
          ahead.a = Lines(left + slice.begin * a.column + next, slice.end - slice.begin,
                          std::min(kPairs * kPair, rows - next), a.column);
        } else if (s + 1 < slices.count) {
          ahead.a = Lines(left + slice.end * a.column, slices.depth_of(s + 1),
                          std::min(kPairs * kPair, rows), a.column);
        }
      }
      const int64_t i = pair * kPair, there = std::min(kPair, rows - i),
                    next = spaced(slice.half * kPadded);
      for (int64_t j = 0; j < block.panels; ++j) {
        float* out = c + (block.i + i) * shape.columns + (block.panel + j) * kWidth;
        const Factors<Constant<1>, Constant<kPadded>> in{
            factors.get() + turn * kProducts * next, next, {}, {}, packed.get() + j * panel_size};
        if (there == kPair) {
          seven_products(in, slice.half, {out, shape.columns, half_columns, s == 0, true}, ahead);
          continue;
        }
        alignas(64) float copy[kPair * 2 * kWidth];
        seven_products(in, slice.half, {copy, 2 * kWidth, kWidth, true, false}, ahead);
        for (int64_t r = 0; r < there; ++r) {
          for (int64_t k = 0; k < 2 * kWidth; ++k) {
            float* value = out + r * shape.columns + (k < kWidth ? k : half_columns + k - kWidth);
            *value = (s == 0 ? 0.0f : *value) + copy[r * 2 * kWidth + k];
          }
        }
      }
    }
  }
}

void multiply_columns(const Strided& a, const Strided& b, const ProductShape& shape, float* c) {
  const int64_t pairs = ceil_div(shape.rows, kPair), panels = shape.columns / 2 / kWidth;
  parallel(ceil_div(panels, kGroup) * pairs, [&](int64_t first, int64_t last) {
    const Buffer<float> factors(kPairs * kProducts * spaced(kShortHalf * kPadded));
    const Buffer<float> packed(kGroup * kProducts * kShortHalf * kWidth);
    while (first < last) {
      const int64_t pair = first % pairs, panel = first / pairs * kGroup;
      const int64_t count = std::min(pairs - pair, last - first);
      multiply_block(a, b, shape, {pair * kPair, count, panel, std::min(kGroup, panels - panel)},
                     factors, packed, c);
      first += count;
    }
  });
}

}  // namespace

void strassen_product_fwd(const Strided& a, const Strided& b, const ProductShape& shape, bool wide,
                          void* c) {
  const bool halves =
      !wide && shape.columns % (2 * kWidth) == 0 && shape.rows >= kPair && shape.depth >= 4 * kStep;
  if (!halves || shape.rows * shape.columns * shape.depth < kSmall) {
    dense_product_fwd(a, b, shape, wide, c);
  } else if (a.column == 1) {
    multiply_rows(a, b, shape, static_cast<float*>(c));
  } else {
    multiply_columns(a, b, shape, static_cast<float*>(c));
  }
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
namespace ck {
namespace {

Tensor strassen_product(const Tensor& a, const Tensor& b) {
  return product_of(a, b, CK_KERNEL(strassen_product_fwd));
}

}  // namespace
}  // namespace ck

// Other CPUs have a BLAS that knows them better.
#ifdef CK_X86
STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("strassen_product", TORCH_BOX(&ck::strassen_product));
}
#endif
#endif
