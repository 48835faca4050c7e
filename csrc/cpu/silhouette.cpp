// Exact silhouette: mean distance to the own cluster (own), least mean distance to another one (other) and which one (nearest).
//
// Points are sorted by label once. Own blocks use each pair once. Of the other clusters only those that can win (candidates.h) are
// computed: where most points of two clusters ask for each other's cluster, the block of both once for both sides; otherwise, cluster by
// cluster, the points that ask for it, gathered from everywhere, against its packed points.
#include "common/isa.h"
#include "cpu/candidates.h"

namespace ck {
struct SilhouetteOutput {
  void* own;         // OUT [n]
  void* other;       // OUT [n]
  int32_t* nearest;  // OUT [n]
};
}  // namespace ck

CK_DECLARE(void silhouette_fwd(const ck::MatrixView& z, const int64_t* labels, int64_t c,
                               const ck::SilhouetteOutput& out, ck::Progress& progress))

namespace ck::CK_ISA {
namespace {

template <typename C>
class SilhouetteForward {
 public:
  SilhouetteForward(const PairProblem<C>& problem, const int64_t* labels, const Moments* moments,
                    const SilhouetteOutput& out)
      : problem_(problem),
        segments_(problem.segments),
        labels_(labels),
        c_(problem.segments.clusters),
        other_(static_cast<C*>(out.other)),
        nearest_(out.nearest),
        finder_(problem, moments),
        summary_(summarise_candidates(finder_, problem.segments, labels)) {
    choose_blocks();
  }

  // The pairs that will be computed, own blocks left out.
  int64_t pairs() const {
    int64_t total = 0;
    for (const auto& [i, j] : blocks_) total += segments_.size(i) * segments_.size(j);
    if (summary_.demand.empty()) return total;
    for (int64_t i = 0; i < c_; ++i) {
      for (int64_t j = 0; j < c_; ++j) {
        if (!in_block(i, j)) total += summary_.demand[i * c_ + j] * segments_.size(j);
      }
    }
    return total;
  }

  void run() {
    sum_blocks();
    // As many rows at a time as their candidates fit into a list of a few entries a point.
    const int64_t most = std::max<int64_t>(8 * segments_.scored(), 1 << 16);
    const int64_t row_blocks = ceil_div(segments_.scored(), kBlockRows);
    int64_t first = 0, entries = 0;
    for (int64_t block = 0; block < row_blocks; ++block) {
      const int64_t added = count_entries(block);
      if (block > first && entries + added > most) {
        sum_candidates(first, block, entries);
        first = block;
        entries = 0;
      }
      entries += added;
    }
    if (first < row_blocks) sum_candidates(first, row_blocks, entries);
  }

 private:
  struct RowSum {
    uint32_t place, entry;
  };

  bool in_block(int64_t i, int64_t j) const {
    return !block_of_.empty() && block_of_[i * c_ + j] != 0;
  }

  // Blocks of two clusters where that takes fewer pairs than the two lists of rows.
  void choose_blocks() {
    if (summary_.demand.empty()) return;
    block_of_.assign(c_ * c_, 0);
    for (int64_t i = 0; i < c_; ++i) {
      for (int64_t j = i + 1; j < c_; ++j) {
        const double rows = static_cast<double>(segments_.size(i)), columns = segments_.size(j);
        const double listed =
            summary_.demand[i * c_ + j] * columns + summary_.demand[j * c_ + i] * rows;
        if (listed <= 1.1 * rows * columns) continue;
        blocks_.emplace_back(i, j);
        block_of_[i * c_ + j] = block_of_[j * c_ + i] = 1;
      }
    }
  }

  void offer(int64_t place, double mean, int64_t j) {
    const int64_t u = segments_.order[place];
    const C value = static_cast<C>(mean);
    const bool better =
        nearest_[u] < 0 || value < other_[u] || (value == other_[u] && j < nearest_[u]);
    if (!better) return;
    other_[u] = value;
    nearest_[u] = static_cast<int32_t>(j);
  }

  // Blocks of two clusters, in waves whose sums take a few numbers a point.
  void sum_blocks() {
    struct Chunk {
      int64_t i, j, begin, end, rows, columns;
    };
    const int64_t most = std::max<int64_t>(8 * segments_.scored(), 1 << 16);
    size_t next = 0;
    while (next < blocks_.size() && !problem_.progress.stopped()) {
      std::vector<Chunk> chunks;
      int64_t used = 0;
      for (; next < blocks_.size() && (chunks.empty() || used < most); ++next) {
        const auto [i, j] = blocks_[next];
        const int64_t rows = segments_.size(i), step = chunk_rows(rows, 16);
        for (int64_t begin = 0; begin < rows; begin += step) {
          const int64_t end = std::min(begin + step, rows);
          chunks.push_back({i, j, begin, end, used, used + end - begin});
          used += end - begin + segments_.size(j);
        }
      }
      Buffer<double> sums(used);
      std::fill(sums.get(), sums.get() + used, 0.0);
      parallel_tasks(
          static_cast<int64_t>(chunks.size()), problem_.progress,
          [&] { return SumsWorkspace<C>(problem_.z.width()); },
          [&](int64_t task, SumsWorkspace<C>& w) {
            const Chunk& chunk = chunks[task];
            chunk_sums(problem_, problem_.cluster(chunk.i), chunk.begin, chunk.end,
                       problem_.cluster(chunk.j), problem_.mean(chunk.j), w,
                       sums.get() + chunk.rows, sums.get() + chunk.columns);
          });
      std::vector<double> total;
      for (const Chunk& chunk : chunks) {
        const int64_t rows = segments_.size(chunk.i), columns = segments_.size(chunk.j);
        for (int64_t r = 0; r < chunk.end - chunk.begin; ++r) {
          offer(segments_.offsets[chunk.i] + chunk.begin + r, sums[chunk.rows + r] / columns,
                chunk.j);
        }
        if (chunk.begin == 0) total.assign(columns, 0.0);
        for (int64_t v = 0; v < columns; ++v) total[v] += sums[chunk.columns + v];
        for (int64_t v = 0; chunk.end == rows && v < columns; ++v) {
          offer(segments_.offsets[chunk.j] + v, total[v] / rows, chunk.i);
        }
      }
    }
  }

  // The candidates of a row block that are in no block of two clusters, at most: the listed ones among them are counted later.
  int64_t count_entries(int64_t block) const {
    const int64_t end = std::min((block + 1) * kBlockRows, segments_.scored());
    int64_t total = 0;
    for (int64_t place = block * kBlockRows; place < end; ++place) total += summary_.count[place];
    return total;
  }

  // The listed candidates of row blocks [first, last): mean distances cluster by cluster, then the least of every row.
  void sum_candidates(int64_t first, int64_t last, int64_t entries) {
    if (problem_.progress.stopped()) return;
    const int64_t begin = first * kBlockRows;
    const int64_t end = std::min(last * kBlockRows, segments_.scored());
    Buffer<int64_t> start(end - begin + 1);
    start[0] = 0;
    for (int64_t place = begin; place < end; ++place) {
      start[place - begin + 1] = start[place - begin] + summary_.count[place];
    }
    constexpr uint32_t kNone = ~uint32_t{0};
    Buffer<uint32_t> cluster(entries);
    std::fill(cluster.get(), cluster.get() + entries, kNone);
    list_candidates(first, last, start.get(), cluster.get());

    std::vector<int64_t> offsets(c_ + 1, 0);
    for (int64_t e = 0; e < entries; ++e) {
      if (cluster[e] != kNone) ++offsets[cluster[e] + 1];
    }
    for (int64_t j = 0; j < c_; ++j) offsets[j + 1] += offsets[j];
    Buffer<uint32_t> ids(offsets[c_]), entry(offsets[c_]);
    std::vector<int64_t> next(offsets.begin(), offsets.end() - 1);
    for (int64_t place = begin; place < end; ++place) {
      for (int64_t e = start[place - begin]; e < start[place - begin + 1]; ++e) {
        if (cluster[e] == kNone) continue;
        const int64_t slot = next[cluster[e]]++;
        ids[slot] = segments_.order[place];
        entry[slot] = static_cast<uint32_t>(e);
      }
    }
    struct Task {
      int64_t cluster, begin, end;
    };
    std::vector<Task> tasks;
    for (int64_t j = 0; j < c_; ++j) {
      for (int64_t r = offsets[j]; r < offsets[j + 1]; r += kChunkRows) {
        tasks.push_back({j, r, std::min(r + kChunkRows, offsets[j + 1])});
      }
    }
    Buffer<C> mean(entries);
    parallel_tasks(
        static_cast<int64_t>(tasks.size()), problem_.progress,
        [&] { return SumsWorkspace<C>(problem_.z.width()); },
        [&](int64_t t, SumsWorkspace<C>& w) {
          const Task& task = tasks[t];
          const WeightedPoints<C> rows{ids.get() + task.begin, task.end - task.begin};
          double sums[kChunkRows] = {};
          chunk_sums(problem_, rows, 0, rows.count, problem_.cluster(task.cluster),
                     problem_.mean(task.cluster), w, sums, nullptr);
          for (int64_t r = 0; r < rows.count; ++r) {
            mean[entry[task.begin + r]] = static_cast<C>(sums[r] / segments_.size(task.cluster));
          }
        });
    for (int64_t place = begin; place < end; ++place) {
      for (int64_t e = start[place - begin]; e < start[place - begin + 1]; ++e) {
        if (cluster[e] != kNone) offer(place, mean[e], cluster[e]);
      }
    }
  }

  // cluster[start of a row ...] = its candidates; those in blocks of two clusters stay as they were.
  void list_candidates(int64_t first, int64_t last, const int64_t* start, uint32_t* cluster) {
    const int64_t begin = first * kBlockRows;
    parallel(last - first, [&](int64_t from, int64_t to) {
      auto workspace = finder_.workspace();
      for (int64_t block = first + from; block < first + to; ++block) {
        const int64_t place = block * kBlockRows;
        const int64_t m = std::min(kBlockRows, segments_.scored() - place);
        bool complete = true;
        for (int64_t r = 0; r < m; ++r) complete &= summary_.complete(place + r);
        std::vector<uint32_t> rank(m, 0);
        const auto emit = [&](int64_t at, int64_t j) {
          const int64_t slot = start[at - begin] + rank[at - place]++;
          if (!in_block(labels_[segments_.order[at]], j)) {
            cluster[slot] = static_cast<uint32_t>(j);
          }
        };
        if (!complete) {
          finder_.find(place, m, workspace, labels_, emit);
          continue;
        }
        for (int64_t r = 0; r < m; ++r) {
          const uint32_t* few = summary_.few.get() + (place + r) * CandidateSummary::kFew;
          for (uint32_t k = 0; k < summary_.count[place + r]; ++k) emit(place + r, few[k]);
        }
      }
    });
  }

  const PairProblem<C>& problem_;
  const Segments& segments_;
  const int64_t* labels_;
  int64_t c_;
  C* other_;
  int32_t* nearest_;
  CandidateFinder<C> finder_;
  CandidateSummary summary_;
  std::vector<std::pair<int64_t, int64_t>> blocks_;
  std::vector<uint8_t> block_of_;
};

template <typename C>
void silhouette_points(const MatrixView& view, const int64_t* labels, int64_t c,
                       const SilhouetteOutput& out, Progress& progress) {
  const Rows<C> z(view);
  const int64_t n = z.count(), d = z.width();
  const Segments segments = sort_by_label(labels, n, c);
  Buffer<C> means(c * d);
  std::vector<double> mass(c);
  segment_means<C>(z, segments, nullptr, means.get(), mass.data());
  const PairProblem<C> problem{z, segments, means.get(), progress};
  C* own = static_cast<C*>(out.own);
  std::fill(own, own + n, C(0));
  std::fill(static_cast<C*>(out.other), static_cast<C*>(out.other) + n, C(0));
  std::fill(out.nearest, out.nearest + n, -1);
  int64_t own_pairs = 0;
  for (int64_t j = 0; j < c; ++j) own_pairs += segments.size(j) * (segments.size(j) - 1) / 2;
  progress.expect(2 * own_pairs);
  std::vector<Moments> moments(c);
  own_sums<C>(problem, nullptr, own, moments.data());
  for (int64_t i = 0; i < segments.scored(); ++i) {
    const int64_t u = segments.order[i];
    own[u] /= static_cast<C>(std::max<int64_t>(segments.size(labels[u]) - 1, 1));
  }
  if (progress.stopped()) return;
  SilhouetteForward<C> others(problem, labels, moments.data(), out);
  progress.expect(own_pairs + others.pairs());
  others.run();
}

}  // namespace

void silhouette_fwd(const MatrixView& z, const int64_t* labels, int64_t c,
                    const SilhouetteOutput& out, Progress& progress) {
  const auto run =
      z.dtype == ScalarType::Double ? silhouette_points<double> : silhouette_points<float>;
  run(z, labels, c, out, progress);
}

}  // namespace ck::CK_ISA

#ifdef CK_REGISTER
#include "cpu/tensors.h"

namespace ck {
namespace {

std::tuple<Tensor, Tensor, Tensor> silhouette(const Tensor& z, const Tensor& labels,
                                              int64_t num_clusters) {
  check_points(z);
  const int64_t n = z.size(0), c = resolve_clusters(labels, num_clusters);
  const Tensor y = checked_labels(labels, n, c);
  Tensor own = new_vector(z, n, compute_type(z)), other = new_vector(z, n, compute_type(z));
  Tensor nearest = new_vector(z, n, ScalarType::Int);
  Progress progress;
  CK_KERNEL(silhouette_fwd)
  (view(z), pointer<int64_t>(y), c,
   SilhouetteOutput{own.data_ptr(), other.data_ptr(), pointer<int32_t>(nearest)}, progress);
  CK_CHECK(!progress.stopped(), "silhouette was interrupted");
  return {own, other, nearest};
}

}  // namespace
}  // namespace ck

STABLE_TORCH_LIBRARY_IMPL(carlg_kernels, CPU, m) {
  m.impl("silhouette", TORCH_BOX(&ck::silhouette));
}
#endif
