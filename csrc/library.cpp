// Build information, the choice of the instruction set, threads, and the state shared by long kernels.
#include "common/isa.h"
#include "common/progress.h"
#include "common/threads.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdlib>
#include <string>

namespace ck {
namespace {

Isa best_isa() {
#ifdef CK_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    return Isa::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return Isa::avx2;
  }
#endif
  return Isa::generic;
}

const char* isa_name(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "generic";
}

Isa chosen_isa() {
  const Isa best = best_isa();
  const char* asked = std::getenv("CK_CPU_ISA");
  if (asked == nullptr || *asked == '\0') return best;
  const std::string name = asked;
  for (Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    if (name != isa_name(isa)) continue;
    STD_TORCH_CHECK(isa <= best, "CK_CPU_ISA=", name, " cannot be served: this CPU has ",
                    isa_name(best), " at best");
    return isa;
  }
  STD_TORCH_CHECK(false, "CK_CPU_ISA must be generic, avx2 or avx512, got ", name);
  return best;
}

// The instruction sets of this build and CPU, the one in use first; "cuda" where CUDA kernels were built.
std::string build_info() {
  std::string info = isa_name(isa());
  for (Isa other : {Isa::generic, Isa::avx2, Isa::avx512}) {
    if (other != isa() && other <= best_isa()) info += std::string(",") + isa_name(other);
  }
#ifdef CK_CUDA
  info += ",cuda";
#endif
  return info;
}

// The address of a Tick, 0 for none.
void set_tick(int64_t address) { tick() = reinterpret_cast<Tick>(address); }

// Pairs of points whose distance was computed since the last call.
int64_t take_pairs_computed() { return pairs_computed().exchange(0); }

}  // namespace

std::atomic<Tick>& tick() {
  static std::atomic<Tick> callback{nullptr};
  return callback;
}

std::atomic<int64_t>& pairs_computed() {
  static std::atomic<int64_t> count{0};
  return count;
}

void run_ranges(int64_t count, void (*call)(const void* body, int64_t first, int64_t last),
                const void* body) {
  torch::stable::parallel_for(0, count, 1,
                              [&](int64_t first, int64_t last) { call(body, first, last); });
}

int64_t thread_count() { return torch::stable::get_num_threads(); }

Isa isa() {
  static const Isa choice = chosen_isa();
  return choice;
}

}  // namespace ck

STABLE_TORCH_LIBRARY_FRAGMENT(carlg_kernels, m) {
  m.def("build_info() -> str");
  m.def("set_tick(int address) -> ()");
  m.def("take_pairs_computed() -> int");
}
STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CompositeExplicitAutograd, m) {
  m.impl("build_info", TORCH_BOX(&ck::build_info));
  m.impl("set_tick", TORCH_BOX(&ck::set_tick));
  m.impl("take_pairs_computed", TORCH_BOX(&ck::take_pairs_computed));
}
