// SPDX-License-Identifier: Apache-2.0
#include "server/operation/durable_operations.h"

#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/monitor/log.h"
#include "server/operation/operation_messages.h"
#include "server/store/durable_objects.h"
#include "server/store/matrix_store.h"
#include "server/store/transform_store.h"

namespace intrawarp::server {
namespace {

// In a row the expire_time is one of DurableObjects::DurableTime, since the wall clock may have stepped at the next
// start.
int64_t DurableTimeIn(const v1::Operation& message) {
  return message.expire_time().seconds() * 1'000'000'000 + message.expire_time().nanos();
}

v1::Operation ToRow(const Operation& operation, const DurableObjects& durable) {
  v1::Operation message = OperationToProto(operation);
  if (!operation.expiry) return message;
  const int64_t time = durable.DurableTime(*operation.expiry);
  message.mutable_expire_time()->set_seconds(time / 1'000'000'000);
  message.mutable_expire_time()->set_nanos(static_cast<int32_t>(time % 1'000'000'000));
  return message;
}

absl::StatusOr<Operation> Parse(const state::OperationRow& row, const ServerContext& context) {
  v1::Operation message;
  if (!message.ParseFromString(row.description)) return absl::DataLossError("an operation in the catalogue is damaged");
  INTRAWARP_ASSIGN_OR_RETURN(Operation operation, OperationFromProto(message, row.fingerprint, context.seams));
  if (message.has_expire_time()) operation.expiry = context.durable.ExpiryAt(DurableTimeIn(message));
  if (operation.key.id == row.id && operation.key.owner == row.owner) return operation;
  return absl::DataLossError("an operation in the catalogue is that of another row");
}

absl::Status Keep(DurableObjects& durable, const std::string& owner, const std::string& id,
                  const Operation* operation) {
  if (operation == nullptr) return durable.RemoveOperation(id, owner);
  return durable.PutOperation({id, owner, operation->key.fingerprint, ToRow(*operation, durable).SerializeAsString()});
}

// A disk that takes no removal does so with every start.
void Forget(DurableObjects& durable, const state::OperationRow& row, const absl::Status& why) {
  Log(Severity::kError, "operation_not_restored", {{"operation", OperationName(row.id)}, {"cause", why.ToString()}});
  (void)durable.RemoveOperation(row.id, row.owner);
}

template <typename Stored>
std::vector<std::string> NamesOf(const ResidentStore<Stored>& store, const RequestKey& key) {
  const auto result = store.FindByRequest(key.id, key.owner);
  if (result == nullptr || result->request->fingerprint != key.fingerprint) return {};
  return {Stored::Name(result->id)};
}

}  // namespace

std::vector<std::string> ResultsOf(const ServerContext& context, OperationKind kind, const RequestKey& key) {
  switch (kind) {
    case OperationKind::kRegister:
      return NamesOf(context.transforms, key);
    case OperationKind::kMultiply:
      return NamesOf(context.matrices, key);
    case OperationKind::kImport:  // volumes do not know their request
      break;
  }
  return {};
}

absl::Status RestoreOperations(ServerContext& context) {
  DurableObjects& durable = context.durable;
  context.operations.KeepWith([&durable](const std::string& owner, const std::string& id,
                                         const Operation* operation) { return Keep(durable, owner, id, operation); },
                              [&durable](std::function<void()> work) { durable.Run(std::move(work)); });
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<state::OperationRow> rows, durable.state().ListOperations());
  std::vector<Operation> operations;
  for (const state::OperationRow& row : rows) {
    absl::StatusOr<Operation> operation = Parse(row, context);
    if (operation.ok()) {
      operations.push_back(*std::move(operation));
    } else {
      Forget(durable, row, operation.status());
    }
  }
  const size_t restored = operations.size();
  // A row that could not be written is written with the next change, and found again at the next start.
  const absl::Status kept = context.operations.Restore(
      std::move(operations),
      [&context](OperationKind kind, const RequestKey& key) { return ResultsOf(context, kind, key); });
  if (rows.empty()) return absl::OkStatus();
  Log(Severity::kInfo, "operations_restored",
      {{"operations", absl::StrCat(restored)}, {"lost", absl::StrCat(rows.size() - restored)}});
  if (!kept.ok()) Log(Severity::kWarning, "operations_not_kept", {{"cause", kept.ToString()}});
  return absl::OkStatus();
}

}  // namespace intrawarp::server
