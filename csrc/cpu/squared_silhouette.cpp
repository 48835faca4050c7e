// Silhouette parts with D_uv = ||z_u - z_v||^2 + e_u + e_v, in closed form from the cluster means mu_j:
//
//   w_j = mean_{v in j} (||z_v - mu_j||^2 + e_v)
//   a_u = (n_j (||z_u - mu_j||^2 + w_j) + (n_j - 2) e_u) / (n_j - 1),  j = y_u
//   b_u = min_{j != y_u} ||z_u - mu_j||^2 + w_j + e_u
//
// Gradient of sum_u p_u a_u + q_u b_u, with r_u = p_u n_{y_u} / (n_{y_u} - 1), k_u the argmin, e constant:
//
//   M_j  = - sum_{u: y_u=j} r_u (z_u - mu_j) - sum_{u: k_u=j} q_u (z_u - mu_j),   V_j = sum_{u: y_u=j} r_u + sum_{u: k_u=j} q_u
//   dz_u = 2 ( r_u (z_u - mu_{y_u}) + q_u (z_u - mu_{k_u}) + (M_{y_u} + V_{y_u} (z_u - mu_{y_u})) / n_{y_u} )
//
// Forward: segment means, one read of z for w, 2ncd flops of register tiles. Backward: three reads of z and one write of dz.
#include "common/isa.h"
#include "cpu/segment.h"
#include "cpu/two_nearest.h"

namespace ck {

struct SquaredSilhouetteForward {
  const int64_t* labels;  // IN [n], -1: outlier
  const void* excess;     // IN [n] or null: zeros
  int64_t c;
  void* own;         // OUT [n], 0 for outliers and singletons
  void* other;       // OUT [n], 0 where there is no other cluster
  int32_t* nearest;  // OUT [n], -1 likewise
};

struct SquaredSilhouetteBackward {
  const void* grad_own;    // IN [n]
  const void* grad_other;  // IN [n]
  const int64_t* labels;   // IN [n]
  const int32_t* nearest;  // IN [n]
  int64_t c;
  void* dz;  // OUT [n, d]
};

}  // namespace ck

CK_DECLARE(void squared_silhouette_fwd(const ck::MatrixView& z,
                                       const ck::SquaredSilhouetteForward& args))
CK_DECLARE(void squared_silhouette_bwd(const ck::MatrixView& z,
                                       const ck::SquaredSilhouetteBackward& args))

namespace ck::CK_ISA {
namespace {

// The points by cluster with their means.
template <typename C>
struct Clusters {
  Segments segments;
  Buffer<C> means;
  Clusters(const Rows<C>& z, const int64_t* labels, int64_t c)
      : segments(sort_by_label(labels, z.count(), c)), means(c * z.width()) {
    std::vector<double> mass(c);
    segment_means<C>(z, segments, nullptr, means.get(), mass.data());
  }
  int64_t size(int64_t j) const { return segments.size(j); }
};

// sums_j = sum over the rows of cluster j of value(row), in order and in double
template <typename Value>
std::vector<double> segment_sums(const Segments& segments, const Value& value) {
  std::vector<double> sums(segments.clusters, 0.0);
  for (int64_t j = 0; j < segments.clusters; ++j) {
    for (int64_t i = segments.offsets[j]; i < segments.offsets[j + 1]; ++i) {
      sums[j] += value(segments.order[i]);
    }
  }
  return sums;
}

template <typename C>
void forward(const MatrixView& view, const SquaredSilhouetteForward& args) {
  const Rows<C> z(view);
  const int64_t n = z.count(), d = z.width(), c = args.c;
  const Clusters<C> clusters(z, args.labels, c);
  const C* means = clusters.means.get();
  const C* excess = static_cast<const C*>(args.excess);
  C* own = static_cast<C*>(args.own);
  C* other = static_cast<C*>(args.other);
  const auto excess_of = [&](int64_t u) { return excess == nullptr ? C(0) : excess[u]; };

  parallel(ceil_div(n, kBlockRows), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(d);
    for (int64_t u = first * kBlockRows; u < std::min(last * kBlockRows, n); ++u) {
      const int64_t y = args.labels[u];
      own[u] = y < 0 ? C(0) : squared_distance(z.row(u, scratch.get()), means + y * d, d);
    }
  });
  std::vector<double> spread = segment_sums(clusters.segments, [&](int64_t u) {
    return static_cast<double>(own[u]) + static_cast<double>(excess_of(u));
  });
  std::vector<int64_t> counts(c);
  for (int64_t j = 0; j < c; ++j) {
    counts[j] = clusters.size(j);
    spread[j] /= static_cast<double>(std::max<int64_t>(counts[j], 1));
  }
  Panels<C> panels = centroid_panels<C>(means, c, d, counts.data());
  for (int64_t j = 0; j < c; ++j) {
    panels.set_bias(j, static_cast<C>(panels.bias(0)[j] + spread[j]));
  }

  parallel(ceil_div(n, kBlockRows), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(z.direct() ? 0 : kBlockRows * d);
    Buffer<TopTwo<C>> state(kBlockRows);
    int64_t nearest[kBlockRows], runner_up[kBlockRows];
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlockRows, m = std::min(kBlockRows, n - begin);
      int64_t stride;
      const C* a = z.block(begin, m, scratch.get(), &stride);
      two_nearest_block(a, stride, m, panels, state.get(), nearest, runner_up);
      for (int64_t i = 0; i < m; ++i) {
        const int64_t u = begin + i, y = args.labels[u];
        const int64_t k = y < 0 ? -1 : (nearest[i] == y ? runner_up[i] : nearest[i]);
        args.nearest[u] = static_cast<int32_t>(k);
        other[u] = C(0);
        if (k >= 0) {
          const C to_other = squared_distance(a + i * stride, means + k * d, d);
          other[u] = static_cast<C>(to_other + spread[k] + excess_of(u));
        }
        const double size = y < 0 ? 0.0 : static_cast<double>(counts[y]);
        if (size <= 1) {
          own[u] = C(0);
          continue;
        }
        const double all = size * (own[u] + spread[y]) + (size - 2) * excess_of(u);
        own[u] = static_cast<C>(all / (size - 1));
      }
    }
  });
}

template <typename C>
void backward(const MatrixView& view, const SquaredSilhouetteBackward& args) {
  const Rows<C> z(view);
  const int64_t n = z.count(), d = z.width(), c = args.c;
  const Clusters<C> clusters(z, args.labels, c);
  const C* means = clusters.means.get();
  const C* grad_own = static_cast<const C*>(args.grad_own);
  const C* grad_other = static_cast<const C*>(args.grad_other);
  Buffer<C> r(n), q(n);
  parallel(ceil_div(n, 4096), [&](int64_t first, int64_t last) {
    for (int64_t u = first * 4096; u < std::min(last * 4096, n); ++u) {
      const int64_t y = args.labels[u];
      const double size = y < 0 ? 0.0 : static_cast<double>(clusters.size(y));
      r[u] = size > 1 ? static_cast<C>(grad_own[u] * (size / (size - 1))) : C(0);
      q[u] = args.nearest[u] >= 0 ? grad_other[u] : C(0);
    }
  });

  const Segments rivals = sort_by_label(args.nearest, n, c);
  const auto of_r = [&](int64_t u) { return static_cast<double>(r[u]); };
  const auto of_q = [&](int64_t u) { return static_cast<double>(q[u]); };
  const std::vector<double> total_r = segment_sums(clusters.segments, of_r);
  const std::vector<double> total_q = segment_sums(rivals, of_q);
  Buffer<C> shift(c * d), rest(c * d);
  segment_weighted_differences(z, clusters.segments, r.get(), means, -1.0, shift.get());
  segment_weighted_differences(z, rivals, q.get(), means, -1.0, rest.get());
  std::vector<C> slope(c);
  for (int64_t j = 0; j < c; ++j) {
    const double share = 1.0 / static_cast<double>(std::max<int64_t>(clusters.size(j), 1));
    slope[j] = static_cast<C>((total_r[j] + total_q[j]) * share);
    for (int64_t k = j * d; k < (j + 1) * d; ++k) {
      shift[k] = static_cast<C>((static_cast<double>(shift[k]) + rest[k]) * share);
    }
  }

  const GradientRows<C> dz(args.dz, d, view.dtype);
  parallel(ceil_div(n, kBlockRows), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(2 * d);
    for (int64_t u = first * kBlockRows; u < std::min(last * kBlockRows, n); ++u) {
      const int64_t y = args.labels[u], k = args.nearest[u];
      if (y < 0) {
        dz.zero(u);
        continue;
      }
      const C* x = z.row(u, scratch.get());
      const C *mine = means + y * d, *next = means + std::max<int64_t>(k, 0) * d;
      const C* base = shift.get() + y * d;
      const C to_own = 2 * (r[u] + slope[y]), to_other = 2 * q[u];
      C* __restrict__ out = dz.begin(u, scratch.get() + d);
      for (int64_t t = 0; t < d; ++t) {
        out[t] = 2 * base[t] + to_own * (x[t] - mine[t]) + to_other * (x[t] - next[t]);
      }
      dz.end(u, out);
    }
  });
}

}  // namespace

void squared_silhouette_fwd(const MatrixView& z, const SquaredSilhouetteForward& args) {
  z.dtype == ScalarType::Double ? forward<double>(z, args) : forward<float>(z, args);
}

void squared_silhouette_bwd(const MatrixView& z, const SquaredSilhouetteBackward& args) {
  z.dtype == ScalarType::Double ? backward<double>(z, args) : backward<float>(z, args);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

std::tuple<Tensor, Tensor, Tensor> squared_silhouette(const Tensor& z, const Tensor& labels,
                                                      std::optional<Tensor> excess,
                                                      int64_t num_clusters) {
  check_points(z);
  const int64_t n = z.size(0), c = resolve_clusters(labels, num_clusters);
  const ScalarType real = compute_type(z);
  const Tensor y = checked_labels(labels, n, c);
  std::optional<Tensor> e;
  if (excess) {
    check_vector(*excess, n, real, "excess");
    e = torch::stable::contiguous(*excess);
  }
  Tensor own = new_vector(z, n, real), other = new_vector(z, n, real);
  Tensor nearest = new_vector(z, n, ScalarType::Int);
  CK_KERNEL(squared_silhouette_fwd)
  (view(z), SquaredSilhouetteForward{pointer<int64_t>(y), e ? e->data_ptr() : nullptr, c,
                                     own.data_ptr(), other.data_ptr(), pointer<int32_t>(nearest)});
  return {own, other, nearest};
}

Tensor squared_silhouette_backward(const Tensor& grad_own, const Tensor& grad_other,
                                   const Tensor& z, const Tensor& labels, const Tensor& nearest,
                                   int64_t num_clusters) {
  check_points(z);
  const int64_t n = z.size(0), c = resolve_clusters(labels, num_clusters);
  const ScalarType real = compute_type(z);
  const Tensor y = checked_labels(labels, n, c);
  check_vector(grad_own, n, real, "grad_own");
  check_vector(grad_other, n, real, "grad_other");
  check_indices(nearest, n, c, "nearest");
  const Tensor p = torch::stable::contiguous(grad_own), q = torch::stable::contiguous(grad_other);
  const Tensor k = torch::stable::contiguous(nearest);
  Tensor dz = new_matrix(z, n, z.size(1), z.scalar_type());
  CK_KERNEL(squared_silhouette_bwd)
  (view(z), SquaredSilhouetteBackward{p.data_ptr(), q.data_ptr(), pointer<int64_t>(y),
                                      pointer<int32_t>(k), c, dz.data_ptr()});
  return dz;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("squared_silhouette", TORCH_BOX(&ck::squared_silhouette));
  m.impl("squared_silhouette_backward", TORCH_BOX(&ck::squared_silhouette_backward));
}
#endif
