// SPDX-License-Identifier: Apache-2.0
// Registrations of 128^3 beside a flood of other work on one GPU, in and out of partitions.
//
//   partition_bench                 the first GPU; at most some 90 seconds
//
// Registrations follow one another without pause, up to 100 or for up to kMostSeconds a row; images are resident. Rows:
//   whole      both on the whole GPU, on two streams
//   priority   the same, with stream priorities
//   A+B        registrations on A multiprocessors, the flood on the other B (green contexts)
// Floods run without pause in a second thread: arithmetic (40 blocks a multiprocessor), copies of 1 GiB, and products
// of sparse matrices with themselves. p99/whole: against p99 alone on the whole GPU. p99/own: against p99 alone in the
// same place. flood/s: kernels or products a second; of whole, of own: against the flood's rate alone on the whole GPU,
// and alone in its own place.
#include "tests/bench/partition_bench.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/device/cuda_device.h"
#include "engine/device/parallel.h"
#include "engine/registration/registration.h"
#include "engine/sparse/multiply.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/sparse_generators.h"

namespace intrawarp {
namespace {

constexpr int kRegistrations = 100, kFewest = 5;
constexpr double kMostSeconds = 2, kFloodSeconds = 0.4, kWholeBudgetSeconds = 85;
constexpr int64_t kPoolBytes = int64_t{12} << 30;
constexpr size_t kCopyBytes = size_t{1} << 30;
constexpr Int3 kSize = {128, 128, 128};

enum class FloodKind { kArithmetic, kCopy, kFem, kRmat };
constexpr std::array<const char*, 4> kFloodNames = {"arithmetic", "copy", "fem27x3_25", "rmat_500k"};

struct Frame {
  const char* name;
  StageOptions stage;
};
const std::vector<Frame>& Frames() {
  static const auto* const frames =
      new std::vector<Frame>{{"log-demons", LogDemonsOptions{}}, {"affine", AffineOptions{}}};
  return *frames;
}

HostCsr<float> Narrowed(const HostCsr<double>& m) {
  HostCsr<float> narrow{m.rows, m.columns, m.row_offsets, m.column_indices, {}};
  narrow.values.assign(m.values.begin(), m.values.end());
  return narrow;
}

const HostCsr<float>& Matrix(FloodKind kind) {
  static const auto* const fem = new HostCsr<float>(Narrowed(Value(MatrixByName("fem27x3_25", 1))));
  static const auto* const rmat = new HostCsr<float>(Narrowed(Value(MatrixByName("rmat_500k", 1))));
  return kind == FloodKind::kFem ? *fem : *rmat;
}

// A textured body that `phase` deforms.
PreparedImage MakeImage(const ExecContext& ctx, double phase) {
  Geometry g;
  g.size = kSize;
  std::vector<float> values(g.voxels());
  const int64_t plane = int64_t{kSize.x} * kSize.y;
  ParallelFor(kSize.z, [&](int64_t z) {
    for (int64_t i = 0; i < plane; ++i) {
      const double x = static_cast<double>(i % kSize.x), y = static_cast<double>(i / kSize.x);  // NOLINT
      const double u = (x + 3 * std::sin(0.05 * y + phase)) / 64 - 1, v = (y + 4 * phase) / 64 - 1;
      const double w = (static_cast<double>(z) + 2 * std::sin(0.06 * x + phase)) / 64 - 1;
      const double body = 1 / (1 + std::exp(25 * (std::sqrt(u * u / 0.6 + v * v / 0.5 + w * w / 0.5) - 1)));
      const double inner = std::sin(7 * u + 2 * v) + std::sin(6 * v - 3 * w) + std::sin(5 * w + 4 * u * v);
      values[z * plane + i] = static_cast<float>(body * (100 + 18 * inner));
    }
  });
  return Value(PreparedImage::Prepare(ctx, values.data(), PixelType::kFloat32, 1, 0, g));
}

// A device with everything resident.
struct Bed {
  explicit Bed(const CudaPartitionOptions& options)
      : device(Value(OpenCudaDevice(0, options))),
        resident(Value(OwnedContext::Create(*device, size_t{256} << 20))),
        fixed(MakeImage(resident.context(), 0)),
        moving(MakeImage(resident.context(), 0.5)),
        fem(Value(CsrMatrix::Upload(*device, stream(), Matrix(FloodKind::kFem)))),
        rmat(Value(CsrMatrix::Upload(*device, stream(), Matrix(FloodKind::kRmat)))),
        from(Value(device->Allocate(kCopyBytes, stream()))),
        to(Value(device->Allocate(kCopyBytes, stream()))) {
    Check(device->Fill(from.as<void>(), 1, kCopyBytes, stream()));
    Check(device->Synchronize(stream()));
    Check(device->Warm(kPoolBytes));
  }

  StreamView stream() { return resident.context().stream(); }

  std::unique_ptr<Device> device;
  OwnedContext resident;
  PreparedImage fixed, moving;
  CsrMatrix fem, rmat;
  Buffer from, to;
};

// Work without pause in a thread of its own, from construction to destruction.
class Flood {
 public:
  Flood(Bed& bed, FloodKind kind, Partition partition)
      : bed_(bed), kind_(kind), owned_(MakeContext(bed, kind, partition)), thread_([this] { Run(); }) {
    for (int i = 0; i < 2; ++i) AwaitNext();
  }
  ~Flood() {
    stop_ = true;
    thread_.join();
  }
  int64_t done() const { return done_; }
  // Waits for the end of a unit; done() then.
  int64_t AwaitNext() const {
    const int64_t now = done_;
    while (done_ == now) std::this_thread::yield();
    return done_;
  }

 private:
  static OwnedContext MakeContext(Bed& bed, FloodKind kind, Partition partition) {
    int64_t bytes = 0;
    if (kind == FloodKind::kFem || kind == FloodKind::kRmat) {
      const ConstCsrView a = (kind == FloodKind::kFem ? bed.fem : bed.rmat).view();
      bytes = Value(EstimateMultiply(bed.resident.context(), a, a, {})).workspace_bytes;
    }
    return Value(OwnedContext::Create(*bed.device, static_cast<size_t>(bytes), partition));
  }

  void Run() {
    const ExecContext ctx = owned_.context();
    std::array<Event, 2> events = {Value(bed_.device->CreateEvent()), Value(bed_.device->CreateEvent())};
    for (int64_t i = 0; !stop_; ++i) {
      if (i >= 2) {
        Check(events[i % 2].Wait());
        ++done_;
      }
      Check(Enqueue(ctx));
      Check(events[i % 2].Record(ctx.stream()));
    }
    Check(bed_.device->Synchronize(ctx.stream()));
  }

  absl::Status Enqueue(const ExecContext& ctx) {
    const int multiprocessors = bed_.device->multiprocessors(Partition::kWhole);
    switch (kind_) {
      case FloodKind::kArithmetic:
        return EnqueueArithmetic(ctx, 40 * multiprocessors, bed_.to.as<float>());
      case FloodKind::kCopy:
        return EnqueueCopy(ctx, 8 * multiprocessors, bed_.from.as<void>(), bed_.to.as<void>(), kCopyBytes);
      case FloodKind::kFem:
        return Multiply(ctx, bed_.fem.view(), bed_.fem.view(), {}).status();
      case FloodKind::kRmat:
        return Multiply(ctx, bed_.rmat.view(), bed_.rmat.view(), {}).status();
    }
    return absl::InternalError("no such flood");
  }

  Bed& bed_;
  const FloodKind kind_;
  OwnedContext owned_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> done_ = 0;
  std::thread thread_;
};

// Units of a flood a second, alone.
double RateAlone(Bed& bed, FloodKind kind, Partition partition) {
  const Flood flood(bed, kind, partition);
  // From the end of a unit to the end of another.
  const int64_t before = flood.AwaitNext();
  const Clock::time_point begin = Clock::now();
  int64_t last = before;
  while (Seconds(begin) < kFloodSeconds) last = flood.AwaitNext();
  return static_cast<double>(last - before) / Seconds(begin);
}

struct Times {
  std::vector<double> milliseconds;  // ascending
  double flood_rate = 0;

  double Percentile(double p) const {
    const auto count = static_cast<double>(milliseconds.size());
    return milliseconds[static_cast<size_t>(std::max(std::ceil(p * count) - 1, 0.0))];
  }
};

Times Measure(Bed& bed, const Frame& frame, Partition partition, std::optional<FloodKind> kind,
              Partition flood_partition) {
  const RegistrationInput input{&bed.fixed, &bed.moving, nullptr, nullptr, {frame.stage}, AffineMap::Identity()};
  OwnedContext owned = Value(OwnedContext::Create(
      *bed.device, static_cast<size_t>(RegistrationWorkspaceBytes(*bed.device, input)), partition));
  for (int i = 0; i < 3; ++i) Check(Register(owned.context(), input).status());
  std::optional<Flood> flood;
  if (kind) flood.emplace(bed, *kind, flood_partition);
  const int64_t before = flood ? flood->done() : 0;
  Times times;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kRegistrations && (i < kFewest || Seconds(begin) < kMostSeconds); ++i) {
    const Clock::time_point start = Clock::now();
    Check(Register(owned.context(), input).status());
    times.milliseconds.push_back(Seconds(start) * 1e3);
  }
  if (flood) times.flood_rate = static_cast<double>(flood->done() - before) / Seconds(begin);
  std::sort(times.milliseconds.begin(), times.milliseconds.end());
  return times;
}

// Rows of the table; the first bed gives what the others are compared with.
class Table {
 public:
  Table() {
    std::printf("%-11s %-9s %-11s %4s %8s %8s %9s %8s %9s %8s %7s\n", "registers", "place", "flood", "n", "p50 ms",
                "p99 ms", "p99/whole", "p99/own", "flood/s", "of whole", "of own");
  }

  // Registrations in `partition`, floods in `flood_partition` of a bed.
  void AddRows(Bed& bed, const std::string& place, Partition partition, Partition flood_partition) {
    std::array<double, kFloodNames.size()> own_rates = {};
    for (size_t k = 0; k < kFloodNames.size(); ++k) {
      if (OutOfTime()) return;
      own_rates[k] = RateAlone(bed, static_cast<FloodKind>(k), flood_partition);
      if (whole_rates_[k] == 0) whole_rates_[k] = own_rates[k];
    }
    for (size_t f = 0; f < Frames().size(); ++f) {
      if (OutOfTime()) return;
      const Times alone = Measure(bed, Frames()[f], partition, std::nullopt, flood_partition);
      const double own_p99 = alone.Percentile(0.99);
      if (whole_p99_[f] == 0) whole_p99_[f] = own_p99;
      Print(f, place, "none", alone, own_p99);
      std::printf("\n");
      for (size_t k = 0; k < kFloodNames.size(); ++k) {
        if (OutOfTime()) return;
        const Times times = Measure(bed, Frames()[f], partition, static_cast<FloodKind>(k), flood_partition);
        Print(f, place, kFloodNames[k], times, own_p99);
        std::printf(" %9.1f %8.2f %7.2f\n", times.flood_rate, times.flood_rate / whole_rates_[k],
                    times.flood_rate / own_rates[k]);
      }
      std::fflush(stdout);
    }
  }

 private:
  void Print(size_t frame, const std::string& place, const char* flood, const Times& times, double own_p99) const {
    const double p99 = times.Percentile(0.99);
    std::printf("%-11s %-9s %-11s %4zu %8.2f %8.2f %9.2f %8.2f", Frames()[frame].name, place.c_str(), flood,
                times.milliseconds.size(), times.Percentile(0.5), p99, p99 / whole_p99_[frame], p99 / own_p99);
  }
  bool OutOfTime() {
    if (Seconds(begin_) < kWholeBudgetSeconds) return false;
    if (!told_) std::printf("out of time: the other rows are left out\n");
    return told_ = true;
  }

  const Clock::time_point begin_ = Clock::now();
  std::array<double, kFloodNames.size()> whole_rates_ = {};
  std::array<double, 2> whole_p99_ = {};
  bool told_ = false;
};

void AddPartitionRows(Table& table, Bed& bed) {
  if (!bed.device->partitioned()) {
    std::printf("no green contexts\n");
    return;
  }
  const int frames = bed.device->multiprocessors(Partition::kFrames);
  const int batch = bed.device->multiprocessors(Partition::kBatch);
  table.AddRows(bed, absl::StrCat(frames, "+", batch), Partition::kFrames, Partition::kBatch);
}

int Main() {
  if (CudaDeviceCount() == 0) {
    std::fprintf(stderr, "no GPU\n");
    return 1;
  }
  std::optional<Bed> bed(std::in_place, CudaPartitionOptions{.frames_multiprocessors = 96});
  std::printf("%s, %d multiprocessors\n", bed->device->model().c_str(),
              bed->device->multiprocessors(Partition::kWhole));
  Table table;
  table.AddRows(*bed, "whole", Partition::kWhole, Partition::kWhole);
  AddPartitionRows(table, *bed);
  bed.emplace(CudaPartitionOptions{.green_contexts = false});
  table.AddRows(*bed, "priority", Partition::kFrames, Partition::kBatch);
  for (const int frames : {64, 80, 112}) {
    bed.emplace(CudaPartitionOptions{.frames_multiprocessors = frames});
    AddPartitionRows(table, *bed);
  }
  return 0;
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  if (argc == 1) return intrawarp::Main();
  std::fprintf(stderr, "%s: there are no options\n", argv[1]);
  return 2;
}
