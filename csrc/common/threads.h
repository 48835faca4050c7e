// Threads of torch without its headers, which cost every kernel seconds to compile, once per instruction set.
#pragma once

#include <cstdint>

namespace ck {

// call(body, first, last) over ranges of [0, count), on the threads of torch.
void run_ranges(int64_t count, void (*call)(const void* body, int64_t first, int64_t last),
                const void* body);

int64_t thread_count();

}  // namespace ck
