// Weighted segment means:  mu_j = sum_{u in j} w_u z_u / m_j,  m_j = sum_{u in j} w_u.
//
// Gradient:  dz_u = (w_u / m_{y_u}) dmu_{y_u},  dw_u = dmu_{y_u}.(z_u - mu_{y_u}) / m_{y_u}.
#include "common/isa.h"
#include "cpu/segment.h"

namespace ck {
struct CentroidUpdateBackward {
  const void* grad;       // IN [c, d]
  const int64_t* labels;  // IN [n]
  const void* weights;    // IN [n] or null
  const void* means;      // IN [c, d]
  const double* mass;     // IN [c]
  void* dz;               // OUT [n, d]
  void* dweights;         // OUT [n] or null
};
}  // namespace ck

CK_DECLARE(void centroid_update_fwd(const ck::MatrixView& z, const int64_t* labels,
                                    const void* weights, int64_t c, void* means, double* mass))
CK_DECLARE(void centroid_update_bwd(const ck::MatrixView& z, int64_t c,
                                    const ck::CentroidUpdateBackward& args))

namespace ck::CK_ISA {
namespace {

template <typename C>
void update_rows(const MatrixView& view, const int64_t* labels, const void* weights, int64_t c,
                 void* means, double* mass) {
  const Rows<C> z(view);
  segment_means(z, sort_by_label(labels, z.count(), c), static_cast<const C*>(weights),
                static_cast<C*>(means), mass);
}

template <typename C>
void update_rows_backward(const MatrixView& view, int64_t c, const CentroidUpdateBackward& args) {
  const Rows<C> z(view);
  const int64_t n = z.count(), d = z.width();
  const C* grad = static_cast<const C*>(args.grad);
  const C* weights = static_cast<const C*>(args.weights);
  const C* means = static_cast<const C*>(args.means);
  C* dweights = static_cast<C*>(args.dweights);
  Buffer<C> inverse(c);
  for (int64_t j = 0; j < c; ++j) {
    inverse[j] = static_cast<C>(args.mass[j] > 0 ? 1 / args.mass[j] : 0.0);
  }
  const GradientRows<C> dz(args.dz, d, view.dtype);
  parallel(ceil_div(n, kBlockRows), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(2 * d);
    const int64_t end = std::min(last * kBlockRows, n);
    for (int64_t i = first * kBlockRows; i < end; ++i) {
      const int64_t j = args.labels[i];
      if (j < 0) {
        dz.zero(i);
        if (dweights != nullptr) dweights[i] = 0;
        continue;
      }
      const C* g = grad + j * d;
      const C w = weights == nullptr ? inverse[j] : weights[i] * inverse[j];
      C* __restrict__ out = dz.begin(i, scratch.get() + d);
      for (int64_t k = 0; k < d; ++k) out[k] = w * g[k];
      dz.end(i, out);
      if (dweights != nullptr) {
        const C* x = z.row(i, scratch.get());
        C sum = 0;
        for (int64_t k = 0; k < d; ++k) sum += g[k] * (x[k] - means[j * d + k]);
        dweights[i] = sum * inverse[j];
      }
    }
  });
}

}  // namespace

void centroid_update_fwd(const MatrixView& z, const int64_t* labels, const void* weights, int64_t c,
                         void* means, double* mass) {
  const auto run = z.dtype == ScalarType::Double ? update_rows<double> : update_rows<float>;
  run(z, labels, weights, c, means, mass);
}

void centroid_update_bwd(const MatrixView& z, int64_t c, const CentroidUpdateBackward& args) {
  const auto run =
      z.dtype == ScalarType::Double ? update_rows_backward<double> : update_rows_backward<float>;
  run(z, c, args);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

// The weights of the clusters as double, from counts (int64) or sums of weights.
std::vector<double> as_double(const Tensor& mass) {
  if (mass.scalar_type() != ScalarType::Long) return elements(mass);
  const int64_t* counts = pointer<int64_t>(mass);
  return {counts, counts + mass.size(0)};
}

std::tuple<Tensor, Tensor> centroid_update(const Tensor& z, const Tensor& labels,
                                           std::optional<Tensor> weights, int64_t num_clusters) {
  check_points(z);
  CK_CHECK(num_clusters >= 1, "num_clusters must be at least 1, got ", num_clusters);
  const Tensor y = checked_labels(labels, z.size(0), num_clusters);
  const std::optional<Tensor> w = checked_weights(weights, z);
  const ScalarType real = compute_type(z);
  Tensor means = new_matrix(z, num_clusters, z.size(1), real);
  std::vector<double> totals(num_clusters);
  CK_KERNEL(centroid_update_fwd)
  (view(z), pointer<int64_t>(y), w ? w->data_ptr() : nullptr, num_clusters, means.data_ptr(),
   totals.data());
  Tensor mass = new_vector(z, num_clusters, w ? real : ScalarType::Long);
  if (w) {
    set_elements(mass, totals);
  } else {
    std::transform(totals.begin(), totals.end(), pointer<int64_t>(mass),
                   [](double count) { return static_cast<int64_t>(count); });
  }
  return {means, mass};
}

std::tuple<Tensor, Tensor> centroid_update_backward(const Tensor& grad, const Tensor& z,
                                                    const Tensor& labels,
                                                    std::optional<Tensor> weights,
                                                    const Tensor& means, const Tensor& mass,
                                                    bool need_weights) {
  check_points(z);
  const int64_t c = means.size(0), d = z.size(1);
  const ScalarType real = compute_type(z);
  check_matrix(grad, c, d, real, "grad");
  check_matrix(means, c, d, real, "means");
  CK_CHECK(mass.dim() == 1 && mass.size(0) == c, "mass must be of shape (", c, ",)");
  const Tensor y = checked_labels(labels, z.size(0), c);
  const std::optional<Tensor> w = checked_weights(weights, z);
  const Tensor g = torch::stable::contiguous(grad), mu = torch::stable::contiguous(means);
  const std::vector<double> totals = as_double(torch::stable::contiguous(mass));
  Tensor dz = new_matrix(z, z.size(0), d, z.scalar_type());
  Tensor dweights = new_vector(z, need_weights ? z.size(0) : 0, real);
  CK_KERNEL(centroid_update_bwd)
  (view(z), c,
   CentroidUpdateBackward{g.data_ptr(), pointer<int64_t>(y), w ? w->data_ptr() : nullptr,
                          mu.data_ptr(), totals.data(), dz.data_ptr(),
                          need_weights ? dweights.data_ptr() : nullptr});
  return {dz, dweights};
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("centroid_update", TORCH_BOX(&ck::centroid_update));
  m.impl("centroid_update_backward", TORCH_BOX(&ck::centroid_update_backward));
}
#endif
