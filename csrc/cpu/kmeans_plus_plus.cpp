// Greedy k-means++: of some candidates, drawn with probability w_u closest_u, the one that leaves  sum_u w_u min(closest_u, ||z_u - x||^2)
// least becomes the next centroid.
//
// A step is one pass over z: the candidates are the columns of a product tile, and the potential of each is summed block by block in order.
// 2 n d trials flops.
#include "common/isa.h"
#include "cpu/nearest.h"

namespace ck {
struct PlusPlus {
  const void* weights;     // IN [n] or null
  const void* origin;      // IN [d]
  const double* uniforms;  // IN [steps, trials]
  int64_t steps, trials;
  void* closest;    // IN/OUT [n]
  int64_t* chosen;  // OUT [steps]
};
}  // namespace ck

CK_DECLARE(void kmeans_plus_plus_steps(const ck::MatrixView& z, const ck::PlusPlus& args))

namespace ck::CK_ISA {
namespace {

template <typename C>
class Seeding {
 public:
  Seeding(const Rows<C>& z, const PlusPlus& args)
      : z_(z),
        n_(z.count()),
        d_(z.width()),
        trials_(args.trials),
        blocks_(ceil_div(n_, kBlockRows)),
        weights_(static_cast<const C*>(args.weights)),
        origin_(static_cast<const C*>(args.origin)),
        closest_(static_cast<C*>(args.closest)),
        radius_(n_),
        width_(Panels<C>(trials_, 0).padded()),
        table_(n_ * width_),
        potential_(blocks_ * width_) {
    parallel(blocks_, [&](int64_t first, int64_t last) {
      Buffer<C> scratch(d_);
      for (int64_t i = first * kBlockRows; i < std::min(last * kBlockRows, n_); ++i) {
        radius_[i] = squared_distance(z_.row(i, scratch.get()), origin_, d_);
        table_[i * width_] = closest_[i];
      }
      for (int64_t block = first; block < last; ++block) weigh(block);
    });
  }

  void finish() const {
    for (int64_t i = 0; i < n_; ++i) closest_[i] = closest(i);
  }

  // Chooses one centroid with `trials` random numbers.
  int64_t step(const double* uniforms) {
    std::vector<int64_t> candidates(trials_);
    for (int64_t t = 0; t < trials_; ++t) candidates[t] = draw(uniforms[t]);
    Buffer<C> scratch(trials_ * d_);
    std::vector<const C*> rows(trials_);
    for (int64_t t = 0; t < trials_; ++t) rows[t] = z_.row(candidates[t], scratch.get() + t * d_);
    const ShiftedPanels<C> columns =
        shifted_panels<C>([&](int64_t t) { return rows[t]; }, trials_, d_, origin_);
    parallel(blocks_, [&](int64_t first, int64_t last) {
      Buffer<C> block_scratch(z_.direct() ? 0 : kBlockRows * d_);
      for (int64_t block = first; block < last; ++block) {
        measure(block, columns.panels, candidates.data(), block_scratch.get());
      }
    });
    int64_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (int64_t t = 0; t < trials_; ++t) {
      double total = 0;
      for (int64_t block = 0; block < blocks_; ++block) total += potential_[block * width_ + t];
      if (total < least) least = total, best = t;
    }
    best_ = best;
    return candidates[best];
  }

 private:
  double weight(int64_t i) const { return weights_ == nullptr ? 1.0 : weights_[i]; }

  // The squared distance to the nearest centroid so far: the chosen column of the table.
  CK_INLINE C closest(int64_t i) const { return table_[i * width_ + best_]; }
  double mass(int64_t block) const { return potential_[block * width_ + best_]; }

  // potential[block][t] = sum over the block of w_i table[i][t]. A block is short enough for sums of C.
  void weigh(int64_t block) const {
    constexpr int L = kLanes<C>;
    const int64_t begin = block * kBlockRows, end = std::min(begin + kBlockRows, n_);
    for (int64_t column = 0; column < width_; column += L) {
      Vec<C> total{};
      for (int64_t i = begin; i < end; ++i) {
        const C w = weights_ == nullptr ? C(1) : weights_[i];
        total += w * load(table_.get() + i * width_ + column);
      }
      store(potential_.get() + block * width_ + column, total);
    }
  }

  // The row where the running sum of w_u closest_u passes u times its total; a uniform row where that is zero.
  int64_t draw(double u) const {
    double total = 0;
    for (int64_t block = 0; block < blocks_; ++block) total += mass(block);
    if (!(total > 0)) return std::min(static_cast<int64_t>(u * n_), n_ - 1);
    double left = u * total;
    int64_t block = 0, last = -1;
    while (block + 1 < blocks_ && left >= mass(block)) left -= mass(block++);
    for (int64_t i = block * kBlockRows; i < std::min((block + 1) * kBlockRows, n_); ++i) {
      const double own = weight(i) * closest(i);
      if (own > 0) last = i;
      left -= own;
      if (left < 0) return i;
    }
    return last >= 0 ? last : std::min(block * kBlockRows, n_ - 1);
  }

  // table[i][t] = min(closest_i, ||z_i - x_t||^2) for a block. The old row holds closest_i and is read before it is overwritten.
  void measure(int64_t block, const Panels<C>& panels, const int64_t* candidates, C* scratch) {
    constexpr int L = kLanes<C>;
    const int64_t begin = block * kBlockRows, m = std::min(kBlockRows, n_ - begin);
    int64_t stride;
    const C* rows = z_.block(begin, m, scratch, &stride);
    C* table = table_.get() + begin * width_;
    C old[kBlockRows];
    for (int64_t i = 0; i < m; ++i) old[i] = closest(begin + i);
    block_product(rows, stride, m, panels, [&](int64_t first, int64_t column, const auto& tile) {
      using Tile = std::remove_reference_t<decltype(tile)>;
      constexpr int R = std::extent_v<Tile, 0>, V = std::extent_v<Tile, 1>;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const int64_t i = first + r;
        const Vec<C> radius = broadcast(radius_[begin + i]);
        const Vec<C> closest = broadcast(old[i]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          Vec<C> square = tile[r][v] + radius;
          square = square < 0 ? Vec<C>{} : square;
          store(table + i * width_ + column + v * L, square < closest ? square : closest);
        }
      }
    });
    // A point is at no distance from itself, whatever the rounding.
    for (int64_t t = 0; t < trials_; ++t) {
      const int64_t i = candidates[t] - begin;
      if (i >= 0 && i < m) table[i * width_ + t] = 0;
    }
    weigh(block);
  }

  const Rows<C>& z_;
  const int64_t n_, d_, trials_, blocks_;
  const C* weights_;
  const C* origin_;
  C* closest_;
  Buffer<C> radius_;
  const int64_t width_;
  Buffer<C> table_, potential_;
  int64_t best_ = 0;
};

template <typename C>
void seed_rows(const MatrixView& view, const PlusPlus& args) {
  const Rows<C> z(view);
  Seeding<C> seeding(z, args);
  for (int64_t step = 0; step < args.steps; ++step) {
    args.chosen[step] = seeding.step(args.uniforms + step * args.trials);
  }
  seeding.finish();
}

}  // namespace

void kmeans_plus_plus_steps(const MatrixView& z, const PlusPlus& args) {
  (z.dtype == ScalarType::Double ? seed_rows<double> : seed_rows<float>)(z, args);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

// Candidates that fit into 32 bytes.
constexpr int64_t kFew = 8;

Tensor kmeans_plus_plus(const Tensor& z, std::optional<Tensor> weights, const Tensor& origin,
                        const Tensor& uniforms, Tensor closest) {
  check_points(z);
  const int64_t n = z.size(0);
  const ScalarType real = compute_type(z);
  CK_CHECK(n >= 1, "z must have at least one row");
  check_vector(origin, z.size(1), real, "origin");
  CK_CHECK(uniforms.dim() == 2 && uniforms.size(1) >= 1,
           "uniforms must be of shape (steps, trials)");
  CK_CHECK(uniforms.scalar_type() == ScalarType::Double, "uniforms must be float64");
  check_vector(closest, n, real, "closest");
  CK_CHECK(closest.is_contiguous(), "closest must be contiguous");
  const std::optional<Tensor> w = checked_weights(weights, z);
  const Tensor t = torch::stable::contiguous(origin), u = torch::stable::contiguous(uniforms);
  Tensor chosen = new_vector(z, u.size(0), ScalarType::Long);
  const auto steps = u.size(1) <= kFew ? CK_NARROW_KERNEL(kmeans_plus_plus_steps)
                                       : CK_KERNEL(kmeans_plus_plus_steps);
  steps(view(z), PlusPlus{w ? w->data_ptr() : nullptr, t.data_ptr(), pointer<double>(u), u.size(0),
                          u.size(1), closest.data_ptr(), pointer<int64_t>(chosen)});
  return chosen;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("kmeans_plus_plus", TORCH_BOX(&ck::kmeans_plus_plus));
}
#endif
