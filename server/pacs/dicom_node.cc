// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/dicom_node.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "io/dicom/dicom.h"
#include "server/identity/exposure.h"
#include "server/identity/tls_files.h"
#include "server/identity/watched_file.h"
#include "server/monitor/log.h"

namespace intrawarp::server {
namespace {

absl::Status ForFlag(const char* flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("--", flag, ": ", status.message()));
}

absl::StatusOr<std::string> ReadFlagFile(const char* flag, const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::optional<std::string>> content = WatchedFile(path).Changed();
  if (!content.ok()) return ForFlag(flag, content.status());
  return content->value_or("");
}

absl::Status CheckExposed(const NodeOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("--dicom_tls_cert and --dicom_tls_key: each needs the other");
  }
  if (!options.tls_ca.empty() && options.tls_cert.empty()) {
    return absl::InvalidArgumentError("--dicom_tls_ca: needs --dicom_tls_cert and --dicom_tls_key");
  }
  if (options.allow_insecure || !options.tls_ca.empty() || IsLoopback(options.listen)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--dicom_listen=", options.listen, ": is no loopback address, and ",
      options.tls_cert.empty() ? "there is no TLS: give --dicom_tls_cert, --dicom_tls_key and --dicom_tls_ca"
                               : "peers need no certificate: give --dicom_tls_ca",
      "; --dicom_insecure_any_address takes whoever gives a listed AE title from its address"));
}

absl::StatusOr<DicomPeers> ReadPeers(const NodeOptions& options, bool has_identities) {
  if (options.peers.empty()) return absl::InvalidArgumentError("--dicom_peers: is needed by --dicom_listen");
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, ReadFlagFile("dicom_peers", options.peers));
  absl::StatusOr<DicomPeers> peers = DicomPeers::Parse(text, has_identities);
  if (!peers.ok()) return ForFlag("dicom_peers", peers.status());
  return peers;
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
  if (options.listen.empty()) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(CheckExposed(options));
  INTRAWARP_RETURN_IF_ERROR(ReadPeers(options, has_identities).status());
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
  std::unique_ptr<DicomNode> node(new DicomNode(options, std::move(peers), context, audit));
  INTRAWARP_ASSIGN_OR_RETURN(node->tls_, ReadTls(options));
  INTRAWARP_RETURN_IF_ERROR(node->OpenSpool(state_dir));
  INTRAWARP_RETURN_IF_ERROR(node->Serve());
  return node;
}

DicomNode::DicomNode(const NodeOptions& options, DicomPeers peers, ServerContext& context, AuditTrail& audit)
    : options_(options), peers_(std::move(peers)), context_(context), audit_(audit) {}

DicomNode::~DicomNode() {
  if (scp_ != nullptr) scp_->Stop(std::chrono::steady_clock::now());
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
  absl::StatusOr<std::unique_ptr<InstanceSpool>> opened = InstanceSpool::Open(std::move(spool));
  if (!opened.ok()) return ForFlag("dicom_spool", opened.status());
  spool_ = *std::move(opened);
  return absl::OkStatus();
}

absl::Status DicomNode::Serve() {
  maker_ = std::make_unique<VolumeMaker>(context_, *spool_, metrics_, audit_,
                                         [this](const SeriesKey& key) { return peers_.Find(key.peer)->owner; });
  StorageScp::Options scp;
  scp.listen = options_.listen;
  scp.ae_title = options_.ae_title;
  scp.max_associations = options_.max_associations;
  scp.patience = {options_.timeout, options_.idle_timeout};
  scp.tls = tls_;
  INTRAWARP_ASSIGN_OR_RETURN(scp_, StorageScp::Start(std::move(scp), peers_, *spool_, metrics_, audit_));
  return absl::OkStatus();
}

void DicomNode::Stop(std::chrono::steady_clock::time_point end) {
  if (scp_ != nullptr) scp_->Stop(end);
  if (maker_ == nullptr) return;
  maker_->Stop();
  // Their senders think that they are here.
  const int64_t dropped = spool_->instances();
  if (dropped > 0) Log(Severity::kWarning, "dicom_dropped", {{"instances", absl::StrCat(dropped)}});
}

std::string DicomNode::Scrape() const {
  DicomSample sample;
  sample.associations = scp_->associations();
  sample.max_associations = options_.max_associations;
  sample.spool_bytes = spool_->bytes();
  sample.max_spool_bytes = spool_->max_bytes();
  sample.spool_instances = spool_->instances();
  return metrics_.Scrape(sample);
}

}  // namespace intrawarp::server
