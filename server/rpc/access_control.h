// SPDX-License-Identifier: Apache-2.0
// AccessControl: whether a call may begin: who makes it, whether its role suffices, and whether its identity and its
// connection have a place left. It reads its files again every second on a thread of its own, since a disk that does
// not answer must not hold up anything else. A change takes effect once it has settled (watched_file.h), within four
// seconds.
//
// Thread safety: safe for concurrent use after Load.
#ifndef INTRAWARP_SERVER_RPC_ACCESS_CONTROL_H_
#define INTRAWARP_SERVER_RPC_ACCESS_CONTROL_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/names.h"
#include "server/base/seams.h"
#include "server/identity/call_limits.h"
#include "server/identity/exposure.h"
#include "server/identity/identity_source.h"
#include "server/identity/tls_files.h"
#include "server/job/admission_metrics.h"
#include "server/job/job_support.h"
#include "server/rpc/rpc_metrics.h"

namespace intrawarp::server {

class AccessControl {
 public:
  // The metrics and `seams` outlive it.
  AccessControl(const AccessFiles& files, const CallLimitOptions& limits, const RpcMetrics& metrics,
                const AdmissionMetrics& admission, const Seams& seams);
  // As Stop.
  ~AccessControl();

  // Reads the files for the first time: an error names the flag of the file that cannot be used.
  absl::Status Load();
  // For the gRPC port, whose server this outlives. After Load.
  const std::shared_ptr<grpc::ServerCredentials>& credentials() const { return credentials_; }

  // The certificate and key of the server's ports; without material where it has no TLS.
  const TlsFiles& tls() const { return tls_; }

  // Reads the files again every second, and calls `changed` when callers may have lost their identity. Once.
  void StartReloading(std::function<void()> changed);
  void Stop();
  // Reads them now, and takes up what has settled. A broken file is logged and counted, and the last good one stays.
  // True when credentials of callers have changed.
  bool Reload();

  // Who makes the call. UNAUTHENTICATED (NOT_AUTHENTICATED), which is counted.
  absl::StatusOr<Identity> Identify(const grpc::ServerContextBase& call) const;
  // The same for a request to the page, by the value of its authorization header, which came over TLS where tokens are
  // known; empty: it has none.
  absl::StatusOr<Identity> IdentifyBearer(const std::string& authorization) const;
  // Whether the caller may call the method now, with its place when it may. PERMISSION_DENIED (ROLE_MISSING);
  // RESOURCE_EXHAUSTED (TOO_MANY_CALLS, CALL_RATE). Refusals are counted.
  absl::Status Admit(absl::string_view method, const Identity& caller, const grpc::ServerContextBase& call,
                     CallLimits::Place& place);

  // A place for a call that needs no identity. RESOURCE_EXHAUSTED (TOO_MANY_CALLS).
  absl::Status AdmitAnyone(const grpc::ServerContextBase& call, CallLimits::Place& place);

 private:
  absl::StatusOr<Identity> Identify(const Credentials& shown) const;
  // True when the file has changed.
  absl::StatusOr<bool> ReloadOne(AccessFile file, WatchedFile::Time now);
  absl::Status TakePlace(const std::string& caller, const grpc::ServerContextBase& call, CallLimits::Place& place);
  void ReloadLoop();
  void ShowCertificate();
  std::shared_ptr<grpc::ServerCredentials> MakeCredentials() const;

  const AccessFiles files_;
  const RpcMetrics& metrics_;
  const AdmissionMetrics& admission_;
  const Seams& seams_;
  TlsFiles tls_;
  IdentitySource identities_;
  CallLimits limits_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::function<void()> changed_;
  std::mutex reloading_;  // held during Reload
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_ACCESS_CONTROL_H_
