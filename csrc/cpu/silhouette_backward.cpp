// Gradient of  sum_u p_u a_u + q_u b_u  for the parts a, b of the exact silhouette: own blocks and nearest-other rectangles only.
#include "common/isa.h"
#include "cpu/cluster_gradient.h"

namespace ck {
struct SilhouetteBackward {
  const void* grad_own;    // IN [n]
  const void* grad_other;  // IN [n]
  const int64_t* labels;   // IN [n]
  const int32_t* nearest;  // IN [n]
  void* dz;                // OUT [n, d]
};
}  // namespace ck

CK_DECLARE(void silhouette_bwd(const ck::MatrixView& z, int64_t c,
                               const ck::SilhouetteBackward& args, ck::Progress& progress))

namespace ck::CK_ISA {
namespace {

template <typename C>
void silhouette_gradient(const MatrixView& view, int64_t c, const SilhouetteBackward& args,
                         Progress& progress) {
  const Rows<C> z(view);
  const int64_t n = z.count(), d = z.width();
  const Segments segments = sort_by_label(args.labels, n, c);
  const C* p = static_cast<const C*>(args.grad_own);
  const C* q = static_cast<const C*>(args.grad_other);
  Buffer<C> own(n), other(n);
  Buffer<int32_t> rival(n);
  for (int64_t u = 0; u < n; ++u) {
    const int64_t y = args.labels[u], k = args.nearest[u];
    const int64_t size = y < 0 ? 0 : segments.size(y);
    own[u] = size > 1 ? p[u] / static_cast<C>(size - 1) : C(0);
    rival[u] = y >= 0 && k != y && k >= 0 && q[u] != 0 && segments.size(k) > 0 ? k : -1;
    other[u] = rival[u] < 0 ? C(0) : q[u] / static_cast<C>(segments.size(k));
  }
  const Segments rivals = sort_by_label(rival.get(), n, c);
  Buffer<C> means(c * d);
  std::vector<double> mass(c);
  segment_means<C>(z, segments, nullptr, means.get(), mass.data());
  const PairProblem<C> problem{z, segments, means.get(), progress};
  cluster_gradient<C>(problem, own.get(), nullptr, &rivals, other.get(), args.dz, view.dtype);
}

}  // namespace

void silhouette_bwd(const MatrixView& z, int64_t c, const SilhouetteBackward& args,
                    Progress& progress) {
  const auto run =
      z.dtype == ScalarType::Double ? silhouette_gradient<double> : silhouette_gradient<float>;
  run(z, c, args, progress);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

Tensor silhouette_backward(const Tensor& grad_own, const Tensor& grad_other, const Tensor& z,
                           const Tensor& labels, const Tensor& nearest, int64_t num_clusters) {
  check_points(z);
  const int64_t n = z.size(0), c = resolve_clusters(labels, num_clusters);
  check_vector(grad_own, n, compute_type(z), "grad_own");
  check_vector(grad_other, n, compute_type(z), "grad_other");
  check_vector(nearest, n, ScalarType::Int, "nearest");
  const Tensor y = checked_labels(labels, n, c), k = torch::stable::contiguous(nearest);
  const Range found = range_of<int32_t>(k);
  CK_CHECK(found.high < c, "nearest must be below ", c, ", got ", found.high);
  const Tensor p = torch::stable::contiguous(grad_own), q = torch::stable::contiguous(grad_other);
  Tensor dz = new_matrix(z, n, z.size(1), z.scalar_type());
  Progress progress;
  CK_KERNEL(silhouette_bwd)
  (view(z), c,
   SilhouetteBackward{p.data_ptr(), q.data_ptr(), pointer<int64_t>(y), pointer<int32_t>(k),
                      dz.data_ptr()},
   progress);
  CK_CHECK(!progress.stopped(), "silhouette_backward was interrupted");
  return dz;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("silhouette_backward", TORCH_BOX(&ck::silhouette_backward));
}
#endif
