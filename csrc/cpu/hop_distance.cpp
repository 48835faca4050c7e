// Hops of the shortest path between all pairs of nodes of an undirected graph; -1 where there is no path.
//
// Breadth-first search from 64 nodes at a time, one bit each: a level is one OR an edge. O(edges n levels / 64) time, and the n x n result.
#include "common/isa.h"
#include "cpu/parallel.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace ck {
struct Graph {
  const int64_t* offsets;     // IN [n + 1]
  const int32_t* neighbours;  // IN [offsets[n]]
  int64_t n;
};
}  // namespace ck

CK_DECLARE(void hop_distance_fwd(const ck::Graph& graph, int16_t* hops))

namespace ck::CK_ISA {
namespace {

constexpr int64_t kSources = 64;

void search_from(const Graph& graph, int64_t begin, std::vector<uint64_t>& seen,
                 std::vector<uint64_t>& frontier, std::vector<uint64_t>& next, int16_t* hops) {
  const int64_t n = graph.n, m = std::min(kSources, n - begin);
  std::fill(seen.begin(), seen.end(), 0);
  std::fill(frontier.begin(), frontier.end(), 0);
  std::fill(hops + begin * n, hops + (begin + m) * n, int16_t{-1});
  for (int64_t s = 0; s < m; ++s) {
    seen[begin + s] = frontier[begin + s] = uint64_t{1} << s;
    hops[(begin + s) * n + begin + s] = 0;
  }
  bool any = true;
  for (int16_t level = 1; any && level < std::numeric_limits<int16_t>::max(); ++level) {
    any = false;
    for (int64_t v = 0; v < n; ++v) {
      uint64_t reached = 0;
      for (int64_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e) {
        reached |= frontier[graph.neighbours[e]];
      }
      reached &= ~seen[v];
      next[v] = reached;
      any |= reached != 0;
      for (uint64_t left = reached; left != 0; left &= left - 1) {
        hops[(begin + __builtin_ctzll(left)) * n + v] = level;
      }
    }
    for (int64_t v = 0; v < n; ++v) seen[v] |= next[v];
    frontier.swap(next);
  }
}

}  // namespace

void hop_distance_fwd(const Graph& graph, int16_t* hops) {
  parallel(ceil_div(graph.n, kSources), [&](int64_t first, int64_t last) {
    std::vector<uint64_t> seen(graph.n), frontier(graph.n), next(graph.n);
    for (int64_t batch = first; batch < last; ++batch) {
      search_from(graph, batch * kSources, seen, frontier, next, hops);
    }
  });
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

Tensor hop_distance(const Tensor& edge_index, int64_t num_nodes) {
  CK_CHECK(edge_index.dim() == 2 && edge_index.size(0) == 2, "edge_index must be of shape (2, e)");
  CK_CHECK(edge_index.scalar_type() == ScalarType::Long, "edge_index must be int64");
  CK_CHECK(num_nodes >= 1, "num_nodes must be at least 1, got ", num_nodes);
  const Tensor edges = torch::stable::contiguous(edge_index);
  const int64_t count = edges.size(1);
  const int64_t* ends = pointer<int64_t>(edges);
  std::vector<int64_t> offsets(num_nodes + 1, 0);
  for (int64_t e = 0; e < 2 * count; ++e) {
    CK_CHECK(ends[e] >= 0 && ends[e] < num_nodes, "edge_index must lie in [0, ", num_nodes,
             "), got ", ends[e]);
    ++offsets[ends[e] + 1];
  }
  for (int64_t v = 0; v < num_nodes; ++v) offsets[v + 1] += offsets[v];
  std::vector<int64_t> place(offsets.begin(), offsets.end() - 1);
  std::vector<int32_t> neighbours(2 * count);
  for (int64_t e = 0; e < count; ++e) {
    neighbours[place[ends[e]]++] = static_cast<int32_t>(ends[count + e]);
    neighbours[place[ends[count + e]]++] = static_cast<int32_t>(ends[e]);
  }
  Tensor hops = new_matrix(edge_index, num_nodes, num_nodes, ScalarType::Short);
  CK_KERNEL(hop_distance_fwd)
  (Graph{offsets.data(), neighbours.data(), num_nodes}, pointer<int16_t>(hops));
  return hops;
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("hop_distance", TORCH_BOX(&ck::hop_distance));
}
#endif
