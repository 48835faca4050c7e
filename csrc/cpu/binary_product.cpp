// A matrix X of zeros and ones and a sparse matrix S times a dense one:  Y = S (X B)  or, with S first,  Y = X (S B).
//
// (X B)_i is the sum of the rows of B whose bit is set in row i of X. Rows of B go by in groups of kBits; the sums of all subsets of a
// group make a table, and a row adds one entry a group instead of kBits products: n f / kBits loads and additions of vectors where a
// dense product takes n f multiply-adds. kCodes tables at a time stay near the core. Columns go by in slabs of one cache line, through both
// products, so that nothing of the size of Y is stored in between. Slabs are summed by one thread each, in the order of the groups and
// entries: the same bits for any number of threads.
#include "common/isa.h"
#include "cpu/parallel.h"
#include "cpu/sparse_rows.h"
#include "cpu/tile.h"

#include <bit>
#include <cstring>
#include <utility>

namespace ck {

constexpr int64_t kCodes = 8, kBits = 7;

// Bit g of codes[block][i][k] is element (i, (block * kCodes + k) * kBits + g) of the matrix.
struct BinaryRows {
  int64_t rows, blocks;
  const uint8_t* codes;  // IN [blocks, rows, kCodes]
};

}  // namespace ck

CK_DECLARE(void binary_product_fwd(const ck::BinaryRows& x, const ck::SparseRows& s,
                                   bool sparse_first, const void* b, int64_t b_rows, int64_t width,
                                   bool wide, void* y))

namespace ck::CK_ISA {
namespace {

constexpr int kParts = 64 / kVectorBytes;

// tables[k][subset]: the sum of the lines k * kBits + g, over the bits g of the subset.
template <typename T>
void fill_tables(const T* line, T* tables) {
  constexpr int L = kLanes<T>;
  for (int64_t k = 0; k < kCodes; ++k) {
    T* table = tables + (k << kBits) * kSlab<T>;
    std::fill(table, table + kSlab<T>, T{0});
    for (int g = 0; g < kBits; ++g, line += kSlab<T>) {
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

// Entry `code` of table k, code k of a row: all codes of a row are one word, and the entries are 2^kEntry bytes.
template <int k, typename T>
CK_INLINE const T* find_entry(uint64_t row, const T* tables) {
  constexpr int kEntry = 6;
  constexpr int kByte = std::endian::native == std::endian::little ? k : kCodes - 1 - k;
  static_assert(kSlab<T> * sizeof(T) == 1 << kEntry && kCodes == sizeof row);
  const uint64_t offset = std::rotr(row, 8 * kByte - kEntry) & (((1 << kBits) - 1) << kEntry);
  return reinterpret_cast<const T*>(
      reinterpret_cast<const char*>(tables + (k << kBits) * kSlab<T>) + offset);
}

// Adds the entries that a block's codes name to the sums of all rows, or puts them there.
template <bool kFirst, typename T>
void add_entries(const uint8_t* codes, int64_t rows, const T* tables, T* sums) {
  constexpr int L = kLanes<T>;
  for (int64_t i = 0; i < rows; ++i, codes += kCodes, sums += kSlab<T>) {
    uint64_t row;
    std::memcpy(&row, codes, kCodes);
    Vec<T> even[kParts] = {}, odd[kParts] = {};
    const auto add = [&]<int k>(Vec<T>* into) {
      const T* entry = find_entry<k>(row, tables);
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p)
        into[p] = k < 2 ? load(entry + p * L) : into[p] + load(entry + p * L);
    };
    [&]<int... k>(std::integer_sequence<int, k...>) {
      (add.template operator()<k>(k % 2 == 0 ? even : odd), ...);
    }(std::make_integer_sequence<int, kCodes>{});
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      const Vec<T> total = even[p] + odd[p];
      store(sums + p * L, kFirst ? total : load(sums + p * L) + total);
    }
  }
}

// A slab of X B; lines(first, count, to) writes lines [first, first + count) of B's slab.
template <typename T, typename Lines>
void add_blocks(const BinaryRows& x, int64_t depth, const Lines& lines, T* tables, T* sums) {
  constexpr int64_t kGroup = kCodes * kBits;
  alignas(64) T group[kGroup * kSlab<T>];
  if (x.blocks == 0) std::fill_n(sums, x.rows * kSlab<T>, T{0});
  for (int64_t block = 0; block < x.blocks; ++block) {
    const int64_t first = block * kGroup, count = std::min(kGroup, depth - first);
    lines(first, count, group);
    std::fill(group + count * kSlab<T>, group + kGroup * kSlab<T>, T{0});
    fill_tables(group, tables);
    const uint8_t* codes = x.codes + block * x.rows * kCodes;
    block == 0 ? add_entries<true>(codes, x.rows, tables, sums)
               : add_entries<false>(codes, x.rows, tables, sums);
  }
}

template <typename T>
void multiply(const BinaryRows& x, const SparseRows& s, bool sparse_first, const T* b,
              int64_t b_rows, int64_t width, T* y) {
  constexpr std::integral_constant<int64_t, kSlab<T>> W;
  parallel(ceil_div(width, W), [&](int64_t first, int64_t last) {
    const Buffer<T> tables((kCodes << kBits) * W), sums(x.rows * W);
    const Buffer<T> packed(sparse_first ? b_rows * W : 0), scratch(sparse_first ? 0 : s.rows * W);
    for (int64_t slab = first; slab < last; ++slab) {
      const int64_t begin = slab * W, count = std::min<int64_t>(W, width - begin);
      if (sparse_first) {
        pack_columns<W>(b + begin, width, b_rows, count, packed.get());
        const auto spread = [&](int64_t row, int64_t rows, T* to) {
          multiply_rows(s, row, row + rows, packed.get(), W, W, to, W);
        };
        add_blocks(x, s.rows, spread, tables.get(), sums.get());
        unpack_columns<W>(sums.get(), x.rows, count, y + begin, width);
      } else {
        const auto read = [&](int64_t row, int64_t rows, T* to) {
          pack_columns<W>(b + row * width + begin, width, rows, count, to);
        };
        add_blocks(x, b_rows, read, tables.get(), sums.get());
        multiply_slab<W>(s, sums.get(), count, scratch.get(), y + begin, width);
      }
    }
  });
}

}  // namespace

void binary_product_fwd(const BinaryRows& x, const SparseRows& s, bool sparse_first, const void* b,
                        int64_t b_rows, int64_t width, bool wide, void* y) {
  const auto run = [&]<typename T>(T* to) {
    multiply(x, s, sparse_first, static_cast<const T*>(b), b_rows, width, to);
  };
  wide ? run(static_cast<double*>(y)) : run(static_cast<float*>(y));
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
namespace ck {
namespace {

Tensor binary_product(const Tensor& codes, int64_t depth, const Tensor& pointers,
                      const Tensor& columns, const Tensor& values, bool sparse_first,
                      const Tensor& dense) {
  const ScalarType t = dense.scalar_type();
  CK_CHECK(dense.dim() == 2, "dense must be of shape (m, width)");
  CK_CHECK(t == ScalarType::Float || t == ScalarType::Double, "dense must be float32 or float64");
  CK_CHECK(codes.dim() == 3 && codes.size(2) == kCodes && codes.scalar_type() == ScalarType::Byte,
           "codes must be uint8 of shape (blocks, n, ", kCodes, ")");
  const int64_t blocks = codes.size(0), rows = codes.size(1);
  const SparseTensors s(pointers, columns, values, sparse_first ? dense.size(0) : rows, t);
  const int64_t found = sparse_first ? s.view().rows : dense.size(0);
  CK_CHECK(found == depth, sparse_first ? "pointers" : "dense", " must be of ", depth,
           " rows, as the codes have columns, got ", found);
  const int64_t expected = generic::ceil_div(depth, kBits * kCodes);
  CK_CHECK(blocks == expected, "codes must have ", expected, " blocks of ", kBits,
           " bits for a depth of ", depth, ", got ", blocks);
  const Tensor c = torch::stable::contiguous(codes), b = torch::stable::contiguous(dense);
  const uint8_t* code = pointer<uint8_t>(c);
  const int64_t count = blocks * rows * kCodes;
  uint8_t all = 0;
  for (int64_t i = 0; i < count; ++i) all |= code[i];
  CK_CHECK(all >> kBits == 0, "codes must be below ", 1 << kBits);
  Tensor y = new_matrix(dense, sparse_first ? rows : s.view().rows, dense.size(1), t);
  CK_KERNEL(binary_product_fwd)
  (BinaryRows{rows, blocks, code}, s.view(), sparse_first, b.data_ptr(), dense.size(0),
   dense.size(1), t == ScalarType::Double, y.data_ptr());
  return y;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("binary_product", TORCH_BOX(&ck::binary_product));
}
#endif
