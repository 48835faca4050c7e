// PReLU after a graph LayerNorm or after a bias alone.
//
//   with gain:     y = P(gain (x + bias - m) / (s + eps) + shift),  m, s mean and population deviation of all entries of x + bias
//   without gain:  y = P(x + bias)
//   P(t) = t where t > 0, else slope t
//
// Both are  y = P(scale_k x + offset_k)  with numbers per channel k, and with g' = dy P'(.) their gradient is
//   dx = g' scale_k - pull x - level_k        (pull = level = 0 without gain)
// Forward: x is read once for its moments and once for the result. Backward: x and dy are read twice, dx is written once; nothing of the
// size of x is kept but x itself. Without gain one pass does, as dx = g'.
#include "common/isa.h"
#include "cpu/parallel.h"

#include <vector>

namespace ck {

struct Channels {
  int64_t n, d;
  const void* x;       // IN [n, d]
  const void* scale;   // IN [d]
  const void* offset;  // IN [d]
  double slope;
};

// Of all entries of x + bias; squares is the sum of the squared deviations from the mean.
struct Moments {
  double count, mean, squares;
};

}  // namespace ck

CK_DECLARE(ck::Moments norm_prelu_moments(const void* x, const void* bias, int64_t n, int64_t d,
                                          bool wide, double* sums))
CK_DECLARE(void norm_prelu_fwd(const ck::Channels& in, bool wide, void* y))
CK_DECLARE(double norm_prelu_sums(const ck::Channels& in, bool wide, bool normalized,
                                  const void* grad, double* sums, void* dx))
CK_DECLARE(void norm_prelu_bwd(const ck::Channels& in, bool wide, const void* grad, double pull,
                               const void* level, void* dx))

namespace ck::CK_ISA {
namespace {

// Blocks are the same whatever the number of threads, and their sums are added in order.
struct Blocks {
  int64_t n, rows, count;
  explicit Blocks(int64_t n)
      : n(n), rows(std::max<int64_t>(32, ceil_div(n, 128))), count(ceil_div(n, rows)) {}
  int64_t first(int64_t block) const { return block * rows; }
  int64_t last(int64_t block) const { return std::min(n, (block + 1) * rows); }
};

// body(block, first row, last row)
template <typename Body>
void for_blocks(const Blocks& blocks, const Body& body) {
  parallel(blocks.count, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) body(b, blocks.first(b), blocks.last(b));
  });
}

// The same from the end: a second pass meets first what the first one read last, which is still in the cache.
template <typename Body>
void for_blocks_back(const Blocks& blocks, const Body& body) {
  parallel(blocks.count, [&](int64_t first, int64_t last) {
    for (int64_t b = last; b-- > first;) body(blocks.first(b), blocks.last(b));
  });
}

// Vectors where they fit, single numbers behind: body(k, width tag) with V = Vec<T> or T.
template <typename T, typename Body>
CK_INLINE void for_channels(int64_t d, const Body& body) {
  constexpr int L = kLanes<T>;
  int64_t k = 0;
  for (; k + L <= d; k += L) body.template operator()<Vec<T>>(k);
  for (; k < d; ++k) body.template operator()<T>(k);
}

template <typename V, typename T>
CK_INLINE V get(const T* p) {
  if constexpr (std::is_same_v<V, T>) {
    return *p;
  } else {
    return load(p);
  }
}

template <typename V, typename T>
CK_INLINE void put(T* p, V v) {
  if constexpr (std::is_same_v<V, T>) {
    *p = v;
  } else {
    store(p, v);
  }
}

template <typename V, typename T>
CK_INLINE V fill(T x) {
  if constexpr (std::is_same_v<V, T>) {
    return x;
  } else {
    return broadcast(x);
  }
}

// sums[count][width] added up in double, in order.
template <typename T>
void combine(const std::vector<T>& parts, int64_t count, int64_t width, double* sums) {
  std::fill(sums, sums + width, 0.0);
  for (int64_t b = 0; b < count; ++b) {
    for (int64_t k = 0; k < width; ++k) sums[k] += parts[b * width + k];
  }
}

CK_INLINE Moments merge(const Moments& a, const Moments& b) {
  const double count = a.count + b.count;
  if (count == 0) return a;
  const double gap = b.mean - a.mean;
  return {count, a.mean + gap * b.count / count,
          a.squares + b.squares + gap * gap * a.count * b.count / count};
}

// Deviations are taken from the mean of the block's first row, which lies within the block's spread.
template <typename T>
Moments block_moments(const T* x, const T* bias, int64_t rows, int64_t d, T* column_sums) {
  double pilot = 0;
  for (int64_t k = 0; k < d; ++k) pilot += static_cast<double>(x[k]) + bias[k];
  pilot /= static_cast<double>(d);
  std::vector<T> level(d);
  for (int64_t k = 0; k < d; ++k) level[k] = static_cast<T>(bias[k] - pilot);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const T* row = x + i * d;
    Vec<T> vector_sum{}, vector_squares{};
    T scalar_sum = 0, scalar_squares = 0;
    for_channels<T>(d, [&]<typename V>(int64_t k) {
      const V value = get<V>(row + k), t = value + get<V>(level.data() + k);
      put(column_sums + k, V(get<V>(column_sums + k) + value));
      if constexpr (std::is_same_v<V, T>) {
        scalar_sum += t;
        scalar_squares += t * t;
      } else {
        vector_sum += t;
        vector_squares += t * t;
      }
    });
    sum += horizontal_sum<T>(vector_sum) + scalar_sum;
    squares += horizontal_sum<T>(vector_squares) + scalar_squares;
  }
  const double count = static_cast<double>(rows) * static_cast<double>(d);
  return {count, pilot + sum / count, std::max(0.0, squares - sum * sum / count)};
}

template <typename T>
Moments moments(const T* x, const T* bias, int64_t n, int64_t d, double* sums) {
  const Blocks blocks(n);
  std::vector<T> parts(blocks.count * d, T{0});
  std::vector<Moments> of_block(blocks.count, Moments{});
  if (d > 0) {
    for_blocks(blocks, [&](int64_t b, int64_t first, int64_t last) {
      of_block[b] = block_moments(x + first * d, bias, last - first, d, parts.data() + b * d);
    });
  }
  combine(parts, blocks.count, d, sums);
  Moments all{};
  for (const Moments& block : of_block) all = merge(all, block);
  return all;
}

// x -> scale_k x + offset_k and its rows, by value: the compiler need not fear that a store changes them.
template <typename T>
struct Affine {
  const T *x, *scale, *offset;
  int64_t d;
  T slope;
  explicit Affine(const Channels& in)
      : x(static_cast<const T*>(in.x)),
        scale(static_cast<const T*>(in.scale)),
        offset(static_cast<const T*>(in.offset)),
        d(in.d),
        slope(static_cast<T>(in.slope)) {}
};

template <typename T>
void forward_rows(const Affine<T> in, int64_t first, int64_t last, T* y) {
  for (int64_t i = first; i < last; ++i) {
    for_channels<T>(in.d, [&]<typename V>(int64_t k) {
      const V t = get<V>(in.x + i * in.d + k) * get<V>(in.scale + k) + get<V>(in.offset + k);
      put(y + i * in.d + k, V(t > V{} ? t : t * fill<V>(in.slope)));
    });
  }
}

template <typename T>
void forward(const Channels& channels, T* y) {
  const Affine<T> in(channels);
  for_blocks_back(Blocks(channels.n),
                  [&](int64_t first, int64_t last) { forward_rows(in, first, last, y); });
}

// Adds to sums: [0, d) of g', then with kNormalized [d, 2 d) of g' x, otherwise dx gets g'. Returns the sum of dy min(t, 0).
template <bool kNormalized, typename T>
double backward_sums_rows(const Affine<T> in, const T* grad, int64_t first, int64_t last, T* sums,
                          T* dx) {
  double total = 0;
  for (int64_t i = first; i < last; ++i) {
    Vec<T> vector_below{};
    T scalar_below = 0;
    for_channels<T>(in.d, [&]<typename V>(int64_t k) {
      const int64_t at = i * in.d + k;
      const V value = get<V>(in.x + at), g = get<V>(grad + at);
      const V t = value * get<V>(in.scale + k) + get<V>(in.offset + k);
      const V inner = t > V{} ? g : g * fill<V>(in.slope);
      put(sums + k, V(get<V>(sums + k) + inner));
      if constexpr (kNormalized) {
        put(sums + in.d + k, V(get<V>(sums + in.d + k) + inner * value));
      } else {
        put(dx + at, inner);
      }
      const V below = t > V{} ? V{} : g * t;
      if constexpr (std::is_same_v<V, T>) {
        scalar_below += below;
      } else {
        vector_below += below;
      }
    });
    total += horizontal_sum<T>(vector_below) + scalar_below;
  }
  return total;
}

// The sums of all rows, and of dy min(t, 0), which is the gradient of the slope.
template <bool kNormalized, typename T>
double backward_sums(const Channels& channels, const T* grad, double* sums, T* dx) {
  const Affine<T> in(channels);
  const int64_t width = kNormalized ? 2 * in.d : in.d;
  const Blocks blocks(channels.n);
  std::vector<T> parts(blocks.count * width, T{0});
  std::vector<double> below(blocks.count, 0.0);
  for_blocks(blocks, [&](int64_t b, int64_t first, int64_t last) {
    T* sum = parts.data() + b * width;
    below[b] = backward_sums_rows<kNormalized>(in, grad, first, last, sum, dx);
  });
  combine(parts, blocks.count, width, sums);
  double total = 0;
  for (double part : below) total += part;
  return total;
}

template <typename T>
void backward_rows(const Affine<T> in, const T* grad, int64_t first, int64_t last, T pull,
                   const T* level, T* dx) {
  for (int64_t i = first; i < last; ++i) {
    for_channels<T>(in.d, [&]<typename V>(int64_t k) {
      const int64_t at = i * in.d + k;
      const V value = get<V>(in.x + at), g = get<V>(grad + at), factor = get<V>(in.scale + k);
      const V t = value * factor + get<V>(in.offset + k);
      const V inner = t > V{} ? g : g * fill<V>(in.slope);
      put(dx + at, V(inner * factor - value * fill<V>(pull) - get<V>(level + k)));
    });
  }
}

template <typename T>
void backward(const Channels& channels, const T* grad, double pull, const T* level, T* dx) {
  const Affine<T> in(channels);
  const T back = static_cast<T>(pull);
  for_blocks_back(Blocks(channels.n), [&](int64_t first, int64_t last) {
    backward_rows(in, grad, first, last, back, level, dx);
  });
}

}  // namespace

Moments norm_prelu_moments(const void* x, const void* bias, int64_t n, int64_t d, bool wide,
                           double* sums) {
  return wide ? moments(static_cast<const double*>(x), static_cast<const double*>(bias), n, d, sums)
              : moments(static_cast<const float*>(x), static_cast<const float*>(bias), n, d, sums);
}

void norm_prelu_fwd(const Channels& in, bool wide, void* y) {
  wide ? forward(in, static_cast<double*>(y)) : forward(in, static_cast<float*>(y));
}

double norm_prelu_sums(const Channels& in, bool wide, bool normalized, const void* grad,
                       double* sums, void* dx) {
  const auto run = [&]<typename T>(const T* g) {
    return normalized ? backward_sums<true>(in, g, sums, static_cast<T*>(nullptr))
                      : backward_sums<false>(in, g, sums, static_cast<T*>(dx));
  };
  return wide ? run(static_cast<const double*>(grad)) : run(static_cast<const float*>(grad));
}

void norm_prelu_bwd(const Channels& in, bool wide, const void* grad, double pull, const void* level,
                    void* dx) {
  wide ? backward(in, static_cast<const double*>(grad), pull, static_cast<const double*>(level),
                  static_cast<double*>(dx))
       : backward(in, static_cast<const float*>(grad), pull, static_cast<const float*>(level),
                  static_cast<float*>(dx));
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

#include <cmath>

namespace ck {
namespace {

// x and its parameters, checked and contiguous, with the numbers per channel that both directions need.
struct Call {
  Tensor x, scale, offset;
  std::vector<double> bias, gain, shift;
  double slope;
  bool wide, normalized;
  int64_t n, d;

  Call(const Tensor& input, const Tensor& bias_, const std::optional<Tensor>& gain_,
       const std::optional<Tensor>& shift_, const Tensor& slope_)
      : normalized(gain_.has_value()), n(0), d(0) {
    CK_CHECK(input.dim() == 2, "x must be of shape (n, d)");
    const ScalarType t = input.scalar_type();
    CK_CHECK(t == ScalarType::Float || t == ScalarType::Double, "x must be float32 or float64");
    wide = t == ScalarType::Double;
    x = torch::stable::contiguous(input);
    n = x.size(0);
    d = x.size(1);
    CK_CHECK(slope_.numel() == 1 && slope_.scalar_type() == t, "slope must be one number like x");
    slope = element(slope_, 0);
    bias = numbers(bias_, "bias");
    CK_CHECK(gain_.has_value() == shift_.has_value(), "gain and shift must come together");
    if (normalized) {
      gain = numbers(*gain_, "gain");
      shift = numbers(*shift_, "shift");
    }
    scale = new_vector(x, d, t);
    offset = new_vector(x, d, t);
  }

  std::vector<double> numbers(const Tensor& v, const char* name) const {
    check_vector(v, d, x.scalar_type(), name);
    return elements(torch::stable::contiguous(v));
  }

  Channels channels(double mean, double deviation, double eps) {
    std::vector<double> factor(d, 1.0), start = bias;
    for (int64_t k = 0; normalized && k < d; ++k) {
      factor[k] = gain[k] / (deviation + eps);
      start[k] = shift[k] + (bias[k] - mean) * factor[k];
    }
    set_elements(scale, factor);
    set_elements(offset, start);
    return {n, d, x.data_ptr(), scale.data_ptr(), offset.data_ptr(), slope};
  }
};

std::tuple<Tensor, Tensor, Tensor> norm_prelu(const Tensor& x, const Tensor& bias,
                                              std::optional<Tensor> gain,
                                              std::optional<Tensor> shift, const Tensor& slope,
                                              double eps) {
  Call call(x, bias, gain, shift, slope);
  const ScalarType t = call.x.scalar_type();
  Tensor y = new_matrix(call.x, call.n, call.d, t);
  Tensor sums = new_vector(call.x, call.normalized ? call.d : 0, ScalarType::Double);
  Tensor moments = new_vector(call.x, 2, ScalarType::Double);
  double mean = 0, deviation = 0;
  if (call.normalized) {
    const Tensor shift_by = torch::stable::contiguous(bias);
    const Moments all = CK_KERNEL(norm_prelu_moments)(
        call.x.data_ptr(), shift_by.data_ptr(), call.n, call.d, call.wide, pointer<double>(sums));
    mean = all.mean;
    deviation = std::sqrt(all.squares / std::max(all.count, 1.0));
  }
  pointer<double>(moments)[0] = mean;
  pointer<double>(moments)[1] = deviation;
  CK_KERNEL(norm_prelu_fwd)(call.channels(mean, deviation, eps), call.wide, y.data_ptr());
  return {y, sums, moments};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> norm_prelu_backward(
    const Tensor& grad, const Tensor& x, const Tensor& bias, std::optional<Tensor> gain,
    std::optional<Tensor> shift, const Tensor& slope, const Tensor& sums, const Tensor& moments,
    double eps) {
  Call call(x, bias, gain, shift, slope);
  const ScalarType t = call.x.scalar_type();
  const int64_t n = call.n, d = call.d, channels = call.normalized ? d : 0;
  check_matrix(grad, n, d, t, "grad");
  check_vector(sums, channels, ScalarType::Double, "sums");
  check_vector(moments, 2, ScalarType::Double, "moments");
  const Tensor g = torch::stable::contiguous(grad);
  const double mean = pointer<double>(moments)[0], deviation = pointer<double>(moments)[1];
  const Channels in = call.channels(mean, deviation, eps);
  std::vector<double> total(call.normalized ? 2 * d : d);
  Tensor dx = new_matrix(call.x, n, d, t);
  const double below = CK_KERNEL(norm_prelu_sums)(in, call.wide, call.normalized, g.data_ptr(),
                                                  total.data(), dx.data_ptr());

  Tensor dbias = new_vector(call.x, d, t), dslope = new_vector(call.x, 1, t);
  Tensor dgain = new_vector(call.x, channels, t), dshift = new_vector(call.x, channels, t);
  set_element(dslope, 0, below);
  if (call.normalized) {
    const double broad = deviation + eps, count = static_cast<double>(std::max<int64_t>(n * d, 1));
    const double* column_sum = pointer<double>(sums);
    std::vector<double> of_gain(d), of_bias(d), constant(d);
    double along = 0, push = 0;
    for (int64_t k = 0; k < d; ++k) {
      const double centred = total[d + k] + (call.bias[k] - mean) * total[k];
      of_gain[k] = centred / broad;
      along += call.gain[k] * centred;
      push += call.gain[k] * total[k];
    }
    const double pull = deviation > 0 ? along / (broad * broad * count * deviation) : 0.0;
    for (int64_t k = 0; k < d; ++k) {
      constant[k] = pull * (call.bias[k] - mean) + push / (count * broad);
      of_bias[k] = total[k] * call.gain[k] / broad - pull * column_sum[k] -
                   static_cast<double>(n) * constant[k];
    }
    Tensor level = new_vector(call.x, d, t);
    set_elements(level, constant);
    set_elements(dgain, of_gain);
    set_elements(dbias, of_bias);
    total.resize(d);
    set_elements(dshift, total);
    CK_KERNEL(norm_prelu_bwd)(in, call.wide, g.data_ptr(), pull, level.data_ptr(), dx.data_ptr());
  } else {
    set_elements(dbias, total);
  }
  return {dx, dbias, dgain, dshift, dslope};
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("norm_prelu", TORCH_BOX(&ck::norm_prelu));
  m.impl("norm_prelu_backward", TORCH_BOX(&ck::norm_prelu_backward));
}
#endif
