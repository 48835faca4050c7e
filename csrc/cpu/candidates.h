// Which clusters can be the nearest other one of a point, from Jensen's bounds on its mean distance to cluster j:
//
//   ||z_u - mu_j||  <=  mean_{v in j} D_uv  <=  sqrt(||z_u - mu_j||^2 + w_j),     w_j = mean_{v in j} ||z_v - mu_j||^2
//
// In many dimensions the upper bound is nearly met and the lower one is not. With m = E D^2 = ||x_u||^2 + w_j and, from
// sqrt(t) >= 1 + (t - 1) / 2 - (t - 1)^2 / 2 for t = D^2 / m,
//
//   mean_{v in j} D_uv  >=  sqrt(m) (1 - Var(D^2) / (2 m^2)),     std(D^2) <= std(||x_v||^2) + 2 ||x_u|| sqrt(lambda_j)
//
// where x is around mu_j and lambda_j >= the largest eigenvalue of the covariance of cluster j: its Frobenius norm, which the own block
// gives along with the distances.
//
// Cluster j can be left out where its lower bound exceeds the least upper bound. All are computed from x = z - t and m_j = mu_j - t with t
// the mean of the means; their rounding errors, that of the means, and that of the distance sums are added to the threshold, so that
// the winner among the computed means is never left out.
#pragma once

#include "cpu/block_sums.h"

namespace ck::CK_ISA {

template <typename C>
class CandidateFinder {
 public:
  CandidateFinder(const PairProblem<C>& problem, const Moments* moments)  // [c]
      : problem_(problem),
        c_(problem.segments.clusters),
        d_(problem.z.width()),
        panels_(c_, d_),
        width_(ceil_div(c_, kLanes<C>) * kLanes<C>),
        centre_(d_),
        spread_(width_),
        shape_(c_) {
    const double unit = std::numeric_limits<C>::epsilon() / 2;
    rounding_ = (d_ + 8) * unit;
    std::vector<double> sum(d_, 0.0);
    int64_t present = 0;
    double far = 0;
    for (int64_t j = 0; j < c_; ++j) {
      if (problem.segments.size(j) == 0) continue;
      ++present;
      double square = 0;
      for (int64_t k = 0; k < d_; ++k) {
        const double x = problem.mean(j)[k];
        sum[k] += x;
        square += x * x;
      }
      far = std::max(far, square);
    }
    for (int64_t k = 0; k < d_; ++k) {
      centre_[k] = static_cast<C>(sum[k] / std::max<int64_t>(present, 1));
    }
    std::fill(spread_.get(), spread_.get() + width_, std::numeric_limits<C>::infinity());
    double reach = 0;
    for (int64_t j = 0; j < c_; ++j) {
      const int64_t size = problem.segments.size(j);
      if (size == 0) {
        panels_.set_bias(j, std::numeric_limits<C>::infinity());
        continue;
      }
      double square = 0;
      for (int64_t k = 0; k < d_; ++k) {
        const double m = problem.mean(j)[k] - centre_[k];
        square += m * m;
      }
      panels_.set_bias(j, static_cast<C>(square));
      spread_[j] = static_cast<C>(moments[j].norm / size);
      shape_[j] = shape(moments[j], size);
      reach = std::max(reach, square);
    }
    parallel(panels_.count(), [&](int64_t first, int64_t last) {
      for (int64_t panel = first; panel < last; ++panel) {
        panels_.fill(panel, [&](int64_t j, int64_t k) {
          return problem.segments.size(j) == 0 ? C(0) : -2 * (problem.mean(j)[k] - centre_[k]);
        });
      }
    });
    reach_ = std::sqrt(reach);
    mean_error_ = 1.01 * unit * std::sqrt(far);
    // A mean distance errs by at most 8 rounding_ (||x|| + radius): pairs at the threshold kClose, all rounded the same way.
    slack_ = 32 * rounding_;
  }

  // Scratch of one thread.
  struct Workspace {
    Workspace(int64_t d, int64_t width) : rows(kBlockRows, d), scores(kBlockRows * width) {}
    PointBlock<C> rows;
    Buffer<C> scores;  // [row, cluster]
  };
  Workspace workspace() const { return Workspace(d_, width_); }

  // emit(place, cluster) for the candidates of the points at places [begin, begin + m) of the sorted order, clusters ascending.
  template <typename Emit>
  void find(int64_t begin, int64_t m, Workspace& w, const int64_t* labels, const Emit& emit) const {
    const WeightedPoints<C> points{problem_.segments.order.get(), problem_.segments.scored()};
    w.rows.load(problem_.z, points, begin, m, centre_.get());
    C* scores = w.scores.get();
    block_product(w.rows.row(0), w.rows.stride(), m, panels_,
                  [&]<int R, int V>(int64_t first, int64_t column, const Vec<C>(&tile)[R][V]) {
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) {
                      const C norm = w.rows.norm(first + r);
#pragma GCC unroll 8
                      for (int v = 0; v < V; ++v) {
                        store(scores + (first + r) * width_ + column + v * kLanes<C>,
                              tile[r][v] + norm);
                      }
                    }
                  });
    for (int64_t r = 0; r < m; ++r) {
      const int64_t own = labels[w.rows.id(r)];
      C* score = scores + r * width_;
      score[own] = std::numeric_limits<C>::infinity();
      Vec<C> least = broadcast(std::numeric_limits<C>::infinity());
      for (int64_t j = 0; j < width_; j += kLanes<C>) {
        const Vec<C> upper = load(score + j) + load(spread_.get() + j);
        least = upper < least ? upper : least;
      }
      double bound = least[0];
      for (int i = 1; i < kLanes<C>; ++i) bound = std::min<double>(bound, least[i]);
      const double far = std::sqrt(static_cast<double>(w.rows.norm(r))) + reach_;
      const double error = far * (rounding_ * far + 2 * mean_error_);
      bound = bound * (1 + slack_) + 2 * error;
      const Vec<C> limit = broadcast(static_cast<C>(bound));
      for (int64_t j = 0; j < width_; j += kLanes<C>) {
        const Vec<C> lower = load(score + j);
        if (!any(~(lower > limit))) continue;
        for (int64_t i = j; i < std::min(j + kLanes<C>, c_); ++i) {
          const bool taken = !(score[i] > limit[0]) && i != own;
          if (!taken || problem_.segments.size(i) == 0) continue;
          if (!(lower_bound(score[i], i) > bound + 4 * error)) emit(begin + r, i);
        }
      }
    }
  }

 private:
  // std(||x_v||^2) and sqrt(lambda) of a cluster.
  struct Shape {
    double deviation = 0, axis = 0;
  };

  Shape shape(const Moments& moments, int64_t size) const {
    const double mean = moments.norm / size, square = moments.squared_norm / size;
    const double variance = std::max(square - mean * mean, 0.0) + 4 * rounding_ * square;
    double axis = std::sqrt(moments.squared_norm + 2 * moments.energy) / size;
    // Squares of products this small would underflow: the trace is a bound as well.
    if (!(mean > 1e3 * std::sqrt(std::numeric_limits<C>::min()))) axis = mean;
    return {std::sqrt(variance), std::sqrt(1.001 * axis + 4 * rounding_ * mean)};
  }

  // The square of the second lower bound; 0 where it says nothing.
  double lower_bound(double score, int64_t j) const {
    const double near = std::max(score, 0.0), mean = near + spread_[j];
    const double deviation = shape_[j].deviation + 2 * shape_[j].axis * std::sqrt(near);
    const double share = 1 - deviation * deviation / (2 * mean * mean);
    return share > 0 ? mean * share * share : 0.0;
  }

  const PairProblem<C>& problem_;
  int64_t c_, d_;
  Panels<C> panels_;
  int64_t width_;
  Buffer<C> centre_, spread_;
  std::vector<Shape> shape_;
  double reach_, rounding_, mean_error_, slack_;
};

// What the first pass keeps of the candidates: their number for every point, the first few of them, and how many points of a cluster have
// each other cluster as candidate (only where that table is no larger than a few numbers a point).
struct CandidateSummary {
  static constexpr int64_t kFew = 4;
  Buffer<uint32_t> count;                     // [place]
  Buffer<uint32_t> few;                       // [place, kFew]
  std::vector<std::atomic<uint32_t>> demand;  // [own cluster, candidate] or empty

  bool complete(int64_t place) const { return count[place] <= kFew; }
};

template <typename C>
CandidateSummary summarise_candidates(const CandidateFinder<C>& finder, const Segments& segments,
                                      const int64_t* labels) {
  const int64_t places = segments.scored(), c = segments.clusters;
  CandidateSummary s;
  s.count = Buffer<uint32_t>(places);
  s.few = Buffer<uint32_t>(places * CandidateSummary::kFew);
  std::fill(s.count.get(), s.count.get() + places, 0);
  const bool counted = c * c <= std::max<int64_t>(8 * places, 1 << 16);
  if (counted) s.demand = std::vector<std::atomic<uint32_t>>(c * c);
  parallel(ceil_div(places, kBlockRows), [&](int64_t first, int64_t last) {
    auto workspace = finder.workspace();
    std::vector<uint32_t> demand(counted ? c : 0);
    int64_t own = -1;
    const auto flush = [&](int64_t next) {
      for (int64_t j = 0; own >= 0 && counted && j < c; ++j) {
        if (demand[j] > 0) s.demand[own * c + j] += demand[j];
        demand[j] = 0;
      }
      own = next;
    };
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlockRows;
      finder.find(begin, std::min(kBlockRows, places - begin), workspace, labels,
                  [&](int64_t place, int64_t j) {
                    const int64_t cluster = labels[segments.order[place]];
                    if (cluster != own) flush(cluster);
                    if (counted) ++demand[j];
                    const uint32_t rank = s.count[place]++;
                    if (rank < CandidateSummary::kFew) {
                      s.few[place * CandidateSummary::kFew + rank] = static_cast<uint32_t>(j);
                    }
                  });
    }
    flush(-1);
  });
  return s;
}

}  // namespace ck::CK_ISA
