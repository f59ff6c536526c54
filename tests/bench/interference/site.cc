// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/site.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
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

}  // namespace

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
