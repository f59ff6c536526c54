// SPDX-License-Identifier: Apache-2.0
#include "client/cli/dicom_archive.h"

#include <arpa/inet.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/host_port.h"
#include "engine/base/status_macros.h"
#include "io/dicom/dicom.h"
#include "io/dicom/search.h"
#include "io/file/atomic_folder.h"
#include "io/file/file.h"
#include "server/dimse/association.h"

namespace intrawarp::cli {
namespace {

constexpr size_t kMaxContexts = 128;
constexpr size_t kMaxFileBytes = size_t{4} << 30;
constexpr size_t kMaxPemBytes = 1 << 20;
constexpr int64_t kMaxInstances = 100000;
constexpr uint16_t kClassNotSupported = 0x0122;
constexpr std::chrono::seconds kConnectPatience{15};

// SOP class and transfer syntax.
using Syntax = std::pair<std::string, std::string>;

Syntax SyntaxOf(const DicomFile& file) { return {file.meta.sop_class, file.meta.transfer_syntax}; }

absl::Status About(const std::string& subject, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(subject, ": ", status.message()));
}

// The files of one association, from `begin` on: no more kinds than there are contexts.
std::vector<DicomFile> NextAssociation(const std::vector<DicomFile>& files, size_t begin,
                                       std::map<Syntax, uint8_t>& contexts) {
  std::vector<DicomFile> taken;
  for (size_t i = begin; i < files.size(); ++i) {
    const Syntax syntax = SyntaxOf(files[i]);
    if (!contexts.contains(syntax)) {
      if (contexts.size() == kMaxContexts) break;
      contexts[syntax] = static_cast<uint8_t>(2 * contexts.size() + 1);
    }
    taken.push_back(files[i]);
  }
  return taken;
}

absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::string> text = io::ReadSmallFile(path, kMaxPemBytes);
  return text.ok() ? text : About(flag, text.status());
}

absl::StatusOr<std::shared_ptr<dimse::Connection>> Connect(const StorePeer& peer) {
  const auto end = dimse::Clock::now() + kConnectPatience;
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<dimse::Connection> connection,
                             dimse::Connection::Connect(peer.host, peer.port, end));
  if (peer.tls_ca.empty()) return connection;
  dimse::TlsTexts texts;
  INTRAWARP_ASSIGN_OR_RETURN(texts.authorities, ReadPem("--tls_ca", peer.tls_ca));
  INTRAWARP_ASSIGN_OR_RETURN(texts.certificate_chain, ReadPem("--tls_cert", peer.tls_cert));
  INTRAWARP_ASSIGN_OR_RETURN(texts.private_key, ReadPem("--tls_key", peer.tls_key));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const dimse::TlsContext> tls, dimse::TlsContext::Create(texts));
  INTRAWARP_RETURN_IF_ERROR(connection->ConnectTls(*tls, end));
  return connection;
}

absl::StatusOr<std::unique_ptr<dimse::Association>> Associate(const StorePeer& peer,
                                                              const std::map<Syntax, uint8_t>& contexts) {
  dimse::AssociateRequest request;
  request.called_ae = peer.called_ae;
  request.calling_ae = peer.calling_ae;
  request.max_pdu_bytes = dimse::kMaxPduBytes;
  for (const auto& [syntax, id] : contexts) request.contexts.push_back({id, syntax.first, {syntax.second}});
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<dimse::Connection> connection, Connect(peer));
  return dimse::Association::Request(std::move(connection), dimse::Patience(), request);
}

// The status of the answer.
absl::StatusOr<uint16_t> StoreOne(dimse::Association& association, uint8_t context, const DicomFile& file,
                                  uint16_t message_id) {
  const absl::StatusOr<std::string> bytes = io::ReadSmallFile(file.path, kMaxFileBytes);
  if (!bytes.ok()) return About(file.path, bytes.status());
  // The file may have changed since it was found.
  const absl::StatusOr<io::FileMeta> meta = io::ParseFileMeta(*bytes);
  const bool is_same =
      meta.ok() && meta->sop_instance == file.meta.sop_instance && meta->transfer_syntax == file.meta.transfer_syntax;
  if (!is_same) return About(file.path, absl::DataLossError("file: has changed while it was sent"));
  dimse::Command command;
  command.field = dimse::kStoreRequest;
  command.message_id = message_id;
  command.has_data = true;
  command.elements.SetUid(dimse::kAffectedSopClass, file.meta.sop_class);
  command.elements.SetUid(dimse::kAffectedSopInstance, file.meta.sop_instance);
  command.elements.Set16(dimse::kPriority, 0);
  INTRAWARP_RETURN_IF_ERROR(association.Send(context, command, absl::string_view(*bytes).substr(meta->size)));
  INTRAWARP_ASSIGN_OR_RETURN(const dimse::ReceivedCommand answer, association.ReceiveCommand());
  const bool is_answer = answer.command.field == (dimse::kStoreRequest | dimse::kResponse) &&
                         answer.command.message_id == message_id && !answer.command.has_data;
  if (!is_answer) return absl::UnavailableError("the archive answers something else than was asked");
  return answer.command.status();
}

void Count(uint16_t status, dicomweb::StoredInstances& stored) {
  const bool is_warning = status == 0x0001 || status == 0x0107 || status == 0x0116 || (status >> 12) == 0xb;
  if (status != dimse::kSuccess && !is_warning) {
    ++stored.failed[status];
    return;
  }
  ++stored.stored;
  stored.with_warning += is_warning ? 1 : 0;
}

absl::Status SendAll(dimse::Association& association, const std::map<Syntax, uint8_t>& contexts,
                     const std::vector<DicomFile>& files, dicomweb::StoredInstances& stored) {
  uint16_t message_id = 0;
  for (const DicomFile& file : files) {
    const uint8_t context = contexts.at(SyntaxOf(file));
    if (!association.contexts().contains(context)) {
      Count(kClassNotSupported, stored);
      continue;
    }
    INTRAWARP_ASSIGN_OR_RETURN(const uint16_t status, StoreOne(association, context, file, ++message_id));
    Count(status, stored);
  }
  return absl::OkStatus();
}

// Instances as files of a folder, numbered as they come.
class FolderSink final : public dicomweb::InstanceSink {
 public:
  explicit FolderSink(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Begin() override {
    const std::string path = absl::StrFormat("%s/%06d.dcm", folder_, ++count_);
    INTRAWARP_ASSIGN_OR_RETURN(io::AtomicFile file, io::AtomicFile::Create(path));
    file_.emplace(std::move(file));
    return absl::OkStatus();
  }
  absl::Status Append(absl::string_view bytes) override { return file_->Write(bytes.data(), bytes.size()); }
  absl::Status End() override {
    const absl::Status committed = file_->Commit();
    file_.reset();
    return committed.ok() ? Check() : committed;
  }
  // The files by their SOP instance UIDs.
  const std::map<std::string, std::string>& instances() const { return instances_; }

 private:
  // A body may end as it should and its file may not. An equal file of the same instance goes.
  absl::Status Check() {
    const std::string path = absl::StrFormat("%s/%06d.dcm", folder_, count_);
    const absl::StatusOr<io::FileMeta> meta = io::ReadFileMeta(path);
    if (!meta.ok()) return absl::DataLossError("an instance of the archive is no DICOM file");
    if (!dicomweb::IsUid(meta->sop_instance)) return absl::DataLossError("an instance of the archive has no UID");
    const absl::Status whole = io::CheckWholeFile(path);
    if (absl::IsDataLoss(whole)) {
      return absl::DataLossError(absl::StrCat("an instance of the archive is not whole: ", whole.message()));
    }
    INTRAWARP_RETURN_IF_ERROR(whole);
    const auto [there, is_new] = instances_.emplace(meta->sop_instance, path);
    if (is_new) return absl::OkStatus();
    INTRAWARP_ASSIGN_OR_RETURN(const std::string first, io::ReadSmallFile(there->second, kMaxFileBytes));
    INTRAWARP_ASSIGN_OR_RETURN(const std::string second, io::ReadSmallFile(path, kMaxFileBytes));
    if (first != second) return absl::DataLossError("an instance came twice, with different content");
    std::error_code error;
    std::filesystem::remove(path, error);
    return absl::OkStatus();
  }

  const std::string folder_;
  int count_ = 0;
  std::optional<io::AtomicFile> file_;
  std::map<std::string, std::string> instances_;
};

// Whether the instances that came are all of the series: as many as the archive announces, or those that it lists, or,
// where it does neither, each once.
absl::Status CheckComplete(dicomweb::Archive& archive, const dicomweb::FoundSeries& series, int64_t parts,
                           const FolderSink& sink) {
  const auto came = static_cast<int64_t>(sink.instances().size());
  const int64_t expected = series.instances < 0 ? parts : series.instances;
  if (came < expected) return absl::DataLossError("the archive sent instances twice in the place of others");
  if (series.instances >= 0) return absl::OkStatus();
  const absl::StatusOr<std::vector<std::string>> listed = archive.ListInstances(series, kMaxInstances);
  if (!listed.ok()) return absl::OkStatus();  // not every archive has this search
  const auto missing = std::count_if(listed->begin(), listed->end(),
                                     [&](const std::string& uid) { return !sink.instances().contains(uid); });
  if (missing == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(missing, " of the ", listed->size(), " instances that the archive lists did ", "not come"));
}

absl::StatusOr<std::vector<std::string>> PathsOf(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return io::dicom::FilesBelow(path, io::DicomLimits());
  return std::vector<std::string>{path};
}

}  // namespace

absl::StatusOr<DicomFiles> FindDicomFiles(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathsOf(path));
  DicomFiles found;
  for (const std::string& file : paths) {
    absl::StatusOr<io::FileMeta> meta = io::ReadFileMeta(file);
    const bool is_other = absl::IsNotFound(meta.status()) || (meta.ok() && meta->is_directory());
    if (is_other) {
      ++found.others;
      continue;
    }
    if (!meta.ok()) return About(file, meta.status());
    found.files.push_back({file, *std::move(meta)});
  }
  if (found.files.empty()) return About(path, absl::NotFoundError("file: no DICOM file"));
  return found;
}

absl::StatusOr<StorePeer> ParseStorePeer(const std::string& text) {
  StorePeer peer;
  const size_t at = text.find('@');
  peer.called_ae = text.substr(0, std::min(at, text.size()));
  const absl::StatusOr<HostPort> to = ParseHostPort(at == std::string::npos ? "" : text.substr(at + 1));
  if (!to.ok() || to->port == 0 || !dimse::IsAeTitle(peer.called_ae)) {
    return absl::InvalidArgumentError(
        "must be https://HOST/PATH, or AE_TITLE@HOST:PORT with an IPv6 address in brackets");
  }
  peer.host = to->host;
  peer.port = to->port;
  in_addr address;
  if (to->is_ipv6 || inet_pton(AF_INET, peer.host.c_str(), &address) == 1) return peer;
  return absl::InvalidArgumentError("HOST must be a numeric address, an IPv6 one in brackets");
}

bool IsLoopback(const std::string& host) { return host == "::1" || absl::StartsWith(host, "127."); }

absl::Status SendByStow(const dicomweb::HttpOptions& http, const std::vector<DicomFile>& files,
                        dicomweb::StoredInstances& stored) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<dicomweb::Archive> archive, dicomweb::Archive::Create(http));
  std::vector<std::string> paths;
  for (const DicomFile& file : files) paths.push_back(file.path);
  return archive->Store(paths, {}, stored);
}

absl::StatusOr<int64_t> FetchSeries(const dicomweb::HttpOptions& http, const std::string& study,
                                    const std::string& series, const std::string& folder) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<dicomweb::Archive> archive, dicomweb::Archive::Create(http));
  INTRAWARP_ASSIGN_OR_RETURN(io::AtomicFolder target, io::AtomicFolder::Create(folder));
  INTRAWARP_ASSIGN_OR_RETURN(
      const dicomweb::SeriesFound found,
      archive->FindSeries({.keys = {{"StudyInstanceUID", study}, {"SeriesInstanceUID", series}}}));
  const auto match = std::find_if(found.series.begin(), found.series.end(), [&](const dicomweb::FoundSeries& other) {
    return other.study_uid == study && other.series_uid == series;
  });
  if (match == found.series.end()) return absl::NotFoundError("the archive has no such series");
  FolderSink sink(target.path());
  INTRAWARP_ASSIGN_OR_RETURN(const dicomweb::Retrieved retrieved, archive->Retrieve(*match, {}, sink));
  INTRAWARP_RETURN_IF_ERROR(CheckComplete(*archive, *match, retrieved.instances, sink));
  INTRAWARP_RETURN_IF_ERROR(target.Commit());
  return static_cast<int64_t>(sink.instances().size());
}

absl::Status SendByStore(const StorePeer& peer, const std::vector<DicomFile>& files,
                         dicomweb::StoredInstances& stored) {
  for (size_t next = 0; next < files.size();) {
    std::map<Syntax, uint8_t> contexts;
    const std::vector<DicomFile> taken = NextAssociation(files, next, contexts);
    next += taken.size();
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<dimse::Association> association, Associate(peer, contexts));
    INTRAWARP_RETURN_IF_ERROR(SendAll(*association, contexts, taken, stored));
    association->Release();
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::cli
