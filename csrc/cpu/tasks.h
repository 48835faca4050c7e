// Tasks of unequal size, taken by the threads as they become free. What a task computes must not depend on who runs it.
#pragma once

#include "common/progress.h"
#include "cpu/parallel.h"

namespace ck::CK_ISA {

// body(task, workspace) for every task in [0, count), with one workspace = make() a thread; ends early once progress is stopped.
template <typename Make, typename Body>
void parallel_tasks(int64_t count, const Progress& progress, const Make& make, const Body& body) {
  std::atomic<int64_t> next{0};
  parallel(std::min(count, thread_count()), [&](int64_t, int64_t) {
    auto workspace = make();
    for (int64_t task = next++; task < count && !progress.stopped(); task = next++) {
      body(task, workspace);
    }
  });
}

}  // namespace ck::CK_ISA
