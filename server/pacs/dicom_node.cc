// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/dicom_node.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "io/dicom/dicom.h"
#include "io/file/file.h"
#include "server/identity/credentials.h"
#include "server/identity/exposure.h"
#include "server/identity/tls_files.h"
#include "server/ledger/host_memory.h"
#include "server/monitor/log.h"
#include "server/pacs/dicomweb_source.h"
#include "server/pacs/dimse_source.h"

namespace intrawarp::server {
namespace {

// The part of the host's memory in which files are read, as 1 / 8, and how long one waits for others.
constexpr int kReadingShare = 8;
constexpr std::chrono::seconds kReadingPatience{10};

absl::Status ForFlag(const char* flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("--", flag, ": ", status.message()));
}

absl::StatusOr<std::string> ReadFlagFile(const char* flag, const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::string> content = io::ReadSmallFile(path, kMaxCredentialFile);
  if (!content.ok()) return ForFlag(flag, content.status());
  return content;
}

absl::Status CheckExposed(const NodeOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("--dicom_tls_cert and --dicom_tls_key: each needs the other");
  }
  if (!options.tls_ca.empty() && options.tls_cert.empty()) {
    return absl::InvalidArgumentError("--dicom_tls_ca: needs --dicom_tls_cert and --dicom_tls_key");
  }
  if (options.listen.empty() || options.allow_insecure || !options.tls_ca.empty() || IsLoopback(options.listen)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--dicom_listen=", options.listen, ": is not a loopback address, and ",
      options.tls_cert.empty() ? "there is no TLS: give --dicom_tls_cert, --dicom_tls_key and --dicom_tls_ca"
                               : "peers need no certificate: give --dicom_tls_ca",
      "; --dicom_insecure_any_address takes whoever gives a listed AE title from its address"));
}

absl::StatusOr<DicomPeers> ReadPeers(const NodeOptions& options, bool has_identities) {
  // Without a port, the images that listed peers sent before still become volumes; without a list they stay.
  if (options.listen.empty() && options.peers.empty()) return DicomPeers();
  if (options.peers.empty()) return absl::InvalidArgumentError("--dicom_peers: is needed by --dicom_listen");
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, ReadFlagFile("dicom_peers", options.peers));
  absl::StatusOr<DicomPeers> peers = DicomPeers::Parse(text, has_identities);
  if (!peers.ok()) return ForFlag("dicom_peers", peers.status());
  return peers;
}

// Whether the DICOMweb archives could be asked as they are configured; their token files must be there.
absl::Status CheckDicomweb(const std::vector<Remote>& remotes) {
  for (size_t i = 0; i < remotes.size(); ++i) {
    if (remotes[i].kind != RemoteKind::kDicomweb) continue;
    const absl::Status good = dicomweb::Archive::Create(remotes[i].http).status();
    if (!good.ok()) return absl::Status(good.code(), absl::StrCat("archive ", i + 1, ": ", good.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Remote>> ReadRemotes(const NodeOptions& options, const DicomPeers& peers) {
  if (options.remotes.empty()) return std::vector<Remote>();
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, ReadFlagFile("dicom_remotes", options.remotes));
  absl::StatusOr<std::vector<Remote>> remotes = ParseRemotes(text);
  if (remotes.ok() && remotes->empty()) remotes = absl::InvalidArgumentError("names no archive");
  if (!remotes.ok()) return ForFlag("dicom_remotes", remotes.status());
  const absl::Status moves = CheckMoves(*remotes, !options.listen.empty(), peers);
  if (!moves.ok()) return ForFlag("dicom_remotes", moves);
  const absl::Status web = CheckDicomweb(*remotes);
  if (!web.ok()) return ForFlag("dicom_remotes", web);
  const bool needs_tls = std::any_of(remotes->begin(), remotes->end(),
                                     [](const Remote& r) { return r.tls && r.kind != RemoteKind::kDicomweb; });
  if (needs_tls && options.tls_ca.empty()) {
    return absl::InvalidArgumentError(
        "--dicom_remotes: an archive with tls needs --dicom_tls_cert, --dicom_tls_key and --dicom_tls_ca");
  }
  return remotes;
}

// Null without TLS.
absl::StatusOr<std::shared_ptr<const dimse::TlsContext>> ReadTls(const NodeOptions& options) {
  if (options.tls_cert.empty()) return nullptr;
  dimse::TlsTexts texts;
  INTRAWARP_ASSIGN_OR_RETURN(texts.certificate_chain, ReadFlagFile("dicom_tls_cert", options.tls_cert));
  INTRAWARP_ASSIGN_OR_RETURN(texts.private_key, ReadFlagFile("dicom_tls_key", options.tls_key));
  INTRAWARP_ASSIGN_OR_RETURN(texts.authorities, ReadFlagFile("dicom_tls_ca", options.tls_ca));
  if (!options.tls_ca.empty() && texts.authorities.empty()) {
    return absl::InvalidArgumentError("--dicom_tls_ca: is empty");
  }
  const absl::Status good = CheckTlsMaterial(texts.certificate_chain, texts.private_key, texts.authorities).status();
  if (!good.ok()) return absl::Status(good.code(), absl::StrCat("--dicom_", good.message()));
  return dimse::TlsContext::Create(texts);
}

}  // namespace

absl::Status CheckNodeOptions(const NodeOptions& options, bool has_identities) {
  if (!options.is_used()) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(CheckExposed(options));
  INTRAWARP_ASSIGN_OR_RETURN(const DicomPeers peers, ReadPeers(options, has_identities));
  INTRAWARP_RETURN_IF_ERROR(ReadRemotes(options, peers).status());
  INTRAWARP_RETURN_IF_ERROR(ReadTls(options).status());
  std::error_code error;
  if (options.spool.empty() || std::filesystem::is_directory(options.spool, error)) return absl::OkStatus();
  return absl::FailedPreconditionError("--dicom_spool: must be a folder that exists");
}

absl::StatusOr<std::unique_ptr<DicomNode>> DicomNode::Start(const NodeOptions& options, const std::string& state_dir,
                                                            bool has_identities, ServerContext& context,
                                                            AuditTrail& audit) {
  INTRAWARP_RETURN_IF_ERROR(CheckExposed(options));
  INTRAWARP_ASSIGN_OR_RETURN(DicomPeers peers, ReadPeers(options, has_identities));
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<Remote> remotes, ReadRemotes(options, peers));
  std::unique_ptr<DicomNode> node(new DicomNode(options, std::move(peers), context, audit));
  INTRAWARP_ASSIGN_OR_RETURN(node->tls_, ReadTls(options));
  INTRAWARP_RETURN_IF_ERROR(node->OpenSpool(state_dir));
  INTRAWARP_RETURN_IF_ERROR(node->Serve());
  if (!remotes.empty()) INTRAWARP_RETURN_IF_ERROR(node->StartImporter(std::move(remotes)));
  node->hook_ = context.metrics.registry.OnScrape([node = node.get()] { node->SetMetrics(); });
  return node;
}

DicomNode::DicomNode(const NodeOptions& options, DicomPeers peers, ServerContext& context, AuditTrail& audit)
    : options_(options),
      peers_(std::move(peers)),
      context_(context),
      audit_(audit),
      metrics_(context.metrics.registry),
      moves_(static_cast<uint16_t>(context.seams.random())),
      reading_(HostMemoryLimit() / kReadingShare, kReadingPatience) {}

DicomNode::~DicomNode() {
  hook_ = {};
  Stop(std::chrono::steady_clock::now());
  importer_.reset();
  maker_.reset();
  scp_.reset();
  spool_.reset();
  std::error_code error;
  if (!temporary_folder_.empty()) std::filesystem::remove_all(temporary_folder_, error);
}

absl::Status DicomNode::OpenSpool(const std::string& state_dir) {
  SpoolOptions spool;
  spool.folder = options_.spool;
  spool.max_bytes = options_.spool_bytes;
  spool.quiet = options_.quiet;
  spool.now = context_.seams.steady_now;
  if (!options_.peers.empty()) {
    spool.peer = [this](const std::string& ae_title) { return peers_.Find(ae_title); };
  }
  if (spool.folder.empty() && !state_dir.empty()) {
    spool.folder = absl::StrCat(state_dir, "/dicom_spool");
    if (mkdir(spool.folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::UnavailableError("--state_dir: the DICOM spool cannot be made in it");
    }
  } else if (spool.folder.empty()) {
    std::string name = (std::filesystem::temp_directory_path() / "intrawarpd-dicom-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) return absl::UnavailableError("there is no temporary folder");
    spool.folder = temporary_folder_ = name;
  }
  spool.keep = temporary_folder_.empty();
  absl::StatusOr<std::unique_ptr<InstanceSpool>> opened = InstanceSpool::Open(std::move(spool));
  if (!opened.ok()) return ForFlag("dicom_spool", opened.status());
  spool_ = *std::move(opened);
  if (spool_->unknown_instances() > 0) {
    // Their senders think that they are here: a slip in the list must not cost them.
    Log(Severity::kWarning, "dicom_unlisted",
        {{"instances", absl::StrCat(spool_->unknown_instances())},
         {"cause", "their peers are not listed; they stay until these are, or until somebody removes them"}});
  }
  return absl::OkStatus();
}

io::DicomRoomFn DicomNode::reading() {
  return [this](int64_t bytes) { return reading_.Take(bytes); };
}

absl::Status DicomNode::Serve() {
  const auto owner_of = [this](const SeriesKey& key) -> std::optional<std::string> {
    const DicomPeer* const peer = peers_.Find(key.peer);
    return peer == nullptr ? std::nullopt : std::optional<std::string>(peer->owner);
  };
  maker_ = std::make_unique<VolumeMaker>(context_, *spool_, metrics_, audit_, owner_of, reading());
  if (options_.listen.empty()) return absl::OkStatus();
  StorageScp::Options scp;
  scp.listen = options_.listen;
  scp.ae_title = options_.ae_title;
  scp.max_associations = options_.max_associations;
  scp.patience = patience();
  scp.tls = tls_;
  scp.reading = reading();
  INTRAWARP_ASSIGN_OR_RETURN(scp_, StorageScp::Start(std::move(scp), peers_, *spool_, moves_, metrics_, audit_));
  return absl::OkStatus();
}

absl::Status DicomNode::StartImporter(std::vector<Remote> remotes) {
  const auto newest = [this]() -> int64_t { return scp_ == nullptr ? 0 : scp_->newest(); };
  std::vector<Archive> archives;
  for (Remote& remote : remotes) {
    if (remote.kind == RemoteKind::kDicomweb) {
      INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<SeriesSource> source,
                                 DicomwebSource::Create(remote.http, remote.limits, metrics_));
      archives.push_back({std::move(remote), std::move(source)});
      continue;
    }
    DimseSource::Options options{remote, options_.ae_title, patience(), remote.tls ? tls_ : nullptr};
    archives.push_back(
        {std::move(remote), std::make_unique<DimseSource>(std::move(options), moves_, metrics_, newest)});
  }
  importer_ = std::make_unique<Importer>(std::move(archives), *spool_, *maker_, metrics_, audit_, reading());
  return absl::OkStatus();
}

// Imports first: they wait for the port and for the maker of volumes.
void DicomNode::Stop(std::chrono::steady_clock::time_point end) {
  if (std::exchange(stopped_, true)) return;
  if (importer_ != nullptr) importer_->Stop(end);
  if (scp_ != nullptr) scp_->Stop(end);
  if (maker_ == nullptr) return;
  maker_->Stop();
  // Their senders think that they are here.
  const int64_t left = spool_->instances() + spool_->unmade_instances();
  const std::string instances = absl::StrCat(left);
  if (left == 0) return;
  if (temporary_folder_.empty()) return Log(Severity::kInfo, "dicom_kept", {{"instances", instances}});
  Log(Severity::kWarning, "dicom_dropped", {{"instances", instances}});
}

void DicomNode::SetMetrics() const {
  PacsSample sample;
  if (scp_ != nullptr) sample.associations = scp_->associations();
  if (importer_ != nullptr) {
    sample.imports_running = importer_->running();
    sample.imports_waiting = importer_->waiting();
  }
  sample.max_associations = options_.max_associations;
  sample.spool_bytes = spool_->bytes();
  sample.max_spool_bytes = spool_->max_bytes();
  sample.spool_instances = spool_->instances();
  sample.made_instances = spool_->made_instances();
  sample.unmade_instances = spool_->unmade_instances();
  metrics_.Set(sample);
}

}  // namespace intrawarp::server
