// Variance ratio:  V = kappa B / W,  kappa = (N - c) / (c - 1),  c non-empty clusters, N scored points.
//
// "sqeuclidean":  B = sum_j n_j ||mu_j - mu||^2,  W = sum_u ||z_u - mu_{y_u}||^2.  "euclidean": without the squares. The gradients are
// written out in carlg_kernels/ops/variance_ratio.py; all have the form  dz_u = shared_{y_u} + slope w_u (z_u - m_{y_u}).
//
// Forward: one pass for the means, one for W. Backward: one read of z and one write of dz.
#include "common/isa.h"
#include "cpu/spread.h"

#include <optional>

namespace ck {
struct VarianceRatioState {
  const int64_t* labels;  // IN [n]
  int64_t c;
  bool tied, squared;
  void* centers;     // [c, d]: OUT means where tied, else IN
  int64_t* counts;   // OUT [c]
  void* grand_mean;  // OUT [d]
  double* scatter;   // OUT [2]: B, W
  void* directions;  // OUT [c, d] or null
};

struct VarianceRatioBackward {
  double grad;
  const double* scatter;  // IN [2]
  void* dz;               // OUT [n, d]
  void* dcentroids;       // OUT [c, d] or null
};
}  // namespace ck

CK_DECLARE(void variance_ratio_fwd(const ck::MatrixView& z, const ck::VarianceRatioState& state))
CK_DECLARE(void variance_ratio_bwd(const ck::MatrixView& z, const ck::VarianceRatioState& state,
                                   const ck::VarianceRatioBackward& args))

namespace ck::CK_ISA {
namespace {

template <typename T>
double distance_from(const T* x, const double* centre, int64_t d, bool squared) {
  double square = 0;
  for (int64_t k = 0; k < d; ++k) {
    const double difference = x[k] - centre[k];
    square += difference * difference;
  }
  return squared ? square : std::sqrt(square);
}

template <typename C>
void forward(const MatrixView& view, const VarianceRatioState& state) {
  const Rows<C> z(view);
  const int64_t d = z.width(), c = state.c;
  C* centers = static_cast<C*>(state.centers);
  const Segments segments = sort_by_label(state.labels, z.count(), c);
  const WideMeans<C> wide(z, segments);
  const double* grand = wide.grand.data();
  C* grand_mean = static_cast<C*>(state.grand_mean);
  for (int64_t k = 0; k < d; ++k) grand_mean[k] = static_cast<C>(grand[k]);
  Buffer<C> rests;
  if (state.tied) {
    std::copy(wide.means.get(), wide.means.get() + c * d, centers);
    rests = wide.rests(centers);
  }

  std::vector<double> spread(c);
  segment_spread(z, segments, centers, state.squared ? nullptr : rests.get(), state.squared,
                 spread.data(), static_cast<C*>(state.directions));
  state.scatter[0] = state.scatter[1] = 0;
  for (int64_t j = 0; j < c; ++j) {
    state.counts[j] = segments.size(j);
    if (state.counts[j] == 0) continue;
    const double apart = state.tied
                             ? distance_from(wide.means.get() + j * d, grand, d, state.squared)
                             : distance_from(centers + j * d, grand, d, state.squared);
    state.scatter[0] += wide.mass[j] * apart;
    // sum_u ||z_u - m_j||^2 grows by n_j ||mu_j - m_j||^2 as m_j departs from the mean.
    const C* rest = rests.get() + j * d;
    const double excess = state.tied && state.squared ? wide.mass[j] * dot(rest, rest, d) : 0.0;
    state.scatter[1] += std::max(spread[j] - excess, 0.0);
  }
}

// How large the differences of the gradient are, in one column: the smaller one of the two spreads.
inline double column_size(double between, double within, double scored, int64_t d, bool squared) {
  const double mean = std::min(between, within) / scored / static_cast<double>(d);
  return squared ? std::sqrt(mean) : mean * std::sqrt(static_cast<double>(d));
}

template <typename C>
void backward(const MatrixView& view, const VarianceRatioState& state,
              const VarianceRatioBackward& args) {
  const int64_t d = view.columns, c = state.c;
  const C* centers = static_cast<const C*>(state.centers);
  const C* grand_mean = static_cast<const C*>(state.grand_mean);
  const C* directions = static_cast<const C*>(state.directions);
  int64_t present = 0, scored = 0;
  for (int64_t j = 0; j < c; ++j) {
    present += state.counts[j] > 0;
    scored += state.counts[j];
  }
  const double between = args.scatter[0], within = args.scatter[1];
  const double kappa = static_cast<double>(scored - present) /
                       static_cast<double>(std::max<int64_t>(present - 1, 1));
  const double ratio = within == 0 ? 0.0 : between / within;
  const double slope = within == 0 ? 0.0 : (state.squared ? 2 : 1) * args.grad * kappa / within;

  // Far from the origin the rounded means are not good enough, and are made again.
  const Rows<C> z(view);
  const double size = column_size(between, within, std::max<int64_t>(scored, 1), d, state.squared);
  const bool again =
      slope != 0 && (rounding_shows(centers, c * d, size) || rounding_shows(grand_mean, d, size));
  std::optional<WideMeans<C>> wide;
  Buffer<C> rests;
  if (again) {
    wide.emplace(z, sort_by_label(state.labels, z.count(), c));
    if (state.tied) rests = wide->rests(centers);
  }

  // outward_j = mu_j - mu, of unit length in the unsquared case; pull = (1/N) sum_j n_j outward_j
  Buffer<double> outward(c * d);
  std::vector<double> pull(d, 0.0);
  for (int64_t j = 0; j < c; ++j) {
    double square = 0;
    for (int64_t k = 0; k < d; ++k) {
      const double center = again && state.tied ? wide->means[j * d + k] : centers[j * d + k];
      outward[j * d + k] = center - (again ? wide->grand[k] : grand_mean[k]);
      square += outward[j * d + k] * outward[j * d + k];
    }
    const double length = state.squared ? 1.0 : square == 0 ? 0.0 : 1 / std::sqrt(square);
    const double weight = state.counts[j] / static_cast<double>(std::max<int64_t>(scored, 1));
    for (int64_t k = 0; k < d; ++k) {
      outward[j * d + k] *= length;
      pull[k] += weight * outward[j * d + k];
    }
  }
  Buffer<C> shared(c * d), slopes(c);
  C* dcentroids = static_cast<C*>(args.dcentroids);
  for (int64_t j = 0; j < c; ++j) {
    slopes[j] = static_cast<C>(-slope * ratio);
    const double count = static_cast<double>(state.counts[j]);
    for (int64_t k = 0; k < d; ++k) {
      const int64_t i = j * d + k;
      double value = -pull[k];
      if (state.tied) {
        value += outward[i];
        if (!state.squared && count > 0) value += ratio * directions[i] / count;
      }
      shared[i] = static_cast<C>(slope * value);
      if (dcentroids != nullptr) {
        dcentroids[i] = static_cast<C>(slope * (count * outward[i] + ratio * directions[i]));
      }
    }
  }
  spread_gradient(z, state.labels, centers, rests.get(), shared.get(), slopes.get(), state.squared,
                  GradientRows<C>(args.dz, d, view.dtype));
}

}  // namespace

void variance_ratio_fwd(const MatrixView& z, const VarianceRatioState& state) {
  z.dtype == ScalarType::Double ? forward<double>(z, state) : forward<float>(z, state);
}

void variance_ratio_bwd(const MatrixView& z, const VarianceRatioState& state,
                        const VarianceRatioBackward& args) {
  z.dtype == ScalarType::Double ? backward<double>(z, state, args)
                                : backward<float>(z, state, args);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

// Everything the backward needs, as tensors.
struct State {
  Tensor labels, centers, counts, grand_mean, directions;
  double scatter[2];
  bool tied, squared;

  VarianceRatioState pointers() {
    return {pointer<int64_t>(labels),
            centers.size(0),
            tied,
            squared,
            centers.data_ptr(),
            pointer<int64_t>(counts),
            grand_mean.data_ptr(),
            scatter,
            directions.size(0) > 0 ? directions.data_ptr() : nullptr};
  }
};

State compute_state(const Tensor& z, const Tensor& labels, const std::optional<Tensor>& centroids,
                    int64_t c, const std::string& distance) {
  const int64_t d = z.size(1);
  const ScalarType real = compute_type(z);
  const bool tied = !centroids, squared = distance == "sqeuclidean";
  if (!tied) check_matrix(*centroids, c, d, real, "centroids");
  State state{checked_labels(labels, z.size(0), c),
              tied ? new_matrix(z, c, d, real) : torch::stable::contiguous(*centroids),
              new_vector(z, c, ScalarType::Long),
              new_vector(z, d, real),
              new_matrix(z, tied && squared ? 0 : c, d, real),
              {0, 0},
              tied,
              squared};
  CK_KERNEL(variance_ratio_fwd)(view(z), state.pointers());
  return state;
}

double index_value(const State& state, ScalarType real) {
  int64_t present = 0, scored = 0;
  for (int64_t j = 0; j < state.counts.size(0); ++j) {
    present += pointer<int64_t>(state.counts)[j] > 0;
    scored += pointer<int64_t>(state.counts)[j];
  }
  const double between = state.scatter[0], within = state.scatter[1];
  const double eps = real == ScalarType::Double ? std::numeric_limits<double>::epsilon()
                                                : std::numeric_limits<float>::epsilon();
  const double floor = eps * (between + within);
  const double bottom = within != 0 ? within : floor != 0 ? floor : 1.0;
  return static_cast<double>(scored - present) /
         static_cast<double>(std::max<int64_t>(present - 1, 1)) * between / bottom;
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Forward variance_ratio(const Tensor& z, const Tensor& labels, std::optional<Tensor> centroids,
                       int64_t num_clusters, std::string distance) {
  check_points(z);
  const ScalarType real = compute_type(z);
  const int64_t d = z.size(1);
  const int64_t c = centroids ? centroids->size(0) : resolve_clusters(labels, num_clusters);
  State state = compute_state(z, labels, centroids, c, distance);
  Tensor value = new_tensor(z, {}, real), scatter = new_vector(z, 2, real);
  set_element(value, 0, index_value(state, real));
  for (int i = 0; i < 2; ++i) set_element(scatter, i, state.scatter[i]);
  if (num_clusters == 0) {
    return {
        value,   new_matrix(z, 0, d, real), new_vector(z, 0, ScalarType::Long), state.grand_mean,
        scatter, new_matrix(z, 0, d, real)};
  }
  Tensor means = state.tied ? state.centers : new_matrix(z, 0, d, real);
  return {value, means, state.counts, state.grand_mean, scatter, state.directions};
}

std::tuple<Tensor, Tensor> variance_ratio_backward(const Tensor& grad, const Tensor& z,
                                                   const Tensor& labels, const Tensor& centers,
                                                   const Tensor& counts, const Tensor& grand_mean,
                                                   const Tensor& scatter, const Tensor& directions,
                                                   bool tied, std::string distance,
                                                   bool need_centroids) {
  check_points(z);
  const ScalarType real = compute_type(z);
  const int64_t n = z.size(0), d = z.size(1);
  const bool squared = distance == "sqeuclidean";
  CK_CHECK(grad.numel() == 1 && grad.scalar_type() == real, "grad must be a scalar");
  check_vector(scatter, 2, real, "scatter");
  State state;
  const int64_t c = centers.size(0);
  // B and W are sums of squares: they may be too large for float32 where the gradient is not.
  const bool overflow = !std::isfinite(element(scatter, 0) + element(scatter, 1));
  if (c == 0) {
    CK_CHECK(tied, "centers must not be empty");
    state = compute_state(z, labels, std::nullopt, resolve_clusters(labels, 0), distance);
  } else if (overflow) {
    const std::optional<Tensor> given = tied ? std::nullopt : std::make_optional(centers);
    state = compute_state(z, labels, given, c, distance);
  } else {
    check_matrix(centers, c, d, real, "centers");
    check_vector(counts, c, ScalarType::Long, "counts");
    check_vector(grand_mean, d, real, "grand_mean");
    if (!(tied && squared)) check_matrix(directions, c, d, real, "directions");
    state = {checked_labels(labels, n, c),
             torch::stable::contiguous(centers),
             torch::stable::contiguous(counts),
             torch::stable::contiguous(grand_mean),
             torch::stable::contiguous(directions),
             {element(scatter, 0), element(scatter, 1)},
             tied,
             squared};
  }
  Tensor dz = new_matrix(z, n, d, z.scalar_type());
  Tensor dcentroids = new_matrix(z, need_centroids ? centers.size(0) : 0, d, real);
  CK_KERNEL(variance_ratio_bwd)
  (view(z), state.pointers(),
   VarianceRatioBackward{element(grad, 0), state.scatter, dz.data_ptr(),
                         need_centroids ? dcentroids.data_ptr() : nullptr});
  return {dz, dcentroids};
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("variance_ratio", TORCH_BOX(&ck::variance_ratio));
  m.impl("variance_ratio_backward", TORCH_BOX(&ck::variance_ratio_backward));
}
#endif
