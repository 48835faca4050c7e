// Davies-Bouldin:  DB = (1/c) sum_j max_{k != j} (S_j + S_k) / ||mu_j - mu_k||,  S_j = (1/n_j) sum_{u in j} ||z_u - mu_j||.
//
// With k_j the argmax ("rival"), D_j = ||mu_j - mu_{k_j}||, r_j = (S_j + S_{k_j}) / D_j and x_j = (mu_j - mu_{k_j}) / D_j:
//
//   dDB/dS_j = (1/c) (1/D_j + sum_{i: k_i=j} 1/D_i)      dDB/dmu_j = (1/c) (-r_j x_j / D_j + sum_{i: k_i=j} r_i x_i / D_i)
//   dz_u = (dDB/dS_{y_u} / n_{y_u}) (e_u - E_{y_u} / n_{y_u}) + dDB/dmu_{y_u} / n_{y_u}
//
// A ratio that is not a number, or is infinite, makes the index and the gradient of both clusters NaN.
//
// Forward: means, spread, then c^2 direct distances of centroids. Backward: one read of z and one write of dz.
#include "common/isa.h"
#include "cpu/spread.h"

#include <optional>

namespace ck {
struct DaviesBouldinState {
  const int64_t* labels;  // IN [n]
  int64_t c;
  void* means;       // OUT [c, d]
  int64_t* counts;   // OUT [c]
  void* dispersion;  // OUT [c]: S
  int32_t* rivals;   // OUT [c], -1 where there is none
  void* directions;  // OUT [c, d]: E
};
}  // namespace ck

CK_DECLARE(double davies_bouldin_fwd(const ck::MatrixView& z, const ck::DaviesBouldinState& state))
CK_DECLARE(void davies_bouldin_bwd(const ck::MatrixView& z, const ck::DaviesBouldinState& state,
                                   double grad, void* dz))

namespace ck::CK_ISA {
namespace {

template <typename C>
double forward(const MatrixView& view, const DaviesBouldinState& state) {
  const Rows<C> z(view);
  const int64_t d = z.width(), c = state.c;
  C* means = static_cast<C*>(state.means);
  C* dispersion = static_cast<C*>(state.dispersion);
  const Segments segments = sort_by_label(state.labels, z.count(), c);
  std::vector<double> spread(c), worst(c, 0.0);
  const WideMeans<C> wide(z, segments);
  std::copy(wide.means.get(), wide.means.get() + c * d, means);
  segment_spread(z, segments, means, wide.rests(means).get(), false, spread.data(),
                 static_cast<C*>(state.directions));
  // The means around their centre: their distances are those of the means, with more digits. A cluster that is not finite is left to
  // spoil its own distances only, so that it becomes the rival of every other.
  Buffer<C> centred(c * d);
  int64_t present = 0;
  for (int64_t j = 0; j < c; ++j) {
    state.counts[j] = segments.size(j);
    state.rivals[j] = -1;
    dispersion[j] = static_cast<C>(state.counts[j] > 0 ? spread[j] / wide.mass[j] : 0.0);
    present += state.counts[j] > 0;
    for (int64_t k = 0; k < d; ++k) {
      const double centre = std::isfinite(wide.grand[k]) ? wide.grand[k] : 0.0;
      centred[j * d + k] = static_cast<C>(wide.means[j * d + k] - centre);
    }
  }
  parallel(c, [&](int64_t first, int64_t last) {
    for (int64_t j = first; j < last; ++j) {
      if (state.counts[j] == 0) continue;
      for (int64_t k = 0; k < c; ++k) {
        if (k == j || state.counts[k] == 0) continue;
        const C spreads = dispersion[j] + dispersion[k];
        const bool same = std::equal(means + j * d, means + (j + 1) * d, means + k * d);
        if (same && std::isfinite(spreads)) continue;
        const C apart =
            std::sqrt(squared_distance(centred.get() + j * d, centred.get() + k * d, d));
        const C ratio = spreads / apart;
        const bool lost = !std::isfinite(ratio) || !std::isfinite(apart);
        if (lost || ratio > worst[j]) {
          worst[j] = lost ? std::numeric_limits<double>::quiet_NaN() : ratio;
          state.rivals[j] = static_cast<int32_t>(k);
        }
        if (lost) break;
      }
    }
  });
  double total = 0;
  for (double ratio : worst) total += ratio;
  return total / static_cast<double>(std::max<int64_t>(present, 1));
}

// How large the differences of the gradient are, in one column: the least spread, or distance of rivals.
template <typename C>
double column_size(const DaviesBouldinState& state, const C* means, const C* dispersion,
                   int64_t d) {
  C least = std::numeric_limits<C>::infinity();
  for (int64_t j = 0; j < state.c; ++j) {
    if (dispersion[j] > 0) least = std::min(least, dispersion[j]);
    if (state.rivals[j] < 0) continue;
    const C* rival = means + state.rivals[j] * d;
    least = std::min(least, std::sqrt(squared_distance(means + j * d, rival, d)));
  }
  return least / std::sqrt(static_cast<double>(d));
}

template <typename C>
void backward(const MatrixView& view, const DaviesBouldinState& state, double grad, void* dz) {
  const int64_t d = view.columns, c = state.c;
  const C* means = static_cast<const C*>(state.means);
  const C* dispersion = static_cast<const C*>(state.dispersion);
  const C* directions = static_cast<const C*>(state.directions);
  int64_t present = 0;
  for (int64_t j = 0; j < c; ++j) present += state.counts[j] > 0;
  const double scale = grad / static_cast<double>(std::max<int64_t>(present, 1));
  // Far from the origin the rounded means are not good enough, and are made again.
  const Rows<C> z(view);
  const bool again = rounding_shows(means, c * d, column_size(state, means, dispersion, d));
  std::optional<WideMeans<C>> wide;
  Buffer<C> rests;
  if (again) {
    wide.emplace(z, sort_by_label(state.labels, z.count(), c));
    rests = wide->rests(means);
  }
  std::vector<double> d_dispersion(c, 0.0), step(d);
  Buffer<double> d_means(c * d);
  std::fill(d_means.get(), d_means.get() + c * d, 0.0);
  for (int64_t j = 0; j < c; ++j) {
    const int64_t rival = state.rivals[j];
    if (rival < 0) continue;
    double square = 0;
    for (int64_t k = 0; k < d; ++k) {
      const int64_t mine = j * d + k, other = rival * d + k;
      step[k] = again ? wide->means[mine] - wide->means[other]
                      : static_cast<double>(means[mine]) - means[other];
      square += step[k] * step[k];
    }
    const double inverse = square == 0 ? 0.0 : 1 / std::sqrt(square);
    const double pull = (dispersion[j] + dispersion[rival]) * inverse * inverse * inverse;
    d_dispersion[j] += inverse;
    d_dispersion[rival] += inverse;
    for (int64_t k = 0; k < d; ++k) {
      d_means[j * d + k] -= pull * step[k];
      d_means[rival * d + k] += pull * step[k];
    }
  }
  Buffer<C> shared(c * d), slopes(c);
  for (int64_t j = 0; j < c; ++j) {
    const double count = static_cast<double>(std::max<int64_t>(state.counts[j], 1));
    const double slope = scale * d_dispersion[j] / count;
    slopes[j] = static_cast<C>(slope);
    for (int64_t k = 0; k < d; ++k) {
      const int64_t i = j * d + k;
      shared[i] = static_cast<C>(scale * d_means[i] / count - slope * directions[i] / count);
    }
  }
  spread_gradient(z, state.labels, means, rests.get(), shared.get(), slopes.get(), false,
                  GradientRows<C>(dz, d, view.dtype));
}

}  // namespace

double davies_bouldin_fwd(const MatrixView& z, const DaviesBouldinState& state) {
  return z.dtype == ScalarType::Double ? forward<double>(z, state) : forward<float>(z, state);
}

void davies_bouldin_bwd(const MatrixView& z, const DaviesBouldinState& state, double grad,
                        void* dz) {
  z.dtype == ScalarType::Double ? backward<double>(z, state, grad, dz)
                                : backward<float>(z, state, grad, dz);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

struct State {
  Tensor labels, means, counts, dispersion, rivals, directions;

  DaviesBouldinState pointers() const {
    return {pointer<int64_t>(labels), means.size(0),         means.data_ptr(),
            pointer<int64_t>(counts), dispersion.data_ptr(), pointer<int32_t>(rivals),
            directions.data_ptr()};
  }
};

// The state, and the index in *value.
State compute_state(const Tensor& z, const Tensor& labels, int64_t c, double* value) {
  const ScalarType real = compute_type(z);
  State state{checked_labels(labels, z.size(0), c), new_matrix(z, c, z.size(1), real),
              new_vector(z, c, ScalarType::Long),   new_vector(z, c, real),
              new_vector(z, c, ScalarType::Int),    new_matrix(z, c, z.size(1), real)};
  *value = CK_KERNEL(davies_bouldin_fwd)(view(z), state.pointers());
  return state;
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Forward davies_bouldin(const Tensor& z, const Tensor& labels, int64_t num_clusters) {
  check_points(z);
  const ScalarType real = compute_type(z);
  double total = 0;
  const State state = compute_state(z, labels, resolve_clusters(labels, num_clusters), &total);
  Tensor value = new_tensor(z, {}, real);
  set_element(value, 0, total);
  if (num_clusters == 0) {
    const int64_t d = z.size(1);
    return {value,
            new_matrix(z, 0, d, real),
            new_vector(z, 0, ScalarType::Long),
            new_vector(z, 0, real),
            new_vector(z, 0, ScalarType::Int),
            new_matrix(z, 0, d, real)};
  }
  return {value, state.means, state.counts, state.dispersion, state.rivals, state.directions};
}

Tensor davies_bouldin_backward(const Tensor& grad, const Tensor& z, const Tensor& labels,
                               const Tensor& means, const Tensor& counts, const Tensor& dispersion,
                               const Tensor& rivals, const Tensor& directions) {
  check_points(z);
  const ScalarType real = compute_type(z);
  const int64_t n = z.size(0), d = z.size(1), c = means.size(0);
  CK_CHECK(grad.numel() == 1 && grad.scalar_type() == real, "grad must be a scalar");
  State state;
  if (c == 0) {
    double unused;
    state = compute_state(z, labels, resolve_clusters(labels, 0), &unused);
  } else {
    check_matrix(means, c, d, real, "means");
    check_vector(counts, c, ScalarType::Long, "counts");
    check_vector(dispersion, c, real, "dispersion");
    check_indices(rivals, c, c, "rivals");
    check_matrix(directions, c, d, real, "directions");
    state = {checked_labels(labels, n, c),
             torch::stable::contiguous(means),
             torch::stable::contiguous(counts),
             torch::stable::contiguous(dispersion),
             rivals,
             torch::stable::contiguous(directions)};
  }
  Tensor dz = new_matrix(z, n, d, z.scalar_type());
  CK_KERNEL(davies_bouldin_bwd)(view(z), state.pointers(), element(grad, 0), dz.data_ptr());
  return dz;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("davies_bouldin", TORCH_BOX(&ck::davies_bouldin));
  m.impl("davies_bouldin_backward", TORCH_BOX(&ck::davies_bouldin_backward));
}
#endif
