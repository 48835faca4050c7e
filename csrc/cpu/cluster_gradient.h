// Gradient of distance sums within clusters, and of every point's distance sum to one other cluster, its rival. Compiled once for all
// operators that need it: cluster_gradient.cpp.
#pragma once

#include "cpu/block_sums.h"

namespace ck::CK_ISA {

template <typename C>
void cluster_gradient(const PairProblem<C>& problem,
                      const C* alpha,          // IN [n] or null: 0
                      const C* beta,           // IN [n] or null: 1
                      const Segments* rivals,  // IN rows sorted by rival, or null: none
                      const C* rival_alpha,    // IN [n] or null
                      void* dz,                // OUT [n, d]
                      ScalarType dtype);       // of dz

}  // namespace ck::CK_ISA
