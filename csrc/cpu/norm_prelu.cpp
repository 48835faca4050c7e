// PReLU after a graph LayerNorm or after a bias alone.
//
//   with gain:     y = P(gain (x + bias - m) / (s + eps) + shift),  m, s mean and population deviation of all entries of x + bias
//   without gain:  y = P(x + bias)
//   P(t) = t where t > 0, else slope t
//
// Both are  y = P(scale_k x + offset_k)  with numbers per channel k, and with g' = dy P'(.) their gradient is
//   dx = g' scale_k - pull x - level_k        (pull = level = 0 without gain)
// Forward: x is read for the sums, for the deviations and for the result. Backward: x and dy are read twice, dx is written once; nothing
// of the size of x is kept but x itself. Without gain one pass does, as dx = g'.
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

}  // namespace ck

CK_DECLARE(void channel_sums(const void* x, int64_t n, int64_t d, bool wide, double* sums))
CK_DECLARE(double squared_deviation(const void* x, const void* centre, int64_t n, int64_t d,
                                    bool wide))
CK_DECLARE(void norm_prelu_fwd(const ck::Channels& in, bool wide, void* y))
CK_DECLARE(void norm_prelu_sums(const ck::Channels& in, bool wide, const void* grad, double* sums,
                                void* dx))
CK_DECLARE(void norm_prelu_bwd(const ck::Channels& in, bool wide, const void* grad, double pull,
                               const void* level, void* dx))

namespace ck::CK_ISA {
namespace {

// Blocks are the same whatever the number of threads, and their sums are added in order.
struct Blocks {
  int64_t n, rows, count;
  explicit Blocks(int64_t n)
      : n(n), rows(std::max<int64_t>(32, ceil_div(n, 256))), count(ceil_div(n, rows)) {}
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

// sums[count][d] added up in double, in order.
template <typename T>
void combine(const std::vector<T>& parts, int64_t count, int64_t d, double* sums) {
  std::fill(sums, sums + d, 0.0);
  for (int64_t b = 0; b < count; ++b) {
    for (int64_t k = 0; k < d; ++k) sums[k] += parts[b * d + k];
  }
}

template <typename T>
void sum_channels(const T* x, int64_t n, int64_t d, double* sums) {
  const Blocks blocks(n);
  std::vector<T> parts(blocks.count * d, T{0});
  for_blocks(blocks, [&](int64_t b, int64_t first, int64_t last) {
    T* sum = parts.data() + b * d;
    for (int64_t i = first; i < last; ++i) {
      const T* row = x + i * d;
      for_channels<T>(
          d, [&]<typename V>(int64_t k) { put(sum + k, get<V>(sum + k) + get<V>(row + k)); });
    }
  });
  combine(parts, blocks.count, d, sums);
}

template <typename T>
double sum_squares(const T* x, const T* centre, int64_t n, int64_t d) {
  const Blocks blocks(n);
  std::vector<double> parts(blocks.count, 0.0);
  for_blocks(blocks, [&](int64_t b, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) parts[b] += squared_distance(x + i * d, centre, d);
  });
  double total = 0;
  for (double part : parts) total += part;
  return total;
}

template <typename T>
void forward(const Channels& in, T* y) {
  const T *x = static_cast<const T*>(in.x), *scale = static_cast<const T*>(in.scale),
          *offset = static_cast<const T*>(in.offset);
  const int64_t d = in.d;
  const T slope = static_cast<T>(in.slope);
  for_blocks(Blocks(in.n), [&](int64_t, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      for_channels<T>(d, [&]<typename V>(int64_t k) {
        const V t = get<V>(x + i * d + k) * get<V>(scale + k) + get<V>(offset + k);
        put(y + i * d + k, V(t > V{} ? t : t * fill<V>(slope)));
      });
    }
  });
}

// sums: [0, d) of g', [d, 2 d) of g' x, [2 d, 3 d) of dy min(t, 0), whose total is the gradient of the slope. dx, unless null, gets g'.
template <typename T>
void backward_sums(const Channels& in, const T* grad, double* sums, T* dx) {
  const T *x = static_cast<const T*>(in.x), *scale = static_cast<const T*>(in.scale),
          *offset = static_cast<const T*>(in.offset);
  const int64_t d = in.d;
  const T slope = static_cast<T>(in.slope);
  const Blocks blocks(in.n);
  std::vector<T> parts(blocks.count * 3 * d, T{0});
  for_blocks(blocks, [&](int64_t b, int64_t first, int64_t last) {
    T* sum = parts.data() + b * 3 * d;
    for (int64_t i = first; i < last; ++i) {
      for_channels<T>(d, [&]<typename V>(int64_t k) {
        const V value = get<V>(x + i * d + k), g = get<V>(grad + i * d + k);
        const V t = value * get<V>(scale + k) + get<V>(offset + k);
        const V inner = t > V{} ? g : g * fill<V>(slope);
        if (dx != nullptr) put(dx + i * d + k, inner);
        put(sum + k, V(get<V>(sum + k) + inner));
        put(sum + d + k, V(get<V>(sum + d + k) + inner * value));
        put(sum + 2 * d + k, V(get<V>(sum + 2 * d + k) + (t > V{} ? V{} : g * t)));
      });
    }
  });
  combine(parts, blocks.count, 3 * d, sums);
}

template <typename T>
void backward(const Channels& in, const T* grad, double pull, const T* level, T* dx) {
  const T *x = static_cast<const T*>(in.x), *scale = static_cast<const T*>(in.scale),
          *offset = static_cast<const T*>(in.offset);
  const int64_t d = in.d;
  const T slope = static_cast<T>(in.slope), back = static_cast<T>(pull);
  for_blocks(Blocks(in.n), [&](int64_t, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      for_channels<T>(d, [&]<typename V>(int64_t k) {
        const V value = get<V>(x + i * d + k), g = get<V>(grad + i * d + k);
        const V factor = get<V>(scale + k);
        const V t = value * factor + get<V>(offset + k);
        const V inner = t > V{} ? g : g * fill<V>(slope);
        put(dx + i * d + k, V(inner * factor - value * fill<V>(back) - get<V>(level + k)));
      });
    }
  });
}

}  // namespace

void channel_sums(const void* x, int64_t n, int64_t d, bool wide, double* sums) {
  wide ? sum_channels(static_cast<const double*>(x), n, d, sums)
       : sum_channels(static_cast<const float*>(x), n, d, sums);
}

double squared_deviation(const void* x, const void* centre, int64_t n, int64_t d, bool wide) {
  return wide ? sum_squares(static_cast<const double*>(x), static_cast<const double*>(centre), n, d)
              : sum_squares(static_cast<const float*>(x), static_cast<const float*>(centre), n, d);
}

void norm_prelu_fwd(const Channels& in, bool wide, void* y) {
  wide ? forward(in, static_cast<double*>(y)) : forward(in, static_cast<float*>(y));
}

void norm_prelu_sums(const Channels& in, bool wide, const void* grad, double* sums, void* dx) {
  wide ? backward_sums(in, static_cast<const double*>(grad), sums, static_cast<double*>(dx))
       : backward_sums(in, static_cast<const float*>(grad), sums, static_cast<float*>(dx));
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
    const Tensor c = torch::stable::contiguous(v);
    std::vector<double> out(d);
    for (int64_t k = 0; k < d; ++k) out[k] = element(c, k);
    return out;
  }

  Channels channels(double mean, double deviation, double eps) {
    for (int64_t k = 0; k < d; ++k) {
      const double factor = normalized ? gain[k] / (deviation + eps) : 1.0;
      set_element(scale, k, factor);
      set_element(offset, k, normalized ? shift[k] + (bias[k] - mean) * factor : bias[k]);
    }
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
    const double count = static_cast<double>(std::max<int64_t>(call.n * call.d, 1));
    double* sum = pointer<double>(sums);
    CK_KERNEL(channel_sums)(call.x.data_ptr(), call.n, call.d, call.wide, sum);
    for (int64_t k = 0; k < call.d; ++k)
      mean += sum[k] + static_cast<double>(call.n) * call.bias[k];
    mean /= count;
    Tensor centre = new_vector(call.x, call.d, t);
    for (int64_t k = 0; k < call.d; ++k) set_element(centre, k, mean - call.bias[k]);
    deviation = std::sqrt(CK_KERNEL(squared_deviation)(call.x.data_ptr(), centre.data_ptr(), call.n,
                                                       call.d, call.wide) /
                          count);
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
  std::vector<double> total(3 * d);
  Tensor dx = new_matrix(call.x, n, d, t);
  CK_KERNEL(norm_prelu_sums)
  (in, call.wide, g.data_ptr(), total.data(), call.normalized ? nullptr : dx.data_ptr());

  Tensor dbias = new_vector(call.x, d, t), dslope = new_vector(call.x, 1, t);
  Tensor dgain = new_vector(call.x, channels, t), dshift = new_vector(call.x, channels, t);
  double slope_sum = 0;
  for (int64_t k = 0; k < d; ++k) slope_sum += total[2 * d + k];
  set_element(dslope, 0, slope_sum);
  if (call.normalized) {
    const double broad = deviation + eps, count = static_cast<double>(std::max<int64_t>(n * d, 1));
    Tensor level = new_vector(call.x, d, t);
    double along = 0, push = 0;
    for (int64_t k = 0; k < d; ++k) {
      const double centred = total[d + k] + (call.bias[k] - mean) * total[k];
      set_element(dgain, k, centred / broad);
      set_element(dshift, k, total[k]);
      along += call.gain[k] * centred;
      push += call.gain[k] * total[k];
    }
    const double pull = deviation > 0 ? along / (broad * broad * count * deviation) : 0.0;
    for (int64_t k = 0; k < d; ++k) {
      const double constant = pull * (call.bias[k] - mean) + push / (count * broad);
      set_element(level, k, constant);
      set_element(dbias, k,
                  total[k] * call.gain[k] / broad - pull * pointer<double>(sums)[k] -
                      static_cast<double>(n) * constant);
    }
    CK_KERNEL(norm_prelu_bwd)(in, call.wide, g.data_ptr(), pull, level.data_ptr(), dx.data_ptr());
  } else {
    for (int64_t k = 0; k < d; ++k) set_element(dbias, k, total[k]);
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
