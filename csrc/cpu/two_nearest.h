// The two nearest centroids of every row of a block, from the register tiles; ties to the lowest index.
//
// Ranked by  ||m_j||^2 + 2 t.m_j - 2 z.m_j  with m_j = mu_j - t and t the mean of the centroids: the same order as ||z - mu_j||, but its
// rounding error grows with the spread of the centroids instead of their distance from the origin.
#pragma once

#include "cpu/tile.h"

namespace ck::CK_ISA {

// Panels of -2 m_j with that bias. allowed[j] == 0 takes a centroid out of the ranking (counts of empty clusters; may be null).
template <typename C>
Panels<C> centroid_panels(const C* centroids, int64_t c, int64_t d, const int64_t* allowed) {
  std::vector<double> centre(d, 0.0);
  int64_t taken = 0;
  for (int64_t j = 0; j < c; ++j) {
    if (allowed != nullptr && allowed[j] == 0) continue;
    ++taken;
    for (int64_t k = 0; k < d; ++k) centre[k] += centroids[j * d + k];
  }
  std::vector<C> t(d);
  for (int64_t k = 0; k < d; ++k) t[k] = static_cast<C>(centre[k] / std::max<int64_t>(taken, 1));
  Panels<C> panels(c, d);
  parallel(panels.count(), [&](int64_t first, int64_t last) {
    for (int64_t panel = first; panel < last; ++panel) {
      panels.fill(panel, [&](int64_t j, int64_t k) { return -2 * (centroids[j * d + k] - t[k]); });
      const int64_t begin = panel * Panels<C>::kWidth;
      for (int64_t j = begin; j < std::min(begin + Panels<C>::kWidth, c); ++j) {
        double bias = 0;
        for (int64_t k = 0; k < d; ++k) {
          const double m = static_cast<double>(static_cast<C>(centroids[j * d + k] - t[k]));
          bias += m * (m + 2.0 * t[k]);
        }
        const bool out = allowed != nullptr && allowed[j] == 0;
        panels.set_bias(j, out ? std::numeric_limits<C>::infinity() : static_cast<C>(bias));
      }
    }
  });
  return panels;
}

// Running best and second best of a row, one pair a lane.
template <typename C>
struct TopTwo {
  Vec<C> best, second;
  Vec<Index<C>> best_index, second_index;

  CK_INLINE void clear() {
    best = second = broadcast(std::numeric_limits<C>::infinity());
    best_index = second_index = Vec<Index<C>>{} - 1;
  }

  CK_INLINE void add(Vec<C> score, Vec<Index<C>> index) {
    const auto first = score < best;
    const auto below = score < second;
    second_index = first ? best_index : (below ? index : second_index);
    second = first ? best : (below ? score : second);
    best_index = first ? index : best_index;
    best = first ? score : best;
  }

  // Over the lanes: lowest score, then lowest index; -1 where there is none.
  CK_INLINE void finish(int64_t* nearest, int64_t* runner_up) const {
    constexpr int L = kLanes<C>;
    C value[2 * L];
    Index<C> index[2 * L];
    store(value, best);
    store(value + L, second);
    store(index, best_index);
    store(index + L, second_index);
    int top = 0;
    for (int i = 1; i < L; ++i) {
      if (value[i] < value[top] || (value[i] == value[top] && before(index[i], index[top])))
        top = i;
    }
    int next = L + top;
    for (int i = 0; i < L; ++i) {
      if (i == top) continue;
      if (value[i] < value[next] || (value[i] == value[next] && before(index[i], index[next]))) {
        next = i;
      }
    }
    *nearest = index[top];
    *runner_up = index[next];
  }

 private:
  // Lowest index first; "none" (-1) last.
  static CK_INLINE bool before(Index<C> a, Index<C> b) {
    using Unsigned = std::make_unsigned_t<Index<C>>;
    return static_cast<Unsigned>(a) < static_cast<Unsigned>(b);
  }
};

// nearest[i], runner_up[i] for the m <= kBlockRows rows of a block. state holds kBlockRows elements.
template <typename C>
void two_nearest_block(const C* a, int64_t stride, int64_t m, const Panels<C>& panels,
                       TopTwo<C>* state, int64_t* nearest, int64_t* runner_up) {
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
  for (int64_t i = 0; i < m; ++i) state[i].finish(nearest + i, runner_up + i);
}

}  // namespace ck::CK_ISA
