// Sums over the points of each cluster, without atomics and the same for any number of threads.
//
// Rows are sorted by label once (a stable counting sort of their numbers). A cluster is cut into pieces of kPieceRows rows, each piece
// is summed in order, and the pieces of a cluster are added in order, in double. Means are summed around a point amid the piece, so that
// their digits are those of the spread of the data and not of its distance from the origin.
#pragma once

#include "cpu/rows.h"
#include "cpu/tile.h"

namespace ck::CK_ISA {

constexpr int64_t kPieceRows = 512;

// order[offsets[j] .. offsets[j + 1]) are the rows with label j, ascending; labels below 0 are left out.
struct Segments {
  int64_t clusters = 0;
  Buffer<int64_t> offsets;
  Buffer<uint32_t> order;

  int64_t size(int64_t j) const { return offsets[j + 1] - offsets[j]; }
  int64_t scored() const { return offsets[clusters]; }
};

struct Piece {
  int64_t cluster, begin, end;
};

// Labels must be below `clusters`.
template <typename Label>
Segments sort_by_label(const Label* labels, int64_t n, int64_t clusters) {
  Segments s;
  s.clusters = clusters;
  s.offsets = Buffer<int64_t>(clusters + 1);
  s.order = Buffer<uint32_t>(n);
  std::fill(s.offsets.get(), s.offsets.get() + clusters + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    if (labels[i] >= 0) ++s.offsets[labels[i] + 1];
  }
  for (int64_t j = 0; j < clusters; ++j) s.offsets[j + 1] += s.offsets[j];
  std::vector<int64_t> next(s.offsets.get(), s.offsets.get() + clusters);
  for (int64_t i = 0; i < n; ++i) {
    if (labels[i] >= 0) s.order[next[labels[i]]++] = static_cast<uint32_t>(i);
  }
  return s;
}

inline std::vector<Piece> cut_into_pieces(const Segments& segments) {
  std::vector<Piece> pieces;
  pieces.reserve(segments.clusters + segments.scored() / kPieceRows);
  for (int64_t j = 0; j < segments.clusters; ++j) {
    for (int64_t begin = segments.offsets[j]; begin < segments.offsets[j + 1];
         begin += kPieceRows) {
      pieces.push_back({j, begin, std::min(begin + kPieceRows, segments.offsets[j + 1])});
    }
  }
  return pieces;
}

// sum += x
template <typename C>
CK_INLINE void add_row(C* __restrict__ sum, const C* __restrict__ x, int64_t d) {
  for (int64_t k = 0; k < d; ++k) sum[k] += x[k];
}

// sum += w (x - m)
template <typename C>
CK_INLINE void add_scaled_difference(C* __restrict__ sum, C w, const C* __restrict__ x,
                                     const C* __restrict__ m, int64_t d) {
  for (int64_t k = 0; k < d; ++k) sum[k] += w * (x[k] - m[k]);
}

// A point amid the rows of a piece: the median of three of them, column by column, which one outlier does not move.
// scratch holds 3 d values.
template <typename C>
void piece_origin(const Rows<C>& z, const uint32_t* order, const Piece& piece, C* scratch,
                  C* __restrict__ origin) {
  const int64_t d = z.width();
  const C* x0 = z.row(order[piece.begin], scratch);
  const C* x1 = z.row(order[(piece.begin + piece.end) / 2], scratch + d);
  const C* x2 = z.row(order[piece.end - 1], scratch + 2 * d);
  for (int64_t k = 0; k < d; ++k) {
    const C low = std::min(x0[k], x1[k]), high = std::max(x0[k], x1[k]);
    origin[k] = std::max(low, std::min(high, x2[k]));
  }
}

// sum = sum of (x - origin) over the rows of a piece; scratch holds 4 d values
template <typename C>
void sum_piece(const Rows<C>& z, const uint32_t* order, const Piece& piece, C* scratch,
               const C* __restrict__ origin, C* __restrict__ sum) {
  const int64_t d = z.width();
  std::fill(sum, sum + d, C(0));
  int64_t i = piece.begin;
  for (; i + 4 <= piece.end; i += 4) {
    for (int64_t ahead = i + 4; ahead < std::min(i + 8, piece.end); ++ahead) {
      z.prefetch(order[ahead]);
    }
    const C* x0 = z.row(order[i], scratch);
    const C* x1 = z.row(order[i + 1], scratch + d);
    const C* x2 = z.row(order[i + 2], scratch + 2 * d);
    const C* x3 = z.row(order[i + 3], scratch + 3 * d);
    for (int64_t k = 0; k < d; ++k) {
      const C o = origin[k];
      sum[k] += ((x0[k] - o) + (x1[k] - o)) + ((x2[k] - o) + (x3[k] - o));
    }
  }
  for (; i < piece.end; ++i) {
    add_scaled_difference(sum, C(1), z.row(order[i], scratch), origin, d);
  }
}

// out_j = finish(sum over the pieces of cluster j), one row a cluster; zero for empty clusters.
template <typename Part, typename Out, typename Finish>
void combine_pieces(const std::vector<Piece>& pieces, const Part* partial, int64_t clusters,
                    int64_t d, Out* out, const Finish& finish) {
  std::vector<int64_t> first(clusters + 1, static_cast<int64_t>(pieces.size()));
  for (int64_t p = static_cast<int64_t>(pieces.size()) - 1; p >= 0; --p) {
    first[pieces[p].cluster] = p;
  }
  for (int64_t j = clusters - 1; j >= 0; --j) first[j] = std::min(first[j], first[j + 1]);
  parallel(clusters, [&](int64_t begin, int64_t end) {
    std::vector<double> sum(d);
    for (int64_t j = begin; j < end; ++j) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t p = first[j]; p < first[j + 1]; ++p) {
        for (int64_t k = 0; k < d; ++k) sum[k] += partial[p * d + k];
      }
      const double scale = finish(j);
      for (int64_t k = 0; k < d; ++k) out[j * d + k] = static_cast<Out>(sum[k] * scale);
    }
  });
}

// means_j = (sum of w_u z_u) / mass_j; zero where mass_j is zero. weights may be null (then mass is the count).
// Out is C, or double for the digits that rounding to C loses.
template <typename C, typename Out = C>
void segment_means(const Rows<C>& z, const Segments& segments,
                   const C* weights,  // IN [n] or null
                   Out* means,        // OUT [c, d]
                   double* mass) {    // OUT [c]
  const int64_t d = z.width();
  const std::vector<Piece> pieces = cut_into_pieces(segments);
  Buffer<double> partial(static_cast<int64_t>(pieces.size()) * d);
  const uint32_t* order = segments.order.get();
  parallel(static_cast<int64_t>(pieces.size()), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(4 * d), origin(d), sum(d);
    for (int64_t p = first; p < last; ++p) {
      const Piece& piece = pieces[p];
      double piece_mass = static_cast<double>(piece.end - piece.begin);
      piece_origin(z, order, piece, scratch.get(), origin.get());
      if (weights == nullptr) {
        sum_piece(z, order, piece, scratch.get(), origin.get(), sum.get());
      } else {
        piece_mass = 0;
        std::fill(sum.get(), sum.get() + d, C(0));
        for (int64_t i = piece.begin; i < piece.end; ++i) {
          const C w = weights[order[i]];
          piece_mass += w;
          add_scaled_difference(sum.get(), w, z.row(order[i], scratch.get()), origin.get(), d);
        }
      }
      double* total = partial.get() + p * d;
      for (int64_t k = 0; k < d; ++k) total[k] = sum[k] + piece_mass * origin[k];
    }
  });
  for (int64_t j = 0; j < segments.clusters; ++j) {
    mass[j] = static_cast<double>(segments.size(j));
    if (weights == nullptr) continue;
    mass[j] = 0;
    for (int64_t i = segments.offsets[j]; i < segments.offsets[j + 1]; ++i) {
      mass[j] += weights[order[i]];
    }
  }
  combine_pieces(pieces, partial.get(), segments.clusters, d, means,
                 [&](int64_t j) { return mass[j] > 0 ? 1.0 / mass[j] : 0.0; });
}

// sums_j = scale * sum over the rows u of cluster j of weight_u (z_u - centers_j)
template <typename C>
void segment_weighted_differences(const Rows<C>& z, const Segments& segments,
                                  const C* weight,   // IN [n]
                                  const C* centers,  // IN [c, d]
                                  double scale,
                                  C* sums) {  // OUT [c, d]
  const int64_t d = z.width();
  const std::vector<Piece> pieces = cut_into_pieces(segments);
  Buffer<C> partial(static_cast<int64_t>(pieces.size()) * d);
  const uint32_t* order = segments.order.get();
  parallel(static_cast<int64_t>(pieces.size()), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(d);
    for (int64_t p = first; p < last; ++p) {
      C* sum = partial.get() + p * d;
      std::fill(sum, sum + d, C(0));
      for (int64_t i = pieces[p].begin; i < pieces[p].end; ++i) {
        if (i + 2 < pieces[p].end) z.prefetch(order[i + 2]);
        add_scaled_difference(sum, weight[order[i]], z.row(order[i], scratch.get()),
                              centers + pieces[p].cluster * d, d);
      }
    }
  });
  combine_pieces(pieces, partial.get(), segments.clusters, d, sums, [&](int64_t) { return scale; });
}

}  // namespace ck::CK_ISA
