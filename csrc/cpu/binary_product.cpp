// A matrix X of zeros and ones and a sparse matrix S times a dense one:  Y = S (X B)  or, with S first,  Y = X (S B).
//
// (X B)_i is the sum of the rows of B whose bit is set in row i of X. Rows of B go by in groups of `bits`; the sums of all 2^bits subsets
// of a group make a table, and a row adds one entry a group instead of `bits` products: n f / bits loads and additions of vectors where a
// dense product takes n f multiply-adds. kCodes tables at a time stay near the core. Columns go by in slabs of one cache line, through both
// products, so that nothing of the size of Y is stored in between. Slabs are summed by one thread each, in the order of the groups and
// entries: the same bits for any number of threads.
#include "common/isa.h"
#include "cpu/parallel.h"
#include "cpu/sparse_rows.h"
#include "cpu/tile.h"

namespace ck {

constexpr int64_t kCodes = 8;

// Bit g of codes[block][i][k] is element (i, (block * kCodes + k) * bits + g) of the matrix.
struct BinaryRows {
  int64_t rows, blocks;
  const uint8_t* codes;  // IN [blocks, rows, kCodes]
};

}  // namespace ck

CK_DECLARE(void binary_product_fwd(const ck::BinaryRows& x, int64_t bits, const ck::SparseRows& s,
                                   bool sparse_first, const void* b, int64_t b_rows, int64_t width,
                                   bool wide, void* y))

namespace ck::CK_ISA {
namespace {

constexpr int kParts = 64 / kVectorBytes;

// `count` columns of a matrix as lines of a slab, zeros behind the last column and the last row.
template <typename T>
struct Source {
  const T* b;
  int64_t rows, width, count;
  void line(int64_t row, T* to) const {
    const int64_t filled = row < rows ? count : 0;
    std::copy_n(b + row * width, filled, to);
    std::fill(to + filled, to + kSlab<T>, T{0});
  }
};

// tables[k][subset]: the sum of the rows first + k * kBits + g of B, over the bits g of the subset.
template <int kBits, typename T>
void fill_tables(const Source<T>& source, int64_t first, T* tables) {
  constexpr int L = kLanes<T>;
  alignas(64) T line[kSlab<T>];
  for (int64_t k = 0; k < kCodes; ++k) {
    T* table = tables + (k << kBits) * kSlab<T>;
    std::fill(table, table + kSlab<T>, T{0});
    for (int g = 0; g < kBits; ++g) {
      source.line(first + k * kBits + g, line);
      const int64_t half = int64_t{1} << g;
      for (int64_t subset = 0; subset < half; ++subset) {
        for (int p = 0; p < kParts; ++p) {
          const int64_t at = subset * kSlab<T> + p * L;
          store(table + half * kSlab<T> + at, load(table + at) + load(line + p * L));
        }
      }
    }
  }
}

// Adds the entries that a block's codes name to the sums of all rows, or puts them there.
template <int kBits, bool kFirst, typename T>
void add_entries(const uint8_t* codes, int64_t rows, const T* tables, T* sums) {
  constexpr int L = kLanes<T>;
  for (int64_t i = 0; i < rows; ++i, codes += kCodes, sums += kSlab<T>) {
    Vec<T> even[kParts], odd[kParts];
#pragma GCC unroll 8
    for (int k = 0; k < kCodes; ++k) {
      const T* entry = tables + ((int64_t{k} << kBits) + codes[k]) * kSlab<T>;
      Vec<T>* into = k % 2 == 0 ? even : odd;
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        const Vec<T> value = load(entry + p * L);
        into[p] = k < 2 ? value : into[p] + value;
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      const Vec<T> total = even[p] + odd[p];
      store(sums + p * L, kFirst ? total : load(sums + p * L) + total);
    }
  }
}

// A slab of X B.
template <int kBits, typename T>
void add_blocks(const BinaryRows& x, const Source<T>& source, T* tables, T* sums) {
  if (x.blocks == 0) std::fill_n(sums, x.rows * kSlab<T>, T{0});
  for (int64_t block = 0; block < x.blocks; ++block) {
    fill_tables<kBits>(source, block * kCodes * kBits, tables);
    const uint8_t* codes = x.codes + block * x.rows * kCodes;
    block == 0 ? add_entries<kBits, true>(codes, x.rows, tables, sums)
               : add_entries<kBits, false>(codes, x.rows, tables, sums);
  }
}

template <int kBits, typename T>
void multiply(const BinaryRows& x, const SparseRows& s, bool sparse_first, const T* b,
              int64_t b_rows, int64_t width, T* y) {
  constexpr int64_t W = kSlab<T>;
  parallel(ceil_div(width, W), [&](int64_t first, int64_t last) {
    const Buffer<T> tables((kCodes << kBits) * W), sums(x.rows * W), smoothed(s.rows * W);
    const Buffer<T> packed(sparse_first ? b_rows * W : 0);
    for (int64_t slab = first; slab < last; ++slab) {
      const int64_t begin = slab * W, count = std::min(W, width - begin);
      if (sparse_first) {
        copy_columns(b + begin, width, b_rows, count, packed.get(), W, W);
        multiply_slab<T>(s, packed.get(), W, nullptr, smoothed.get(), W);
        add_blocks<kBits>(x, Source<T>{smoothed.get(), s.rows, W, W}, tables.get(), sums.get());
        copy_columns(sums.get(), W, x.rows, count, y + begin, width, count);
      } else {
        add_blocks<kBits>(x, Source<T>{b + begin, b_rows, width, count}, tables.get(), sums.get());
        multiply_slab(s, sums.get(), count, smoothed.get(), y + begin, width);
      }
    }
  });
}

template <typename T>
void multiply_any(const BinaryRows& x, int64_t bits, const SparseRows& s, bool sparse_first,
                  const void* b, int64_t b_rows, int64_t width, void* y) {
  const T* from = static_cast<const T*>(b);
  T* to = static_cast<T*>(y);
  bits == 8 ? multiply<8>(x, s, sparse_first, from, b_rows, width, to)
            : multiply<6>(x, s, sparse_first, from, b_rows, width, to);
}

}  // namespace

void binary_product_fwd(const BinaryRows& x, int64_t bits, const SparseRows& s, bool sparse_first,
                        const void* b, int64_t b_rows, int64_t width, bool wide, void* y) {
  wide ? multiply_any<double>(x, bits, s, sparse_first, b, b_rows, width, y)
       : multiply_any<float>(x, bits, s, sparse_first, b, b_rows, width, y);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
namespace ck {
namespace {

Tensor binary_product(const Tensor& codes, int64_t bits, int64_t depth, const Tensor& pointers,
                      const Tensor& columns, const Tensor& values, bool sparse_first,
                      const Tensor& dense) {
  const ScalarType t = dense.scalar_type();
  CK_CHECK(dense.dim() == 2, "dense must be of shape (m, width)");
  CK_CHECK(t == ScalarType::Float || t == ScalarType::Double, "dense must be float32 or float64");
  CK_CHECK(bits == 6 || bits == 8, "bits must be 6 or 8, got ", bits);
  CK_CHECK(codes.dim() == 3 && codes.size(2) == kCodes && codes.scalar_type() == ScalarType::Byte,
           "codes must be uint8 of shape (blocks, n, ", kCodes, ")");
  const int64_t blocks = codes.size(0), rows = codes.size(1);
  const SparseTensors s(pointers, columns, values, sparse_first ? dense.size(0) : rows, t);
  const int64_t found = sparse_first ? s.view().rows : dense.size(0);
  CK_CHECK(found == depth, sparse_first ? "pointers" : "dense", " must be of ", depth,
           " rows, as the codes have columns, got ", found);
  const int64_t expected = generic::ceil_div(depth, bits * kCodes);
  CK_CHECK(blocks == expected, "codes must have ", expected, " blocks of ", bits,
           " bits for a depth of ", depth, ", got ", blocks);
  const Tensor c = torch::stable::contiguous(codes), b = torch::stable::contiguous(dense);
  const uint8_t* code = pointer<uint8_t>(c);
  uint8_t all = 0;
  for (int64_t i = 0; i < c.numel(); ++i) all |= code[i];
  CK_CHECK(all >> bits == 0, "codes must be below ", 1 << bits);
  Tensor y = new_matrix(dense, sparse_first ? rows : s.view().rows, dense.size(1), t);
  CK_KERNEL(binary_product_fwd)
  (BinaryRows{rows, blocks, code}, bits, s.view(), sparse_first, b.data_ptr(), dense.size(0),
   dense.size(1), t == ScalarType::Double, y.data_ptr());
  return y;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("binary_product", TORCH_BOX(&ck::binary_product));
}
#endif
