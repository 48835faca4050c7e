// Weighted distance sums within clusters:  t_u = sum_{v: y_v = y_u} w_v D_uv,  each pair once, and their gradient.
#include "common/isa.h"
#include "cpu/cluster_gradient.h"

CK_DECLARE(void cluster_distances_fwd(const ck::MatrixView& z, const int64_t* labels,
                                      const void* weights, int64_t c, void* sums,
                                      ck::Progress& progress))
CK_DECLARE(void cluster_distances_bwd(const void* grad, const ck::MatrixView& z,
                                      const int64_t* labels, const void* weights, int64_t c,
                                      void* dz, ck::Progress& progress))

namespace ck::CK_ISA {
namespace {

// body(problem) on the sorted points.
template <typename C, typename Body>
void with_problem(const MatrixView& view, const int64_t* labels, int64_t c, Progress& progress,
                  const Body& body) {
  const Rows<C> z(view);
  const Segments segments = sort_by_label(labels, z.count(), c);
  Buffer<C> means(c * z.width());
  std::vector<double> mass(c);
  segment_means<C>(z, segments, nullptr, means.get(), mass.data());
  body(PairProblem<C>{z, segments, means.get(), progress});
}

template <typename C>
void sum_clusters(const MatrixView& z, const int64_t* labels, const void* weights, int64_t c,
                  void* sums, Progress& progress) {
  with_problem<C>(z, labels, c, progress, [&](const PairProblem<C>& problem) {
    int64_t expected = 0;
    for (int64_t j = 0; j < c; ++j) {
      expected += problem.segments.size(j) * (problem.segments.size(j) - 1) / 2;
    }
    progress.expect(expected);
    C* out = static_cast<C*>(sums);
    std::fill(out, out + z.rows, C(0));
    own_sums<C>(problem, static_cast<const C*>(weights), out, nullptr);
  });
}

template <typename C>
void sum_clusters_backward(const void* grad, const MatrixView& z, const int64_t* labels,
                           const void* weights, int64_t c, void* dz, Progress& progress) {
  with_problem<C>(z, labels, c, progress, [&](const PairProblem<C>& problem) {
    cluster_gradient<C>(problem, static_cast<const C*>(grad), static_cast<const C*>(weights),
                        nullptr, nullptr, dz, z.dtype);
  });
}

}  // namespace

void cluster_distances_fwd(const MatrixView& z, const int64_t* labels, const void* weights,
                           int64_t c, void* sums, Progress& progress) {
  const auto run = z.dtype == ScalarType::Double ? sum_clusters<double> : sum_clusters<float>;
  run(z, labels, weights, c, sums, progress);
}

void cluster_distances_bwd(const void* grad, const MatrixView& z, const int64_t* labels,
                           const void* weights, int64_t c, void* dz, Progress& progress) {
  const auto run =
      z.dtype == ScalarType::Double ? sum_clusters_backward<double> : sum_clusters_backward<float>;
  run(grad, z, labels, weights, c, dz, progress);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

Tensor cluster_distances(const Tensor& z, const Tensor& labels, const Tensor& weights,
                         int64_t num_clusters) {
  check_points(z);
  const int64_t n = z.size(0), c = resolve_clusters(labels, num_clusters);
  const Tensor y = checked_labels(labels, n, c), w = *checked_weights(weights, z);
  Tensor sums = new_vector(z, n, compute_type(z));
  Progress progress;
  CK_KERNEL(cluster_distances_fwd)
  (view(z), pointer<int64_t>(y), w.data_ptr(), c, sums.data_ptr(), progress);
  CK_CHECK(!progress.stopped(), "cluster_distances was interrupted");
  return sums;
}

Tensor cluster_distances_backward(const Tensor& grad, const Tensor& z, const Tensor& labels,
                                  const Tensor& weights, int64_t num_clusters) {
  check_points(z);
  const int64_t n = z.size(0), c = resolve_clusters(labels, num_clusters);
  check_vector(grad, n, compute_type(z), "grad");
  const Tensor y = checked_labels(labels, n, c), w = *checked_weights(weights, z);
  const Tensor g = torch::stable::contiguous(grad);
  Tensor dz = new_matrix(z, n, z.size(1), z.scalar_type());
  Progress progress;
  CK_KERNEL(cluster_distances_bwd)
  (g.data_ptr(), view(z), pointer<int64_t>(y), w.data_ptr(), c, dz.data_ptr(), progress);
  CK_CHECK(!progress.stopped(), "cluster_distances_backward was interrupted");
  return dz;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("cluster_distances", TORCH_BOX(&ck::cluster_distances));
  m.impl("cluster_distances_backward", TORCH_BOX(&ck::cluster_distances_backward));
}
#endif
