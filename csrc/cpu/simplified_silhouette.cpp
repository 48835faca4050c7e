// Simplified silhouette:  a_u = ||z_u - mu_{y_u}||,  b_u = min_{k != y_u} ||z_u - mu_k||,  s_u = (b_u - a_u) / max(a_u, b_u).
//
// Gradient of sum_u g_u s_u, with p_u = g_u (ds/da) / a_u, q_u = g_u (ds/db) / b_u and k_u the argmin:
//
//   G_u = p_u (z_u - mu_{y_u}) + q_u (z_u - mu_{k_u})
//   M_j = - sum_{u: y_u=j} p_u (z_u - mu_j) - sum_{u: k_u=j} q_u (z_u - mu_j)
//   dz_u = G_u, dmu_j = M_j    or, where the centroids are means of z ("tied"),    dz_u = G_u + M_{y_u} / n_{y_u}
//
// A row that cannot be ranked although there are two clusters (NaN, infinity, overflow) scores NaN, and its gradient is NaN.
//
// Forward: (tied: segment means,) 2ncd flops of register tiles; a row's distances and its share of M (for g = 1) are taken while the row
// is in cache. Backward: one read of z and one write of dz.
#include "common/isa.h"
#include "cpu/segment.h"
#include "cpu/two_nearest.h"

namespace ck {
struct SimplifiedSilhouetteForward {
  const int64_t* labels;  // IN [n] or null: the nearest centroid
  const void* centroids;  // IN [c, d] or null: the means of z by label
  int64_t c;
  bool singleton_zero;
  int32_t* own_labels;    // OUT [n]
  int32_t* other_labels;  // OUT [n], -1 where no other centroid was found
  void* own;              // OUT [n]
  void*
      other;  // OUT [n]; without another centroid 0, or NaN where there is one that the row cannot be ranked by
  void* values;     // OUT [n] or null
  double* total;    // OUT [1], the sum of the values
  void* means;      // OUT [c, d] or null: not wanted, or not tied
  int64_t* counts;  // OUT [c] or null, likewise
  void* sums;       // OUT [c, d] or null: not wanted
};

struct SimplifiedSilhouetteBackward {
  const void* grad;  // IN [1], or [n] where per_point
  bool per_point, mean, tied;
  const int32_t* own_labels;    // IN [n]
  const int32_t* other_labels;  // IN [n]
  const void* own;              // IN [n]
  const void* other;            // IN [n]
  const void* centers;          // IN [c, d] or null: recompute the means
  const int64_t* counts;        // IN [c], where tied and centers are given
  const void* sums;             // IN [c, d] or null: recompute
  int64_t c;
  void* dz;          // OUT [n, d]
  void* dcentroids;  // OUT [c, d] or null
};
}  // namespace ck

CK_DECLARE(void simplified_silhouette_fwd(const ck::MatrixView& z,
                                          const ck::SimplifiedSilhouetteForward& args))
CK_DECLARE(void simplified_silhouette_bwd(const ck::MatrixView& z,
                                          const ck::SimplifiedSilhouetteBackward& args))

namespace ck::CK_ISA {
namespace {

template <typename C>
CK_INLINE C silhouette(C a, C b) {
  const C gap = b - a;
  return gap == 0 ? C(0) : gap / std::max(a, b);
}

// p = (ds/da) / a and q = (ds/db) / b, 0 at zero distances, NaN where a or b is not finite. No power of a distance is formed.
template <typename C>
CK_INLINE void slopes(C a, C b, C* p, C* q) {
  if (!std::isfinite(b - a)) {
    *p = *q = std::numeric_limits<C>::quiet_NaN();
    return;
  }
  const bool inner = a <= b;
  const C low = inner ? a : b, high = inner ? b : a;
  const C steep = low > 0 ? 1 / high / low : C(0);
  const C flat = low > 0 ? low / high / high / high : C(0);
  *p = inner ? -steep : -flat;
  *q = inner ? flat : steep;
}

// Chunks of rows with private sums M: at most 32, each with enough rows to pay for its c x d table. 0: sum over sorted rows instead.
CK_INLINE int64_t sum_chunks(int64_t n, int64_t c) {
  const int64_t chunks = std::min<int64_t>({32, n / 1024, n / (4 * c)});
  return chunks >= 8 ? chunks : 0;
}

// sums = M for the given p and q, over rows sorted by own and by other label
template <typename C>
void sorted_sums(const Rows<C>& z, const int32_t* own_labels, const int32_t* other_labels,
                 const C* p, const C* q, const C* centers, int64_t c, C* sums) {
  const int64_t n = z.count(), d = z.width();
  Buffer<C> rest(c * d);
  segment_weighted_differences(z, sort_by_label(own_labels, n, c), p, centers, -1.0, sums);
  segment_weighted_differences(z, sort_by_label(other_labels, n, c), q, centers, -1.0, rest.get());
  for (int64_t i = 0; i < c * d; ++i) sums[i] += rest[i];
}

// p and q of every row, times the upstream gradient where there is one a row
template <typename C>
void all_slopes(int64_t n, const C* own, const C* other, const C* grad, C* p, C* q) {
  parallel(ceil_div(n, 4096), [&](int64_t first, int64_t last) {
    for (int64_t i = first * 4096; i < std::min(last * 4096, n); ++i) {
      slopes(own[i], other[i], p + i, q + i);
      if (grad == nullptr) continue;
      p[i] *= grad[i];
      q[i] *= grad[i];
    }
  });
}

template <typename C>
struct Point {
  int64_t own_label, other_label;
  C own, other;
};

// Own and other centroid of a row, given the two nearest by score; distances by direct difference decide between close ones.
// A row that ranks nothing belongs to centroid 0 where it has no label, as in assign.
template <typename C>
CK_INLINE Point<C> place(const C* x, const C* centers, int64_t d, const int64_t* label,
                         int64_t nearest, int64_t runner_up, bool has_other) {
  Point<C> point{label == nullptr ? std::max<int64_t>(nearest, 0) : *label, -1, 0, 0};
  if (point.own_label < 0) return point;
  point.other_label = point.own_label == nearest ? runner_up : nearest;
  const C* mine = centers + point.own_label * d;
  const C* next = point.other_label < 0 ? mine : centers + point.other_label * d;
  two_squared_distances(x, mine, next, d, &point.own, &point.other);
  if (label == nullptr && point.other_label >= 0 &&
      (point.other < point.own ||
       (point.other == point.own && point.other_label < point.own_label))) {
    std::swap(point.own, point.other);
    std::swap(point.own_label, point.other_label);
  }
  point.own = std::sqrt(point.own);
  point.other = std::sqrt(point.other);
  if (point.other_label < 0) {
    point.other = has_other ? std::numeric_limits<C>::quiet_NaN() : C(0);
  }
  return point;
}

template <typename C>
void forward(const MatrixView& view, const SimplifiedSilhouetteForward& args) {
  const Rows<C> z(view);
  const int64_t n = z.count(), d = z.width(), c = args.c;
  const bool tied = args.centroids == nullptr;
  Buffer<C> own_means(tied && args.means == nullptr ? c * d : 0);
  std::vector<int64_t> counts(tied ? c : 0);
  const C* centers = static_cast<const C*>(args.centroids);
  if (tied) {
    const Segments segments = sort_by_label(args.labels, n, c);
    C* means = args.means == nullptr ? own_means.get() : static_cast<C*>(args.means);
    std::vector<double> mass(c);
    segment_means<C>(z, segments, nullptr, means, mass.data());
    centers = means;
    for (int64_t j = 0; j < c; ++j) counts[j] = segments.size(j);
    if (args.counts != nullptr) std::copy(counts.begin(), counts.end(), args.counts);
  }
  const Panels<C> panels = centroid_panels<C>(centers, c, d, tied ? counts.data() : nullptr);

  const int64_t present = tied ? c - std::count(counts.begin(), counts.end(), int64_t{0}) : c;
  C* own = static_cast<C*>(args.own);
  C* other = static_cast<C*>(args.other);
  C* values = static_cast<C*>(args.values);
  C* sums = static_cast<C*>(args.sums);
  const int64_t blocks = ceil_div(n, kBlockRows);
  const int64_t sum_parts = sums == nullptr ? 0 : sum_chunks(n, c);
  const int64_t chunk_blocks = sum_parts == 0 ? 1 : ceil_div(blocks, sum_parts);
  const int64_t chunks = ceil_div(blocks, chunk_blocks);
  Buffer<C> partial(sum_parts == 0 ? 0 : chunks * c * d);
  std::vector<double> block_total(blocks, 0.0);

  parallel(chunks, [&](int64_t first_chunk, int64_t last_chunk) {
    Buffer<C> scratch(z.direct() ? 0 : kBlockRows * d);
    Buffer<TopTwo<C>> state(kBlockRows);
    int64_t nearest[kBlockRows], runner_up[kBlockRows];
    for (int64_t block = first_chunk * chunk_blocks;
         block < std::min(last_chunk * chunk_blocks, blocks); ++block) {
      C* sum = partial.get() + block / chunk_blocks * c * d;
      if (sum_parts != 0 && block % chunk_blocks == 0) std::fill(sum, sum + c * d, C(0));
      const int64_t begin = block * kBlockRows;
      const int64_t m = std::min(kBlockRows, n - begin);
      int64_t stride;
      const C* a = z.block(begin, m, scratch.get(), &stride);
      two_nearest_block(a, stride, m, panels, state.get(), nearest, runner_up);
      double total = 0;
      for (int64_t i = 0; i < m; ++i) {
        const int64_t u = begin + i;
        const C* x = a + i * stride;
        const Point<C> point =
            place(x, centers, d, args.labels == nullptr ? nullptr : args.labels + u, nearest[i],
                  runner_up[i], present > 1);
        const int64_t y = point.own_label, k = point.other_label;
        args.own_labels[u] = static_cast<int32_t>(y);
        args.other_labels[u] = static_cast<int32_t>(k);
        own[u] = point.own;
        other[u] = point.other;
        const bool placed = y >= 0 && present > 1;
        const bool singleton = tied && args.singleton_zero && placed && counts[y] == 1;
        C value = placed ? silhouette(point.own, point.other) : C(0);
        if (singleton && std::isfinite(value)) value = 0;
        total += value;
        if (values != nullptr) values[u] = value;
        if (sum_parts == 0 || !placed) continue;
        C p, q;
        slopes(point.own, point.other, &p, &q);
        add_scaled_difference(sum + y * d, -p, x, centers + y * d, d);
        if (k >= 0) add_scaled_difference(sum + k * d, -q, x, centers + k * d, d);
      }
      block_total[block] = total;
    }
  });

  *args.total = 0;
  for (double total : block_total) *args.total += total;
  if (sum_parts != 0) {
    parallel(c, [&](int64_t first, int64_t last) {
      std::vector<double> sum(d);
      for (int64_t j = first; j < last; ++j) {
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int64_t part = 0; part < chunks; ++part) {
          const C* row = partial.get() + (part * c + j) * d;
          for (int64_t k = 0; k < d; ++k) sum[k] += row[k];
        }
        for (int64_t k = 0; k < d; ++k) sums[j * d + k] = static_cast<C>(sum[k]);
      }
    });
  } else if (sums != nullptr) {
    Buffer<C> p(n), q(n);
    all_slopes<C>(n, own, other, nullptr, p.get(), q.get());
    sorted_sums(z, args.own_labels, args.other_labels, p.get(), q.get(), centers, c, sums);
  }
}

template <typename C>
void backward(const MatrixView& view, const SimplifiedSilhouetteBackward& args) {
  const Rows<C> z(view);
  const int64_t n = z.count(), d = z.width(), c = args.c;
  const C* own = static_cast<const C*>(args.own);
  const C* other = static_cast<const C*>(args.other);
  const C* grad = static_cast<const C*>(args.grad);
  const C* centers = static_cast<const C*>(args.centers);
  Buffer<C> means(centers == nullptr ? c * d : 0);
  std::vector<double> mass(c, 1.0);
  if (centers == nullptr) {
    segment_means<C>(z, sort_by_label(args.own_labels, n, c), nullptr, means.get(), mass.data());
    centers = means.get();
  } else if (args.tied) {
    std::copy(args.counts, args.counts + c, mass.begin());
  }
  Buffer<C> p(args.per_point ? n : 0), q(args.per_point ? n : 0);
  if (args.per_point) all_slopes(n, own, other, grad, p.get(), q.get());

  const bool need_sums = args.tied || args.dcentroids != nullptr;
  Buffer<C> own_sums(need_sums && args.sums == nullptr ? c * d : 0);
  const C* sums = static_cast<const C*>(args.sums);
  if (need_sums && sums == nullptr) {
    Buffer<C> unit_p(args.per_point ? 0 : n), unit_q(args.per_point ? 0 : n);
    if (!args.per_point) all_slopes<C>(n, own, other, nullptr, unit_p.get(), unit_q.get());
    sorted_sums(z, args.own_labels, args.other_labels, args.per_point ? p.get() : unit_p.get(),
                args.per_point ? q.get() : unit_q.get(), centers, c, own_sums.get());
    sums = own_sums.get();
  }

  double factor = args.per_point ? 1.0 : static_cast<double>(*grad);
  if (args.mean) {
    int64_t scored = 0;
    for (int64_t i = 0; i < n; ++i) scored += args.own_labels[i] >= 0;
    factor /= static_cast<double>(std::max<int64_t>(scored, 1));
  }
  const C scale = static_cast<C>(factor);
  if (args.dcentroids != nullptr) {
    C* out = static_cast<C*>(args.dcentroids);
    for (int64_t i = 0; i < c * d; ++i) out[i] = scale * sums[i];
  }
  // The share of M that every point of a cluster receives; one row of zeros serves all where the centroids are given.
  Buffer<C> share(args.tied ? c * d : d);
  for (int64_t j = 0; j < (args.tied ? c : 1); ++j) {
    const C weight = args.tied ? static_cast<C>(factor / std::max(mass[j], 1.0)) : C(0);
    for (int64_t k = 0; k < d; ++k) share[j * d + k] = args.tied ? weight * sums[j * d + k] : C(0);
  }
  const GradientRows<C> dz(args.dz, d, view.dtype);
  parallel(ceil_div(n, kBlockRows), [&](int64_t first, int64_t last) {
    Buffer<C> scratch(2 * d);
    const int64_t end = std::min(last * kBlockRows, n);
    for (int64_t i = first * kBlockRows; i < end; ++i) {
      const int64_t y = args.own_labels[i], k = std::max(args.other_labels[i], 0);
      if (y < 0 || (args.other_labels[i] < 0 && other[i] == 0)) {
        dz.zero(i);
        continue;
      }
      C to_own, to_other;
      if (args.per_point) {
        to_own = p[i];
        to_other = q[i];
      } else {
        slopes(own[i], other[i], &to_own, &to_other);
        to_own *= scale;
        to_other *= scale;
      }
      const C* x = z.row(i, scratch.get());
      const C* mine = centers + y * d;
      const C* next = centers + k * d;
      const C* base = share.get() + (args.tied ? y * d : 0);
      C* __restrict__ out = dz.begin(i, scratch.get() + d);
      for (int64_t t = 0; t < d; ++t) {
        out[t] = base[t] + to_own * (x[t] - mine[t]) + to_other * (x[t] - next[t]);
      }
      dz.end(i, out);
    }
  });
}

}  // namespace

void simplified_silhouette_fwd(const MatrixView& z, const SimplifiedSilhouetteForward& args) {
  z.dtype == ScalarType::Double ? forward<double>(z, args) : forward<float>(z, args);
}

void simplified_silhouette_bwd(const MatrixView& z, const SimplifiedSilhouetteBackward& args) {
  z.dtype == ScalarType::Double ? backward<double>(z, args) : backward<float>(z, args);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Forward simplified_silhouette(const Tensor& z, std::optional<Tensor> labels,
                              std::optional<Tensor> centroids, int64_t num_clusters,
                              std::string reduction, bool singleton_zero, bool save_sums) {
  check_points(z);
  CK_CHECK(labels || centroids, "labels or centroids must be given");
  const int64_t n = z.size(0), d = z.size(1);
  const ScalarType real = compute_type(z);
  const bool tied = !centroids;
  const int64_t c = tied ? resolve_clusters(*labels, num_clusters) : centroids->size(0);
  const Tensor centers = tied ? z : torch::stable::contiguous(*centroids);
  if (!tied) check_matrix(centers, c, d, real, "centroids");
  std::optional<Tensor> y;
  if (labels) y = checked_labels(*labels, n, c);

  const bool per_point = reduction == "none";
  const int64_t state = tied ? num_clusters : 0;
  Tensor own_labels = new_vector(z, n, ScalarType::Int);
  Tensor other_labels = new_vector(z, n, ScalarType::Int);
  Tensor own = new_vector(z, n, real), other = new_vector(z, n, real);
  Tensor value = per_point ? new_vector(z, n, real) : new_tensor(z, {}, real);
  Tensor means = new_matrix(z, state, d, real);
  Tensor counts = new_vector(z, state, ScalarType::Long);
  Tensor sums = new_matrix(z, save_sums ? num_clusters : 0, d, real);
  double total = 0;
  CK_KERNEL(simplified_silhouette_fwd)
  (view(z),
   SimplifiedSilhouetteForward{
       y ? pointer<int64_t>(*y) : nullptr, tied ? nullptr : centers.data_ptr(), c, singleton_zero,
       pointer<int32_t>(own_labels), pointer<int32_t>(other_labels), own.data_ptr(),
       other.data_ptr(), per_point ? value.data_ptr() : nullptr, &total,
       state > 0 ? means.data_ptr() : nullptr, state > 0 ? pointer<int64_t>(counts) : nullptr,
       save_sums ? sums.data_ptr() : nullptr});
  if (!per_point) {
    int64_t scored = n;
    if (reduction == "mean" && y) {
      scored = 0;
      for (int64_t i = 0; i < n; ++i) scored += pointer<int64_t>(*y)[i] >= 0;
    }
    if (reduction == "mean") total /= static_cast<double>(std::max<int64_t>(scored, 1));
    set_element(value, 0, total);
  }
  return {value, own_labels, other_labels, own, other, means, counts, sums};
}

std::tuple<Tensor, Tensor> simplified_silhouette_backward(
    const Tensor& grad, const Tensor& z, const Tensor& own_labels, const Tensor& other_labels,
    const Tensor& own, const Tensor& other, const Tensor& centers, const Tensor& counts,
    const Tensor& sums, bool tied, std::string reduction, bool need_centroids) {
  check_points(z);
  const int64_t n = z.size(0), d = z.size(1);
  const ScalarType real = compute_type(z);
  const bool per_point = reduction == "none";
  const bool known = centers.size(0) > 0;
  const int64_t c = known ? centers.size(0) : resolve_clusters(own_labels, 0);
  CK_CHECK(known || tied, "centers must not be empty");
  if (known) check_matrix(centers, c, d, real, "centers");
  if (known && tied) check_vector(counts, c, ScalarType::Long, "counts");
  if (sums.size(0) > 0) check_matrix(sums, c, d, real, "sums");
  check_vector(own, n, real, "own");
  check_vector(other, n, real, "other");
  check_indices(own_labels, n, c, "own_labels");
  check_indices(other_labels, n, c, "other_labels");
  CK_CHECK(grad.scalar_type() == real && grad.numel() == (per_point ? n : 1),
           "grad must have one element", per_point ? " a point" : "");
  const Tensor g = torch::stable::contiguous(grad), mu = torch::stable::contiguous(centers);
  Tensor dz = new_matrix(z, n, d, z.scalar_type());
  Tensor dcentroids = new_matrix(z, need_centroids ? c : 0, d, real);
  CK_KERNEL(simplified_silhouette_bwd)
  (view(z), SimplifiedSilhouetteBackward{
                g.data_ptr(), per_point, reduction == "mean", tied, pointer<int32_t>(own_labels),
                pointer<int32_t>(other_labels), own.data_ptr(), other.data_ptr(),
                known ? mu.data_ptr() : nullptr, pointer<int64_t>(counts),
                sums.size(0) > 0 ? sums.data_ptr() : nullptr, c, dz.data_ptr(),
                need_centroids ? dcentroids.data_ptr() : nullptr});
  return {dz, dcentroids};
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("simplified_silhouette", TORCH_BOX(&ck::simplified_silhouette));
  m.impl("simplified_silhouette_backward", TORCH_BOX(&ck::simplified_silhouette_backward));
}
#endif
