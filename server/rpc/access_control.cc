// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/access_control.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/seams.h"
#include "server/context/limits.h"
#include "server/identity/method_roles.h"
#include "server/monitor/log.h"
#include "server/rpc/tls_credentials.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

constexpr auto kReloadPeriod = std::chrono::seconds(1);
constexpr AccessFile kFiles[] = {AccessFile::kTls, AccessFile::kTokens, AccessFile::kIdentities};

std::vector<std::string> Values(const grpc::AuthContext& context, const char* property) {
  std::vector<std::string> values;
  for (const grpc::string_ref& value : context.FindPropertyValues(property)) {
    values.emplace_back(value.data(), value.size());
  }
  return values;
}

std::string FirstOf(const std::vector<std::string>& values) { return values.empty() ? "" : values.front(); }

Credentials ShownBy(const grpc::ServerContextBase& call) {
  Credentials shown;
  const auto [begin, end] = call.client_metadata().equal_range("authorization");
  for (auto it = begin; it != end; ++it) shown.authorizations.emplace_back(it->second.data(), it->second.size());
  const std::shared_ptr<const grpc::AuthContext> context = call.auth_context();
  if (context == nullptr) return shown;
  shown.is_encrypted =
      FirstOf(Values(*context, GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME)) == GRPC_SSL_TRANSPORT_SECURITY_TYPE;
  CertificateNames names;
  names.pem = FirstOf(Values(*context, GRPC_X509_PEM_CERT_PROPERTY_NAME));
  if (!shown.is_encrypted || names.pem.empty()) return shown;
  names.uris = Values(*context, GRPC_PEER_URI_PROPERTY_NAME);
  names.dns = Values(*context, GRPC_PEER_DNS_PROPERTY_NAME);
  names.common_name = FirstOf(Values(*context, GRPC_X509_CN_PROPERTY_NAME));
  shown.certificate = std::move(names);
  return shown;
}

absl::Status Refusal(CallLimits::Limit limit, int64_t capacity) {
  const ErrorMetadata metadata = {{"capacity", absl::StrCat(capacity)}};
  switch (limit) {
    case CallLimits::Limit::kNone:
      break;
    case CallLimits::Limit::kConnectionCalls:
      return WithReason(
          absl::ResourceExhaustedError(absl::StrCat(capacity, " calls of this connection are under way, the limit")),
          v1::TOO_MANY_CALLS, metadata);
    case CallLimits::Limit::kIdentityCalls:
      return WithReason(
          absl::ResourceExhaustedError(absl::StrCat(capacity, " calls of this identity are under way, the limit")),
          v1::TOO_MANY_CALLS, metadata);
    case CallLimits::Limit::kIdentityRate:
      return WithReason(absl::ResourceExhaustedError(
                            absl::StrCat("this identity calls more often than ", capacity, " times a second")),
                        v1::CALL_RATE, metadata);
  }
  return absl::OkStatus();
}

}  // namespace

AccessControl::AccessControl(const AccessFiles& files, const CallLimitOptions& limits, const RpcMetrics& metrics,
                             const AdmissionMetrics& admission, const Seams& seams)
    : files_(files),
      metrics_(metrics),
      admission_(admission),
      seams_(seams),
      tls_(files),
      identities_(files),
      limits_(limits) {}

AccessControl::~AccessControl() { Stop(); }

absl::StatusOr<bool> AccessControl::ReloadOne(AccessFile file, WatchedFile::Time now) {
  switch (file) {
    case AccessFile::kTls:
      return tls_.Reload(now);
    case AccessFile::kTokens:
      return identities_.ReloadTokens(now);
    case AccessFile::kIdentities:
      break;
  }
  return identities_.ReloadCertificates(now);
}

absl::Status AccessControl::Load() {
  std::lock_guard<std::mutex> lock(reloading_);
  for (const AccessFile file : kFiles) {
    const absl::Status status = ReloadOne(file, seams_.steady_now()).status();
    if (status.ok()) continue;
    // The errors of TLS name their own.
    const std::string flag = file == AccessFile::kTls ? "" : absl::StrCat(NameOf(file), ": ");
    return absl::Status(status.code(), absl::StrCat("--", flag, status.message()));
  }
  ShowCertificate();
  credentials_ = MakeCredentials();
  return absl::OkStatus();
}

void AccessControl::ShowCertificate() {
  if (const auto material = tls_.material()) metrics_.SetCertificateEnd(material->not_after);
}

std::shared_ptr<grpc::ServerCredentials> AccessControl::MakeCredentials() const {
  if (!files_.has_tls()) return grpc::InsecureServerCredentials();
  if (files_.tls_client_ca.empty()) return MakeTlsCredentials(tls_, ClientCertificates::kNone);
  return MakeTlsCredentials(tls_,
                            files_.tokens.empty() ? ClientCertificates::kRequired : ClientCertificates::kOptional);
}

bool AccessControl::Reload() {
  std::lock_guard<std::mutex> lock(reloading_);
  bool any = false;
  for (const AccessFile file : kFiles) {
    const absl::StatusOr<bool> changed = ReloadOne(file, seams_.steady_now());
    if (changed.ok() && !*changed) continue;
    metrics_.CountReload(file, changed.ok());
    if (changed.ok()) {
      any = true;
      ShowCertificate();
      Log(Severity::kInfo, "reloaded", {{"file", NameOf(file)}});
    } else {
      Log(Severity::kError, "not_reloaded", {{"file", NameOf(file)}, {"cause", changed.status().ToString()}});
    }
  }
  return any;
}

void AccessControl::StartReloading(std::function<void()> changed) {
  if (!files_.has_tls()) return;
  changed_ = std::move(changed);
  thread_ = std::thread([this] { ReloadLoop(); });
}

void AccessControl::ReloadLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!wake_.wait_for(lock, kReloadPeriod, [this] { return stopping_; })) {
    lock.unlock();
    if (Reload() && changed_) changed_();
    lock.lock();
  }
}

void AccessControl::Stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

absl::StatusOr<Identity> AccessControl::Identify(const grpc::ServerContextBase& call) const {
  if (!identities_.is_required()) return Anybody();
  return Identify(ShownBy(call));
}

absl::StatusOr<Identity> AccessControl::IdentifyBearer(const std::string& authorization) const {
  if (!identities_.is_required()) return Anybody();
  Credentials shown;
  shown.is_encrypted = files_.has_tls();
  if (!authorization.empty()) shown.authorizations.push_back(authorization);
  return Identify(shown);
}

absl::StatusOr<Identity> AccessControl::Identify(const Credentials& shown) const {
  absl::StatusOr<Identity> identity = identities_.Identify(shown);
  if (identity.ok()) return identity;
  metrics_.CountRefusedCaller(v1::NOT_AUTHENTICATED);
  return WithReason(identity.status(), v1::NOT_AUTHENTICATED);
}

absl::Status AccessControl::Admit(absl::string_view method, const Identity& caller, const grpc::ServerContextBase& call,
                                  CallLimits::Place& place) {
  if (!MayCall(caller.roles, method)) {
    metrics_.CountRefusedCaller(v1::ROLE_MISSING);
    return WithReason(absl::PermissionDeniedError(
                          absl::StrCat("the role ", RolesText(caller.roles), " does not suffice for ", method)),
                      v1::ROLE_MISSING, {{"roles", RolesText(caller.roles)}});
  }
  return TakePlace(caller.name, call, place);
}

absl::Status AccessControl::AdmitAnyone(const grpc::ServerContextBase& call, CallLimits::Place& place) {
  return TakePlace(/*caller=*/"", call, place);
}

absl::Status AccessControl::TakePlace(const std::string& caller, const grpc::ServerContextBase& call,
                                      CallLimits::Place& place) {
  const CallLimits::Limit limit = limits_.Enter(call.peer(), caller, seams_.steady_now(), place);
  const absl::Status status = Refusal(limit, limits_.capacity(limit));
  if (!status.ok()) admission_.CountRejection(ReasonOf(status));
  return status;
}

}  // namespace intrawarp::server
