// One Lloyd step:  label_u = argmin_j ||z_u - mu_j||,  then  mu_j = sum_{u in j} w_u z_u / sum_{u in j} w_u.
//
// Work of plain Lloyd: 2ncd flops and one more read of z. Less where bounds show that a label stands: with  upper_u >= ||z_u - mu_own||
// and  lower_u <= ||z_u - mu_j|| for all others, both loosened by the moves of the centroids since they were taken, a row with
// upper < lower is not looked at. A few centroids move far while most rest, so those that move most are split off: rows whose bound holds
// against all the others are compared with the split-off ones alone. How many are split off is chosen for the least work.
//
// Bounds carry the rounding error of the scores, so every label is that of a full search. Centroids are means over the rows of a cluster
// in a fixed order, taken again only for clusters that won or lost a row.
#include "common/isa.h"
#include "cpu/nearest.h"
#include "cpu/segment.h"

#include <numeric>

namespace ck {
struct LloydStep {
  const void* weights;    // IN [n] or null
  const void* centroids;  // IN [c, d]
  const void* previous;   // IN [c, d] the centroids that the bounds hold for
  const void* origin;     // IN [d]
  int64_t c;
  int64_t* labels;   // IN/OUT [n], -1 where nothing is known, -2 - j for a guess j
  void* bounds;      // IN/OUT [3, n] upper, lower, ||z_u - origin||^2
  void* means;       // OUT [c, d]
  double* mass;      // OUT [c]
  double* progress;  // OUT [3] squared move, changed labels, empty clusters
};
}  // namespace ck

CK_DECLARE(void lloyd_step(const ck::MatrixView& z, const ck::LloydStep& step))

namespace ck::CK_ISA {
namespace {

// Rows a task: enough tasks for any number of threads, few enough that lists of rows fill their tiles.
int64_t task_rows(int64_t n) {
  return std::clamp<int64_t>(ceil_div(n / 64, kBlockRows), 1, 16) * kBlockRows;
}

template <typename C>
struct Bounds {
  C *upper, *lower, *radius;
};

// Which centroids are split off, and how far any of the others has moved.
struct Split {
  bool full = true;  // search all centroids for every row
  std::vector<int64_t> movers;
  std::vector<char> moves;
  double rest = 0;
};

template <typename C>
class Search {
 public:
  Search(const Rows<C>& z, const LloydStep& step)
      : z_(z),
        n_(z.count()),
        d_(z.width()),
        c_(step.c),
        centroids_(static_cast<const C*>(step.centroids)),
        origin_(static_cast<const C*>(step.origin)),
        labels_(step.labels),
        bounds_{static_cast<C*>(step.bounds), static_cast<C*>(step.bounds) + n_,
                static_cast<C*>(step.bounds) + 2 * n_},
        all_(shifted_panels<C>([&](int64_t j) { return centroids_ + j * d_; }, c_, d_, origin_)) {
    double square = 0;
    for (int64_t k = 0; k < d_; ++k) square += static_cast<double>(origin_[k]) * origin_[k];
    error_scale_ = (d_ + 8) * kEpsilon;
    error_base_ = all_.bias + 2 * all_.longest * std::sqrt(square);
    error_slope_ = all_.longest;
    drift(static_cast<const C*>(step.previous));
    choose_split();
  }

  // New labels and bounds of all rows.
  void run() {
    ShiftedPanels<C> movers{Panels<C>(0, d_)};
    if (!split_.movers.empty()) {
      movers = shifted_panels<C>([&](int64_t j) { return centroids_ + split_.movers[j] * d_; },
                                 static_cast<int64_t>(split_.movers.size()), d_, origin_);
    }
    const int64_t rows = task_rows(n_);
    parallel(ceil_div(n_, rows), [&](int64_t first, int64_t last) {
      Scratch scratch(kBlockRows * d_);
      for (int64_t task = first; task < last; ++task) {
        search(task * rows, std::min((task + 1) * rows, n_), movers, scratch);
      }
    });
  }

 private:
  struct Scratch {
    explicit Scratch(int64_t size) : rows(size), state(kBlockRows) {}
    Buffer<C> rows;
    Buffer<NearestState<C>> state;
    std::vector<int64_t> partial, full;
  };

  void drift(const C* previous) {
    drift_.resize(c_);
    for (int64_t j = 0; j < c_; ++j) {
      const C square = squared_distance(centroids_ + j * d_, previous + j * d_, d_);
      drift_[j] = std::sqrt(static_cast<double>(square)) * (1 + (d_ + 8) * kEpsilon);
    }
  }

  // The rows' gaps between their bounds are sampled; splitting off the k panels of farthest moves costs k panels for the rows whose gap
  // exceeds the next move, and a full search for the others.
  void choose_split() {
    if (std::find(labels_, labels_ + n_, -1) != labels_ + n_) return;
    std::vector<int64_t> order(c_);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return drift_[a] > drift_[b]; });
    constexpr int64_t kWidth = Panels<C>::kWidth;
    const int64_t options = c_ / kWidth + 1;
    std::vector<int64_t> failing(options + 1, 0);
    const int64_t stride = std::max<int64_t>(1, n_ / kSample);
    int64_t sampled = 0;
    for (int64_t i = 0; i < n_; i += stride, ++sampled) {
      const double gap = bounds_.lower[i] - bounds_.upper[i] - drift_[labels_[i]];
      // The first option whose move the gap exceeds; all before it fail.
      int64_t low = 0, high = options;
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (drift_[order[std::min(middle * kWidth, c_ - 1)]] < gap) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      ++failing[low];
    }
    double best = 0.9 * (c_ + kRowCost) * sampled;
    int64_t chosen = -1, passing = 0;
    for (int64_t option = 0; option < options; ++option) {
      passing += failing[option];
      const double partial = option == 0 ? 0.0 : static_cast<double>(option * kWidth + kRowCost);
      const double cost = passing * partial + (sampled - passing) * (c_ + kRowCost);
      if (cost < best) best = cost, chosen = option;
    }
    if (chosen < 0) return;
    split_.full = false;
    const int64_t count = chosen * kWidth;
    split_.movers.assign(order.begin(), order.begin() + count);
    std::sort(split_.movers.begin(), split_.movers.end());
    split_.moves.assign(c_, 0);
    for (int64_t j : split_.movers) split_.moves[j] = 1;
    split_.rest = count < c_ ? drift_[order[count]] : 0.0;
  }

  // Half the uncertainty of a score: d rounding errors of the bias and the products, and those of the radius.
  CK_INLINE double error(double radius) const {
    return error_scale_ * (error_base_ + 2 * error_slope_ * std::sqrt(radius) + radius);
  }

  static C upper_bound(double square) {
    return static_cast<C>(std::sqrt(std::max(square, 0.0)) * (1 + 2 * kEpsilon));
  }
  static C lower_bound(double square) {
    return static_cast<C>(std::sqrt(std::max(square, 0.0)) * (1 - 2 * kEpsilon));
  }

  void search(int64_t begin, int64_t end, const ShiftedPanels<C>& movers, Scratch& scratch) const {
    scratch.partial.clear();
    scratch.full.clear();
    if (split_.full) {
      for (int64_t i = begin; i < end; ++i) scratch.full.push_back(i);
    } else {
      for (int64_t i = begin; i < end; ++i) sort_out(i, scratch);
    }
    batches(scratch.partial, movers, scratch,
            [&](int64_t i, const C*, const Nearest<C>& found) { take_partial(i, found, scratch); });
    batches(scratch.full, all_, scratch,
            [&](int64_t i, const C* x, const Nearest<C>& found) { take_full(i, x, found); });
  }

  // Whether a full search, with its rounding errors, must find the own centroid: everything else is farther by more than those errors.
  bool settled(C upper, C lower, C radius) const {
    return lower > upper && (lower - upper) * (lower + upper) > 4 * error(radius);
  }

  // Loosens the bounds of a row by the moves; puts it on the list of those to be searched where they do not settle its label.
  void sort_out(int64_t i, Scratch& scratch) const {
    const int64_t own = labels_[i];
    C upper = static_cast<C>((bounds_.upper[i] + drift_[own]) * (1 + 2 * kEpsilon));
    const C lower =
        static_cast<C>(bounds_.lower[i] - split_.rest - 2 * kEpsilon * bounds_.upper[i]);
    bool known = settled(upper, lower, bounds_.radius[i]);
    if (!known) {
      const C* x = z_.row(i, scratch.rows.get());
      const double square = squared_distance(x, centroids_ + own * d_, d_);
      upper = upper_bound(square * (1 + (d_ + 8) * kEpsilon));
      known = settled(upper, lower, bounds_.radius[i]);
    }
    bounds_.upper[i] = upper;
    bounds_.lower[i] = lower;
    if (!known) {
      scratch.full.push_back(i);
    } else if (!split_.movers.empty()) {
      scratch.partial.push_back(i);
    }
  }

  // take(i, row, nearest column) for the listed rows. Rows that lie close together are searched where they are, others gathered.
  template <typename Take>
  void batches(const std::vector<int64_t>& list, const ShiftedPanels<C>& columns, Scratch& scratch,
               const Take& take) const {
    const int64_t count = static_cast<int64_t>(list.size());
    NearestState<C>* state = scratch.state.get();
    for (int64_t first = 0, last; first < count; first = last) {
      const int64_t begin = list[first];
      last = first + 1;
      while (last < count && list[last] > list[last - 1] && list[last] < begin + kBlockRows) ++last;
      int64_t stride;
      if (last - first > kBlockRows / 2) {
        const int64_t m = list[last - 1] + 1 - begin;
        const C* rows = z_.block(begin, m, scratch.rows.get(), &stride);
        nearest_block(rows, stride, m, columns.panels, state);
        for (int64_t k = first; k < last; ++k) {
          const int64_t i = list[k] - begin;
          take(list[k], rows + i * stride, finish(state[i]));
        }
        continue;
      }
      last = std::min(first + kBlockRows, count);
      C* rows = scratch.rows.get();
      for (int64_t k = first; k < last; ++k) {
        C* copy = rows + (k - first) * d_;
        const C* x = z_.row(list[k], copy);
        if (x != copy) std::copy(x, x + d_, copy);
      }
      nearest_block(rows, d_, last - first, columns.panels, state);
      for (int64_t k = first; k < last; ++k) {
        take(list[k], rows + (k - first) * d_, finish(state[k - first]));
      }
    }
  }

  // All centroids but the movers are farther than `lower`, and own is among them or not.
  void take_partial(int64_t i, const Nearest<C>& found, Scratch& scratch) const {
    const double radius = bounds_.radius[i], slack = error(radius);
    if (split_.moves[labels_[i]]) {
      labels_[i] = split_.movers[found.column];
      bounds_.upper[i] = upper_bound(found.score + radius + slack);
      const C second = lower_bound(found.second + radius - slack);
      bounds_.lower[i] = std::min(bounds_.lower[i], second);
      return;
    }
    const C nearest = lower_bound(found.score + radius - slack);
    if (settled(bounds_.upper[i], nearest, bounds_.radius[i])) {
      bounds_.lower[i] = std::min(bounds_.lower[i], nearest);
    } else {
      scratch.full.push_back(i);
    }
  }

  void take_full(int64_t i, const C* x, const Nearest<C>& found) const {
    if (labels_[i] < 0) bounds_.radius[i] = squared_distance(x, origin_, d_);
    const double radius = bounds_.radius[i], slack = error(radius);
    labels_[i] = found.column;
    bounds_.upper[i] = upper_bound(found.score + radius + slack);
    bounds_.lower[i] = lower_bound(found.second + radius - slack);
  }

  static constexpr double kEpsilon = std::numeric_limits<C>::epsilon();
  static constexpr int64_t kSample = 4096;
  // What a searched row costs beyond its products, in columns.
  static constexpr int64_t kRowCost = 4;

  const Rows<C>& z_;
  const int64_t n_, d_, c_;
  const C* centroids_;
  const C* origin_;
  int64_t* labels_;
  const Bounds<C> bounds_;
  const ShiftedPanels<C> all_;
  // A score of a row of radius r is off by at most  scale (base + 2 slope sqrt(r) + r).
  double error_scale_ = 0, error_base_ = 0, error_slope_ = 0;
  std::vector<double> drift_;
  Split split_;
};

// Means of the clusters that won or lost a row; the others keep theirs.
template <typename C>
void update(const Rows<C>& z, const LloydStep& step, const int64_t* old_labels) {
  const int64_t n = z.count(), d = z.width(), c = step.c;
  const C* weights = static_cast<const C*>(step.weights);
  const C* centroids = static_cast<const C*>(step.centroids);
  C* means = static_cast<C*>(step.means);
  std::vector<char> touched(c, 0);
  std::fill(step.mass, step.mass + c, 0.0);
  int64_t changed = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t now = step.labels[i], before = old_labels[i];
    step.mass[now] += weights == nullptr ? 1.0 : static_cast<double>(weights[i]);
    if (now == before) continue;
    ++changed;
    touched[now] = 1;
    if (before >= 0) touched[before] = 1;
  }
  if (changed > 0) {
    std::vector<int64_t> labels(n);
    for (int64_t i = 0; i < n; ++i) labels[i] = touched[step.labels[i]] ? step.labels[i] : -1;
    std::vector<double> mass(c);
    segment_means(z, sort_by_label(labels.data(), n, c), weights, means, mass.data());
  }
  double move = 0;
  int64_t empty = 0;
  for (int64_t j = 0; j < c; ++j) {
    empty += step.mass[j] == 0;
    if (!touched[j] || step.mass[j] == 0) {
      std::copy(centroids + j * d, centroids + (j + 1) * d, means + j * d);
      continue;
    }
    for (int64_t k = 0; k < d; ++k) {
      const double difference = static_cast<double>(means[j * d + k]) - centroids[j * d + k];
      move += difference * difference;
    }
  }
  step.progress[0] = move;
  step.progress[1] = static_cast<double>(changed);
  step.progress[2] = static_cast<double>(empty);
}

template <typename C>
void step_rows(const MatrixView& view, const LloydStep& step) {
  const Rows<C> z(view);
  const std::vector<int64_t> old_labels(step.labels, step.labels + z.count());
  // A guess is searched like a label, but counts as unknown in the update: its cluster has no mean of these rows yet.
  for (int64_t i = 0; i < z.count(); ++i) {
    if (step.labels[i] < -1) step.labels[i] = -2 - step.labels[i];
  }
  Search<C>(z, step).run();
  update(z, step, old_labels.data());
}

}  // namespace

void lloyd_step(const MatrixView& z, const LloydStep& step) {
  (z.dtype == ScalarType::Double ? step_rows<double> : step_rows<float>)(z, step);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

std::tuple<Tensor, Tensor, Tensor> lloyd(const Tensor& z, std::optional<Tensor> weights,
                                         const Tensor& centroids, const Tensor& previous,
                                         const Tensor& origin, Tensor labels, Tensor bounds) {
  check_points(z);
  const int64_t n = z.size(0), d = z.size(1), c = centroids.size(0);
  const ScalarType real = compute_type(z);
  CK_CHECK(n >= 1 && c >= 1, "z and centroids must have at least one row");
  check_matrix(centroids, c, d, real, "centroids");
  check_matrix(previous, c, d, real, "previous");
  check_vector(origin, d, real, "origin");
  check_vector(labels, n, ScalarType::Long, "labels");
  check_matrix(bounds, 3, n, real, "bounds");
  CK_CHECK(labels.is_contiguous() && bounds.is_contiguous(),
           "labels and bounds must be contiguous");
  const Range found = range_of<int64_t>(labels);
  CK_CHECK(found.lies_in(-1 - c, c), "labels must lie in [-1, ", c,
           ") or be -2 minus a guess, got ", found.low, " to ", found.high);
  const std::optional<Tensor> w = checked_weights(weights, z);
  const Tensor mu = torch::stable::contiguous(centroids), old = torch::stable::contiguous(previous);
  const Tensor t = torch::stable::contiguous(origin);
  Tensor means = new_matrix(z, c, d, real);
  Tensor mass = new_vector(z, c, ScalarType::Double);
  Tensor progress = new_vector(z, 3, ScalarType::Double);
  CK_KERNEL(lloyd_step)
  (view(z), LloydStep{w ? w->data_ptr() : nullptr, mu.data_ptr(), old.data_ptr(), t.data_ptr(), c,
                      pointer<int64_t>(labels), bounds.data_ptr(), means.data_ptr(),
                      pointer<double>(mass), pointer<double>(progress)});
  return {means, mass, progress};
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) { m.impl("lloyd", TORCH_BOX(&ck::lloyd)); }
#endif
