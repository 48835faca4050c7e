// How far the points of a cluster lie from its centre, and the gradient of any index of those distances.
//
//   squared:    spread_j = sum_{u in j} ||z_u - m_j||^2    directions_j = sum_{u in j} (z_u - m_j)
//   unsquared:  spread_j = sum_{u in j} ||z_u - m_j||      directions_j = sum_{u in j} e(z_u - m_j),  e(x) = x / ||x||, e(0) = 0
//
// Far from the origin a centre rounded to C is off by more than the rounding of differences. There m_j = centers_j + rests_j.
#pragma once

#include "cpu/segment.h"

namespace ck::CK_ISA {

// The means of the clusters and of all their points, in double.
template <typename C>
struct WideMeans {
  WideMeans(const Rows<C>& z, const Segments& segments)
      : d(z.width()), means(segments.clusters * d), mass(segments.clusters), grand(d, 0.0) {
    segment_means<C, double>(z, segments, nullptr, means.get(), mass.data());
    const double scored = static_cast<double>(std::max<int64_t>(segments.scored(), 1));
    for (int64_t j = 0; j < segments.clusters; ++j) {
      for (int64_t k = 0; k < d; ++k) grand[k] += mass[j] / scored * means[j * d + k];
    }
  }

  // What the given centers leave of the means.
  Buffer<C> rests(const C* centers) const {
    Buffer<C> rest(static_cast<int64_t>(mass.size()) * d);
    for (int64_t i = 0; i < static_cast<int64_t>(mass.size()) * d; ++i) {
      rest[i] = static_cast<C>(means[i] - centers[i]);
    }
    return rest;
  }

  int64_t d;
  Buffer<double> means;       // [c, d]
  std::vector<double> mass;   // [c]
  std::vector<double> grand;  // [d]
};

// Whether rounding to C of values as large as these shows in differences that are about `size`.
template <typename C>
bool rounding_shows(const C* values, int64_t count, double size) {
  constexpr double kFar = 32;
  C largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest > kFar * size;
}

// Turns a row x and its rounded centre into (x - centre) - rest and the origin, whose difference has all digits.
template <typename C>
struct Displacement {
  explicit Displacement(int64_t d) : moved(d), zeros(d) {
    std::fill(zeros.get(), zeros.get() + d, C(0));
  }

  CK_INLINE void apply(const C* rest, int64_t d, const C** x, const C** centre) const {
    for (int64_t k = 0; k < d; ++k) moved[k] = ((*x)[k] - (*centre)[k]) - rest[k];
    *x = moved.get();
    *centre = zeros.get();
  }

  Buffer<C> moved, zeros;
};

template <typename C>
void segment_spread(const Rows<C>& z, const Segments& segments,
                    const C* centers,  // IN [c, d]
                    const C* rests,    // IN [c, d] or null
                    bool squared,
                    double* spread,   // OUT [c]
                    C* directions) {  // OUT [c, d] or null
  const int64_t d = z.width();
  const std::vector<Piece> pieces = cut_into_pieces(segments);
  const int64_t count = static_cast<int64_t>(pieces.size());
  Buffer<C> partial(directions == nullptr ? 0 : count * d);
  std::vector<double> piece_spread(count, 0.0);
  const uint32_t* order = segments.order.get();
  parallel(count, [&](int64_t first, int64_t last) {
    Buffer<C> scratch(d);
    const Displacement<C> displacement(d);
    for (int64_t p = first; p < last; ++p) {
      C* sum = partial.get() + p * d;
      if (directions != nullptr) std::fill(sum, sum + d, C(0));
      double total = 0;
      for (int64_t i = pieces[p].begin; i < pieces[p].end; ++i) {
        if (i + 2 < pieces[p].end) z.prefetch(order[i + 2]);
        const C* x = z.row(order[i], scratch.get());
        const C* m = centers + pieces[p].cluster * d;
        if (rests != nullptr) displacement.apply(rests + pieces[p].cluster * d, d, &x, &m);
        const C square = squared_distance(x, m, d);
        const C distance = std::sqrt(square);
        total += squared ? square : distance;
        if (directions == nullptr) continue;
        const C w = squared ? C(1) : distance == 0 ? C(0) : 1 / distance;
        add_scaled_difference(sum, w, x, m, d);
      }
      piece_spread[p] = total;
    }
  });
  std::fill(spread, spread + segments.clusters, 0.0);
  for (int64_t p = 0; p < count; ++p) spread[pieces[p].cluster] += piece_spread[p];
  if (directions != nullptr) {
    combine_pieces(pieces, partial.get(), segments.clusters, d, directions,
                   [](int64_t) { return 1.0; });
  }
}

// dz_u = shared_{y_u} + slope_{y_u} w_u (z_u - m_{y_u}),  w_u = 1 (squared) or 1 / ||z_u - m_{y_u}||; zero for label -1.
template <typename C>
void spread_gradient(const Rows<C>& z, const int64_t* labels,
                     const C* centers,  // IN [c, d]
                     const C* rests,    // IN [c, d] or null
                     const C* shared,   // IN [c, d]
                     const C* slope,    // IN [c]
                     bool squared, const GradientRows<C>& dz) {
  const int64_t n = z.count(), d = z.width();
  parallel(ceil_div(n, kBlockRows), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(2 * d);
    const Displacement<C> displacement(d);
    const int64_t end = std::min(last * kBlockRows, n);
    for (int64_t i = first * kBlockRows; i < end; ++i) {
      if (labels[i] < 0) {
        dz.zero(i);
        continue;
      }
      const C* x = z.row(i, scratch.get());
      const C* m = centers + labels[i] * d;
      const C* base = shared + labels[i] * d;
      if (rests != nullptr) displacement.apply(rests + labels[i] * d, d, &x, &m);
      C w = slope[labels[i]];
      if (!squared) {
        const C distance = std::sqrt(squared_distance(x, m, d));
        w = distance == 0 ? C(0) : w / distance;
      }
      C* __restrict__ out = dz.begin(i, scratch.get() + d);
      for (int64_t k = 0; k < d; ++k) out[k] = base[k] + w * (x[k] - m[k]);
      dz.end(i, out);
    }
  });
}

}  // namespace ck::CK_ISA
