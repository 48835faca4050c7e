// Nearest and second-nearest centroid of every row:  label_u = argmin_j ||z_u - mu_j||.
//
// Work: 2ncd flops in register tiles (two_nearest.h), then the two winners' distances by direct difference, while the row is in cache.
#include "common/isa.h"
#include "cpu/rows.h"
#include "cpu/two_nearest.h"

namespace ck {
struct AssignOutput {
  int64_t* labels;         // OUT [n]
  void* distances;         // OUT [n]
  int64_t* second_labels;  // OUT [n]
  void* second_distances;  // OUT [n]
};
}  // namespace ck

CK_DECLARE(void assign_fwd(const ck::MatrixView& z, const void* centroids, int64_t c,
                           const ck::AssignOutput& out))

namespace ck::CK_ISA {
namespace {

template <typename C>
void assign_rows(const MatrixView& view,
                 const C* centroids,  // IN [c, d]
                 int64_t c, const AssignOutput& out) {
  const Rows<C> z(view);
  const int64_t n = z.count(), d = z.width();
  const Panels<C> panels = centroid_panels<C>(centroids, c, d, nullptr);
  C* distances = static_cast<C*>(out.distances);
  C* second_distances = static_cast<C*>(out.second_distances);
  parallel(ceil_div(n, kBlockRows), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(z.direct() ? 0 : kBlockRows * d);
    Buffer<TopTwo<C>> state(kBlockRows);
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlockRows;
      const int64_t m = std::min(kBlockRows, n - begin);
      int64_t stride;
      const C* a = z.block(begin, m, scratch.get(), &stride);
      int64_t* nearest = out.labels + begin;
      int64_t* second = out.second_labels + begin;
      two_nearest_block(a, stride, m, panels, state.get(), nearest, second);
      for (int64_t i = 0; i < m; ++i) {
        // Rows with NaN rank nothing: they keep centroid 0 and a NaN distance.
        nearest[i] = std::max<int64_t>(nearest[i], 0);
        const C* x = a + i * stride;
        const int64_t other = second[i] < 0 ? nearest[i] : second[i];
        C near_square, far_square;
        two_squared_distances(x, centroids + nearest[i] * d, centroids + other * d, d, &near_square,
                              &far_square);
        if (second[i] < 0) {
          far_square = std::numeric_limits<C>::infinity();
        } else if (far_square < near_square ||
                   (far_square == near_square && second[i] < nearest[i])) {
          std::swap(near_square, far_square);
          std::swap(nearest[i], second[i]);
        }
        distances[begin + i] = std::sqrt(near_square);
        second_distances[begin + i] = std::sqrt(far_square);
      }
    }
  });
}

}  // namespace

void assign_fwd(const MatrixView& z, const void* centroids, int64_t c, const AssignOutput& out) {
  if (z.dtype == ScalarType::Double) {
    assign_rows(z, static_cast<const double*>(centroids), c, out);
  } else {
    assign_rows(z, static_cast<const float*>(centroids), c, out);
  }
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> assign(const Tensor& z, const Tensor& centroids) {
  check_points(z);
  const int64_t n = z.size(0), c = centroids.size(0);
  CK_CHECK(c >= 1, "centroids must have at least one row");
  check_matrix(centroids, c, z.size(1), compute_type(z), "centroids");
  const Tensor packed = torch::stable::contiguous(centroids);
  Tensor labels = new_vector(z, n, ScalarType::Long);
  Tensor distances = new_vector(z, n, compute_type(z));
  Tensor second_labels = new_vector(z, n, ScalarType::Long);
  Tensor second_distances = new_vector(z, n, compute_type(z));
  CK_KERNEL(assign_fwd)
  (view(z), packed.data_ptr(), c,
   AssignOutput{pointer<int64_t>(labels), distances.data_ptr(), pointer<int64_t>(second_labels),
                second_distances.data_ptr()});
  return {labels, distances, second_labels, second_distances};
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) { m.impl("assign", TORCH_BOX(&ck::assign)); }
#endif
