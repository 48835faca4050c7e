// Threads: fixed blocks of work, whatever the number of threads, so that results do not depend on it.
#pragma once

#include "common/threads.h"
#include "cpu/vec.h"

#include <algorithm>

namespace ck::CK_ISA {

// Rows a block: a multiple of the rows of every register tile.
constexpr int64_t kBlockRows = 96;

CK_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// body(first, last) over ranges of [0, count).
template <typename Body>
void parallel(int64_t count, const Body& body) {
  if (count <= 0) return;
  run_ranges(
      count,
      [](const void* context, int64_t first, int64_t last) {
        (*static_cast<const Body*>(context))(first, last);
      },
      &body);
}

}  // namespace ck::CK_ISA
