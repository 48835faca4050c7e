// Squared distance of every row to the centroid of its label:  ||z_u - mu_{label_u}||^2, 0 for label -1.
#include "common/isa.h"
#include "cpu/rows.h"
#include "cpu/tile.h"

CK_DECLARE(void own_distance_fwd(const ck::MatrixView& z, const void* centroids,
                                 const int64_t* labels, void* out))

namespace ck::CK_ISA {
namespace {

template <typename C>
void own_distance_rows(const MatrixView& view, const C* centroids, const int64_t* labels, C* out) {
  const Rows<C> z(view);
  const int64_t n = z.count(), d = z.width();
  parallel(ceil_div(n, kBlockRows), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(d);
    const int64_t end = std::min(last * kBlockRows, n);
    for (int64_t i = first * kBlockRows; i < end; ++i) {
      const C* x = z.row(i, scratch.get());
      out[i] = labels[i] < 0 ? C(0) : squared_distance(x, centroids + labels[i] * d, d);
    }
  });
}

}  // namespace

void own_distance_fwd(const MatrixView& z, const void* centroids, const int64_t* labels,
                      void* out) {
  if (z.dtype == ScalarType::Double) {
    own_distance_rows(z, static_cast<const double*>(centroids), labels, static_cast<double*>(out));
  } else {
    own_distance_rows(z, static_cast<const float*>(centroids), labels, static_cast<float*>(out));
  }
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

Tensor own_distance(const Tensor& z, const Tensor& centroids, const Tensor& labels) {
  check_points(z);
  const int64_t c = centroids.size(0);
  check_matrix(centroids, c, z.size(1), compute_type(z), "centroids");
  const Tensor mu = torch::stable::contiguous(centroids);
  const Tensor y = checked_labels(labels, z.size(0), c);
  Tensor out = new_vector(z, z.size(0), compute_type(z));
  CK_KERNEL(own_distance_fwd)(view(z), mu.data_ptr(), pointer<int64_t>(y), out.data_ptr());
  return out;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("own_distance", TORCH_BOX(&ck::own_distance));
}
#endif
