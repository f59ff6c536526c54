// SPDX-License-Identifier: Apache-2.0
// Streaming of a 256^3 displacement field (201 MB) over loopback, from the real server to the real client.
//
//   stream_bench [--device=cpu|cuda:N] [--benchmark_filter=download/...] ...
//
// The device may also come from the environment variable INTRAWARP_DEVICE; without either, every device is measured.
//
//   floor/memcpy         a plain copy of the field's bytes on one core, between warm buffers
//   floor/grpc           a bare gRPC server that streams 1 MiB slices of one static buffer, to a client that drops them
//   floor/grpc_buffer    the same, the client copying them into one warm buffer
//   DEV/download/...     Download of the field of a stored affine transform by the client library: into one buffer of
//   the caller
//                        that is used again (buffer), into a new vector (vector); and by a client that drops the bytes
//                        (drop)
//   DEV/register         the field of a Register call, to a client that drops the bytes
//   DEV/process          Download (buffer) from intrawarpd as a process of its own
//
// Counters, medians over the iterations: ms and GB_s of the stream, from the request (register: from the end of the
// optimisation) to the last byte; first_ms until the first chunk is at the client; floor_ms of the bare stream to the
// like client in this run, and to_floor; cpu_ms and floor_cpu_ms: processor time of all threads of this process, so of
// both sides of a stream (process: of the client alone; register: of the optimisation too); memcpy_ms and to_memcpy;
// buffers: the peak of leased pinned memory, in fields; rss_fields: how much a first stream raised the peak resident
// memory of the intrawarpd process, in fields, and rss_again_fields: the same for the stream after it.
#include <benchmark/benchmark.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cpp/client.h"
#include "server/rpc/chunk_codec.h"
#include "server/server.h"
#include "tests/client/process.h"
#include "wire/convert.h"

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr int kAxis = 256;
constexpr int64_t kFieldBytes = int64_t{kAxis} * kAxis * kAxis * 3 * sizeof(float);
constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int kIterations = 15;

double Since(Clock::time_point begin) { return Milliseconds(Clock::now() - begin).count(); }

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

Geometry Grid() {
  Geometry grid;
  grid.size = {kAxis, kAxis, kAxis};
  return grid;
}

AffineMap Matrix() {
  AffineMap map = AffineMap::Identity();
  map.m[0][1] = 0.05;
  map.m[1][0] = -0.05;
  map.m[2][2] = 1.02;
  map.m[0][3] = 3;
  return map;
}

// The processor time of all threads of this process.
double CpuMilliseconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

// The times of one stream, in ms.
struct Times {
  double first = 0;
  double total = 0;
  double cpu = 0;
};

// Runs `body`, which fills in what it knows.
template <typename Body>
Times Timed(const Body& body) {
  Times times;
  const double cpu = CpuMilliseconds();
  const Clock::time_point begin = Clock::now();
  body(begin, &times);
  if (times.total == 0) times.total = Since(begin);
  times.cpu = CpuMilliseconds() - cpu;
  return times;
}

// Reads a server stream as bytes: what a client does that keeps nothing.
template <typename Request, typename OnMessage>
void ReadRaw(const std::shared_ptr<grpc::Channel>& channel, const char* method, const Request& request,
             const OnMessage& on_message) {
  grpc::ClientContext context;
  const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::SERVER_STREAMING, channel);
  const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader(
      grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(channel.get(), rpc, &context, request));
  for (grpc::ByteBuffer message; reader->Read(&message);) on_message(message);
  const grpc::Status status = reader->Finish();
  if (!status.ok()) Check(absl::UnknownError(status.error_message()));
}

// With the frames and windows of the client library (client.cc).
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// Answers every call with the slices of one static buffer.
class BareServer {
 public:
  BareServer() : bytes_(kFieldBytes, 'x') {
    service_.bytes = &bytes_;
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    channel = OpenChannel(absl::StrCat("127.0.0.1:", port));
  }

  std::shared_ptr<grpc::Channel> channel;

 private:
  class Stream final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Stream(const std::string& bytes) : bytes_(bytes) { StartRead(&request_); }
    void OnReadDone(bool ok) override {
      if (ok) Next();
    }
    void OnWriteDone(bool ok) override {
      if (ok) Next();
    }
    void OnDone() override { delete this; }

   private:
    void Next() {
      if (sent_ == static_cast<int64_t>(bytes_.size())) return Finish(grpc::Status::OK);
      const grpc::Slice slice(bytes_.data() + sent_, kChunkBytes, grpc::Slice::STATIC_SLICE);
      message_ = grpc::ByteBuffer(&slice, 1);
      sent_ += kChunkBytes;
      StartWrite(&message_);
    }
    const std::string& bytes_;
    grpc::ByteBuffer request_, message_;
    int64_t sent_ = 0;
  };
  struct Service final : grpc::CallbackGenericService {
    const std::string* bytes = nullptr;
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
      return new Stream(*bytes);
    }
  };

  const std::string bytes_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
};
static_assert(kFieldBytes % kChunkBytes == 0);

Times BareStream(BareServer& server, char* to) {
  return Timed([&](Clock::time_point begin, Times* times) {
    int64_t received = 0;
    ReadRaw(server.channel, "/bare/Stream", v1::DownloadRequest(), [&](const grpc::ByteBuffer& message) {
      if (received == 0) times->first = Since(begin);
      std::vector<grpc::Slice> slices;
      if (to != nullptr && message.Dump(&slices).ok()) {
        int64_t at = received;
        for (const grpc::Slice& slice : slices) {
          std::memcpy(to + at, slice.begin(), slice.size());
          at += static_cast<int64_t>(slice.size());
        }
      }
      received += static_cast<int64_t>(message.Length());
    });
  });
}

std::vector<float>& WarmBuffer() {
  static auto* const buffer = new std::vector<float>(kFieldBytes / sizeof(float), 1.0f);
  return *buffer;
}

Times TimeMemcpy() {
  static auto* const from = new std::vector<float>(kFieldBytes / sizeof(float), 2.0f);
  return Timed([](Clock::time_point, Times*) {
    std::memcpy(WarmBuffer().data(), from->data(), kFieldBytes);
    benchmark::ClobberMemory();
  });
}

// The bounds that hardware and gRPC set, measured beside each stream, so that both see the same machine.
struct Floors {
  std::vector<Times> grpc, memcpy;

  void Measure(bool into_buffer) {
    static auto* const server = new BareServer;
    char* const to = into_buffer ? reinterpret_cast<char*>(WarmBuffer().data()) : nullptr;
    if (grpc.empty()) BareStream(*server, to);  // connects
    grpc.push_back(BareStream(*server, to));
    memcpy.push_back(TimeMemcpy());
  }
};

double Median(const std::vector<Times>& times, double Times::*member) {
  std::vector<double> values;
  for (const Times& t : times) values.push_back(t.*member);
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Report(benchmark::State& state, const std::vector<Times>& times, const Floors& floors) {
  const double ms = Median(times, &Times::total);
  state.counters["ms"] = ms;
  state.counters["cpu_ms"] = Median(times, &Times::cpu);
  state.counters["GB_s"] = kFieldBytes / ms * 1e-6;
  if (times[0].first > 0) state.counters["first_ms"] = Median(times, &Times::first);
  if (floors.grpc.empty()) return;
  const double floor_ms = Median(floors.grpc, &Times::total), memcpy_ms = Median(floors.memcpy, &Times::total);
  state.counters["floor_ms"] = floor_ms;
  state.counters["floor_cpu_ms"] = Median(floors.grpc, &Times::cpu);
  state.counters["to_floor"] = ms / floor_ms;
  state.counters["memcpy_ms"] = memcpy_ms;
  state.counters["to_memcpy"] = ms / memcpy_ms;
}

// One server in this process, with a transform and two volumes.
struct Site {
  std::unique_ptr<server::Server> server;
  std::unique_ptr<client::Client> client;
  std::shared_ptr<grpc::Channel> channel;

  int64_t leased_bytes() const { return static_cast<int64_t>(server->context().pinned.leased_bytes()); }
};

Site& OpenSite(const std::string& device) {
  static auto* const sites = new std::map<std::string, Site>();
  auto [it, is_new] = sites->try_emplace(device);
  Site& site = it->second;
  if (!is_new) return site;
  server::ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.http = "127.0.0.1:0";
  options.device = device;
  auto server = server::Server::Start(options);
  Check(server.status());
  site.server = *std::move(server);
  site.client = *client::Client::Connect(site.server->grpc_address());
  site.channel = OpenChannel(site.server->grpc_address());
  Check(site.client->UploadAffine("bench", Matrix()).status());
  return site;
}

// A stream whose chunks are dropped.
template <typename Response>
struct DroppedStream {
  Clock::time_point first{}, last{};
  int64_t bytes = 0;
  int64_t peak_leased_bytes = 0;
  Response last_message;

  void Take(const grpc::ByteBuffer& message, const Site& site) {
    const auto chunk = server::DecodeChunk(message, Response::kChunkFieldNumber);
    if (!chunk) return Check(server::ParseInto(message, &last_message));
    last = Clock::now();
    if (bytes == 0) first = last;
    bytes += chunk->size();
    peak_leased_bytes = std::max(peak_leased_bytes, site.leased_bytes());
  }
};

v1::DownloadRequest FieldRequest() {
  v1::DownloadRequest request;
  request.set_name("transforms/bench");
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  *request.mutable_geometry() = GeometryToProto(Grid());
  return request;
}

void BenchDrop(benchmark::State& state, const std::string& device) {
  Site& site = OpenSite(device);
  std::vector<Times> times;
  Floors floors;
  int64_t peak = 0;
  for (auto _ : state) {
    floors.Measure(/*into_buffer=*/false);
    DroppedStream<v1::DownloadResponse> stream;
    times.push_back(Timed([&](Clock::time_point begin, Times* times) {
      ReadRaw(site.channel, "/intrawarp.v1.BulkService/Download", FieldRequest(),
              [&](const grpc::ByteBuffer& message) { stream.Take(message, site); });
      times->first = Milliseconds(stream.first - begin).count();
    }));
    peak = std::max(peak, stream.peak_leased_bytes);
    if (stream.bytes != kFieldBytes) Check(absl::DataLossError("the field is not whole"));
    state.SetIterationTime(times.back().total / 1000);
  }
  Report(state, times, floors);
  state.counters["buffers"] = static_cast<double>(peak) / kFieldBytes;
}

Times DownloadInto(client::Client& client, const client::GridSink& sink) {
  const v1::DownloadRequest request = FieldRequest();
  return Timed([&](Clock::time_point, Times*) { Check(client.DownloadField(request, sink).status()); });
}

client::GridSink WarmSink() {
  return [](const Geometry&, int64_t) -> absl::StatusOr<absl::Span<float>> { return absl::MakeSpan(WarmBuffer()); };
}

void BenchDownload(benchmark::State& state, const std::string& device, bool into_vector) {
  Site& site = OpenSite(device);
  std::vector<Times> times;
  Floors floors;
  for (auto _ : state) {
    floors.Measure(/*into_buffer=*/true);
    client::GridData data;
    times.push_back(DownloadInto(*site.client, into_vector ? client::SinkInto(&data) : WarmSink()));
    state.SetIterationTime(times.back().total / 1000);
  }
  Report(state, times, floors);
}

// A sum of waves, seen through `map`.
std::vector<float> Waves(const AffineMap& map) {
  std::vector<float> voxels;
  voxels.reserve(Grid().voxels());
  for (int z = 0; z < kAxis; ++z) {
    for (int y = 0; y < kAxis; ++y) {
      for (int x = 0; x < kAxis; ++x) {
        const Vec3d p = map({double(x), double(y), double(z)});
        voxels.push_back(static_cast<float>(std::sin(p.x / 17) + std::sin(p.y / 23) + std::sin(p.z / 19)));
      }
    }
  }
  return voxels;
}

void PutVolume(client::Client& client, const std::string& id, const AffineMap& map) {
  const std::vector<float> voxels = Waves(map);
  client::VolumeUpload upload;
  upload.id = id;
  upload.geometry = Grid();
  upload.bytes = absl::string_view(reinterpret_cast<const char*>(voxels.data()), voxels.size() * sizeof(float));
  Check(client.UploadVolume(upload).status());
}

// Few iterations on coarse levels: the field is what is measured.
v1::RegisterRequest MakeRegisterRequest() {
  v1::RegisterRequest request;
  request.set_fixed("volumes/fixed");
  request.set_moving("volumes/moving");
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  v1::AffineStage* stage = request.mutable_options()->add_stages()->mutable_affine();
  stage->set_metric(v1::METRIC_SSD);
  stage->set_iterations(1);
  return request;
}

// From the request to the end of the optimisation, by the server's own account.
double OptimisedAfter(const v1::LatencyBreakdown& latency) {
  return latency.receive_ms() + latency.admit_ms() + latency.queue_ms() + latency.upload_ms() + latency.prepare_ms() +
         latency.optimise_ms();
}

void BenchRegister(benchmark::State& state, const std::string& device) {
  Site& site = OpenSite(device);
  PutVolume(*site.client, "fixed", AffineMap::Identity());
  PutVolume(*site.client, "moving", Matrix());
  std::vector<Times> times;
  Floors floors;
  int64_t peak = 0;
  for (auto _ : state) {
    floors.Measure(/*into_buffer=*/false);
    DroppedStream<v1::RegisterResponse> stream;
    times.push_back(Timed([&](Clock::time_point begin, Times* times) {
      ReadRaw(site.channel, "/intrawarp.v1.RegistrationService/Register", MakeRegisterRequest(),
              [&](const grpc::ByteBuffer& message) { stream.Take(message, site); });
      const double optimised = OptimisedAfter(stream.last_message.result().report().latency());
      times->first = Milliseconds(stream.first - begin).count() - optimised;
      times->total = Milliseconds(stream.last - begin).count() - optimised;
    }));
    peak = std::max(peak, stream.peak_leased_bytes);
    if (stream.bytes != kFieldBytes) Check(absl::DataLossError("the field is not whole"));
    state.SetIterationTime(times.back().total / 1000);
  }
  for (const char* name : {"volumes/fixed", "volumes/moving"}) Check(site.client->DeleteVolume(name));
  Report(state, times, floors);
  state.counters["buffers"] = static_cast<double>(peak) / kFieldBytes;
}

// "VmRSS", "VmHWM": bytes.
double StatusBytes(pid_t pid, const std::string& name) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; status >> word;) {
    double kib = 0;
    if (word == name + ":" && status >> kib) return kib * 1024;
  }
  return 0;
}

// The peak of resident memory during a stream, over what was resident before it, in fields.
double ResidentGrowth(pid_t pid, const std::function<void()>& stream) {
  std::ofstream(absl::StrCat("/proc/", pid, "/clear_refs")) << "5";  // the peak starts anew
  const double before = StatusBytes(pid, "VmRSS");
  stream();
  return (StatusBytes(pid, "VmHWM") - before) / kFieldBytes;
}

void BenchProcess(benchmark::State& state, const std::string& device) {
  client::Process process({INTRAWARPD_PATH, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=" + device});
  const std::string ready = process.WaitForLine("ready grpc=");
  const size_t begin = ready.find('=') + 1;
  const auto client = client::Client::Connect(ready.substr(begin, ready.find(' ', begin) - begin));
  Check(client.status());
  Check((*client)->UploadAffine("bench", Matrix()).status());
  const auto stream = [&] { return DownloadInto(**client, WarmSink()); };
  const double first = ResidentGrowth(process.pid(), stream), again = ResidentGrowth(process.pid(), stream);
  std::vector<Times> times;
  Floors floors;
  for (auto _ : state) {
    floors.Measure(/*into_buffer=*/true);
    times.push_back(stream());
    state.SetIterationTime(times.back().total / 1000);
  }
  Report(state, times, floors);
  state.counters["rss_fields"] = first;
  state.counters["rss_again_fields"] = again;
}

void BenchMemcpy(benchmark::State& state) {
  std::vector<Times> times;
  for (auto _ : state) {
    times.push_back(TimeMemcpy());
    state.SetIterationTime(times.back().total / 1000);
  }
  Report(state, times, {});
}

void BenchFloor(benchmark::State& state, bool into_buffer) {
  BareServer server;
  char* const to = into_buffer ? reinterpret_cast<char*>(WarmBuffer().data()) : nullptr;
  BareStream(server, to);
  std::vector<Times> times;
  for (auto _ : state) {
    times.push_back(BareStream(server, to));
    state.SetIterationTime(times.back().total / 1000);
  }
  Report(state, times, {});
}

template <typename... Arguments>
void Add(const std::string& name, Arguments... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), arguments...)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(kIterations);
}

void AddDevice(const std::string& device) {
  Add(device + "/download/drop", BenchDrop, device);
  Add(device + "/download/buffer", BenchDownload, device, false);
  Add(device + "/download/vector", BenchDownload, device, true);
  Add(device + "/register", BenchRegister, device);
  Add(device + "/process", BenchProcess, device);
}

// The devices of --device, which is taken out of the arguments, or of INTRAWARP_DEVICE, or all.
std::vector<std::string> ChooseDevices(int* argc, char** argv) {
  const char* chosen = std::getenv("INTRAWARP_DEVICE");
  constexpr absl::string_view kFlag = "--device=";
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    if (absl::StartsWith(argv[i], kFlag)) {
      chosen = argv[i] + kFlag.size();
    } else {
      argv[kept++] = argv[i];
    }
  }
  *argc = kept;
  if (chosen != nullptr) return {chosen};
  std::vector<std::string> names;
  for (const auto& device : AllDevices()) names.push_back(device->name());
  return names;
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  const std::vector<std::string> devices = intrawarp::ChooseDevices(&argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  intrawarp::Add("floor/memcpy", intrawarp::BenchMemcpy);
  intrawarp::Add("floor/grpc", intrawarp::BenchFloor, false);
  intrawarp::Add("floor/grpc_buffer", intrawarp::BenchFloor, true);
  for (const std::string& device : devices) intrawarp::AddDevice(device);
  benchmark::RunSpecifiedBenchmarks();
  std::_Exit(0);
}
