// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/rpc_monitor.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpc/grpc.h>

#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "intrawarp/v1/bulk.pb.h"
#include "intrawarp/v1/operation.pb.h"
#include "intrawarp/v1/pacs.pb.h"
#include "intrawarp/v1/registration.pb.h"
#include "intrawarp/v1/server.pb.h"
#include "intrawarp/v1/sparse_matrix.pb.h"
#include "intrawarp/v1/transform.pb.h"
#include "intrawarp/v1/volume.pb.h"
#include "server/identity/method_roles.h"
#include "server/rpc/call_log.h"
#include "server/rpc/caller.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/refused_call.h"
#include "server/status/errors.h"
#include "wire/trace_context.h"

namespace intrawarp::server {

using grpc::experimental::InterceptionHookPoints;

namespace {

constexpr char kTooManyCalls[] = "as many calls are under way as are allowed";
constexpr char kRevoked[] = "the caller's identity was revoked";

std::string TypeOf(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming()) return method.server_streaming() ? "bidi_stream" : "client_stream";
  return method.server_streaming() ? "server_stream" : "unary";
}

// The bytes of a header beside the metadata: its path, its authority, frames and padding; and the answer to it.
constexpr int64_t kHeaderBytes = 256;
constexpr int64_t kEntryBytes = 32;
// Around a message: its length, frames of HTTP/2 and records of TLS, of which each has 16 KiB at most; and what a
// client says to a message that was sent.
constexpr int64_t kMessageBytes = 128;

int64_t HeaderBytes(const grpc::ServerContextBase& call) {
  int64_t bytes = kHeaderBytes;
  for (const auto& [key, value] : call.client_metadata()) {
    bytes += static_cast<int64_t>(key.size() + value.size()) + kEntryBytes;
  }
  return bytes;
}

ConnectionGate::Brings BringsOf(grpc::experimental::ServerRpcInfo::Type type) {
  using Type = grpc::experimental::ServerRpcInfo::Type;
  const bool streams = type == Type::CLIENT_STREAMING || type == Type::BIDI_STREAMING;
  return streams ? ConnectionGate::Brings::kStream : ConnectionGate::Brings::kOneMessage;
}

bool OnlyAsks(absl::string_view method) {
  return method == "grpc.health.v1.Health/Check" || method == "intrawarp.v1.ServerService/GetServerInfo";
}

}  // namespace

std::vector<RpcMethod> AllMethods() {
  std::vector<RpcMethod> methods = {{"grpc.health.v1.Health", "Check", "unary"},
                                    {"grpc.health.v1.Health", "Watch", "server_stream"}};
  for (const google::protobuf::FileDescriptor* file :
       {v1::Volume::descriptor()->file(), v1::Transform::descriptor()->file(), v1::Report::descriptor()->file(),
        v1::ServerInfo::descriptor()->file(), v1::SparseMatrix::descriptor()->file(),
        v1::UploadHeader::descriptor()->file(), v1::Operation::descriptor()->file(),
        v1::Remote::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        const google::protobuf::MethodDescriptor& method = *file->service(s)->method(m);
        methods.push_back({file->service(s)->full_name(), method.name(), TypeOf(method)});
      }
    }
  }
  return methods;
}

// Lives as long as its call.
class RpcMonitor::Interceptor final : public grpc::experimental::Interceptor {
 public:
  Interceptor(RpcMonitor& monitor, grpc::experimental::ServerRpcInfo* info)
      : monitor_(monitor),
        method_(absl::StripPrefix(info->method(), "/")),
        own_(absl::StartsWith(method_, "intrawarp.")),
        only_asks_(OnlyAsks(method_)),
        unary_(info->type() == grpc::experimental::ServerRpcInfo::Type::UNARY),
        brings_(BringsOf(info->type())),
        begin_(std::chrono::steady_clock::now()),
        context_(*info->server_context()),
        connection_(monitor.gate_.Find(context_.peer())),
        logged_{RuleOf(method_) == nullptr ? "other" : absl::string_view(method_), "", false} {
    monitor_.metrics_.Started(method_);
    if (!own_) return;
    std::lock_guard<std::mutex> lock(monitor_.mutex_);
    ++monitor_.own_calls_;
  }

  ~Interceptor() override {
    if (!handled_) GivenUp();
    std::lock_guard<std::mutex> lock(monitor_.mutex_);
    if (counted_ != nullptr) --*counted_;
    ForgetStranger();
    monitor_.identified_.erase(this);
    if (!own_) return;
    --monitor_.own_calls_;
    monitor_.changed_.notify_all();
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      ConnectionGate::Account(connection_, HeaderBytes(context_));
      NoteTrace();
      LetIn();
      if (!refusal_.ok()) monitor_.gate_.CountRefused(connection_);
    }
    if (!refusal_.ok()) Refuse(*methods);
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      Received(methods->GetRecvMessage());
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      ConnectionGate::Account(connection_, kMessageBytes);
      const grpc::ByteBuffer* message = methods->GetSerializedSendMessage();
      if (message != nullptr) monitor_.metrics_.Sent(method_, static_cast<int64_t>(message->Length()));
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) return End(*methods);
    if (BeginsToSend(*methods)) return RecordBegin(*methods);
    methods->Proceed();
  }

  // With the monitor's mutex held.
  bool IsRevoked() const {
    const absl::StatusOr<Identity> now = monitor_.access_.Identify(context_);
    return !now.ok() || now->name != caller_.name || !now->roles.HasAllOf(caller_.roles);
  }
  grpc_call* Ref() const {
    grpc_call_ref(context_.c_call());
    return context_.c_call();
  }

 private:
  // A header that is malformed, or there twice, counts as none.
  void NoteTrace() {
    const auto [begin, end] = context_.client_metadata().equal_range(kTraceparentKey);
    if (begin != end && std::next(begin) == end) {
      if (std::optional<std::string> id = TraceIdIn({begin->second.data(), begin->second.size()})) {
        logged_.trace_id = *id;
        SetTrace(context_, *std::move(id));
      }
    }
    logged_.is_trace_malformed = begin != end && logged_.trace_id.empty();
    LogCallBegin(logged_);
  }
  // A call that gRPC gave up before its handler could answer.
  void GivenUp() {
    monitor_.gate_.CountRefused(connection_);
    Handled(grpc::Status::CANCELLED);
  }
  // Finds out who calls, and whether that one may.
  void LetIn() {
    const MethodRule* const rule = RuleOf(method_);
    if (rule != nullptr && rule->is_open) {
      refusal_ = LetAnyoneIn();
      return;
    }
    absl::StatusOr<Identity> caller = monitor_.access_.Identify(context_);
    refusal_ = caller.status();
    if (!caller.ok()) return;
    caller_ = *caller;
    SetCaller(context_, *caller);
    refusal_ = Count();
    if (refusal_.ok()) refusal_ = TakeConnection();
    if (refusal_.ok()) refusal_ = monitor_.access_.Admit(method_, *caller, context_, place_);
    if (refusal_.ok() && IsAudited(method_)) refusal_ = monitor_.audit_.Available();
    if (!refusal_.ok() || !own_) return;
    std::lock_guard<std::mutex> lock(monitor_.mutex_);
    monitor_.identified_.insert(this);
    // The files may have changed since, and whoever looked for revoked calls did not see this one.
    if (IsRevoked()) refusal_ = WithReason(absl::UnauthenticatedError(kRevoked), v1::NOT_AUTHENTICATED);
  }
  absl::Status LetAnyoneIn() {
    call_ = monitor_.gate_.BeginOpen(connection_);
    if (monitor_.gate_.IsKnown(connection_)) {
      if (absl::Status status = Count(); !status.ok()) return status;
    } else {
      CountStranger();
    }
    return monitor_.access_.AdmitAnyone(context_, place_);
  }
  // Takes a place among the calls of known callers.
  absl::Status Count() {
    std::lock_guard<std::mutex> lock(monitor_.mutex_);
    int64_t& calls = only_asks_ ? monitor_.asking_calls_ : monitor_.calls_;
    counted_ = &calls;
    if (++calls <= monitor_.max_calls_) return absl::OkStatus();
    monitor_.admission_.CountRejection(v1::TOO_MANY_STREAMS);
    return WithReason(absl::ResourceExhaustedError(kTooManyCalls), v1::TOO_MANY_STREAMS,
                      InUse(monitor_.max_calls_, monitor_.max_calls_));
  }
  // Takes a place among the calls of strangers, if need be of another one.
  void CountStranger() {
    grpc_call* gives_way = nullptr;
    {
      std::lock_guard<std::mutex> lock(monitor_.mutex_);
      const std::string network = ConnectionGate::NetworkOf(connection_);
      if (monitor_.strangers_.size() >= monitor_.stranger_calls_) {
        Interceptor& oldest = *monitor_.stranger_of_.at(*monitor_.strangers_.GivesWayFor(network));
        gives_way = oldest.Ref();
        oldest.ForgetStranger();
      }
      stranger_ = monitor_.next_stranger_++;
      monitor_.strangers_.Enter(network, stranger_);
      monitor_.stranger_of_[stranger_] = this;
    }
    if (gives_way == nullptr) return;
    // The end of a call may come on this thread, and takes the mutex.
    monitor_.admission_.CountRejection(v1::TOO_MANY_STREAMS);
    grpc_call_cancel_with_status(gives_way, GRPC_STATUS_RESOURCE_EXHAUSTED, kTooManyCalls, nullptr);
    grpc_call_unref(gives_way);
  }
  // With the monitor's mutex held.
  void ForgetStranger() {
    if (stranger_ == 0) return;
    monitor_.strangers_.Leave(ConnectionGate::NetworkOf(connection_), stranger_);
    monitor_.stranger_of_.erase(std::exchange(stranger_, 0));
  }
  absl::Status TakeConnection() {
    std::optional<ConnectionGate::Call> call = monitor_.gate_.BeginKnown(connection_, brings_);
    if (call) {
      call_ = *std::move(call);
      return absl::OkStatus();
    }
    return WithReason(absl::ResourceExhaustedError("as many connections are open as are allowed"),
                      v1::TOO_MANY_STREAMS);
  }
  void Refuse(grpc::experimental::InterceptorBatchMethods& methods) {
    if (methods.QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      if (own_) {
        MarkRefused(*methods.GetRecvInitialMetadata());
      } else {
        grpc_call_cancel_with_status(context_.c_call(), static_cast<grpc_status_code>(refusal_.code()),
                                     std::string(refusal_.message()).c_str(), nullptr);
      }
    }
    const bool received = methods.QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE);
    if (received && own_ && unary_ && methods.GetRecvMessage() != nullptr) {
      static_cast<google::protobuf::Message*>(methods.GetRecvMessage())->Clear();
    }
    if (own_ && unary_ && methods.QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      ClearAnswer(methods);
    }
    if (own_ && methods.QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      methods.ModifySendStatus(ToGrpcStatus(refusal_));
    }
  }
  // The handler has answered an empty request, and the transport would send the answer beside the error.
  static void ClearAnswer(grpc::experimental::InterceptorBatchMethods& methods) {
    const void* const answer = methods.GetSendMessage();
    if (answer != nullptr) static_cast<google::protobuf::Message*>(const_cast<void*>(answer))->Clear();
  }
  AuditedCall Audited() const { return {std::string(logged_.method), caller_.name, context_.peer()}; }
  bool BeginsToSend(grpc::experimental::InterceptorBatchMethods& methods) {
    if (!refusal_.ok() || !IsExport(method_)) return false;
    return methods.QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE) && !std::exchange(sends_, true);
  }
  // The first message is sent once the record is synced. Without a record the call ends, and nothing is sent.
  void RecordBegin(grpc::experimental::InterceptorBatchMethods& methods) {
    AuditOf(context_)->Begin(Audited(), [this, &methods](const absl::Status& record) {
      if (!record.ok()) {
        grpc_call_cancel_with_status(context_.c_call(), GRPC_STATUS_UNAVAILABLE, std::string(record.message()).c_str(),
                                     nullptr);
      }
      methods.Proceed();  // may end the call, and this
    });
  }
  // The status is sent once the call's record is synced.
  void End(grpc::experimental::InterceptorBatchMethods& methods) {
    const grpc::Status status = methods.GetSendStatus();
    {
      // The call's context is destroyed before this object, and whoever ends the call for another one asks the context.
      std::lock_guard<std::mutex> lock(monitor_.mutex_);
      monitor_.identified_.erase(this);
      ForgetStranger();
    }
    if (absl::IsUnauthenticated(refusal_) || absl::IsPermissionDenied(refusal_)) return EndRefused(methods, status);
    if (!refusal_.ok() || !IsAudited(method_)) {
      Handled(status);
      return methods.Proceed();
    }
    const auto synced = [this, &methods, status](const absl::Status& record) {
      if (!record.ok()) {
        if (unary_ && methods.QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE))
          ClearAnswer(methods);
        methods.ModifySendStatus(ToGrpcStatus(Unrecorded()));
      }
      Handled(record.ok() ? status : ToGrpcStatus(Unrecorded()));
      methods.Proceed();  // may end the call, and this
    };
    AuditOf(context_)->Close(Audited(), OutcomeOf(status), std::chrono::steady_clock::now() - begin_, synced);
  }
  // Ends the call of a known caller once its record is synced; the server does not do that work for strangers.
  void EndRefused(grpc::experimental::InterceptorBatchMethods& methods, const grpc::Status& status) {
    const auto end = [this, &methods, status](const absl::Status&) {
      Handled(status);
      methods.Proceed();  // may end the call, and this
    };
    if (!caller_.name.empty()) return monitor_.audit_.AppendRefusal(Audited(), OutcomeOf(status), end);
    monitor_.audit_.AppendRefusal(Audited(), OutcomeOf(status));
    end(absl::OkStatus());
  }
  void Received(void* message) {
    if (message == nullptr) return call_.Arrived();
    monitor_.metrics_.MessageReceived(method_);
    const int64_t bytes = BytesOf(message);
    // Frames and records are a small part of what they hold.
    ConnectionGate::Account(connection_, bytes + bytes / 128 + kMessageBytes);
    if (brings_ == ConnectionGate::Brings::kOneMessage) call_.Arrived();
    if (unary_ && own_) monitor_.metrics_.BytesReceived(method_, bytes);
  }
  // The unary methods of intrawarp.v1 are typed, so that the message is a protobuf one; its others are raw. The
  // messages of gRPC's own services are small.
  int64_t BytesOf(const void* message) const {
    if (!own_) return kHeaderBytes;
    return static_cast<int64_t>(unary_ ? static_cast<const google::protobuf::Message*>(message)->ByteSizeLong()
                                       : static_cast<const grpc::ByteBuffer*>(message)->Length());
  }
  void Handled(const grpc::Status& status) {
    handled_ = true;
    const auto elapsed = std::chrono::steady_clock::now() - begin_;
    monitor_.metrics_.Handled(method_, status.error_code(), elapsed);
    LogCallEnd(logged_, status, elapsed);
  }

  RpcMonitor& monitor_;
  const std::string method_;
  const bool own_;
  const bool only_asks_;
  const bool unary_;
  const ConnectionGate::Brings brings_;
  const std::chrono::steady_clock::time_point begin_;
  grpc::ServerContextBase& context_;
  const ConnectionGate::ConnectionPtr connection_;  // null: the gate does not know it
  LoggedCall logged_;                               // a stranger's words are not logged, nor recorded
  Identity caller_;                                 // once it is let in
  absl::Status refusal_;                            // OK: the call may begin
  CallLimits::Place place_;
  ConnectionGate::Call call_;
  int64_t* counted_ = nullptr;   // with the monitor's mutex held
  FairPlaces::Id stranger_ = 0;  // so, too; 0: no stranger's call
  bool sends_ = false;           // content, and its record is written
  bool handled_ = false;
};

class RpcMonitor::Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(RpcMonitor& monitor) : monitor_(monitor) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new Interceptor(monitor_, info);
  }

 private:
  RpcMonitor& monitor_;
};

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> RpcMonitor::MakeInterceptorFactory() {
  return std::make_unique<Factory>(*this);
}

int64_t RpcMonitor::calls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

void RpcMonitor::EndRevoked() {
  std::vector<grpc_call*> revoked;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Interceptor* const call : identified_) {
      if (call->IsRevoked()) revoked.push_back(call->Ref());
    }
  }
  // The end of a call may come on this thread, and takes the mutex.
  for (grpc_call* const call : revoked) {
    grpc_call_cancel_with_status(call, GRPC_STATUS_UNAUTHENTICATED, kRevoked, nullptr);
    grpc_call_unref(call);
  }
}

bool RpcMonitor::WaitIdle(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return own_calls_ == 0; });
}

}  // namespace intrawarp::server
