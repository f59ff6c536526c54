// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/rpc_monitor.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "intrawarp/v1/bulk.pb.h"
#include "intrawarp/v1/registration.pb.h"
#include "intrawarp/v1/server.pb.h"
#include "intrawarp/v1/sparse_matrix.pb.h"
#include "intrawarp/v1/transform.pb.h"
#include "intrawarp/v1/volume.pb.h"

namespace intrawarp::server {

using grpc::experimental::InterceptionHookPoints;

std::vector<std::string> AllMethods() {
  std::vector<std::string> methods = {"grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"};
  for (const google::protobuf::FileDescriptor* file :
       {v1::Volume::descriptor()->file(), v1::Transform::descriptor()->file(), v1::Report::descriptor()->file(),
        v1::ServerInfo::descriptor()->file(), v1::SparseMatrix::descriptor()->file(),
        v1::UploadHeader::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back(absl::StrCat(file->service(s)->full_name(), "/", file->service(s)->method(m)->name()));
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
        unary_(info->type() == grpc::experimental::ServerRpcInfo::Type::UNARY),
        begin_(std::chrono::steady_clock::now()) {
    monitor_.metrics_.RpcStarted(method_);
    if (!own_) return;
    std::lock_guard<std::mutex> lock(monitor_.mutex_);
    ++monitor_.own_calls_;
  }

  // A call that gRPC gave up before its handler could answer.
  ~Interceptor() override {
    if (!handled_) Handled(grpc::StatusCode::CANCELLED);
    if (!own_) return;
    std::lock_guard<std::mutex> lock(monitor_.mutex_);
    --monitor_.own_calls_;
    monitor_.changed_.notify_all();
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (unary_ && own_ && methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      // The unary methods of intrawarp.v1 are typed: the message is a protobuf one.
      const auto* message = static_cast<const google::protobuf::Message*>(methods->GetRecvMessage());
      if (message != nullptr) monitor_.metrics_.RpcReceivedBytes(method_, message->ByteSizeLong());
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      const grpc::ByteBuffer* message = methods->GetSerializedSendMessage();
      if (message != nullptr) monitor_.metrics_.RpcSentBytes(method_, message->Length());
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      Handled(methods->GetSendStatus().error_code());
    }
    methods->Proceed();
  }

 private:
  void Handled(int code) {
    handled_ = true;
    monitor_.metrics_.RpcHandled(method_, code, std::chrono::steady_clock::now() - begin_);
  }

  RpcMonitor& monitor_;
  const std::string method_;
  const bool own_;
  const bool unary_;
  const std::chrono::steady_clock::time_point begin_;
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

bool RpcMonitor::WaitIdle(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return own_calls_ == 0; });
}

}  // namespace intrawarp::server
