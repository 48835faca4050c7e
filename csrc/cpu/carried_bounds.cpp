// Bounds of a Lloyd step from an assignment of the same rows before they moved:
//
//   upper_u = ||z_u - mu_own||,   lower_u = second_u - ||z_u - before_u||,   radius_u = ||z_u - origin||^2
//
// One read of z and of `before`. Both bounds carry their rounding errors, the lower one also those of the search that ranked the centroids
// (two_nearest.h): the true second distance may be below the reported one by as much.
#include "common/isa.h"
#include "cpu/rows.h"
#include "cpu/tile.h"

#include <cmath>
#include <vector>

namespace ck {
struct CarriedInput {
  const void* centroids;  // IN [c, d]
  const void* origin;     // IN [d]
  const int64_t* labels;  // IN [n]
  const void* second;     // IN [n]
  int64_t c;
};
}  // namespace ck

CK_DECLARE(void carried_bounds_fwd(const ck::MatrixView& z, const ck::MatrixView& before,
                                   const ck::CarriedInput& in, void* bounds))

namespace ck::CK_ISA {
namespace {

// A score of a row of length r, as two_nearest.h ranks by, is off by at most  scale (base + 2 slope r + r^2).
struct ScoreError {
  double base = 0, slope = 0;
};

// base >= |  ||mu_j||^2 - ||t||^2 |,  slope >= ||mu_j - t||,  t the mean of the centroids.
template <typename C>
ScoreError score_error(const C* centroids, int64_t c, int64_t d) {
  std::vector<double> total(d, 0.0);
  for (int64_t j = 0; j < c; ++j) {
    for (int64_t k = 0; k < d; ++k) total[k] += centroids[j * d + k];
  }
  std::vector<C> centre(d);
  const std::vector<C> zero(d, C(0));
  for (int64_t k = 0; k < d; ++k) centre[k] = static_cast<C>(total[k] / c);
  double longest = squared_distance(centre.data(), zero.data(), d), farthest = 0;
  for (int64_t j = 0; j < c; ++j) {
    const C* mu = centroids + j * d;
    longest = std::max<double>(longest, squared_distance(mu, zero.data(), d));
    farthest = std::max<double>(farthest, squared_distance(mu, centre.data(), d));
  }
  const double rounding = 1 + (d + 8) * static_cast<double>(std::numeric_limits<C>::epsilon());
  return {longest * rounding, std::sqrt(farthest * rounding)};
}

template <typename C>
void carried_bounds_rows(const MatrixView& view, const MatrixView& before_view,
                         const CarriedInput& in, C* bounds) {
  const Rows<C> z(view), before(before_view);
  const int64_t n = z.count(), d = z.width();
  const C* centroids = static_cast<const C*>(in.centroids);
  const C* origin = static_cast<const C*>(in.origin);
  const C* second = static_cast<const C*>(in.second);
  constexpr double kEpsilon = std::numeric_limits<C>::epsilon();
  const double scale = (d + 8) * kEpsilon;
  const ScoreError error = score_error(centroids, in.c, d);
  double square = 0;
  for (int64_t k = 0; k < d; ++k) square += static_cast<double>(origin[k]) * origin[k];
  const double from_zero = std::sqrt(square);
  parallel(ceil_div(n, kBlockRows), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(2 * d);
    const int64_t end = std::min(last * kBlockRows, n);
    for (int64_t i = first * kBlockRows; i < end; ++i) {
      const C* x = z.row(i, scratch.get());
      const C* old = before.row(i, scratch.get() + d);
      const double own = squared_distance(x, centroids + in.labels[i] * d, d);
      const C radius = squared_distance(x, origin, d);
      const double step = squared_distance(x, old, d);
      const double move = std::sqrt(step * (1 + scale));
      // The length of the row before it moved.
      const double length = from_zero + std::sqrt(radius * (1 + scale)) + move;
      const double slack = 2 * scale * (error.base + 2 * error.slope * length + length * length);
      const double reported = second[i];
      const double nearest = reported * reported * (1 - scale) - slack;
      bounds[i] = static_cast<C>(std::sqrt(own * (1 + scale)) * (1 + 2 * kEpsilon));
      const double lower = std::sqrt(std::max(nearest, 0.0)) - move;
      bounds[n + i] = static_cast<C>(lower * (lower > 0 ? 1 - 2 * kEpsilon : 1 + 2 * kEpsilon));
      bounds[2 * n + i] = radius;
    }
  });
}

}  // namespace

void carried_bounds_fwd(const MatrixView& z, const MatrixView& before, const CarriedInput& in,
                        void* bounds) {
  if (z.dtype == ScalarType::Double) {
    carried_bounds_rows(z, before, in, static_cast<double*>(bounds));
  } else {
    carried_bounds_rows(z, before, in, static_cast<float*>(bounds));
  }
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

Tensor carried_bounds(const Tensor& z, const Tensor& before, const Tensor& centroids,
                      const Tensor& origin, const Tensor& labels, const Tensor& second) {
  check_points(z);
  const int64_t n = z.size(0), d = z.size(1), c = centroids.size(0);
  const ScalarType real = compute_type(z);
  check_matrix(before, n, d, z.scalar_type(), "before");
  check_matrix(centroids, c, d, real, "centroids");
  check_vector(origin, d, real, "origin");
  check_vector(second, n, real, "second");
  const Tensor mu = torch::stable::contiguous(centroids), t = torch::stable::contiguous(origin);
  const Tensor y = checked_labels(labels, n, c), far = torch::stable::contiguous(second);
  CK_CHECK(range_of<int64_t>(y).lies_in(0, c), "labels must not be -1");
  Tensor bounds = new_matrix(z, 3, n, real);
  CK_KERNEL(carried_bounds_fwd)
  (view(z), view(before),
   CarriedInput{mu.data_ptr(), t.data_ptr(), pointer<int64_t>(y), far.data_ptr(), c},
   bounds.data_ptr());
  return bounds;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("carried_bounds", TORCH_BOX(&ck::carried_bounds));
}
#endif
