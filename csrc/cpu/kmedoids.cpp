// FasterPAM: swaps of a medoid m with a point x that lower  sum_u w_u min_m D(u, m), taken as soon as they are found.
//
//   change(m, x) = sum_u w_u min(D(u,x) - d1_u, 0) + sum_{u: n1_u = m} w_u (clamp(D(u,x), d1_u, d2_u) - d1_u)
//
// Candidates are evaluated a panel at a time, one lane each: their distances to a block of points come from the product tile (or from the
// matrix) and are compared with d2 while in L1; the few that are below it correct the loss of removing m. Points are cut into a fixed
// number of chunks whose sums are added in order. A swap looks again only at points whose two nearest medoids include the one that left.
#include "common/isa.h"
#include "cpu/nearest.h"

#include <bit>
#include <cstring>

namespace ck {
struct Medoids {
  const void* weights;  // IN [n] or null
  const int64_t* candidates;
  int64_t count, c;
  bool precomputed, squared;
  double tolerance;  // least gain of a swap, as a share of the loss
  int64_t* medoids;  // IN/OUT [c]
  int64_t* nearest;  // IN/OUT [2, n] positions in medoids
  void* distances;   // IN/OUT [2, n]
  int64_t* result;   // OUT [2] swaps, last candidate swapped in
};
}  // namespace ck

CK_DECLARE(void kmedoids_swaps(const ck::MatrixView& data, const ck::Medoids& args))

namespace ck::CK_ISA {
namespace {

constexpr int64_t kChunks = 32;
constexpr bool kLittle = std::endian::native == std::endian::little;

// In the order of the memory, of those that are not zero.
CK_INLINE int first_byte(uint64_t word) {
  return (kLittle ? std::countr_zero(word) : std::countl_zero(word)) / 8;
}

template <typename C>
class Swaps {
 public:
  // Candidates at a time: those behind a swap were evaluated in vain.
  static constexpr int64_t kWidth = std::min<int64_t>(Panels<C>::kWidth, 64 / sizeof(C));

  Swaps(const MatrixView& view, const Medoids& args)
      : view_(view),
        data_(view),
        args_(args),
        n_(view.rows),
        d_(view.columns),
        c_(args.c),
        tolerance_(std::max(args.tolerance, 8.0 * std::numeric_limits<C>::epsilon())),
        chunk_rows_(ceil_div(ceil_div(n_, kBlockRows), kChunks) * kBlockRows),
        weights_(static_cast<const C*>(args.weights)),
        near_(static_cast<C*>(args.distances)),
        far_(near_ + n_),
        first_(args.nearest),
        second_(args.nearest + n_),
        origin_(d_),
        radius_(args.precomputed ? 0 : n_),
        delta_(kChunks * kWidth * (c_ + 1)) {
    if (!args.precomputed) prepare_points();
    weigh_removals();
  }

  void run() {
    int64_t position = 0, swaps = 0, last = -1;
    while (position < args_.count) {
      const int64_t width = std::min(kWidth, args_.count - position);
      evaluate(args_.candidates + position, width);
      int64_t leaving = -1, found = 0;
      for (; found < width && leaving < 0; ++found) {
        leaving = best_swap(args_.candidates[position + found], found);
      }
      if (leaving >= 0 && swap(leaving, args_.candidates[position + found - 1])) {
        ++swaps;
        last = position + found - 1;
      }
      position += found;
    }
    args_.result[0] = swaps;
    args_.result[1] = last;
  }

 private:
  double weight(int64_t i) const { return weights_ == nullptr ? 1.0 : weights_[i]; }

  // Distances are expanded around the mean of the medoids.
  void prepare_points() {
    Buffer<C> scratch(d_);
    std::vector<double> mean(d_, 0.0);
    for (int64_t j = 0; j < c_; ++j) {
      const C* x = data_.row(args_.medoids[j], scratch.get());
      for (int64_t k = 0; k < d_; ++k) mean[k] += x[k];
    }
    for (int64_t k = 0; k < d_; ++k) origin_[k] = static_cast<C>(mean[k] / c_);
    parallel(ceil_div(n_, kBlockRows), [&](int64_t first, int64_t last) {
      Buffer<C> row(d_);
      for (int64_t i = first * kBlockRows; i < std::min(last * kBlockRows, n_); ++i) {
        radius_[i] = squared_distance(data_.row(i, row.get()), origin_.get(), d_);
      }
    });
  }

  // removal_m = sum_{u: n1_u = m} w_u (d2_u - d1_u), and the loss.
  void weigh_removals() {
    removal_.assign(c_, 0.0);
    loss_ = 0;
    for (int64_t i = 0; i < n_; ++i) {
      loss_ += weight(i) * near_[i];
      if (c_ > 1) removal_[first_[i]] += weight(i) * (static_cast<double>(far_[i]) - near_[i]);
    }
  }

  double* delta(int64_t chunk, int64_t t) { return delta_.get() + (chunk * kWidth + t) * (c_ + 1); }

  // delta[chunk][t] = corrections of removal for every medoid, and in the last place the gain of points that come closer.
  void evaluate(const int64_t* candidates, int64_t width) {
    Panels<C> panels(0, 0);
    if (!args_.precomputed) {
      Buffer<C> scratch(width * d_);
      std::vector<const C*> rows(width);
      for (int64_t t = 0; t < width; ++t) {
        rows[t] = data_.row(candidates[t], scratch.get() + t * d_);
      }
      panels =
          shifted_panels<C>([&](int64_t t) { return rows[t]; }, width, d_, origin_.get()).panels;
    }
    parallel(kChunks, [&](int64_t first_chunk, int64_t last_chunk) {
      Buffer<C> table(kBlockRows * kWidth), scratch(std::max(kBlockRows * d_, int64_t{1}));
      for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
        std::fill(delta(chunk, 0), delta(chunk, kWidth), 0.0);
        const int64_t end = std::min((chunk + 1) * chunk_rows_, n_);
        for (int64_t begin = chunk * chunk_rows_; begin < end; begin += kBlockRows) {
          const int64_t m = std::min(kBlockRows, end - begin);
          if (args_.precomputed) {
            gather(candidates, width, begin, m, table.get(), scratch.get());
          } else {
            measure(panels, begin, m, table.get(), scratch.get());
          }
          for (int64_t i = 0; i < m; ++i) correct(begin + i, table.get() + i * kWidth, chunk);
        }
      }
    });
  }

  // Columns [begin, begin + m) of row x of the matrix.
  const C* part(int64_t x, int64_t begin, int64_t m, C* scratch) const {
    const bool wide = view_.dtype == ScalarType::Double || view_.dtype == ScalarType::Float;
    const int64_t size = wide ? sizeof(C) : 2;
    MatrixView view = view_;
    view.data = static_cast<const char*>(view_.data) + begin * view_.column_stride * size;
    view.columns = m;
    return Rows<C>(view).row(x, scratch);
  }

  // table[i][t] = D(begin + i, candidate t), columns of the matrix.
  void gather(const int64_t* candidates, int64_t width, int64_t begin, int64_t m, C* table,
              C* scratch) const {
    for (int64_t t = 0; t < width; ++t) {
      const C* x = part(candidates[t], begin, m, scratch);
      for (int64_t i = 0; i < m; ++i) table[i * kWidth + t] = x[i];
    }
    pad(table, width, m);
  }

  static void pad(C* table, int64_t width, int64_t m) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t t = width; t < kWidth; ++t) {
        table[i * kWidth + t] = std::numeric_limits<C>::infinity();
      }
    }
  }

  void measure(const Panels<C>& panels, int64_t begin, int64_t m, C* table, C* scratch) const {
    constexpr int L = kLanes<C>;
    int64_t stride;
    const C* rows = data_.block(begin, m, scratch, &stride);
    block_product(rows, stride, m, panels, [&](int64_t first, int64_t column, const auto& tile) {
      using Tile = std::remove_reference_t<decltype(tile)>;
      constexpr int R = std::extent_v<Tile, 0>, V = std::extent_v<Tile, 1>;
      for (int r = 0; r < R; ++r) {
        C* out = table + (first + r) * kWidth + column;
        for (int v = 0; v < V; ++v) {
          const Vec<C> square = tile[r][v] + radius_[begin + first + r];
          store(out + v * L, square < 0 ? Vec<C>{} : square);
        }
        if (args_.squared) continue;
        for (int t = 0; t < V * L; ++t) out[t] = std::sqrt(out[t]);
      }
    });
    pad(table, panels.padded(), m);
  }

  void correct(int64_t i, const C* table, int64_t chunk) {
    constexpr int L = kLanes<C>, kWords = (L + 7) / 8;
    typedef int8_t Bytes __attribute__((vector_size(L)));
    for (int64_t first = 0; first < kWidth; first += L) {
      const Bytes below = __builtin_convertvector(load(table + first) < far_[i], Bytes);
      uint64_t words[kWords] = {};
      std::memcpy(words, &below, sizeof below);
      for (int part = 0; part < kWords; ++part) {
        for (uint64_t left = words[part]; left != 0;) {
          const int lane = first_byte(left);
          left &= ~(uint64_t{0xff} << (8 * (kLittle ? lane : 7 - lane)));
          const int64_t t = first + 8 * part + lane;
          add_correction(i, table[t], delta(chunk, t));
        }
      }
    }
  }

  // Of a point that is nearer to a candidate, at distance x, than to its second medoid.
  CK_INLINE void add_correction(int64_t i, double x, double* sums) const {
    const double w = weight(i), near = near_[i], far = far_[i];
    if (x < near) sums[c_] += w * (x - near);
    if (c_ > 1) sums[first_[i]] += w * (std::max(x, near) - far);
    if (c_ == 1) sums[0] += w * std::max(x - near, 0.0);
  }

  // The medoid to leave for candidate t, -1 where no swap gains enough.
  int64_t best_swap(int64_t candidate, int64_t t) {
    if (std::find(args_.medoids, args_.medoids + c_, candidate) != args_.medoids + c_) return -1;
    std::vector<double> total(removal_);
    double gain = 0;
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      const double* sums = delta(chunk, t);
      for (int64_t m = 0; m < c_; ++m) total[m] += sums[m];
      gain += sums[c_];
    }
    const int64_t best = std::min_element(total.begin(), total.end()) - total.begin();
    return total[best] + gain < -tolerance_ * loss_ ? best : -1;
  }

  C exact(int64_t i, int64_t x, C* scratch) const {
    if (args_.precomputed) return *part(x, i, 1, scratch);
    const C* a = data_.row(i, scratch);
    const C square = squared_distance(a, data_.row(x, scratch + d_), d_);
    return args_.squared ? square : std::sqrt(square);
  }

  // Puts x in the place of a medoid. Undone where rounding hid that this lowers nothing.
  bool swap(int64_t leaving, int64_t x) {
    const double before = loss_;
    const int64_t left = args_.medoids[leaving];
    replace(leaving, x);
    if (loss_ < before) return true;
    replace(leaving, left);
    return false;
  }

  void replace(int64_t place, int64_t x) {
    args_.medoids[place] = x;
    parallel(ceil_div(n_, kBlockRows), [&](int64_t first, int64_t last) {
      Buffer<C> scratch(2 * d_ + 1);
      for (int64_t i = first * kBlockRows; i < std::min(last * kBlockRows, n_); ++i) {
        if (first_[i] == place || second_[i] == place) {
          search(i, scratch.get());
          continue;
        }
        const C distance = exact(i, x, scratch.get());
        if (distance < near_[i]) {
          far_[i] = near_[i], second_[i] = first_[i];
          near_[i] = distance, first_[i] = place;
        } else if (distance < far_[i]) {
          far_[i] = distance, second_[i] = place;
        }
      }
    });
    weigh_removals();
  }

  void search(int64_t i, C* scratch) const {
    near_[i] = far_[i] = std::numeric_limits<C>::infinity();
    first_[i] = second_[i] = -1;
    for (int64_t j = 0; j < c_; ++j) {
      const C distance = exact(i, args_.medoids[j], scratch);
      if (distance < near_[i]) {
        far_[i] = near_[i], second_[i] = first_[i];
        near_[i] = distance, first_[i] = j;
      } else if (distance < far_[i]) {
        far_[i] = distance, second_[i] = j;
      }
    }
  }

  const MatrixView view_;
  const Rows<C> data_;
  const Medoids& args_;
  const int64_t n_, d_, c_;
  const double tolerance_;
  const int64_t chunk_rows_;
  const C* weights_;
  C *near_, *far_;
  int64_t *first_, *second_;
  Buffer<C> origin_, radius_;
  Buffer<double> delta_;
  std::vector<double> removal_;
  double loss_ = 0;
};

}  // namespace

void kmedoids_swaps(const MatrixView& data, const Medoids& args) {
  if (data.dtype == ScalarType::Double) {
    Swaps<double>(data, args).run();
  } else {
    Swaps<float>(data, args).run();
  }
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

void check_rows(const Tensor& index, int64_t low, int64_t high, const char* name) {
  CK_CHECK(index.scalar_type() == ScalarType::Long && index.is_contiguous(), name,
           " must be contiguous int64");
  const Range found = range_of<int64_t>(index);
  CK_CHECK(found.lies_in(low, high), name, " must lie in [", low, ", ", high, "), got ", found.low,
           " to ", found.high);
}

Tensor kmedoids(const Tensor& data, std::optional<Tensor> weights, const Tensor& candidates,
                Tensor medoids, Tensor nearest, Tensor distances, bool precomputed, bool squared,
                double tolerance) {
  check_points(data, "data");
  const int64_t n = data.size(0), c = medoids.numel();
  CK_CHECK(!precomputed || data.size(1) == n, "data must be square where precomputed");
  CK_CHECK(c >= 1 && medoids.dim() == 1, "medoids must be of shape (c,)");
  CK_CHECK(nearest.dim() == 2 && nearest.size(0) == 2 && nearest.size(1) == n,
           "nearest must be of shape (2, ", n, ")");
  check_matrix(distances, 2, n, compute_type(data), "distances");
  CK_CHECK(distances.is_contiguous(), "distances must be contiguous");
  const Tensor tried = torch::stable::contiguous(candidates);
  check_rows(tried, 0, n, "candidates");
  check_rows(medoids, 0, n, "medoids");
  check_rows(nearest, c == 1 ? -1 : 0, c, "nearest");
  const std::optional<Tensor> w = checked_weights(weights, data);
  Tensor result = new_vector(data, 2, ScalarType::Long);
  CK_KERNEL(kmedoids_swaps)
  (view(data), Medoids{w ? w->data_ptr() : nullptr, pointer<int64_t>(tried), tried.numel(), c,
                       precomputed, squared, tolerance, pointer<int64_t>(medoids),
                       pointer<int64_t>(nearest), distances.data_ptr(), pointer<int64_t>(result)});
  return result;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) { m.impl("kmedoids", TORCH_BOX(&ck::kmedoids)); }
#endif
