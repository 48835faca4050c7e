// Instruction sets of the CPU kernels and the run-time choice between them.
//
// Every file in csrc/cpu is compiled once per instruction set with CK_ISA = generic | avx2 | avx512 and puts its kernels into
// namespace ck::CK_ISA. The generic compilation also has CK_REGISTER defined and holds the operators, which call the kernel of the
// running CPU through CK_KERNEL(name).
#pragma once

namespace ck {

enum class Isa { generic, avx2, avx512 };

// The best set that this CPU has, or the one that CK_CPU_ISA asks for. Throws where the CPU lacks it.
Isa isa();

}  // namespace ck

#ifdef CK_X86
#define CK_KERNEL(name)                             \
  (ck::isa() == ck::Isa::avx512 ? &ck::avx512::name \
   : ck::isa() == ck::Isa::avx2 ? &ck::avx2::name   \
                                : &ck::generic::name)
// The kernel with vectors of 32 bytes at most, for work that leaves longer ones half empty.
#define CK_NARROW_KERNEL(name) \
  (ck::isa() == ck::Isa::generic ? &ck::generic::name : &ck::avx2::name)
// Declares a kernel in the namespace of every instruction set.
#define CK_DECLARE(...)   \
  namespace ck::generic { \
  __VA_ARGS__;            \
  }                       \
  namespace ck::avx2 {    \
  __VA_ARGS__;            \
  }                       \
  namespace ck::avx512 {  \
  __VA_ARGS__;            \
  }
#else
#define CK_KERNEL(name) (&ck::generic::name)
#define CK_NARROW_KERNEL(name) (&ck::generic::name)
#define CK_DECLARE(...)   \
  namespace ck::generic { \
  __VA_ARGS__;            \
  }
#endif
