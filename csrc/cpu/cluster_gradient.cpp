// Gradient of distance sums within clusters, and of every point's distance sum to one other cluster, its rival:
//
//   sum over pairs u, v of a cluster of (alpha_u beta_v + beta_u alpha_v) D_uv   +   sum_u rival_alpha_u sum_{v in rival(u)} D_uv
//
// One task a cluster: its own pairs (the upper triangle) and the rectangle of the points that have it as rival with its points, each pair
// giving to both sides. A point then receives exactly two terms, one from its own cluster's task and one from its rival's; as
// 0 + a + b = 0 + b + a, the order in which the tasks come does not matter. Clusters too large for one task are cut into row
// blocks that compute only their own side.
#include "cpu/cluster_gradient.h"

#include "cpu/pair_gradient.h"

namespace ck::CK_ISA {

namespace {

template <typename C>
class ClusterGradient {
 public:
  // rivals: rows sorted by rival; null where there are none.
  ClusterGradient(const PairProblem<C>& problem, const C* alpha, const C* beta,
                  const Segments* rivals, const C* rival_alpha,
                  C* dz)  // OUT [n, d]
      : problem_(problem),
        segments_(problem.segments),
        d_(problem.z.width()),
        alpha_(alpha),
        beta_(beta),
        rivals_(rivals),
        rival_alpha_(rival_alpha),
        dz_(dz),
        locks_(std::make_unique<std::atomic_flag[]>(kLocks)) {}

  void run() {
    std::fill(dz_, dz_ + problem_.z.count() * d_, C(0));
    int64_t largest = 0, expected = 0;
    for (int64_t j = 0; j < segments_.clusters; ++j) {
      const int64_t size = segments_.size(j), rectangle = rival(j).count;
      if (size == 0) continue;
      if (size <= kWholeCluster && rectangle <= 4 * kWholeCluster) {
        tasks_.push_back({Task::whole, j, 0});
        largest = std::max(largest, size);
        expected += size * (size - 1) / 2 + size * rectangle;
        continue;
      }
      for (int64_t r = 0; r < size; r += kBlockRows) tasks_.push_back({Task::own_rows, j, r});
      for (int64_t r = 0; r < rectangle; r += kBlockRows) {
        tasks_.push_back({Task::rival_rows, j, r});
      }
      expected += size * size + 2 * size * rectangle;
    }
    problem_.progress.expect(expected);
    const int64_t capacity = std::max(largest, kColumnBlock);
    parallel_tasks(
        static_cast<int64_t>(tasks_.size()), problem_.progress,
        [&] { return Workspace(capacity, d_); },
        [&](int64_t t, Workspace& w) {
          const Task& task = tasks_[t];
          if (task.kind == Task::whole) {
            whole_cluster(task.cluster, w);
          } else if (task.kind == Task::own_rows) {
            own_rows(task.cluster, task.begin, w);
          } else {
            rival_rows(task.cluster, task.begin, w);
          }
        });
  }

 private:
  static constexpr int64_t kWholeCluster = 1536;
  static constexpr int64_t kLocks = 4096;

  struct Task {
    enum Kind { whole, own_rows, rival_rows } kind;
    int64_t cluster, begin;
  };

  struct Workspace {
    Workspace(int64_t capacity, int64_t d)
        : rows(kBlockRows, d),
          columns(capacity, d),
          row_pull(d),
          column_pull(capacity, d),
          gradient(d) {}
    PointBlock<C> rows;
    ColumnBlock<C> columns;
    RowPull<C> row_pull;
    ColumnPull<C> column_pull;
    GradientScratch<C> scratch;
    Buffer<C> gradient;
  };

  WeightedPoints<C> own(int64_t j) const { return problem_.cluster(j, alpha_, beta_); }

  // The points that have cluster j as rival; they give weight, they take none.
  WeightedPoints<C> rival(int64_t j) const {
    if (rivals_ == nullptr) return {nullptr, 0};
    return {rivals_->order.get() + rivals_->offsets[j], rivals_->size(j), rival_alpha_, nullptr, 0};
  }

  void whole_cluster(int64_t j, Workspace& w) {
    const Rows<C>& z = problem_.z;
    const WeightedPoints<C> cluster = own(j), others = rival(j);
    const C* centre = problem_.mean(j);
    w.columns.load(z, cluster, 0, cluster.count, centre);
    w.column_pull.clear(cluster.count);
    for (int64_t r = 0; r < cluster.count; r += kBlockRows) {
      w.rows.load(z, cluster, r, std::min(kBlockRows, cluster.count - r), centre);
      w.row_pull.clear();
      add_gradient<Pairs::upper, true>(z, w.rows, w.columns, -r, w.scratch, w.row_pull,
                                       &w.column_pull);
      for (int64_t i = 0; i < w.rows.count(); ++i) {
        w.column_pull.weight(r + i) += w.row_pull.weight(i);
        const int64_t width = column_width(w.columns, r + i);
        for (int64_t k = 0; k < d_; ++k) {
          w.column_pull.at(r + i, k, width) += w.row_pull.pull(i)[k];
        }
      }
    }
    for (int64_t r = 0; r < others.count; r += kBlockRows) {
      w.rows.load(z, others, r, std::min(kBlockRows, others.count - r), centre);
      w.row_pull.clear();
      add_gradient<Pairs::all, true>(z, w.rows, w.columns, 0, w.scratch, w.row_pull,
                                     &w.column_pull);
      give_rows(w);
    }
    for (int64_t v = 0; v < cluster.count; ++v) {
      const int64_t width = column_width(w.columns, v);
      const C weight = static_cast<C>(w.column_pull.weight(v));
      for (int64_t k = 0; k < d_; ++k) {
        w.gradient[k] = w.columns.row(v)[k] * weight - w.column_pull.at(v, k, width);
      }
      give(cluster.ids[v], w.gradient.get());
    }
    problem_.count_pairs(cluster.count * (cluster.count - 1) / 2 + cluster.count * others.count);
  }

  void own_rows(int64_t j, int64_t begin, Workspace& w) {
    const Rows<C>& z = problem_.z;
    const WeightedPoints<C> cluster = own(j), others = rival(j);
    const C* centre = problem_.mean(j);
    w.rows.load(z, cluster, begin, std::min(kBlockRows, cluster.count - begin), centre);
    w.row_pull.clear();
    for (int64_t c = 0; c < cluster.count; c += kColumnBlock) {
      w.columns.load(z, cluster, c, std::min(kColumnBlock, cluster.count - c), centre);
      add_gradient<Pairs::others, false>(z, w.rows, w.columns, c - begin, w.scratch, w.row_pull,
                                         static_cast<const ColumnPull<C>*>(nullptr));
    }
    add_columns(others, centre, w);
    give_rows(w);
    problem_.count_pairs(w.rows.count() * (cluster.count + others.count));
  }

  void rival_rows(int64_t j, int64_t begin, Workspace& w) {
    const WeightedPoints<C> cluster = own(j), others = rival(j);
    const C* centre = problem_.mean(j);
    w.rows.load(problem_.z, others, begin, std::min(kBlockRows, others.count - begin), centre);
    w.row_pull.clear();
    add_columns(cluster, centre, w);
    give_rows(w);
    problem_.count_pairs(w.rows.count() * cluster.count);
  }

  // The loaded rows with all of `points`.
  void add_columns(const WeightedPoints<C>& points, const C* centre, Workspace& w) {
    for (int64_t c = 0; c < points.count; c += kColumnBlock) {
      w.columns.load(problem_.z, points, c, std::min(kColumnBlock, points.count - c), centre);
      add_gradient<Pairs::all, false>(problem_.z, w.rows, w.columns, 0, w.scratch, w.row_pull,
                                      static_cast<const ColumnPull<C>*>(nullptr));
    }
  }

  static int64_t column_width(const ColumnBlock<C>& columns, int64_t column) {
    return columns.vectors(column / ColumnBlock<C>::kWidth) * kLanes<C>;
  }

  void give_rows(Workspace& w) {
    for (int64_t i = 0; i < w.rows.count(); ++i) {
      const C weight = static_cast<C>(w.row_pull.weight(i));
      for (int64_t k = 0; k < d_; ++k) {
        w.gradient[k] = w.rows.row(i)[k] * weight - w.row_pull.pull(i)[k];
      }
      give(w.rows.id(i), w.gradient.get());
    }
  }

  // dz_u += gradient, by one thread at a time.
  void give(int64_t u, const C* gradient) {
    std::atomic_flag& lock = locks_[u % kLocks];
    while (lock.test_and_set(std::memory_order_acquire)) {
    }
    add_row(dz_ + u * d_, gradient, d_);
    lock.clear(std::memory_order_release);
  }

  const PairProblem<C>& problem_;
  const Segments& segments_;
  int64_t d_;
  const C* alpha_;
  const C* beta_;
  const Segments* rivals_;
  const C* rival_alpha_;
  C* dz_;
  std::unique_ptr<std::atomic_flag[]> locks_;
  std::vector<Task> tasks_;
};

}  // namespace

template <typename C>
void cluster_gradient(const PairProblem<C>& problem, const C* alpha, const C* beta,
                      const Segments* rivals, const C* rival_alpha, void* dz, ScalarType dtype) {
  const int64_t n = problem.z.count(), d = problem.z.width();
  const GradientRows<C> out(dz, d, dtype);
  const bool direct = dtype == (std::is_same_v<C, float> ? ScalarType::Float : ScalarType::Double);
  Buffer<C> wide(direct ? 0 : n * d);
  C* target = direct ? static_cast<C*>(dz) : wide.get();
  ClusterGradient<C>(problem, alpha, beta, rivals, rival_alpha, target).run();
  for (int64_t i = 0; !direct && i < n; ++i) out.end(i, wide.get() + i * d);
}

template void cluster_gradient(const PairProblem<float>&, const float*, const float*,
                               const Segments*, const float*, void*, ScalarType);
template void cluster_gradient(const PairProblem<double>&, const double*, const double*,
                               const Segments*, const double*, void*, ScalarType);

}  // namespace ck::CK_ISA
