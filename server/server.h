// SPDX-License-Identifier: Apache-2.0
// Server: everything that intrawarpd runs: the devices, the stores, the gRPC and the HTTP port.
//
// Health: NOT_SERVING, for the whole and each service, once a stop has begun and while no device is well: each is lost,
// or a job of it or the device itself does not come back.
//
// Thread safety: safe for concurrent use, except that Stop and destruction are the owner's.
#ifndef INTRAWARP_SERVER_SERVER_H_
#define INTRAWARP_SERVER_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/worker_pool.h"
#include "server/bulk/upload_store.h"
#include "server/context/server_context.h"
#include "server/device/device_set.h"
#include "server/device/served_device.h"
#include "server/identity/message_limits.h"
#include "server/monitor/http_server.h"
#include "server/monitor/stream_watch.h"
#include "server/monitor/watchdog.h"
#include "server/operation/operation_table.h"
#include "server/options.h"
#include "server/pacs/dicom_node.h"
#include "server/page/page_server.h"
#include "server/rpc/access_control.h"
#include "server/rpc/connection_gate.h"
#include "server/rpc/rpc_monitor.h"
#include "server/server_metrics.h"
#include "server/services.h"
#include "server/session/session_store.h"
#include "server/session/shared_memory.h"
#include "server/sparse/product_plans.h"
#include "server/store/durable_objects.h"
#include "server/store/matrix_store.h"
#include "server/store/request_table.h"
#include "server/store/transform_store.h"
#include "server/store/volume_store.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {

class Server {
 public:
  // Serves when it returns, with all durable objects. Errors: OpenDevice's; UNAVAILABLE when a port cannot be
  // bound; those of StateStore::Open, CheckExposure, AccessControl::Load and DicomNode::Start.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // Does the same as Stop.
  ~Server();

  // HOST:PORT with the real ports.
  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& http_address() const { return http_->address(); }
  // http://HOST:PORT/ or https://HOST:PORT/; empty without a page.
  std::string page_address() const;
  // Empty without a DICOM port.
  std::string dicom_address() const { return dicom_ == nullptr ? "" : dicom_->address(); }
  // "cpu", "cuda:0", "cuda:0,1".
  const std::string& device_name() const { return device_name_; }
  // The context of the first device.
  DeviceContext& context() { return devices_[0]; }

  // The files of certificates and credentials are read again every second; a test can have it now.
  void ReloadAccess();

  // False while the audit log cannot be written.
  bool audit_available() const { return audit_.Available().ok(); }

  // Refuses new calls, waits for those under way and for operations up to drain_timeout, then cancels them. Idempotent.
  void Stop();

  // The housekeeping thread calls this once a second. It drops uploads that nobody resumes and objects whose time is
  // over, ends streams whose client makes no progress, and turns health off when every device has failed or hangs.
  void Housekeep();

 private:
  using ServedDevices = std::vector<std::unique_ptr<ServedDevice>>;

  Server(const ServerOptions& options, ServedDevices served);
  static absl::StatusOr<ServedDevices> OpenDevices(const ServerOptions& options);
  absl::Status OpenAudit();
  absl::Status StartDevices();
  void Reclaim(int device, int64_t bytes);
  absl::Status RestoreDurable();
  absl::Status Serve();
  absl::Status ServeSharedMemory();
  absl::Status ServeGrpc();
  absl::Status ServeHttp();
  absl::Status ServePage();
  absl::Status ServeDicom();
  bool AnyIsWell() const;
  bool serving() const { return serving_ && AnyIsWell(); }
  HttpPage HealthPage() const;
  // Sets the metrics that mirror the state of the server, for a scrape.
  void SetMetrics() const;
  void SetDeviceMetrics(int index) const;
  void SetStoreMetrics() const;
  void SetAdmissionMetrics() const;
  void ExpireObjects(std::chrono::steady_clock::time_point now);
  void CheckDevice(int index);
  void ReportDevice(int index, const Watchdog::Finding& finding);
  void HousekeepingLoop();
  void ShutdownGrpc();
  void WaitForTransport();

  const ServerOptions options_;
  const ServerLimits limits_;
  // Memory and streams outlive what was made of them: the order is the order of need.
  const ServedDevices served_;  // at least one
  const std::string device_name_;
  // Whoever counts is younger.
  ServerMetrics metrics_;
  Ledger ledger_;
  PinnedPool pinned_;
  DeviceSet devices_;
  VolumeStore volumes_;
  MatrixStore matrices_;
  TransformStore transforms_;
  // Payloads go before what they lie in.
  DurableObjects durable_;
  UploadStore uploads_;
  SessionStore sessions_;
  RequestTable register_requests_;
  RequestTable multiply_requests_;
  ProductPlans product_plans_{ledger_};
  OperationTable operations_;
  MessageLimits message_limits_;
  AccessControl access_;
  AuditTrail audit_;
  WorkerPool workers_;
  WorkerPool receivers_;
  StreamWatch stream_watch_;
  std::atomic<bool> expiring_{false};
  std::atomic<bool> serving_{false};  // started, and not stopping
  std::unique_ptr<ServerContext> context_;
  std::unique_ptr<SharedMemory> shared_memory_;  // null: none is shared
  ConnectionGate gate_;
  RpcMonitor monitor_;
  std::vector<NamedService> services_;
  std::unique_ptr<grpc::Server> grpc_;
  std::string grpc_address_;
  std::unique_ptr<DicomNode> dicom_;  // null: there is none
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<PageServer> page_;  // null: there is none
  Registry::Hook scraped_;            // from Serve to Stop
  bool stopped_ = false;

  std::mutex housekeep_mutex_;  // held during Housekeep
  std::mutex housekeeping_mutex_;
  std::condition_variable housekeeping_wake_;
  bool housekeeping_stop_ = false;
  std::thread housekeeping_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVER_H_
