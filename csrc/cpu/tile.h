// Register-blocked products of rows with packed columns, consumed while they are in registers.
//
//   score(u, j) = bias_j + sum_k rows_u[k] * columns_j[k]
//
// Columns are packed into panels of kTileVectors vectors, [panel][k][column]; the last panel is as narrow as it can be. A tile of
// kTileRows rows runs over the whole of d with its accumulators in registers, starting from the bias.
#pragma once

#include "cpu/parallel.h"
#include "cpu/vec.h"

#include <limits>
#include <vector>

// Ties an accumulator to its register, so that unrolling cannot make the compiler spill it.
#if defined(__AVX512F__)
#define CK_KEEP_IN_REGISTER(x) asm("" : "+v"(x))
#elif defined(__x86_64__)
#define CK_KEEP_IN_REGISTER(x) asm("" : "+x"(x))
#else
#define CK_KEEP_IN_REGISTER(x)
#endif

namespace ck::CK_ISA {

#if defined(__AVX512F__)
constexpr int kTileRows = 8, kTileVectors = 3;
#else
constexpr int kTileRows = 6, kTileVectors = 2;
#endif
static_assert(kBlockRows % kTileRows == 0);

// Memory aligned to cache lines, left uninitialised.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size)
      : data_(static_cast<T*>(::operator new(std::max<int64_t>(size, 1) * sizeof(T), kAlign))) {}
  Buffer(Buffer&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) ::operator delete(data_, kAlign);
  }
  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  static constexpr std::align_val_t kAlign{64};
  T* data_ = nullptr;
};

// Columns in the order the tile reads them. Padding columns have bias infinity, so that they never win.
template <typename C>
class Panels {
 public:
  static constexpr int64_t kWidth = kTileVectors * kLanes<C>;

  Panels(int64_t columns, int64_t d) : columns_(columns), d_(d), full_(columns / kWidth) {
    const int64_t rest = columns - full_ * kWidth;
    tail_vectors_ = ceil_div(rest, kLanes<C>);
    padded_ = full_ * kWidth + tail_vectors_ * kLanes<C>;
    values_ = Buffer<C>(padded_ * d);
    bias_ = Buffer<C>(padded_);
    std::fill(bias_.get() + columns, bias_.get() + padded_, std::numeric_limits<C>::infinity());
  }

  int64_t count() const { return full_ + (tail_vectors_ > 0); }
  int64_t vectors(int64_t panel) const { return panel < full_ ? kTileVectors : tail_vectors_; }
  const C* values(int64_t panel) const { return values_.get() + panel * kWidth * d_; }
  const C* bias(int64_t panel) const { return bias_.get() + panel * kWidth; }
  int64_t columns() const { return columns_; }
  int64_t padded() const { return padded_; }
  int64_t depth() const { return d_; }
  void set_bias(int64_t column, C value) { bias_[column] = value; }

  // Packs one panel; value(column, k) is asked for the real columns, padding is zero.
  template <typename Value>
  void fill(int64_t panel, const Value& value) {
    const int64_t width = vectors(panel) * kLanes<C>;
    C* out = values_.get() + panel * kWidth * d_;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t column = panel * kWidth + i;
      if (column < columns_) {
        for (int64_t k = 0; k < d_; ++k) out[k * width + i] = value(column, k);
      } else {
        for (int64_t k = 0; k < d_; ++k) out[k * width + i] = 0;
      }
    }
  }

 private:
  int64_t columns_, d_, full_, tail_vectors_ = 0, padded_ = 0;
  Buffer<C> values_, bias_;
};

// tile = bias + rows x panel. Not inlined: on its own the compiler keeps every accumulator in a register.
template <typename C, int R, int V>
__attribute__((noinline)) void product_tile(const C* a, int64_t stride, const C* panel,
                                            const C* bias, int64_t d, Vec<C> (&tile)[R][V]) {
  constexpr int L = kLanes<C>;
  Vec<C> sum[R][V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    const Vec<C> start = load(bias + v * L);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r][v] = start;
  }
  for (const C* end = a + d; a != end; ++a, panel += V * L) {
    Vec<C> column[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) column[v] = load(panel + v * L);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec<C> x = broadcast(a[r * stride]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        sum[r][v] += x * column[v];
        CK_KEEP_IN_REGISTER(sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) tile[r][v] = sum[r][v];
  }
}

// Calls consume(first_row, first_column, tile) for every tile of m rows (row i at a + i * stride) with one panel. The tile is a
// Vec<C>[R][V]; R shrinks at the last rows.
template <int V, typename C, typename Consume>
CK_INLINE void panel_product(const C* a, int64_t stride, int64_t m, const Panels<C>& panels,
                             int64_t panel, const Consume& consume) {
  const C* values = panels.values(panel);
  const C* bias = panels.bias(panel);
  const int64_t column = panel * Panels<C>::kWidth;
  int64_t row = 0;
  const auto run = [&]<int R>(std::integral_constant<int, R>) {
    for (; row + R <= m; row += R) {
      Vec<C> tile[R][V];
      product_tile<C, R, V>(a + row * stride, stride, values, bias, panels.depth(), tile);
      consume(row, column, tile);
    }
  };
  run(std::integral_constant<int, kTileRows>{});
  run(std::integral_constant<int, kTileRows / 2>{});
  run(std::integral_constant<int, 1>{});
}

// All panels against a block of m rows, panel by panel: a panel stays in L1 while the rows come from L2. `consume` is a generic
// callable: its tile argument has one type for each number of vectors.
template <typename C, typename Consume>
void block_product(const C* a, int64_t stride, int64_t m, const Panels<C>& panels,
                   const Consume& consume) {
  for (int64_t panel = 0; panel < panels.count(); ++panel) {
    switch (panels.vectors(panel)) {
      case 1:
        panel_product<1>(a, stride, m, panels, panel, consume);
        break;
      case 2:
        panel_product<2>(a, stride, m, panels, panel, consume);
        break;
      default:
        panel_product<kTileVectors>(a, stride, m, panels, panel, consume);
    }
  }
}

}  // namespace ck::CK_ISA
