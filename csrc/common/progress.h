// Long kernels: how far they are, whether to stop, and how many pairs of points they have computed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace ck {

// Called now and then, on the thread that called the operator, with the fraction done. A non-zero answer stops the operator.
using Tick = int (*)(double fraction);

std::atomic<Tick>& tick();
std::atomic<int64_t>& pairs_computed();

class Progress {
 public:
  void expect(int64_t work) { total_ = work; }

  // From any thread.
  void advance(int64_t work) {
    const int64_t done = done_.fetch_add(work) + work;
    if (std::this_thread::get_id() != caller_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    const Tick call = tick().load();
    const double fraction = total_ > 0 ? static_cast<double>(done) / total_ : 0.0;
    if (call != nullptr && call(fraction < 1.0 ? fraction : 1.0) != 0) stopped_ = true;
  }

  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::atomic<int64_t> done_{0};
  std::atomic<bool> stopped_{false};
  int64_t total_ = 0;
};

}  // namespace ck
