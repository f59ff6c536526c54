// SPDX-License-Identifier: Apache-2.0
// Sparse products as jobs: a real server in this process, the real client over loopback.
//
//   sparse_jobs_bench [--device=auto|cpu|cuda:N] [--matrix=fem27x3_37] [--repeats=100] [--seconds=S] [--cancels=10]
//                     [--precision=fp32]
//
// A repeat uploads A, makes C = A A with the result kept, downloads it, makes it again with the result sent, and
// deletes both. fem27x3_37 gives C 51.6 million entries, 413 MB. The first C is checked, C x against A (A x) in
// float64, and all others are compared with it, bit by bit. --seconds ends the repeats early.
//
// Printed: where memory stands after repeats 1, 2, 5, 10, ... (of the process, so of server and client together, what
// is resident and what of it is allocated; used memory of the GPU; what the server accounts for; page-locked memory
// lent out and kept); the time of each stage at the client and the server's own breakdown; and, for products cancelled
// when their estimate, pattern or values are known and when half of the result has come, the time from the cancel until
// every byte, job and stream of the product is gone.
#include <grpcpp/grpcpp.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "engine/base/flags.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "server/server.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/sparse_generators.h"

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::string device;
  std::string matrix;
  int repeats = 0;
  double seconds = 0;
  int cancels = 0;
  v1::Precision precision = v1::PRECISION_FP32;
};

CommandSyntax Syntax() {
  return {.flags = {{.name = "device", .placeholder = "DEVICE", .help = "auto, cpu, cuda:N; default auto"},
                    {.name = "matrix", .placeholder = "NAME", .help = "of a generator; default fem27x3_37"},
                    {.name = "repeats",
                     .type = FlagType::kInteger,
                     .placeholder = "N",
                     .help = "default 100",
                     .minimum = 1,
                     .maximum = 1e6},
                    {.name = "seconds",
                     .type = FlagType::kNumber,
                     .placeholder = "S",
                     .help = "no repeat begins after this; default 3600",
                     .minimum = 0},
                    {.name = "cancels",
                     .type = FlagType::kInteger,
                     .placeholder = "N",
                     .help = "products cancelled at each point; default 10",
                     .minimum = 0,
                     .maximum = 1000},
                    {.name = "precision",
                     .placeholder = "P",
                     .help = "default fp32",
                     .choices = {"fp16", "bf16", "tf32", "fp32"}}}};
}

absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string>& arguments) {
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(Syntax(), arguments));
  BenchOptions options;
  options.device = flags.String("device", "auto");
  options.matrix = flags.String("matrix", "fem27x3_37");
  options.repeats = static_cast<int>(flags.Integer("repeats", 100));
  options.seconds = flags.Number("seconds", 3600);
  options.cancels = static_cast<int>(flags.Integer("cancels", 10));
  const std::string precision = flags.String("precision", "fp32");
  if (precision == "fp16") options.precision = v1::PRECISION_FP16;
  if (precision == "bf16") options.precision = v1::PRECISION_BF16;
  if (precision == "tf32") options.precision = v1::PRECISION_TF32;
  return options;
}

double Since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// MB of this process.
double ResidentMegabytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kib = 0;
    if (word == "VmRSS:" && status >> kib) return kib / 1e3 * 1.024;
  }
  return 0;
}

// MB that the process has of its allocator; what is resident beyond that is the allocator's own.
double AllocatedMegabytes() {
  const struct mallinfo2 info = mallinfo2();
  return 1e-6 * static_cast<double>(info.uordblks + info.hblkhd);
}

// The stages of one repeat, in ms at the client.
struct Stages {
  double upload = 0, multiply_kept = 0, download = 0, multiply_sent = 0, total = 0;
  v1::LatencyBreakdown kept, sent;
};

// The streams, jobs and memory of the server that a product holds.
struct Holdings {
  int64_t streams, jobs, accounted, leased;
  bool operator==(const Holdings&) const = default;
};

class JobsBench {
 public:
  explicit JobsBench(const BenchOptions& options) : options_(options) {}

  absl::Status Run() {
    INTRAWARP_RETURN_IF_ERROR(Start());
    INTRAWARP_RETURN_IF_ERROR(Repeat());
    PrintStages();
    return Cancel();
  }

 private:
  absl::Status Start();
  absl::Status Repeat();
  absl::StatusOr<Stages> Once();
  absl::Status Check(const client::SparseMatrix& c);
  absl::Status CheckFirst(const HostCsr<float>& c) const;
  void PrintMemory(int repeat);
  void PrintStages() const;
  absl::Status Upload();
  static absl::Status Eventually(const std::function<bool()>& condition);
  absl::Status Cancel();
  absl::StatusOr<double> CancelAt(v1::MultiplyProgress::Step step, double part_of_bytes);
  Holdings Held() {
    server::DeviceContext& context = server_->context();
    return {context.ledger.in_use(server::Resource::kStreams), context.jobs.pending(),
            context.ledger.in_use(server::Resource::kResident), static_cast<int64_t>(context.pinned.leased_bytes())};
  }
  v1::MultiplyRequest Square(bool keep) const {
    v1::MultiplyRequest request;
    request.set_a("sparseMatrices/a");
    request.set_b("sparseMatrices/a");
    request.mutable_options()->set_precision(options_.precision);
    if (keep) request.mutable_keep()->set_id("c");
    return request;
  }

  const BenchOptions options_;
  client::SparseMatrix a_;
  client::SparseMatrix first_;
  int64_t entries_ = -1;
  std::unique_ptr<server::Server> server_;
  std::unique_ptr<client::Client> client_;
  std::vector<Stages> stages_;
};

absl::Status JobsBench::Start() {
  INTRAWARP_ASSIGN_OR_RETURN(const HostCsr<double> a, MatrixByName(options_.matrix, 1));
  a_ = HostCsr<float>{a.rows, a.columns, a.row_offsets, a.column_indices,
                      std::vector<float>(a.values.begin(), a.values.end())};
  server::ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.http = "127.0.0.1:0";
  options.device = options_.device;
  INTRAWARP_ASSIGN_OR_RETURN(server_, server::Server::Start(options));
  INTRAWARP_ASSIGN_OR_RETURN(client_, client::Client::Connect(server_->grpc_address()));
  std::printf("%s (%s), %s: %d rows, %lld entries, %lld products\n", server_->context().device.name().c_str(),
              server_->context().device.model().c_str(), options_.matrix.c_str(), a.rows,
              static_cast<long long>(a.entries()), static_cast<long long>(CountProducts(a, a)));
  return absl::OkStatus();
}

// C x against A (A x), relative to |A| (|A| |x|).
absl::Status JobsBench::CheckFirst(const HostCsr<float>& c) const {
  const auto& a = std::get<HostCsr<float>>(a_);
  const auto times = [](const HostCsr<float>& m, const std::vector<double>& x) {
    std::vector<double> y(m.rows);
    for (int32_t r = 0; r < m.rows; ++r) {
      for (int64_t i = m.row_offsets[r]; i < m.row_offsets[r + size_t{1}]; ++i) {
        y[r] += double{m.values[i]} * x[m.column_indices[i]];
      }
    }
    return y;
  };
  std::vector<double> x(a.columns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1 + static_cast<double>(i % 7) / 8;
  const std::vector<double> expected = times(a, times(a, x)), got = times(c, x);
  const double tolerance = options_.precision == v1::PRECISION_FP32 ? 1e-5 : 0.02;
  for (size_t r = 0; r < expected.size(); ++r) {
    if (!(std::abs(got[r] - expected[r]) <= tolerance * std::abs(expected[r]))) {
      return absl::DataLossError(absl::StrCat("row ", r, " of C x is ", got[r], ", not ", expected[r]));
    }
  }
  return absl::OkStatus();
}

absl::Status JobsBench::Check(const client::SparseMatrix& c) {
  if (entries_ < 0) {
    INTRAWARP_RETURN_IF_ERROR(CheckFirst(std::get<HostCsr<float>>(c)));
    first_ = c;
    entries_ = std::get<HostCsr<float>>(c).entries();
    std::printf("C has %lld entries, %.0f MB\n", static_cast<long long>(entries_),
                8e-6 * static_cast<double>(entries_));
    return absl::OkStatus();
  }
  return c == first_ ? absl::OkStatus() : absl::DataLossError("C differs from the first one");
}

absl::Status JobsBench::Upload() {
  client::SparseMatrixUpload upload;
  upload.id = "a";
  upload.matrix = &a_;
  return client_->UploadSparseMatrix(upload).status();
}

absl::StatusOr<Stages> JobsBench::Once() {
  Stages stages;
  const Clock::time_point begin = Clock::now();
  INTRAWARP_RETURN_IF_ERROR(Upload());
  stages.upload = Since(begin);

  Clock::time_point at = Clock::now();
  INTRAWARP_ASSIGN_OR_RETURN(const v1::MultiplyResult kept, client_->Multiply(Square(/*keep=*/true), nullptr, nullptr));
  stages.multiply_kept = Since(at);
  stages.kept = kept.report().latency();
  double checking = 0;
  const auto check = [&](const client::SparseMatrix& c) {
    at = Clock::now();
    const absl::Status status = Check(c);
    checking += Since(at);
    return status;
  };
  {
    client::SparseMatrix c;
    at = Clock::now();
    INTRAWARP_RETURN_IF_ERROR(client_->DownloadSparseMatrix("sparseMatrices/c", &c).status());
    stages.download = Since(at);
    INTRAWARP_RETURN_IF_ERROR(check(c));
  }
  INTRAWARP_RETURN_IF_ERROR(client_->DeleteSparseMatrix("sparseMatrices/c"));
  {
    client::SparseMatrix c;
    at = Clock::now();
    INTRAWARP_ASSIGN_OR_RETURN(const v1::MultiplyResult sent, client_->Multiply(Square(/*keep=*/false), nullptr, &c));
    stages.multiply_sent = Since(at);
    stages.sent = sent.report().latency();
    INTRAWARP_RETURN_IF_ERROR(check(c));
  }
  INTRAWARP_RETURN_IF_ERROR(client_->DeleteSparseMatrix("sparseMatrices/a"));
  stages.total = Since(begin) - checking;
  return stages;
}

void JobsBench::PrintMemory(int repeat) {
  const DeviceMemory memory = server_->context().device.memory().value_or(DeviceMemory());
  const bool is_cuda = server_->context().device.kind() == DeviceKind::kCuda;
  const Holdings held = Held();
  std::printf("repeat %4d: process %8.1f MB, %8.1f MB allocated", repeat, ResidentMegabytes(), AllocatedMegabytes());
  if (is_cuda) std::printf(", GPU %9.1f MB", 1e-6 * static_cast<double>(memory.total_bytes - memory.free_bytes));
  std::printf(", accounted %lld B, page-locked %lld B lent, %.1f MB kept\n", static_cast<long long>(held.accounted),
              static_cast<long long>(held.leased),
              1e-6 * static_cast<double>(server_->context().pinned.pooled_bytes()));
  std::fflush(stdout);
}

absl::Status JobsBench::Repeat() {
  PrintMemory(0);
  const Clock::time_point begin = Clock::now();
  int next = 1;
  for (int repeat = 1; repeat <= options_.repeats && Since(begin) < 1e3 * options_.seconds; ++repeat) {
    INTRAWARP_ASSIGN_OR_RETURN(Stages stages, Once());
    stages_.push_back(std::move(stages));
    if (repeat != next && repeat != options_.repeats) continue;
    PrintMemory(repeat);
    const int leading = next / static_cast<int>(std::pow(10, std::floor(std::log10(next))));
    next = leading == 2 ? next / 2 * 5 : next * 2;
  }
  PrintMemory(static_cast<int>(stages_.size()));
  return absl::OkStatus();
}

void JobsBench::PrintStages() const {
  struct Row {
    const char* name;
    double (*value)(const Stages&);
  };
  const Row rows[] = {
      {"upload of A", [](const Stages& s) { return s.upload; }},
      {"product kept", [](const Stages& s) { return s.multiply_kept; }},
      {"- queue", [](const Stages& s) { return s.kept.queue_ms(); }},
      {"- prepare (estimate, pattern)", [](const Stages& s) { return s.kept.prepare_ms(); }},
      {"- optimise (values)", [](const Stages& s) { return s.kept.optimise_ms(); }},
      {"download of C", [](const Stages& s) { return s.download; }},
      {"product sent", [](const Stages& s) { return s.multiply_sent; }},
      {"- queue ", [](const Stages& s) { return s.sent.queue_ms(); }},
      {"- prepare ", [](const Stages& s) { return s.sent.prepare_ms(); }},
      {"- optimise ", [](const Stages& s) { return s.sent.optimise_ms(); }},
      {"- download ", [](const Stages& s) { return s.sent.download_ms(); }},
      {"- send ", [](const Stages& s) { return s.sent.send_ms(); }},
      {"whole repeat", [](const Stages& s) { return s.total; }},
  };
  std::printf("\n| ms, of %zu repeats | first | p50 | p90 | max |\n|---|---|---|---|---|\n", stages_.size());
  for (const Row& row : rows) {
    std::vector<double> values;
    for (const Stages& s : stages_) values.push_back(row.value(s));
    const double first = values.front();
    std::sort(values.begin(), values.end());
    const auto at = [&](double part) {
      return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
    };
    std::printf("| %s | %.1f | %.1f | %.1f | %.1f |\n", row.name, first, at(0.5), at(0.9), values.back());
  }
}

absl::Status JobsBench::Eventually(const std::function<bool()>& condition) {
  const Clock::time_point begin = Clock::now();
  while (!condition()) {
    if (Since(begin) > 60e3) return absl::InternalError("something of a call is left");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return absl::OkStatus();
}

// A product whose caller leaves at a step, or when it has a part of the result: ms until nothing of it is left.
absl::StatusOr<double> JobsBench::CancelAt(v1::MultiplyProgress::Step step, double part_of_bytes) {
  // A call that has ended for its client may still be ending in the server.
  INTRAWARP_RETURN_IF_ERROR(Eventually([this] { return Held().streams == 0 && Held().jobs == 0; }));
  const Holdings before = Held();
  const auto channel = grpc::CreateChannel(server_->grpc_address(), grpc::InsecureChannelCredentials());
  const auto stub = v1::SparseMatrixService::NewStub(channel);
  grpc::ClientContext call;
  const auto reader = stub->Multiply(&call, Square(/*keep=*/false));
  v1::MultiplyResponse response;
  int64_t bytes = 0, total = 0;
  bool there = false;
  while (!there && reader->Read(&response)) {
    if (response.has_header()) total = response.header().total_bytes();
    if (response.has_chunk()) bytes += static_cast<int64_t>(response.chunk().data().size());
    there = part_of_bytes > 0 ? total > 0 && static_cast<double>(bytes) >= part_of_bytes * static_cast<double>(total)
                              : response.progress().step() == step;
  }
  const Clock::time_point begin = Clock::now();
  call.TryCancel();
  INTRAWARP_RETURN_IF_ERROR(Eventually([&] { return Held() == before; }));
  const double freed = Since(begin);
  const grpc::Status status = reader->Finish();
  if (status.error_code() == grpc::CANCELLED) return freed;
  return absl::InternalError(absl::StrCat("a cancelled product ended with ", static_cast<int>(status.error_code())));
}

absl::Status JobsBench::Cancel() {
  if (options_.cancels == 0) return absl::OkStatus();
  struct Point {
    const char* name;
    v1::MultiplyProgress::Step step;
    double part_of_bytes;
  };
  const Point points[] = {{"at its estimate", v1::MultiplyProgress::STEP_ESTIMATED, 0},
                          {"at its pattern", v1::MultiplyProgress::STEP_PLANNED, 0},
                          {"at its values", v1::MultiplyProgress::STEP_MULTIPLIED, 0},
                          {"with half of C sent", v1::MultiplyProgress::STEP_UNSPECIFIED, 0.5}};
  INTRAWARP_RETURN_IF_ERROR(Upload());
  std::printf("\n| cancelled, ms until all is freed | p50 | max |\n|---|---|---|\n");
  for (const Point& point : points) {
    std::vector<double> times;
    for (int i = 0; i < options_.cancels; ++i) {
      INTRAWARP_ASSIGN_OR_RETURN(const double ms, CancelAt(point.step, point.part_of_bytes));
      times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    std::printf("| %s | %.1f | %.1f |\n", point.name, times[times.size() / 2], times.back());
  }
  INTRAWARP_RETURN_IF_ERROR(client_->DeleteSparseMatrix("sparseMatrices/a"));
  PrintMemory(static_cast<int>(stages_.size()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  return intrawarp::MainWithOptions(intrawarp::ParseOptions({argv + 1, argv + argc}),
                                    intrawarp::FlagHelp(intrawarp::Syntax()),
                                    [](const auto& options) { return intrawarp::JobsBench(options).Run(); });
}
