// Gradient of  sum over pairs of (alpha_u beta_v + beta_u alpha_v) D_uv  with respect to the points, distances recomputed.
//
//   W_uv = (alpha_u beta_v + beta_u alpha_v) / D_uv,  0 where D_uv = 0
//   dx_u = x_u sum_v W_uv - sum_v W_uv x_v            dx_v likewise, from the same W
//
// A block of rows goes over the columns in groups of panels: a register tile gives the distances, W stays in cache, and two more
// products bring it to the rows and to the columns. Close pairs are left out of W and added by direct difference.
#pragma once

#include "cpu/block_sums.h"

namespace ck::CK_ISA {

// Panels a group: W of a row block and a group stays in the second-level cache.
constexpr int64_t kGroupPanels = kVectorBytes == 64 ? 3 : 8;

// What the points of a row block receive: dx_i = x_i weight_i - pull_i.
template <typename C>
class RowPull {
 public:
  explicit RowPull(int64_t d)
      : stride_(padded_stride<C>(d)), pull_(kBlockRows * stride_), weight_(kBlockRows) {}

  void clear() {
    std::fill(pull_.get(), pull_.get() + kBlockRows * stride_, C(0));
    std::fill(weight_.get(), weight_.get() + kBlockRows, 0.0);
  }
  C* pull(int64_t i) const { return pull_.get() + i * stride_; }
  double& weight(int64_t i) const { return weight_[i]; }

 private:
  int64_t stride_;
  Buffer<C> pull_;
  Buffer<double> weight_;
};

// The same for packed columns, in their layout: [panel][k][column].
template <typename C>
class ColumnPull {
 public:
  static constexpr int64_t kWidth = ColumnBlock<C>::kWidth;

  ColumnPull(int64_t capacity, int64_t d)
      : d_(d), pull_(ceil_div(capacity, kWidth) * kWidth * d), weight_(capacity + kWidth) {}

  void clear(int64_t count) {
    std::fill(pull_.get(), pull_.get() + ceil_div(count, kWidth) * kWidth * d_, C(0));
    std::fill(weight_.get(), weight_.get() + count + kWidth, 0.0);
  }
  C* panel(int64_t panel) const { return pull_.get() + panel * kWidth * d_; }
  double* weights(int64_t panel) const { return weight_.get() + panel * kWidth; }

  // pull_i[k] for one column of a panel that is `width` columns wide.
  C& at(int64_t column, int64_t k, int64_t width) const {
    const int64_t panel = column / kWidth;
    return pull_[panel * kWidth * d_ + k * width + column % kWidth];
  }
  double& weight(int64_t column) const { return weight_[column]; }

 private:
  int64_t d_;
  Buffer<C> pull_;
  Buffer<double> weight_;
};

template <typename C>
struct GradientScratch {
  Buffer<C> weights{kGroupPanels * kBlockRows * ColumnBlock<C>::kWidth};  // W: [panel][row][column]
  Buffer<Vec<C>> row_weights{kBlockRows};
};

// Close pairs of a tile: their weight is set to zero, their share goes straight to both points, or to the row alone where column_pull is
// null.
template <typename C>
__attribute__((noinline)) void add_close(Pairs pairs, const Rows<C>& z, const PointBlock<C>& rows,
                                         int64_t first, int64_t m, const ColumnBlock<C>& columns,
                                         int64_t panel, int64_t offset, const C* squares,
                                         C* weights, const RowPull<C>& row_pull,
                                         const ColumnPull<C>* column_pull) {
  const int64_t d = z.width(), width = columns.vectors(panel) * kLanes<C>;
  Buffer<C> scratch(z.direct() ? 0 : 2 * d);
  for (int64_t r = 0; r < m; ++r) {
    const int64_t row = first + r;
    for (int64_t i = 0; i < columns.columns(panel); ++i) {
      const int64_t column = panel * ColumnBlock<C>::kWidth + i, place = r * width + i;
      if (!counts(pairs, row, column, offset)) continue;
      if (squares[place] >= kClose<C> * (rows.norm(row) + columns.norm(column))) continue;
      weights[place] = 0;
      const C* x = z.row(rows.id(row), scratch.get());
      const C* y = z.row(columns.id(column), scratch.get() + (z.direct() ? 0 : d));
      const C distance = std::sqrt(squared_distance(x, y, d));
      if (!(distance > 0)) continue;
      const C w =
          (rows.alpha(row) * columns.beta(column) + rows.beta(row) * columns.alpha(column)) /
          distance;
      C* pull = row_pull.pull(row);
      for (int64_t k = 0; k < d; ++k) {
        const C step = w * (x[k] - y[k]);
        pull[k] -= step;
        if (column_pull != nullptr) column_pull->at(column, k, width) += step;
      }
    }
  }
}

// W of one panel: into `weights` ([row][column]), its row and column sums into row_weights and column_weights.
template <Pairs kPairs, bool kColumns, int V, typename C>
void weight_panel(const Rows<C>& z, const PointBlock<C>& rows, const ColumnBlock<C>& columns,
                  int64_t panel, int64_t offset, C* weights, Vec<C>* row_weights,
                  const RowPull<C>& row_pull, const ColumnPull<C>* column_pull) {
  constexpr int L = kLanes<C>;
  const int64_t column = panel * ColumnBlock<C>::kWidth, real = columns.columns(panel);
  const C* norms = columns.norms(panel);
  const C* alphas = columns.alphas(panel);
  const C* betas = columns.betas(panel);
  Vec<C> below[V] = {};
  for (int64_t first = 0; first < rows.count(); first += kTileRows) {
    const int64_t m = std::min<int64_t>(kTileRows, rows.count() - first);
    if (tile_is_empty<kPairs>(first, column + real - 1, offset)) break;
    Vec<C> tile[kTileRows][V];
    product_tile<C, kTileRows, V>(rows.row(first), rows.stride(), columns.panel(panel), norms,
                                  rows.depth(), tile);
    const bool full = m == kTileRows && real == V * L &&
                      tile_is_full<kPairs>(first, m, column, column + real - 1, offset);
    Vec<Index<C>> close{};
    C squares[kTileRows * V * L];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const C norm = rows.norm(first + r);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const Vec<C> square = tile[r][v] + norm;
        store(squares + (r * V + v) * L, square);
        Vec<Index<C>> counted = square > Vec<C>{};
        if (!full) {
          counted &= pair_mask<kPairs, C>(first + r, column + v * L, column + real, offset);
          if (r >= m) counted = Vec<Index<C>>{};
        }
        close |= square < kClose<C> * (load(norms + v * L) + norm);
        const Vec<C> pair = rows.alpha(first + r) * load(betas + v * L) +
                            rows.beta(first + r) * load(alphas + v * L);
        const Vec<C> weight = pair / square_root(square);
        store(weights + ((first + r) * V + v) * L, counted ? weight : Vec<C>{});
      }
    }
    C* tile_weights = weights + first * V * L;
    if (any(close)) [[unlikely]] {
      add_close(kPairs, z, rows, first, m, columns, panel, offset, squares, tile_weights, row_pull,
                kColumns ? column_pull : nullptr);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const Vec<C> weight = load(tile_weights + (r * V + v) * L);
        row_weights[first + r] += weight;
        if constexpr (kColumns) below[v] += weight;
      }
    }
  }
  if constexpr (kColumns) {
    C sums[V * L];
    for (int v = 0; v < V; ++v) store(sums + v * L, below[v]);
    for (int i = 0; i < V * L; ++i) column_pull->weights(panel)[i] += sums[i];
  }
}

// pull[k][column] += sum over the first m rows of x_r[k] W[r][column]
template <int V, typename C>
void pull_columns(const PointBlock<C>& rows, int64_t m, const C* weights, C* pull) {
  constexpr int L = kLanes<C>;
  const int64_t d = rows.depth(), stride = rows.stride();
  for (int64_t k = 0; k < d; k += kTileRows) {
    Vec<C> sum[kTileRows][V] = {};
    const C* x = rows.row(0) + k;
    const C* w = weights;
    for (int64_t r = 0; r < m; ++r, x += stride, w += V * L) {
      Vec<C> column[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) column[v] = load(w + v * L);
#pragma GCC unroll 8
      for (int i = 0; i < kTileRows; ++i) {
        const Vec<C> value = broadcast(x[i]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          sum[i][v] += value * column[v];
          CK_KEEP_IN_REGISTER(sum[i][v]);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
      if (k + i >= d) break;
      C* out = pull + (k + i) * V * L;
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) store(out + v * L, load(out + v * L) + sum[i][v]);
    }
  }
}

// pull_r[k ...] += sum over panels [begin, end) of the group of W[r][column] x_column[k ...] for kTileRows rows and X vectors of k
template <int X, typename C>
void pull_rows_tile(const ColumnBlock<C>& columns, int64_t group, int64_t begin, int64_t end,
                    const C* weights, int64_t row, int64_t k, const RowPull<C>& row_pull) {
  constexpr int L = kLanes<C>;
  constexpr int64_t kWidth = ColumnBlock<C>::kWidth;
  Vec<C> sum[kTileRows][X] = {};
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t width = columns.vectors(group + panel) * L;
    const C* w = weights + panel * kBlockRows * kWidth + row * width;
    const C* x = columns.row((group + panel) * kWidth) + k;
    const int64_t real = columns.columns(group + panel);
    for (int64_t i = 0; i < real; ++i, ++w, x += columns.stride()) {
      Vec<C> value[X];
#pragma GCC unroll 8
      for (int v = 0; v < X; ++v) value[v] = load(x + v * L);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
        const Vec<C> weight = broadcast(w[r * width]);
#pragma GCC unroll 8
        for (int v = 0; v < X; ++v) {
          sum[r][v] += weight * value[v];
          CK_KEEP_IN_REGISTER(sum[r][v]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    C* out = row_pull.pull(row + r) + k;
#pragma GCC unroll 8
    for (int v = 0; v < X; ++v) store(out + v * L, load(out + v * L) + sum[r][v]);
  }
}

// All pairs of a row block and a column block that count. column_pull may be null where kColumns is false.
template <Pairs kPairs, bool kColumns, typename C>
void add_gradient(const Rows<C>& z, const PointBlock<C>& rows, const ColumnBlock<C>& columns,
                  int64_t offset, GradientScratch<C>& scratch, const RowPull<C>& row_pull,
                  const ColumnPull<C>* column_pull) {
  constexpr int L = kLanes<C>;
  constexpr int64_t kWidth = ColumnBlock<C>::kWidth;
  const int64_t count = rows.count(), width = ceil_div(rows.depth(), L) * L;
  std::fill(scratch.row_weights.get(), scratch.row_weights.get() + kBlockRows, Vec<C>{});
  for (int64_t group = 0; group < columns.panels(); group += kGroupPanels) {
    const int64_t size = std::min(kGroupPanels, columns.panels() - group);
    const int64_t behind = std::min((group + size) * kWidth, columns.count());
    if (tile_is_empty<kPairs>(0, behind - 1, offset)) continue;
    for (int64_t p = 0; p < size; ++p) {
      const int64_t panel = group + p;
      C* weights = scratch.weights.get() + p * kBlockRows * kWidth;
      const int64_t last = panel * kWidth + columns.columns(panel) - 1;
      // Rows of which the panel has a pair that counts.
      const int64_t some =
          kPairs == Pairs::upper ? std::clamp<int64_t>(last + offset, 0, count) : count;
      const auto run = [&]<int V>() {
        weight_panel<kPairs, kColumns, V, C>(z, rows, columns, panel, offset, weights,
                                             scratch.row_weights.get(), row_pull, column_pull);
        if constexpr (kColumns) {
          pull_columns<V>(rows, some, weights, column_pull->panel(panel));
        }
      };
      switch (columns.vectors(panel)) {
        case 1:
          run.template operator()<1>();
          break;
        case 2:
          run.template operator()<2>();
          break;
        default:
          run.template operator()<kTileVectors>();
      }
    }
    for (int64_t row = 0; row < count; row += kTileRows) {
      int64_t begin = 0;
      if constexpr (kPairs == Pairs::upper) {
        // Panels whose last column lies in front of all rows of the tile have no weights.
        while (begin < size &&
               tile_is_empty<kPairs>(
                   row, (group + begin) * kWidth + columns.columns(group + begin) - 1, offset)) {
          ++begin;
        }
      }
      if (begin == size) continue;
      int64_t k = 0;
      for (; k + kTileVectors * L <= width; k += kTileVectors * L) {
        pull_rows_tile<kTileVectors>(columns, group, begin, size, scratch.weights.get(), row, k,
                                     row_pull);
      }
      for (; k < width; k += L) {
        pull_rows_tile<1>(columns, group, begin, size, scratch.weights.get(), row, k, row_pull);
      }
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    row_pull.weight(r) += horizontal_sum<C>(scratch.row_weights[r]);
  }
}

}  // namespace ck::CK_ISA
