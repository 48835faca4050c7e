// Rows of length one:  t_u = q_u + bias,  r_u = ||t_u||,  z_u = t_u / max(r_u, eps).
//
// Backward:  dq_u = (dz_u - z_u (z_u . dz_u)) / r_u,  0 where r_u <= eps;  dbias = sum_u dq_u.
#include "common/isa.h"
#include "cpu/parallel.h"

#include <vector>

CK_DECLARE(void unit_rows_fwd(const void* q, const void* bias, int64_t n, int64_t d, bool wide,
                              double eps, void* z, void* inverse))
CK_DECLARE(void unit_rows_bwd(const void* grad, const void* z, const void* inverse, int64_t n,
                              int64_t d, bool wide, void* dq, double* dbias))

namespace ck::CK_ISA {
namespace {

template <typename T>
void forward(const T* q, const T* bias, int64_t n, int64_t d, T eps, T* z, T* inverse) {
  constexpr int L = kLanes<T>;
  parallel(ceil_div(n, kBlockRows), [&](int64_t first, int64_t last) {
    for (int64_t i = first * kBlockRows; i < std::min(n, last * kBlockRows); ++i) {
      const T* row = q + i * d;
      T* out = z + i * d;
      int64_t k = 0;
      Vec<T> sum{};
      T rest = 0;
      for (; k + L <= d; k += L) {
        const Vec<T> t = load(row + k) + load(bias + k);
        store(out + k, t);
        sum += t * t;
      }
      for (; k < d; ++k) {
        out[k] = row[k] + bias[k];
        rest += out[k] * out[k];
      }
      const T length = std::sqrt(horizontal_sum<T>(sum) + rest);
      inverse[i] = length > eps ? 1 / length : T{0};
      const T factor = length > eps ? 1 / length : 1 / eps;
      for (k = 0; k + L <= d; k += L) store(out + k, load(out + k) * broadcast(factor));
      for (; k < d; ++k) out[k] *= factor;
    }
  });
}

template <typename T>
void backward(const T* grad, const T* z, const T* inverse, int64_t n, int64_t d, T* dq,
              double* dbias) {
  constexpr int L = kLanes<T>;
  const int64_t rows = std::max(kBlockRows, ceil_div(n, 256)), blocks = ceil_div(n, rows);
  std::vector<T> parts(blocks * d, T{0});
  parallel(blocks, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      T* sum = parts.data() + b * d;
      for (int64_t i = b * rows; i < std::min(n, (b + 1) * rows); ++i) {
        const T *g = grad + i * d, *unit = z + i * d;
        T* out = dq + i * d;
        const T radial = dot(g, unit, d), factor = inverse[i];
        int64_t k = 0;
        for (; k + L <= d; k += L) {
          const Vec<T> v = (load(g + k) - load(unit + k) * broadcast(radial)) * broadcast(factor);
          store(out + k, v);
          store(sum + k, load(sum + k) + v);
        }
        for (; k < d; ++k) {
          out[k] = (g[k] - unit[k] * radial) * factor;
          sum[k] += out[k];
        }
      }
    }
  });
  std::fill(dbias, dbias + d, 0.0);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t k = 0; k < d; ++k) dbias[k] += parts[b * d + k];
  }
}

}  // namespace

void unit_rows_fwd(const void* q, const void* bias, int64_t n, int64_t d, bool wide, double eps,
                   void* z, void* inverse) {
  if (wide) {
    forward(static_cast<const double*>(q), static_cast<const double*>(bias), n, d, eps,
            static_cast<double*>(z), static_cast<double*>(inverse));
  } else {
    forward(static_cast<const float*>(q), static_cast<const float*>(bias), n, d,
            static_cast<float>(eps), static_cast<float*>(z), static_cast<float*>(inverse));
  }
}

void unit_rows_bwd(const void* grad, const void* z, const void* inverse, int64_t n, int64_t d,
                   bool wide, void* dq, double* dbias) {
  if (wide) {
    backward(static_cast<const double*>(grad), static_cast<const double*>(z),
             static_cast<const double*>(inverse), n, d, static_cast<double*>(dq), dbias);
  } else {
    backward(static_cast<const float*>(grad), static_cast<const float*>(z),
             static_cast<const float*>(inverse), n, d, static_cast<float*>(dq), dbias);
  }
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

std::tuple<Tensor, Tensor> unit_rows(const Tensor& q, const Tensor& bias, double eps) {
  const ScalarType t = q.scalar_type();
  CK_CHECK(q.dim() == 2, "q must be of shape (n, d)");
  CK_CHECK(t == ScalarType::Float || t == ScalarType::Double, "q must be float32 or float64");
  const int64_t n = q.size(0), d = q.size(1);
  check_vector(bias, d, t, "bias");
  const Tensor rows = torch::stable::contiguous(q), shift = torch::stable::contiguous(bias);
  Tensor z = new_matrix(q, n, d, t), inverse = new_vector(q, n, t);
  CK_KERNEL(unit_rows_fwd)(rows.data_ptr(), shift.data_ptr(), n, d, t == ScalarType::Double, eps,
                           z.data_ptr(), inverse.data_ptr());
  return {z, inverse};
}

std::tuple<Tensor, Tensor> unit_rows_backward(const Tensor& grad, const Tensor& z,
                                              const Tensor& inverse) {
  const ScalarType t = z.scalar_type();
  CK_CHECK(z.dim() == 2, "z must be of shape (n, d)");
  CK_CHECK(t == ScalarType::Float || t == ScalarType::Double, "z must be float32 or float64");
  const int64_t n = z.size(0), d = z.size(1);
  check_matrix(grad, n, d, t, "grad");
  check_vector(inverse, n, t, "inverse");
  const Tensor g = torch::stable::contiguous(grad), rows = torch::stable::contiguous(z),
               lengths = torch::stable::contiguous(inverse);
  Tensor dq = new_matrix(z, n, d, t), dbias = new_vector(z, d, t);
  std::vector<double> total(d);
  CK_KERNEL(unit_rows_bwd)(g.data_ptr(), rows.data_ptr(), lengths.data_ptr(), n, d,
                           t == ScalarType::Double, dq.data_ptr(), total.data());
  set_elements(dbias, total);
  return {dq, dbias};
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("unit_rows", TORCH_BOX(&ck::unit_rows));
  m.impl("unit_rows_backward", TORCH_BOX(&ck::unit_rows_backward));
}
#endif
