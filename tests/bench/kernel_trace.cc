// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/kernel_trace.h"

#include <cuda_runtime.h>
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tests/bench/dynamic_library.h"

namespace intrawarp {
namespace {

// CUPTI's functions, by name.
const DynamicLibrary& CuptiLibrary() {
  static const auto* const library = new DynamicLibrary(
      {"libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"});
  return *library;
}

#define INTRAWARP_CUPTI(name, ...)                                                     \
  do {                                                                                 \
    auto* const function = CuptiLibrary().Function<decltype(name)>(#name);             \
    if (function == nullptr) return absl::NotFoundError(#name);                        \
    const CUptiResult result = function(__VA_ARGS__);                                  \
    if (result != CUPTI_SUCCESS) {                                                     \
      return absl::InternalError(absl::StrCat(#name, ": ", static_cast<int>(result))); \
    }                                                                                  \
  } while (false)

constexpr size_t kBufferBytes = 1 << 20;
constexpr double kLongIdleSeconds = 50e-6;
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET};

std::vector<TracedWork>& Records() {
  static auto* const records = new std::vector<TracedWork>;
  return *records;
}

std::string Readable(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free);
  std::string readable = status == 0 ? text.get() : name;
  for (const char* part : {"(anonymous namespace)::", "intrawarp::cuda::", "intrawarp::", "void "}) {
    for (size_t at; (at = readable.find(part)) != std::string::npos;) readable.erase(at, std::strlen(part));
  }
  readable = readable.substr(0, readable.find('('));
  return readable.substr(0, 60);
}

void Add(const CUpti_Activity* record) {
  TracedWork work;
  const auto times = [&work](uint64_t begin, uint64_t end) {
    work.begin = static_cast<double>(begin) * 1e-9;
    work.end = static_cast<double>(end) * 1e-9;
  };
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    times(kernel->start, kernel->end);
    work.name = Readable(kernel->name);
    work.blocks = kernel->gridX;
    work.threads = kernel->blockX;
    work.shared_bytes = kernel->staticSharedMemory + kernel->dynamicSharedMemory;
    work.registers = kernel->registersPerThread;
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
    times(copy->start, copy->end);
    work.name = absl::StrCat("copy of ", copy->bytes, " bytes");
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
    times(fill->start, fill->end);
    work.name = absl::StrCat("fill of ", fill->bytes, " bytes");
  } else {
    return;
  }
  Records().push_back(work);
}

void CUPTIAPI Requested(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *most = 0;
}

void CUPTIAPI Completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  auto* const next = CuptiLibrary().Function<decltype(cuptiActivityGetNextRecord)>("cuptiActivityGetNextRecord");
  CUpti_Activity* record = nullptr;
  while (next != nullptr && valid > 0 && next(buffer, valid, &record) == CUPTI_SUCCESS) Add(record);
  std::free(buffer);
}

absl::Status Trace(const std::function<absl::Status()>& call) {
  INTRAWARP_CUPTI(cuptiActivityRegisterCallbacks, Requested, Completed);
  for (CUpti_ActivityKind kind : kKinds) INTRAWARP_CUPTI(cuptiActivityEnable, kind);
  // The first traced call is slow.
  INTRAWARP_RETURN_IF_ERROR(call());
  INTRAWARP_CUPTI(cuptiActivityFlushAll, 0);
  Records().clear();
  INTRAWARP_RETURN_IF_ERROR(call());
  INTRAWARP_CUPTI(cuptiActivityFlushAll, 0);
  for (CUpti_ActivityKind kind : kKinds) INTRAWARP_CUPTI(cuptiActivityDisable, kind);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TracedWork>> TraceKernels(const std::function<absl::Status()>& call) {
  if (!CuptiLibrary().found()) return absl::NotFoundError("no CUPTI");
  INTRAWARP_RETURN_IF_ERROR(Trace(call));
  std::vector<TracedWork> work = std::move(Records());
  Records().clear();
  std::stable_sort(work.begin(), work.end(), [](const auto& x, const auto& y) { return x.begin < y.begin; });
  const double first = work.empty() ? 0 : work[0].begin;
  for (TracedWork& w : work) {
    w.begin -= first;
    w.end -= first;
  }
  return work;
}

void PrintKernels(const std::string& what, const std::function<absl::Status()>& call) {
  const absl::StatusOr<std::vector<TracedWork>> traced = TraceKernels(call);
  if (!traced.ok()) return (void)std::printf("kernels: %s\n", traced.status().ToString().c_str());
  struct Sum {
    int count = 0;
    double seconds = 0, longest = 0;
  };
  std::map<std::string, Sum> by_name;
  double busy = 0, until = 0, idle = 0;
  for (const TracedWork& work : *traced) {
    Sum& sum = by_name[absl::StrCat(work.name, " ", work.blocks, "x", work.threads)];
    ++sum.count;
    sum.seconds += work.end - work.begin;
    sum.longest = std::max(sum.longest, work.end - work.begin);
    busy += std::max(0.0, work.end - std::max(work.begin, until));
    if (work.begin - until > kLongIdleSeconds) idle += work.begin - until;
    until = std::max(until, work.end);
  }
  std::vector<std::pair<std::string, Sum>> sorted(by_name.begin(), by_name.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::printf("%s: %zu pieces of work, busy %.3f ms of %.3f, long pauses %.3f\n", what.c_str(), traced->size(),
              busy * 1e3, until * 1e3, idle * 1e3);
  for (const auto& [name, sum] : sorted) {
    std::printf("%9.1f us %5d times %8.1f longest  %s\n", sum.seconds * 1e6, sum.count, sum.longest * 1e6,
                name.c_str());
  }
  double end = 0;
  for (const TracedWork& work : *traced) {
    if (work.begin - end > kLongIdleSeconds) {
      std::printf("idle %7.1f us before %s at %.3f ms\n", (work.begin - end) * 1e6, work.name.c_str(),
                  work.begin * 1e3);
    }
    end = std::max(end, work.end);
  }
  std::fflush(stdout);
}

}  // namespace intrawarp
