// SPDX-License-Identifier: Apache-2.0
// DicomNode: the DICOM side of a server: its peers, the port on which they send images, the archives that series are
// imported from, the spool, and the thread that makes volumes of what came.
//
// Thread safety: safe for concurrent use, except that Stop and destruction are the owner's.
#ifndef INTRAWARP_SERVER_PACS_DICOM_NODE_H_
#define INTRAWARP_SERVER_PACS_DICOM_NODE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/dicom/dicom.h"
#include "server/context/server_context.h"
#include "server/pacs/importer.h"
#include "server/pacs/instance_spool.h"
#include "server/pacs/node_options.h"
#include "server/pacs/pacs_metrics.h"
#include "server/pacs/peers.h"
#include "server/pacs/reading_memory.h"
#include "server/pacs/remotes.h"
#include "server/pacs/running_moves.h"
#include "server/pacs/storage_scp.h"
#include "server/pacs/volume_maker.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {

class DicomNode {
 public:
  // Serves when it returns. `state_dir`: where the spool lies without a folder of its own; empty: in a temporary one.
  // The references outlive it. INVALID_ARGUMENT and FAILED_PRECONDITION name the flag; UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<DicomNode>> Start(const NodeOptions& options, const std::string& state_dir,
                                                          bool has_identities, ServerContext& context,
                                                          AuditTrail& audit);
  // As Stop.
  ~DicomNode();

  // HOST:PORT with the real port; empty: there is none.
  std::string address() const { return scp_ == nullptr ? "" : scp_->address(); }
  // Null without archives.
  Importer* importer() const { return importer_.get(); }

  // Takes no more associations, gives those that are open until `end`, and ends the making of volumes. Images that have
  // become none stay in the spool for the next start, but for a temporary one. Idempotent.
  void Stop(std::chrono::steady_clock::time_point end);

 private:
  DicomNode(const NodeOptions& options, DicomPeers peers, ServerContext& context, AuditTrail& audit);
  absl::Status OpenSpool(const std::string& state_dir);
  absl::Status Serve();
  absl::Status StartImporter(std::vector<Remote> remotes);
  dimse::Patience patience() const { return {options_.timeout, options_.idle_timeout}; }
  io::DicomRoomFn reading();
  void SetMetrics() const;

  const NodeOptions options_;
  const DicomPeers peers_;
  ServerContext& context_;
  AuditTrail& audit_;
  std::shared_ptr<const dimse::TlsContext> tls_;
  const PacsMetrics metrics_;
  RunningMoves moves_;
  ReadingMemory reading_;
  std::string temporary_folder_;  // empty: none
  std::unique_ptr<InstanceSpool> spool_;
  std::unique_ptr<VolumeMaker> maker_;
  std::unique_ptr<StorageScp> scp_;     // null: no port
  std::unique_ptr<Importer> importer_;  // null: no archives
  bool stopped_ = false;
  Registry::Hook hook_;  // from the end of Start
};

// Whether a node could start with these options, without opening a port: INVALID_ARGUMENT and FAILED_PRECONDITION name
// the flag.
absl::Status CheckNodeOptions(const NodeOptions& options, bool has_identities);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_DICOM_NODE_H_
