// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cpu_device.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/device/exec_context.h"
#include "engine/device/parallel.h"

namespace intrawarp {
namespace {

// Copies and fills above this size are split over the cores.
constexpr size_t kParallelBytes = size_t{4} << 20;

// The size of a huge page on x86-64, and on arm64 with pages of 4 KiB.
constexpr size_t kHugePage = size_t{2} << 20;

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (absl::StartsWith(line, "model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

class CpuDevice final : public Device {
 public:
  CpuDevice() : model_(CpuModel()) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  const std::string& name() const override { return name_; }
  const std::string& model() const override { return model_; }
  absl::Status health() const override { return absl::OkStatus(); }

  absl::StatusOr<DeviceMemory> memory() const override {
    const int64_t page = sysconf(_SC_PAGESIZE);
    return DeviceMemory{sysconf(_SC_PHYS_PAGES) * page, sysconf(_SC_AVPHYS_PAGES) * page};
  }

  absl::StatusOr<Stream> CreateStream(Partition) override { return Stream(this, nullptr); }
  bool partitioned() const override { return false; }
  absl::StatusOr<Event> CreateEvent() override { return Event(this, nullptr); }

  absl::StatusOr<Buffer> Allocate(size_t bytes, StreamView stream) override {
    void* p = AlignedAllocate(bytes);
    if (p == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
    return Buffer(this, p, bytes, stream);
  }
  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t bytes) override {
    void* p = AlignedAllocate(bytes);
    if (p == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
    return PinnedBuffer(this, p, bytes);
  }

  absl::Status Copy(void* to, const void* from, size_t bytes, StreamView) override {
    const int64_t pieces = static_cast<int64_t>((bytes + kParallelBytes - 1) / kParallelBytes);
    ParallelFor(pieces, [&](int64_t i) {
      const size_t begin = i * kParallelBytes, count = std::min(kParallelBytes, bytes - begin);
      std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, count);
    });
    return absl::OkStatus();
  }
  absl::Status Fill(void* to, uint8_t value, size_t bytes, StreamView) override {
    const int64_t pieces = static_cast<int64_t>((bytes + kParallelBytes - 1) / kParallelBytes);
    ParallelFor(pieces, [&](int64_t i) {
      const size_t begin = i * kParallelBytes;
      std::memset(static_cast<char*>(to) + begin, value, std::min(kParallelBytes, bytes - begin));
    });
    return absl::OkStatus();
  }
  absl::Status Synchronize(StreamView) override { return absl::OkStatus(); }

 private:
  // Work takes memory anew for each frame. In pages of 4 KiB the kernel takes 44 ms to provide 77 MB and 10 ms to take
  // them back, in huge pages 16 and 0.3, so large blocks ask for those. A system without them refuses, which costs
  // nothing.
  static void* AlignedAllocate(size_t bytes) {
    if (bytes > SIZE_MAX - Arena::kAlignment) return nullptr;
    const bool is_large = bytes >= 2 * kHugePage;
    const size_t rounded = std::max(Arena::Rounded(bytes), Arena::kAlignment);
    void* p = nullptr;
    if (posix_memalign(&p, is_large ? kHugePage : Arena::kAlignment, rounded) != 0) return nullptr;
    if (is_large) (void)madvise(p, rounded / kHugePage * kHugePage, MADV_HUGEPAGE);
    return p;
  }
  void DestroyStream(void*) override {}
  void DestroyEvent(void*) override {}
  absl::Status RecordEvent(void*, StreamView) override { return absl::OkStatus(); }
  absl::Status WaitEvent(void*) override { return absl::OkStatus(); }
  void Free(void* data, StreamView) override { std::free(data); }
  void FreePinned(void* data) override { std::free(data); }

  const std::string name_ = "cpu";
  const std::string model_;
};

}  // namespace

std::unique_ptr<Device> OpenCpuDevice() { return std::make_unique<CpuDevice>(); }

}  // namespace intrawarp
