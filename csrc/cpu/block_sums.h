// Distance sums over whole blocks of clusters, each pair computed once: own blocks (the upper triangle) and blocks of two clusters.
//
// A block is cut into chunks of rows; a chunk adds its rows' sums and keeps what it adds to the columns apart, and the chunks are
// combined in order. So the work spreads over the threads and the result does not depend on them.
#pragma once

#include "cpu/pairs.h"
#include "cpu/segment.h"
#include "cpu/tasks.h"

namespace ck::CK_ISA {

// Columns packed at a time: a multiple of the panel width of every instruction set and type.
constexpr int64_t kColumnBlock = kVectorBytes == 64 ? 240 : 256;
constexpr int64_t kChunkRows = 4 * kBlockRows;

// Everything the kernels over pairs need to know about the points.
template <typename C>
struct PairProblem {
  const Rows<C>& z;
  const Segments& segments;
  const C* means;  // [c, d]
  Progress& progress;

  const C* mean(int64_t j) const { return means + j * z.width(); }
  WeightedPoints<C> cluster(int64_t j, const C* alpha = nullptr, const C* beta = nullptr) const {
    return {segments.order.get() + segments.offsets[j], segments.size(j), alpha, beta};
  }
  void count_pairs(int64_t pairs) const {
    pairs_computed() += pairs;
    progress.advance(pairs);
  }
};

template <typename C>
struct SumsWorkspace {
  explicit SumsWorkspace(int64_t d) : rows(kBlockRows, d), columns(kColumnBlock, d) {}
  PointBlock<C> rows;
  ColumnBlock<C> columns;
  DistanceScratch<C> scratch;
};

// Rows a chunk of a block with n rows: at most `most` chunks.
inline int64_t chunk_rows(int64_t n, int64_t most) {
  return std::max(kChunkRows, ceil_div(ceil_div(n, most), kTileRows) * kTileRows);
}

// Sums over the pairs of rows [begin, end) of `left` with all of `right`. column_sums may be null.
template <typename C>
void chunk_sums(const PairProblem<C>& problem, const WeightedPoints<C>& left, int64_t begin,
                int64_t end, const WeightedPoints<C>& right, const C* centre, SumsWorkspace<C>& w,
                double* row_sums,       // INOUT [end - begin]
                double* column_sums) {  // INOUT [right.count] or null
  for (int64_t c = 0; c < right.count; c += kColumnBlock) {
    w.columns.load(problem.z, right, c, std::min(kColumnBlock, right.count - c), centre);
    for (int64_t r = begin; r < end; r += kBlockRows) {
      w.rows.load(problem.z, left, r, std::min(kBlockRows, end - r), centre);
      if (column_sums == nullptr) {
        add_distance_sums<Pairs::all, false>(problem.z, w.rows, w.columns, 0, w.scratch,
                                             row_sums + r - begin, nullptr);
      } else {
        add_distance_sums<Pairs::all, true>(problem.z, w.rows, w.columns, 0, w.scratch,
                                            row_sums + r - begin, column_sums + c);
      }
    }
  }
  problem.count_pairs((end - begin) * right.count);
}

// Of the translated points x of a cluster: sums of ||x_u||^2 and ||x_u||^4, and of (x_u.x_v)^2 over its pairs.
struct Moments {
  double norm = 0, squared_norm = 0, energy = 0;
};

// The same within one cluster: pairs of rows [begin, end) with the points behind them. column_sums starts at point `begin`.
// Returns the share of the cluster's moments that this chunk sees; the norms are counted by the first one.
template <typename C>
Moments own_chunk_sums(const PairProblem<C>& problem, const WeightedPoints<C>& cluster,
                       int64_t begin, int64_t end, const C* centre, SumsWorkspace<C>& w,
                       double* row_sums,       // INOUT [end - begin]
                       double* column_sums) {  // INOUT [cluster.count - begin]
  Moments moments;
  w.scratch.energy = 0;
  for (int64_t c = begin; c < cluster.count; c += kColumnBlock) {
    const int64_t columns = std::min(kColumnBlock, cluster.count - c);
    w.columns.load(problem.z, cluster, c, columns, centre);
    for (int64_t i = 0; begin == 0 && i < columns; ++i) {
      const double norm = w.columns.norm(i);
      moments.norm += norm;
      moments.squared_norm += norm * norm;
    }
    for (int64_t r = begin; r < std::min(end, c + columns); r += kBlockRows) {
      w.rows.load(problem.z, cluster, r, std::min(kBlockRows, end - r), centre);
      add_distance_sums<Pairs::upper, true>(problem.z, w.rows, w.columns, c - r, w.scratch,
                                            row_sums + r - begin, column_sums + c - begin);
    }
  }
  const int64_t behind = 2 * cluster.count - begin - end - 1;
  problem.count_pairs((end - begin) * behind / 2);
  moments.energy = w.scratch.energy;
  return moments;
}

// sums[u] = sum of beta_v D_uv over the points v of the cluster of u; 0 for outliers.
template <typename C>
void own_sums(const PairProblem<C>& problem,
              const C* beta,       // IN [n] or null
              C* sums,             // OUT [n]
              Moments* moments) {  // OUT [c] or null
  struct Chunk {
    int64_t cluster, begin, end, partial;
    Moments moments;
  };
  const Segments& segments = problem.segments;
  std::vector<Chunk> chunks;
  int64_t partials = 0;
  for (int64_t j = 0; j < segments.clusters; ++j) {
    const int64_t size = segments.size(j), step = chunk_rows(size, 32);
    for (int64_t begin = 0; begin < size; begin += step) {
      chunks.push_back({j, begin, std::min(begin + step, size), partials, {}});
      partials += size - begin;
    }
  }
  // Of every chunk: what it adds to its rows and the points behind them.
  Buffer<double> added(partials);
  std::fill(added.get(), added.get() + partials, 0.0);
  Buffer<double> row_sums(segments.scored());
  std::fill(row_sums.get(), row_sums.get() + segments.scored(), 0.0);
  parallel_tasks(
      static_cast<int64_t>(chunks.size()), problem.progress,
      [&] { return SumsWorkspace<C>(problem.z.width()); },
      [&](int64_t task, SumsWorkspace<C>& w) {
        Chunk& chunk = chunks[task];
        const int64_t j = chunk.cluster;
        chunk.moments = own_chunk_sums(
            problem, problem.cluster(j, nullptr, beta), chunk.begin, chunk.end, problem.mean(j), w,
            row_sums.get() + segments.offsets[j] + chunk.begin, added.get() + chunk.partial);
      });
  for (const Chunk& chunk : chunks) {
    const int64_t size = segments.size(chunk.cluster);
    double* total = row_sums.get() + segments.offsets[chunk.cluster] + chunk.begin;
    for (int64_t i = 0; i < size - chunk.begin; ++i) total[i] += added[chunk.partial + i];
    if (moments == nullptr) continue;
    Moments& sum = moments[chunk.cluster];
    sum.norm += chunk.moments.norm;
    sum.squared_norm += chunk.moments.squared_norm;
    sum.energy += chunk.moments.energy;
  }
  for (int64_t i = 0; i < segments.scored(); ++i) {
    sums[segments.order[i]] = static_cast<C>(row_sums[i]);
  }
}

}  // namespace ck::CK_ISA
