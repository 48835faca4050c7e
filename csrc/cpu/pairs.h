// Distances of pairs of points in register tiles, summed while they are in registers.
//
//   D_uv^2 = ||x_u||^2 + ||x_v||^2 - 2 x_u.x_v      x = z - centre, the mean of the column cluster
//
// Where that is below kClose (||x_u||^2 + ||x_v||^2) too many digits have cancelled, and the pair is recomputed from z itself.
#pragma once

#include "cpu/rows.h"
#include "cpu/tile.h"
#include "cpu/vec_math.h"

namespace ck::CK_ISA {

template <typename C>
constexpr C kClose = C(1) / 256;

// Points u with their weights: the summed or differentiated function is  sum over pairs of (alpha_u beta_v + beta_u alpha_v) D_uv.
template <typename C>
struct WeightedPoints {
  const uint32_t* ids;  // [count] rows of z
  int64_t count;
  const C* alpha = nullptr;  // by row of z; null: 0
  const C* beta = nullptr;   // by row of z; null: constant_beta
  C constant_beta = 1;
};

// Row stride for translated points: whole cache lines, an odd number of them, so that a column of rows spreads over the cache sets.
template <typename C>
CK_INLINE int64_t padded_stride(int64_t d) {
  const int64_t line = 64 / static_cast<int64_t>(sizeof(C));
  return (ceil_div(d, line) | 1) * line;
}

// Translated points, row-major with zero padding (also up to whole register tiles), with their squared norms and weights.
template <typename C>
class PointBlock {
 public:
  PointBlock(int64_t capacity, int64_t d)
      : d_(d),
        stride_(padded_stride<C>(d)),
        values_((capacity + kTileRows) * stride_),
        norms_(capacity + kTileRows),
        alpha_(capacity),
        beta_(capacity),
        ids_(capacity),
        scratch_(d) {}

  void load(const Rows<C>& z, const WeightedPoints<C>& points, int64_t begin, int64_t count,
            const C* centre) {
    count_ = count;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t id = points.ids[begin + i];
      if (i + 2 < count) z.prefetch(points.ids[begin + i + 2]);
      const C* x = z.row(id, scratch_.get());
      C* out = row(i);
      for (int64_t k = 0; k < d_; ++k) out[k] = x[k] - centre[k];
      std::fill(out + d_, out + stride_, C(0));
      norms_[i] = dot(out, out, d_);
      alpha_[i] = points.alpha == nullptr ? C(0) : points.alpha[id];
      beta_[i] = points.beta == nullptr ? points.constant_beta : points.beta[id];
      ids_[i] = id;
    }
    std::fill(row(count), row(count + kTileRows), C(0));
    std::fill(norms_.get() + count, norms_.get() + count + kTileRows, C(0));
  }

  int64_t count() const { return count_; }
  int64_t depth() const { return d_; }
  int64_t stride() const { return stride_; }
  C* row(int64_t i) const { return values_.get() + i * stride_; }
  C norm(int64_t i) const { return norms_[i]; }
  C alpha(int64_t i) const { return alpha_[i]; }
  C beta(int64_t i) const { return beta_[i]; }
  uint32_t id(int64_t i) const { return ids_[i]; }

 private:
  int64_t d_, stride_, count_ = 0;
  Buffer<C> values_, norms_, alpha_, beta_;
  Buffer<uint32_t> ids_;
  Buffer<C> scratch_;
};

// A point block whose points are also packed, times -2, as the columns of register tiles: [panel][k][column]. Padding columns are zero.
template <typename C>
class ColumnBlock : public PointBlock<C> {
 public:
  static constexpr int64_t kWidth = kTileVectors * kLanes<C>;

  ColumnBlock(int64_t capacity, int64_t d)
      : PointBlock<C>(capacity, d),
        panels_(ceil_div(capacity, kWidth) * kWidth * d),
        norm_(ceil_div(capacity, kWidth) * kWidth),
        alpha_(ceil_div(capacity, kWidth) * kWidth),
        beta_(ceil_div(capacity, kWidth) * kWidth) {}

  void load(const Rows<C>& z, const WeightedPoints<C>& points, int64_t begin, int64_t count,
            const C* centre) {
    PointBlock<C>::load(z, points, begin, count, centre);
    for (int64_t panel = 0; panel < panels(); ++panel) pack(panel);
  }

  int64_t panels() const { return ceil_div(this->count(), kWidth); }
  int64_t columns(int64_t panel) const { return std::min(kWidth, this->count() - panel * kWidth); }
  int64_t vectors(int64_t panel) const { return ceil_div(columns(panel), kLanes<C>); }
  const C* panel(int64_t panel) const { return panels_.get() + panel * kWidth * this->depth(); }
  const C* norms(int64_t panel) const { return norm_.get() + panel * kWidth; }
  const C* alphas(int64_t panel) const { return alpha_.get() + panel * kWidth; }
  const C* betas(int64_t panel) const { return beta_.get() + panel * kWidth; }

 private:
  void pack(int64_t panel) {
    const int64_t d = this->depth(), real = columns(panel), width = vectors(panel) * kLanes<C>;
    C* out = panels_.get() + panel * kWidth * d;
    const C* rows[kWidth];
    for (int64_t i = 0; i < kWidth; ++i) {
      rows[i] = this->row(panel * kWidth + std::min(i, real - 1));
    }
    if (real == kWidth) {
      for (int64_t k = 0; k < d; ++k) {
#pragma GCC unroll 64
        for (int64_t i = 0; i < kWidth; ++i) out[k * kWidth + i] = -2 * rows[i][k];
      }
    } else {
      for (int64_t k = 0; k < d; ++k) {
        for (int64_t i = 0; i < width; ++i) out[k * width + i] = i < real ? -2 * rows[i][k] : C(0);
      }
    }
    for (int64_t i = 0; i < width; ++i) {
      const int64_t column = panel * kWidth + i;
      norm_[column] = i < real ? this->norm(column) : C(0);
      alpha_[column] = i < real ? this->alpha(column) : C(0);
      beta_[column] = i < real ? this->beta(column) : C(0);
    }
  }

  Buffer<C> panels_, norm_, alpha_, beta_;
};

// Which pairs of a block count: all, or those whose column lies behind the row in the cluster's order, or all but a point with itself.
// `offset` is the place of the first column minus that of the first row.
enum class Pairs { all, upper, others };

CK_INLINE bool counts(Pairs pairs, int64_t row, int64_t column, int64_t offset) {
  if (pairs == Pairs::upper) return column + offset > row;
  if (pairs == Pairs::others) return column + offset != row;
  return true;
}

// Squared distances [row][column of the panel] of close pairs, recomputed by direct difference.
template <typename C>
__attribute__((noinline)) void recompute_close(Pairs pairs, const Rows<C>& z,
                                               const PointBlock<C>& rows, int64_t first, int64_t m,
                                               const ColumnBlock<C>& columns, int64_t panel,
                                               int64_t offset, C* squares) {
  Buffer<C> scratch(z.direct() ? 0 : 2 * z.width());
  const int64_t width = columns.vectors(panel) * kLanes<C>;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t i = 0; i < columns.columns(panel); ++i) {
      const int64_t column = panel * ColumnBlock<C>::kWidth + i;
      if (!counts(pairs, first + r, column, offset)) continue;
      C& square = squares[r * width + i];
      if (square >= kClose<C> * (rows.norm(first + r) + columns.norm(column))) continue;
      const C* x = z.row(rows.id(first + r), scratch.get());
      const C* y = z.row(columns.id(column), scratch.get() + (z.direct() ? 0 : z.width()));
      square = squared_distance(x, y, z.width());
    }
  }
}

// One register tile of squared distances, close pairs recomputed.
template <Pairs kPairs, int V, typename C>
CK_INLINE void squared_tile(const Rows<C>& z, const PointBlock<C>& rows, int64_t first, int64_t m,
                            const ColumnBlock<C>& columns, int64_t panel, int64_t offset,
                            Vec<C> (&square)[kTileRows][V]) {
  constexpr int L = kLanes<C>;
  const C* norms = columns.norms(panel);
  product_tile<C, kTileRows, V>(rows.row(first), rows.stride(), columns.panel(panel), norms,
                                rows.depth(), square);
  Vec<Index<C>> close{};
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    const C norm = rows.norm(first + r);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      square[r][v] += norm;
      close |= square[r][v] < kClose<C> * (load(norms + v * L) + norm);
    }
  }
  if (any(close)) [[unlikely]] {
    C squares[kTileRows * V * L];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) store(squares + (r * V + v) * L, square[r][v]);
    }
    recompute_close(kPairs, z, rows, first, m, columns, panel, offset, squares);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) square[r][v] = load(squares + (r * V + v) * L);
    }
  }
}

// All ones in the lanes whose pair counts.
template <Pairs kPairs, typename C>
CK_INLINE Vec<Index<C>> pair_mask(int64_t row, int64_t column, int64_t real_columns,
                                  int64_t offset) {
  const Vec<Index<C>> lane = lane_numbers<C>() + static_cast<Index<C>>(column);
  Vec<Index<C>> mask = lane < static_cast<Index<C>>(real_columns);
  const Vec<Index<C>> place = lane + static_cast<Index<C>>(offset);
  if constexpr (kPairs == Pairs::upper) mask &= place > static_cast<Index<C>>(row);
  if constexpr (kPairs == Pairs::others) mask &= place != static_cast<Index<C>>(row);
  return mask;
}

// Whether a tile has no pair that counts, and whether all of them count (a tile without padding and away from the diagonal).
template <Pairs kPairs>
CK_INLINE bool tile_is_empty(int64_t first_row, int64_t last_column, int64_t offset) {
  return kPairs == Pairs::upper && last_column + offset <= first_row;
}

template <Pairs kPairs>
CK_INLINE bool tile_is_full(int64_t first_row, int64_t m, int64_t first_column, int64_t last_column,
                            int64_t offset) {
  if constexpr (kPairs == Pairs::upper) return first_column + offset >= first_row + m;
  if constexpr (kPairs == Pairs::others) {
    return first_column + offset >= first_row + m || last_column + offset < first_row;
  }
  return true;
}

template <Pairs kPairs, bool kColumnSums, int V, typename C>
void panel_sums(const Rows<C>& z, const PointBlock<C>& rows, const ColumnBlock<C>& columns,
                int64_t panel, int64_t offset, Vec<C>* row_sums, C* column_sums, double* energy) {
  constexpr int L = kLanes<C>;
  const int64_t column = panel * ColumnBlock<C>::kWidth, real = columns.columns(panel);
  const C* betas = columns.betas(panel);
  const C* norms = columns.norms(panel);
  Vec<C> below[V] = {}, squares{};
  for (int64_t first = 0; first < rows.count(); first += kTileRows) {
    const int64_t m = std::min<int64_t>(kTileRows, rows.count() - first);
    if (tile_is_empty<kPairs>(first, column + real - 1, offset)) break;
    Vec<C> tile[kTileRows][V];
    squared_tile<kPairs, V, C>(z, rows, first, m, columns, panel, offset, tile);
    const bool full =
        real == V * L && tile_is_full<kPairs>(first, m, column, column + real - 1, offset);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= m) break;
      const C beta = rows.beta(first + r), norm = rows.norm(first + r);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        Vec<C> distance = square_root(tile[r][v]);
        Vec<C> twice = norm + load(norms + v * L) - tile[r][v];  // 2 x_u.x_v
        if (!full) {
          const auto mask = pair_mask<kPairs, C>(first + r, column + v * L, column + real, offset);
          distance = mask ? distance : Vec<C>{};
          twice = mask ? twice : Vec<C>{};
        }
        if constexpr (kPairs == Pairs::upper) squares += twice * twice;
        row_sums[first + r] += distance * load(betas + v * L);
        if constexpr (kColumnSums) below[v] += distance * beta;
      }
    }
  }
  if constexpr (kColumnSums) {
    for (int v = 0; v < V; ++v) store(column_sums + v * L, below[v]);
  }
  if constexpr (kPairs == Pairs::upper) *energy += horizontal_sum<C>(squares) / 4;
}

// Scratch of add_distance_sums, and the sum of (x_u.x_v)^2 over the pairs of Pairs::upper that it has seen.
template <typename C>
struct DistanceScratch {
  double energy = 0;
  Buffer<Vec<C>> rows{kBlockRows};
  C columns[ColumnBlock<C>::kWidth];
};

// row_sums_u += sum_v beta_v D_uv,  column_sums_v += sum_u beta_u D_uv  over the pairs of a block that count.
template <Pairs kPairs, bool kColumnSums, typename C>
void add_distance_sums(const Rows<C>& z, const PointBlock<C>& rows, const ColumnBlock<C>& columns,
                       int64_t offset, DistanceScratch<C>& scratch, double* row_sums,
                       double* column_sums) {
  std::fill(scratch.rows.get(), scratch.rows.get() + kBlockRows, Vec<C>{});
  for (int64_t panel = 0; panel < columns.panels(); ++panel) {
    const auto run = [&]<int V>() {
      panel_sums<kPairs, kColumnSums, V, C>(z, rows, columns, panel, offset, scratch.rows.get(),
                                            scratch.columns, &scratch.energy);
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
    if constexpr (kColumnSums) {
      double* out = column_sums + panel * ColumnBlock<C>::kWidth;
      for (int64_t i = 0; i < columns.columns(panel); ++i) out[i] += scratch.columns[i];
    }
  }
  for (int64_t r = 0; r < rows.count(); ++r) row_sums[r] += horizontal_sum<C>(scratch.rows[r]);
}

}  // namespace ck::CK_ISA
