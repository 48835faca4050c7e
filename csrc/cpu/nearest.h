// The nearest of some columns to every row of a block, and how far the runner-up is behind.
//
//   score(u, j) = ||m_j||^2 + 2 t.m_j - 2 z_u.m_j = ||z_u - mu_j||^2 - ||z_u - t||^2,   m_j = mu_j - t
//
// t stays the same while centroids move, so one ||z_u - t||^2 a row turns every score into a distance.
#pragma once

#include "cpu/rows.h"
#include "cpu/tile.h"

namespace ck::CK_ISA {

// Panels of -2 m_j with the bias above, and the sizes that bound the rounding error of a score.
template <typename C>
struct ShiftedPanels {
  Panels<C> panels;
  double longest = 0;  // max_j ||m_j||
  double bias = 0;     // max_j |bias_j|
};

// Columns mu_j = points + row(j) * d for j in [0, count).
template <typename C, typename Row>
ShiftedPanels<C> shifted_panels(const Row& row, int64_t count, int64_t d, const C* t) {
  ShiftedPanels<C> out{Panels<C>(count, d)};
  Panels<C>& panels = out.panels;
  std::vector<double> lengths(count), biases(count);
  parallel(panels.count(), [&](int64_t first, int64_t last) {
    for (int64_t panel = first; panel < last; ++panel) {
      panels.fill(panel, [&](int64_t j, int64_t k) { return -2 * (row(j)[k] - t[k]); });
      const int64_t begin = panel * Panels<C>::kWidth;
      for (int64_t j = begin; j < std::min(begin + Panels<C>::kWidth, count); ++j) {
        const C* mu = row(j);
        double square = 0, along = 0;
        for (int64_t k = 0; k < d; ++k) {
          const double m = static_cast<double>(static_cast<C>(mu[k] - t[k]));
          square += m * m;
          along += m * t[k];
        }
        lengths[j] = std::sqrt(square);
        biases[j] = square + 2 * along;
        panels.set_bias(j, static_cast<C>(biases[j]));
      }
    }
  });
  for (int64_t j = 0; j < count; ++j) {
    out.longest = std::max(out.longest, lengths[j]);
    out.bias = std::max(out.bias, std::abs(biases[j]));
  }
  return out;
}

// Lowest and second-lowest score of a row and the column of the lowest, one of each a lane.
template <typename C>
struct NearestState {
  Vec<C> best, second;
  Vec<Index<C>> index;

  CK_INLINE void clear() {
    best = second = broadcast(std::numeric_limits<C>::infinity());
    index = Vec<Index<C>>{};
  }

  CK_INLINE void add(Vec<C> score, Vec<Index<C>> column) {
    const auto lower = score < best;
    const Vec<C> worse = best < score ? score : best;
    second = worse < second ? worse : second;
    index = lower ? column : index;
    best = lower ? score : best;
  }
};

template <typename C>
struct Nearest {
  C score, second;
  int64_t column;
};

// Over the lanes: lowest score, then lowest column.
template <typename C>
CK_INLINE Nearest<C> finish(const NearestState<C>& state) {
  constexpr int L = kLanes<C>;
  C best[L], second[L];
  Index<C> index[L];
  store(best, state.best);
  store(second, state.second);
  store(index, state.index);
  int top = 0;
  for (int i = 1; i < L; ++i) {
    if (best[i] < best[top] || (best[i] == best[top] && index[i] < index[top])) top = i;
  }
  C next = second[top];
  for (int i = 0; i < L; ++i) {
    if (i != top) next = std::min(next, best[i]);
  }
  return {best[top], next, static_cast<int64_t>(index[top])};
}

// state[i] of the m <= kBlockRows rows at a + i * stride.
template <typename C>
void nearest_block(const C* a, int64_t stride, int64_t m, const Panels<C>& panels,
                   NearestState<C>* state) {
  for (int64_t i = 0; i < m; ++i) state[i].clear();
  const Vec<Index<C>> lanes = lane_numbers<C>();
  block_product(a, stride, m, panels, [&](int64_t first, int64_t column, const auto& tile) {
    using Tile = std::remove_reference_t<decltype(tile)>;
    constexpr int R = std::extent_v<Tile, 0>, V = std::extent_v<Tile, 1>;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const Index<C> base = static_cast<Index<C>>(column + v * kLanes<C>);
        state[first + r].add(tile[r][v], lanes + base);
      }
    }
  });
}

}  // namespace ck::CK_ISA
