// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/site.h"

#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/registration_flags.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/bench/sparse_generators.h"

namespace intrawarp::bench {
namespace {

using Clock = std::chrono::steady_clock;

const Clock::time_point kBegin = Clock::now();

std::vector<std::string> List(const ParsedFlags& flags, const std::string& name, const std::string& otherwise) {
  return absl::StrSplit(flags.String(name, otherwise), ',', absl::SkipEmpty());
}

absl::StatusOr<std::vector<double>> Numbers(const ParsedFlags& flags, const std::string& name,
                                            const std::string& otherwise) {
  std::vector<double> numbers;
  for (const std::string& word : List(flags, name, otherwise)) {
    double number = 0;
    if (word != "max" && (!absl::SimpleAtod(word, &number) || !(number > 0) || number > 1e6)) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", word, " is not a number above 0"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

FlagSpec Text(const std::string& name, const std::string& placeholder, const std::string& help) {
  return {.name = name, .placeholder = placeholder, .help = help};
}
FlagSpec Integer(const std::string& name, const std::string& help, double minimum, double maximum) {
  return {.name = name,
          .type = FlagType::kInteger,
          .placeholder = "N",
          .help = help,
          .minimum = minimum,
          .maximum = maximum};
}
FlagSpec Number(const std::string& name, const std::string& help, double maximum) {
  return {.name = name, .type = FlagType::kNumber, .placeholder = "V", .help = help, .minimum = 0, .maximum = maximum};
}

absl::Status ParseLists(const ParsedFlags& flags, BenchOptions* options) {
  options->server_flags = absl::StrSplit(flags.String("server", ""), ' ', absl::SkipEmpty());
  options->methods = List(flags, "methods", "affine,log-demons");
  options->encodings = List(flags, "encodings", "none,native,int16,float16,float32");
  options->floods = List(flags, "floods", "fem,rmat,uploads,registrations,all");
  INTRAWARP_ASSIGN_OR_RETURN(options->rates, Numbers(flags, "rates", "10"));
  INTRAWARP_ASSIGN_OR_RETURN(options->percents, Numbers(flags, "percents", "50,100,150,300"));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<double> sizes, Numbers(flags, "sizes", "128,256"));
  for (const double size : sizes) options->sizes.push_back(static_cast<int>(size));
  return absl::OkStatus();
}

}  // namespace

CommandSyntax Syntax() {
  FlagSpec scenario = Text("scenario", "S", "what is measured");
  scenario.required = true;
  scenario.choices = {"frames", "capacity", "overload", "overhead", "soak"};
  FlagSpec products = Text("products", "P", "whether products stay on the server or are sent; kept");
  products.choices = {"kept", "sent"};
  return {{scenario,
           Text("device", "D", "as intrawarpd takes it; auto"),
           Text("server", "FLAGS", "more flags of intrawarpd, with spaces between them"),
           Integer("size", "edge of frames and volumes in voxels; 128", 16, 512),
           Text("sizes", "N,N", "edges for the overhead; 128,256"),
           Text("methods", "M,M", "affine,log-demons"),
           Text("encodings", "E,E", "for the overhead; none,native,int16,float16,float32"),
           Text("rates", "HZ,HZ", "frames a second; max: the next one as soon as one is answered; 10"),
           Text("floods", "F,F", "fem,rmat,uploads,registrations,all"),
           Text("fem", "NAME", "matrix of a generator; fem27x3_25"),
           Text("rmat", "NAME", "matrix of a generator; rmat_500k"),
           products,
           Integer("upload_mb", "bytes of an uploaded volume, in MB; 256", 1, 4000),
           Number("seconds", "of each measurement; 20", 1e5),
           Number("warmup", "seconds before each measurement that are not counted; 3", 1e4),
           Integer("max_sessions", "16", 1, 64),
           Text("percents", "P,P", "of the capacity; 50,100,150,300"),
           Number("call_deadline_ms", "of each call in overload; 0 (also the default): ten times a call alone", 1e6),
           Integer("soak_clients", "8", 1, 64),
           Integer("plant_leak", "bytes that the server loses with every id it makes, as the control of a soak; 0", 0,
                   1 << 20),
           Integer("seed", "of everything random; 1", 0, 1e9),
           Text("json", "PATH", "rows are appended to this file as JSON lines")}};
}

absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string>& arguments) {
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(Syntax(), arguments));
  BenchOptions options;
  INTRAWARP_RETURN_IF_ERROR(ParseLists(flags, &options));
  options.scenario = flags.String("scenario");
  options.device = flags.String("device", "auto");
  options.size = static_cast<int>(flags.Integer("size", 128));
  options.fem = flags.String("fem", "fem27x3_25");
  options.rmat = flags.String("rmat", "rmat_500k");
  options.products_sent = flags.String("products", "kept") == "sent";
  options.upload_bytes = flags.Integer("upload_mb", 256) * 1000000;
  options.seconds = flags.Number("seconds", 20);
  options.warmup = flags.Number("warmup", 3);
  options.max_sessions = static_cast<int>(flags.Integer("max_sessions", 16));
  options.call_deadline_ms = flags.Number("call_deadline_ms", 0);
  options.soak_clients = static_cast<int>(flags.Integer("soak_clients", 8));
  options.leak_bytes = flags.Integer("plant_leak", 0);
  options.seed = static_cast<uint32_t>(flags.Integer("seed", 1));
  options.json = flags.String("json");
  return options;
}

double Now() { return std::chrono::duration<double>(Clock::now() - kBegin).count(); }

void SleepUntil(double time) {
  std::this_thread::sleep_until(kBegin +
                                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time)));
}

absl::StatusOr<v1::RegistrationOptions> OptionsOfMethod(const std::string& method) {
  const CommandSyntax syntax{cli::RegistrationFlagSpecs()};
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(syntax, {absl::StrCat("--method=", method)}));
  INTRAWARP_ASSIGN_OR_RETURN(const cli::RegistrationFlags registration, cli::ParseRegistrationFlags(flags));
  return registration.options;
}

std::string ErrorName(const absl::Status& status) {
  const std::string code = absl::StatusCodeToString(status.code());
  const auto payload = status.GetPayload(client::kRpcStatusPayload);
  google::rpc::Status proto;
  if (!payload || !proto.ParseFromString(std::string(*payload))) return code;
  google::rpc::ErrorInfo info;
  for (const auto& detail : proto.details()) detail.UnpackTo(&info);
  return info.reason().empty() ? code : absl::StrCat(code, " ", info.reason());
}

absl::StatusOr<std::unique_ptr<Site>> Site::Open(const BenchOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(Report report, Report::Create(options.json));
  std::vector<std::string> arguments = {"--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=" + options.device};
  for (const std::string& flag : options.server_flags) arguments.push_back(flag);
  INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<ServerProcess> server,
                             ServerProcess::Start(std::move(arguments), options.leak_bytes));
  return std::unique_ptr<Site>(new Site(options, std::move(report), std::move(server)));
}

std::string Site::RestName(int size) { return absl::StrCat("volumes/rest-", size); }

absl::StatusOr<const BreathSequence*> Site::Images(int size) {
  const auto it = images_.find(size);
  if (it != images_.end()) return &it->second;
  INTRAWARP_ASSIGN_OR_RETURN(BreathSequence images, BreathSequence::Create({.size = size, .frames = 12}));
  client::VolumeUpload upload;
  upload.id = absl::StrCat("rest-", size);
  upload.geometry = images.geometry();
  upload.pixel_type = PixelType::kInt16;
  upload.bytes = BytesOf(images.resident());
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, Connect());
  INTRAWARP_RETURN_IF_ERROR(client->UploadVolume(upload).status());
  return &images_.emplace(size, std::move(images)).first->second;
}

absl::StatusOr<std::unique_ptr<client::Client>> Site::Connect() const {
  return client::Client::Connect(server_->grpc_address());
}

absl::Status Site::PutMatrix(const std::string& name) {
  INTRAWARP_ASSIGN_OR_RETURN(const HostCsr<double> a, MatrixByName(name, 1));
  const client::SparseMatrix matrix = HostCsr<float>{a.rows, a.columns, a.row_offsets, a.column_indices,
                                                     std::vector<float>(a.values.begin(), a.values.end())};
  client::SparseMatrixUpload upload;
  upload.id = name;
  upload.matrix = &matrix;
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, Connect());
  return client->UploadSparseMatrix(upload).status();
}

}  // namespace intrawarp::bench
