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

  Panels(int64_t columns, int64_t d)
      : columns_(columns), d_(d), full_(columns / kWidth) {
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

template <typename C, int V>
CK_INLINE void product_tile(const C* const (&rows)[kTileRows], const C* panel, const C* bias,
                            int64_t d, Vec<C> (&tile)[kTileRows][V]) {
  constexpr int L = kLanes<C>;
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    const Vec<C> start = load(bias + v * L);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) tile[r][v] = start;
  }
  for (int64_t k = 0; k < d; ++k) {
    Vec<C> column[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) column[v] = load(panel + v * L);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const Vec<C> x = broadcast(rows[r][k]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) tile[r][v] += x * column[v];
    }
    panel += V * L;
  }
}

// Calls consume(first_row, rows, first_column, tile) for every tile of m rows (row i at a + i * stride) with one panel. Rows beyond m
// repeat the last one and are to be ignored.
template <int V, typename C, typename Consume>
CK_INLINE void panel_product(const C* a, int64_t stride, int64_t m, const Panels<C>& panels,
                             int64_t panel, const Consume& consume) {
  const int64_t first_column = panel * Panels<C>::kWidth;
  for (int64_t first = 0; first < m; first += kTileRows) {
    const C* rows[kTileRows];
    for (int r = 0; r < kTileRows; ++r) rows[r] = a + std::min(first + r, m - 1) * stride;
    Vec<C> tile[kTileRows][V];
    product_tile<C, V>(rows, panels.values(panel), panels.bias(panel), panels.depth(), tile);
    consume(first, std::min<int64_t>(kTileRows, m - first), first_column, tile);
  }
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
